"""Topologies: declared once, run in plain Python (`local`) or on Spark (`program`, with `hybridstore.spark`)."""
