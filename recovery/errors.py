"""Errors of checkpoints and restores."""

from __future__ import annotations

from changelog.errors import DamageError, HybridStoreError


class CheckpointError(HybridStoreError):
    """Root of the errors about checkpoints; raised itself for a checkpoint that could not be written."""

    __module__ = "hybridstore.errors"


class CorruptCheckpointError(CheckpointError, DamageError):
    """A checkpoint file is damaged.

    The previous checkpoint and the changelog still hold the state: reopen to fall back to them. A restart falls back by
    itself; the error is raised for a block that is read later, when a record of the block is touched.

    >>> import pathlib
    >>> with hs.open("state") as state:
    ...     state.key_value("users").put_many({f"user-{i}": i for i in range(1000)})
    ...     version = state.commit()
    ...     state.checkpoint(wait=True)
    >>> (pack,) = pathlib.Path("state/packs").iterdir()
    >>> content = bytearray(pack.read_bytes())
    >>> content[100] ^= 1  # a bit of a block
    >>> size = pack.write_bytes(content)
    >>> with hs.open("state") as state:
    ...     state.key_value("users").get("user-7")
    Traceback (most recent call last):
    ...
    hybridstore.errors.CorruptCheckpointError: ...: block checksum mismatch (reopen to fall back ...)
    >>> with hs.open("state") as state:  # without the damaged checkpoint
    ...     state.key_value("users").get("user-7")
    7
    """

    __module__ = "hybridstore.errors"


class ProgramMismatchError(HybridStoreError):
    """A store, or a topology, is asked for with other parameters than the state was written with.

    The message names what differs and, if a change is possible, the words of consent (`allow=`).

    >>> with hs.open("state") as state:
    ...     clicks = state.window("clicks", retention="1 hour")
    ...     version = state.commit()
    >>> with hs.open("state") as state:
    ...     clicks = state.window("clicks", retention="2 hours")
    Traceback (most recent call last):
    ...
    hybridstore.ProgramMismatchError: store 'clicks': the state has ... retention_ms 3600000, asked for ...
    """

    __module__ = "hybridstore"


class RestoreError(HybridStoreError):
    """The state cannot be restored without losing committed data; nothing was changed.

    Also raised for a version that is not retained, and when a source is not the one that a run has read.

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 1
    ...     version = state.commit()
    >>> hs.open("state", at=7)
    Traceback (most recent call last):
    ...
    hybridstore.errors.RestoreError: state: version 7 is not retained: the nearest below it is 1
    """

    __module__ = "hybridstore.errors"


class ChangelogGapError(RestoreError, DamageError):
    """Versions are missing from the changelog between the checkpoint (or the start) and what follows.

    >>> import os
    >>> for visits in (1, 2, 3):  # each opening begins a segment of the changelog
    ...     with hs.open("state") as state:
    ...         state.key_value("users")["ann"] = visits
    ...         version = state.commit()
    >>> os.remove("state/changelog/00000000000000000002.log")
    >>> hs.open("state")
    Traceback (most recent call last):
    ...
    hybridstore.errors.ChangelogGapError: state/changelog/00000000000000000003.log: version 2 is missing before it (...)
    """

    __module__ = "hybridstore.errors"


class DigestMismatchError(RestoreError, DamageError):
    """A version's digest does not continue the one before it: the changelog has a hole or belongs to another line.

    >>> import shutil
    >>> def visit(path, visits):
    ...     with hs.open(path) as state:
    ...         state.key_value("users")["ann"] = visits
    ...         version = state.commit()
    >>> visit("state", 1)
    >>> copied = shutil.copytree("state", "copy")
    >>> for path, visits in (("state", 2), ("state", 3), ("copy", 9)):
    ...     visit(path, visits)
    >>> segment = "changelog/00000000000000000002.log"
    >>> copied = shutil.copy(f"copy/{segment}", f"state/{segment}")  # the same version of another history
    >>> hs.open("state")
    Traceback (most recent call last):
    ...
    hybridstore.errors.DigestMismatchError: state/changelog/00000000000000000003.log: continues version 2 with ...
    """

    __module__ = "hybridstore.errors"
