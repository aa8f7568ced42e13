"""Draws the figures of docs/: `python docs/figures/draw.py` writes the SVG files beside this module.

A figure has no colours of its own: its style sheet has a light and a dark set, and the reader's browser chooses. The
times in the figures are those of the pages' examples; tests/docs/test_site.py compares the files with what this
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
.head, .soft, .late { paint-order: stroke; stroke: var(--ground); stroke-width: 3px }
.axis, .arrow { stroke: var(--ink); stroke-width: 1.2; fill: none } .mark { stroke: var(--soft); stroke-dasharray: 4 3 }
.box { fill: var(--fill); stroke: var(--edge) } .old { fill: var(--old); stroke: var(--soft) }
.cross { stroke: var(--late); stroke-width: 2 }
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

    def cross(self, x: float, y: float) -> None:
        """Draw a cross: something ends or is lost here."""
        self.line(x - 5, y - 5, x + 5, y + 5, "cross")
        self.line(x - 5, y + 5, x + 5, y - 5, "cross")

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

    def span(self, start: float, end: float, y: float, words: str = "", kind: str = "box") -> None:
        """Draw a stretch of time with words in the middle."""
        self._drawing.box(self.at(start), y, self.at(end) - self.at(start), 22, words, kind)


class Lanes(Drawing):
    """Horizontal lanes, one for each actor, with what happens to it from left to right."""

    def __init__(self, title: str, *names: str) -> None:
        super().__init__(660, 4 + 56 * len(names), title)
        for lane, name in enumerate(names):
            self.text(8, self.y(lane) + 4.5, name, "head")
            self.line(120, self.y(lane), 650, self.y(lane), "mark")

    @staticmethod
    def y(lane: int) -> float:
        """Return the middle of a lane."""
        return 40 + 56 * lane

    def step(self, lane: int, x: float, width: float, words: str, kind: str = "box") -> None:
        """Draw what an actor does."""
        self.box(x, self.y(lane) - 14, width, 28, words, kind)

    def death(self, lane: int, x: float, words: str) -> None:
        """Draw a cross where an actor ends, with words behind it."""
        self.cross(x, self.y(lane))
        self.text(x + 10, self.y(lane) - 7, words, "late")

    def message(self, start: int, end: int, x: float, words: str = "", *, lost: bool = False) -> None:
        """Draw an arrow from one lane to another; a lost one ends half-way."""
        down = 1 if end > start else -1
        first, last = self.y(start) + 16 * down, self.y(end) - 17 * down
        self.line(x, first, x, (first + last) / 2 if lost else last, "arrow", arrow=not lost)
        if lost:
            self.cross(x, (first + last) / 2)
        self.text(x + 10, (first + last) / 2 + 4.5, words, "soft")


def key_value() -> Drawing:
    """A key-value store with a time to live of five minutes."""
    drawing = Drawing(640, 190, "Key-value store with a ttl: a row lives for five minutes of stream time")
    line = TimeLine(drawing, 150, 9)
    line.mark(7, "stream time T = 7", 28)
    for row, (name, start) in enumerate((("ann", 0), ("bob", 2), ("ann", 4))):
        expired = start + 5 <= 7
        line.span(start, start + 5, 42 + 34 * row, name, "old" if expired else "box")
        drawing.dot(line.at(start), 53 + 34 * row, "gone" if expired else "dot")
    return drawing


def window() -> Drawing:
    """A window store with a retention of five minutes and a grace of two."""
    drawing = Drawing(640, 190, "Window store: which rows are live, and which puts are accepted")
    line = TimeLine(drawing, 150, 9)
    line.mark(8, "stream time T = 8", 40)
    line.mark(3, "T - retention", 52)
    drawing.box(line.at(3), 62, line.at(8) - line.at(3), 26, "")
    drawing.text(line.at(3) + 8, 80, "readable: ts > T - retention")
    drawing.box(line.at(6), 96, line.at(8) - line.at(6), 26, "")
    drawing.text(line.at(6) + 8, 114, "writable")
    drawing.text(line.at(6) - 8, 114, "ts > T - grace", "soft", "end")
    for minute in (1, 2.4, 3, 4.2, 5.5, 6.8, 8):
        drawing.dot(line.at(minute), 150, "dot" if minute > 3 else "gone")
    return drawing


def session() -> Drawing:
    """A session store with a retention of five minutes."""
    drawing = Drawing(640, 190, "Session store: a session lives by its end")
    line = TimeLine(drawing, 150, 9)
    line.mark(8, "T = 8: the newest end", 28)
    line.mark(3, "T - retention", 40)
    for row, (start, end) in enumerate(((0.5, 2.2), (2, 4.5), (6, 8))):
        expired = end <= 3
        line.span(start, end, 52 + 30 * row, "expired" if expired else "live", "old" if expired else "box")
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


def stream_time() -> Drawing:
    """Stream time over records that arrive out of order."""
    drawing = Drawing(640, 230, "Stream time is the largest event time so far: an earlier record leaves it where it is")
    drawing.line(60, 196, 620, 196, arrow=True)
    drawing.line(60, 196, 60, 20, arrow=True)
    drawing.text(60, 14, "event time", "soft", "middle")
    drawing.text(612, 216, "arrival", "soft", "end")
    newest = 0.0
    for number, ts in enumerate((1, 3, 2, 5, 4, 4.5)):
        x = 100 + 84 * number
        if ts > newest and newest:
            drawing.line(x, 196 - 30 * newest, x, 196 - 30 * ts)
        newest = max(newest, ts)
        drawing.line(x, 196 - 30 * newest, x + 84, 196 - 30 * newest)
        drawing.dot(x, 196 - 30 * ts, "dot" if ts == newest else "gone")
        drawing.text(x, 214, f"ts = {ts:g}", "soft", "middle")
    drawing.text(430, 38, "T = 5, the largest ts so far")
    drawing.text(278, 154, "2 arrives: T stays 3", "soft")
    return drawing


def kafka_sliding() -> Drawing:
    """The sliding windows that Kafka adopted, of two records."""
    drawing = Drawing(640, 190, "Sliding windows as adopted by Kafka: a record has a window that ends at it")
    line = TimeLine(drawing, 150, 9)
    spans = ((1, 4, "ends at a: 1 record"), (2.5, 5.5, "ends at b: 2 records"), (4.05, 7.05, "1 ms after a: 1 record"))
    for minute, name in ((4, "a"), (5.5, "b")):
        drawing.dot(line.at(minute), 150)
        drawing.line(line.at(minute), 143, line.at(minute), 24, "mark")
        drawing.text(line.at(minute) + 8, 141, name)
    for row, (start, end, words) in enumerate(spans):
        line.span(start, end, 28 + 30 * row, words)
    return drawing


def watermark() -> Drawing:
    """Windows by a query's watermark, before and at the end of a batch."""
    drawing = Drawing(640, 220, "The watermark of the batch before says what is late, the new one what closes")
    line = TimeLine(drawing, 180, 9)
    line.mark(3.4, "W of batch N - 1: rows of batch N are judged by it", 30)
    line.mark(6.4, "W of batch N: closes windows at its end", 68)
    line.span(0, 3, 100, "[0, 3): closed", "old")
    line.span(3, 6, 100, "[3, 6): closes at the end")
    line.span(6, 9, 100, "[6, 9): open")
    for minute, kind, words in ((2, "drop", "late"), (4, "dot", "on time"), (8, "dot", "on time")):
        drawing.dot(line.at(minute), 180, kind)
        drawing.line(line.at(minute), 173, line.at(minute), 126, "arrow", arrow=True)
        drawing.text(line.at(minute) + 8, 155, words, "late" if kind == "drop" else "soft")
    return drawing


