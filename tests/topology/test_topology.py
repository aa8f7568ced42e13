"""Topologies: what is refused when declared, how they print, and what runs in plain Python give for rows of every
form.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import hybridstore as hs
from hybridstore.shards import shard_of
from tests.tools.ways import aggregating

WINDOWS: dict[str, Any] = {
    "tumbling": hs.TumblingWindows(20, grace=10),
    "hopping": hs.HoppingWindows(20, 5, grace=10),
    "session": hs.SessionWindows(4, grace=10),
    "sliding": hs.SlidingWindows(20),
    "kafka": hs.KafkaSlidingWindows(20, grace=10),
}
EMITS = [
    (name, emit) for name in WINDOWS for emit in ("record", "commit", "close") if (name, emit) != ("sliding", "close")
]


def declared(windows: Any, emit: Any = "record") -> hs.Topology:
    return (
        hs.stream(key="user", timestamp="time")
        .windowed_by(windows)
        .aggregate(emit=emit, n=hs.Count(), total=hs.Sum("n"), last=hs.Last("n"))
    )


def some_rows(seed: int, count: int = 200) -> list[dict[str, Any]]:
    r = random.Random(seed)
    now, rows = 0, []
    for number in range(count):
        now += r.choice([0, 0, 1, 2, 7])
        rows.append(
            {"user": r.choice("abcd"), "time": max(0, now - r.randint(0, 25)), "n": r.randint(0, 9), "id": number}
        )
    return rows


# --- what is refused -------------------------------------------------------------------------------------------


def counted() -> hs.Topology:
    return declared(hs.TumblingWindows(10))


BASE = hs.stream(key="user", timestamp="time")
REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: hs.stream(key="", timestamp="t"), ValueError, "stream: key: found an empty name"),
    (lambda: hs.stream(key=[], timestamp="t"), ValueError, "stream: key: found no column"),
    (
        lambda: hs.stream(key="a", timestamp="t").windowed_by(hs.TumblingWindows(5)).aggregate(total=hs.Sum()),
        ValueError,
        "aggregate: total: found Sum of whole rows, expected a column",
    ),
    (lambda: hs.stream(key=["a", "b", "a"], timestamp="t"), ValueError, "stream: key: found a column twice in a, b, a"),
    (
        lambda: hs.stream(key=[1], timestamp="t"),  # type: ignore[list-item]
        TypeError,
        "stream: key: found int, expected the name of a column",
    ),
    (lambda: hs.stream(key="k", timestamp=3), TypeError, "stream: timestamp: found int"),  # type: ignore[arg-type]
    (lambda: hs.stream(key="window_start", timestamp="t"), ValueError, "is the name of a window bound"),
    (lambda: BASE.map(3), TypeError, "map: function: found int"),  # type: ignore[arg-type]
    (lambda: counted().filter(bool), ValueError, "filter: found after windowed_by or process"),
    (lambda: BASE.windowed_by("5 minutes"), TypeError, "Windows, such as TumblingWindows"),  # type: ignore[arg-type]
    (lambda: counted().windowed_by(hs.TumblingWindows(1)), ValueError, "windowed_by: found a second time"),
    (lambda: BASE.windowed_by(hs.TumblingWindows("5 minuets")), ValueError, "TumblingWindows: size: found '5 minuets'"),
    (
        lambda: BASE.windowed_by(hs.TumblingWindows(10, grace=5), retention=14),
        ValueError,
        "windowed_by: retention: found 14 ms, expected 15 ms or more",
    ),
    (lambda: BASE.windowed_by(hs.SessionWindows(10), retention=20), ValueError, "expected 21 ms or more"),
    (lambda: BASE.windowed_by(hs.SlidingWindows(10), retention=99), ValueError, "windowed_by: retention: found with"),
    (lambda: counted().aggregate(n=hs.Count()), ValueError, "aggregate: found a second time"),
    (
        lambda: BASE.windowed_by(hs.TumblingWindows(1)).aggregate(
            emit="always",  # type: ignore[arg-type]
            n=hs.Count(),
        ),
        ValueError,
        "aggregate: emit: found 'always'",
    ),
    (lambda: BASE.windowed_by(hs.TumblingWindows(1)).aggregate(), ValueError, "aggregate: found no aggregators"),
    (
        lambda: BASE.windowed_by(hs.TumblingWindows(1)).aggregate(n=hs.Count),  # type: ignore[arg-type]
        TypeError,
        "aggregate: n: found the class Count, expected an Aggregator",
    ),
    (
        lambda: BASE.windowed_by(hs.SessionWindows(1)).aggregate(n=hs.Aggregator(int, lambda n, _: n + 1)),
        TypeError,
        "aggregate: n: found Aggregator without merge, expected merge with SessionWindows",
    ),
    (
        lambda: BASE.windowed_by(hs.TumblingWindows(1)).aggregate(user=hs.Count()),
        ValueError,
        "aggregate: user: is the name of the key",
    ),
    (lambda: declared(hs.SlidingWindows(5), "close"), ValueError, "a sliding window never closes"),
    (
        lambda: BASE.windowed_by(hs.TumblingWindows(1)).aggregate(strategy="ladder", n=hs.Count()),
        ValueError,
        "strategy: found 'ladder', expected with SlidingWindows only",
    ),
    (
        lambda: BASE.windowed_by(hs.SlidingWindows(5)).aggregate(strategy="leader", n=hs.Count()),
        ValueError,
        "strategy: found 'leader', expected one of",
    ),
    (
        lambda: BASE.windowed_by(hs.SlidingWindows(5)).aggregate(strategy="ladder", n=hs.Reduce(max, "x")),
        ValueError,
        "commutative",
    ),
    (lambda: BASE.hold(5), ValueError, "hold: found without an aggregate"),
    (lambda: counted().hold("5 miles"), ValueError, "hold: until: found"),
    (
        lambda: counted().hold(1).hold(1),
        ValueError,
        "hold: found a second time",
    ),
    (
        lambda: declared(hs.TumblingWindows(1), "close").hold(1),
        ValueError,
        'hold: found after emit="close"',
    ),
    (
        lambda: declared(hs.SlidingWindows(5)).hold("close"),
        ValueError,
        "a sliding window never closes",
    ),
    (lambda: counted().process(print), ValueError, "process: found after windowed_by"),
    (lambda: BASE.process(3), TypeError, "process: function: found int"),  # type: ignore[arg-type]
    (lambda: BASE.process(print, None, hs.key_value_store("a")), TypeError, "'a' alone"),  # type: ignore[arg-type]
    (
        lambda: BASE.process(print, None, ["x"]),  # type: ignore[list-item]
        TypeError,
        "process: stores: found str, expected key_value_store",
    ),
    (
        lambda: BASE.process(print, None, [hs.key_value_store("a"), hs.session_store("a", retention=5)]),
        ValueError,
        "process: stores: found 'a' twice",
    ),
    (
        lambda: hs.window_store("a", retention="1 hour", window_size="2 hours"),
        ValueError,
        "window_size: found 7200000 ms",
    ),
    (lambda: hs.key_value_store(""), ValueError, "store name: found ''"),
    (lambda: list(BASE.run([])), ValueError, "found no aggregate and no process"),
    (lambda: list(counted().run([], commit_rows=0)), ValueError, "commit_rows: found 0"),
    (lambda: list(counted().run([], shards=0)), ValueError, "shards: found 0"),
]


@pytest.mark.parametrize(("declare", "error", "words"), REFUSED, ids=[case[2] for case in REFUSED])
def test_a_mistake_is_named_where_it_is_declared(declare: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as info:
        declare()
    assert words in str(info.value)


BAD_ROWS: list[tuple[Any, type[Exception], str]] = [
    ({"user": "a", "n": 1}, ValueError, "row 1: column 'time' is missing: found user, n"),
    ({"user": "a", "time": -4, "n": 1}, ValueError, "row 1: column 'time': found -4"),
    ({"user": "a", "time": "noon", "n": 1}, ValueError, "row 1: column 'time': found 'noon', expected a time such as"),
    ({"user": "a", "time": 1.5, "n": 1}, TypeError, "row 1: column 'time': found float"),
    (
        {"user": 7, "time": 1, "n": 1},
        TypeError,
        "row 1: column 'user': found a key of int, expected str as in the rows before",
    ),
    ({"user": [1], "time": 2, "n": 1}, TypeError, "row 1: column 'user': found a key of list, expected str"),
    (7, TypeError, "row: found int, expected a dict, a named tuple or an Arrow record batch"),
]


def test_tuples_take_the_names_that_are_given(tmp_path: Path) -> None:
    topology = declared(WINDOWS["tumbling"], "record")
    with pytest.raises(ValueError, match=r"row 1: found 2 values, expected 3: user, time, n"):
        list(topology.run([("a", 1, 1), ("a", 2)], columns=["user", "time", "n"]))
    for wrong in ("user", [1, 2], ["user", 3]):
        with pytest.raises(TypeError, match=r"columns: found .*, expected a list of names"):
            list(topology.run([("a", 1)], columns=wrong))
    with pytest.raises(TypeError, match=r"found tuple, .* name their columns with columns="):
        list(topology.run([("a", 1, 1)]))
    # a column is known by its name to position=, too
    rows = [("a", 1, 1), ("a", 2, 1)]
    actual = list(topology.run(rows, tmp_path / "s", columns=["user", "time", "n"], position="time"))
    assert len(actual) == 2
    assert hs.inspect(tmp_path / "s").position == 2


@pytest.mark.parametrize("rows", [{"user": "a", "time": 1, "n": 1}, "rows.csv", b"", None])
def test_what_are_no_rows_is_refused(rows: Any) -> None:
    with pytest.raises(TypeError, match=f"rows: found {type(rows).__name__}, expected an iterable of rows"):
        list(declared(WINDOWS["tumbling"], "record").run(rows))


def test_a_pandas_frame_is_rows_by_column(seed: int) -> None:
    pandas = pytest.importorskip("pandas")
    rows = some_rows(seed)
    topology = declared(WINDOWS["tumbling"], "record")
    frame = pandas.DataFrame(rows, index=range(7, 7 + len(rows)))
    assert run_all(topology, frame, commit_rows=25) == run_all(topology, rows, commit_rows=25)


@pytest.mark.parametrize(("row", "error", "words"), BAD_ROWS, ids=[case[2] for case in BAD_ROWS])
def test_a_bad_row_is_named(row: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as info:
        list(counted().run([{"user": "a", "time": 1, "n": 1}, row]))
    assert words in str(info.value)


def test_keys_of_two_types_are_named_in_a_commit_of_single_rows_too(tmp_path: Path) -> None:
    with counted().open(tmp_path / "state") as engine:
        engine.process({"user": "a", "time": 1, "n": 1})
        with pytest.raises(TypeError, match="row 0: column 'user': found a key of int, expected str"):
            engine.process({"user": 1, "time": 1, "n": 1})
        assert engine.commit() == []
        # from then on the store knows
        with pytest.raises(TypeError, match="store 'windows': key 1: found int, expected str as in"):
            engine.process({"user": 1, "time": 1, "n": 1})


def test_a_key_of_no_key_type_is_named() -> None:
    with pytest.raises(TypeError, match="row 0: column 'user': found list, expected a key of str, bytes, int, float"):
        list(counted().run([{"user": ["a"], "time": 1, "n": 1}]))
    pages = hs.stream(key=["user", "page"], timestamp="time").windowed_by(hs.TumblingWindows(5)).aggregate(n=hs.Count())
    with pytest.raises(TypeError, match="row 1: column 'page': found a key of str, expected int"):
        list(pages.run([{"user": "a", "page": 1, "time": 1}, {"user": "b", "page": "1", "time": 1}]))


def test_times_and_keys_of_numpy_are_taken_as_pythons() -> None:
    np = pytest.importorskip("numpy")
    topology = (
        hs.stream(key=["user", "page"], timestamp="time").windowed_by(hs.TumblingWindows(5)).aggregate(n=hs.Count())
    )
    moments = [np.int64(1), np.int32(2), np.datetime64(3, "ms"), np.datetime64(4_999_999, "ns"), 4, np.uint8(4)]
    rows = [{"user": np.str_("a"), "page": np.int64(7), "time": moment} for moment in moments]
    results = [
        (row["user"], row["page"], row["window_start"], row["n"])
        for row in topology.run([*rows, {**rows[0], "user": "a", "page": 7}])
    ]
    assert results == [("a", 7, 0, n) for n in range(1, 8)]
    assert {type(part) for row in results for part in row} == {str, int}
    with pytest.raises(TypeError, match="row 0: column 'time': found float, expected int"):
        list(topology.run([{**rows[0], "time": np.float64(1)}]))


@pytest.mark.parametrize("zone", [None, UTC])
def test_a_time_before_1970_is_shown_as_it_came(zone: Any) -> None:
    moment = datetime(1969, 12, 31, 23, 59, tzinfo=zone)
    with pytest.raises(ValueError) as raised:  # noqa: PT011 (all of it is compared)
        list(counted().run([{"user": "a", "time": moment, "n": 1}]))
    assert str(raised.value) == f"row 0: column 'time': found {moment}, expected a time of 1970 or later"


# --- printing --------------------------------------------------------------------------------------------------


def test_a_topology_prints_its_steps_and_stores() -> None:
    def cleaned(row: dict[str, Any]) -> dict[str, Any]:
        return row

    topology = (
        hs.stream(key="ip", timestamp="time")
        .map(cleaned)
        .windowed_by(hs.SlidingWindows("5 minutes"))
        .aggregate(requests=hs.Count(), bytes=hs.Sum("bytes"))
        .hold("30 seconds", max_records=1000)
    )
    text = str(topology).splitlines()
    assert text[0] == "stream      key ip; time time"
    assert text[1].startswith("└─ map")
    assert text[1].endswith("cleaned")
    assert text[2].startswith("└─ windowed_by SlidingWindows(size='5 minutes'")
    assert text[3].startswith("└─ aggregate   requests=Count(), bytes=Sum('bytes'); emit record")
    assert "time_limit_ms=30000, max_records=1000" in text[4]
    assert text[5] == "└─ stores      windows (sliding), suppressed (suppression)"
    custom = hs.stream(key="ip", timestamp="time").process(cleaned, stores=[hs.key_value_store("seen", ttl="1 day")])
    assert str(custom).splitlines()[-1] == "└─ stores      seen (key_value)"


# --- rows of every form ----------------------------------------------------------------------------------------


class Hit(NamedTuple):
    user: str
    time: int
    n: int


def run_all(topology: hs.Topology, rows: Iterable[Any], **options: Any) -> list[tuple[int, dict[str, Any]]]:
    return [(row.commit, dict(row)) for row in topology.run(rows, **options)]


@pytest.mark.parametrize(("name", "emit"), EMITS)
@pytest.mark.parametrize(
    "shards", [pytest.param(1, marks=pytest.mark.further("test_dicts_tuples_and_arrow_batches_give_equal_results")), 3]
)
def test_dicts_tuples_and_arrow_batches_give_equal_results(name: str, emit: str, shards: int, seed: int) -> None:
    pa = pytest.importorskip("pyarrow")
    rows = some_rows(seed)
    topology = declared(WINDOWS[name], emit)
    options: dict[str, Any] = {"commit_rows": 25, "shards": shards}
    expected = run_all(topology, rows, **options)
    assert expected
    assert run_all(topology, [Hit(row["user"], row["time"], row["n"]) for row in rows], **options) == expected
    plain = [(row["n"], row["time"], row["user"]) for row in rows]
    assert run_all(topology, plain, columns=["n", "time", "user"], **options) == expected
    assert run_all(topology, map(list, plain), columns=("n", "time", "user"), **options) == expected
    table = pa.Table.from_pylist(rows)
    assert run_all(topology, table.to_batches(max_chunksize=60), **options) != []
    assert run_all(topology, table.to_batches(max_chunksize=25), **options) == expected
    assert run_all(topology, [table], **options) == expected
    assert run_all(topology, table, **options) == expected


def test_times_come_back_in_the_form_in_which_they_came() -> None:
    pa = pytest.importorskip("pyarrow")
    topology = hs.stream(key="user", timestamp="time").windowed_by(hs.TumblingWindows("1 hour")).aggregate(n=hs.Count())
    start = datetime(2024, 3, 1, 12, tzinfo=UTC)
    moment = start + timedelta(minutes=7)
    for given in (moment, moment.replace(tzinfo=None)):
        expected = start.replace(tzinfo=given.tzinfo)
        for rows in (
            [{"user": "a", "time": given}],
            pa.table(
                {"user": ["a"], "time": pa.array([given], pa.timestamp("us", "UTC" if given.tzinfo else None))}
            ).to_batches(),
        ):
            (row,) = topology.run(rows)
            assert (row["window_start"], row["window_end"]) == (expected, expected + timedelta(hours=1))
    (row,) = topology.run([{"user": "a", "time": int(moment.timestamp() * 1000)}])
    assert row["window_start"] == int(start.timestamp() * 1000)


@pytest.mark.parametrize(("name", "emit"), EMITS)
def test_the_order_of_rows_within_a_commit_does_not_count(name: str, emit: str, seed: int) -> None:
    rows = some_rows(seed)
    topology = declared(WINDOWS[name], emit)
    expected = run_all(topology, rows, commit_rows=50)
    r = random.Random(seed)
    shuffled: list[dict[str, Any]] = []
    for at in range(0, len(rows), 50):
        part = rows[at : at + 50]
        r.shuffle(part)
        shuffled += part
    assert run_all(topology, shuffled, commit_rows=50) == expected


def test_values_that_cannot_be_compared_still_have_one_order() -> None:
    topology = (
        hs.stream(key="user", timestamp="time").windowed_by(hs.TumblingWindows(10)).aggregate(all=hs.Collect("n"))
    )
    rows = [{"user": "a", "time": 1, "n": n} for n in (3, "x", 2.5, [1], "a")]
    expected = run_all(topology, rows)
    assert run_all(topology, rows[::-1]) == expected
    assert len(expected) == 5


def test_map_and_filter_come_before_everything_else() -> None:
    topology = (
        hs.stream(key="name", timestamp="at")
        .filter(lambda row: row["n"] > 2)
        .map(lambda row: {"name": row["user"].upper(), "at": row["time"] * 10, "n": row["n"]})
        .filter(lambda row: row["n"] < 9)
        .windowed_by(hs.TumblingWindows(100))
        .aggregate(total=hs.Sum("n"), n=hs.Count())
    )
    rows = [{"user": "a", "time": t, "n": n} for t, n in ((1, 1), (2, 3), (3, 9), (4, 5))]
    assert [dict(row) for row in topology.run(rows)] == [
        {"name": "A", "window_start": 0, "window_end": 100, "total": 3, "n": 1},
        {"name": "A", "window_start": 0, "window_end": 100, "total": 8, "n": 2},
    ]


def test_shards_have_a_stream_time_each(seed: int, tmp_path: Path) -> None:
    rows = some_rows(seed)
    for name, emit in EMITS:
        topology = declared(WINDOWS[name], emit)
        batches = [rows[at : at + 40] for at in range(0, len(rows), 40)]
        expected: list[list[dict[str, Any]]] = [[] for _ in batches]
        for shard in range(3):
            with topology.open(tmp_path / f"{name}-{emit}-{shard}", durability="os") as engine:
                for results, batch in zip(expected, batches, strict=True):
                    results += engine.process_many([row for row in batch if shard_of(row["user"], 3) == shard])
                    results += engine.commit()
        actual = run_all(topology, rows, shards=3, commit_rows=40)
        assert actual == [(commit, row) for commit, results in enumerate(expected, 1) for row in results]


# --- suppression -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tumbling", "hopping", "session", "kafka"])
@pytest.mark.parametrize("emit", ["record", "commit"])
def test_suppressed_until_windows_close_gives_what_emit_close_gives(name: str, emit: str, seed: int) -> None:
    rows = some_rows(seed, 400)
    final = {repr(row) for _, row in run_all(declared(WINDOWS[name], "close"), rows, commit_rows=30)}
    suppressed = [repr(row) for _, row in run_all(declared(WINDOWS[name], emit).hold("close"), rows, commit_rows=30)]
    assert len(suppressed) == len(set(suppressed))
    assert set(suppressed) == final


def test_suppressed_until_a_time_limit_gives_the_last_result_of_each_window(tmp_path: Path) -> None:
    topology = declared(hs.TumblingWindows(100)).hold(30)
    rows = [{"user": "a", "time": t, "n": 1} for t in (0, 10, 20, 45, 51)]
    with topology.open(tmp_path) as engine:
        results = [[row["n"] for row in [*engine.process(row), *engine.commit()]] for row in rows]
    assert results == [[], [], [], [], []]
    with topology.open(tmp_path) as engine:  # the buffer survives
        assert [row["n"] for row in engine.process({"user": "b", "time": 81, "n": 1})] == [5]


# --- process ---------------------------------------------------------------------------------------------------


def first_seen(row: dict[str, Any], stores: dict[str, Any]) -> Iterator[dict[str, Any]] | None:
    if stores["seen"].put_if_absent(row["user"], row["time"]) is not None:
        return None
    return iter([{"user": row["user"], "first": row["time"]}])


class Tally:
    """One's own logic as a class, with a row at the end of each commit."""

    def __init__(self, stores: dict[str, Any]) -> None:
        self.tally = stores["tally"]

    def process(self, row: dict[str, Any]) -> None:
        self.tally.put(row["user"], self.tally.get(row["user"], 0) + row["n"])

    def finish(self) -> list[dict[str, Any]]:
        return [{"user": user, "total": total} for user, total in self.tally.all()] + [{"rows": len(self.tally)}]


