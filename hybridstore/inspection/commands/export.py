"""The command `export`: records for other tools, as JSON lines, CSV or Parquet; redacted for bug reports."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path
from shutil import rmtree
from typing import Any, Final
from urllib.parse import quote

from ...progress import Progress
from ...reading.parquet import write_parquet
from ...reading.store_view import StoreView
from ...reading.texts import format_key, say
from ...reading.view import View
from ...stores.kinds import Row
from .. import options as o
from ..look import Look
from ..show.output import Out

_FORMATS: Final = {".jsonl": "jsonl", ".json": "json", ".csv": "csv", ".parquet": "parquet", "": "parquet"}
_ENDINGS: Final = ", ".join(filter(None, _FORMATS))
_COLUMNS: Final = ("shard", "store", "key", "buffered", "ts", "start", "end", "value")


class Redaction:
    """Replaces text and bytes by their type and length, keys by a hash. Equal keys of one export have equal hashes."""

    def __init__(self) -> None:
        self._salt = os.urandom(16)

    def key(self, key: Any) -> Any:
        """Return a stand-in for a key."""
        if type(key) is tuple:
            return tuple(self.key(part) for part in key)
        if type(key) in (str, bytes):
            return blake2b(format_key(key).encode("utf-8", "surrogatepass"), digest_size=6, key=self._salt).hexdigest()
        return key

    def value(self, value: Any) -> Any:
        """Return a stand-in for a value. Text becomes `<str 5>`, bytes `<bytes 5>`; numbers and field names stay."""
        if type(value) in (str, bytes):
            return f"<{type(value).__name__} {len(value)}>"
        if type(value) is dict:
            return {key: self.value(item) for key, item in value.items()}
        if type(value) in (list, tuple, set, frozenset):
            return [self.value(item) for item in value]
        return value


class _Source:
    """The records to export, redacted if the user asked for redaction."""

    def __init__(self, look: Look, store: str | None, redaction: Redaction | None, progress: Progress) -> None:
        self.look = look
        self._redaction = redaction
        self._progress = progress
        self.stores = list(look.stores(store))

    def records(self, store: StoreView) -> Iterator[Row]:
        for record in store.records():
            self._progress.advance()
            if self._redaction is not None:
                key, value = self._redaction.key(record.key), self._redaction.value(record.value)
                record = record._replace(key=key, value=value)
            yield record

    def labelled(self, of_shards: list[tuple[View, StoreView]]) -> Iterator[tuple[str, Row]]:
        for view, store in of_shards:
            for record in self.records(store):
                yield view.place.label, record

    def rows(self) -> Iterator[dict[str, Any]]:
        for view, store in self.stores:
            for record in self.records(store):
                row = {**self.look.label(view.place), "store": store.name, "key": record.key}
                row |= dict(sorted(zip(store.columns, record.times, strict=False), key=lambda pair: pair[0] == "end"))
                row["value"] = record.value
                yield row


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    o.maybe_store(parser)
    to = (
        "File to write, which must not exist: .jsonl .json .csv, or .parquet for one store. A name without an ending "
        "is a folder with a Parquet file for each store."
    )
    parser.add_argument("--to", metavar="FILE", type=Path, help=to)
    redact = "Hide text and bytes: keys become hashes, values their type and length."
    parser.add_argument("--redact", action="store_true", help=redact)
    guard = "CSV: put ' before each text that a spreadsheet would run (beginning with = + - @, a tab or a line's end)."
    parser.add_argument("--guard-formulas", action="store_true", help=guard)
    o.looking(parser, at=True, progress=True)


def run(look: Look, given: Namespace) -> int:
    """Write the records of one store or of all stores for other tools. Without --to the records go to standard output
    as JSON lines (or as -o says).

    Parquet has typed columns, and so one store in a file. CSV has texts as they are stored. A spreadsheet runs texts
    that begin with = (see --guard-formulas).
    """
    to, guard = given.to, given.guard_formulas
    form = given.output or "jsonl"
    if to is not None:
        if given.output is not None:
            raise o.UsageError(
                f"-o: found {given.output} with --to, expected one of them (the name of the file says the form)"
            )
        known = _FORMATS.get(to.suffix)
        if known is None:
            raise o.UsageError(
                f"--to: found {str(to)!r}, expected a name that ends in one of {_ENDINGS}, or has no ending"
            )
        if to.exists():
            raise o.UsageError(f"--to: {to} exists already (give a new name)")
        if not to.absolute().parent.is_dir():
            raise o.UsageError(f"--to: {to.parent}: found no such folder for {to.name} (make it first)")
        form = known
    if guard and form != "csv":
        raise o.UsageError(f"--guard-formulas: found form {form}, expected csv (-o csv, or a file that ends in .csv)")
    with look.progress("exporting", 0) as progress:
        source = _Source(look, given.store, Redaction() if given.redact else None, progress)
        if to is None:
            Out(form, guard_formulas=guard).rows(source.rows(), _COLUMNS)
            return look.finish()
        try:
            count = _write(source, form, to, guard)
        except BaseException:
            rmtree(to) if to.is_dir() else to.unlink(missing_ok=True)
            raise
    say(f"{to}: {count:,} records")
    return look.finish()


def _write(source: _Source, form: str, to: Path, guard_formulas: bool) -> int:
    if form == "parquet":
        return _write_parquet(source, to)
    with to.open("x", encoding="utf-8", newline="") as stream:
        return Out(form, stream, guard_formulas=guard_formulas).rows(source.rows(), _COLUMNS)


def _write_parquet(source: _Source, to: Path) -> int:
    """Write the only store as a file, or, where `to` has no ending, each store as a file in the new folder `to`, or of
    several operators in a folder of its operator in there: stores of one name are other stores in another operator.
    """
    stores: dict[tuple[str, str], list[tuple[View, StoreView]]] = {}
    for view, store in source.stores:
        stores.setdefault((view.place.operator, store.name), []).append((view, store))
    if to.suffix and len(stores) != 1:
        names = sorted({name for _, name in stores})
        raise o.UsageError(
            f"--to: found {to} for {len(stores)} stores, expected one store in a Parquet file (name one of "
            f"{', '.join(names) or 'none'}, or give a folder, as in --to {to.with_suffix('')})"
        )
    if not to.suffix:
        to.mkdir()
    several = len({operator for operator, _ in stores}) > 1
    count = 0
    for (operator, name), of_shards in stores.items():
        folder = to / _file_name(operator) if several else to
        if several:
            folder.mkdir(exist_ok=True)
        file = to if to.suffix else folder / f"{_file_name(name)}.parquet"
        rows = partial(source.labelled, of_shards)
        count += write_parquet(file, of_shards[0][1].columns, rows, several=source.look.several)
    return count


def _file_name(name: str) -> str:
    return quote(name.encode("utf-8", "surrogatepass"), safe=" ")
