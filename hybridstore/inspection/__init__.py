"""Inspection: what is in a state, offline or beside a live writer, without the job's code, the lock, or trust in the files.

`hybridstore inspect` (docs/inspect.md) and `hybridstore.inspect(path)` are its two faces; a module holds one command or a few.
"""

from __future__ import annotations
