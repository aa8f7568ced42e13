"""Output: rows to standard output as a table, JSON, JSON lines, CSV or raw text; everything else is written to
standard error.

A table takes its column widths from the first rows and then writes row by row, so memory stays constant and `| head`
ends the command at once. A table fits the terminal (80 columns without a terminal): the widest column is made
narrower, and a text that is too long ends in an ellipsis. Numbers and times stay whole: a part of a number is another
one, so that a table of many is wider than the terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, TextIO

from ...markup import Labelled, one_line
from ...reading.texts import format_key, iso, plain, size_text, to_json

FORMS: Final = ("table", "json", "jsonl", "csv", "raw")
_SAMPLE_ROWS: Final = 200
_GAP: Final = 2
_WIDTH: Final = 80
Row = Mapping[str, Any]
# Columns of sentences: in a table, a long sentence continues on the next line instead of ending in an ellipsis.
_WRAPPED: Final = frozenset({"fault", "detail", "why", "parameters"})
# The columns that are made narrower first when a table is too wide.
_YIELDING: Final = frozenset({"value", "old", "new", "digest", "setting", *_WRAPPED})
# The characters that begin a formula in a spreadsheet; a spreadsheet reads the last four as the first four.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_SPANS: Final = ((1000, "s"), (60_000, "min"), (3_600_000, "h"), (86_400_000, "d"))


class _Lazily(Labelled):
    """A value whose text is its JSON."""

    __slots__ = ()

    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def text(self) -> str:  # type: ignore[override]
        return to_json(self.value)


class _Moment(Labelled):
    """A time in ISO form."""

    __slots__ = ()


def key_cell(key: Any) -> Labelled:
    """Return a key as a cell: in tables a text that can be typed as an argument, in JSON the `plain` value."""
    return Labelled(key, key) if type(key) is str and ":" not in key else Labelled(format_key(key), plain(key))


def value_cell(value: Any) -> Labelled:
    """Return a stored value as a cell. The text is made at its first use, because most forms of output never use the
    text.
    """
    shown = plain(value)
    if type(value) in (str, bytes):
        return Labelled(shown, shown)
    return _Lazily(shown)


def time_cell(ms: int | None, iso_form: bool) -> Any:
    """Return a time as a cell: milliseconds, or ISO form with --iso. -1 and None mean no time."""
    if type(ms) is not int:  # None, or a value of another type from a forged file
        return None if ms is None else value_cell(ms)
    if ms < 0:
        return None
    if not iso_form:
        return ms
    whole = iso(ms)
    return _Moment(whole.replace("T", " ").removesuffix("Z").removesuffix(".000"), whole)


def span_text(ms: float) -> str:
    """Return a duration for people: 12 min."""
    scale, unit = max(((scale, unit) for scale, unit in _SPANS if ms >= scale), default=(1, "ms"))
    return f"{ms / scale:.3g} {unit}"


def counted(number: int, noun: str) -> str:
    """Return `1 version`, `2,000 versions`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size_cell(size: int | None) -> Labelled:
    """Return a number of bytes as a cell: rounded (12.3 MB) in tables, exact elsewhere; empty for None."""
    return Labelled("" if size is None else size_text(size), size)


def _text(value: Any) -> str:
    if isinstance(value, Labelled):
        return one_line(value.text)
    if value is None:
        return ""
    if type(value) is bool:
        return "yes" if value else "no"
    if type(value) is float:
        return f"{value:g}"
    return one_line(str(value))


