"""Answers: a request to a served state as the bytes of its answer. No sockets, no tokens.

    GET  /                       the version, and the stores
    GET  /stores/NAME            one store: kind, parameters, columns, records
    GET  /stores/NAME/rows       records: key=, key_from=, key_to=, prefix=, from=, to=, limit=
    POST /stores/NAME/rows       the records of several keys: {"keys": ["ann", "int:5"]}

Each answer is of one committed version, which it names. Keys are typed as on the command line.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from changelog.codec import pack
from changelog.errors import HybridStoreError

from ..inspection.commands.get import in_any_form
from ..reading.follow import Followed
from ..reading.selection import EVERYTHING, Selection
from ..reading.tables import columns_of, named, table_of
from ..reading.texts import parse_key, plain, plain_key, to_json
from ..stores.kinds import Row
from .shared import ClosedError, Shared, TooOldError

JSON: Final = "application/json"
ARROW: Final = "application/vnd.apache.arrow.stream"
# The bounds of one answer. An answer that reaches one of them has fewer rows, and says so.
MOST_ROWS: Final = 100_000
DEFAULT_ROWS: Final = 1_000
MOST_BYTES: Final = 16 * 2**20
MOST_SECONDS: Final = 2.0
# The bounds of a request.
MOST_KEYS: Final = 10_000
MOST_WAIT_MS: Final = 10_000
DEFAULT_WAIT_MS: Final = 1_000

_MOST_FIELDS: Final = 50
# Targets and queries in which nothing is escaped: they mean what they say.
_PLAIN_TARGET: Final = re.compile(r"/(?!/)[\w./?&=:,-]*", re.ASCII).fullmatch
_PLAIN_QUERY: Final = re.compile(r"[\w./:,-]+=[\w./:,=-]*(&[\w./:,-]+=[\w./:,=-]*)*", re.ASCII).fullmatch

_COMMON: Final = ("min_version", "wait_ms", "format")
_BOUNDS: Final = ("from", "to", "limit")
_SELECTING: Final = ("key", "key_from", "key_to", "prefix", *_BOUNDS)
_CHOOSING: Final = frozenset({"key_from", "key_to", "prefix", "from", "to"})


class RefusedError(Exception):
    """A request that is not answered: a status of HTTP (4xx, 5xx), and a sentence for the client."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class _LateError(Exception):
    """Reading takes too long."""


class Answer(NamedTuple):
    """The bytes of an answer, with the status of HTTP and the type of the content."""

    status: int
    content_type: str
    body: bytes


class _Asked(NamedTuple):
    """The parameters that every request may have."""

    min_version: int
    wait_ms: int
    arrow: bool


def refusal(status: int, sentence: str) -> Answer:
    """Return an answer that says why the request is refused: `{"error": sentence}`."""
    return Answer(status, JSON, to_json({"error": sentence}).encode() + b"\n")


