"""Reading: what is in a state at a version, without its lock and without its job: places on disk, versions, stores and
their records, changes. Inspection, following and Spark's source show it.
"""
