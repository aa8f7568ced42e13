"""Rescaling: another number of shards for existing state, as a new generation beside the old one.

report    the effects of a rescale, as numbers and sentences
routes    which key of the operator a store's key belongs to
sharing   the records of old shards, distributed to new ones
plain     the states of a plain topology
spark     the shards of a Spark operator
command   `hybridstore rescale`, and `hybridstore.rescale`
"""