class Answers:
    """The answers of one served state; may be asked by several threads.

    `location` is named in answers, and is the text by which the state was opened.
    """

    def __init__(self, shared: Shared, location: str) -> None:
        self._shared = shared
        self._location = location

    def answer(self, method: str, target: str, body: bytes = b"", accept: str = "") -> Answer:
        """Return the answer to a request; bad requests are answered with a status of 4xx and one sentence."""
        try:
            return self._answer(method, target, body, accept)
        except RefusedError as refused:
            return refusal(refused.status, str(refused))
        except (TooOldError, ClosedError) as error:
            return refusal(503, str(error))
        except HybridStoreError as error:  # damage: other records may be readable
            return refusal(500, str(error))

    def _answer(self, method: str, target: str, body: bytes, accept: str) -> Answer:
        path, asked_for = _parts(target)
        steps = path.split("/")[1:]
        if "%" in path:
            steps = list(map(unquote, steps))
        query = _query(asked_for)
        match steps:
            case [""]:
                _only(method, "GET")
                asked = _asked(query, accept, ())
                with self._shared.reading(asked.min_version, asked.wait_ms) as view:
                    return self._json(view, stores={name: _about(view, name) for name in view})
            case ["stores", name]:
                _only(method, "GET")
                asked = _asked(query, accept, ())
                with self._shared.reading(asked.min_version, asked.wait_ms) as view:
                    _known(view, name)
                    return self._json(view, **_about(view, name))
            case ["stores", name, "rows"]:
                if method == "POST":
                    return self._rows_of_keys(name, query, body, accept)
                _only(method, "GET", "POST")
                return self._rows(name, query, accept)
        raise RefusedError(404, f"{path}: no such page (known: /, /stores/NAME, /stores/NAME/rows)")

    def _rows(self, name: str, query: Mapping[str, str], accept: str) -> Answer:
        asked = _asked(query, accept, _SELECTING)
        limit, selection = _limit(query), _selection(query)
        if "key" in query:
            key = _key("key", query["key"])
            return self._answer_rows(name, lambda view: _of_key(view, name, key, selection), limit, asked)
        return self._answer_rows(name, lambda view: _chosen(lambda: view[name].rows(selection)), limit, asked)

    def _rows_of_keys(self, name: str, query: Mapping[str, str], body: bytes, accept: str) -> Answer:
        asked = _asked(query, accept, _BOUNDS)
        limit, selection, keys = _limit(query), _selection(query), _keys(body)

        def rows(view: Followed) -> Iterator[Row]:
            ended = time.monotonic() + MOST_SECONDS
            for key in keys:
                yield from _of_key(view, name, key, selection)
                if time.monotonic() > ended:  # keys without records take time, too
                    raise _LateError

        return self._answer_rows(name, rows, limit, asked)

    def _answer_rows(self, name: str, rows: Callable[[Followed], Iterable[Row]], limit: int, asked: _Asked) -> Answer:
        # Rows are read while the view is ours; they are written after others may read again.
        with self._shared.reading(asked.min_version, asked.wait_ms) as view:
            _known(view, name)
            read, reason = view.reading(lambda: _within(rows(view), limit))
            _known(view, name)  # a newer version was opened if the owner had removed a block
            columns, version, behind = view[name].columns, view.version, self._shared.behind_ms()
        if asked.arrow:
            head = {"version": version, "behind_ms": behind}
            return Answer(200, ARROW, _bounded_stream(columns, read, head, reason))
        texts, size = [], 0
        for row in read:
            text = to_json({**plain(named(row, columns)), "key": plain_key(row.key)})
            size += len(text) if text.isascii() else len(text.encode())
            if size > MOST_BYTES:
                reason = _too_long()
                break
            texts.append(text)
        complete = "true" if reason is None else f'false, "why": {to_json(f"{reason} (narrow the bounds)")}'
        text = (
            f'{{"version": {version}, "behind_ms": {behind}, "complete": {complete}, "rows": [{", ".join(texts)}]}}\n'
        )
        return Answer(200, JSON, text.encode())

    def _json(self, view: Followed, **facts: Any) -> Answer:
        head: dict[str, Any] = {
            "location": self._location,
            "version": view.version,
            "behind_ms": self._shared.behind_ms(),
        }
        if self._shared.failure is not None:
            head["failure"] = self._shared.failure
        return Answer(200, JSON, to_json(plain({**head, **facts})).encode() + b"\n")


def _about(view: Followed, name: str) -> dict[str, Any]:
    store = view[name]
    return {
        "kind": store.kind,
        "parameters": {key: value for key, value in store.parameters.items() if value is not None},
        "columns": columns_of(store.columns),
        "records": len(store),
    }


def _known(view: Followed, name: str) -> None:
    if name not in view:
        raise RefusedError(404, f"no store {name!r} (known: {', '.join(view) or 'none'})")


def _of_key(view: Followed, name: str, key: Any, selection: Selection) -> Iterable[Row]:
    """Return the records of a key within the times of a selection."""
    try:
        rows = list(in_any_form(key, lambda form: view.get(name, form)))  # as `inspect get`
    except (TypeError, ValueError) as error:
        raise _refused_key(error) from error
    return rows if selection.everything else [row for row in rows if selection.within(row.times)]


def _chosen(read: Callable[[], Iterable[Row]]) -> Iterator[Row]:
    """Yield rows. A key of another type than the store's keys, or that cannot be a key, is a bad request."""
    try:
        yield from read()
    except (TypeError, ValueError) as error:
        raise _refused_key(error) from error


def _refused_key(error: Exception) -> RefusedError:
    return RefusedError(400, f"{error} (keys are typed: text, int:5, float:1.5, hex:00ff, json:[..])")


def _within(rows: Iterable[Row], limit: int) -> tuple[list[Row], str | None]:
    """Return the rows that the bounds of an answer allow, and the bound that was reached."""
    ended = time.monotonic() + MOST_SECONDS
    read: list[Row] = []
    late = f"the answer took longer than {MOST_SECONDS:g} s"
    try:
        for row in rows:
            if len(read) == limit:
                return read, f"the answer has more than {limit} rows"
            read.append(row)
            if len(read) % 256 == 1 and time.monotonic() > ended:
                return read, late
    except _LateError:
        return read, late
    return read, None


def _too_long() -> str:
    return f"the answer is longer than {MOST_BYTES} bytes"


