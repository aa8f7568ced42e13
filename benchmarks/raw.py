"""Raw results: the files of benchmarks/results, and which of their results the pages have.

A run of all suites is the base of the pages. What was measured anew since takes the place of the same measurement, and
what only long runs have is taken over from the newest of them, so that a suite can be measured by itself.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.findings import LONG
from benchmarks.measure import machine
from benchmarks.measure.result import Result

RESULTS: Final = Path(__file__).resolve().parent / "results"
# the page that names the file that it is made from
_PAGE: Final = "performance-tables.md"
_NAMED: Final = "benchmarks/results/"
# the settings that tell measurements of a suite apart; a suite that is not here has those of Spark's
_APART: Final = {
    "restore": ("records", "value_size", "cache"),
    "beyond memory": ("records", "limit", "kinds", "works", "storage"),
    "checkpoint bytes": ("checkpoints", "changes"),
    "commit latency": ("records", "durability"),
    "nexmark": ("events", "queries"),
    "nexmark on spark": ("query",),
    "shuffle bench": ("work",),
}
# A measurement that takes minutes: its results of a day are its repeats.
_REPEATED: Final = ("shuffle bench",)
# the engines of ShuffleBench, in the order of the page
_ENGINES: Final = ("plain", "flink", "hybridstore", "native")
_OF_SPARK: Final = ("work", "keys", "rows", "events")

# a result, and the head of the run that it is of
Earlier = list[tuple[dict[str, Any], Result]]


def keeper(results: Path, states: Path, *, full: bool, quick: bool = False) -> Callable[[Result], Path]:
    """Return a call that writes a result into a new file of `results`, and returns the file; `states` is where states
    are made. The pages take no result of a quick run.
    """
    about = machine.describe(states)
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H%M%S")
    results.mkdir(parents=True, exist_ok=True)
    head = {"machine": about, "started": stamp, "full": full, **({"quick": True} if quick else {})}
    path = results / file_of(head)

    def keep(result: Result) -> Path:
        is_new = not path.exists()
        with path.open("a", encoding="utf-8") as file:
            for fields in [head, result.to_json()] if is_new else [result.to_json()]:
                file.write(json.dumps(fields, ensure_ascii=False) + "\n")
        return path

    return keep


def file_of(head: dict[str, Any]) -> str:
    """Return the name of the file of a run."""
    return f"{head['started']}-{head['machine']['commit'] or 'unpacked'}.jsonl"


def source(docs: Path) -> Path | None:
    """Return the file of the run that the pages in `docs` are made from, or None where there are none."""
    page = docs / _PAGE
    if not page.exists():
        return None
    return RESULTS / page.read_text(encoding="utf-8").partition(_NAMED)[2].partition("`")[0]


def read(raw: Path) -> tuple[dict[str, Any], list[Result]]:
    """Return the head (machine, start) and the results of a file that `benchmarks` wrote."""
    first, *rest = raw.read_text(encoding="utf-8").splitlines()
    return json.loads(first), [Result.from_json(json.loads(text)) for text in rest]


def same(result: Result) -> tuple[Any, ...]:
    """Return what results of one measurement have in common."""
    return result.suite, *(result.settings.get(name) for name in _APART.get(result.suite, _OF_SPARK))


def carried(raw: Path, results: Sequence[Result]) -> Earlier:
    """Return what was measured anew since the run `raw`, and the newest result of each long measurement that it has
    not, of the files that are beside it.

    Long measurements take most of an hour, and other engines have to be installed, so that they are not measured each
    time.
    """
    known = {same(result) for result in results}
    newest: dict[tuple[Any, ...], Earlier] = {}
    for path in sorted(raw.parent.glob("*.jsonl"), reverse=True):
        if path == raw:
            continue
        head, others = read(path)
        # of two results of a file the later one
        for result in reversed(others if not head.get("quick") else []):
            if path.name > raw.name or (result.suite in LONG and same(result) not in known):
                of_it = newest.setdefault(same(result), [])
                if not of_it or (result.suite in _REPEATED and of_it[0][0]["started"][:10] == head["started"][:10]):
                    of_it.append((head, result))
    order = {suite: number for number, suite in enumerate(LONG)}
    works = ("count", "tumbling", "hopping", "tumbling, killed", "sliding", "variables")
    return sorted(
        ((of_it[0][0], _pooled([result for _, result in of_it])) for of_it in newest.values()),
        key=lambda line: (
            order.get(line[1].suite, -1),
            -line[1].settings.get("rows", 0),
            works.index(work) if (work := line[1].settings.get("work")) in works else len(works),
            line[1].settings.get("keys", 0),
            _place(line[1]),
        ),
    )


def _place(result: Result) -> tuple[int, str]:
    """Return the place of a result among those of its suite."""
    engine = str(result.settings.get("work")).partition(",")[0]
    number = re.search(r"\d+", str(result.settings.get("query", "")))
    return _ENGINES.index(engine) if engine in _ENGINES else int(number[0]) if number else 0, str(same(result))


def _pooled(repeats: Sequence[Result]) -> Result:
    """Return one result of its repeats, the newest first: medians, and sums of what is counted in outputs."""
    first, *others = repeats
    if not others:
        return first
    pooled = Result(first.suite, dict(first.settings), notes=[note for result in repeats for note in result.notes])
    pooled.settings["repeats"] = sum(result.settings["repeats"] for result in repeats)
    pooled.seconds = sum(result.seconds for result in repeats)
    for name in dict.fromkeys(entry.name for result in repeats for entry in result.lines):
        lines = [entry for result in repeats for entry in result.lines if entry.name == name]
        value = (sum if lines[0].unit == "outputs" else median)(entry.value for entry in lines)
        low, high = min(entry.low for entry in lines), max(entry.high for entry in lines)
        pooled.lines.append(replace(lines[0], value=value, low=low, high=high))
    return pooled


def read_all(raw: Path) -> tuple[dict[str, Any], list[Result], Earlier]:
    """Return the head of a run, its results, and those of other runs that the pages have beside them or in their place
    (`carried`).
    """
    head, results = read(raw)
    earlier = carried(raw, results)
    anew = {same(result) for _, result in earlier}
    return head, [result for result in results if same(result) not in anew], earlier