def _data(value: Any) -> Any:
    kind = type(value)
    if isinstance(value, Labelled):
        return value.value
    if kind is str or kind is int:
        return value
    if isinstance(value, dict):
        return {name if type(name) is str else format_key(name): _data(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_data(item) for item in value]
    return plain(value)


def _flat(value: Any) -> Any:
    """Return a value for CSV: atoms unchanged, other values as JSON."""
    data = _data(value)
    return to_json(data) if isinstance(data, (dict, list)) else data


def terminal_width(stream: TextIO) -> int:
    """Return the width of a table, in columns of text."""
    try:
        asked = int(os.environ.get("COLUMNS", "0"))
    except ValueError:
        asked = 0
    if asked > 20:
        return asked
    try:
        return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else _WIDTH
    except (OSError, ValueError):
        return _WIDTH


def bold(text: str, stream: TextIO) -> str:
    """Return a text in bold for a terminal. Without a terminal, or with NO_COLOR, the text is unchanged."""
    return f"\x1b[1m{text}\x1b[0m" if stream.isatty() and "NO_COLOR" not in os.environ else text


class _Lines:
    """A stream for `csv.writer`, whose rows end with a line feed only."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, row: str) -> int:
        return self._stream.write(row.removesuffix("\r\n") + "\n")


class Out:
    """The output of a command's answer. With `form` None: a table on a terminal, JSON lines elsewhere.

    With `guard_formulas`, CSV has an apostrophe before each text that a spreadsheet would run as a formula; numbers are
    unchanged.
    """

    def __init__(self, form: str | None = None, stream: TextIO | None = None, *, guard_formulas: bool = False) -> None:
        self._guard = _FORMULA if guard_formulas else ()
        self.stream = stream or sys.stdout
        self.form = form or ("table" if self.stream.isatty() else "jsonl")
        self._tables = 0

    def rows(self, rows: Iterable[Row], columns: Sequence[str], title: str | None = None) -> int:
        """Write rows and return their number.

        `columns` names the table's columns. JSON has every field of a row.
        """
        match self.form:
            case "json":
                return self._json(rows)
            case "jsonl":
                return self._each(rows, lambda row: to_json({name: _data(value) for name, value in row.items()}))
            case "csv":
                return self._csv(rows, columns)
            case "raw":
                return self._each(rows, lambda row: "\t".join(_text(row.get(name)) for name in columns))
        return self._table(rows, columns, title)

    def facts(self, row: Row, names: Mapping[str, str] | None = None, title: str | None = None) -> None:
        """Write one row. The form of a table is a list of names and values.

        `names` gives the names for people; "" leaves a field out.
        """
        if self.form != "table":
            self.rows([row], list(row))
            return
        self._head(title)
        shown = [((names or {}).get(name, name.replace("_", " ")), _text(value)) for name, value in row.items()]
        shown = [(name, text) for name, text in shown if name and text]
        wide = max((len(name) for name, _ in shown), default=0)
        room = max(terminal_width(self.stream) - wide - _GAP, 20)
        for name, text in shown:
            pieces = _wrap(text, room)
            self.line(f"{name:<{wide}}{' ' * _GAP}{pieces[0]}")
            for piece in pieces[1:]:
                self.line(" " * (wide + _GAP) + piece)

    def line(self, text: str) -> None:
        """Write one line."""
        self.stream.write(_encodable(text.rstrip()) + "\n")

    def paragraph(self, text: str, indent: int) -> None:
        """Write a text in lines of the terminal's width. Every line but the first is indented."""
        from textwrap import wrap

        for line in wrap(text, terminal_width(self.stream), subsequent_indent=" " * indent):
            self.line(line)

    def _head(self, title: str | None) -> None:
        if self._tables:
            self.line("")
        self._tables += 1
        if title is not None:
            self.line(one_line(title))

    def _each(self, rows: Iterable[Row], form: Any) -> int:
        count = 0
        write = self.stream.write
        for row in rows:
            line = form(row)
            write(f"{line if line.isascii() else _encodable(line)}\n")
            count += 1
        return count

    def _json(self, rows: Iterable[Row]) -> int:
        count = 0
        for row in rows:
            self.stream.write((",\n " if count else "[") + to_json(_data(dict(row))))
            count += 1
        self.stream.write("]\n" if count else "[]\n")
        return count

    def _csv(self, rows: Iterable[Row], columns: Sequence[str]) -> int:
        import csv  # imported here, because most answers have another form

        # With this terminator the writer quotes cells with a carriage return, which readers would read as a line's end.
        writer = csv.writer(_Lines(self.stream), lineterminator="\r\n")
        writer.writerow(columns)
        count = 0
        # a file gets the stored text; a terminal gets the text with escaped control characters
        form = one_line if self.stream.isatty() else _encodable
        for row in rows:
            cells = ["" if (cell := _flat(row.get(name))) is None else cell for name in columns]
            writer.writerow(
                [
                    form(f"'{cell}" if type(cell) is str and cell.startswith(self._guard) else str(cell))
                    for cell in cells
                ]
            )
            count += 1
        return count

    def _table(self, rows: Iterable[Row], columns: Sequence[str], title: str | None) -> int:
        every: Iterator[Row] = iter(rows)
        sample = list(islice(every, _SAMPLE_ROWS))
        self._head(title)
        if not sample:
            return 0
        columns = [name for name in columns if any(row.get(name) is not None for row in sample)]
        cells = [[_text(row.get(name)) for name in columns] for row in sample]
        right = [all(_is_number(row.get(name)) for row in sample) for name in columns]
        whole = [
            number or any(type(row.get(name)) is _Moment for row in sample)
            for name, number in zip(columns, right, strict=True)
        ]
        widths = _widths(columns, cells, whole, terminal_width(self.stream))
        self.line(bold(_fit([name.replace("_", " ") for name in columns], widths, right, whole), self.stream))
        count = 0
        wrapped = columns[-1] in _WRAPPED
        for row in chain(sample, every):
            texts = [_text(row.get(name)) for name in columns]
            if not wrapped or len(texts[-1]) <= widths[-1]:
                self.line(_fit(texts, widths, right, whole))
            else:
                first, *more = _wrap(texts[-1], widths[-1])
                self.line(_fit([*texts[:-1], first], widths, right, whole))
                indent = " " * (sum(widths[:-1]) + _GAP * (len(widths) - 1))
                for piece in more:
                    self.line(indent + piece)
            count += 1
        return count


def _is_number(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, Labelled):
        value = value.value if type(value.value) is int and not value.text.startswith("int:") else ""
    return type(value) in (int, float)


def _widths(columns: Sequence[str], cells: list[list[str]], whole: list[bool], room: int) -> list[int]:
    heads = [len(name) for name in columns]
    widths = [max(head, *map(_wide, column)) for head, column in zip(heads, zip(*cells, strict=True), strict=True)]
    room -= _GAP * (len(widths) - 1)
    for yielding, least in ((True, 24), (True, 12), (False, 12), (False, 6)):
        while sum(widths) > room:
            able = [
                i
                for i, name in enumerate(columns)
                if not whole[i] and (name in _YIELDING or not yielding) and widths[i] > least
            ]
            if not able:
                break
            widths[max(able, key=lambda i: widths[i])] -= 1
    return widths


def _wide(text: str) -> int:
    """Return the width of a text in columns of a terminal: two for a wide character, none for a combining character."""
    if text.isascii() or len(text) > 1000:  # too wide for any terminal
        return len(text)
    # imported here, because the import is seldom needed and would slow down the start
    from unicodedata import combining, east_asian_width

    return sum(2 if east_asian_width(c) in "WF" else not combining(c) for c in text)


def _fit(cells: list[str], widths: list[int], right: list[bool], whole: list[bool]) -> str:
    pieces = []
    for cell, width, to_right, is_whole in zip(cells, widths, right, whole, strict=True):
        room = width - _wide(cell)
        if room < 0 and not is_whole:
            while _wide(cell) > width - 1:
                cell = cell[: min(width - 1, len(cell) - 1)]
            room = width - 1 - _wide(cell)
            cell += "…"
        pieces.append(" " * room + cell if to_right else cell + " " * room)
    return (" " * _GAP).join(pieces).rstrip()


def _wrap(text: str, room: int) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > room:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
        while len(lines[-1]) > room:
            lines[-1:] = [lines[-1][:room], lines[-1][room:]]
    return lines


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text
