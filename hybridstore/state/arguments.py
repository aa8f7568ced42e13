"""Arguments: what each argument that several doors take may be, and the sentence for one that may not.

`hybridstore.open`, `Topology.open`, `run` and `apply`, `hybridstore.spark.apply_program` and its kin, and `rescale`
call `check` before anything is touched. What depends on other arguments is checked by its door.
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any, Final, NamedTuple

from .policy import CheckpointPolicy


class Rule(NamedTuple):
    """What an argument may be: in words; its types (none: any), or else one of the values `also`; and a condition."""

    expected: str
    kinds: tuple[type, ...] = ()
    fits: Callable[[Any], bool] = lambda value: True
    also: tuple[Any, ...] = ()


def _whole(value: Any, least: int, most: int | None = None) -> bool:
    return type(value) is int and value >= least and (most is None or value <= most)


RULES: Final[dict[str, Rule]] = {
    # where the state is
    "file_mode": Rule(
        "rights to read and write such as 0o600, the owner's among them",
        fits=lambda value: type(value) is int and not value & ~0o666 and value & 0o600 == 0o600,
    ),
    # how it is kept
    "durability": Rule('"commit" or "os"', fits=lambda value: value in ("commit", "os")),
    "checkpoints": Rule("CheckpointPolicy or None", (CheckpointPolicy, NoneType)),
    "at": Rule('int (a version), "newest" or None', (int, NoneType), also=("newest",)),
    "memory_limit": Rule(
        "1 or more bytes as an int (100 << 20), or None", (int, NoneType), lambda value: value is None or value > 0
    ),
    # how many, how often
    "shards": Rule("a whole number of 1 or more", fits=lambda value: _whole(value, 1)),
    "commit_rows": Rule("a whole number of 1 or more", fits=lambda value: _whole(value, 1)),
    "commit_seconds": Rule(
        "seconds of 0 or more, or None", (int, float, NoneType), lambda value: value is None or value >= 0
    ),
    "metrics_port": Rule(
        "a port from 0 to 65535, or None", (int, NoneType), lambda value: value is None or _whole(value, 0, 65535)
    ),
    # what is shown
    "progress": Rule(
        "a function that is called as progress(phase, done, total), True, False or None",
        fits=lambda value: value is None or type(value) is bool or callable(value),
    ),
    # how Spark works on it
    "time": Rule('"stream" or "watermark"', fits=lambda value: value in ("stream", "watermark")),
    "placement": Rule("one of auto, worker, holder", fits=lambda value: value in ("auto", "worker", "holder")),
}


def check(**given: Any) -> None:
    """Raise TypeError or ValueError for the first argument that breaks its rule. O(arguments).

    >>> from hybridstore.state.arguments import check
    >>> check(shards=4, memory_limit=None)
    >>> check(shards=0)
    Traceback (most recent call last):
    ...
    ValueError: shards: found 0, expected a whole number of 1 or more
    """
    for name, value in given.items():
        rule = RULES[name]
        if any(value is each for each in rule.also) or (type(value) is str and value in rule.also):
            continue
        if rule.kinds and (not isinstance(value, rule.kinds) or type(value) is bool):
            raise TypeError(f"{name}: found {type(value).__name__}, expected {rule.expected}")
        if not rule.fits(value):
            raise ValueError(f"{name}: found {value!r}, expected {rule.expected}")
