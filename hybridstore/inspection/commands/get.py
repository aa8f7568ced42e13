"""The command `get`: the records of one key."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from ...reading.selection import Selection
from ...reading.store_view import StoreView, of_key_type
from ...reading.texts import say
from ...shards import canonical_bytes
from ...topology.null_keys import stored_key
from .. import options as o
from ..look import Look, selection
from ..rows import row_of, with_columns

T = TypeVar("T")


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    o.store(parser)
    o.key(parser)
    o.windows(parser)
    o.looking(parser, at=True, iso=True)


def run(look: Look, given: Namespace) -> int:
    """Show the records of one key: its value, its windows or its sessions. Exit code 1 when the key has no records."""
    count = 0

    def records(key: Any) -> Iterator[dict[str, Any]]:
        nonlocal count
        chosen = selection(given)._replace(key_from=key, key_to=key)
        for view, store in look.stores(given.store, key):
            for record in typed(store, chosen, store.records(chosen)):
                count += 1
                yield row_of(view, store, record, iso=look.iso, label=look.several)

    def rows() -> Iterator[dict[str, Any]]:
        try:
            yield from in_any_form(o.typed_key(given.key), records)
        except TypeError as error:
            raise o.UsageError(str(error)) from error

    if look.out.form == "raw":
        look.out.rows(rows(), ["value"])
    else:
        look.out.rows(*with_columns(rows()))
    if not count:
        say(f"{given.store}: no record of key {given.key}")
    return look.finish(o.FINE if count else o.NEGATIVE)


def stored_forms(key: Any) -> Iterator[Any]:
    """Yield how stores may have a key: as it is, and as the text under which it is stored where null is a key. Null,
    nan, dates, times and decimals are keys of the second form only. O(key).
    """
    try:
        _check(key)
    except TypeError:
        pass
    else:
        yield key
    with suppress(TypeError, ValueError):
        form = stored_key(key[0] if type(key) is tuple and len(key) == 1 else key)
        yield form


def _check(key: Any) -> None:
    """Raise TypeError for what no store has as it is. Nan is neither below nor above a key: as a bound it is none."""
    canonical_bytes(key)
    if any(part != part for part in (key if type(key) is tuple else (key,))):
        raise TypeError(f"key {key}: found a float without order, expected a number")


def in_any_form(key: Any, read: Callable[[Any], Iterable[T]]) -> Iterator[T]:
    """Yield what `read` yields for the first form of a key that has records. Raises TypeError, ValueError or UsageError
    where none has and the key as it is has the wrong type.
    """
    wrong: Exception | None = None
    usable = False
    for form in stored_forms(key):
        some = False
        usable = usable or form is key
        try:
            for item in read(form):
                some = True
                yield item
        except (TypeError, ValueError, o.UsageError) as error:
            if some:
                raise
            if form is key:
                wrong = error
        if some:
            return
    if wrong is not None:
        raise wrong
    if not usable:
        _check(key)  # raises what is wrong with it


def typed(store: StoreView, chosen: Selection, rows: Iterator[T]) -> Iterator[T]:
    """Yield the records of a selection. Raises UsageError when the keys of the selection and of the store differ in
    type.
    """
    try:
        yield from of_key_type(store, chosen[:3], rows)
    except TypeError as error:
        raise o.UsageError(f"{error} (keys are typed: text, int:5, float:1.5, hex:00ff, json:[..])") from error
