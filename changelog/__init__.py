"""The changelog: what happened, in order.

Mutations are packed into checksummed frames, frames are appended to segments, a commit frame closes a version. This
package knows nothing of stores or checkpoints. The bytes are described in docs/format.md and nowhere else.
"""
