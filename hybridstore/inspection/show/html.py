"""HTML: the larger pieces of a page, made with `hybridstore.markup`."""

from __future__ import annotations

from collections.abc import Sequence

from ...markup import Html, join, tag


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
