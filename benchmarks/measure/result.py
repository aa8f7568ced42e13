"""Result: the figures of one suite: lines with spread, ratio and target; as a table, as Markdown, as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Final

from benchmarks.measure.timing import Spread

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS: Final = ("", "median", "p95", "lowest - highest", "ratio", "target")
_SCALES: Final = {"s": 1.0, "ms": 1e3, "µs": 1e6, "ns": 1e9}


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure is held against: "ratio" or "value", and a bound that it may not pass ("at most" or "at least")."""

    bound: float
    of: str = "ratio"
    at_least: bool = False

    def met(self, value: float) -> bool:
        """True when `value` keeps the bound."""
        return value >= self.bound if self.at_least else value <= self.bound

    def text(self, unit: str) -> str:
        """Return the bound for people."""
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {self.bound:.4g}{'x' if self.of == 'ratio' else ' ' + unit}".rstrip()


@dataclass(frozen=True, slots=True)
class Line:
    """One figure: the median of its runs with lowest and highest, and what it is compared with."""

    name: str
    value: float
    low: float
    high: float
    unit: str
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    against: str = ""
    target: Target | None = None
    note: str = ""
    # what 95 % of the runs do not exceed; 0 in results that are older than this field
    p95: float = 0.0

    @property
    def met(self) -> bool | None:
        """Whether the target was reached; None when there is none."""
        if self.target is None:
            return None
        judged = self.ratio if self.target.of == "ratio" else self.value
        return None if judged is None else self.target.met(judged)

    def figure(self) -> str:
        """Return the median with its unit."""
        return f"{number(self.value)} {self.unit}".rstrip()

    def spread(self) -> str:
        """Return the range of the runs."""
        return f"{number(self.low)} - {number(self.high)}"

    def ratio_text(self) -> str:
        """Return the ratio and what it is a ratio to."""
        return "" if self.ratio is None else f"{number(self.ratio)}x {self.against}"

    def verdict(self) -> str:
        """Return the target and whether it was reached."""
        if self.target is None:
            return ""
        return f"{self.target.text(self.unit)}: {'reached' if self.met else 'missed'}"


def thousands(value: Any) -> str:
    """Return a setting, a whole number with its thousands separated."""
    return f"{value:,}" if type(value) is int else str(value)


def number(value: float) -> str:
    """Return a figure with three digits that count, thousands separated."""
    if value == 0:
        return "0"
    if value == inf:
        return "∞"
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"


def line(
    name: str,
    spread: Spread,
    unit: str,
    *,
    base: Spread | None = None,
    against: str = "",
    target: Target | None = None,
    inverse: bool = False,
    note: str = "",
) -> Line:
    """Make a line from what was measured: seconds are scaled to `unit`, other units are taken as they are.

    With `base`, the ratio is taken round by round; `inverse` turns it (times faster instead of times slower).
    """
    shown = spread.scaled(_SCALES.get(unit, 1.0))
    ratio = None if base is None else (base.over(spread) if inverse else spread.over(base))
    return Line(
        name,
        shown.middle,
        shown.low,
        shown.high,
        unit,
        None if ratio is None else ratio.middle,
        None if ratio is None else ratio.low,
        None if ratio is None else ratio.high,
        against,
        target,
        note,
        shown.percentile(0.95),
    )


@dataclass(slots=True)
class Result:
    """The outcome of one suite.

    `settings` are the sizes it ran with; `notes` are sentences about what was left out or surprises.
    """

    suite: str
    settings: dict[str, Any]
    lines: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Result:
        """Read what `to_json` returned."""
        lines = [
            Line(**{**entry, "target": Target(**entry["target"]) if entry["target"] else None})
            for entry in fields["lines"]
        ]
        return cls(fields["suite"], fields["settings"], lines, fields["notes"], fields["seconds"])

    def find(self, name: str) -> Line:
        """Return a line by name. Raises KeyError."""
        for line in self.lines:
            if line.name == name:
                return line
        raise KeyError(f"{self.suite}: no line {name!r}")

    def row(self, shown_line: Line) -> tuple[str, ...]:
        """Return the cells of a line, by COLUMNS.

        The 95th percentile is told of restarts and of bytes of checkpoints: the worst cases matter.
        """
        p95 = number(shown_line.p95) if self.suite in ("restore", "checkpoint bytes") and shown_line.p95 else ""
        return (
            shown_line.name,
            shown_line.figure(),
            p95,
            shown_line.spread(),
            shown_line.ratio_text(),
            shown_line.verdict(),
        )

    def markdown(self, choose: Callable[[Line], bool] = lambda _: True) -> str:
        """Return the lines as a Markdown table."""
        chosen = [entry for entry in self.lines if choose(entry)]
        rows = [COLUMNS, *(self.row(entry) for entry in chosen)]
        used = [i for i in range(len(COLUMNS)) if i < 2 or any(row[i] for row in rows[1:])]
        text = ["| " + " | ".join(row[i] for i in used) + " |" for row in rows]
        text.insert(1, "| --- " + "| ---: " * (len(used) - 1) + "|")
        return "\n".join(text)


def _brief(verdict: str, unit: str) -> str:
    return verdict.replace(f" {unit}:", ":").replace(": reached", " ✓").replace(": missed", " ✗")


def narrow_table(title: str) -> Table:
    """Return an empty table as results have it, without a frame: most of 80 columns are for its cells."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def show(result: Result) -> None:
    """Print the result as a table; lines of one subject ("subject: figure") stand under it.

    Fits 80 columns, where p95 is left out.
    """
    from rich.console import Console
    from rich.padding import Padding

    console = Console()
    settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in result.settings.items())
    wide = console.width >= 110
    table = narrow_table(f"{result.suite} ({settings})")
    shown = [result.row(entry) for entry in result.lines]
    if not wide:  # the unit of a target is that of its line
        shown = [
            (name, figure.replace(" records/s", "/s"), "", spread, ratio, _brief(verdict, entry.unit))
            for entry, (name, figure, _, spread, ratio, verdict) in zip(result.lines, shown, strict=True)
        ]
    used = [i for i in range(len(COLUMNS)) if i < 2 or any(row[i] for row in shown)]
    table.add_column("", min_width=22)
    for i in used[1:]:
        head = COLUMNS[i] if wide or i != 3 else "range"
        # of a narrow table names and what a ratio is to are folded, figures never
        table.add_column(
            head, justify="right" if i < 4 else "left", no_wrap=i != 4, max_width=None if wide or i != 4 else 11
        )
    subject = ""
    for entry, cells in zip(result.lines, shown, strict=True):
        before, _, figure = entry.name.rpartition(": ")
        if before and before != subject:
            table.add_row(f"[bold]{before}[/bold]")
        subject = before
        colour = {None: "", True: "green", False: "red"}[entry.met]
        name = Padding(figure, (0, 0, 0, 2 if before else 0), expand=False)
        table.add_row(name, *(cells[i] for i in used[1:]), style=colour)
    console.print(table)
    for note in [*result.notes, *(f"{entry.name}: {entry.note}" for entry in result.lines if entry.note)]:
        console.print(f"  {note}", highlight=False, markup=False)
    if not wide and any(entry.target for entry in result.lines):
        console.print("  ✓ target reached, ✗ missed", highlight=False)
    console.print(f"  took {result.seconds:.1f} s", highlight=False)