def emission() -> Drawing:
    """The results of one window with each emission."""
    drawing = Drawing(640, 240, "The results of one window: per record, per commit, or once when it is final")
    line = TimeLine(drawing, 200, 9)
    rows = (
        ("record", ((2, "n = 1, n = 2"), (5, "n = 3, n = 4"))),
        ("commit", ((2, "n = 2"), (5, "n = 4"))),
        ("close", ((8, "n = 4"),)),
    )
    for minute in (2, 5, 8):
        line.mark(minute, "commit", 36)
    for row, (name, results) in enumerate(rows):
        drawing.text(8, 60 + 34 * row, f'"{name}"', "head")
        for minute, words in results:
            drawing.box(line.at(minute) - 50, 44 + 34 * row, 100, 24, words)
    line.span(0, 6, 148, "window [0, 6)", "old")
    for minute in (0.5, 1.5, 3, 4, 7):
        drawing.dot(line.at(minute), 200, "gone" if minute == 7 else "dot")
    drawing.text(line.at(7) - 8, 192, "next window", "soft", "end")
    return drawing


def join() -> Drawing:
    """Orders and payments within an hour: which rows meet, and when an order without a payment comes out."""
    drawing = Drawing(700, 250, "Join of two streams: rows of one key meet if their times are near")
    line = TimeLine(drawing, 210, 10)
    drawing.text(8, 22, "orders", "head")
    drawing.text(8, 112, "payments", "head")
    for start, key in ((0.5, "1"), (2.5, "2")):
        top = 62 if key == "1" else 34
        line.span(start, start + 4, top, "", "old")
        drawing.dot(line.at(start), top + 11)
        drawing.text(line.at(start) + 10, top + 15, f"order {key}: partners until {start + 4:g}")
    for moment in (1.5, 3.5):
        drawing.dot(line.at(moment), 125)
        drawing.text(line.at(moment) + 8, 129, "order 1")
        drawing.line(line.at(moment), 118, line.at(moment), 88, "arrow", arrow=True)
    line.mark(6.5, "", 60)
    line.mark(7.5, "", 60)
    line.span(6.5, 7.5, 150, "grace")
    drawing.text(line.at(7.5) + 8, 70, "T > 7.5: order 2 comes out alone", "late")
    return drawing


