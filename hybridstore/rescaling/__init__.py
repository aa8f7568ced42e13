"""Rescaling: another number of shards for existing state, as a new generation beside the old one.

    report    the effects of a rescale, as numbers and sentences
    routes    which key of the operator a store's key belongs to
    sharing   the records of old shards, distributed to new ones
    plain     the states of a plain topology
    command   `hybridstore rescale`, and `hybridstore.rescale`

The shards of a Spark operator are `hybridstore.spark.rescaling`.
"""
