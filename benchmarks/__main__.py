"""Run all suites, keep the raw results, and write docs/performance.md and docs/scale.md from them.

    make bench              under 10 minutes on two cores          make bench FULL=1   the long ones too: 5 M records, Spark's peers
    python -m benchmarks [--quick] [--only restore,stores] [--report FILE.jsonl] [--docs DIR]

`--report` measures nothing and writes the pages anew from a file of results.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from benchmarks import bench_changelog_bytes, bench_scale, report
from hybridstore.benchmark import changelog_speed, checkpoint_speed, machine, restore, stores
from hybridstore.benchmark.result import Line, Result, Target, show
from hybridstore.benchmark.timing import WrongAnswerError, stopwatch

ROOT = Path(__file__).resolve().parent.parent


def suites(folder: Path, full: bool, quick: bool) -> dict[str, list[Callable[[], Result]]]:
    """Return the suites by name, each a list of calls that give one result."""

    def restart(records: int, **options: Any) -> Callable[[], Result]:
        repeats = 1 if quick else 3 if records > 1_000_000 or "cold" in options else 5
        return lambda: restore.measure(folder, records=records, repeats=repeats, **options)

    if quick:
        return {
            "restore": [restart(2000, tail=200), restart(2000, tail=200, cold=True)],
            "stores": [lambda: stores.measure(folder, records=2000, held=5000, sessions=2000, repeats=1)],
            "changelog": [lambda: changelog_speed.measure(folder, records=5000, repeats=2)],
            "checkpoint": [lambda: checkpoint_speed.measure(folder, records=5000, changes=500, repeats=1)],
            "scale": [lambda: bench_scale.measure(folder, [2000, 5000], 1)],
            "bytes": [lambda: bench_changelog_bytes.measure(2000)],
        }
    sizes = [10_000, 100_000, 1_000_000, *([5_000_000] if full else [])]
    return {
        "restore": [
            *(restart(size) for size in sizes),
            restart(1_000_000, cold=True),
            restart(100_000, value_size=1000),
        ],
        "stores": [lambda: stores.measure(folder)],
        "changelog": [lambda: changelog_speed.measure(folder)],
        "checkpoint": [lambda: checkpoint_speed.measure(folder, records=1_000_000)],
        "scale": [lambda: bench_scale.measure(folder, [10_000, 100_000, 1_000_000, *([10_000_000] if full else [])])],
        "sliding": [lambda: sliding(quick=not full)],
        "bytes": [bench_changelog_bytes.measure],
    }


def sliding(quick: bool) -> Result:
    """Run the suite of sliding windows, which prints its own figures, and take them over."""
    with stopwatch() as clock:
        command = [sys.executable, "-m", "benchmarks.bench_sliding", "--json", *(["--quick"] if quick else [])]
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if answer.returncode:
            raise WrongAnswerError((answer.stderr.strip().splitlines() or ["bench_sliding failed"])[-1])
    result = Result("sliding", {"windows": "10 to 1,000" if quick else "10 to 100,000"}, seconds=clock.seconds)
    for text in answer.stdout.splitlines():
        one = json.loads(text)
        target = None if one["target"] is None else Target(one["target"], "value", one["better"] == "more")
        name = f"{one['measure']}, window of {one['window']:,}"
        result.lines.append(Line(name, one["reached"], one["reached"], one["reached"], "", target=target))
    return result


def main() -> int:
    """Run from the command line; exit code 1 after a wrong answer, of which no figure is kept."""
    parser = argparse.ArgumentParser(description="Run the benchmarks and write the pages of figures.")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that everything runs, and no more")
    parser.add_argument("--only", default="", help="suites, separated by commas")
    parser.add_argument("--report", type=Path, help="write the pages from this file of results; nothing is measured")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where the pages go")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results", help="where raw results go")
    parser.add_argument("--folder", type=Path, default=Path(gettempdir()), help="where states are made")
    asked = parser.parse_args()
    if asked.report:
        report.write(asked.docs, asked.report)
        return 0
    full = bool(os.environ.get("FULL")) and os.environ["FULL"] != "0"
    chosen = suites(asked.folder, full, asked.quick)
    names = asked.only.split(",") if asked.only else list(chosen)
    for name in names:
        if name not in chosen:
            parser.error(f"suite {name!r}: expected some of {', '.join(chosen)}")
    found = machine.describe(asked.folder)
    asked.results.mkdir(parents=True, exist_ok=True)
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H%M")
    raw = asked.results / f"{stamp}-{found['commit'] or 'unpacked'}.jsonl"
    with raw.open("w", encoding="utf-8") as file:
        file.write(json.dumps({"machine": found, "started": stamp, "full": full}) + "\n")
        for name in names:
            for measure in chosen[name]:
                try:
                    result = measure()
                except WrongAnswerError as error:
                    print(f"{name}: {error}", file=sys.stderr)
                    return 1
                show(result)
                file.write(json.dumps(result.to_json(), ensure_ascii=False) + "\n")
                file.flush()
    print(f"raw results: {raw}")
    if names == list(chosen):
        report.write(asked.docs, raw)
    if full:
        # prints its own table; minutes of Spark's slow peers are not for every run
        engines = "hybridstore,native,native-hdfs,tws-row,apws,tws-pandas"
        subprocess.run([sys.executable, "-m", "benchmarks.bench_spark", "--engines", engines], cwd=ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
