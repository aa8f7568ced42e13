"""State: an open state directory, and what a shard of a Spark operator shares with it.

directory.py     State: open, commit, roll back, close       opening.py: what it was asked for
lock.py          who may write here                                 usable.py: whether it may still be used
directory_log.py the changelog in the hands of its writer           own_files.py: no file of another writer is touched
group.py         the stores that commit together                    named_stores.py: the ways to ask for them
checkpointer.py  the checkpoints of a group, beside its owner       policy.py: when one is due
memory.py        what of a state is in memory                       memory_budget.py: how much there may be
hydration.py     blocks come in, slice by slice
restart.py       what a restart would do and cost
fork.py          what a forked child does with it                   metrics.py: its numbers
"""
