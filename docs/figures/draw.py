"""Draws the figures of docs/: `python docs/figures/draw.py` writes the SVG files beside this module.

A figure has no colours of its own: its style sheet has a light and a dark set, and the reader's browser chooses. The
times in the figures are those of the pages' examples; tests/docs/test_figures.py compares the files with what this
module draws.
"""

from collections.abc import Callable
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent
STYLE = """
svg { font: 13px system-ui, sans-serif; --ink: #1f2328; --soft: #8b949e; --fill: #ddf4ff; --edge: #0969da;
      --old: #eaeef2; --late: #cf222e; --ground: #ffffff; background: var(--ground) }
@media (prefers-color-scheme: dark) { svg { --ink: #e6edf3; --soft: #8b949e; --fill: #0c2d6b; --edge: #58a6ff;
      --old: #21262d; --late: #ff7b72; --ground: #0d1117 } }
text { fill: var(--ink) } .soft { fill: var(--soft) } .late { fill: var(--late) } .head { font-weight: 600 }
.axis, .arrow { stroke: var(--ink); stroke-width: 1.2; fill: none } .mark { stroke: var(--soft); stroke-dasharray: 4 3 }
.box { fill: var(--fill); stroke: var(--edge) } .old { fill: var(--old); stroke: var(--soft) }
.dot { fill: var(--edge) } .gone { fill: var(--soft) } .drop { fill: var(--late) }
"""


class Drawing:
    """An SVG picture of `width` x `height` pixels with a title for readers who do not see it."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = (width, height)
        self._title = title
        self._parts: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        """Write words; `anchor` is start, middle or end."""
        chosen = f' class="{kind}"' if kind else ""
        self._parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{chosen}>{escape(words)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "axis", *, arrow: bool = False) -> None:
        """Draw a line, with an arrow head at its end if asked."""
        head = ' marker-end="url(#head)"' if arrow else ""
        self._parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"{head}/>')

    def box(self, x: float, y: float, width: float, height: float, words: str = "", kind: str = "box") -> None:
        """Draw a rectangle with words in the middle."""
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" class="{kind}"/>')
        lines = words.split("\n")
        for number, part in enumerate(lines):
            self.text(x + width / 2, y + height / 2 + 4.5 + 16 * (number - (len(lines) - 1) / 2), part, "", "middle")

    def dot(self, x: float, y: float, kind: str = "dot") -> None:
        """Draw a record."""
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="4.5" class="{kind}"/>')

    def svg(self) -> str:
        """Return the picture's file."""
        width, height = self._size
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img">\n<title>{escape(self._title)}</title>\n<style>{STYLE}</style>\n'
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0L8 4L0 8z" style="fill: var(--ink)"/></marker></defs>\n'
            + "\n".join(self._parts)
            + "\n</svg>\n"
        )


class TimeLine:
    """A time axis of a drawing: `at(minutes)` is the x of a time."""

    def __init__(self, drawing: Drawing, y: float, minutes: int, *, left: float = 40, step: float = 56) -> None:
        self._drawing = drawing
        self.y = y
        self._start = left
        self._step = step
        drawing.line(left, y, left + step * minutes + 26, y, arrow=True)
        for minute in range(minutes + 1):
            drawing.line(self.at(minute), y - 3, self.at(minute), y + 3)
            drawing.text(self.at(minute), y + 18, str(minute), "soft", "middle")
        drawing.text(left + step * minutes + 32, y + 4, "min", "soft")

    def at(self, minute: float) -> float:
        """Return the x of a time in minutes."""
        return self._start + self._step * minute

    def mark(self, minute: float, words: str, top: float) -> None:
        """Draw a dashed line upwards from a time, with words at its end."""
        self._drawing.line(self.at(minute), self.y, self.at(minute), top, "mark")
        self._drawing.text(self.at(minute), top - 5, words, "", "middle")


def key_value() -> Drawing:
    """A key-value store with a time to live of five minutes."""
    drawing = Drawing(640, 190, "Key-value store with a ttl: a row lives for five minutes of stream time")
    line = TimeLine(drawing, 150, 9)
    for row, (name, start) in enumerate((("ann", 0), ("bob", 2), ("ann", 4))):
        y = 42 + 34 * row
        expired = start + 5 <= 7
        drawing.box(
            line.at(start), y, line.at(min(start + 5, 9)) - line.at(start), 22, name, "old" if expired else "box"
        )
        drawing.dot(line.at(start), y + 11, "gone" if expired else "dot")
    line.mark(7, "stream time T = 7", 28)
    return drawing


