"""Importing: state that was not made by a query of ours becomes version 1 of an operator.

    import     the state of an operator of Spark's own ─┐
    backfill   the rows of a batch DataFrame           ─┴─ batch 0, in every shard ─▶ the query begins with batch 1

Batch 0 is made by a Spark job instead of by the query, with the objects that a query's batch has. Spark's own files of
batch 0 (`query_files`) are written behind it, `commits/0` last: until then nothing counts.
"""
