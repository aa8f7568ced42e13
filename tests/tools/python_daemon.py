"""Spark's daemon of Python workers, for the session of the tests: `spark.python.daemon.module`.

A worker is a fork of the daemon and imports what its tasks need, which takes half a second of processor time. In
streaming queries workers are many and live briefly, so the daemon imports all of that before, once.
"""

import pyspark.sql.pandas.serializers
from pyspark import daemon

import hybridstore.spark.worker
import tests.tools.spark_programs

LOADED = (pyspark.sql.pandas.serializers, hybridstore.spark.worker, tests.tools.spark_programs)

if __name__ == "__main__":
    daemon.manager()  # type: ignore[no-untyped-call]
