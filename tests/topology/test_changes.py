"""Topologies that change: one test for each line of the table in docs/changing.md.

Each runs the old topology on the first rows and the new one on the rest, and compares with a run that had the new one
always, or with the rule of the line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

import hybridstore as hs
from hybridstore.topology.engine import Engine

Row = dict[str, Any]
Allow = str | Sequence[str] | None

# Two keys, times that rise with a late one now and then, values of two columns.
ROWS: Final[list[Row]] = [
    {"user": "ab"[i % 2], "ts": 10 * i + (-15 if i % 5 == 4 else 0), "x": i, "y": 100 - i} for i in range(1, 41)
]
CUT: Final = 20
TUMBLING = hs.TumblingWindows(100, grace=50)
HOPPING = hs.HoppingWindows(100, 50, grace=50)
SLIDING = hs.SlidingWindows(100)
KAFKA = hs.KafkaSlidingWindows(60, grace=50)
SESSION = hs.SessionWindows(25, grace=50)


def stream(windows: Any = TUMBLING, key: Any = "user", **more: Any) -> hs.Topology:
    return hs.stream(key=key, timestamp="ts").windowed_by(windows, **more)


def commits(rows: Sequence[Row], size: int = 5) -> Iterable[Sequence[Row]]:
    return (rows[at : at + size] for at in range(0, len(rows), size))


def go_on(topology: hs.Topology, state: Path, rows: Sequence[Row], allow: Allow = None, **options: Any) -> list[Row]:
    """Open the state, process the rows in commits of five, and return the results."""
    results: list[Row] = []
    with Engine(topology, state, allow=allow, **options) as engine:
        for part in commits(rows):
            results += engine.process_many(part)
            results += engine.commit()
    return results


def live(topology: hs.Topology, state: Path, allow: Allow = None) -> list[Row]:
    with Engine(topology, state, allow=allow) as engine:
        return engine.windows()


def changed(
    tmp_path: Path, old: hs.Topology, new: hs.Topology, allow: Allow = None, rows: Sequence[Row] = ROWS
) -> tuple[list[Row], list[Row]]:
    """Return the results of the rows behind the change: of the changed job, and of one that was always the new one."""
    go_on(old, tmp_path / "changed", rows[:CUT])
    results = go_on(new, tmp_path / "changed", rows[CUT:], allow)
    go_on(new, tmp_path / "always", rows[:CUT])
    always = go_on(new, tmp_path / "always", rows[CUT:])
    assert live(new, tmp_path / "changed", allow) == live(new, tmp_path / "always")
    return results, always


def refused(tmp_path: Path, old: hs.Topology, new: hs.Topology, match: str, allow: Allow = None) -> None:
    """The new one is refused, by a text that says what differs and what to do; the old one goes on as if nothing had
    been."""
    go_on(old, tmp_path / "changed", ROWS[:CUT])
    with pytest.raises(hs.ProgramMismatchError, match=match):
        Engine(new, tmp_path / "changed", allow=allow)
    go_on(old, tmp_path / "always", ROWS[:CUT])
    assert go_on(old, tmp_path / "changed", ROWS[CUT:]) == go_on(old, tmp_path / "always", ROWS[CUT:])


def counting(windows: Any = TUMBLING, **more: Any) -> hs.Topology:
    return stream(windows, **more).aggregate(n=hs.Count(), total=hs.Sum("x"))


# --- key, time, steps -------------------------------------------------------------------------------------------------


def test_consent_is_text(tmp_path: Path) -> None:
    for allow, kind in ((3, "int"), ([3], "int")):
        with pytest.raises(TypeError, match=f"allow: found {kind}, expected text"):
            Engine(counting(), tmp_path / "state", allow=allow)  # type: ignore[arg-type]


def test_a_column_of_the_key_may_be_renamed(tmp_path: Path) -> None:
    old, new = counting(), counting(key="account")
    rows = [{"account": row["user"], **row} for row in ROWS]
    with pytest.raises(hs.ProgramMismatchError, match=r"key: user in the state, account in .*'rename user to account"):
        changed(tmp_path / "without", old, new, rows=rows)
    results, always = changed(tmp_path, old, new, "rename user to account", rows)
    assert results == always


def test_a_column_of_an_aggregate_and_the_timestamp_may_be_renamed(tmp_path: Path) -> None:
    new = hs.stream(key="user", timestamp="at").windowed_by(TUMBLING).aggregate(n=hs.Count(), total=hs.Sum("bytes"))
    rows = [{"at": row["ts"], "bytes": row["x"], **row} for row in ROWS]
    words = ["rename ts to at", "rename x to bytes"]
    results, always = changed(tmp_path, counting(), new, words, rows)
    assert results == always


def test_another_key_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "more", counting(), counting(key=["user", "x"]), "key: .*begin in a new checkpoint location")
    two = counting(key=["user", "x"])
    refused(tmp_path / "order", two, counting(key=["x", "user"]), "key: the state has")


def test_other_steps_need_consent(tmp_path: Path) -> None:
    def odd(row: Row) -> bool:
        return bool(row["x"] % 2)

    new = hs.stream(key="user", timestamp="ts").filter(odd).windowed_by(TUMBLING).aggregate(n=hs.Count())
    old = stream().aggregate(n=hs.Count())
    refused(tmp_path / "without", old, new, "map and filter: none in the state.*allow='change steps'")
    go_on(old, tmp_path / "s", ROWS[:CUT])
    results = go_on(new, tmp_path / "s", ROWS[CUT:], "change steps")
    plain = [row for row in ROWS[:CUT]] + [row for row in ROWS[CUT:] if odd(row)]
    go_on(old, tmp_path / "plain", plain[:CUT])
    with Engine(old, tmp_path / "plain") as engine:
        expected = [result for part in commits(ROWS[CUT:]) for result in engine.process_many([*filter(odd, part)])]
    assert results == expected


# --- retention and grace ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("windows", [TUMBLING, SESSION, KAFKA], ids=lambda windows: type(windows).__name__)
def test_a_longer_retention_keeps_what_is_there(tmp_path: Path, windows: Any) -> None:
    old, new = counting(windows, retention=300), counting(windows, retention=1000)
    go_on(old, tmp_path / "s", ROWS[:CUT])
    before = live(old, tmp_path / "s")
    assert go_on(new, tmp_path / "s", ROWS[CUT:]) == [
        *go_on(new, tmp_path / "always", ROWS)[len(go_on(new, tmp_path / "first", ROWS[:CUT])) :]
    ]
    after = live(new, tmp_path / "s")
    # What had expired is gone; nothing that was there at the change, or came later, is.
    bounds = [(row["user"], row["window_start"]) for row in after]
    assert {(row["user"], row["window_start"]) for row in before} <= {*bounds} or windows is SESSION
    assert after == [row for row in live(new, tmp_path / "always") if (row["user"], row["window_start"]) in bounds]


def test_a_shorter_retention_lets_what_is_older_expire(tmp_path: Path) -> None:
    old, new = counting(retention=1000), counting(retention=200)
    results, always = changed(tmp_path, old, new)
    assert results == always


@pytest.mark.parametrize("emit", ["record", "commit", "close"])
@pytest.mark.parametrize(
    "windows", [hs.TumblingWindows, hs.SessionWindows, hs.KafkaSlidingWindows], ids=lambda w: w.__name__
)
@pytest.mark.parametrize(("before", "after"), [(50, 200), (200, 50), (0, 120), (120, 0)])
def test_grace_may_change_and_no_window_is_final_twice_or_never(
    tmp_path: Path, windows: Any, emit: Any, before: int, after: int
) -> None:
    def topology(grace: int) -> hs.Topology:
        return stream(windows(60, grace=grace)).aggregate(emit=emit, n=hs.Count(), total=hs.Sum("x"))

    old, new = topology(before), topology(after)
    # Rows that are up to 150 late: some come behind the longer grace, too.
    rows = [{**row, "ts": max(0, row["ts"] - (150 if row["x"] % 7 == 3 else 0))} for row in ROWS]
    first = go_on(old, tmp_path / "s", rows[:CUT])
    closed = CUT * 10 - before - {hs.TumblingWindows: 0, hs.SessionWindows: 61, hs.KafkaSlidingWindows: 1}[windows]
    second = go_on(new, tmp_path / "s", rows[CUT:])
    if emit != "close":
        # A window that had closed stays as it was.
        assert all(row["window_end"] > closed for row in second)
        return
    window = [(row["user"], row["window_start"], row["window_end"]) for row in first + second]
    assert len(window) == len({*window})
    last = max(row["ts"] for row in rows) - after - (60 if windows is hs.SessionWindows else 0)
    if windows is hs.TumblingWindows:
        ends = {(row["user"], row["ts"] // 60 * 60 + 60) for row in rows}
        assert {(user, end) for user, _, end in window} >= {
            (user, end) for user, end in ends if end <= last and end > 0
        }


def test_hopping_panes_follow_the_grace(tmp_path: Path) -> None:
    old = stream(HOPPING).aggregate(emit="close", n=hs.Count())
    new = stream(hs.HoppingWindows(100, 50, grace=0)).aggregate(emit="close", n=hs.Count())
    results = go_on(old, tmp_path / "s", ROWS[:CUT]) + go_on(new, tmp_path / "s", ROWS[CUT:])
    bounds = [(row["user"], row["window_start"]) for row in results]
    assert len(bounds) == len({*bounds}) == 2 * len(range(0, 400 - 100 + 1, 50))


# --- windows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (TUMBLING, hs.TumblingWindows(200, grace=50)),
        (HOPPING, hs.HoppingWindows(200, 50, grace=50)),
        (HOPPING, hs.HoppingWindows(100, 20, grace=50)),
        (SESSION, hs.SessionWindows(30, grace=50)),
        (KAFKA, hs.KafkaSlidingWindows(70, grace=50)),
        (TUMBLING, HOPPING),
        (SLIDING, KAFKA),
        (SESSION, TUMBLING),
    ],
    ids=str,
)
def test_other_windows_are_refused(tmp_path: Path, old: Any, new: Any) -> None:
    refused(tmp_path, counting(old), counting(new), "windows.*the state has .*declare it as a topology of its own")


def test_windows_in_place_of_process_are_refused(tmp_path: Path) -> None:
    refused(tmp_path, process(counted), counting(), "windows: the state has None")


def test_a_smaller_sliding_window_is_exact_at_once(tmp_path: Path) -> None:
    results, always = changed(tmp_path, counting(SLIDING), counting(hs.SlidingWindows(40)))
    assert results == always


def test_a_larger_sliding_window_is_whole_when_the_difference_has_passed(tmp_path: Path) -> None:
    results, always = changed(tmp_path, counting(hs.SlidingWindows(40)), counting(SLIDING))
    whole = [i for i, row in enumerate(always) if row["window_end"] >= CUT * 10 + 60]
    assert whole
    assert [results[i] for i in whole] == [always[i] for i in whole]


# --- aggregates -------------------------------------------------------------------------------------------------------


def test_an_aggregate_that_follows_from_stored_values_is_exact(tmp_path: Path) -> None:
    new = stream(SLIDING).aggregate(n=hs.Count(), total=hs.Sum("x"), mean=hs.Mean("x"))
    results, always = changed(tmp_path, counting(SLIDING), new)
    assert results == always


def test_an_aggregate_of_another_column_of_sliding_windows_begins_at_the_change(tmp_path: Path) -> None:
    new = stream(SLIDING).aggregate(n=hs.Count(), total=hs.Sum("x"), other=hs.Sum("y"))
    begins_at_the_change(tmp_path, counting(SLIDING), new, "other")


def begins_at_the_change(tmp_path: Path, old: hs.Topology, new: hs.Topology, name: str) -> None:
    """It is None in windows that had begun, and in all others what it would be in a job that always had it."""
    word = f"add aggregate {name} from now"
    refused(tmp_path / "without", old, new, f"aggregate {name}: new .*allow='{word}'")
    go_on(old, tmp_path / "changed", ROWS[:CUT])
    # One row joins what had begun, also sessions; more rows close windows that begin behind the change.
    more = [{**ROWS[CUT], "user": "a", "ts": 198}, *ROWS[CUT:], *({**row, "ts": row["ts"] + 400} for row in ROWS)]
    results = go_on(new, tmp_path / "changed", more, word)
    go_on(new, tmp_path / "always", ROWS[:CUT])
    always = go_on(new, tmp_path / "always", more)
    assert len(results) == len(always)
    unknown = 0
    now = max(row["ts"] for row in ROWS[:CUT])
    for row, wanted in zip(results, always, strict=True):
        if row["window_start"] <= now:
            unknown += row.pop(name) is None
            wanted.pop(name)
        assert row == wanted
    assert 0 < unknown < len(results)


@pytest.mark.parametrize("emit", ["record", "commit", "close"])
@pytest.mark.parametrize("windows", [TUMBLING, HOPPING, SESSION, KAFKA], ids=str)
@pytest.mark.parametrize("single", [False, True])
def test_an_aggregate_that_is_added_is_none_for_windows_that_had_begun(
    tmp_path: Path, windows: Any, emit: Any, single: bool
) -> None:
    if windows is SESSION:
        windows = hs.SessionWindows(5, grace=50)
    old: dict[str, Any] = {"n": hs.Count()} if single else {"n": hs.Count(), "total": hs.Sum("x")}
    before = stream(windows).aggregate(emit=emit, **old)
    after = stream(windows).aggregate(emit=emit, most=hs.Max("y"), **old)
    begins_at_the_change(tmp_path, before, after, "most")


@pytest.mark.parametrize("windows", [TUMBLING, HOPPING, SESSION, KAFKA, SLIDING], ids=str)
def test_an_aggregate_may_be_removed(tmp_path: Path, windows: Any) -> None:
    new = stream(windows).aggregate(n=hs.Count())
    refused(tmp_path / "without", counting(windows), new, "aggregate total: .*allow='drop aggregate total'")
    results, always = changed(tmp_path, counting(windows), new, "drop aggregate total")
    assert results == always


@pytest.mark.parametrize("windows", [TUMBLING, HOPPING, SESSION, KAFKA, SLIDING], ids=str)
def test_aggregates_may_change_places(tmp_path: Path, windows: Any) -> None:
    new = stream(windows).aggregate(total=hs.Sum("x"), n=hs.Count())
    results, always = changed(tmp_path, counting(windows), new)
    assert results == always


def test_other_parameters_of_an_aggregator_are_refused(tmp_path: Path) -> None:
    new = stream().aggregate(n=hs.Count(), total=hs.Max("x"))
    refused(tmp_path, counting(), new, "aggregate total: .*remove it, and add it under another name")
    other = stream().aggregate(n=hs.Count(), total=hs.Sum("y"))
    refused(tmp_path / "2", counting(), other, "if only its column has another name: allow='rename x to y'")


# --- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [("record", "commit"), ("commit", "record")])
def test_results_may_come_with_records_or_commits(tmp_path: Path, before: Any, after: Any) -> None:
    old = stream().aggregate(emit=before, n=hs.Count())
    new = stream().aggregate(emit=after, n=hs.Count())
    results, always = changed(tmp_path, old, new)
    assert results == always


@pytest.mark.parametrize(("before", "after"), [("record", "close"), ("close", "commit")])
def test_final_results_in_place_of_others_are_refused(tmp_path: Path, before: Any, after: Any) -> None:
    old, new = stream().aggregate(emit=before, n=hs.Count()), stream().aggregate(emit=after, n=hs.Count())
    refused(tmp_path, old, new, "emit: .*results that were handed out cannot be taken back")


def test_the_bounds_of_a_suppression_may_change(tmp_path: Path) -> None:
    old = counting().hold(200)
    new = counting().hold(40, max_records=3)
    results, always = changed(tmp_path, old, new)
    # Behind the first commit, which lets go what the old bounds still held, both are the same.
    assert results[-len(always) // 2 :] == always[-len(always) // 2 :]
    key = {(row["user"], row["window_start"]) for row in results}
    assert key >= {(row["user"], row["window_start"]) for row in always}


def test_final_results_that_are_held_back_follow_grace_and_aggregates(tmp_path: Path) -> None:
    old = counting().hold("close")
    new = stream(hs.TumblingWindows(100, grace=100)).aggregate(total=hs.Sum("x"), most=hs.Max("x"), n=hs.Count())
    new = new.hold("close")
    first = go_on(old, tmp_path / "s", ROWS[:CUT])
    second = go_on(new, tmp_path / "s", ROWS[CUT:], "add aggregate most from now")
    always = go_on(new, tmp_path / "always", ROWS)
    bounds = [(row["user"], row["window_start"]) for row in first + second]
    assert len(bounds) == len({*bounds})
    assert {*bounds} == {(row["user"], row["window_start"]) for row in always}
    for row in second:
        (wanted,) = [w for w in always if (w["user"], w["window_start"]) == (row["user"], row["window_start"])]
        assert (row["n"], row["total"]) == (wanted["n"], wanted["total"])
        assert row["most"] == (None if row["window_start"] <= CUT * 10 else wanted["most"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, {"until": 50}),
        ({"until": 50}, None),
        ({"until": 50}, {"until": "close"}),
        ({"until": 50}, {"until": 50, "timer": "first"}),
    ],
    ids=str,
)
def test_another_kind_of_suppression_is_refused(tmp_path: Path, before: Any, after: Any) -> None:
    old = counting() if before is None else counting().hold(**before)
    new = counting() if after is None else counting().hold(**after)
    refused(tmp_path, old, new, "hold: .*what is held back cannot follow")


# --- stores of `process` ----------------------------------------------------------------------------------------------


def counted(row: Row, stores: Any) -> list[Row]:
    n = (stores["seen"].get(row["user"]) or 0) + 1
    stores["seen"].put(row["user"], n)
    return [{"user": row["user"], "n": n}]


def process(function: Callable[..., Any], *stores: Any) -> hs.Topology:
    return hs.stream(key="user", timestamp="ts").process(function, stores=stores or [hs.key_value_store("seen")])


def test_a_store_may_be_added(tmp_path: Path) -> None:
    def more(row: Row, stores: Any) -> list[Row]:
        stores["last"].put(row["user"], row["ts"])
        return counted(row, stores)

    results, always = changed(
        tmp_path, process(counted), process(more, hs.key_value_store("seen"), hs.key_value_store("last"))
    )
    assert results == always


def test_a_store_is_dropped_with_consent(tmp_path: Path) -> None:
    old = process(counted, hs.key_value_store("seen"), hs.key_value_store("unused"))
    new = process(counted)
    refused(tmp_path / "without", old, new, "store unused: not in the program.*allow='drop store unused'")
    results, always = changed(tmp_path, old, new, "drop store unused")
    assert results == always
    with hs.open(tmp_path / "changed", at="newest") as state:
        assert [*state.stores] == ["seen"]


def test_a_store_is_renamed_with_consent(tmp_path: Path) -> None:
    def renamed(row: Row, stores: Any) -> list[Row]:
        return counted(row, {"seen": stores["counts"]})

    new = process(renamed, hs.key_value_store("counts"))
    refused(tmp_path / "without", process(counted), new, "store seen: .*allow='rename seen to counts'")
    results, always = changed(tmp_path, process(counted), new, "rename seen to counts")
    assert results == always


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (hs.key_value_store("s", ttl=100), hs.key_value_store("s", ttl=300)),
        (hs.key_value_store("s", ttl=300), hs.key_value_store("s", ttl=100)),
        (hs.window_store("s", retention=100), hs.window_store("s", retention=300)),
        (
            hs.window_store("s", retention=300, retain_duplicates=True),
            hs.window_store("s", retention=100, retain_duplicates=True),
        ),
        (hs.session_store("s", retention=300), hs.session_store("s", retention=100)),
        (hs.sliding_store("s", size=300, aggregator=hs.Sum()), hs.sliding_store("s", size=100, aggregator=hs.Sum())),
    ],
    ids=repr,
)
def test_how_long_a_store_keeps_may_change(tmp_path: Path, old: Any, new: Any) -> None:
    def keep(row: Row, stores: Any) -> list[Row]:
        store = stores["s"]
        if old.kind == "session":
            store.put(row["user"], row["x"], start=row["ts"], end=row["ts"])
        elif old.kind == "sliding":
            store.add(row["user"], row["x"], row["ts"])
        else:
            store.put(row["user"], row["x"], row["ts"])
        return []

    go_on(process(keep, old), tmp_path / "s", ROWS[:CUT])
    with hs.open(tmp_path / "s", at="newest") as state:
        before = [*state.stores["s"].all()]
    go_on(process(keep, new), tmp_path / "s", ROWS[CUT : CUT + 5])
    with hs.open(tmp_path / "s", at="newest") as state:
        after = [*state.stores["s"].all()]
    go_on(process(keep, new), tmp_path / "always", ROWS[: CUT + 5])
    with hs.open(tmp_path / "always", at="newest") as state:
        always = [*state.stores["s"].all()]
    shrinks = (old.parameters.get("size_ms") or old.parameters.get("retention_ms") or old.parameters["ttl_ms"]) == 300
    if shrinks:
        assert after == always
    else:
        assert (
            {str(row) for row in before} & {str(row) for row in always}
            <= {str(row) for row in after}
            <= {str(row) for row in always}
        )


def test_other_parameters_of_a_store_are_refused(tmp_path: Path) -> None:
    def nothing(row: Row, stores: Any) -> None:
        return None

    for old, new in [
        (hs.key_value_store("s"), hs.key_value_store("s", ttl=100)),
        (hs.window_store("s", retention=9), hs.window_store("s", retention=9, retain_duplicates=True)),
        (hs.key_value_store("s"), hs.session_store("s", retention=9)),
        (hs.sliding_store("s", size=9, aggregator=hs.Sum()), hs.sliding_store("s", size=9, aggregator=hs.Max())),
    ]:
        folder = tmp_path / f"{old.kind}{new.kind}"
        refused(folder, process(nothing, old), process(nothing, new), "store s.*use another name")


# --- consent, records, crashes ----------------------------------------------------------------------------------------


def test_a_consent_for_what_does_not_change_is_refused_and_one_that_was_used_is_not(tmp_path: Path) -> None:
    go_on(counting(), tmp_path / "s", ROWS[:CUT], "drop aggregate total")  # a new state has nothing to lose
    with pytest.raises(hs.ProgramMismatchError, match="found 'drop aggregate n', but the program does not change"):
        Engine(counting(), tmp_path / "s", allow="drop aggregate n")
    new = stream().aggregate(n=hs.Count())
    go_on(new, tmp_path / "s", ROWS[CUT:30], "drop aggregate total")
    go_on(new, tmp_path / "s", ROWS[30:], "drop aggregate total")
    with pytest.raises(TypeError, match="allow: found int"):
        Engine(new, tmp_path / "s", allow=[3])  # type: ignore[list-item]


def test_the_state_tells_which_program_wrote_which_version(tmp_path: Path) -> None:
    go_on(counting(), tmp_path / "s", ROWS[:CUT])
    new = stream().aggregate(n=hs.Count())
    go_on(new, tmp_path / "s", ROWS[CUT:], "drop aggregate total")
    with hs.open(tmp_path / "s", at="newest") as state:
        chain = state.settings["programs"]
    assert [(entry["number"], entry["from"]) for entry in chain] == [(1, 1), (2, 5)]
    assert chain[1]["changes"] == ["aggregate total: not in the program"]
    assert chain[1]["consents"] == ["drop aggregate total"]
    assert [entry["program"] for entry in chain] == [counting().describe(), new.describe()]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_crash_before_the_first_commit_leaves_the_state_to_the_old_program(tmp_path: Path, shards: int) -> None:
    new, word = (
        stream().aggregate(most=hs.Max("x"), n=hs.Count()),
        ["add aggregate most from now", "drop aggregate total"],
    )
    go_on(counting(), tmp_path / "s", ROWS[:CUT], shards=shards)
    engine = Engine(new, tmp_path / "s", shards=shards, allow=word)
    engine.process_many(ROWS[CUT:25])
    engine.close()  # nothing was committed
    assert go_on(counting(), tmp_path / "s", ROWS[CUT:25], shards=shards)
    assert go_on(new, tmp_path / "s", ROWS[25:], word, shards=shards)
    if shards > 1:
        # A crash between the commits of two shards: one is of the old program, the other of the new one.
        again = stream().aggregate(n=hs.Count())
        with Engine(again, tmp_path / "s", shards=shards, allow="drop aggregate most") as engine:
            engine.states[0].commit()
        with Engine(again, tmp_path / "s", shards=shards, allow="drop aggregate most") as engine:
            engine.commit()
        go_on(again, tmp_path / "s", ROWS[25:], shards=shards)


def test_several_changes_at_once_and_one_after_another(tmp_path: Path) -> None:
    first = counting(retention=300)
    second = stream(hs.TumblingWindows(100, grace=80), retention=600).aggregate(n=hs.Count(), mean=hs.Mean("x"))
    third = stream(hs.TumblingWindows(100, grace=20), retention=600).aggregate(mean=hs.Mean("x"), total=hs.Sum("x"))
    go_on(first, tmp_path / "s", ROWS[:10])
    go_on(second, tmp_path / "s", ROWS[10:20], ["drop aggregate total", "add aggregate mean from now"])
    results = go_on(third, tmp_path / "s", ROWS[20:], ["drop aggregate n", "add aggregate total from now"])
    always = go_on(third, tmp_path / "always", ROWS)[-len(results) :]
    for row, wanted in zip(results, always, strict=True):
        start = row["window_start"]
        assert row["mean"] == (wanted["mean"] if start > 100 else None)
        assert row["total"] == (wanted["total"] if start > 200 else None)


@pytest.mark.parametrize("emit", ["record", "commit", "close"])
@pytest.mark.parametrize("windows", [TUMBLING, HOPPING, SLIDING], ids=str)
def test_batches_by_column_change_as_rows_do(tmp_path: Path, windows: Any, emit: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    emit = "commit" if windows is SLIDING and emit == "close" else emit
    old = stream(windows).aggregate(emit=emit, n=hs.Count(), total=hs.Sum("x"))
    longer = (
        windows
        if windows is SLIDING
        else type(windows)(
            **{name: getattr(windows, name) for name in ("size", "advance") if hasattr(windows, name)}, grace=150
        )
    )
    new = stream(longer).aggregate(emit=emit, most=hs.Max("y"), n=hs.Count())
    words = ["drop aggregate total", "add aggregate most from now"]
    rows = [{**row, "ts": max(0, row["ts"] - (90 if row["x"] % 7 == 3 else 0))} for row in [*ROWS, *ROWS]]
    rows[len(ROWS) :] = [{**row, "ts": row["ts"] + 400} for row in rows[len(ROWS) :]]
    batches = pa.Table.from_pylist(rows).to_batches(max_chunksize=10)
    by_row = [
        *old.run(rows[:20], tmp_path / "r", commit_rows=10),
        *new.run(rows, tmp_path / "r", commit_rows=10, allow=words),
    ]
    by_column = [
        *old.run(batches[:2], tmp_path / "c", commit_rows=10),
        *new.run(batches, tmp_path / "c", commit_rows=10, allow=words),
    ]
    assert by_row == by_column
    assert any(row.get("most", 0) is None for row in by_row)
    assert any(row.get("most") is not None for row in by_row)
