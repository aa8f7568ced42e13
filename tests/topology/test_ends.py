"""How a run ends and how the next one begins: with the same source, a longer one, another one; after a clean end, a
stop or a kill.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridstore as hs
from hybridstore.state.directory import State
from tests.tools.hooks import crash
from tests.topology.test_topology import WINDOWS, declared, some_rows

COUNTS = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows("1 minute")).aggregate(n=hs.Count())
MONDAY = [{"k": "a", "t": i * 1000} for i in range(10)]
TUESDAY = [{"k": "a", "t": 100_000 + i * 1000} for i in range(5)]


def counts(results: Any) -> list[tuple[int, int]]:
    return [(row.commit, row["n"]) for row in results]


# --- another source -----------------------------------------------------------------------------------------------


def as_arrow(rows: list[dict[str, Any]]) -> Any:
    pa = pytest.importorskip("pyarrow")
    return pa.Table.from_pylist(rows)


def in_batches(rows: list[dict[str, Any]]) -> Any:
    return as_arrow(rows).to_batches(max_chunksize=3)


FORMS: dict[str, Any] = {"dicts": list, "generator": iter, "table": as_arrow, "batches": in_batches}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [TUESDAY, MONDAY[:9], []], ids=["another", "cut", "empty"])
def test_a_source_that_ends_before_the_committed_position_is_an_error(form: str, rows: Any, tmp_path: Path) -> None:
    if not rows and form in ("table", "batches"):
        rows = MONDAY[:0]
        pytest.importorskip("pyarrow")
        source: Any = FORMS[form](MONDAY).slice(0, 0) if form == "table" else []
    else:
        source = FORMS[form](rows)
    assert len(list(COUNTS.run(FORMS[form](MONDAY), tmp_path))) == 10
    with pytest.raises(
        hs.errors.RestoreError,
        match=rf"position: the source ended after {len(rows)} rows, of which 10 are committed.*with position=",
    ):
        list(COUNTS.run(source, tmp_path))
    assert hs.inspect(tmp_path).position == 10
    # nothing was changed: the whole source goes on
    assert [row["n"] for row in COUNTS.run(FORMS[form]([*MONDAY, *TUESDAY]), tmp_path)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("form", FORMS)
def test_a_longer_source_with_another_row_at_the_committed_position_is_an_error(form: str, tmp_path: Path) -> None:
    longer = [{"k": "b", "t": 200_000 + i} for i in range(20)]
    list(COUNTS.run(MONDAY, tmp_path))
    with pytest.raises(hs.errors.RestoreError, match="row 10 of the source is b, 200009, the committed row is a, 9000"):
        list(COUNTS.run(FORMS[form](longer), tmp_path))


def test_the_committed_row_is_known_again_in_every_form(tmp_path: Path) -> None:
    moments = [{"k": "a", "t": datetime.fromtimestamp(row["t"] / 1000, UTC)} for row in MONDAY]
    list(COUNTS.run(moments[:4], tmp_path))
    for number, form in enumerate(FORMS, 5):
        assert len(list(COUNTS.run(FORMS[form](moments[:number]), tmp_path))) == 1


def test_rows_that_a_map_makes_are_not_compared(tmp_path: Path) -> None:
    topology = (
        hs.stream(key="k", timestamp="t")
        .map(lambda row: {"k": "a", "t": row["n"]})
        .windowed_by(hs.TumblingWindows("1 minute"))
        .aggregate(n=hs.Count())
    )
    list(topology.run([{"n": n} for n in range(4)], tmp_path))
    assert counts(topology.run([{"n": n + 100} for n in range(6)], tmp_path)) == [(2, 5), (2, 6)]


def test_a_source_by_position_that_ends_before_the_committed_one_is_an_error(tmp_path: Path) -> None:
    rows = [{**row, "id": 100 + i} for i, row in enumerate(MONDAY)]
    list(COUNTS.run(rows, tmp_path, position="id"))
    with pytest.raises(
        hs.errors.RestoreError, match="position: the source ended at 108, before 109, which is committed"
    ):
        list(COUNTS.run(rows[:9], tmp_path, position="id"))
    with pytest.raises(
        hs.errors.RestoreError, match="the row at 109 of the source is a, 5, the committed row is a, 9000"
    ):
        list(COUNTS.run([{"k": "a", "t": 5, "id": 109}], tmp_path, position="id"))
    for source in (rows, rows[5:], rows[9:], []):
        assert list(COUNTS.run(source, tmp_path, position="id")) == []
    new = [{**row, "id": 200 + i} for i, row in enumerate(TUESDAY)]
    assert len(list(COUNTS.run(new, tmp_path, position="id"))) == 5


# --- what is handed out again ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
def test_after_a_clean_end_nothing_is_handed_out_again_unless_asked(shards: int, tmp_path: Path) -> None:
    rows = [{"k": key, "t": i * 1000} for i, key in enumerate("abcdeabcdeabcde")]
    options: dict[str, Any] = {"shards": shards, "commit_rows": 4}
    first = [(row.commit, dict(row)) for row in COUNTS.run(rows, tmp_path, **options)]
    assert len(first) == 15
    for _ in range(2):
        assert list(COUNTS.run(rows, tmp_path, **options)) == []
    again = [(row.commit, dict(row)) for row in COUNTS.run(rows, tmp_path, **options, replay_last=True)]
    assert again == [result for result in first if result[0] >= 3]
    # the commits of a clean end count no more when a later run is stopped
    longer = [*rows, {"k": "a", "t": 20_000}]
    run = COUNTS.run(longer, tmp_path, **options)
    assert next(run).commit == 5
    run.close()
    assert [row.commit for row in COUNTS.run(longer, tmp_path, **options)] == [5]
    assert list(COUNTS.run(longer, tmp_path, **options)) == []


@pytest.mark.parametrize("taken", [1, 9, 10])
def test_a_consumer_that_stops_before_the_end_is_handed_the_last_commits_again(taken: int, tmp_path: Path) -> None:
    run = COUNTS.run(MONDAY, tmp_path, commit_rows=5)
    for _ in range(taken):  # it has all ten in the last case, but did not ask whether there are more
        next(run)
    run.close()
    again = counts(COUNTS.run(MONDAY, tmp_path, commit_rows=5))
    assert again == [(1 + n // 5, n + 1) for n in range(10)]
    assert list(COUNTS.run(MONDAY, tmp_path, commit_rows=5)) == []


def test_a_consumer_that_fails_at_the_last_result_is_handed_the_last_commits_again(tmp_path: Path) -> None:
    class Failed(Exception):
        pass

    with pytest.raises(Failed):  # noqa: PT012
        for row in COUNTS.run(MONDAY, tmp_path):
            if row["n"] == 10:
                raise Failed
    assert len(list(COUNTS.run(MONDAY, tmp_path))) == 10


def test_a_run_without_new_rows_commits_nothing(tmp_path: Path) -> None:
    list(COUNTS.run(MONDAY, tmp_path))
    with hs.open(tmp_path, at="newest") as state:
        version = state.version
    list(COUNTS.run(MONDAY, tmp_path))
    list(COUNTS.run(MONDAY, tmp_path, replay_last=True))
    with hs.open(tmp_path, at="newest") as state:
        assert state.version == version


class Killed(Exception):
    pass


@contextlib.contextmanager
def killed_at(commits: int) -> Iterator[None]:
    """Let the process die in place of a commit of some shard, after so many; nothing is closed then."""
    commit, counter = State.commit, [0]

    def instead(store: State) -> int:
        if counter[0] == commits:
            raise Killed
        counter[0] += 1
        return commit(store)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(State, "commit", instead)
        patch.setattr(State, "close", crash)
        with contextlib.suppress(Killed):
            yield


class Appender:
    """Appends results to a file, as one does; knows only that it has everything once a run has ended.

    A careful one writes a commit down as a whole, when the first result of the next arrives or the run ends, and passes
    over the commits that it has. It asks for the last ones again, for it may have died between the end of a run and its
    last writing.
    """

    def __init__(self, careful: bool) -> None:
        self.careful = careful
        self.written: dict[int, list[dict[str, Any]]] = {}
        self.dies_before_last = False

    def take(self, results: Any) -> None:
        at, pending = 0, []
        for row in results:
            if row.commit != at:
                self._write(at, pending)
                at, pending = row.commit, []
            pending.append(dict(row))
        if self.dies_before_last:
            raise Killed
        self._write(at, pending)

    def _write(self, commit: int, rows: list[dict[str, Any]]) -> None:
        if commit:
            assert self.careful or commit not in self.written
            self.written.setdefault(commit, rows)

    def rows(self) -> list[dict[str, Any]]:
        assert sorted(self.written) == list(self.written)
        return [row for rows in self.written.values() for row in rows]


STEPS = st.tuples(
    st.integers(0, 12),  # rows that the source has grown by
    st.sampled_from(["end", "kill", "die before the last writing"]),
    st.integers(0, 12),  # where it is killed
)


@given(
    steps=st.lists(STEPS, min_size=1, max_size=8),
    shards=st.sampled_from([1, 2, 3]),
    commit_rows=st.integers(1, 5),
    name=st.sampled_from(["tumbling", "session", "sliding"]),
)
def test_a_careful_consumer_has_each_result_once_wherever_anything_dies(
    steps: list[Any], shards: int, commit_rows: int, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    state = tmp_path_factory.mktemp("run") / "state"
    topology, rows = declared(WINDOWS[name]), some_rows(7, 120)
    rows = [{**row, "time": 3 * i} for i, row in enumerate(rows)]  # in order: where commits end makes no difference
    consumer, length = Appender(careful=True), 0
    for grown, how, place in [*steps, (0, "end", 0)]:
        length += grown
        run = topology.run(rows[:length], state, shards=shards, commit_rows=commit_rows, replay_last=True)
        consumer.dies_before_last = how.startswith("die")
        with killed_at(place) if how == "kill" else contextlib.suppress(Killed):
            consumer.take(run)
        run.close()
    keys = {row_key(row) for row in consumer.rows()}
    expected = [dict(row) for row in topology.run(rows[:length], shards=shards, commit_rows=10**6)]
    assert len(consumer.rows()) == len(expected)
    assert keys == {row_key(row) for row in expected}


def row_key(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


@given(steps=st.lists(st.integers(0, 12), min_size=1, max_size=6), shards=st.sampled_from([1, 3]))
def test_a_simple_consumer_has_each_result_once_over_clean_ends(
    steps: list[int], shards: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    state = tmp_path_factory.mktemp("run") / "state"
    topology, rows = declared(WINDOWS["tumbling"]), some_rows(11, 80)
    rows = [{**row, "time": 3 * i} for i, row in enumerate(rows)]
    consumer, length = Appender(careful=False), 0
    for grown in steps:
        length += grown
        consumer.take(topology.run(rows[:length], state, shards=shards, commit_rows=5))
    expected = [dict(row) for row in topology.run(rows[:length], shards=shards, commit_rows=10**6)]
    assert sorted(map(row_key, consumer.rows())) == sorted(map(row_key, expected))


@pytest.mark.parametrize("shards", [1, 3])
def test_killed_while_the_clean_end_is_committed(shards: int, tmp_path: Path) -> None:
    rows = [{"k": key, "t": i * 1000} for i, key in enumerate("abcde")]
    for survived in range(shards, 2 * shards + 1):
        state, results = tmp_path / str(survived), []
        with killed_at(survived):
            results += list(COUNTS.run(rows, state, shards=shards))
        again = list(COUNTS.run(rows, state, shards=shards))
        # one shard that knows of the end is enough
        assert len(again) == (5 if survived == shards else 0)
        assert list(COUNTS.run(rows, state, shards=shards)) == []


# --- late rows --------------------------------------------------------------------------------------------------------


def test_a_column_that_no_row_of_the_first_commit_has_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
    sums = minutes.aggregate(bytes=hs.Sum("bytez"), n=hs.Count("bytes"))
    rows: list[dict[str, Any]] = [{"user": "ann", "ts": 0}, {"user": "bob", "ts": 1, "bytes": 7}]
    list(sums.run([*rows, {"user": "ann", "ts": 2}], commit_rows=2))
    (record,) = caplog.records
    assert "column 'bytez' is in no row of the first commit" in record.getMessage()


def test_late_rows_are_told_in_the_log_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"k": "a", "t": t} for t in (0, 200_000, 1, 2, 200_001)]
    with caplog.at_level(logging.INFO, "hybridstore"):
        assert [row["n"] for row in COUNTS.run(rows, tmp_path / "state", commit_rows=2)] == [1, 1, 2]
        (record,) = caplog.records
        assert (record.name, record.levelname) == ("hybridstore", "WARNING")
        assert record.getMessage().startswith(f"{tmp_path / 'state'}: 2 late records dropped")
        caplog.clear()
        run = COUNTS.run(rows, commit_rows=2)
        assert next(run)["n"] == 1
        run.close()
        assert not caplog.records
        list(COUNTS.run(rows))
        assert not caplog.records  # one commit takes its rows by time: none is late
