"""Keys and values: what is restored equals what was put, with the same types; anything else is refused at the put."""

import copy
import enum
import math
import tempfile
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import hybridstore as hs
from tests.tools.hooks import crash, force_cold
from tests.tools.vector_runner import SMALL

Pair = namedtuple("Pair", "a b")


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


class OddZone(tzinfo):
    def utcoffset(self, dt: datetime | None) -> timedelta:
        return timedelta(0)

    def dst(self, dt: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, dt: datetime | None) -> str:
        return "odd"


ZONES = [
    UTC,
    timezone(timedelta(hours=-3, minutes=-30)),
    timezone(timedelta(seconds=1), "odd"),
    ZoneInfo("Europe/Berlin"),
]
any_text = st.text(st.characters(exclude_categories=()))  # lone surrogates too
atoms = st.one_of(
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    any_text,
    st.binary(),
    st.datetimes(timezones=st.none() | st.sampled_from(ZONES)),
    st.dates(),
    st.decimals(allow_nan=False),
)
hashable = st.recursive(
    atoms | st.none(), lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=6
)
stored = st.recursive(
    atoms | st.sets(hashable, max_size=3),
    lambda inner: st.one_of(
        st.lists(inner | st.none(), max_size=4),
        st.tuples(inner | st.none(), inner),
        st.dictionaries(hashable, inner | st.none(), max_size=3),
    ),
    max_leaves=12,
)
int64 = st.integers(-(2**63), 2**63 - 1)
KEY_KINDS: dict[str, st.SearchStrategy[Any]] = {
    "str": any_text,
    "bytes": st.binary(),
    "int": int64,
    "float": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "tuple": st.tuples(any_text, int64, st.binary()),
}


def form(value: Any) -> Any:
    """A value as nested text in which equal text means equal value and type: NaN included, sets in no order."""
    kind = type(value).__name__
    if isinstance(value, list | tuple):
        return (kind, *(form(item) for item in value))
    if isinstance(value, set | frozenset):
        return (kind, *sorted((form(item) for item in value), key=repr))
    if isinstance(value, dict):
        return (kind, *((form(key), form(item)) for key, item in value.items()))
    if isinstance(value, datetime):
        return (kind, repr(value), value.fold)
    return (kind, repr(value))


def open_state(folder: Path | str, **options: Any) -> Any:
    return hs.open(Path(folder) / "state", durability="os", _tuning=SMALL, **options)


class Restarts:
    """A state directory that is restored again and again, each time in another way; a context manager."""

    WAYS = ("changelog", "checkpoint", "cold")

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="hybridstore-")
        self.state = open_state(self.folder.name)

    def __enter__(self) -> "Restarts":
        return self

    def __exit__(self, *exc: object) -> None:
        self.state.close()
        self.folder.cleanup()

    def restart(self, way: str) -> Any:
        """Commit, lose the memory, and return the state as it was restored."""
        self.state.commit()
        if way == "cold":
            force_cold(self.state)
            return self.state
        if way == "checkpoint":
            self.state.checkpoint(wait=True)
        crash(self.state)
        self.state = open_state(self.folder.name)
        return self.state