def window() -> Drawing:
    """A window store with a retention of five minutes and a grace of two."""
    drawing = Drawing(640, 190, "Window store: which rows are live, and which puts are accepted")
    line = TimeLine(drawing, 150, 9)
    drawing.box(line.at(3), 62, line.at(8) - line.at(3), 26, "")
    drawing.text(line.at(3) + 8, 80, "readable: ts > T - retention")
    drawing.box(line.at(6), 96, line.at(8) - line.at(6), 26, "")
    drawing.text(line.at(6) + 8, 114, "writable")
    drawing.text(line.at(6) - 8, 114, "ts > T - grace", "soft", "end")
    for minute in (1, 2.4, 3, 4.2, 5.5, 6.8, 8):
        drawing.dot(line.at(minute), 150, "dot" if minute > 3 else "gone")
    line.mark(8, "stream time T = 8", 40)
    line.mark(3, "T - retention", 52)
    return drawing


def session() -> Drawing:
    """A session store with a retention of five minutes."""
    drawing = Drawing(640, 190, "Session store: a session lives by its end")
    line = TimeLine(drawing, 150, 9)
    for row, (start, end) in enumerate(((0.5, 2.2), (2, 4.5), (6, 8))):
        live = end > 3
        drawing.box(line.at(start), 48 + 30 * row, line.at(end) - line.at(start), 22, "", "box" if live else "old")
        drawing.text(
            line.at(end) + 8, 64 + 30 * row, "live: its end is newer" if live else "", "" if live else "soft"
        ) if end < 8 else None
    drawing.text(line.at(0.5) - 8, 64, "expired", "soft", "end")
    line.mark(8, "T = 8: the newest end", 28)
    line.mark(3, "T - retention", 40)
    return drawing


def sliding() -> Drawing:
    """A sliding store with a size of three minutes."""
    drawing = Drawing(640, 190, "Sliding store: the window ends at stream time and moves with it")
    line = TimeLine(drawing, 150, 9)
    for row, (end, words) in enumerate(((4.5, "sum = 5 + 2 = 7"), (7, "sum = 2 + 1 + 5 = 8"))):
        drawing.box(line.at(end - 3), 50 + 36 * row, line.at(end) - line.at(end - 3), 24, words)
    for minute, value in ((1, 3), (2.5, 5), (4.5, 2), (6, 1), (7, 5)):
        drawing.dot(line.at(minute), 150, "dot" if minute >= 4 else "gone")
        drawing.text(line.at(minute), 140, str(value), "", "middle")
    drawing.text(line.at(1.5) - 8, 66, "T = 4.5", "soft", "end")
    drawing.text(line.at(4) - 8, 102, "T = 7", "soft", "end")
    return drawing


def suppression() -> Drawing:
    """A suppression buffer that waits until windows close."""
    drawing = Drawing(640, 190, "Suppression buffer: of many updates of a window, the last leaves when it is final")
    line = TimeLine(drawing, 150, 9)
    drawing.box(line.at(0), 78, line.at(5) - line.at(0), 26, "window [0, 5)")
    drawing.box(line.at(5), 78, line.at(6) - line.at(5), 26, "grace", "old")
    for minute, count in ((0.8, 1), (2, 2), (4.1, 3), (5.4, 4)):
        drawing.dot(line.at(minute), 150)
        drawing.line(line.at(minute), 143, line.at(minute), 110, "arrow", arrow=True)
        drawing.text(line.at(minute) + 5, 130, f"n = {count}", "soft")
    drawing.dot(line.at(6.4), 150)
    drawing.line(line.at(6.4), 143, line.at(6.4), 50, "arrow", arrow=True)
    drawing.text(line.at(6.4) + 8, 56, "T >= 6: n = 4 leaves, once")
    return drawing


def windows() -> Drawing:
    """The four kinds of windows over the same records of one key."""
    drawing = Drawing(640, 430, "Tumbling, hopping, sliding and session windows over the same six records")
    times = (0.5, 1.5, 2, 5, 6.5, 7)
    line = TimeLine(drawing, 396, 9)
    for minute in times:
        drawing.dot(line.at(minute), 396)
        drawing.line(line.at(minute), 388, line.at(minute), 24, "mark")
    drawing.text(8, 20, "tumbling, 3 minutes", "head")
    for start, count in ((0, 3), (3, 1), (6, 2)):
        drawing.box(line.at(start) + 1, 28, line.at(3) - line.at(0) - 2, 24, str(count))
    drawing.text(8, 84, "hopping, 4 minutes by 2", "head")
    for row, (start, count) in enumerate(((0, 3), (2, 2), (4, 3), (6, 2))):
        drawing.box(
            line.at(start) + 1, 92 + 26 * (row % 2), line.at(min(start + 4, 9.4)) - line.at(start) - 2, 22, str(count)
        )
    drawing.text(8, 168, "sliding, 3 minutes: a window per record, which ends at it", "head")
    for row, (end, count) in enumerate(zip(times, (1, 2, 3, 2, 2, 3), strict=True)):
        start = max(end - 3, -0.5)
        drawing.box(line.at(start), 176 + 21 * row, line.at(end) - line.at(start), 18, str(count))
    drawing.text(8, 332, "session, gap of 2 minutes", "head")
    for start, end, count in ((0.5, 2, 3), (5, 7, 3)):
        drawing.box(line.at(start) - 6, 340, line.at(end) - line.at(start) + 12, 24, str(count))
    return drawing


