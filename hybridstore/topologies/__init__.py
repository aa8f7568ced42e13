"""The doors of topologies: declared here, run in plain Python or on Spark, and compared with an existing state."""
