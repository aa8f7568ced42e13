"""Rewinding: an existing state goes back to an older version."""
