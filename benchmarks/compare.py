"""Compare: two versions of hybridstore measured in turn, and what changed beyond noise.

Each ref is unpacked into a folder of its own; the files as they are need none. The same probe runs on both, or the same
suite of each version's own benchmarks (`--suite`), in fresh processes that take turns, so that drift of the machine
meets both. A figure differs when a bootstrap's 95 % interval of the ratio of medians leaves out 1 and the medians are
more than 2 % apart. Noise alone makes up to 5 % of all figures slower, so that some figure of fifty is nearly always
slower: when a figure is, everything is measured a second time, and only a figure that both measurements call slower is
slower.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from benchmarks.measure.result import narrow_table, number
from benchmarks.measure.state import scratch

ROOT: Final = Path(__file__).resolve().parent.parent
_RESAMPLES: Final = 2000
_SMALLEST: Final = 0.02
# What is compared, and with how many records unless the caller says: "stores" is the probe, the others are suites.
SUITES: Final = {"stores": 100_000, "catching-up": 16_000, "spark": 20_000}


class Change(NamedTuple):
    """One figure in both versions (medians, seconds), their ratio, and the interval that holds it with 95 %; `again` is
    the second measurement of a figure that the first calls slower, where both versions have it in all runs.
    """

    name: str
    before: float
    after: float
    ratio: float
    low: float
    high: float
    again: Change | None = None

    @property
    def alone(self) -> str:
        """What this measurement alone says: "slower", "faster", or "" for what noise may explain."""
        if self.low > 1 and self.ratio > 1 + _SMALLEST:
            return "slower"
        return "faster" if self.high < 1 and self.ratio < 1 - _SMALLEST else ""

    @property
    def verdict(self) -> str:
        """ "slower" where both measurements say so, "faster", or "" for what noise may explain."""
        confirmed = self.again is not None and self.again.alone == "slower"
        return "" if self.alone == "slower" and not confirmed else self.alone

    @property
    def text(self) -> str:
        """The verdict as a table shows it."""
        return self.verdict or ("slower once, not again" if self.alone else "no change beyond noise")

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the verdict; `again` has the fields of the second measurement, or is None."""
        again = self.again and {name: field for name, field in self.again._asdict().items() if name != "again"}
        return self._asdict() | {"again": again, "verdict": self.verdict}

    def unit(self) -> tuple[str, float]:
        """Return the unit that shows the figures best, and how many of it a second has."""
        return ("ms", 1e3) if self.before > 1e-3 else ("µs", 1e6) if self.before > 2e-6 else ("ns", 1e9)


def judge(name: str, before: list[float], after: list[float]) -> Change:
    """Compare the samples of one figure. O(resamples x samples)."""
    dice = random.Random(name)
    ratios = sorted(
        median(dice.choices(after, k=len(after))) / median(dice.choices(before, k=len(before)))
        for _ in range(_RESAMPLES)
    )
    low, high = ratios[int(_RESAMPLES * 0.025)], ratios[int(_RESAMPLES * 0.975)]
    return Change(name, median(before), median(after), median(after) / median(before), low, high)


def unpack(ref: str, folder: Path) -> Path:
    """Write the packages of a commit, and its benchmarks, under `folder` and return it. Raises ValueError when there is
    no such commit.
    """
    folder.mkdir()
    packages = ["changelog", "recovery", "hybridstore", "benchmarks"]
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", ref, "--", *packages], capture_output=True)
    if archive.returncode:
        reason = archive.stderr.decode(errors="replace").strip().splitlines()
        raise ValueError(f"{ref}: {reason[-1] if reason else 'git knows no such commit'}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def probe(tree: Path, records: int, suite: str = "stores") -> dict[str, float]:
    """Run the probe, or a suite, on the hybridstore in `tree`."""
    here = Path(__file__)
    words = [here.with_name("probe.py")] if suite == "stores" else [here.with_name("probe_suite.py"), suite]
    answer = subprocess.run(
        [sys.executable, "-P", *map(str, words), str(records)],
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
    )
    if answer.returncode:
        raise RuntimeError(f"{tree.name}: {(answer.stderr.strip().splitlines() or ['no message'])[-1]}")
    seconds: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return seconds


def compare_refs(ref: str, other: str = "", *, runs: int = 10, records: int = 0, suite: str = "stores") -> list[Change]:
    """Measure `ref` and `other` (default: the files as they are) in turn and return every figure that both have in all
    runs, and that is more than 0: a difference of two times may be less than what a clock can tell. When a figure is
    slower, both are measured once more, in as many runs.
    """
    with scratch() as place:
        before = unpack(ref, place / "before")
        after = unpack(other, place / "after") if other else ROOT
        words = (before, after, records or SUITES[suite], suite)
        changes = _measure(*words, range(runs))
        if not any(change.alone == "slower" for change in changes):
            return changes
        again = {change.name: change for change in _measure(*words, range(runs, 2 * runs))}
        return [
            change._replace(again=again.get(change.name) if change.alone == "slower" else None) for change in changes
        ]


def _measure(before: Path, after: Path, records: int, suite: str, turns: range) -> list[Change]:
    """Measure two trees in fresh processes; of each turn another tree is the first."""
    samples: dict[Path, list[dict[str, float]]] = {before: [], after: []}
    for turn in turns:
        for tree in (before, after) if turn % 2 == 0 else (after, before):
            samples[tree].append(probe(tree, records, suite))
    every = [*samples[before], *samples[after]]
    return [
        judge(name, [sample[name] for sample in samples[before]], [sample[name] for sample in samples[after]])
        for name in every[0]
        if all(sample.get(name, 0) > 0 for sample in every)
    ]


def show_changes(changes: list[Change], ref: str, other: str) -> None:
    """Print a table of the changes, with both ratios of what was measured again. Fits 80 columns."""
    from rich.console import Console

    table = narrow_table(f"{ref} -> {other or 'the files as they are'}")
    repeated = any(change.again for change in changes)
    for title in ("", "before", "after", "ratio", "95 %", *(["again"] if repeated else []), ""):
        # of a narrow table the verdicts are folded, names and figures never
        table.add_column(title, justify="left" if title == "" else "right", no_wrap=title != "again")
    table.columns[-1].no_wrap = False
    for change in changes:
        unit, scale = change.unit()
        cells: list[Any] = [f"{number(figure * scale)} {unit}" for figure in (change.before, change.after)]
        cells += [f"{change.ratio:.2f}", f"{change.low:.2f} - {change.high:.2f}"]
        if repeated:
            again = change.again
            cells.append(f"{again.ratio:.2f} ({again.low:.2f} - {again.high:.2f})" if again else "")
        table.add_row(change.name, *cells, change.text if change.verdict or change.alone else "")
    console = Console()
    console.print(table)
    if not all(change.verdict or change.alone for change in changes):
        console.print("  without a verdict: no change beyond noise", highlight=False)
