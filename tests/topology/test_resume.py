"""A run that stops anywhere goes on as if it had not: every commit's results exactly once, for a consumer that
skips what it has.
"""

from __future__ import annotations

import random
from collections import namedtuple
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.codec import unpack
from hybridstore.state.directory import State, open_store
from hybridstore.testing import Consumer, crashes
from hybridstore.topology.run_state import RESULTS
from hybridstore.topology.times import TO_TIME, TimeForm
from tests.tools.hooks import crash
from tests.tools.ways import two_in_a_piece
from tests.topology.test_topology import WINDOWS, declared, some_rows

pytestmark = pytest.mark.usefixtures(two_in_a_piece.__name__)

KINDS = [("tumbling", "record"), ("hopping", "close"), ("session", "commit"), ("sliding", "record"), ("kafka", "close")]


def uninterrupted(topology: hs.Topology, rows: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in topology.run(rows, **options)]


@pytest.mark.parametrize(("name", "emit"), KINDS)
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.slow
def test_stopped_at_every_commit(name: str, emit: str, shards: int, tmp_path: Path, seed: int) -> None:
    topology, rows = declared(WINDOWS[name], emit), some_rows(seed, 80)
    options: dict[str, Any] = {"commit_rows": 10, "shards": shards}
    expected = uninterrupted(topology, rows, **options)
    consumer = Consumer()
    for commit in range(1, 9):
        run = topology.run(rows, location=tmp_path / "state", **options)
        consumer.take(run, stop_after=commit)
        run.close()
    consumer.take(topology.run(rows, location=tmp_path / "state", **options))
    assert consumer.rows() == expected


def test_stopped_in_the_middle_of_a_commits_results(tmp_path: Path, seed: int) -> None:
    topology, rows = declared(WINDOWS["tumbling"]), some_rows(seed, 60)
    expected = uninterrupted(topology, rows, commit_rows=20)
    half = []
    run = topology.run(rows, location=tmp_path, commit_rows=20)
    for row in run:
        half.append(row)
        if row.commit == 2:
            break
    run.close()
    # the consumer has all of commit 1 and one row of commit 2, which it throws away
    rest = [dict(row) for row in topology.run(rows, location=tmp_path, commit_rows=20) if row.commit >= 2]
    assert [dict(row) for row in half if row.commit == 1] + rest == expected


@pytest.mark.parametrize(("name", "emit"), KINDS)
@pytest.mark.parametrize("position", [None, "id"])
@pytest.mark.slow
def test_a_crash_between_the_commits_of_two_shards(
    name: str, emit: str, position: str | None, tmp_path: Path, seed: int
) -> None:
    topology, rows = declared(WINDOWS[name], emit), some_rows(seed, 80)
    options: dict[str, Any] = {"commit_rows": 10, "shards": 3, "position": position}
    expected = uninterrupted(topology, rows, **options)
    for survived in (1, 2, 4, 13):
        state, consumer, ended = tmp_path / f"after-{survived}", Consumer(), False
        with crashes(after=survived):
            consumer.take(topology.run(rows, location=state, **options))
            ended = True
        assert not ended
        consumer.complete = survived // 3
        consumer.take(topology.run(rows, location=state, **options))
        assert consumer.rows() == expected, f"killed after {survived} commits of shards"


@pytest.mark.parametrize(("name", "emit"), KINDS)
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.slow
def test_a_consumer_that_writes_a_commit_when_the_next_arrives_misses_none(
    name: str, emit: str, shards: int, tmp_path: Path, seed: int
) -> None:
    """Killed at every commit of every shard in turn; what the consumer had not written by then must come again."""
    topology, rows = declared(WINDOWS[name], emit), some_rows(seed, 60)
    options: dict[str, Any] = {"commit_rows": 6, "shards": shards}
    expected: dict[int, list[dict[str, Any]]] = {}
    for row in topology.run(rows, **options):
        expected.setdefault(row.commit, []).append(dict(row))
    written: dict[int, list[dict[str, Any]]] = {}

    def consume() -> None:
        at, pending = 0, []
        for row in topology.run(rows, location=tmp_path / "state", **options):
            if row.commit != at:
                written.setdefault(at, pending)
                at, pending = row.commit, []
            pending.append(dict(row))
        written.setdefault(at, pending)

    for _ in range(10 * shards):
        with crashes(after=1):
            consume()
    consume()
    written.pop(0)
    assert written == expected


