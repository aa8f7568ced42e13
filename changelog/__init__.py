"""The changelog: what happened, in order.

Mutations are packed into checksummed frames, frames are appended to segments, a commit frame closes a version. This
package knows nothing of stores or checkpoints. The bytes are described in docs/format.md and nowhere else.
"""

from __future__ import annotations

# A marker that hybridstore looks for, to tell this package from a foreign one of the same name.
HYBRIDSTORE = True
