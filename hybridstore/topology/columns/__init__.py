"""Columns: ways for Arrow batches into the windows by numpy, equal to those row by row in every bit."""
