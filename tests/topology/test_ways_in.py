"""Odd values by both ways in: dicts and Arrow tables give the same groups and results, over commits and restarts."""

from __future__ import annotations

import math
import random
from collections import namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import hybridstore as hs
from hybridstore.aggregation.aggregator import Aggregator
from tests.topology.test_every_way import batches_of

pa = pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

NAN = math.nan
MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
# one moment in three zones
MOMENTS = [MIDNIGHT, MIDNIGHT.astimezone(timezone(timedelta(hours=2))), MIDNIGHT.astimezone(ZoneInfo("Europe/Berlin"))]
KEYS: dict[str, tuple[Any, list[Any]]] = {
    "text": (pa.string(), ["a", "b", "", None]),
    "integers": (pa.int64(), [0, 1, -7, None]),
    "floats": (pa.float64(), [0.0, -0.0, 1.0, 1.5, NAN, None]),
    "booleans": (pa.bool_(), [True, False, None]),
    "bytes": (pa.binary(), [b"", b"x", None]),
    "decimals": (pa.decimal128(10, 2), [Decimal(text) for text in ("1.1", "1.10", "0", "-0.00", "1E+2", "100")]),
    "dates": (pa.date32(), [date(2026, 1, 1), date(1960, 1, 1), None]),
    "moments": (pa.timestamp("us", "UTC"), [*MOMENTS, MIDNIGHT + timedelta(microseconds=1), None]),
    "clocks": (pa.timestamp("us"), [datetime(2026, 1, 1), datetime(2026, 1, 1, 0, 0, 0, 500_000), None]),
}
VALUES = {
    **KEYS,
    "floats": (pa.float64(), [0.0, -0.0, 2.5, NAN, math.inf, None]),
    # of one scale: the bytes of a decimal have its digits, and decide between equal times
    "decimals": (pa.decimal128(10, 2), [Decimal("1.10"), Decimal("0.00"), Decimal("2.50"), None]),
    "moments": (pa.timestamp("us", "UTC"), [*MOMENTS, None]),
}
NUMBERS = ("integers", "floats", "booleans", "decimals")
AGGREGATES: dict[str, Callable[[], Aggregator]] = {
    "sum": lambda: hs.Sum("v"),
    "mean": lambda: hs.Mean("v"),
    "variance": lambda: hs.Variance("v"),
    "count": lambda: hs.Count("v"),
    "min": lambda: hs.Min("v"),
    "max": lambda: hs.Max("v"),
    "first": lambda: hs.First("v"),
    "last": lambda: hs.Last("v"),
    "all": lambda: hs.Collect("v"),
    "set": lambda: hs.CollectSet("v"),
    "distinct": lambda: hs.CountDistinct("v"),
    "most": lambda: hs.MaxBy("v", "n"),
    "least": lambda: hs.MinBy("v", ["n", "v"]),
    "top": lambda: hs.TopK(2, by="v", columns="n"),
}
WINDOWS: dict[str, Any] = {
    "none": None,
    "tumbling": hs.TumblingWindows(20),
    "hopping": hs.HoppingWindows(20, 5, grace=10),
    "sessions": hs.SessionWindows(8),
    "sliding": hs.SlidingWindows(30),
    "sliding of kafka": hs.KafkaSlidingWindows(12, grace=10),
}


