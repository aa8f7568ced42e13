"""Null as a key (`null_keys="group"`): a group like others, by every way, over restarts and to the inspector."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridstore as hs
from hybridstore.cli import run as run_command
from hybridstore.spark.program import TopologyProgram
from hybridstore.state.group import StoreGroup
from hybridstore.topology.null_keys import given_key, stored_key
from tests.tools.ways import row_by_row
from tests.topology.test_every_way import AGGREGATES, DECLARED, HOLDS, WINDOWS, batches_of, same_bytes

pa = pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

NAN = float("nan")
KINDS: dict[str, tuple[Any, list[Any]]] = {
    "text": (pa.string(), ["a", "b", "", 'q"\\', "null", None]),
    "integers": (pa.int64(), [0, -7, 12, 2**62, None]),
    "floats": (pa.float64(), [0.0, -0.0, 1.5, NAN, float("-inf"), None]),
    "bytes": (pa.binary(), [b"", b"\x00\xff", None]),
    "booleans": (pa.bool_(), [True, False, None]),
}
PARTS = st.none() | st.text() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.binary() | st.booleans()


def topology_of(
    windows: str, emit: Any, hold: str, aggregates: str, keys: list[str], null_keys: Any, late: bool
) -> hs.Topology:
    shape, options = WINDOWS[windows]
    begun = hs.stream(key=keys, timestamp="time", null_keys=null_keys)
    begun = begun if shape is None else begun.windowed_by(shape, **options)
    topology = begun.aggregate(emit=emit, **AGGREGATES[aggregates])
    topology = topology if HOLDS[hold] is None else topology.hold(**HOLDS[hold])
    # without windows no row is late
    return topology.late() if late and shape is not None else topology


def stream_of(r: random.Random, kinds: dict[str, str]) -> Iterator[dict[str, Any]]:
    now = 0
    for number in range(r.randint(20, 60)):
        now += r.choice([0, 0, 1, 2, 5, 30])
        time = max(0, now - r.randint(0, 45)) if r.random() < 0.4 else now
        # the first key is null
        key = {name: r.choice(KINDS[kind][1]) if number else None for name, kind in kinds.items()}
        yield {**key, "time": time, "n": r.randint(-9, 40), "number": number}


def shown(row: dict[str, Any], keys: list[str]) -> str:
    """A result as text, in which keys are equal that are one group; of a late row its number."""
    parts = [repr(part + 0.0 if type(part) is float else part) for part in (row[name] for name in keys)]
    rest = {name: value for name, value in row.items() if name not in keys}
    if rest.get("late") is not None:
        rest["late"] = rest["late"]["number"]
    return f"{parts} {rest}"


def by_commit(rows: Any, keys: list[str]) -> list[tuple[int, str]]:
    return [(row.commit, shown(row, keys)) for row in rows]


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.stress
def test_null_is_a_group_like_others_by_every_way(windows: str, seed: int, rounds: int, tmp_path: Path) -> None:
    """As if each null, and each not a number, were a value that no other row has."""
    # whole rows as results have the key columns of the twin's other keys in them
    cases = [case[1:4] for case in DECLARED if case[0] == windows and case[3] != "rows" and case[4] is None]
    for number in range(max(3, rounds)):
        r = random.Random(f"{seed} {number}")
        kinds = {name: r.choice(list(KINDS)) for name in r.choice([["k"], ["k", "l"]])}
        keys, late, size = list(kinds), r.random() < 0.5, r.choice([5, 20])
        emit, hold, aggregates = r.choice(cases)
        topology = topology_of(windows, emit, hold, aggregates, keys, "group", late)
        rows = list(stream_of(r, kinds))
        schema = pa.schema([*((name, KINDS[kind][0]) for name, kind in kinds.items())])
        for name in ("time", "n", "number"):
            schema = schema.append(pa.field(name, pa.int64()))
        batches = batches_of(rows, size)
        tables = [pa.Table.from_pylist(batch, schema=schema) for batch in batches]

        expected = by_commit(topology.run(rows, tmp_path / f"{number}", commit_rows=size), keys)
        # which of two keys of one time is taken first, and what it lets out of a buffer, depends on their form
        if hold in ("given at once", "held until final"):
            codes: dict[str, int] = {}
            coded = []
            for row in rows:
                texts = {name: shown(row, [name]).partition("]")[0] for name in keys}
                coded.append({**row, **{name: codes.setdefault(text, len(codes)) for name, text in texts.items()}})
            plain = topology_of(windows, emit, hold, aggregates, keys, "skip", late)
            names = {code: text for text, code in codes.items()}
            twin = [
                (
                    row.commit,
                    f"[{', '.join(names[row[name]][1:] for name in keys)}] {shown(row, keys).partition('] ')[2]}",
                )
                for row in plain.run(coded, commit_rows=size)
            ]
            assert sorted(twin) == sorted(expected)
        if emit == "record" and hold == "given at once":
            assert any("None" in text.partition("]")[0] for _, text in expected)

        assert by_commit(topology.run([table.to_batches()[0] for table in tables]), keys) == expected
        parts = [by_commit(topology.run(way, commit_rows=size, shards=2), keys) for way in (rows, [*tables])]
        assert parts[0] == parts[1]
        program, digests = TopologyProgram(topology), []
        for by_row in (False, True):
            group = StoreGroup(lambda body: None)
            runner = program.open(group)
            if by_row:
                row_by_row(runner)
            results = []
            for commit, table in enumerate(tables, 1):
                rows_out = runner.process(table, program.output_schema(table.schema)).to_pylist()
                results += [(commit, shown(row, keys)) for row in rows_out]
                group.reached(group.version + 1, group.journal.seal())
            assert results == expected
            digests.append(group.digest)
        assert digests[0] == digests[1] or not same_bytes(topology)


@given(st.tuples(PARTS, PARTS) | PARTS)
def test_a_key_comes_back_from_its_text_and_two_have_one_text_only_if_they_are_one_group(key: Any) -> None:
    back = given_key(stored_key(key))
    assert repr(back).replace("-0.0", "0.0") == repr(key).replace("-0.0", "0.0")
    assert stored_key(back) == stored_key(key)


COUNT = (
    hs.stream(key=["k", "l"], timestamp="t", null_keys="group")
    .windowed_by(hs.TumblingWindows(1000))
    .aggregate(n=hs.Count(), emit="commit")
)
ROWS = [{"k": "ab"[i % 2] if i % 3 else None, "l": i % 2 or None, "t": i} for i in range(40)]


def test_a_state_goes_on_after_a_restart_and_with_another_number_of_shards(tmp_path: Path) -> None:
    always, job = ([*COUNT.run(ROWS[:20], tmp_path / name, shards=2, commit_rows=5)] for name in ("always", "job"))
    assert always == job
    assert hs.rescale(tmp_path / "job", shards=4, accept_late=True).into == 4
    rest = [
        sorted(map(str, COUNT.run(ROWS, tmp_path / name, shards=shards, commit_rows=5)))
        for name, shards in (("always", 2), ("job", 4))
    ]
    assert rest[0] == rest[1]
    with COUNT.open(tmp_path / "job", shards=4) as engine:
        counts = {(row["k"], row["l"]): row["n"] for row in engine.windows()}
    whole = [(row["k"], row["l"]) for row in ROWS]
    assert counts == {key: whole.count(key) for key in whole}
    assert (None, None) in counts


def test_the_inspector_shows_a_null_key_and_takes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [*COUNT.run(ROWS, tmp_path / "two")]
    sessions = (
        hs.stream(key="k", timestamp="t", null_keys="group").windowed_by(hs.SessionWindows(9)).aggregate(n=hs.Count())
    )
    [*sessions.run(ROWS, tmp_path / "one")]
    for state, keys in (("one", ["null", '"a"', '"b"']), ("two", ["[null,null]", '["a",null]', '["b",1]'])):
        for key in keys:
            assert run_command(["inspect", "get", str(tmp_path / state), "windows", key, "-o", "json"]) == 0
            assert {row["key"] for row in json.loads(capsys.readouterr().out)} == {key}
    with sessions.open(tmp_path / "one") as engine:
        assert [row["k"] for row in engine.find_sessions(None)] == [None]


def test_a_state_keeps_to_its_null_keys(tmp_path: Path) -> None:
    [*COUNT.run(ROWS, tmp_path / "state")]
    skipping = (
        hs.stream(key=["k", "l"], timestamp="t")
        .windowed_by(hs.TumblingWindows(1000))
        .aggregate(n=hs.Count(), emit="commit")
    )
    with pytest.raises(hs.ProgramMismatchError, match=r"null_keys.*group.*skip"):
        skipping.open(tmp_path / "state")
    with pytest.raises(ValueError, match=r"null_keys: found 'drop', expected \"skip\" or \"group\""):
        hs.stream(key="k", timestamp="t", null_keys="drop")  # type: ignore[arg-type]


def test_keys_of_several_types_are_refused_and_null_is_none_of_them(tmp_path: Path) -> None:
    rows = [{"k": k, "l": part, "t": 1} for k, part in [(None, 1), ("a", None), (None, None), (None, "b")]]
    with pytest.raises(TypeError, match=r"row 3: column 'l': found a key of str, expected int"):
        [*COUNT.run(rows)]
    with pytest.raises(TypeError, match=r"row 0: column 'l': found list, expected a key of str"):
        [*COUNT.run([{"k": None, "l": [], "t": 1}])]
    with pytest.raises(ValueError, match="found an int beyond 64 bits"):
        [*COUNT.run([{"k": None, "l": 2**63, "t": 1}])]


@pytest.mark.parametrize("key", [date(2026, 1, 1), datetime(2026, 1, 1, 5), Decimal("1.10")], ids=repr)
def test_dates_and_decimals_are_keys_whether_or_not_null_comes_first(key: Any) -> None:
    refusal = r"row 0: column 'k': found .* \(convert it with map; with null_keys=\"group\" dates"
    with pytest.raises(TypeError, match=refusal):
        [*hs.stream(key="k", timestamp="t").aggregate(n=hs.Count()).run([{"k": key, "t": 1}])]
    grouped = hs.stream(key="k", timestamp="t", null_keys="group").aggregate(n=hs.Count(), emit="commit")
    for keys in ([key], [key, None], [None, key]):
        results = grouped.run([{"k": each, "t": 1} for each in keys])
        assert {row["k"]: row["n"] for row in results} == dict.fromkeys(keys, 1)
    for keys in ([[]], [[], None], [None, []]):
        with pytest.raises(TypeError, match=r"column 'k': found list, expected a key of str"):
            [*grouped.run([{"k": each, "t": 1} for each in keys])]


def test_own_logic_is_given_rows_with_null_keys(tmp_path: Path) -> None:
    seen = hs.stream(key="k", timestamp="t", null_keys="group").process(lambda row, stores: [{"k": row["k"]}])
    rows = [{"k": k, "t": 1} for k in ("b", None, "a", None)]
    assert [row["k"] for row in seen.run(rows, shards=3)].count(None) == 2
    table = pa.Table.from_pylist(rows)
    assert sorted(map(str, seen.run(table, shards=3))) == sorted(map(str, seen.run(rows, shards=3)))


@pytest.mark.parametrize("way", ["rows", "columns"])
@pytest.mark.parametrize("kind", ["floats", "parts"])
def test_without_a_group_not_a_number_is_no_key_and_minus_zero_is_zero(way: str, kind: str, tmp_path: Path) -> None:
    keys = ["k"] if kind == "floats" else ["k", "l"]
    topology = hs.stream(key=keys, timestamp="t").windowed_by(hs.TumblingWindows(10)).aggregate(n=hs.Count())
    rows = [{"k": k, "l": "x", "t": 1, "n": 1} for k in (-0.0, NAN, 0.0, 1.5, NAN, None, -0.0)]
    given_rows: Any = rows if way == "rows" else pa.Table.from_pylist(rows)
    with topology.open(tmp_path / "state") as engine:
        results = engine.process_many(given_rows)
        assert engine.left_out == (3, 0)
    assert [(repr(row["k"]), row["n"]) for row in results] == [("0.0", 1), ("0.0", 2), ("0.0", 3), ("1.5", 1)]


@pytest.mark.parametrize("keys", [[None, "null"], ["null", None]])
@pytest.mark.parametrize("shards", [1, 2])
def test_null_and_its_text_are_two_keys_of_untaken_results(tmp_path: Path, keys: list[Any], shards: int) -> None:
    source = [{"k": [None, "null", '"null"'][number % 3], "ts": number * 10} for number in range(100)]
    stream = hs.stream(key="k", timestamp="ts", null_keys="group")
    topology = stream.windowed_by(hs.TumblingWindows(100)).aggregate(n_rows=hs.Count())
    rows = topology.run(source, tmp_path, commit_rows=50, shards=shards)
    assert next(iter(rows))  # no other row of the commit is taken
    rows.close()
    hs.erase(tmp_path, keys[0])
    again = {row["k"] for row in topology.run(source[:50], tmp_path, commit_rows=50, shards=shards)}
    assert again == {keys[1], '"null"'}


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(0, 9))
def test_equal_decimals_have_one_text(number: Decimal, zeros: int) -> None:
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    longer = Decimal((sign, digits + (0,) * zeros, exponent - zeros))
    assert stored_key(longer) == stored_key(number)
    assert given_key(stored_key(number)) == number
    with localcontext(capitals=0, prec=1):
        assert stored_key(longer) == stored_key(number)
    assert stored_key(Decimal("-nan7")) == stored_key(Decimal("nan"))


@pytest.mark.parametrize("way", ["rows", "tables"])
def test_equal_decimals_are_one_group_by_every_way_and_over_a_restart(way: str, tmp_path: Path) -> None:
    counts = hs.stream(key="k", timestamp="t", null_keys="group").aggregate(n=hs.Count(), emit="commit")
    rows: list[Any] = [{"k": Decimal(text), "t": 1} for text in ("1.1", "1.10", "1E+2", "100", "0", "-0.00")]
    source = rows if way == "rows" else [pa.Table.from_pylist(rows)]
    expected = [(Decimal(text), 2) for text in ("0", "1.1", "100")]
    assert sorted((row["k"], row["n"]) for row in counts.run(source, tmp_path / "state")) == expected
    with counts.open(tmp_path / "state") as engine:
        engine.process_many([{"k": Decimal("1.100"), "t": 2}])
        assert sorted((row["k"], row["n"]) for row in engine.commit()) == [(Decimal("1.1"), 3)]
