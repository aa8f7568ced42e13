"""Suites: each measures one thing and returns results, or runs by itself."""