def _bounded_stream(columns: tuple[str, ...], rows: list[Row], head: Mapping[str, Any], reason: str | None) -> bytes:
    """Return the first of the rows that `MOST_BYTES` allow, as Arrow's stream."""
    size = 0
    for number, row in enumerate(rows):
        size += len(pack((row.key, row.value)))
        if size > MOST_BYTES:
            rows, reason = rows[:number], _too_long()
            break
    while True:
        why = {} if reason is None else {"why": reason}
        stream = _stream(columns, rows, {**head, "complete": reason is None, **why})
        if len(stream) <= MOST_BYTES or not rows:
            return stream
        rows, reason = rows[: len(rows) // 2], _too_long()  # columns are wider than the records


def _stream(columns: tuple[str, ...], rows: list[Row], facts: Mapping[str, Any]) -> bytes:
    try:
        import pyarrow as pa  # only here: the core does not need pyarrow
    except ImportError as error:
        raise RefusedError(406, "format: found arrow, which needs pyarrow where the state is served") from error
    table = table_of(columns, rows).replace_schema_metadata({name: to_json(fact) for name, fact in facts.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


# --- requests -----------------------------------------------------------------------------------------------------


def _only(method: str, *allowed: str) -> None:
    if method not in allowed:
        raise RefusedError(405, f"method: found {method}, expected {' or '.join(allowed)} (a served state is read)")


def _parts(target: str) -> tuple[str, str]:
    """Return the path and the query of a request's target."""
    if _PLAIN_TARGET(target):
        path, _, query = target.partition("?")
        return path, query
    try:
        parts = urlsplit(target)
    except ValueError as error:
        raise RefusedError(400, f"found {target[:200]!r}, expected a path ({error})") from error
    return parts.path, parts.query


def _query(text: str) -> dict[str, str]:
    fields = text.split("&")
    if _PLAIN_QUERY(text) and len(fields) <= _MOST_FIELDS:  # as `parse_qsl`, which takes longer
        query = dict([field.split("=", 1) for field in fields])
        if len(query) == len(fields):
            return query
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, strict_parsing=bool(text), errors="strict", max_num_fields=_MOST_FIELDS
        )
    except ValueError as error:
        raise RefusedError(400, f"query: found {text[:200]!r}, expected name=value&name=value ({error})") from error
    query = dict(pairs)
    if len(query) < len(pairs):
        raise RefusedError(400, "query: found a parameter twice, expected each at most once")
    return query


def _asked(query: Mapping[str, str], accept: str, more: tuple[str, ...]) -> _Asked:
    for name in query:
        if name not in _COMMON and name not in more:
            expected = ", ".join((*more, *_COMMON))
            raise RefusedError(400, f"query: found parameter {name[:50]!r}, expected some of {expected}")
    if query.keys().isdisjoint(_COMMON):
        return _Asked(0, DEFAULT_WAIT_MS, ARROW in accept)
    form = query.get("format", "arrow" if ARROW in accept else "json")
    if form not in ("json", "arrow"):
        raise RefusedError(400, f"format: found {form[:50]!r}, expected json or arrow")
    return _Asked(
        _number(query, "min_version", 0, 2**63 - 1),
        _number(query, "wait_ms", DEFAULT_WAIT_MS, MOST_WAIT_MS),
        form == "arrow",
    )


def _number(query: Mapping[str, str], name: str, default: int, most: int, least: int = 0) -> int:
    text = query.get(name)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and least <= int(text) <= most):
        raise RefusedError(400, f"{name}: found {text[:50]!r}, expected a whole number from {least} to {most}")
    return int(text)


def _limit(query: Mapping[str, str]) -> int:
    return _number(query, "limit", DEFAULT_ROWS, MOST_ROWS, 1)


def _selection(query: Mapping[str, str]) -> Selection:
    if "key" in query and not query.keys().isdisjoint({"key_from", "key_to", "prefix"}):
        raise RefusedError(400, "key: found other bounds of keys beside it, expected key alone, or key_from and key_to")
    if query.keys().isdisjoint(_CHOOSING):
        return EVERYTHING
    first, last, prefix = (
        _bound(name, query[name]) if name in query else None for name in ("key_from", "key_to", "prefix")
    )
    since, until = (_time(query, name) for name in ("from", "to"))
    return Selection(first, last, prefix, since, until)


def _time(query: Mapping[str, str], name: str) -> int | None:
    return _number(query, name, 0, 2**63 - 1, -(2**63)) if name in query else None


def _key(name: str, text: str) -> Any:
    try:
        return parse_key(text)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"{name}: {error}") from error


def _bound(name: str, text: str) -> Any:
    bound = _key(name, text)
    if bound is None:
        raise RefusedError(400, f"{name}: found null, which has no place in the order of keys, expected a key")
    return bound


def _keys(body: bytes) -> list[Any]:
    """Return the keys of the body of a batch get."""
    expected = 'expected {"keys": ["ann", "int:5", 5, ["a", 5]]}'
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"body: found no JSON ({error}), {expected}") from error
    keys = given.get("keys") if type(given) is dict and len(given) == 1 else None
    if type(keys) is not list:
        raise RefusedError(400, f"body: found {body[:80]!r}, {expected}")
    if len(keys) > MOST_KEYS:
        raise RefusedError(413, f"keys: found {len(keys)}, expected at most {MOST_KEYS} a request")
    return [_key("keys", f"json:{json.dumps([key])}")[0] for key in keys]
