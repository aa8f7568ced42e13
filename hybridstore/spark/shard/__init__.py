"""One shard of an operator by version: loaded along the line that counts, committed by one create, pruned."""
