"""Plots of results. They need matplotlib, which is imported only here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.measure.result import Result

_READY: Final = "to the first read and write"
# a place on the x axis, and a figure with its lowest and highest run
Point = tuple[float, float, float, float]


def missing() -> str | None:
    """Return why nothing can be drawn here, or None."""
    return None if find_spec("matplotlib") else "no plot: matplotlib is not installed (pip install matplotlib)"


def restart_times(results: Sequence[Result], path: Path) -> None:
    """Draw the time from start to the first read and write against records, both axes by powers of ten; lower is
    better.
    """
    curves: dict[str, list[Point]] = {}
    for result in results:
        records = result.settings["records"]
        for line in result.lines:
            engine, _, what = line.name.partition(": ")
            if what == _READY or (engine == "hybridstore" and what == "ready"):
                curves.setdefault(engine, []).append((records, line.value, line.low, line.high))
    _draw(curves, "records", "ms from start to the first read and write (lower is better)", path)


def growth(result: Result, path: Path) -> None:
    """Draw what costs as the state grows, as multiples of the cost at the smallest size, both axes by powers of ten;
    flat is good.

    Lines are those named "cost, 10,000 records".
    """
    curves: dict[str, list[Point]] = {}
    for line in result.lines:
        what, _, size = line.name.removesuffix(" records").partition(", ")
        if line.ratio is not None and size.replace(",", "").isdigit():
            low, high = line.ratio_low or line.ratio, line.ratio_high or line.ratio
            curves.setdefault(what, []).append((int(size.replace(",", "")), line.ratio, low, high))
    _draw(curves, "records", "cost as a multiple of that at the smallest size (flat is good)", path)


def workers(result: Result, path: Path) -> None:
    """Draw processor time per row against workers, of lines named "local[4], who: state work, of a processor per row";
    flat is good."""
    curves: dict[str, list[Point]] = {}
    for line in result.lines:
        subject, _, what = line.name.rpartition(": ")
        master, _, who = subject.partition(", ")
        what = what.partition(", of a processor per row")[0]
        if what in ("state work", "all processes") and master.startswith("local["):
            count = int(master.removeprefix("local[").rstrip("]"))
            curves.setdefault(f"{who}: {what}", []).append((count, line.value, line.low, line.high))
    marks = {count: str(count) for count in sorted({point[0] for points in curves.values() for point in points})}
    _draw(curves, "workers", "µs of a processor per row (flat is good)", path, marks)


def limits(result: Result, path: Path) -> None:
    """Draw operations/s against the state over its limit, of lines named "engine, work: state 2x the limit"; higher is
    better.
    """
    curves: dict[str, list[Point]] = {}
    for line in result.lines:
        subject, _, what = line.name.rpartition(": ")
        if line.unit == "/s":
            share = float(what.removeprefix("state ").removesuffix("x the limit"))
            curves.setdefault(subject, []).append((share, line.value, line.low, line.high))
    marks = {share: f"{share:g}" for share in sorted({point[0] for points in curves.values() for point in points})}
    _draw(curves, "state over its memory limit", "operations/s (higher is better)", path, marks)


def latencies(result: Result, path: Path) -> None:
    """Draw the latency of commits against percentiles, of lines named "loop, checkpoints or none: p99.9", both axes by
    powers of ten; lower is better.
    """
    curves: dict[str, list[Point]] = {}
    marks = {}
    for line in result.lines:
        subject, _, what = line.name.rpartition(": ")
        if what.startswith("p") and what[1:].replace(".", "").isdigit():
            tail = round(1 / (1 - float(what[1:]) / 100), 3)
            marks[tail] = what
            curves.setdefault(subject, []).append((tail, line.value, line.low, line.high))
    _draw(curves, "percentile of commits", "ms of a commit of 10 puts (lower is better)", path, marks)


def engines(results: Sequence[Result], path: Path) -> None:
    """Draw the processor time of an event in each engine, and the time from a new start to the first new result, each
    as a point with its figure, a panel for each result, by powers of ten; left is better.
    """
    figure, panels = _pyplot().subplots(1, len(results), figsize=(4.6 * len(results), 4.2), squeeze=False)
    for axes, result in zip(panels[0], results, strict=True):
        drawn = {"processor per event": "µs of a processor per event", "to the first new result": "ms to a new result"}
        for line in result.lines:
            engine, _, what = line.name.rpartition(": ")
            if what in drawn:
                name = engine.replace(", a commit", ",\na commit")
                colour = "black" if "hybridstore" in engine else "tab:blue" if "reading" not in engine else "silver"
                spread = [[line.value - line.low], [line.high - line.value]]
                axes.errorbar([line.value], [name], xerr=spread, fmt="o", color=colour)
                axes.annotate(
                    line.figure(), (line.value, name), (0, 5), textcoords="offset points", ha="center", fontsize=7
                )
                axes.set_xlabel(drawn[what], fontsize=8)
        axes.set(xscale="log")
        axes.set_title(f"{result.settings['work']}, {result.settings['events']:,} events", fontsize=9)
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.xaxis.set_minor_formatter("")
        axes.invert_yaxis()
        axes.margins(x=0.15, y=0.08)
        axes.tick_params(labelsize=7)
        axes.grid(True, axis="both", alpha=0.3)
    _save(figure, path)


def _draw(
    curves: Mapping[str, list[Point]],
    x: str,
    y: str,
    path: Path,
    marks: Mapping[float, str] | None = None,
) -> None:
    """Draw curves into a file. `marks`: the places on the x axis with their texts; None: powers of ten."""
    figure, axes = _pyplot().subplots(figsize=(7.5, 4.5))
    for name, points in curves.items():
        points.sort()
        xs, middle, low, high = zip(*points, strict=True)
        style: dict[str, Any] = {"linewidth": 2.5 if name.startswith("hybridstore") else 1.2}
        style |= {"color": "black"} if name == "hybridstore" else {}
        (drawn,) = axes.plot(xs, middle, marker="o", label=name, **style)
        axes.fill_between(xs, low, high, alpha=0.15, color=drawn.get_color())
    axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
    if marks:
        axes.set_xticks(list(marks), labels=list(marks.values()))
        axes.tick_params(axis="x", which="minor", bottom=False)
        axes.yaxis.set_minor_locator(import_module("matplotlib.ticker").LogLocator(subs=(2, 5)))
        for kind in ("major", "minor"):
            getattr(axes.yaxis, f"set_{kind}_formatter")("{x:,.10g}")
        axes.tick_params(axis="y", which="minor", labelsize=7)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize=8)
    _save(figure, path)


def _pyplot() -> Any:
    """Return matplotlib's pyplot, drawing into files."""
    import_module("matplotlib").use("Agg")
    return import_module("matplotlib.pyplot")


def _save(figure: Any, path: Path) -> None:
    """Write a figure into a file, without the name of the program that drew it, and free it."""
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None} if path.suffix == ".png" else None)
    _pyplot().close(figure)