def commit() -> Drawing:
    """What a crash leaves of two commits."""
    lanes = Lanes(
        "A killed process: commits that returned are there, the one in progress whole or not", "process", "after it"
    )
    lanes.step(0, 130, 60, "put", "old")
    lanes.step(0, 200, 110, "commit() = 1")
    lanes.step(0, 320, 60, "put", "old")
    lanes.step(0, 390, 96, "commit() ...", "old")
    lanes.death(0, 504, "killed")
    lanes.message(0, 1, 255, "acknowledged")
    lanes.message(0, 1, 438, "in progress")
    lanes.step(1, 200, 110, "version 1")
    lanes.step(1, 376, 124, "2, whole, or not", "old")
    return lanes


def checkpoints() -> Drawing:
    """A checkpoint that fails: commits go on."""
    lanes = Lanes("A failed checkpoint fails no commit: the changelog holds every version", "commits", "checkpoints")
    for number in range(6):
        lanes.step(0, 130 + 84 * number, 66, str(number + 1))
    lanes.message(0, 1, 246)
    lanes.step(1, 218, 66, "of 2")
    lanes.message(0, 1, 414)
    lanes.death(1, 414, "fails: a WARNING")
    lanes.message(0, 1, 582, "30 s later")
    lanes.step(1, 554, 66, "of 6")
    return lanes


def owners() -> Drawing:
    """Two owners of one state on an object store."""
    lanes = Lanes(
        "Two owners of a state on an object store: the later one has it, with all that counts",
        "owner A",
        "storage",
        "owner B",
    )
    lanes.step(0, 130, 80, "commit 1")
    lanes.message(0, 1, 170)
    lanes.step(1, 140, 60, "1")
    lanes.step(2, 240, 100, "opens: at 1")
    lanes.message(2, 1, 290, "claims")
    lanes.step(1, 260, 60, "claim")
    lanes.step(0, 370, 80, "commit 2")
    lanes.message(0, 1, 410, "refused", lost=True)
    lanes.step(2, 480, 80, "commit 2")
    lanes.message(2, 1, 520)
    lanes.step(1, 490, 60, "2")
    return lanes


def lost_answer() -> Drawing:
    """A create whose answer is lost."""
    lanes = Lanes("A create whose answer is lost is repeated, and recognised: it is there once", "commit", "storage")
    lanes.step(0, 130, 90, "create 7")
    lanes.message(0, 1, 150)
    lanes.step(1, 130, 90, "7 is there")
    lanes.message(1, 0, 200, "answer lost", lost=True)
    lanes.step(0, 330, 90, "create 7")
    lanes.message(0, 1, 350)
    lanes.step(1, 330, 90, "exists")
    lanes.message(1, 0, 400, "its own mark?")
    lanes.step(0, 510, 130, "commit returns")
    return lanes


def batches() -> Drawing:
    """Attempts of one batch on Spark."""
    lanes = Lanes(
        "Spark runs a batch again: of a version, the object of the newest launch counts",
        "launch 1",
        "storage",
        "launch 2",
    )
    lanes.step(1, 130, 90, "version 7")
    lanes.step(0, 240, 90, "batch 7")
    lanes.death(0, 346, "its driver is killed")
    lanes.step(2, 370, 110, "batch 7 again")
    lanes.message(2, 1, 425)
    lanes.step(1, 380, 90, "version 8")
    lanes.message(0, 1, 530, "a late write is void", lost=True)
    return lanes


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
        720, 300, "What a restore tries, in order: newest checkpoint, older ones, the whole changelog, an error"
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


def again() -> Drawing:
    """Two runs of a topology: which results the second one hands out again."""
    drawing = Lanes(
        "The results of the newest two commits come again after a kill", "a run", "the next run", "kept once"
    )
    for commit, x in ((1, 130), (2, 240), (3, 350)):
        drawing.step(0, x, 96, f"commit {commit}")
    drawing.death(0, 466, "killed")
    drawing.step(1, 240, 96, "2, again", "old")
    drawing.step(1, 350, 96, "3, again", "old")
    drawing.step(1, 460, 96, "commit 4")
    for commit, x in ((1, 130), (2, 240), (3, 350), (4, 460)):
        drawing.step(2, x, 96, f"file {commit}")
    return drawing


