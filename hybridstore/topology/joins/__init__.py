"""Joins: two named inputs of one topology, joined by key and time on the stores of a shard."""