def test_a_function_with_its_own_store(tmp_path: Path) -> None:
    topology = hs.stream(key="user", timestamp="time").process(first_seen, stores=[hs.key_value_store("seen")])
    rows = some_rows(5, 60)
    firsts: dict[str, int] = {}
    for row in sorted(rows[:30], key=lambda row: row["time"]) + rows[30:]:
        firsts.setdefault(row["user"], row["time"])
    assert {row["user"]: row["first"] for row in topology.run(rows, location=tmp_path, commit_rows=30)} == firsts
    again = list(topology.run(rows + rows, location=tmp_path, commit_rows=30, replay_last=True))
    # the second half has been seen; the first commit is the newest that had results, so it is handed out once more when
    # asked for
    assert {row["user"]: row["first"] for row in again} == firsts
    assert {row.commit for row in again} == {1}


def test_a_class_with_rows_at_the_end_of_each_commit(tmp_path: Path) -> None:
    topology = hs.stream(key="user", timestamp="time").process(Tally, stores=[hs.key_value_store("tally")])
    rows = [{"user": user, "time": 1, "n": n} for user, n in (("a", 1), ("b", 2), ("a", 3))]
    results = [(row.commit, dict(row)) for row in topology.run(rows, location=tmp_path, commit_rows=2)]
    assert results == [
        (1, {"user": "a", "total": 1}),
        (1, {"user": "b", "total": 2}),
        (1, {"rows": 2}),
        (2, {"user": "a", "total": 4}),
        (2, {"user": "b", "total": 2}),
        (2, {"rows": 2}),
    ]
    # rows of different columns are kept with their commit too
    assert [(row.commit, dict(row)) for row in topology.run(rows, location=tmp_path, replay_last=True)] == results


