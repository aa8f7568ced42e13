"""Spark's daemon of Python workers, for the sessions of the tests: `spark.python.daemon.module`.

A worker is a fork of the daemon and imports what its tasks need, which takes half a second of processor time. In
streaming queries workers are many and live briefly, so the daemon imports all of that before, once.
"""

import gc
import sys
from importlib import import_module

MODULES = ("pyspark.sql.pandas.serializers", "hybridstore.spark.worker", "tests.tools.spark_programs")
# what these import when they have rows: `group_by` of pyarrow all of pandas
MODULES += ("pyarrow.acero", "hybridstore.stores.key_value", "hybridstore.spark.program", "hybridstore.spark.steps")

if __name__ == "__main__":
    # the last is what the workers of this daemon run: tasks have a daemon, and each way to plan a source has another
    for name in (*MODULES, sys.argv[1]):
        import_module(name)
    daemon = import_module("pyspark.daemon")
    # the collections of a worker, one after each task, visit nothing of that, and so copy nothing of it
    gc.collect()
    gc.freeze()
    daemon.manager()
