"""How state survives: checkpoints in LMDB, restore from a checkpoint and the changelog behind it, verify, prune.

This package knows blocks and mutations, not the kinds of stores.
"""