def test_every_kind_of_store_can_be_declared(tmp_path: Path) -> None:
    def all_kinds(row: dict[str, Any], stores: dict[str, Any]) -> list[dict[str, Any]]:
        stores["kv"].put(row["user"], row["n"], row["time"])
        stores["win"].put(row["user"], row["n"], row["time"])
        stores["ses"].put(row["user"], row["n"], start=row["time"], end=row["time"])
        window = stores["sli"].add(row["user"], row["n"], row["time"])
        emitted = stores["sup"].put(row["user"], row["n"], row["time"])
        return [{"window": list(window), "left": [list(row) for row in emitted]}]

    topology = hs.stream(key="user", timestamp="time").process(
        all_kinds,
        stores=[
            hs.key_value_store("kv", ttl="1 minute"),
            hs.window_store("win", retention="1 hour", grace=5),
            hs.session_store("ses", retention=50),
            hs.sliding_store("sli", size=10, aggregator=hs.Sum()),
            hs.suppression_store("sup", max_bytes=5, size_of=lambda key, value: 3),
        ],
    )
    rows = [{"user": user, "time": t, "n": t} for t, user in enumerate("abab")]
    results = [dict(row) for row in topology.run(rows, location=tmp_path)]
    assert [row["window"][3] for row in results] == [0, 1, 2, 4]
    assert [len(row["left"]) for row in results] == [0, 1, 1, 1]
    with topology.open(tmp_path) as engine:
        assert {name: len(engine.states[0].stores[name]) for name in ("kv", "win", "ses")} == {
            "kv": 2,
            "win": 4,
            "ses": 4,
        }


