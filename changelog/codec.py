"""Values and keys to bytes and back: msgpack, with extension types so that every value keeps its type.

msgpack carries None, bool, int (64 bit), float, str, bytes, list and dict. Extension types carry the rest
(docs/format.md, "Values"): tuple, set, frozenset, datetime, int beyond 64 bit, Decimal and date. Nothing else is
stored, and nothing that is read is ever executed. The surprise: `bytearray`, `memoryview` and msgpack's own types are
refused although msgpack could write them, because reading them would return other types.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import partial
from operator import add
from typing import Any, Final, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgpack

EXT_TUPLE: Final = 1
EXT_SET: Final = 2
EXT_FROZENSET: Final = 3
EXT_DATETIME: Final = 4
EXT_BIG_INT: Final = 5
EXT_DECIMAL: Final = 6
EXT_DATE: Final = 7

# Of a value. What is packed can be unpacked in every thread: this many levels take 96 KB of stack, where the least that
# Python systems give is 128 KB (musl; Python 3.14 needs 152 KB), and a state cannot be opened at all with less than 64.
MAX_DEPTH: Final = 32
# Payloads up to this size (bytes) are packed by a packer, and unpacked by a reader, that is used again.
_KEPT_BYTES: Final = 4096
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes})
# Besides atoms and datetimes, the types that contain no other value.
_LEAVES: Final = frozenset({Decimal, date})
_LISTS: Final = frozenset({list, tuple, set, frozenset})
_NAIVE_EPOCH: Final = datetime(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
# Drops zeros at the end of a decimal, and no other digit.
_SHORT: Final = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)
# From this exponent on a decimal is written with it, so that 1E+999999999 takes a few bytes.
_LARGE: Final = 100


def _pack_zone(zone: tzinfo | None) -> list[object]:
    if zone is None:
        return []
    if type(zone) is timezone:
        offset = zone.utcoffset(None) // _MICROSECOND
        name = zone.tzname(None)
        return [offset] if name == timezone(timedelta(microseconds=offset)).tzname(None) else [offset, name]
    if type(zone) is ZoneInfo and zone.key is not None:
        return [zone.key]
    raise TypeError(
        f"found a datetime with a time zone of type {type(zone).__name__}, expected datetime.timezone or "
        "zoneinfo.ZoneInfo"
    )


def _refused(kind: type) -> TypeError:
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return TypeError(
        f"found {name}, expected None, bool, int, float, str, bytes, list, dict, tuple, set, frozenset, datetime, date "
        "or Decimal (convert it: a value of numpy by .item(), a time of pandas by .to_pydatetime(), an object of a "
        "subclass to its base)"
    )


def _unpack_zone(parts: list[Any]) -> tzinfo | None:
    if not parts:
        return None
    if type(parts[0]) is str:
        return ZoneInfo(parts[0])
    if len(parts) == 2:
        return timezone(timedelta(microseconds=parts[0]), parts[1])
    return UTC if parts[0] == 0 else timezone(timedelta(microseconds=parts[0]))


_new_ext: Final[Callable[..., msgpack.ExtType]] = tuple.__new__


def _to_ext(value: object) -> msgpack.ExtType:
    """Called by msgpack for what it cannot carry itself (strict types, so tuples come here too)."""
    kind = type(value)
    if kind is tuple:
        # as `ExtType(...)`, without its checks in Python: values of state are mostly tuples
        return _new_ext(msgpack.ExtType, (EXT_TUPLE, pack(list(cast("tuple[object, ...]", value)))))
    if kind is int:
        number = cast(int, value)
        return msgpack.ExtType(EXT_BIG_INT, number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True))
    if kind is set or kind is frozenset:
        # Sorted by their packed form, so that equal sets are equal bytes and digests do not depend on hash seeds.
        items = sorted(pack(item) for item in cast("set[object]", value))
        return msgpack.ExtType(EXT_SET if kind is set else EXT_FROZENSET, array_header(len(items)) + b"".join(items))
    if kind is datetime:
        moment = cast(datetime, value)
        local = (moment.replace(tzinfo=None, fold=0) - _NAIVE_EPOCH) // _MICROSECOND
        return msgpack.ExtType(EXT_DATETIME, pack([local, moment.fold, *_pack_zone(moment.tzinfo)]))
    if kind is Decimal:
        return msgpack.ExtType(EXT_DECIMAL, _decimal_text(cast(Decimal, value)).encode("ascii"))
    if kind is date:
        return msgpack.ExtType(EXT_DATE, pack(cast(date, value).toordinal() - _EPOCH_DAY))
    raise _refused(kind)


def _decimal_text(value: Decimal) -> str:
    """Return the text of a decimal, which tells 1.10 from 1.1; upper case whatever the context of the thread says."""
    return str(value).upper()


class _Readers(threading.local):
    """Readers of the payloads of extensions, by depth: each is used for one payload at a time, and making a new reader
    would cost more than keeping one.
    """

    def __init__(self) -> None:
        self.by_depth: dict[int, Any] = {}


_READERS: Final = _Readers()


def _from_ext(depth: int, code: int, data: bytes) -> object:
    """Turn an extension inside `depth` others into its value. Raises ValueError beyond MAX_DEPTH."""
    if code == EXT_BIG_INT:
        return int.from_bytes(data, "big", signed=True)
    if code == EXT_DECIMAL:
        text = data.decode("ascii")
        value = Decimal(text)
        if _decimal_text(value) != text:
            raise ValueError(f"a decimal written as {text[:40]!r}")
        return value
    if not EXT_TUPLE <= code <= EXT_DATE:
        raise ValueError(f"extension type {code} is unknown")
    if depth > MAX_DEPTH:  # a time in the innermost container is one level more
        raise ValueError(f"extensions nested deeper than {MAX_DEPTH} levels")
    # A reader that failed or was interrupted is not used again. (Not `unpackb`: that takes 40 KB of the thread's stack
    # for each level.)
    reader = None if len(data) > _KEPT_BYTES else _READERS.by_depth.pop(depth, None)
    if reader is None:
        reader = _reader(max(len(data), _KEPT_BYTES), partial(_from_ext, depth + 1))
    start = reader.tell()
    reader.feed(data)
    items = reader.unpack()
    if reader.tell() - start != len(data):
        raise ValueError("an extension holds more than one value")
    if len(data) <= _KEPT_BYTES:
        _READERS.by_depth[depth] = reader
    if code == EXT_TUPLE:
        return tuple(items)
    if code == EXT_SET:
        return set(items)
    if code == EXT_FROZENSET:
        return frozenset(items)
    if code == EXT_DATE:
        return date.fromordinal(_EPOCH_DAY + items)
    local, fold, *zone = items
    moment = _NAIVE_EPOCH + timedelta(microseconds=local)
    return moment.replace(fold=fold, tzinfo=_unpack_zone(zone))


def _reader(size: int, ext_hook: Callable[[int, bytes], object]) -> Any:
    """Return what unpacks a stream of at most `size` bytes: nothing in it may promise more."""
    return msgpack.Unpacker(
        ext_hook=ext_hook,
        strict_map_key=False,
        unicode_errors="surrogatepass",
        max_buffer_size=size,
        max_str_len=size,
        max_bin_len=size,
        max_array_len=size,
        max_map_len=size,
        max_ext_len=size,
    )


_OUTERMOST: Final = partial(_from_ext, 0)
_unpackb: Final = msgpack.unpackb
# Packers that pack nothing at this moment: a new one costs more than a small value.
_packers: Final[list[Callable[[object], bytes]]] = []


def array_header(length: int) -> bytes:
    """Return the header of an array of so many items, in its form of five bytes."""
    return b"\xdd" + length.to_bytes(4, "big")


def packer() -> Callable[[object], bytes]:
    """Return a pack function with a buffer of its own (a msgpack Packer may not be shared by threads or re-entered)."""
    return cast(
        "Callable[[object], bytes]",
        msgpack.Packer(default=_to_ext, strict_types=True, unicode_errors="surrogatepass", use_bin_type=True).pack,
    )


def short_text(number: Decimal) -> str:
    """Return the text of a decimal, the same for all that are equal, which a value is not: as Java writes a number of
    this value without zeros at the end of its fraction. 1.1 for 1.10, 0 for -0.00, 100 for 1E+2, NaN for each not a
    number. O(digits).
    """
    if number.is_nan():
        return "NaN"
    if not number:
        return "0"
    short = number.normalize(_SHORT)
    return f"{short:f}" if 0 <= short.adjusted() < _LARGE else str(short).upper()


def pack(value: object) -> bytes:
    """Pack one value. Raises TypeError for what cannot be stored. O(size)."""
    try:
        # of a packer that packs at this moment, in this thread or another one, nothing is in the list
        unused = _packers.pop()
    except IndexError:
        unused = packer()
    data = unused(value)
    if len(data) <= _KEPT_BYTES:
        _packers.append(unused)
    return data


# What is before the payload of an extension for tuples of so many bytes, as msgpack writes it.
_TUPLE_HEADS: Final = [
    bytes([0xD3 + size.bit_length(), EXT_TUPLE]) if size in (1, 2, 4, 8, 16) else bytes([0xC7, size, EXT_TUPLE])
    for size in range(256)
]


def pack_each(values: Sequence[object], pack_one: Callable[[object], bytes]) -> list[bytes]:
    """Pack each of some values, as `pack` does, with a packer of the caller; short tuples at C speed. O(size)."""
    if values and type(values[0]) is tuple and set(map(type, values)) == {tuple}:
        payloads = list(map(pack_one, map(list, cast("Sequence[tuple[object, ...]]", values))))
        sizes = list(map(len, payloads))
        if max(sizes) < len(_TUPLE_HEADS):
            return list(map(add, map(_TUPLE_HEADS.__getitem__, sizes), payloads))
    return list(map(pack_one, values))


def unpack(data: bytes | memoryview) -> Any:
    """Unpack one value that `pack` made. Raises ValueError (or a subclass) for anything else. O(size)."""
    try:
        # without bounds, since the size of the data bounds each of them anyway, and each keyword costs time
        return _unpackb(data, ext_hook=_OUTERMOST, strict_map_key=False, unicode_errors="surrogatepass")
    except ValueError:
        raise
    except ZoneInfoNotFoundError as error:
        raise ValueError(f"{error.args[0]} on this machine (install the tzdata package)") from error
    # What untrusted bytes can cause: an unhashable key, a date out of range, an extension of the wrong form, endless
    # nesting.
    except (TypeError, ArithmeticError, LookupError, RecursionError, msgpack.UnpackException) as error:
        raise ValueError(f"not a packed value: {error}") from error


# What untrusted bytes can raise while they are unpacked item by item.
UNPACK_ERRORS: Final = (ValueError, TypeError, ArithmeticError, LookupError, RecursionError, msgpack.UnpackException)


def unpacker(data: bytes | memoryview) -> Any:
    """Return a reader of `data`, item by item: `readarray_header()` and `unpack()`, which raise one of
    UNPACK_ERRORS. O(size).
    """
    stream = _reader(len(data), _OUTERMOST)
    stream.feed(data)
    return stream


def check_value(value: object, depth: int = 0) -> None:
    """Raise TypeError if `value`, or anything inside it, would have another type after it was stored and read.

    O(size), at C speed on atoms.
    """
    kind = type(value)
    if kind in ATOMS:
        return
    if kind is datetime:
        _pack_zone(cast(datetime, value).tzinfo)
        return
    if kind in _LEAVES:
        return
    if depth >= MAX_DEPTH:
        raise TypeError(f"found a value nested deeper than {MAX_DEPTH} levels, or one that contains itself")
    if kind in _LISTS:
        items = cast("list[object]", value)
        if not ATOMS.issuperset(map(type, items)):
            for item in items:
                check_value(item, depth + 1)
        return
    if kind is dict:
        mapping = cast("dict[object, object]", value)
        if not ATOMS.issuperset(map(type, mapping)):
            for key in mapping:
                check_value(key, depth + 1)
        if not ATOMS.issuperset(map(type, mapping.values())):
            for item in mapping.values():
                check_value(item, depth + 1)
        return
    raise _refused(kind)
