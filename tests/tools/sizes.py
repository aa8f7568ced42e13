"""Sizes of a checkpoint's parts that small states fill: directories of several pages, several packs."""

from recovery.compaction import Sizes

SMALL_PARTS = Sizes(page_lines=4, most_packs=8, large_bytes=4096)
