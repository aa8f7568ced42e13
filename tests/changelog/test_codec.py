"""Values and keys come back as they were, with their types; anything else is a clear error."""

import math
import subprocess
import sys
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Context, Decimal, localcontext
from enum import IntEnum
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.codec import EXT_FROZENSET, EXT_SET, EXT_TUPLE, MAX_DEPTH, check_value, pack, pack_each, packer, unpack


def same(a: Any, b: Any) -> bool:
    """Equal with equal types, all the way down; nan is itself, 0.0 is not -0.0."""
    if type(a) is not type(b):
        return False
    if type(a) is float:
        return (
            math.isnan(a) and math.isnan(b) if math.isnan(a) else a == b and math.copysign(1, a) == math.copysign(1, b)
        )
    if type(a) in (list, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if type(a) is dict:
        return same(list(a.items()), list(b.items()))
    if type(a) is Decimal:
        return a.as_tuple() == b.as_tuple()
    if type(a) is datetime:
        return a == b and a.fold == b.fold and str(a.tzinfo) == str(b.tzinfo)
    return bool(a == b)


ZONES = [
    None,
    UTC,
    timezone(timedelta(hours=-3, minutes=-30)),
    timezone(timedelta(hours=1), "CET"),
    ZoneInfo("Europe/Berlin"),
]
VALUES: list[Any] = [
    None, True, False, 0, -1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**400, -(10**400), 1.5, -0.0,
    float("inf"), float("nan"), "", "a\0b", "\ud800", "\U0001f600", b"",
    b"\xff" * 300, [], [1, [2, (3,)]], (), (1, "x", (b"y",)),
    {}, {"a": 1},
    {1: "int", "1": "str", b"1": "bytes", (1,): "tuple", None: "none", 1.5: "float"}, set(), {1, "a", (2,)},
    date.min, date.max, date(1970, 1, 1), {date(1969, 12, 31): 1}, Decimal("1.10"), Decimal("-0.00"),
    Decimal("1E+400"), Decimal("NaN"),
    Decimal("sNaN12"), Decimal("-Infinity"), Decimal(10**60) / 3, {Decimal(1): [date(2026, 1, 1)]},
    frozenset(), frozenset({frozenset({1})}), [{"deep": [({1: {2}},)]}],
]  # fmt: skip


# the order of a set's repr differs between processes, and the names of tests must not
@pytest.mark.parametrize("value", VALUES, ids=lambda value: "set" if isinstance(value, set) and value else repr(value))
def test_a_value_comes_back_with_its_types(value: Any) -> None:
    check_value(value)
    assert same(unpack(pack(value)), value)


@pytest.mark.parametrize("zone", ZONES, ids=str)
@pytest.mark.parametrize("fold", [0, 1])
def test_a_datetime_keeps_its_zone_and_fold(zone: Any, fold: int) -> None:
    for moment in (datetime.min, datetime.max, datetime(2026, 10, 25, 2, 30, 0, 123456)):
        value = moment.replace(tzinfo=zone, fold=fold)
        assert same(unpack(pack(value)), value)


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates()
plain |= st.decimals(allow_nan=False)
hashable = st.recursive(plain, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5)
nested = st.recursive(
    plain | st.datetimes(timezones=st.sampled_from(ZONES)),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(hashable, inner) | st.sets(hashable, max_size=3),
    max_leaves=20,
)


@given(nested)
def test_any_value_comes_back_with_its_types(value: Any) -> None:
    check_value(value)
    packed = packer()(value)
    assert packed == pack(value)
    assert pack(unpack(packed)) == packed


@given(st.lists(nested, max_size=4) | st.lists(st.tuples(nested, nested), max_size=4))
def test_many_values_are_packed_as_each_of_them(many: list[Any]) -> None:
    assert pack_each(many, packer()) == list(map(pack, many))


def test_many_tuples_of_any_size_are_packed_as_each_of_them() -> None:
    for size in range(300):
        # a text has a header of one, two or three bytes
        many = [("x" * size,), ("x",), ()]
        assert pack_each(many, packer()) == list(map(pack, many))
    assert pack_each([(1, ("a", 2)), (1.5, None)], packer()) == [pack((1, ("a", 2))), pack((1.5, None))]


def test_equal_sets_are_equal_bytes() -> None:
    assert pack({"a", "b", "c"}) == pack({"c", "b", "a"})


class Colour(IntEnum):
    RED = 1


class Text(str):
    pass


class Money(Decimal):
    pass


def test_a_value_that_is_refused_leaves_nothing_in_the_values_behind_it() -> None:
    nested = (1, ("a", [2, ({3: (4,)}, frozenset({(5, "b")}))]), b"c" * 5000)
    data = pack(nested)
    for refused in (object(), ("before", object()), [1, ("deep", ("deeper", object()))], {(1, object())}):
        with pytest.raises(TypeError, match="found object"):
            pack(refused)
        assert pack(nested) == data
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(pack, [nested] * 400)) == {data}


