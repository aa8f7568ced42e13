"""Profile: in which functions the time of puts goes, by store and way. Shares of processor time only: cProfile makes
every call dearer, cheap ones most.

python -m benchmarks.suites.profile [--records 50000]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
from pathlib import Path
from tempfile import gettempdir
from time import thread_time
from typing import Any

from benchmarks.measure.result import Result, line, show
from benchmarks.measure.state import COMMIT_ROWS, open_state, scratch, window_of
from benchmarks.measure.timing import Spread, check, stopwatch
from benchmarks.measure.workload import Rows, Stream

KINDS = ("key_value", "window, sparse", "window, dense", "session")
WAYS = ("put", "put_many", "put_columns")
_SHOWN = 6


def shares(folder: Path, kind: str, way: str, rows: Rows, span_ms: int) -> list[tuple[str, float]]:
    """Return the functions that took most time of their own, the commits included, and their share of all (0 to 1)."""
    columns = {
        "key_value": (rows.keys, rows.values),
        "session": (rows.keys, rows.values, rows.times, rows.times),
    }.get(kind, tuple(rows))
    count = len(rows.keys)
    chunks: list[Any] = [[column[at : at + COMMIT_ROWS] for column in columns] for at in range(0, count, COMMIT_ROWS)]
    if way != "put_columns":
        chunks = [list(zip(*chunk, strict=True)) for chunk in chunks]
    with scratch(folder) as place, open_state(place / "state") as state:
        store: Any
        if kind == "key_value":
            store = state.key_value("events")
        elif kind == "session":
            store = state.session("events", retention=span_ms + 1)
        else:
            store = window_of(state, Stream(count, shape=kind.partition(", ")[2]))
        call = getattr(store, way)
        profile = cProfile.Profile(thread_time)
        profile.enable()
        for chunk in chunks:
            if way == "put":
                for row in chunk:
                    call(*row)
            elif way == "put_many":
                call(chunk)
            else:
                call(*chunk)
            state.commit()
        profile.disable()
        check(len(store) == len(set(zip(*columns[:-1], strict=True)) if kind != "key_value" else set(rows.keys)), kind)
    stats: Any = pstats.Stats(profile)
    total = stats.total_tt
    heaviest = sorted(((spent, where) for where, (_, _, spent, _, _) in stats.stats.items()), reverse=True)
    return [(name_of(*where), spent / total) for spent, where in heaviest[:_SHOWN]]


def name_of(file: str, number: int, function: str) -> str:
    """Return a function as the table names it: the module without its folders, or the built-in."""
    return function.strip("<>") if file == "~" else f"{Path(file).stem}.{function}"


def measure(folder: Path, records: int = 50_000) -> Result:
    """Profile every store and way of putting."""
    result = Result("profile", {"records": records})
    with stopwatch() as clock:
        for kind in KINDS:
            stream = Stream(records, shape="dense" if kind.endswith("dense") else "sparse")
            rows = stream.rows()
            for way in WAYS:
                for function, share in shares(folder, kind, way, rows, stream.span_ms):
                    result.lines.append(line(f"{kind}: {way}: {function}", Spread((100 * share,)), "%"))
    result.seconds = clock.seconds
    return result


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="In which functions the time of puts goes.")
    parser.add_argument("--records", type=int, default=50_000)
    show(measure(Path(gettempdir()), parser.parse_args().records))


if __name__ == "__main__":
    main()
