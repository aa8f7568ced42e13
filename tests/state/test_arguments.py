"""An argument that several doors take is checked by one rule, with one sentence, before anything is touched."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.state.arguments import RULES, check

COUNTS = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute")).aggregate(n=hs.Count())
BAD: dict[str, list[Any]] = {
    "file_mode": [0o777, 0o444, "0o600", None],
    "durability": ["disk", None],
    "checkpoints": [7, "often"],
    "at": ["oldest", 1.5, True],
    "memory_limit": [0, -1, 1.5, "1 GB", True],
    "shards": [0, -1, 1.0, "2", True],
    "commit_rows": [0, 1.5, "10", None],
    "commit_seconds": [-1, "1 s"],
    "metrics_port": [-1, 65536, "9100"],
    "progress": ["bar", 1],
    "time": ["wall", None],
    "placement": ["driver", None],
}


def applied(path: Path, **given: Any) -> Any:
    pytest.importorskip("pyspark")
    return COUNTS.apply(SimpleNamespace(isStreaming=True), "counts", location=str(path), **given)


DOORS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "open": (hs.open, lambda path, **given: hs.open(path, **given)),
    "Topology.open": (hs.Topology.open, lambda path, **given: COUNTS.open(path, **given)),
    "Topology.run": (hs.Topology.run, lambda path, **given: list(COUNTS.run([], path, **given))),
    "Topology.apply": (hs.Topology.apply, applied),
}
CASES = [
    (door, name, value)
    for door, (function, _) in DOORS.items()
    for name in inspect.signature(function).parameters
    if name in RULES
    for value in BAD[name]
]


def test_every_rule_has_values_that_break_it() -> None:
    assert BAD.keys() == RULES.keys()
    assert {name for _, name, _ in CASES} == RULES.keys()


@pytest.mark.parametrize(("door", "name", "value"), CASES)
def test_a_wrong_argument_is_refused_in_one_sentence_before_anything_is_touched(
    tmp_path: Path, door: str, name: str, value: Any
) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        DOORS[door][1](tmp_path / "state", **{name: value})
    shown = type(value).__name__ if caught.type is TypeError else repr(value)
    assert str(caught.value) == f"{name}: found {shown}, expected {RULES[name].expected}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", RULES)
def test_what_a_rule_allows_passes(name: str) -> None:
    good: dict[str, list[Any]] = {
        "file_mode": [0o600, 0o666],
        "durability": ["commit", "os"],
        "checkpoints": [None, hs.CheckpointPolicy()],
        "at": [None, 7, "newest"],
        "memory_limit": [None, 1],
        "shards": [1, 64],
        "commit_rows": [1],
        "commit_seconds": [None, 0, 0.5],
        "metrics_port": [None, 0, 9100],
        "progress": [None, True, False, print],
        "time": ["stream", "watermark"],
        "placement": ["auto", "worker", "holder"],
    }
    for value in good[name]:
        check(**{name: value})


@pytest.mark.parametrize("door", DOORS)
def test_the_docstring_of_a_door_names_every_argument(door: str) -> None:
    function = DOORS[door][0]
    text = inspect.getdoc(function) or ""
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "path", "df", "rows")]
    assert [name for name in names if name not in text] == []


# What several doors take in the same sense, and the door that explains it; every other door only refers.
HOMES = {
    "durability": "open",
    "shards": "Topology.open",
    "allow": "Topology.run",
    "state_location": "Topology.apply",
}
# What has a meaning or a default of its own at a door, which the door explains.
OTHERWISE = {("Topology.apply", "shards"), ("rescale", "shards"), ("Topology.apply", "allow")}
REFERS = re.compile(r"\bas (for|in)\b|\bthose of\b")


def explanations(text: str) -> dict[str, str]:
    """Return what a docstring says of each argument, by name: its entry of the list, or the sentence that names it."""
    entries: dict[str, str] = {}
    names: list[str] = []
    for line in text.splitlines():
        if entry := re.match(r"([a-z_]+(?:, [a-z_]+)*) {2,}", line):
            names = entry[1].split(", ")
        elif not line.startswith("    "):
            names = []
        for name in names:
            entries[name] = f"{entries.get(name, '')} {line}"
    for sentence in re.split(r"(?<=[.;])\s+", " ".join(text.split())):
        if REFERS.search(sentence):
            entries = {name: sentence for name in re.findall(r"[a-z_]+", sentence)} | entries
    return entries


def test_an_argument_of_several_doors_is_explained_by_one_of_them() -> None:
    pytest.importorskip("pyspark")
    from hybridstore.spark import apply_program

    doors = {door: function for door, (function, _) in DOORS.items()}
    doors |= {"rescale": hs.rescale, "apply_program": apply_program}
    for door, function in doors.items():
        explained = explanations(inspect.getdoc(function) or "")
        for name in HOMES.keys() & inspect.signature(function).parameters.keys() - {"self"}:
            refers = REFERS.search(explained.get(name, "")) is not None
            assert refers is not (HOMES[name] == door or (door, name) in OTHERWISE), (door, name, explained.get(name))


def test_a_key_of_another_type_is_refused_under_a_limit_too(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", memory_limit=3_000_000) as state:
        store = state.key_value("k", ttl=10)
        store.put("a", 1, 1)
        for call in (lambda: store.put(2, None, 1), lambda: store.scan("a", 3), lambda: store.scan(2)):
            with pytest.raises(TypeError, match="found int, expected str"):
                call()
