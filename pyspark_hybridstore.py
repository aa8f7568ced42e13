"""Found by Spark through its name: makes `spark.read.format("hybridstore")` known without a call."""

from hybridstore.spark.source import StateSource


class DefaultSource(StateSource):
    """The data source "hybridstore"; see hybridstore.spark.source."""


__all__ = ["DefaultSource"]