def record() -> Drawing:
    """The way of a record, and of a restart."""
    drawing = Drawing(
        800, 250, "The way of a record: decided once, logged, applied, checkpointed; a restart applies it again"
    )
    names = ("record", "store\ndecides", "mutation", "changelog", "checkpoint")
    for number, name in enumerate(names):
        x = 16 + 150 * number
        drawing.box(x, 30, 112, 48, name)
        if number:
            drawing.line(x - 38, 54, x - 4, 54, "arrow", arrow=True)
    drawing.box(316, 150, 112, 48, "apply")
    drawing.line(372, 78, 372, 146, "arrow", arrow=True)
    drawing.text(380, 118, "at once")
    drawing.box(16, 150, 240, 48, "the store's maps\n(what reads see)")
    drawing.line(316, 174, 260, 174, "arrow", arrow=True)
    drawing.line(522, 78, 522, 162, "arrow")
    drawing.line(522, 162, 432, 162, "arrow", arrow=True)
    drawing.text(530, 112, "restore:")
    drawing.text(530, 128, "replay of the tail", "soft")
    drawing.line(672, 78, 672, 186, "arrow")
    drawing.line(672, 186, 432, 186, "arrow", arrow=True)
    drawing.text(680, 112, "restore: attach,")
    drawing.text(680, 128, "blocks as touched", "soft")
    drawing.text(
        16, 232, "apply is the only way in: a live record and a restored one go through the same function.", "soft"
    )
    return drawing


def restore() -> Drawing:
    """The ladder of a restore: what is tried, in which order."""
    drawing = Drawing(
        680, 300, "What a restore tries, in order: newest checkpoint, older ones, the whole changelog, an error"
    )
    rungs = (
        ("the newest checkpoint", "attach it, replay the changelog behind it"),
        ("the one before it", "where the newest is damaged: the same, with a longer tail"),
        ("the whole changelog", "where no checkpoint is sound and no segment was pruned"),
        ("an error that names the damage", "where a committed change would be lost: never a shorter state"),
    )
    for number, (name, words) in enumerate(rungs):
        y = 20 + 70 * number
        drawing.box(16, y, 230, 44, name, "box" if number < 3 else "old")
        drawing.text(264, y + 27, words, "soft")
        if number:
            drawing.line(131, y - 26, 131, y - 4, "arrow", arrow=True)
    return drawing


def house() -> Drawing:
    """The packages and who imports whom."""
    drawing = Drawing(
        680, 330, "The house: hybridstore imports recovery, recovery imports changelog, never the other way"
    )
    drawing.text(16, 22, "hybridstore", "head")
    rooms = (("inspection", 16), ("spark", 240), ("topology", 464))
    for name, x in rooms:
        drawing.box(x, 32, 200, 40, name)
    drawing.box(16, 92, 312, 40, "state: open, commit, checkpoint")
    drawing.box(340, 92, 324, 40, "aggregation: strategies, windows")
    drawing.box(16, 152, 648, 40, "stores: key-value, window, session, sliding, suppression")
    drawing.line(340, 194, 340, 216, "arrow", arrow=True)
    drawing.box(16, 220, 648, 40, "recovery: names on disk, checkpoints, restore, verify, prune")
    drawing.line(340, 262, 340, 280, "arrow", arrow=True)
    drawing.box(16, 284, 648, 40, "changelog: mutations, frames, segments; storage on disks and object stores")
    return drawing


FIGURES: dict[str, Callable[[], Drawing]] = {
    "house": house,
    "key-value": key_value,
    "record": record,
    "restore": restore,
    "session": session,
    "sliding": sliding,
    "suppression": suppression,
    "window": window,
    "windows": windows,
}


def main() -> None:
    for name, draw in FIGURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
