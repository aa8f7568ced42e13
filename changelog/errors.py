"""The root of every error of the project, and the errors of the changelog.

All errors derive from `HybridStoreError`. Users import them from `hybridstore`.
"""

from __future__ import annotations


class HybridStoreError(Exception):
    """Root of every error that hybridstore raises on purpose (bad arguments stay ValueError and TypeError).

    Raised itself where no other class fits, such as for a write to a state that was opened at a version.

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 1
    ...     version = state.commit()
    >>> hs.open("state", at=1).commit()
    Traceback (most recent call last):
    ...
    hybridstore.HybridStoreError: state: opened read-only at version 1 (open it without `at` to write)
    """

    __module__ = "hybridstore"


class UnsupportedVersionError(HybridStoreError):
    """A file was written by a newer format than this release can read; upgrade hybridstore to read it.

    >>> import pathlib
    >>> folder = pathlib.Path("state/generations")  # which shards of a topology count
    >>> folder.mkdir(parents=True)
    >>> size = (folder / "0000000001.json").write_text('{"format": 99}')
    >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
    >>> minutes.aggregate(n=hs.Count()).open("state", shards=2)
    Traceback (most recent call last):
    ...
    hybridstore.errors.UnsupportedVersionError: state/generations/...: format 99, this release reads 1 (upgrade ...)
    """

    __module__ = "hybridstore.errors"


class ForeignFileError(HybridStoreError):
    """A file or directory is not hybridstore's, or belongs to another store. Nothing was read or written.

    >>> import pathlib
    >>> size = pathlib.Path("holiday.jpg").write_text("")
    >>> hs.open(".")
    Traceback (most recent call last):
    ...
    hybridstore.errors.ForeignFileError: .: found 'holiday.jpg' in it, expected a state directory, or a new or empty one
    """

    __module__ = "hybridstore.errors"


class DamageError(HybridStoreError):
    """Root of the errors about files that are damaged or lost: what was committed cannot be read back from them.

    Restore the files from a copy, or keep what can be read with `hybridstore inspect repair`.

    >>> import pathlib
    >>> with hs.open("state") as state:
    ...     for visits in (1, 2):
    ...         state.key_value("users")["ann"] = visits
    ...         version = state.commit()
    >>> segment = pathlib.Path("state/changelog/00000000000000000001.log")
    >>> content = bytearray(segment.read_bytes())
    >>> content[110] ^= 1  # a bit of the first commit
    >>> size = segment.write_bytes(content)
    >>> try:
    ...     hs.open("state")
    ... except hs.DamageError as error:
    ...     print(type(error).__name__)
    CorruptFrameError
    """

    __module__ = "hybridstore"


class ChangelogError(DamageError):
    """Root of the errors about segments and frames; raised itself for a mutation that cannot be decoded or applied.

    Checksums find damage first, so it is raised only for bytes that a defect, or another program, has written: an
    operation or a store that does not exist, or columns of different lengths. Restore the file from a copy, or keep
    what can be read with `hybridstore inspect repair`.
    """

    __module__ = "hybridstore.errors"


class CorruptFrameError(ChangelogError):
    """A frame that committed data depends on is damaged: the state is refused rather than shortened.

    Raised when a checksum, a length, a sequence number or a digest does not fit and committed data follows.
    Restore the file from a copy, or rebuild from an older checkpoint with `hybridstore inspect repair`.

    path, offset, reason  the file, the byte in it where the damage begins, and what is wrong

    >>> import pathlib
    >>> with hs.open("state") as state:
    ...     for visits in (1, 2):
    ...         state.key_value("users")["ann"] = visits
    ...         version = state.commit()
    >>> segment = pathlib.Path("state/changelog/00000000000000000001.log")
    >>> content = bytearray(segment.read_bytes())
    >>> content[110] ^= 1  # a bit of the first commit
    >>> size = segment.write_bytes(content)
    >>> hs.open("state")
    Traceback (most recent call last):
    ...
    hybridstore.errors.CorruptFrameError: state/changelog/00000000000000000001.log at byte 80: checksum mismatch: ...
    """

    __module__ = "hybridstore.errors"

    def __init__(self, path: object, offset: int, reason: str) -> None:
        super().__init__(f"{path} at byte {offset}: {reason}")
        self.path = str(path)
        self.offset = offset
        self.reason = reason


class StateInUseError(HybridStoreError):
    """A state was used by a thread that does not own it, or in the middle of another call, as by a signal handler. The
    call was refused before it changed anything; the owner, and the call in progress, continue.

    The thread that first uses a state owns it, until `hand_over()` lets another thread use it.

    >>> import threading
    >>> state = hs.open("state")
    >>> users = state.key_value("users")
    >>> users["ann"] = 1
    >>> def use():
    ...     try:
    ...         users["bob"] = 2
    ...     except hs.errors.StateInUseError as error:
    ...         print(error)
    >>> other = threading.Thread(target=use, name="other")
    >>> other.start(), other.join()
    state: found a call by thread 'other', expected thread 'MainThread': one thread owns a state (use the state in ...)
    (None, None)
    """

    __module__ = "hybridstore.errors"


class StatePoisonedError(HybridStoreError):
    """A write, a sync, a rollback or a change in memory failed or was interrupted, so this store accepts no further
    call.

    Reopen the state: the last commit is intact. Uncommitted changes are lost, as after a crash.

    >>> import os
    >>> state = hs.open("state")
    >>> state.key_value("users")["ann"] = 1
    >>> os.rename("state", "elsewhere")  # under the open store
    >>> state.commit()
    Traceback (most recent call last):
    ...
    hybridstore.StatePoisonedError: state: a commit was cut short by ForeignFileError: ...
    """

    __module__ = "hybridstore"


class StorageUnreachableError(HybridStoreError, OSError):
    """An object store did not answer in time, or refused a request. Whether an object was created is unknown.

    Raised after two minutes of tries without an answer, and at once for a request that is refused: wrong credentials,
    no such bucket, a misspelt option. Look at the network, credentials and the bucket, and start again: nothing that
    was committed is lost.
    """

    __module__ = "hybridstore"
