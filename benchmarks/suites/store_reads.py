"""Store reads: get, fetch, find_sessions and the opening of iterators, against the plain structure a program would
write by hand.
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure.result import Line, Target, line
from benchmarks.measure.state import fill, open_state, scratch, window_of
from benchmarks.measure.timing import check, interleaved, seconds_per_call
from benchmarks.measure.workload import START_MS, Rows, Stream

_QUERIES = 300


def _sorted_lists(rows: Rows) -> dict[str, tuple[array[int], list[bytes]]]:
    """Per key, its times in order beside its values: what fetch is measured against."""
    lists: dict[str, tuple[array[int], list[bytes]]] = defaultdict(lambda: (array("q"), []))
    for key, value, ts in zip(*rows, strict=True):
        times, values = lists[key]
        times.append(ts)
        values.append(value)
    return dict(lists)


def window_lines(folder: Path, records: int, repeats: int) -> list[Line]:
    """Measure get, fetch over a tenth of the time, and opening an iterator, on a window store."""
    lines = []
    for shape, bound in (("dense", 3.0), ("sparse", 5.0)):
        stream = Stream(records, shape=shape)
        rows = stream.rows()
        lists = _sorted_lists(rows)
        with scratch(folder) as place, open_state(place / "state") as state:
            store = window_of(state, stream)
            fill(store, rows, state)
            dice = random.Random(7)
            names = list(lists)
            tenth = max(1, stream.span_ms // 10)
            ranges = [
                (dice.choice(names), start, start + tenth)
                for start in (START_MS + dice.randrange(stream.span_ms - tenth + 1) for _ in range(_QUERIES))
            ]
            points = [(rows.keys[i], rows.times[i]) for i in (dice.randrange(records) for _ in range(_QUERIES * 10))]
            bare = {(rows.keys[i], rows.times[i]): rows.values[i] for i in range(records)}

            def by_hand(query: tuple[str, int, int], lists: Any = lists) -> list[tuple[int, bytes]]:
                times, values = lists[query[0]]
                i, j = bisect_left(times, query[1]), bisect_right(times, query[2])
                return list(zip(times[i:j], values[i:j], strict=True))

            def fetch(query: tuple[str, int, int], store: Any = store) -> list[tuple[int, bytes]]:
                return list(store.fetch(*query))

            def get(point: tuple[str, int], store: Any = store) -> Any:
                return store.get(*point)

            check(all(by_hand(query) == fetch(query) for query in ranges), f"fetch, {shape}")
            check(all(bare[point] == get(point) for point in points), f"get, {shape}")
            cases: dict[str, Callable[[], float]] = {
                "list": lambda ranges=ranges, call=by_hand: seconds_per_call(call, ranges),  # type: ignore[misc]
                "fetch": lambda ranges=ranges, call=fetch: seconds_per_call(call, ranges),  # type: ignore[misc]
                "dict": lambda points=points, call=bare.get: seconds_per_call(call, points),  # type: ignore[misc]
                "get": lambda points=points, call=get: seconds_per_call(call, points),  # type: ignore[misc]
                "all": lambda store=store: seconds_per_call(lambda _: store.all(), [None] * 200),  # type: ignore[misc]
                "range": lambda store=store: seconds_per_call(  # type: ignore[misc]
                    lambda _: store.scan("key-0000010", "key-0000020", time_from=START_MS, time_to=None), [None] * 200
                ),
            }
            spreads = interleaved(cases, repeats)
            rows_each = sum(len(by_hand(query)) for query in ranges) / len(ranges)
            label = f"window, {shape}"
            lines += [
                line(f"{label}: sorted list by hand, {rows_each:.0f} rows", spreads["list"], "µs"),
                line(
                    f"{label}: fetch, a tenth of the time",
                    spreads["fetch"],
                    "µs",
                    base=spreads["list"],
                    against="list by hand",
                    target=Target(bound),
                ),
                line(f"{label}: get", spreads["get"], "ns", base=spreads["dict"], against="dict get"),
                line(f"{label}: open all()", spreads["all"], "µs", target=Target(50, "value")),
                line(f"{label}: open scan()", spreads["range"], "µs", target=Target(50, "value")),
            ]
    return lines


def session_lines(folder: Path, sessions: int, repeats: int) -> list[Line]:
    """Measure find_sessions on sessions of up to a minute, about 30 a key, against a sorted list per key."""
    dice = random.Random(3)
    keys = [f"user-{number:06d}" for number in range(max(1, sessions // 30))]
    starts = [START_MS + 200 * i for i in range(sessions)]
    names = dice.choices(keys, k=sessions)
    ends = [start + dice.randrange(60_000) for start in starts]
    values = list(range(sessions))
    lists: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for key, start, end, value in zip(names, starts, ends, values, strict=True):
        lists[key].append((end, -start, value))
    for entries in lists.values():
        entries.sort()
    with scratch(folder) as place, open_state(place / "state") as state:
        store = state.session("sessions", retention=200 * sessions + 60_001)
        store.put_columns(names, values, starts, ends)
        state.commit()
        moments = [(dice.choice(names), START_MS + dice.randrange(200 * sessions)) for _ in range(_QUERIES * 3)]
        moments += [(names[i], starts[i]) for i in (dice.randrange(sessions) for _ in range(_QUERIES * 3))]

        def near(moment: tuple[str, int]) -> list[Any]:
            return list(store.find_sessions(moment[0], moment[1] - 30_000, moment[1] + 30_000))

        def by_hand(moment: tuple[str, int]) -> list[Any]:
            key, ts = moment
            entries = lists[key]
            return [
                ((key, -start, end), value)
                for end, start, value in entries[bisect_left(entries, (ts - 30_000,)) :]
                if -start <= ts + 30_000
            ]

        check(all(near(moment) == by_hand(moment) for moment in moments), "find_sessions")
        spreads = interleaved(
            {
                "list": lambda: seconds_per_call(by_hand, moments),
                "find": lambda: seconds_per_call(near, moments),
                "all": lambda: seconds_per_call(lambda _: store.all(), [None] * 200),
            },
            repeats,
        )
    return [
        line("session: sorted list by hand", spreads["list"], "µs"),
        line(
            "session: find_sessions around a moment",
            spreads["find"],
            "µs",
            base=spreads["list"],
            against="list by hand",
            target=Target(20, "value"),
        ),
        line("session: open all()", spreads["all"], "µs", target=Target(50, "value")),
    ]


def key_value_lines(folder: Path, records: int, repeats: int) -> list[Line]:
    """Measure get and ordered ranges of a key-value store against a dict and its sorted keys."""
    rows = Stream(records, keys=records).rows()
    bare = dict(zip(rows.keys, rows.values, strict=True))
    ordered = sorted(bare)
    with scratch(folder) as place, open_state(place / "state") as state:
        store = state.key_value("profiles")
        store.put_columns(rows.keys, rows.values)
        state.commit()
        dice = random.Random(5)
        wanted = [dice.choice(ordered) for _ in range(_QUERIES * 10)]
        bounds = [
            (ordered[i], ordered[min(i + 99, len(ordered) - 1)])
            for i in (dice.randrange(len(ordered)) for _ in range(_QUERIES))
        ]

        def by_hand(bound: tuple[str, str]) -> list[Any]:
            part = ordered[bisect_left(ordered, bound[0]) : bisect_right(ordered, bound[1])]
            return [(key, bare[key]) for key in part]

        def scan(bound: tuple[str, str]) -> list[Any]:
            return list(store.scan(*bound))

        check(all(store.get(key) == bare[key] for key in wanted), "key-value get")
        check(all(scan(bound) == by_hand(bound) for bound in bounds), "key-value range")
        spreads = interleaved(
            {
                "dict": lambda: seconds_per_call(bare.get, wanted),
                "get": lambda: seconds_per_call(store.get, wanted),
                "sorted": lambda: seconds_per_call(by_hand, bounds),
                "range": lambda: seconds_per_call(scan, bounds),
            },
            repeats,
        )
    return [
        line("key_value: get", spreads["get"], "ns", base=spreads["dict"], against="dict get"),
        line(
            "key_value: range of 100 rows",
            spreads["range"],
            "µs",
            base=spreads["sorted"],
            against="sorted keys by hand",
        ),
    ]
