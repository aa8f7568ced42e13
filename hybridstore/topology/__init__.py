"""Topologies: computations on a stream, declared once and run in plain Python or on Spark.

declare.Topology     declares, and opens the doors: run, open, apply
plan.Plan            what it is, as data
shard_run.ShardRun   a plan at work on one shard: a batch in, results out (`batch`, `results`)
windows, columns     the state of windows, and the ways into it by column
engine.Engine, run   the plain-Python engine, and a resumable run over rows
"""
