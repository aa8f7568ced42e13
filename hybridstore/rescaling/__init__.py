"""Rescaling: another number of shards for state that exists, as a new generation beside the old one.

    report    what a rescale would do, as rows and sentences
    routes    which key of the operator a store's key belongs to
    sharing   the content of some shards shared out to others
    plain     the states of a plain topology
    command   `hybridstore rescale`, and `hybridstore.rescale`

The shards of a Spark operator are `hybridstore.spark.rescaling`.
"""