def tiers() -> Drawing:
    """Where a record of a large state is, and what a read costs there."""
    drawing = Drawing(
        720, 232, "Where a record is, and what its read costs: memory, a pack on the disk, an object store"
    )
    places = (
        ("the maps, in memory", "new, or touched: less than a microsecond"),
        ("a block of a pack, on the disk", "cold: a record in microseconds, a block in half a millisecond"),
        ("a pack on an object store", "a request for neighbouring blocks, until the cache has the pack"),
    )
    for number, (name, words) in enumerate(places):
        y = 20 + 76 * number
        drawing.box(16, y, 230, 44, name, "box" if number == 0 else "old")
        drawing.text(264, y + 27, words, "soft")
        if number:
            drawing.line(96, y - 4, 96, y - 28, "arrow", arrow=True)
            drawing.text(104, y - 11, "touched")
    drawing.line(200, 66, 200, 90, "arrow", arrow=True)
    drawing.text(208, 83, "freed under memory_limit, when a checkpoint has it")
    return drawing


def layers() -> Drawing:
    """What three checkpoints write of a store with four blocks."""
    drawing = Drawing(760, 282, "Checkpoints write layers over blocks, and merge each block alone")
    names = ("block 1", "block 2", "block 3", "block 4")
    for number, name in enumerate(names):
        drawing.text(210 + 140 * number, 24, name, "head", "middle")
    rows: tuple[tuple[str, tuple[tuple[int, str, str], ...]], ...] = (
        ("checkpoint 1", tuple((number, "base", "box") for number in range(4))),
        ("checkpoint 2", ((0, "layer", "box"), (1, "layer", "box"))),
        ("checkpoint 3", ((1, "layer", "box"), (3, "layer", "box"))),
        ("checkpoint 4", ((1, "base, anew", "box"), (2, "layer", "box"))),
    )
    for step, (name, written) in enumerate(rows):
        y = 222 - 58 * step
        drawing.text(16, y + 4, name)
        for block, words, kind in written:
            merged = block == 1 and step < 3
            drawing.box(150 + 140 * block, y - 18, 120, 36, words, "old" if merged else kind)
    drawing.text(
        16, 270, "A reader lays the layers over the base. Grey: no index names it any more, and it is freed.", "soft"
    )
    return drawing


# The floors of the house, from the top: each room of hybridstore with what it is for. tests/docs/test_site.py holds the
# rooms to the folders of the tree.
FLOORS: tuple[dict[str, str], ...] = (
    {"testing": "a program, run in other ways", "serving": "a state over HTTP"},
    {"topologies": "declare, run, apply to a DataFrame, compare with a state"},
    {"importing": "states of Spark's own operators", "rewinding": "back, forks, pins, erase"},
    {"rescaling": "another number of shards"},
    {"inspection": "what is there"},
    {"spark": "queries of Spark"},
    {"topology": "windows, engine, run", "reading": "a state at a version"},
    {"state": "open, commit, checkpoint"},
    {"stores": "key-value, window, session, sliding, suppression"},
    {"aggregation": "aggregators, and the ways to slide"},
)


def house() -> Drawing:
    """The packages and who imports whom."""
    below = 32 + 46 * len(FLOORS)
    drawing = Drawing(
        680, below + 128, "The house: hybridstore imports recovery, recovery imports changelog, never the other way"
    )
    drawing.text(16, 22, "hybridstore", "head")
    for floor, rooms in enumerate(FLOORS):
        width = (648 + 8) / len(rooms) - 8
        for number, (name, words) in enumerate(rooms.items()):
            drawing.box(16 + (width + 8) * number, 32 + 46 * floor, width, 38, f"{name}: {words}")
    drawing.line(340, below - 6, 340, below + 10, "arrow", arrow=True)
    drawing.box(16, below + 14, 648, 38, "recovery: names on disk, checkpoints, restore, verify, prune")
    drawing.line(340, below + 54, 340, below + 70, "arrow", arrow=True)
    drawing.box(16, below + 74, 648, 38, "changelog: mutations, frames, segments; storage on disks and object stores")
    return drawing


FIGURES: dict[str, Callable[[], Drawing]] = {
    "again": again,
    "batches": batches,
    "checkpoints": checkpoints,
    "commit": commit,
    "emission": emission,
    "house": house,
    "join": join,
    "kafka-sliding": kafka_sliding,
    "key-value": key_value,
    "layers": layers,
    "lost-answer": lost_answer,
    "owners": owners,
    "record": record,
    "restore": restore,
    "session": session,
    "sliding": sliding,
    "stream-time": stream_time,
    "suppression": suppression,
    "tiers": tiers,
    "watermark": watermark,
    "window": window,
    "windows": windows,
}


def main() -> None:
    for name, draw in FIGURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