def test_the_class_of_a_value_that_is_refused_has_its_module_and_the_way_to_convert_it() -> None:
    numpy = pytest.importorskip("numpy")
    way = r"expected None, bool.*\(convert it: a value of numpy by \.item\(\)"
    for refused in (numpy.bool_(True), numpy.int64(1), Money(1)):
        kind = type(refused)
        with pytest.raises(TypeError, match=f"found {kind.__module__}.{kind.__qualname__}, {way}"):
            check_value(refused)


@pytest.mark.parametrize("capitals", [0, 1])
def test_the_bytes_of_a_decimal_do_not_depend_on_the_context(capitals: int) -> None:
    with localcontext(Context(prec=3, capitals=capitals)):
        data = pack(Decimal("1.23456E+20"))
        assert data == b"\xc7\x0b\x061.23456E+20"
        assert unpack(data) == Decimal("1.23456E+20")


@pytest.mark.parametrize(
    "value",
    [bytearray(b"x"), memoryview(b"x"), Money(1), timedelta(1), time(1), object(), Colour.RED, Text("x"),
     OrderedDict(), 1j, range(3)],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_would_come_back_as_something_else_is_refused(value: Any) -> None:
    for nested_value in (value, [value], {"k": value}, (value,)):
        with pytest.raises(TypeError, match=type(value).__name__):
            check_value(nested_value)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(TypeError, match=f"deeper than {MAX_DEPTH}"):
        check_value(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x92\x01",
        b"\x01\x01",
        msgpack.packb(msgpack.ExtType(9, b"")),
        msgpack.packb(msgpack.ExtType(1, b"\x01")),
        msgpack.packb(msgpack.ExtType(4, pack([2**62, 0]))),
        msgpack.packb(msgpack.ExtType(4, pack([0, 0, "No/Such"]))),
        msgpack.packb(msgpack.ExtType(6, b"1_000")),
        msgpack.packb(msgpack.ExtType(6, b"1e3")),
        msgpack.packb(msgpack.ExtType(6, b"one")),
        msgpack.packb(msgpack.ExtType(6, b"1E+99999999999999999999")),
        msgpack.packb(msgpack.ExtType(6, "٣".encode())),
        msgpack.packb(msgpack.ExtType(7, pack(10**7))),
        msgpack.packb(msgpack.ExtType(7, pack("today"))),
        b"\x81\x90\x01",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
    ],
    ids=lambda data: data[:12].hex() or "empty",
)
def test_foreign_bytes_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (its text is msgpack's)
        unpack(data)


@given(st.binary(max_size=64))
def test_arbitrary_bytes_unpack_or_are_a_value_error(data: bytes) -> None:
    with suppress(ValueError):
        unpack(data)


def nested(kind: str, levels: int) -> object:
    """A value of so many containers in one another, with a time in the innermost."""
    value: object = datetime(2020, 1, 1)
    for _ in range(levels):
        if kind == "frozenset":
            value = frozenset([value])
        else:
            value = {"tuple": (value,), "list": [value], "dict": {"a": (value,)}}[kind]
    return value


SMALL_STACK = """
import sys, threading
from changelog.codec import pack, unpack
data = bytes.fromhex(sys.stdin.read())
def read():
    value = unpack(data)
    assert pack(value) == data
    print("read")
# from 3.14 on the interpreter keeps some of it for itself
threading.stack_size((160 if sys.version_info >= (3, 14) else 128) * 1024)
thread = threading.Thread(target=read)
thread.start()
thread.join()
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tuple", "list", "frozenset", "dict"])
def test_what_is_accepted_is_read_in_a_thread_with_the_smallest_stack_that_systems_give(kind: str) -> None:
    value = nested(kind, MAX_DEPTH // 2 if kind == "dict" else MAX_DEPTH)
    check_value(value)
    with pytest.raises(TypeError, match="nested deeper"):
        check_value((value,) if kind != "dict" else {"a": (value,)})
    run = subprocess.run(
        [sys.executable, "-c", SMALL_STACK],
        input=pack(value).hex(),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "read\n"), run.stderr


@pytest.mark.parametrize("code", [EXT_TUPLE, EXT_SET, EXT_FROZENSET])
@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 200, 5000])
def test_made_up_nesting_is_refused_before_it_takes_the_stack(code: int, levels: int) -> None:
    payload = b"\x90"
    for _ in range(levels):
        payload = b"\x91\xc9" + len(payload).to_bytes(4, "big") + bytes([code]) + payload
    bomb = b"\xc9" + len(payload).to_bytes(4, "big") + bytes([code]) + payload
    with pytest.raises(ValueError, match="nested deeper"):
        unpack(bomb)
    # and what comes next is read as ever
    assert unpack(pack([((1, (2,)),), "a"])) == [((1, (2,)),), "a"]


def test_an_extension_with_more_than_one_value_is_refused() -> None:
    for payload, message in (
        (b"\x91\x01\x02", "more than one value"),
        (b"\x92\x01", "packed value"),
        (b"", "packed value"),
    ):
        with pytest.raises(ValueError, match=message):
            unpack(b"\xc7" + bytes([len(payload), EXT_TUPLE]) + payload)
    assert unpack(pack((1, 2))) == (1, 2)
