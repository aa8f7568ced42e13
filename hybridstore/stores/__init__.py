"""Stores: the five kinds of stores, and the structures that they share. They decide and apply; they know no files."""