@given(st.lists(stored, min_size=1, max_size=6))
@example([(1, [2, (3,)]), [1, (2, [3])], {(1, "a"): {2}}, frozenset({(1,)}), set(), (), [], {}, ""])
@example([2**64, -(2**63) - 1, 2**63, 10**40, -0.0, math.nan, -math.inf, True, 1, 1.0])
@example(["\ud800", "a\udfff", b"\xff", "\x00", datetime(1, 1, 1), datetime.max, datetime(2026, 10, 25, 2, 30, fold=1)])
@example([datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")), *(datetime.now(z) for z in ZONES)])
def test_values_come_back_as_they_were(values: list[Any]) -> None:
    expected = [form(value) for value in values]
    with Restarts() as restarts:
        state = restarts.state
        for number, value in enumerate(values):
            state.key_value("kv").put(number, value)
            state.window("w", retention=10).put("k", value, number)
        for way in restarts.WAYS:
            state = restarts.restart(way)
            assert [form(value) for _, value in state.key_value("kv").all()] == expected, way
            rows = list(state.window("w", retention=10).fetch("k", 0, 100))
            assert [form(value) for _, value in rows] == expected, way


@pytest.mark.parametrize("kind", KEY_KINDS)
@given(data=st.data())
def test_keys_come_back_in_order(kind: str, data: st.DataObject) -> None:
    keys = data.draw(st.lists(KEY_KINDS[kind], min_size=1, max_size=12))
    expected = {key: number for number, key in enumerate(keys)}
    with Restarts() as restarts:
        state = restarts.state
        for number, key in enumerate(keys):
            state.key_value("kv").put(key, number)
            state.window("w", retention=10).put(key, number, 5)
        for way in restarts.WAYS:
            state = restarts.restart(way)
            assert list(state.key_value("kv").all()) == sorted(expected.items()), way
            assert list(state.window("w", retention=10).all()) == [((key, 5), n) for key, n in sorted(expected.items())]
            for key, number in expected.items():
                assert state.key_value("kv").get(key) == number
                assert state.window("w", retention=10).get(key, 5) == number
                assert {form(key_out) for key_out in state.key_value("kv")} == {form(key) for key in expected}


@given(keys=st.sets(KEY_KINDS["str"], min_size=1, max_size=12), prefix=st.text("ab\udfff\U0010ffff", max_size=2))
@example(keys={"a", "ab", "a\U0010ffff", "a\U0010ffffb", "b"}, prefix="a\U0010ffff")
def test_a_scan_of_a_prefix_finds_what_starts_so(keys: set[str], prefix: str) -> None:
    keys = keys | {prefix + key for key in keys}
    with Restarts() as restarts:
        for key in keys:
            restarts.state.key_value("kv").put(key, 1)
        for way in restarts.WAYS:
            actual = [key for key, _ in restarts.restart(way).key_value("kv").scan(prefix=prefix)]
            assert actual == sorted(key for key in keys if key.startswith(prefix)), way


# What is refused. Each kind of store is asked with the same bad key or value, and must be as it was.

STORES: dict[str, tuple[dict[str, Any], Callable[[Any, Any, Any], Any], Callable[[Any], list[Any]]]] = {
    "key_value": ({}, lambda store, key, value: store.put(key, value), lambda store: list(store.all())),
    "window": ({"retention": 10}, lambda store, key, value: store.put(key, value, 50), lambda store: list(store.all())),
    "session": (
        {"retention": 10},
        lambda store, key, value: store.put(key, value, start=45, end=50),
        lambda store: list(store.all()),
    ),
    "suppression": (
        {"time_limit": 10},
        lambda store, key, value: store.put(key, value, 50),
        lambda store: list(store.buffered()),
    ),
}
# The same call at an earlier time, which only a store whose time has not been moved accepts
EARLY: dict[str, Callable[[Any], Any]] = {
    "key_value": lambda store: store.put("early", 1),
    "window": lambda store: store.put("early", 1, 5),
    "session": lambda store: store.put("early", 1, start=5, end=5),
    "suppression": lambda store: store.put("early", 1, 5),
}
BAD_VALUES = {
    "object": object(),
    "bytearray": bytearray(b"x"),
    "memoryview": memoryview(b"x"),
    "complex": 1j,
    "named tuple": Pair(1, 2),
    "enum": Colour.RED,
    "subclass of str": Text("x"),
    "ordered dict": OrderedDict(a=1),
    "time": datetime(2026, 1, 1).time(),
    "timedelta": timedelta(1),
    "unknown zone": datetime(2026, 1, 1, tzinfo=OddZone()),
    "inside a list": [1, [bytearray()]],
    "inside a tuple": (1, (2, object())),
    "as a key of a dict": {Colour.RED: 1},
    "as an item of a dict": {"a": {"b": range(3)}},
    "inside a set": {1, Text("x")},
}
BAD_KEYS: dict[str, Any] = {
    "None": None,
    "list": [1],
    "bytearray": bytearray(b"x"),
    "enum": Colour.RED,
    "subclass of str": Text("x"),
    "named tuple": Pair("a", "b"),
    "datetime": datetime(2026, 1, 1),
    "date": datetime(2026, 1, 1).date(),
    "decimal": Decimal(1),
    "None in a tuple": ("a", None),
    "list in a tuple": ("a", [1]),
    "frozenset": frozenset("a"),
}


def refused(kind: str, tmp_path: Path, errors: Any, key: Any, value: Any) -> str:
    """Ask for it, and return the message: the store is as before, nothing is logged, and its time did not move."""
    params, put, contents = STORES[kind]
    state = open_state(tmp_path)
    store = getattr(state, kind)("x", **params)
    EARLY[kind](store)
    state.commit()
    before, version = contents(store), state.version
    with pytest.raises(errors) as caught:
        put(store, key, value)
    store._check()
    assert state.commit() == version
    assert contents(store) == before
    EARLY[kind](store)
    assert contents(store) == before
    assert sum(store.dropped.values()) == 0
    state.close()
    return str(caught.value)


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("bad", BAD_VALUES)
def test_value_that_cannot_be_stored(bad: str, kind: str, tmp_path: Path) -> None:
    message = refused(kind, tmp_path, TypeError, "the key", BAD_VALUES[bad])
    assert "'the key'" in message


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("bad", BAD_KEYS)
def test_key_that_cannot_be_stored(bad: str, kind: str, tmp_path: Path) -> None:
    refused(kind, tmp_path, TypeError, BAD_KEYS[bad], 1)


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("key", [b"early", 1, 1.0, True, ("early",)], ids=repr)
def test_key_of_another_type_than_the_first(key: Any, kind: str, tmp_path: Path) -> None:
    refused(kind, tmp_path, TypeError, key, 1)


@pytest.mark.parametrize("key", [math.nan, ("a", math.nan), 2**63, -(2**63) - 1], ids=repr)
def test_number_that_is_no_key(key: Any, tmp_path: Path) -> None:
    with open_state(tmp_path) as state:
        store = state.key_value("x")
        with pytest.raises(ValueError):  # noqa: PT011 - whatever its words
            store.put(key, 1)
        assert list(store.all()) == []


def test_bool_is_not_an_int_key(tmp_path: Path) -> None:
    with open_state(tmp_path) as state:
        store = state.key_value("x")
        store.put(1, "one")
        with pytest.raises(TypeError):
            store.put(True, "true")
        assert list(store.all()) == [(1, "one")]


def test_zero_and_minus_zero_are_one_key(tmp_path: Path) -> None:
    with open_state(tmp_path) as state:
        store = state.key_value("x")
        store.put(0.0, "zero")
        force_cold(state)
        assert store.get(-0.0) == "zero"
        store.put(-0.0, "minus zero")
        force_cold(state)
        assert list(store.all()) == [(0.0, "minus zero")]


def test_value_that_contains_itself(tmp_path: Path) -> None:
    value: list[Any] = []
    value.append(value)
    refused("key_value", tmp_path, TypeError, "loop", value)


@pytest.mark.parametrize("ts", [1.0, True, "5", None], ids=repr)
def test_time_of_another_type(ts: Any, tmp_path: Path) -> None:
    with open_state(tmp_path) as state, pytest.raises(TypeError):
        state.window("w", retention=10).put("k", 1, ts)


@pytest.mark.parametrize("ts", [-1, 2**63])
def test_time_out_of_range(ts: int, tmp_path: Path) -> None:
    with open_state(tmp_path) as state, pytest.raises(ValueError):  # noqa: PT011 - whatever its words
        state.window("w", retention=10).put("k", 1, ts)


# debug=True


@pytest.mark.parametrize("kind", ["key_value", "window", "session"])
@pytest.mark.parametrize(("value", "mutate"), [
    ([1], lambda value: value.append(2)),
    ({"a": [1]}, lambda value: value["a"].append(2)),
    ({1}, lambda value: value.add(2)),
    (([1],), lambda value: value[0].clear()),
], ids=["list", "inside a dict", "set", "inside a tuple"])  # fmt: skip
def test_debug_names_the_key_of_a_value_mutated_in_place(
    value: Any, mutate: Callable[[Any], Any], kind: str, tmp_path: Path
) -> None:
    value = copy.deepcopy(value)  # the parameters are shared by all kinds
    params, put, _ = STORES[kind]
    state = open_state(tmp_path, debug=True)
    put(getattr(state, kind)("x", **params), "culprit", value)
    mutate(value)
    with pytest.raises(hs.errors.ValueChangedInPlaceError, match="'culprit'"):
        state.commit()
    crash(state)


def test_debug_looks_at_commits_without_changes_too(tmp_path: Path) -> None:
    value = [1]
    with open_state(tmp_path, debug=True) as state:
        store = state.key_value("x")
        store["culprit"] = value
        state.commit()
        value.append(2)
        with pytest.raises(hs.errors.ValueChangedInPlaceError, match="'culprit'"):
            state.commit()
        store["culprit"] = value
        assert state.commit() == 2


def test_debug_lets_untouched_values_pass(tmp_path: Path) -> None:
    with open_state(tmp_path, debug=True) as state:
        store = state.key_value("x")
        for number in range(10):
            store.put(number, [number, {"a": {number}}, math.nan])
        state.commit()
        store.put(3, [3])
        store.delete(4)
        state.commit()
        assert len(store) == 9


@pytest.mark.parametrize("replace", [
    lambda store: store.put("k", "another"),
    lambda store: store.put("k", [1]),
    lambda store: store.delete("k"),
], ids=["by an atom", "by a list", "by nothing"])  # fmt: skip
def test_debug_lets_a_value_that_was_replaced_be_mutated(replace: Callable[[Any], Any], tmp_path: Path) -> None:
    with open_state(tmp_path, debug=True) as state:
        store = state.key_value("x")
        value = [1]
        store.put("k", value)
        replace(store)
        value.append(2)
        state.commit()


def test_what_was_put_is_logged_not_what_became_of_it(tmp_path: Path) -> None:
    """Without debug nobody notices the mutation, but the changelog has the value of the put."""
    state = open_state(tmp_path)
    value = [1]
    state.key_value("x").put("k", value)
    value.append(2)
    state.commit()
    crash(state)
    with open_state(tmp_path) as state:
        assert state.key_value("x").get("k") == [1]


@pytest.mark.parametrize("checkpoint", [False, True], ids=["log", "checkpoint"])
def test_the_type_of_keys_survives_a_restart(tmp_path: Path, checkpoint: bool) -> None:
    with hs.open(tmp_path / "s") as s:
        s.key_value("k").put("a", 1)
        s.window("w", retention=1000).put("a", 1, 5)
        s.session("x", retention=1000).put("a", 1, start=1, end=5)
        s.commit()
        if checkpoint:
            s.checkpoint(wait=True)
    with hs.open(tmp_path / "s") as s:
        for put in (
            lambda: s.key_value("k").put(1, 1),
            lambda: s.window("w", retention=1000).put(1, 1, 6),
            lambda: s.session("x", retention=1000).put(1, 1, start=1, end=6),
        ):
            with pytest.raises(TypeError, match="found int, expected str as in"):
                put()


@pytest.mark.parametrize("store", ["keys", "rows", "sessions", "waiting"])
def test_a_long_key_is_named_by_its_beginning(store: str, tmp_path: Path) -> None:
    key = "k" * 100_000
    with hs.open(tmp_path / "state") as state:
        put: Callable[[Any], Any] = {
            "keys": lambda value: state.key_value("keys").put(key, value),
            "rows": lambda value: state.window("rows", retention=10).put(key, value, 5),
            "sessions": lambda value: state.session("sessions", retention=10).put(key, value, start=1, end=5),
            "waiting": lambda value: state.suppression("waiting", time_limit=10).put(key, value, 5),
        }[store]
        with pytest.raises(TypeError, match=r"key 'kkk.*\.\.\. \(100,002 characters\)") as refused:
            put(object())
        assert len(str(refused.value)) < 500
        put(1)


def test_stores_show_their_kind_and_name(tmp_path: Path) -> None:
    with hs.open(tmp_path / "state") as state:
        values = [
            state.key_value("a"),
            state.window("b", retention=10),
            state.session("c", retention=10),
            state.suppression("d", time_limit=10),
            state.sliding("e", size=10, aggregator=hs.Count()),
        ]
    shown = ["KeyValueStore 'a'", "WindowStore 'b'", "SessionStore 'c'", "SuppressionBuffer 'd'", "SlidingStore 'e'"]
    assert [*map(repr, values)] == [f"<{text}>" for text in shown]


def test_every_parameter_that_differs_is_named(tmp_path: Path) -> None:
    with hs.open(tmp_path / "state") as state:
        state.window("rows", retention="5 minutes")
        with pytest.raises(
            hs.ProgramMismatchError,
            match="the state has grace_ms 300000, retention_ms 300000, asked for grace_ms 360000, retention_ms 360000",
        ):
            state.window("rows", retention="6 minutes")
