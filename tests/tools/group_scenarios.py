"""Scenarios of applyInPandasWithState: what functions of groups may do, for Spark's operator and for ours.

One query runs all scenarios of a kind of time-out at once: the first grouping column is the scenario's name, and the
function calls the scenario of its key. A scenario answers with texts, which say what it saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

SCHEMA = (
    "s string, k string, i int, v long, x double, b boolean, t timestamp, d date, m decimal(10,2), l array<int>, "
    "r struct<a:int,b:string>, p map<string,int>"
)
KEY = ("s", "k", "i")
OUTPUT = "s string, k string, n long, a string"
# no array and no map: Spark 4.3 has their schema in small letters, and its workers do not read that
STATE = "n long, word string, x double, at timestamp, more struct<m:decimal(10,2),d:date,r:struct<a:int,b:string>>"
NO, PROCESSING, EVENT = "NoTimeout", "ProcessingTimeTimeout", "EventTimeTimeout"
Scenario = Callable[[Any, Any, Any], Iterator[Any]]
SCENARIOS: dict[str, dict[str, Scenario]] = {NO: {}, PROCESSING: {}, EVENT: {}}


def scenario(*kinds: str) -> Callable[[Scenario], Scenario]:
    """Add a function to the scenarios of kinds of time-outs (all, if none is named)."""

    def add(function: Scenario) -> Scenario:
        for kind in kinds or SCENARIOS:
            SCENARIOS[kind][function.__name__] = function
        return function

    return add


def run(kind: str) -> Callable[[Any, Any, Any], Iterator[Any]]:
    """Return the function for a query with a kind of time-outs."""

    def call(key: Any, frames: Any, state: Any) -> Iterator[Any]:
        import pandas as pd

        for n, answer in enumerate(SCENARIOS[kind][key[0]](key, frames, state)):
            if isinstance(answer, pd.DataFrame):
                yield answer
            else:
                yield pd.DataFrame({"s": [key[0]], "k": [key[1]], "n": [n], "a": [str(answer)]})

    return call


def caught(call: Callable[[], Any]) -> str:
    """Return the error of a call as text: its type, and Spark's class of it."""
    try:
        return f"no error: {call()}"
    except Exception as error:
        condition = getattr(error, "getCondition", getattr(error, "getErrorClass", lambda: None))()
        return f"{type(error).__name__} {condition}"


def rows(frames: Any) -> int:
    return sum(len(frame) for frame in frames)


def number(state: Any) -> int:
    """The number in a state, 0 if there is none."""
    return (state.getOption or (0,))[0] or 0


def put(state: Any, n: int, word: str | None = None) -> None:
    state.update((n, word, None, None, None))


def frames_of_every_index(key: Any) -> Iterator[Any]:
    """Frames whose index has other values than the numbers of its rows."""
    import pandas as pd

    times = pd.date_range("2026-01-01", periods=2)
    pairs = pd.MultiIndex.from_tuples([(1, "x"), (1, "x")], names=["n", None])
    for n, index in enumerate(
        [["x", "y"], [7, 7], times, pairs, pd.Index([None, "n"], name="k"), pd.RangeIndex(9, 5, -2)]
    ):
        yield pd.DataFrame({"s": key[0], "k": key[1], "n": n, "a": ["p", "q"]}, index=index)


# --- values, whatever the time-outs ---------------------------------------------------------------------------------


