"""Markup: pieces of HTML, for pages and notebooks. Text is always escaped; only the results of these functions are not
escaped again.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

# A notebook shows so many records of a store, and so many characters of a value.
SHOWN_ROWS: Final = 10
_SHOWN_CHARACTERS: Final = 200


class Labelled:
    """A value with a text for people and, for JSON, a value for programs."""

    __slots__ = ("text", "value")

    def __init__(self, text: str, value: Any) -> None:
        self.text = text
        self.value = value


def one_line(text: str) -> str:
    """Return text with escaped control characters, so that no stored text can control a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


class Html(str):
    """Markup that is safe in a page, because only the functions of this module make `Html`, and they escape every
    value.
    """

    __slots__ = ()


def tag(name: str, *children: Any, **attributes: Any) -> Html:
    """Return an element. Children that are not Html are escaped; attributes are always escaped. `class_` is the
    attribute `class`; an attribute that is None is left out.
    """
    texts = {key: text_of(value) if isinstance(value, str) else str(value) for key, value in attributes.items()}
    pairs = (
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(text)}"'
        for key, text in texts.items()
        if attributes[key] is not None
    )
    return Html(f"<{name}{''.join(pairs)}>{join(children)}</{name}>")


def join(children: Iterable[Any]) -> Html:
    """Return the children joined together. Children that are not Html are escaped."""
    return Html("".join(child if isinstance(child, Html) else html.escape(text_of(child)) for child in children))


def text_of(value: Any) -> str:
    """Return a value of a row as text, with visible escapes for control characters and lone surrogates."""
    if isinstance(value, Labelled):
        value = value.text
    if value is None:
        return ""
    text = one_line(value if isinstance(value, str) else f"{value:,}" if type(value) is int else str(value))
    return text.encode("utf-8", "backslashreplace").decode()


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], **attributes: Any) -> Html:
    """Return a table with every column that a row has; numbers are aligned to the right."""
    columns = [name for name in columns if any(row.get(name) is not None for row in rows)]

    def cell(value: Any) -> Html:
        number = type(value.value if isinstance(value, Labelled) else value) in (int, float)
        return tag("td", value, class_="n" if number else None)

    head = tag("tr", *(tag("th", name.replace("_", " "), scope="col") for name in columns))
    body = [tag("tr", *(cell(row.get(name)) for name in columns)) for row in rows]
    return tag("table", tag("thead", head), tag("tbody", *body), **attributes)


def short(value: Any) -> str:
    """Return a key or a value of a record as text that is not long."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def stores_table(title: str, stores: Iterable[Any]) -> str:
    """Return what a notebook shows of open stores: a line of text, and a table of the stores. O(stores)."""
    rows = [{"store": each.name, "kind": each.kind, "records": each.num_records} for each in stores]
    return join([tag("p", title), table(rows, ("store", "kind", "records"))])