def test_kafkas_sliding_windows_load_two_sizes_of_a_key_however_long_they_are_kept(tmp_path: Path) -> None:
    topology = declared(hs.KafkaSlidingWindows(20, grace=100_000), "commit")
    with topology.open(tmp_path, durability="os") as engine:
        engine.process_many([{"user": "a", "time": ts, "n": 1} for ts in range(0, 5000, 10)])
        engine.commit()
        windowed: Any = aggregating(engine).windowed
        engine.process({"user": "a", "time": 5000, "n": 1})
        assert len(windowed.open["a"].starts) < 12
        # a late one brings in what lies between
        engine.process({"user": "a", "time": 4000, "n": 1})
        assert 200 < len(windowed.open["a"].starts) < 220
        stored = len(engine.windows())
        engine.commit()
        assert len(engine.windows()) == stored > 990


@pytest.mark.parametrize("answer", [{"user": "a"}, "text"])
def test_one_row_from_ones_own_logic_is_no_list_of_rows(answer: Any) -> None:
    topology = hs.stream(key="user", timestamp="time").process(lambda row, stores: answer)
    with pytest.raises(TypeError, match=f"process: returned {type(answer).__name__}, expected an iterable of rows"):
        list(topology.run(some_rows(1, 3)))


def test_a_map_that_returns_no_row_is_named() -> None:
    topology = (
        hs.stream(key="user", timestamp="time")
        .map(lambda row: None)  # type: ignore[arg-type, return-value]
        .windowed_by(hs.TumblingWindows(5))
        .aggregate(n=hs.Count())
    )
    with pytest.raises(TypeError, match=r"row 0: map returned NoneType, expected a row \(a dict\)"):
        list(topology.run(some_rows(1, 3)))


