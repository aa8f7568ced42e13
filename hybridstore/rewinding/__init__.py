"""Rewinding: an existing state returns to an older version."""
