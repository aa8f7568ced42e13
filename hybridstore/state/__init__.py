"""State: an open state directory, and what a shard of a Spark operator shares with it.

directory.py    HybridStore: open, commit, roll back, close        opening.py  lock.py  own_files.py  usable.py  fork.py
group.py        the stores that commit together                    named_stores.py: the ways to ask for them
policy.py       when a checkpoint is due                           background.py: its thread
hydration.py    blocks come into memory                            memory_budget.py: and leave it again
"""