def shown(value: Any) -> Any:
    """A value as text, the same for equal values."""
    if isinstance(value, dict):
        return {name: shown(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [shown(part) for part in value]
    if isinstance(value, set):
        return sorted(str(shown(part)) for part in value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)
    return repr(value + 0.0 if type(value) is float else value)


def odd_rows(r: random.Random, keys: list[Any], values: list[Any]) -> list[dict[str, Any]]:
    now, rows = 0, []
    for number in range(r.choice([12, 70])):
        now += r.choice([0, 0, 1, 2, 5])
        rows.append({"k": r.choice(keys), "t": max(0, now - r.choice([0, 0, 3])), "v": r.choice(values), "n": number})
    return rows


def both_ways(topology: hs.Topology, rows: list[dict[str, Any]], schema: Any, size: int, folder: Path) -> None:
    batches = batches_of(rows, size)
    begun = len(batches) // 2  # a state goes on after a restart
    results = []
    for way, source in (
        ("dicts", batches),
        ("tables", [pa.Table.from_pylist(each, schema=schema) for each in batches]),
    ):
        for some in (source[:begun], source):
            given: Any = [row for batch in some for row in batch] if way == "dicts" else some
            run = topology.run(given, folder / way, commit_rows=size)
            results.append([(row.commit, shown(dict(row))) for row in run])
    assert results[:2] == results[2:]


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.stress
def test_dicts_and_tables_of_odd_values_give_the_same_rows(
    windows: str, seed: int, rounds: int, tmp_path: Path
) -> None:
    for number in range(max(20, rounds)):
        r = random.Random(f"{seed} {windows} {number}")
        (key_type, keys), kind = KEYS[r.choice(list(KEYS))], r.choice(list(VALUES))
        value_type, values = VALUES[kind]
        names = [name for name in AGGREGATES if kind in NUMBERS or name not in ("sum", "mean", "variance")]
        names = [name for name in names if not (kind == "decimals" and name == "variance")]
        begun = hs.stream(key="k", timestamp="t", null_keys="group")
        begun = begun if WINDOWS[windows] is None else begun.windowed_by(WINDOWS[windows])
        emit = r.choice(["record", "commit"] if windows in ("none", "sliding") else ["record", "commit", "close"])
        if emit == "record" and kind == "moments":
            values = [
                MIDNIGHT,
                None,
            ]  # the bytes of a moment have its zone, and decide which of equal times comes first
        topology = begun.aggregate(emit=emit, **{name: AGGREGATES[name]() for name in r.sample(names, 2)})
        schema = pa.schema([("k", key_type), ("t", pa.int64()), ("v", value_type), ("n", pa.int64())])
        both_ways(topology, odd_rows(r, keys, values), schema, r.choice([5, 60]), tmp_path / f"{number}")


def others() -> list[tuple[Any, Any]]:
    """Values of numpy's and pandas', each with Python's value of it."""
    np, pd = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    noon = datetime(2026, 1, 1, 12)
    return [
        (np.int64(2**62), 2**62),
        (np.uint8(255), 255),
        (np.float32(0.1), 0.10000000149011612),
        (np.float64(0.1), 0.1),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.bytes_(b"a"), b"a"),
        (np.datetime64(noon, "ns"), noon),
        (np.datetime64(noon, "s"), noon),
        (np.datetime64("NaT"), None),
        (pd.Timestamp(noon), noon),
        (pd.Timestamp("2026-01-01 12:00:00.000001999", tz="UTC"), noon.replace(microsecond=1, tzinfo=UTC)),
        (pd.NaT, None),
        (pd.NA, None),
    ]


WAYS: dict[str, Callable[[hs.Stream], hs.Stream]] = {
    "as they are": lambda stream: stream,
    "through map": lambda stream: stream.map(lambda row: {**row}),
    "through several steps": lambda stream: stream.map(dict).filter(lambda row: True),
}


@pytest.mark.parametrize("form", ["list", "generator", "named tuples", "columns"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("windows", ["tumbling", "sliding"])
def test_values_of_numpy_and_pandas_are_taken_as_pythons(windows: str, way: str, form: str) -> None:
    """As keys and values, of rows that come in any form."""
    begun = hs.stream(key="k", timestamp="t", null_keys="group")
    Row = namedtuple("Row", "k t v n")
    for other, plain in others():
        kept = {"last": hs.Last("v"), "seen": hs.CollectSet("v"), "all": hs.Collect("v"), "row": hs.MaxBy("n")}
        if type(plain) in (int, float):
            kept |= {"sum": hs.Sum("v"), "mean": hs.Mean("v"), "most": hs.Max("v")}
        topology = WAYS[way](begun).windowed_by(WINDOWS[windows]).aggregate(emit="commit", **kept)
        results = []
        for value in (other, plain):
            rows = [Row(value, number, value, number) for number in range(3)]
            dicts = [row._asdict() for row in rows]
            given: Any = {"list": dicts, "generator": iter(dicts), "named tuples": rows, "columns": map(tuple, rows)}
            run = topology.run(given[form], columns=Row._fields if form == "columns" else None)
            results.append([repr(dict(row)) for row in run])
        assert results[0] == results[1] != [], other


def test_rows_of_pandas_meet_logic_joins_and_late_rows_as_pythons_own() -> None:
    seen = hs.stream(key="k", timestamp="t").process(lambda row, stores: [{"kinds": type(row["v"]).__name__}])
    late = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows(10)).aggregate(n=hs.Count()).late()
    right = hs.stream(name="right", key="k", timestamp="rt", columns=["v"])
    joined = hs.stream(name="left", key="k", timestamp="lt", columns=["a"]).join(right, within=5)
    for other, plain in others():
        assert [row["kinds"] for row in seen.run([{"k": "a", "t": 1, "v": other}])] == [type(plain).__name__]
        rows = [{"k": "a", "t": 100, "v": 0}, {"k": "a", "t": 1, "v": other}]
        assert [row["late"]["v"] for row in late.run(rows, commit_rows=1) if row["late"]] == [plain]
        inputs = {"left": [{"k": 1, "lt": 1, "a": other}], "right": [{"k": 1, "rt": 1, "v": other}]}
        assert [(row["a"], row["v"]) for row in joined.run(inputs)] == [(plain, plain)]


@pytest.mark.parametrize("position", ["at", lambda row: row["at"]])
def test_positions_of_numpy_are_kept_as_pythons(position: Any, tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    counts = hs.stream(key="k", timestamp="t").aggregate(n=hs.Count(), emit="commit")
    begun: list[Any] = []

    def behind(at: Any) -> list[dict[str, Any]]:
        begun.append(at)
        return [{"k": "a", "t": t, "at": np.int64(t)} for t in range(0 if at is None else at + 1, 5 + 5 * len(begun))]

    runs = [[*counts.run(behind, tmp_path / "state", position=position, commit_rows=4)] for _ in range(2)]
    assert [run[-1]["n"] for run in runs] == [10, 15]
    assert [(type(at), at) for at in begun] == [(type(None), None), (int, 9)]


@pytest.mark.parametrize("value", ["np.timedelta64(1, 's')", "np.array([1, 2])", "pd.Timedelta('1s')"])
def test_what_has_no_value_of_pythons_own_is_refused_with_what_to_do(value: str) -> None:
    np, pd = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    topology = hs.stream(key="k", timestamp="t").aggregate(last=hs.Last("v"))
    with pytest.raises(TypeError, match=r"aggregate 'last': last of column 'v'.*which it cannot keep.*convert it"):
        [*topology.run([{"k": "a", "t": 1, "v": eval(value, {"np": np, "pd": pd})}])]
