"""Layout: every name on disk, built and parsed in one place. docs/format.md, "Names", is its page.

A plain store, below its directory:

    LOCK                                             who has the state open
    changelog/<version>.log                          segments, named after their first version (`changelog.segment`)
    checkpoints/<version>-<hash>.lmdb                the index of a checkpoint
    checkpoints/<version>-<hash>.damaged             that checkpoint proved damaged while it was in use
    packs/<version>-<ms>-<random>.pack               blocks of checkpoints
    fences/<version>-<ms>                            on an object store, instead of LOCK: who claimed the state, when

    pins/<name>/...                                  a pin: a plain state or topology, which is never written
    erasing                                          an erase has begun here and has not ended
    forks/<hash>                                     where another state is that began as a version of this one
    forks/origin                                     where the state is that this one began as a version of

A plain topology with several shards, below its directory:

    <shard>/...                                      a plain store for each shard
    rescales/<generation>                            who has begun to make a generation of shards, and of what
    generations/<n>.json                             which shards count after a rescale; a chain
    <generation>/<shard>/...                         a plain store for each shard of a later generation

A Spark operator, below `<location>/hybridstore/<operator>/`:

    operator/<n>.json                                what the operator is; a chain
    rescales/<generation>                            who has begun to make a generation of shards, and of what
    launches/<n>                                     one for each time the operator was applied
    runs/<n>                                         the first batch of a launch
    moved                                            tasks do not run under the number of their shard
    erasing                                          an erase has begun here and has not ended
    <generation>/<shard>/log/<version>-<n>-<attempt>-<digest8>
    <generation>/<shard>/checkpoints/<version>-<n>-<hash>.lmdb
    <generation>/<shard>/packs/<version>-<ms>-<random>.pack

Names are relative to the storage that they are used with: a plain store's directory, an operator's folder, or a shard's
(`storage.below(shard_folder(...))`), so that checkpoints and packs have the same names in both. Numbers have leading
zeros, so names sort as numbers do. A parser gives None for every other name, and accepts exactly what its builder
builds. How an object becomes a file (temporary names, end marks) is `changelog.storage`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from changelog.storage import Storage

LOCK: Final = "LOCK"
CHANGELOG: Final = "changelog"
CHECKPOINTS: Final = "checkpoints"
PACKS: Final = "packs"
LOG: Final = "log"
FENCES: Final = "fences"
# The folder of hybridstore in the checkpoint location of a query, and what is in an operator's folder; a file that
# Spark writes once into every checkpoint location.
SPARK_FOLDER: Final = "hybridstore"
METADATA: Final = "metadata"
OPERATOR: Final = "operator"
LAUNCHES: Final = "launches"
RUNS: Final = "runs"
RESCALES: Final = "rescales"
GENERATIONS: Final = "generations"
MOVED: Final = "moved"
# The folder of the pins of a plain state or topology; each is a state of its own.
PINS: Final = "pins"
# A note: an erase has begun here and has not ended; and the folder of the notes of forks, by what they are of.
ERASING: Final = "erasing"
FORKS: Final = "forks"
# The same note for all shards of a state on an object store, where an opening lists anyway.
ERASING_SHARDS: Final = f"{GENERATIONS}/{ERASING}"

CHECKPOINT_SUFFIX: Final = ".lmdb"
DAMAGE_SUFFIX: Final = ".damaged"
PACK_SUFFIX: Final = ".pack"
OPERATOR_SUFFIX: Final = ".json"

_CHECKPOINT: Final = re.compile(r"checkpoints/(\d{20})-(?:(\d{10})-)?([0-9a-f]+)\.lmdb", re.ASCII)
# A time has 14 digits from the year 2286 on, which a clock that is set wrong may say.
_PACK: Final = re.compile(r"packs/(\d{20})-(\d{13,})-([0-9a-f]{16})\.pack", re.ASCII)
_FENCE: Final = re.compile(r"fences/(\d{20})-(\d{13,})", re.ASCII)
_LOG: Final = re.compile(r"log/(\d{20})-(\d{10})-(\d{20})-([0-9a-f]{8})", re.ASCII)
_SHARD: Final = re.compile(r"(\d{6})/(\d{6})", re.ASCII)


class CheckpointName(NamedTuple):
    """The name of a checkpoint: its version, its launch (0 in a plain store), and the hash of its content, in hex.

    Names sort by version, then by launch: the order in which they count.
    """

    version: int
    launch: int
    hash: str

    def __str__(self) -> str:
        launch = f"{self.launch:010d}-" if self.launch else ""
        return f"{CHECKPOINTS}/{self.version:020d}-{launch}{self.hash}{CHECKPOINT_SUFFIX}"


class PackName(NamedTuple):
    """The name of a pack: the version it was written for, when it was (wall clock, ms), and 16 random hex digits."""

    version: int
    wall_ms: int
    nonce: str

    def __str__(self) -> str:
        return f"{PACKS}/{self.version:020d}-{max(0, self.wall_ms):013d}-{self.nonce}{PACK_SUFFIX}"


class LogName(NamedTuple):
    """The name of a shard's log object: version, launch, Spark's task attempt, and 8 hex digits of the version's
    digest.

    Within a launch names sort by version, then by attempt: the order in which they count.
    """

    version: int
    launch: int
    attempt: int
    digest8: str

    def __str__(self) -> str:
        return f"{LOG}/{self.version:020d}-{self.launch:010d}-{self.attempt:020d}-{self.digest8}"


def parse_checkpoint_name(name: str) -> CheckpointName | None:
    """Return the parts of a name `checkpoints/...`, or None when it is not the name of a checkpoint."""
    match = _CHECKPOINT.fullmatch(name)
    if match is None or match[2] == "0" * 10:
        return None
    return CheckpointName(int(match[1]), int(match[2] or 0), match[3])


def list_checkpoints(storage: Storage) -> list[CheckpointName]:
    """Return the names of the checkpoints of a store or a shard, oldest first. Soundness is not checked. O(names)."""
    names = storage.list(f"{CHECKPOINTS}/")
    return sorted(parsed for name in names if (parsed := parse_checkpoint_name(name)) is not None)


def damage_name(checkpoint: str) -> str:
    """Return the name of the marker that says that this checkpoint proved damaged while it was in use."""
    return checkpoint.removesuffix(CHECKPOINT_SUFFIX) + DAMAGE_SUFFIX


def parse_pack_name(name: str) -> PackName | None:
    """Return the parts of a name `packs/...`, or None when it is not the name of a pack."""
    match = _PACK.fullmatch(name)
    return PackName(int(match[1]), int(match[2]), match[3]) if match else None


def fence_name(version: int, wall_ms: int) -> str:
    """Return the name of the note that an owner is about to claim a state with this version, at this time."""
    return f"{FENCES}/{version:020d}-{max(0, wall_ms):013d}"


def fences_after(version: int) -> str:
    """Return what to list after (`storage.list(FENCES + "/", after=...)`) for the notes of later versions."""
    return f"{FENCES}/{version:020d}~"


def parse_fence_name(name: str) -> int | None:
    """Return the version of such a note; None for another name. Its time is for people: no decision depends on it."""
    match = _FENCE.fullmatch(name)
    return None if match is None else int(match[1])


def log_before(version: int) -> str:
    """Return what to list after (`storage.list(LOG + "/", after=...)`) for the log objects of `version` and later
    ones.
    """
    return f"{LOG}/{version:020d}"


def parse_log_name(name: str) -> LogName | None:
    """Return the parts of a name `log/...`, or None when it is not the name of a log object."""
    match = _LOG.fullmatch(name)
    return LogName(int(match[1]), int(match[2]), int(match[3]), match[4]) if match else None


def _numbered(
    folder: str, digits: int, suffix: str = ""
) -> tuple[Callable[[int], str], Callable[[str], int | None], Callable[[Storage], list[int]]]:
    """Return what the n-th object in a folder is called, whose number a name is (None for any other name), and which
    numbers a storage has, in order.
    """
    form = re.compile(rf"{folder}/(\d{{{digits}}}){re.escape(suffix)}", re.ASCII)

    def parse(name: str) -> int | None:
        match = form.fullmatch(name)
        return int(match[1]) if match else None

    def listed(storage: Storage) -> list[int]:
        return sorted(number for name in storage.list(f"{folder}/") if (number := parse(name)) is not None)

    return lambda number: f"{folder}/{number:0{digits}d}{suffix}", parse, listed


# by which a driver takes a launch's number
launch_name, parse_launch_name, list_launches = _numbered(LAUNCHES, 10)
# that says with which batch a launch began
run_name, parse_run_name, list_runs = _numbered(RUNS, 10)
# the n-th description of an operator
operator_name, parse_operator_name, list_operators = _numbered(OPERATOR, 10, OPERATOR_SUFFIX)
# by which a rescale takes a generation of shards
rescale_name, parse_rescale_name, list_rescales = _numbered(RESCALES, 6)
# the n-th description of which shards of a plain topology count
generation_name, parse_generation_name, list_generations = _numbered(GENERATIONS, 10, OPERATOR_SUFFIX)


def operator_folder(operator: str) -> str:
    """Return the folder of an operator, below the checkpoint location of its query."""
    return f"{SPARK_FOLDER}/{operator}"


def generation_folder(generation: int) -> str:
    """Return the folder of a generation of shards, below its operator's."""
    return f"{generation:06d}"


def shard_folder(generation: int, shard: int) -> str:
    """Return the folder of a shard, below its operator's."""
    return f"{generation_folder(generation)}/{shard:06d}"


def parse_shard_folder(folder: str) -> tuple[int, int] | None:
    """Return (generation, shard), or None when `folder` is not the folder of a shard."""
    match = _SHARD.fullmatch(folder)
    return (int(match[1]), int(match[2])) if match else None