@pytest.mark.parametrize("extra", [{}, {"other": hs.Sum("m")}, {"rows": hs.Collect()}])
def test_what_an_adder_cannot_add_is_told_by_column_and_type(extra: dict[str, Any]) -> None:
    topology = (
        hs.stream(key="user", timestamp="time").windowed_by(hs.TumblingWindows(5)).aggregate(n=hs.Sum("n"), **extra)
    )
    rows = [{"user": "a", "time": 1, "n": n, "m": 1.5} for n in (1, "2")]
    with pytest.raises(TypeError) as raised:
        list(topology.run(rows))
    message = (
        "aggregate 'n': sum of column 'n': key 'a', time 1: found str '2', which it cannot add (unsupported operand"
    )
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("extra", [{}, {"rows": hs.Collect()}])
def test_what_an_adder_cannot_add_to_another_is_told_by_column_and_type(extra: dict[str, Any]) -> None:
    topology = (
        hs.stream(key="user", timestamp="time").windowed_by(hs.TumblingWindows(5)).aggregate(n=hs.Max("n"), **extra)
    )
    with pytest.raises(TypeError) as raised:
        list(topology.run([{"user": "a", "time": 1, "n": n} for n in (1, "2")]))
    assert raised.value.__notes__[0].startswith("while aggregating the values of 2 records: n int, str")
    assert ("whole row dict" in raised.value.__notes__[0]) == ("rows" in extra)