@scenario()
def count(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    put(state, number(state) + rows(frames))
    yield state.get
    yield (state.exists, state.hasTimedOut, str(state))


@scenario(NO)
def unchanged(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    yield (state.exists, state.getOption, rows(frames))


@scenario(NO)
def removed_each_other_time(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    yield state.getOption
    if state.exists:
        state.remove()
    else:
        put(state, rows(frames))
    yield (state.exists, state.getOption, str(state))


@scenario(NO)
def removed_and_updated(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    before = number(state)
    state.remove()
    put(state, before + 1)
    yield state.get


@scenario(NO)
def updated_and_removed(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    yield state.exists
    put(state, 5)
    state.remove()


@scenario(NO)
def absent(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    yield caught(lambda: state.get)
    yield caught(lambda: state.update(None))
    yield (state.getOption, state.exists)


@scenario(NO)
def no_timeouts(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    yield caught(lambda: state.setTimeoutDuration(1000))
    yield caught(lambda: state.setTimeoutTimestamp(1000))
    yield (state.oldTimeoutTimestamp, state.getCurrentProcessingTimeMs() > 1_600_000_000_000)


@scenario(NO)
def watermark(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    yield state.getCurrentWatermarkMs()


@scenario(NO)
def null_state(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    yield (state.exists, state.getOption)
    state.update((None, None, None, None, None))


@scenario(NO)
def numbers_of_numpy(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    import numpy as np
    import pandas as pd

    yield [(type(part).__name__, part) for part in state.getOption or ()]
    state.update((np.int64(7), np.str_("word"), np.float64(1.5), pd.Timestamp("2026-01-01 12:00:00.25"), None))
    yield [type(part).__name__ for part in state.get]


@scenario(NO)
def moments(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    yield (state.getOption or (None,) * 4)[3]
    for frame in frames:
        state.update((1, None, None, max((at for at in frame["t"] if at == at), default=None), None))


@scenario(NO)
def aware_moment(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    yield (state.getOption or (None,) * 4)[3]
    state.update((1, None, None, datetime(2026, 3, 1, 12, tzinfo=UTC), None))


@scenario(NO)
def unread(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    put(state, number(state) + 1)
    yield state.get[0]


@scenario(NO)
def the_generator(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    yield (iter(frames) is frames, len(next(frames)) > 0, next(frames, "end") is not None)


@scenario(NO)
def silent(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    put(state, 1)
    return iter(())


@scenario(NO)
def a_list(key: Any, frames: Any, state: Any) -> Any:
    return ["first", "second"]


@scenario(NO)
def frame_without_columns(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    import pandas as pd

    yield pd.DataFrame()
    yield pd.DataFrame({"s": [], "k": [], "n": [], "a": []})
    yield "behind"


@scenario(NO)
def other_order_of_columns(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    import pandas as pd

    yield pd.DataFrame({"a": ["x", "y"], "n": [1, 2], "s": [key[0]] * 2, "k": [key[1]] * 2})


@scenario(NO)
def numbers_with_nulls(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    import pandas as pd

    yield pd.DataFrame({"s": [key[0]] * 3, "k": [key[1]] * 3, "n": [1.0, None, 3.0], "a": ["x", None, "z"]})


@scenario(NO)
def categories(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    import pandas as pd

    a = pd.Series(["p", "q", "p"], dtype="category")
    yield pd.DataFrame({"s": [key[0]] * 3, "k": [key[1]] * 3, "n": pd.array([1, None, 2], "Int64"), "a": a})


@scenario(NO)
def types_of_columns(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    import pandas as pd

    frame = pd.concat(list(frames), ignore_index=True)
    yield {name: str(kind) for name, kind in frame.dtypes.items()}
    yield list(frame.columns)
    yield [type(part).__name__ for part in key]


@scenario(NO)
def types_of_values(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    for frame in frames:
        for _, row in frame.iterrows():
            yield [(name, type(part).__name__, str(part)) for name, part in row.items()]


@scenario(NO)
def order_of_rows(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    yield [value for frame in frames for value in frame["v"].tolist()]


@scenario(NO)
def index_of_frames(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    import pandas as pd

    yield [value for frame in frames for value in pd.concat([frame]).index.tolist()]


@scenario(NO)
def changed_frame(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    for frame in frames:
        frame["v"] = frame["v"] * 2
        frame["new"] = 1
        frame.loc[0, "x"] = -1.0
        yield (frame["v"].tolist(), frame["x"].tolist(), list(frame.columns)[-1])


@scenario(NO)
def other_types_into_state(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    yield state.getOption
    state.update((True, "text", 2.5, None, None))
    yield state.get


@scenario(NO)
def nested_state(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    old = (state.getOption or (None,))[-1]
    yield (old, type(old).__name__, old is not None and [(type(part).__name__, part) for part in old])
    state.update((1, None, None, None, (Decimal("1.50"), date(2026, 2, 3), (1, "x"))))
    yield state.get[-1]


@scenario(NO)
def nested_state_by_name(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    from pyspark.sql import Row

    yield (state.getOption or (None,))[-1]
    inner = Row(a=2, b="y")
    state.update((1, None, None, None, Row(m=Decimal("2"), d=None, r=inner if key[1] == "a" else None)))


@scenario(NO)
def nested_state_of_a_dict(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    yield (state.getOption or (None,))[-1]
    state.update((1, None, None, None, {"m": None, "d": None, "r": {"b": "w"}}))


@scenario(NO)
def updated_twice(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    put(state, 1, "first")
    put(state, number(state) + 1, "second")
    yield (state.get, state.exists, state.getOption)


@scenario(NO)
def a_list_as_state(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    state.update([rows(frames), "list", 0.5, None, None])
    yield state.get


@scenario(NO)
def a_row_as_state(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    from pyspark.sql import Row

    state.update(Row(word="row", n=3, x=None, at=None, more=None))
    yield (state.get, type(state.get).__name__)


@scenario(NO)
def several_frames(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    import pandas as pd

    for length in (3, 0, 1, 2):
        yield pd.DataFrame({"s": key[0], "k": key[1], "n": range(length), "a": [f"{length}"] * length}, dtype=object)


@scenario(NO)
def kinds_of_index(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    yield from frames_of_every_index(key)


@scenario(NO)
def frames_of_the_input(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    for frame in frames:
        frame["a"] = frame["d"].map(str)
        frame["n"] = frame.index
        yield frame[["a", "n", "s", "k"]]


@scenario(NO)
def frames_in_a_tuple(key: Any, frames: Any, state: Any) -> Any:
    put(state, number(state) + 1)
    return tuple(str(n) for n in range(state.get[0]))


@scenario(NO)
def frames_asked_for_twice(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    yield (rows(frames) > 0, rows(frames))


@scenario(NO)
def only_nulls(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    import pandas as pd

    yield pd.DataFrame({"s": [key[0]], "k": [key[1]], "n": [None], "a": [None]})
    yield pd.DataFrame({"s": [key[0]], "k": [key[1]], "n": [float("nan")], "a": [None]})


@scenario(NO)
def numbers_at_their_ends(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    import pandas as pd

    ends = [2**63 - 1, -(2**63)]
    # Spark joins the frames of all groups, so that whole numbers are floats beside those of another group
    yield pd.DataFrame({"s": key[0], "k": key[1], "n": [2**53, -(2**53)], "a": ["é🙂", "\0"]})
    put(state, ends[number(state) > 0], "é🙂")
    yield state.get


@scenario(NO)
def smaller_types(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    import numpy as np
    import pandas as pd

    for kind in (np.int8, np.uint16, np.int32, np.float32):
        yield pd.DataFrame({"s": [key[0]], "k": [key[1]], "n": np.array([1], kind), "a": np.array(["x"], object)})


# --- time-outs of event time ----------------------------------------------------------------------------------------


@scenario(EVENT)
def idle(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    """The usual one: a time-out behind the newest row, and an answer when it comes."""
    if state.hasTimedOut:
        yield ("idle", state.get, state.oldTimeoutTimestamp)
        state.remove()
        return
    times = [at for frame in frames for at in frame["t"] if at == at]
    put(state, number(state) + len(times))
    if times:
        newest = int(max(times).tz_localize("UTC").timestamp() * 1000)
        state.setTimeoutTimestamp(max(newest + 3000, state.getCurrentWatermarkMs() + 1))
    yield (state.get, state.getCurrentWatermarkMs())


@scenario(EVENT)
def never_answered(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    """Timed out, neither updated nor removed: it comes again in every batch."""
    if state.hasTimedOut:
        yield "again"
    elif not state.exists:
        put(state, 1)
        state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 4000)


@scenario(EVENT)
def forgotten(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    """A call with rows that changes nothing leaves the old time-out."""
    if state.hasTimedOut:
        yield ("timed out", state.getOption)
        state.remove()
    elif not state.exists:
        put(state, 1)
        state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 20_000)
    else:
        yield "nothing done"


@scenario(EVENT)
def reset_by_an_update(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    """An update without a time-out removes the old one."""
    if state.hasTimedOut:
        yield "timed out"
    if not state.exists:
        state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 20_000)
    put(state, number(state) + 1)
    yield state.get[0]


@scenario(EVENT)
def without_a_state(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    if state.hasTimedOut:
        yield ("timed out", state.exists, state.getOption)
        if key[1] == "a":
            state.remove()
        return
    state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 2000)


@scenario(EVENT)
def removed_with_a_timeout(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    if state.hasTimedOut:
        yield ("timed out", state.exists)
        state.remove()
        return
    put(state, 1)
    state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 2000)
    state.remove()
    yield state.exists


@scenario(EVENT)
def set_again_when_it_comes(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    if state.hasTimedOut:
        put(state, number(state) + 1)
        state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 1000)
        yield ("timed out", state.get[0])
    elif not state.exists:
        put(state, 0)
        state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 1000)


@scenario(EVENT)
def due_at_once(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    """The least time-out is the watermark itself, which is not passed yet."""
    if state.hasTimedOut:
        yield ("timed out", state.get[0], state.getCurrentWatermarkMs())
        state.remove()
        return
    put(state, rows(frames))
    mark = state.getCurrentWatermarkMs()
    yield (caught(lambda: state.setTimeoutTimestamp(mark - 1)), mark)
    if mark:
        state.setTimeoutTimestamp(mark)


@scenario(EVENT)
def a_datetime(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    if state.hasTimedOut:
        yield ("timed out", state.get)
        state.remove()
        return
    put(state, 1)
    yield caught(lambda: state.setTimeoutTimestamp(datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)))
    yield caught(lambda: state.setTimeoutDuration(5))


@scenario(EVENT)
def timed_out_frames(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    if state.hasTimedOut:
        given = list(frames)
        yield (len(given), len(given[0]), list(given[0].columns), [str(kind) for kind in given[0].dtypes])
        yield (type(frames).__name__, [type(part).__name__ for part in key])
        state.remove()
        return
    put(state, 1)
    state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 1000)


@scenario(EVENT)
def times_that_arrive(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    """Which rows are late; rows without a time are not."""
    yield [str(at) for frame in frames for at in frame["t"]]


@scenario(EVENT)
def set_twice(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    """The last time-out counts."""
    if state.hasTimedOut:
        yield ("timed out", state.oldTimeoutTimestamp)
        state.remove()
        return
    put(state, 1)
    mark = state.getCurrentWatermarkMs()
    state.setTimeoutTimestamp(mark + 1)
    state.setTimeoutTimestamp(mark + 10_000)
    yield (state.oldTimeoutTimestamp, mark)


@scenario(EVENT)
def set_behind_a_removal(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    if state.hasTimedOut:
        yield ("timed out", state.exists, state.getOption)
        state.remove()
        return
    yield state.exists
    put(state, 1)
    state.remove()
    yield caught(lambda: state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 2000))


@scenario(EVENT)
def updated_when_it_comes(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    """An update without a new time-out: it does not come again."""
    yield (state.hasTimedOut, state.exists, state.oldTimeoutTimestamp)
    put(state, number(state) + 1)
    if not state.hasTimedOut:
        state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 3000)


@scenario(EVENT)
def bad_timeouts(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    put(state, 1)
    for given in (-1, 0, 1.5, "2026", None):
        yield caught(lambda given=given: state.setTimeoutTimestamp(given))
    yield caught(lambda: state.setTimeoutDuration(-1))


@scenario(EVENT)
def several_frames_when_it_comes(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    if state.hasTimedOut:
        state.remove()
        yield from frames_of_every_index(key)
        return
    put(state, 1)
    state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 1500)


# --- time-outs of processing time -------------------------------------------------------------------------------------


@scenario(PROCESSING)
def next_batch(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    if state.hasTimedOut:
        yield ("timed out", state.get[0])
        state.remove()
        return
    put(state, number(state) + rows(frames))
    state.setTimeoutDuration(1)
    yield caught(lambda: state.setTimeoutTimestamp(10**15))
    yield caught(lambda: state.setTimeoutDuration(0))
    yield caught(lambda: state.setTimeoutDuration("1 second"))


@scenario(PROCESSING)
def much_later(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    yield (state.hasTimedOut, number(state))
    put(state, number(state) + 1)
    state.setTimeoutDuration(3_600_000)


@scenario(PROCESSING)
def bad_durations(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    put(state, 1)
    for given in (-1, 1.5, None, "10 seconds", "soon"):
        yield caught(lambda given=given: state.setTimeoutDuration(given))
    state.setTimeoutDuration(3_600_000)


@scenario(PROCESSING)
def soon_without_a_state(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    yield (state.hasTimedOut, state.exists, state.oldTimeoutTimestamp > 0)
    if state.hasTimedOut:
        state.remove()
    else:
        state.setTimeoutDuration(1)
