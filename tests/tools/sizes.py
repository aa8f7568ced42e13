"""Sizes of a checkpoint's parts that small states fill: directories of several pages, packs of several size classes."""

from recovery.compaction import Sizes

SMALL_PARTS = Sizes(page_lines=4, tier=3, small_bytes=512, large_bytes=4096)