def test_types_that_cannot_be_aggregated_on_spark_are_named_when_it_is_declared() -> None:
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyspark")
    from hybridstore.spark.operator import apply_program
    from hybridstore.spark.program import TopologyProgram

    program = TopologyProgram(
        hs.stream(key="user", timestamp="time").windowed_by(hs.TumblingWindows(5)).aggregate(total=hs.Sum("n"))
    )

    def schema(time: Any, n: Any) -> Any:
        return pa.schema([("user", pa.string()), ("time", time), ("n", n)])

    assert program.output_schema(schema(pa.timestamp("us"), pa.bool_())).field("total").type == pa.int64()
    with pytest.raises(TypeError, match=r"apply: column 'time': found string, expected a timestamp"):
        program.output_schema(schema(pa.string(), pa.int64()))
    with pytest.raises(TypeError, match=r"aggregate 'total': column 'n': found string, expected numbers"):
        program.output_schema(schema(pa.int64(), pa.string()))
    frame: Any = [1]
    with pytest.raises(TypeError, match="df: found list, expected a streaming DataFrame"):
        apply_program(frame, program, name="x", location="/x", shards=1)


def test_a_topology_shows_its_steps_in_one_line() -> None:
    windows = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
    assert repr(windows.aggregate(n=hs.Count())) == (
        "<Topology stream key user; time ts | windowed_by TumblingWindows(size='1 minute', grace=None) | "
        "aggregate n=Count(); emit record | stores windows (window)>"
    )
