"""HTML: pieces of a page. Text is always escaped; only the results of these functions are not escaped again."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...reading.texts import Labelled, one_line


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


def bars(values: Sequence[tuple[str, float, str]], label: str, *, width: int = 640, height: int = 120) -> Html:
    """Return a bar chart as SVG. A bar is (name below the bar, value, text shown when the pointer is on the bar).

    At most every 8th name is shown.

    As the scale, the text of the highest bar is shown below the chart.
    """
    top = max((value for _, value, _ in values), default=0) or 1
    count = max(len(values), 1)
    step = width / count
    drawn: list[Html] = []
    every = max(1, count // 6)
    for i, (name, value, hint) in enumerate(values):
        tall = round((height - 22) * value / top, 1)
        x, y = round(i * step, 1), round(height - 18 - tall, 1)
        drawn.append(
            tag(
                "rect",
                tag("title", hint),
                x=x,
                y=y,
                width=round(max(step - 1, 0.5), 1),
                height=max(tall, 0.5),
                class_="bar",
            )
        )
        if i % every == 0:
            drawn.append(tag("text", name, x=x, y=height - 4))
    chart = tag("svg", *drawn, viewBox=f"0 0 {width} {height}", role="img", aria_label=label)
    highest = max(values, key=lambda bar: bar[1], default=("", 0, ""))
    return join([chart, tag("p", f"highest bar: {highest[2]}", class_="scale")])