def test_a_commit_half_done_is_completed_with_its_own_rows(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology, rows = declared(WINDOWS["tumbling"], "commit"), some_rows(seed, 60)
    commit = State.commit
    done: list[int] = []

    def killed(store: State) -> int:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(1)
        return commit(store)

    with monkeypatch.context() as patched:
        patched.setattr(State, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            list(topology.run(rows, location=tmp_path, commit_rows=20, shards=2))
    for wrong in (rows[:30], [*rows[:20]]):
        with pytest.raises(hs.errors.RestoreError, match="give the same rows"):
            list(topology.run(wrong, location=tmp_path, commit_rows=20, shards=2))
    # the second commit, half done, still has its 20 rows; then come smaller ones
    commits = {row.commit for row in topology.run(rows, location=tmp_path, commit_rows=7, shards=2)}
    assert commits == {1, 2, 3, 4, 5}
    with topology.open(tmp_path, shards=2) as engine:
        assert engine.position() == 60


def test_the_position_is_a_column_a_function_or_a_count(tmp_path: Path) -> None:
    topology = declared(hs.TumblingWindows(1000), "commit")
    rows: list[dict[str, Any]] = [{"user": "a", "time": t, "n": 1, "offset": 100 + 2 * t} for t in range(30)]
    positions: list[tuple[str, Any, int]] = [
        ("column", "offset", 138),
        ("function", lambda row: row["offset"], 138),
        ("count", None, 20),
    ]
    for name, position, reached in positions:
        state = tmp_path / name
        run = topology.run(rows[:20], location=state, position=position, commit_rows=6)
        assert [row["n"] for row in run] == [6, 12, 18, 20]
        assert hs.inspect(state).position == reached
        # the source may begin anywhere before the position, with a position; without one it gives all rows again
        source = rows if position is None else rows[12:]
        again = list(topology.run(source, location=state, position=position, commit_rows=100, replay_last=True))
        assert [(row.commit, row["n"]) for row in again] == [(3, 18), (4, 20), (5, 30)]


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("arrow", [False, True], ids=["dicts", "arrow"])
def test_a_source_that_is_a_function_is_asked_for_the_rows_behind_the_committed_position(
    arrow: bool, shards: int, tmp_path: Path, seed: int
) -> None:
    topology, asked = declared(WINDOWS["tumbling"]), list[Any]()
    rows = [{**row, "offset": 10 * number} for number, row in enumerate(some_rows(seed, 60))]

    def behind(position: Any) -> Any:
        asked.append(position)
        # the second row before the position, too: a function may begin too early
        rest = rows if position is None else rows[max(0, position // 10 - 1) :]
        return pytest.importorskip("pyarrow").Table.from_pylist(rest) if arrow else iter(rest)

    options: dict[str, Any] = {"position": "offset", "commit_rows": 20, "shards": shards}
    expected = uninterrupted(topology, rows, **options)
    consumer = Consumer()
    for commit in (1, 2):
        run = topology.run(behind, tmp_path / "state", **options)
        consumer.take(run, stop_after=commit)
        run.close()
    consumer.take(topology.run(behind, tmp_path / "state", **options))
    assert consumer.rows() == expected
    assert len(asked) == 3  # each run asks once
    assert asked[0] is None
    assert all(position in (190, 390, 590) for position in asked[1:])
    assert list(topology.run(lambda position: [], tmp_path / "state", **options)) == []  # nothing new is no error


def test_a_shard_that_is_a_commit_behind_decides_the_position_of_which_a_function_is_asked(tmp_path: Path) -> None:
    topology = declared(hs.TumblingWindows(1000), "commit")
    rows = [{"user": user, "time": t, "n": 1, "offset": 2 * t + (user == "b")} for t in range(20) for user in "ab"]
    options: dict[str, Any] = {"position": "offset", "commit_rows": 10, "shards": 2}
    expected = uninterrupted(topology, rows, **options)
    consumer = Consumer()
    with crashes(after=3):
        consumer.take(topology.run(rows, tmp_path, **options))
    asked: list[Any] = []

    def behind(position: Any) -> Any:
        asked.append(position)
        return rows[0 if position is None else position + 1 :]

    consumer.take(topology.run(behind, tmp_path, **options))
    assert asked == [9]
    assert consumer.rows() == expected


def test_an_input_of_a_join_may_be_a_function(tmp_path: Path) -> None:
    orders, paid = (hs.stream(key="order", timestamp=at, name=name) for name, at in (("orders", "at"), ("paid", "on")))
    join = orders.join(paid, within="1 minute")
    given = {
        "orders": [{"order": n, "at": n, "n": n} for n in range(4)],
        "paid": [{"order": n, "on": n} for n in range(4)],
    }
    asked, met = list[Any](), list[int]()

    def behind(position: Any) -> Any:
        asked.append(position)
        return given["orders"][0 if position is None else position + 1 : known]

    positions = {"orders": "n", "paid": "on"}
    for known in (2, 4):
        inputs = {"orders": behind, "paid": given["paid"][:known]}
        met += [row["order"] for row in join.run(inputs, tmp_path, position=positions)]
    assert asked == [None, 1]
    assert met == [0, 1, 2, 3]


def test_a_function_as_source_needs_a_position_and_returns_rows(tmp_path: Path) -> None:
    topology = declared(hs.TumblingWindows(1000), "commit")
    with pytest.raises(ValueError, match="rows: found a function and no position=, expected where in the source"):
        list(topology.run(lambda position: [], tmp_path / "state"))
    assert not (tmp_path / "state").exists()
    nothing: Any = dict[Any, None]().get
    with pytest.raises(TypeError, match="rows: found NoneType, expected an iterable of rows"):
        list(topology.run(nothing, tmp_path / "other", position="n"))
    orders, paid = (hs.stream(key="order", timestamp="at", name=name) for name in ("orders", "paid"))
    join = orders.join(paid, within="1 minute")
    wrong: list[tuple[type[Exception], Any]] = [(ValueError, lambda position: []), (TypeError, None)]
    for error, given in wrong:
        with pytest.raises(error, match="rows: found"):
            list(join.run({"orders": [], "paid": given}, tmp_path / "join"))
        assert not (tmp_path / "join").exists()


def test_positions_that_do_not_rise_are_refused_because_a_restart_would_skip_rows(tmp_path: Path) -> None:
    topology = declared(hs.TumblingWindows(1000), "commit")
    rows = [{"user": "a", "time": 5, "n": 1, "offset": offset} for offset in (1, 2, 3, 4, 4, 5)]
    run = topology.run(rows, location=tmp_path, position="offset", commit_rows=2)
    with pytest.raises(ValueError, match="position: found 4 after 4, expected positions that rise with every row"):
        list(run)
    assert hs.inspect(tmp_path).position == 4  # what was committed before it stays


def test_a_column_of_named_tuples_is_a_position(tmp_path: Path) -> None:
    click = namedtuple("click", "user time n offset")
    stream = hs.stream(name="clicks", key="user", timestamp="time", columns=["n"])
    join = stream.join(hs.table(name="users", key="user", timestamp="since", columns=[]), how="left")
    for count in (2, 3):
        rows = [click("a", 5, 1, offset) for offset in range(count)]
        windows = declared(hs.TumblingWindows(1000), "commit")
        assert [row["n"] for row in windows.run(rows, tmp_path / "windows", position="offset")] == [count]
        assert hs.inspect(tmp_path / "windows").position == count - 1
        inputs = {"clicks": rows, "users": []}
        assert len(list(join.run(inputs, tmp_path / "join", position="offset"))) == (2 if count == 2 else 1)


def test_a_time_of_a_pandas_frame_is_a_position(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    moments = [datetime(2024, 1, 1, second=second) for second in range(3)]
    topology = hs.stream(timestamp="time").aggregate(n=hs.Count(), emit="commit")
    for count in (2, 3):
        frame = pandas.DataFrame({"time": moments[:count]}).astype("datetime64[ns]")
        assert [row["n"] for row in topology.run(frame, tmp_path, position="time")] == [count]
        assert hs.inspect(tmp_path).position == moments[count - 1]


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({}, "position: column 'offset' is missing: found user, time, n"),
        ({"offset": None}, "position: found None, expected positions that rise"),
        ({"offset": "b"}, "position: found 'b' after 0, expected positions that rise"),
    ],
)
def test_a_row_without_a_position_is_refused_in_words(cells: dict[str, Any], words: str, tmp_path: Path) -> None:
    topology = declared(hs.TumblingWindows(1000), "commit")
    row = {"user": "a", "time": 5, "n": 1}
    rows = [*([{**row, "offset": 0}] if "after" in words else []), row | cells]
    with pytest.raises(ValueError, match=words):
        list(topology.run(rows, tmp_path, position="offset", commit_rows=1))
    if "after" in words:  # behind a committed position, too
        with pytest.raises(ValueError, match=words):
            list(topology.run(rows[1:], tmp_path, position="offset"))


# --- Arrow batches ------------------------------------------------------------------------------------------------


def cut(rows: list[dict[str, Any]], r: random.Random) -> list[Any]:
    """Return rows as Arrow batches and tables of several chunks, cut anywhere; some are empty."""
    pa = pytest.importorskip("pyarrow")
    table = pa.Table.from_pylist(rows)
    ends = sorted(r.randint(0, len(rows)) for _ in range(r.randint(0, 6)))
    batches = []
    for start, end in pairwise([0, *ends, len(rows)]):
        part = table.slice(start, end - start)
        middle = r.randint(0, part.num_rows)
        chunked = pa.concat_tables([part.slice(0, middle), part.slice(middle)])
        batches.append(chunked if r.random() < 0.5 else part.combine_chunks().to_batches(max_chunksize=1000))
    return [batch for part in batches for batch in (part if isinstance(part, list) else [part])]


@pytest.mark.parametrize("form", ["batches", "rows"])
@pytest.mark.parametrize("position", [None, "id", "name", "at"])
@pytest.mark.slow
def test_batches_are_resumed_wherever_they_are_cut(form: str, position: str | None, tmp_path: Path, seed: int) -> None:
    """Killed at random commits of shards; the source begins anywhere up to the committed position, cut anew."""
    r = random.Random(seed)
    # nothing late, and nothing that depends on where commits end
    windows = hs.stream(key="user", timestamp="time").windowed_by(hs.TumblingWindows(20, grace=100))
    topology = windows.aggregate(emit="commit", n=hs.Count(), total=hs.Sum("n"))
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        {**row, "id": 10 * row["id"], "name": f"{row['id']:04}", "at": moment + timedelta(seconds=row["id"])}
        for row in some_rows(seed, 120)
    ]
    positions = [None if position is None else row[position] for row in rows]
    final = {(row["user"], row["window_start"]): row for row in uninterrupted(topology, rows, commit_rows=1000)}

    for number in range(3):
        shards, state = r.choice([1, 3]), tmp_path / str(number)
        taken: dict[tuple[str, int], Any] = {}
        runs, ended = 0, False
        while not ended:
            at = hs.inspect(state).position if runs else None
            start = 0 if at is None or position is None else r.randint(0, positions.index(at))
            source = cut(rows[start:], r) if form == "batches" or runs % 2 else iter(rows[start:])
            options: Any = {"position": position, "shards": shards, "commit_rows": r.choice([7, 20, 1000])}
            runs += 1
            with crashes(after=r.randint(1, 5)):
                for row in topology.run(source, state, **options):
                    taken[row["user"], row["window_start"]] = dict(row)
                ended = True
        assert taken == final


@pytest.mark.parametrize(
    ("position", "words"),
    [
        (lambda row: row["id"], "position: found a function with Arrow batches, expected the name of a column"),
        ("offset", "position: column 'offset' is missing: found user, time, n, id"),
        ("n", "position: found 2 after 3, expected positions that rise with every row"),
        ("time", "position: found 4 after 4, expected positions that rise with every row"),
        ("user", "position: found a null in column 'user'"),
    ],
    ids=["function", "missing", "falls", "stays", "null"],
)
def test_a_position_that_batches_do_not_have_is_refused(position: Any, words: str, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    first = pa.table({"user": ["a", "b"], "time": [3, 4], "n": [1, 3], "id": [1, 2]})
    second = pa.table({"user": ["c", None], "time": [4, 5], "n": [2, 4], "id": [3, 4]})
    with pytest.raises(ValueError, match=words):
        list(declared(hs.TumblingWindows(5)).run([first, second], tmp_path, position=position))
    with pytest.raises(ValueError, match=words):  # the same within one batch
        list(declared(hs.TumblingWindows(5)).run(pa.concat_tables([first, second]), tmp_path / "1", position=position))


def test_another_source_of_batches_is_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    topology = declared(hs.TumblingWindows(5))
    table = pa.table({"user": ["a", "b"], "time": [3, 4], "n": [1, 3], "id": [1, 2]})
    list(topology.run(table, tmp_path, position="id"))
    with pytest.raises(hs.errors.RestoreError, match="the source ended at 1, before 2, which is committed"):
        list(topology.run(table.slice(0, 1), tmp_path, position="id"))
    other = table.set_column(0, "user", pa.array(["a", "x"]))
    with pytest.raises(hs.errors.RestoreError, match="the row at 2 of the source is x, 4, the committed row is b, 4"):
        list(topology.run(other, tmp_path, position="id"))
    later = pa.table({"user": ["a"], "time": [4], "n": [1], "id": [7]})
    assert [row["n"] for row in topology.run([table.slice(0, 0), later], tmp_path, position="id")] == [2]


def test_arrow_batches_are_resumed_by_their_rows(tmp_path: Path, seed: int) -> None:
    pa = pytest.importorskip("pyarrow")
    topology, rows = declared(WINDOWS["hopping"], "commit"), some_rows(seed, 90)
    batches = pa.Table.from_pylist(rows).to_batches(max_chunksize=40)
    expected = uninterrupted(topology, batches, commit_rows=15)
    consumer = Consumer()
    for commit in (1, 3, 4):
        run = topology.run(batches, location=tmp_path, commit_rows=15)
        consumer.take(run, stop_after=commit)
        run.close()
    consumer.take(topology.run(batches, location=tmp_path, commit_rows=15))
    assert consumer.rows() == expected


MISMATCHES: list[tuple[str, Any, str]] = [
    (
        "windows",
        declared(hs.TumblingWindows(20)),
        "windows: size: the state has 10, asked for 20",
    ),
    ("emit", declared(hs.TumblingWindows(10), "close"), "emit: the state has 'record', asked for 'close'"),
    (
        "aggregates",
        hs.stream(key="user", timestamp="time").windowed_by(hs.TumblingWindows(10)).aggregate(n=hs.Count()),
        "aggregate total: not in the program",
    ),
    (
        "key",
        hs.stream(key="n", timestamp="time").windowed_by(hs.TumblingWindows(10)).aggregate(x=hs.Count()),
        "key: user in the state, n in the program",
    ),
    (
        "steps",
        hs.stream(key="user", timestamp="time")
        .map(dict)
        .windowed_by(hs.TumblingWindows(10))
        .aggregate(n=hs.Count(), total=hs.Sum("n"), last=hs.Last("n")),
        "map and filter: none in the state, map dict in the program",
    ),
    (
        "suppression",
        declared(hs.TumblingWindows(10)).hold(5),
        "hold: the state has None",
    ),
]


@pytest.mark.parametrize(("part", "other", "words"), MISMATCHES, ids=[case[0] for case in MISMATCHES])
def test_another_topology_is_refused_naming_what_differs(
    part: str, other: hs.Topology, words: str, tmp_path: Path
) -> None:
    rows = [{"user": "a", "time": 1, "n": 1}]
    list(declared(hs.TumblingWindows(10)).run(rows, location=tmp_path))
    with pytest.raises(hs.ProgramMismatchError, match=words):
        list(other.run(rows, location=tmp_path))


def test_another_number_of_shards_is_refused(tmp_path: Path) -> None:
    topology = declared(hs.TumblingWindows(10))
    rows = [{"user": "a", "time": 1, "n": 1}]
    list(topology.run(rows, location=tmp_path / "three", shards=3))
    with pytest.raises(hs.ProgramMismatchError, match="the state has 3 shards, asked for 1"):
        topology.open(tmp_path / "three")
    list(topology.run(rows, location=tmp_path / "one"))
    with pytest.raises(hs.ProgramMismatchError, match="the state has 1 shard, asked for 2"):
        topology.open(tmp_path / "one", shards=2)
    # asking for more makes none: the state is as it was, for the one who asks for what it has
    with pytest.raises(hs.ProgramMismatchError, match="the state has 3 shards, asked for 5"):
        topology.open(tmp_path / "three", shards=5)
    topology.open(tmp_path / "three", shards=3).close()


@pytest.mark.parametrize("shards_made", [1, 2, 4])
def test_a_crash_while_the_shards_are_made(shards_made: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = declared(hs.TumblingWindows(10))
    rows = [{"user": user, "time": 1, "n": 1} for user in "abcdefgh"]

    class Killed(Exception):
        pass

    opened: list[State] = []

    def killed(*args: Any, **options: Any) -> State:
        if len(opened) == shards_made:
            raise Killed
        opened.append(open_store(*args, **options))
        return opened[-1]

    with monkeypatch.context() as patched:
        patched.setattr("hybridstore.topology.engine.open_store", killed)
        patched.setattr(State, "close", crash)
        with pytest.raises(Killed):
            list(topology.run(rows, location=tmp_path, shards=5))
    assert len(list(topology.run(rows, location=tmp_path, shards=5))) == len(rows)


def test_the_same_topology_declared_again_goes_on(tmp_path: Path) -> None:
    rows = [{"user": "a", "time": t, "n": 1} for t in range(4)]
    list(declared(hs.TumblingWindows("10 ms")).run(rows[:2], location=tmp_path))
    results = list(declared(hs.TumblingWindows(10)).run(rows, location=tmp_path))
    assert [(row.commit, row["n"]) for row in results] == [(2, 3), (2, 4)]


def test_without_a_state_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    topology = declared(hs.TumblingWindows(10), "commit")
    rows = [{"user": "a", "time": t, "n": 1} for t in range(4)]
    run = topology.run(rows, commit_rows=2)
    assert next(run)["n"] == 2
    assert len(list(tmp_path.iterdir())) == 1
    run.close()
    assert list(tmp_path.iterdir()) == []
    assert [row["n"] for row in topology.run(rows, commit_rows=2)] == [2, 4]


def test_progress_and_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = declared(hs.TumblingWindows(10), "commit")
    rows = [{"user": "a", "time": t, "n": 1} for t in range(6)]
    commits: list[tuple[str, int, int]] = []
    list(topology.run(rows, tmp_path, commit_rows=4, progress=lambda *step: commits.append(step)))
    assert commits == [("commits", 1, 0), ("commits", 2, 0)]
    ticks = iter(range(0, 1000, 5))
    monkeypatch.setattr("hybridstore.topology.source.time.monotonic", lambda: next(ticks))
    assert {row.commit for row in topology.run(rows, commit_seconds=7)} == {1, 2, 3}


@pytest.mark.parametrize("processing", [0, 1, 10, 400])
def test_the_seconds_between_commits_have_the_processing_in_them(
    processing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock of its own: a row comes each 2 s, and takes `processing` s; with as many as fit 100 s are filled."""
    now, durable = 0.0, [0.0]

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    def slow(row: dict[str, Any]) -> dict[str, Any]:
        wait(processing)
        return row

    def source() -> Iterator[dict[str, Any]]:
        for number in range(rows):
            wait(2)
            yield {"user": "a", "time": number, "n": 1}

    rows = 60 + 1000 // (2 + processing)
    topology = hs.stream(key="user", timestamp="time").map(slow).windowed_by(hs.TumblingWindows(10))
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr("time.perf_counter", lambda: now)
    counts = topology.aggregate(emit="commit", n=hs.Count())
    run = counts.run(source(), tmp_path, commit_seconds=100, progress=lambda *_: durable.append(now))
    assert sum(row["n"] for row in run) >= rows
    # the first commit knows of no processing yet; the last may be short
    spans = [after - before for before, after in pairwise(durable)][1:-1]
    assert len(spans) > 5
    assert all(100 - (2 + processing) < span <= 100 + 2 + processing for span in spans)


@pytest.mark.parametrize("form", ["ms", "naive", "aware"])
def test_kept_results_are_columns_of_small_numbers_and_come_back_as_they_were(tmp_path: Path, form: TimeForm) -> None:
    moment = TO_TIME[form]
    topology = (
        hs.stream(key=["k", "n"], timestamp="t")
        .windowed_by(hs.SlidingWindows("1 minute"))
        .aggregate(rows=hs.Count(), of=hs.Collect("v"))
    )
    rows = [{"k": "a", "n": i % 2, "t": moment(1_700_000_000_000 + 7 * i), "v": i} for i in range(4)]
    given = [dict(row) for row in topology.run(rows, tmp_path)]
    assert [list(row) for row in given] == [["k", "n", "window_start", "window_end", "rows", "of"]] * 4
    assert [row["window_end"] for row in given] == [row["t"] for row in rows]
    with open_store(tmp_path) as store:
        pieces = [(key, unpack(value)) for key, value in store.key_value(RESULTS).all()]
    names = ["k", "n", "window_start", "window_end", "rows", "of"]
    assert pieces == [
        ((1, 0), [names, form, [["a"] * 2, [0, 1], [60_000] * 2, [1_700_000_000_000, 7], [1, 1], [[0], [1]]]]),
        ((1, 1), [names, form, [["a"] * 2, [0, 1], [60_000] * 2, [1_700_000_000_014, 7], [2, 2], [[0, 2], [1, 3]]]]),
    ]
    again = list(topology.run(rows, tmp_path, replay_last=True))
    assert [(row.commit, dict(row)) for row in again] == [(1, row) for row in given]
    assert [type(row["window_start"]) for row in again] == [type(row["window_start"]) for row in given]


def test_a_bound_that_no_datetime_can_say_stops_the_commit(tmp_path: Path) -> None:
    topology = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows("400 days")).aggregate(n=hs.Count())
    with pytest.raises(OverflowError):
        list(topology.run([{"k": "a", "t": datetime(9999, 12, 31, tzinfo=UTC)}], tmp_path))
    with open_store(tmp_path) as store:
        assert list(store.key_value(RESULTS)) == []
