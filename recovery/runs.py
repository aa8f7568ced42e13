"""Runs: the objects `runs/<n>`, by which a launch of a Spark operator begins. docs/format.md, "Runs".

The first task of a launch creates the launch's object before it loads any shard. The object names the batch with which
the launch began, and the launches that counted before, as that task saw them. So the object with the greatest name
decides which log objects of every shard count (`recovery.rule`), and a launch that begins late, below a newer one,
changes nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from changelog.codec import pack
from changelog.errors import CorruptFrameError
from changelog.storage import Storage

from .block import seal, unseal_fields
from .layout import list_runs, run_name
from .rule import Run, Runs

FORMAT_VERSION: Final = 1
# Launches that count for some version, each with a later first batch: far more than versions are retained.
KEPT_RUNS: Final = 1000


class Claim(NamedTuple):
    """The content of a run object: Spark's id of the run, the task attempt that created the object, and the runs that
    count, the run itself last.
    """

    run_id: str
    attempt: int
    runs: Runs

    @property
    def run(self) -> Run:
        """The run itself."""
        return self.runs[-1]

    @property
    def launch(self) -> int:
        """The number of its launch."""
        return self.runs[-1].launch

    @property
    def first(self) -> int:
        """The first batch of the launch."""
        return self.runs[-1].first


def encode_claim(claim: Claim) -> bytes:
    """Return the bytes of a run object."""
    return seal(
        pack(
            {
                "format": FORMAT_VERSION,
                "min_reader": FORMAT_VERSION,
                "run": claim.run_id,
                "attempt": claim.attempt,
                "runs": [list(run) for run in claim.runs[-KEPT_RUNS:]],
            }
        )
    )


def decode_claim(data: bytes, where: str, launch: int) -> Claim:
    """Return the content of a run object. Raises CorruptFrameError, naming `where`, or UnsupportedVersionError."""
    try:
        fields = unseal_fields(data, where, FORMAT_VERSION)
        claim = Claim(fields["run"], fields["attempt"], tuple(Run(*run) for run in fields["runs"]))
        if claim.launch != launch:
            raise ValueError(f"holds launch {claim.launch}, its name says {launch}")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CorruptFrameError(where, 0, f"run object cannot be read: {error} (restore it from a copy)") from error
    return claim


def read_claim(storage: Storage, launch: int) -> Claim:
    """Return the claim of a launch. Raises FileNotFoundError, and as `decode_claim`."""
    name = run_name(launch)
    return decode_claim(storage.get(name), f"{storage.url}/{name}", launch)


def newest_claim(storage: Storage) -> Claim | None:
    """Return the claim of the newest launch that has begun, None if no launch has begun.

    Raises as `decode_claim`. O(launches).
    """
    while True:
        launches = list_runs(storage)
        if not launches:
            return None
        try:
            return read_claim(storage, launches[-1])
        except FileNotFoundError:
            # A newer launch has begun since the listing, and has removed this one.
            if list_runs(storage) == launches:
                raise
