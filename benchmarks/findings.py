"""Findings: the sentences of docs/performance-tables.md about what was measured.

A sentence is there when the figures say so, with the figures in it.
"""

# sentences of a page, one to a line

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from benchmarks.measure.result import Line, Result, number
from benchmarks.suites.peer_engines import OFTEN
from benchmarks.suites.restore import KEYS
from hybridstore.stores.time_buckets import BUCKETS_PER_RETENTION
from recovery.block import BLOCK_RECORDS

SPARK = ("spark", "spark over bare", "spark drop-in", "spark restart", "scale-out")
# what only a long run has, also in a larger size than each run, and pages take over from the newest one
LONG = (
    *(*SPARK, "peer engines", "nexmark", "nexmark on spark", "shuffle bench"),
    *("commit latency", "state by limit", "beyond memory", "checkpoint bytes"),
)


class Figures:
    """The lines of all results, by suite and name; of restarts, by size."""

    def __init__(self, results: Sequence[Result]) -> None:
        self._results = results
        self._lines = {(result.suite, line.name): line for result in results for line in result.lines}
        self.restarts = sorted(self.restarts_of(16, "warm"), key=lambda result: int(result.settings["records"]))

    def restarts_of(self, value_size: int | None, cache: str) -> list[Result]:
        """Return the restarts from this cache with values of this size; None: of any other size than 16."""
        return [
            result
            for result in self._results
            if result.suite == "restore"
            and result.settings["cache"] == cache
            and (result.settings["value_size"] == value_size if value_size else result.settings["value_size"] != 16)
        ]

    def of(self, suite: str) -> list[Result]:
        """Return the results of a suite."""
        return [result for result in self._results if result.suite == suite]

    def line(self, suite: str, name: str) -> Line | None:
        """Return one line, or None when it was not measured."""
        return self._lines.get((suite, name))

    def starting(self, suite: str, start: str) -> list[Line]:
        """Return the lines of a suite whose name begins so."""
        return [line for (where, name), line in self._lines.items() if where == suite and name.startswith(start)]


def line_of(result: Result, name: str) -> Line | None:
    """Return a line of one result, or None."""
    return next((line for line in result.lines if line.name == name), None)


def restart(figures: Figures) -> list[str]:
    """What is surprising in a restart."""
    if not figures.restarts:
        return []
    sentences: list[str] = []
    smallest, largest = figures.restarts[0], figures.restarts[-1]
    records, tail = largest.settings["records"], largest.settings["tail"]
    ready, spent = largest.find("hybridstore: ready"), largest.find("hybridstore: tail")
    others = [line for line in largest.lines if line.name.endswith(": to the first read and write")]
    faster = [line for line in others if line.value < ready.value and "-log:" not in line.name]
    crashed = [line for line in others if "-log:" in line.name]
    if faster:
        names = ", ".join(f"{line.name.partition(':')[0]} {line.figure()}" for line in faster)
        sentences.append(
            f"With {records:,} records {names}: sooner than our {ready.figure()}. They replay nothing, for all that "
            f"they hold was flushed into their pages before. Of our time {spent.figure()} are the tail of {tail:,} "
            f"mutations, {number(spent.value / tail * 1e6)} ns each: what was bought with it is a commit that writes "
            "no pages. After a clean close with a checkpoint only the attach is left."
        )
    if crashed:
        names = ", ".join(f"{line.name.partition(':')[0].removesuffix('-log')} {line.figure()}" for line in crashed)
        sentences.append(
            f"With the same {tail:,} records in their own logs, as a crash leaves them, it is {names} (the lines "
            f"named *-log*; ours {ready.figure()}). A write-ahead log of SQLite is an index into pages, which were "
            "packed at the commit; RocksDB's is replayed, as ours is."
        )
    attach, first = largest.find("hybridstore: attach"), smallest.find("hybridstore: attach")
    if largest is not smallest:
        grown = records / smallest.settings["records"]
        sentences.append(
            f"From {smallest.settings['records']:,} to {records:,} records, {number(grown)} times as many, the attach "
            f"takes {first.figure()} and {attach.figure()}: it grows with the lines of the directory, one for "
            f"about {BLOCK_RECORDS:,} records, not with what is stored."
        )
    pickled = line_of(largest, "pickle: to everything in memory")
    if pickled and pickled.ratio is not None and pickled.ratio < 1:
        sentences.append(
            f"A pickle loaded whole takes {number(pickled.ratio)}x our time to *everything in memory*: it makes the "
            "same objects without looking at a checksum, and cannot serve its first read before. It would have to be "
            "written whole at every checkpoint, and can run code when it is read, so it is no format for state."
        )
    for result in figures.restarts:
        speed, size = line_of(result, "hybridstore: full load"), int(result.settings["records"])
        if speed and speed.met is False:
            each = size / (min(KEYS, size) * BUCKETS_PER_RETENTION)
            sentences.append(
                f"The full load of {size:,} records comes at {speed.figure()} (target "
                f"{speed.target.text(speed.unit) if speed.target else ''}: missed): a time bucket holds "
                f"{number(each)} records of a key there, and each key of each bucket is a step in Python, whatever it "
                "holds. With more records to a key it is faster; the lines *key_value* are without buckets."
            )
    for result in figures.restarts_of(None, "warm"):
        wide, few = result.find("hybridstore: tail"), result.settings["tail"]
        each = wide.value / few * 1e6
        sentences.append(
            f"With values of {result.settings['value_size']:,} bytes a mutation of the tail takes {number(each)} ns: "
            "reading, checksum and digest go over every byte of it, at "
            f"{number(result.settings['value_size'] / each)} GB/s together. A checkpoint policy by restart time "
            "therefore counts bytes too."
        )
    for result in figures.restarts_of(16, "cold"):
        speed, same = (
            result.find("hybridstore: full load"),
            [r for r in figures.restarts if r.settings["records"] == result.settings["records"]],
        )
        if same and speed.value < same[0].find("hybridstore: full load").value / 1.5:
            sentences.append(
                f"From a cold cache *everything in memory* comes at {speed.figure()} instead of "
                f"{same[0].find('hybridstore: full load').figure()}: it waits for the disk. The first read and write "
                f"wait for {number(result.find('hybridstore: ready').value)} ms instead of "
                f"{number(same[0].find('hybridstore: ready').value)}, because only one block and the tail are read."
            )
    return sentences


def stores(figures: Figures) -> list[str]:
    """What is surprising in the stores."""
    sentences: list[str] = []
    columns = figures.line("stores", "key_value: put_columns + changelog")
    if columns and columns.ratio is not None and columns.ratio < 1:
        sentences.append(
            f"By column a key-value store is faster than the bare loop ({number(columns.ratio)}x), which logs "
            "nothing: the interpreter is entered once for a thousand rows, not for each."
        )
    for kind in ("window, sparse", "window, dense", "session"):
        many, column = (figures.line("stores", f"{kind}: {way} + changelog") for way in ("put_many", "put_columns"))
        if many and column and column.value > 0.95 * many.value:
            sentences.append(
                f"{kind}: `put_columns` ({column.figure()}) is no faster than `put_many` ({many.figure()}), which "
                "turns rows into the same columns: what is left is the growth of a run per row, and that is the same "
                "loop."
            )
    hand, found_sessions = (
        figures.line("stores", "session: sorted list by hand"),
        figures.line("stores", "session: find_sessions around a moment"),
    )
    if hand and found_sessions and found_sessions.value < hand.value:
        sentences.append(
            f"`find_sessions` ({found_sessions.figure()}) beats a sorted list per key by hand ({hand.figure()}): the "
            "list is walked from the first end on, the store bisects at both ends."
        )
    longest, mean = (
        figures.line("stores", "window: longest put in the steady state, processor time"),
        figures.line("stores", "window: mean put in the steady state, two clock reads included"),
    )
    if longest and mean:
        sentences.append(
            f"The longest put of the steady state ({longest.figure()}) is {number(longest.value * 1e6 / mean.value)} "
            f"times the mean: it frees a whole bucket, one of {BUCKETS_PER_RETENTION}, and nothing is left to free "
            "for a long while."
        )
    return sentences + profiles(figures)


def profiles(figures: Figures) -> list[str]:
    """For each way of putting that missed its target, the functions in which most of its time goes."""
    sentences: list[str] = []
    for line in figures.starting("stores", ""):
        kind, _, way = line.name.partition(": ")
        way = way.partition(" ")[0]
        if line.met is not False or not way.startswith("put"):
            continue
        parts = figures.starting("profile", f"{kind}: {way}: ")
        shares = ", ".join(f"`{part.name.split(': ', 2)[2]}` {number(part.value)} %" for part in parts)
        sentence = f"{kind}: `{way}` missed its target. Own time by function, under cProfile: {shares}."
        if parts and sentence not in sentences:
            sentences.append(sentence)
    return sentences


def checkpoint(figures: Figures) -> list[str]:
    """What is surprising in checkpoints."""
    whole = figures.line("checkpoint", "first checkpoint, written whole")
    parts = figures.starting("checkpoint", "incremental checkpoint")
    sentences = []
    if whole and parts and parts[0].value > whole.value:
        sentences.append(
            f"The incremental checkpoint takes {number(parts[0].value / whole.value)} times as long as the whole one. "
            "The owner waits for the whole one and puts on beside the other, and both need Python's lock: most of the "
            "time is the owner's. What the owner feels of it is the pause and the longest put."
        )
    return sentences


def changelog(figures: Figures) -> list[str]:
    """What is surprising in the changelog."""
    single, many = (figures.line("changelog", f"durable commits of {count} puts") for count in ("1", "10,000"))
    if not single or not many:
        return []
    return [
        f"A commit of one put gives {single.figure()}, one of ten thousand {many.figure()}: the sync of the disk is "
        f"the price of a commit, not the records. Here a sync takes about {number(1000 / single.value)} µs; on other "
        "disks it takes milliseconds."
    ]


def sliding(figures: Figures) -> list[str]:
    """What is surprising in sliding windows."""
    sentences = []
    least = figures.starting("sliding", "adds/record, least possible")
    ladder = figures.starting("sliding", "adds/record, ladder leaf 2")
    if least and ladder:
        sentences.append(
            f"The ladder needs {number(ladder[-1].value)} adds a record where no scheme that only adds can do with "
            f"less than {number(least[-1].value)} ({ladder[-1].name.rpartition(', ')[2]}): nothing is left to be had "
            "there by another scheme."
        )
    return sentences


def growth(figures: Figures) -> list[str]:
    """What is surprising in bytes per record."""
    rivals = [rival for rival in figures.starting("changelog bytes", "sliding") if rival.ratio and rival.ratio > 1]
    if not rivals:
        return []
    most = max(rivals, key=lambda rival: rival.ratio or 0)
    return [f"Logging what could be rebuilt costs up to {number(most.ratio or 0)} times our bytes ({most.name})."]


def peer_engines(figures: Figures) -> list[str]:
    """What is surprising beside other engines."""
    sentences = []
    for result in figures.of("peer engines"):
        work = result.settings["work"]
        first, ours = (line_of(result, f"{who}: to the first new result") for who in ("DuckDB", "hybridstore, Arrow"))
        imports, our_imports = (
            line_of(result, f"{who}: start and imports") for who in ("DuckDB", "hybridstore, Arrow")
        )
        if first and ours and imports and our_imports and first.met is False:
            sentences.append(
                f"{work}: DuckDB has a new result after {first.figure()}, ours from Arrow after {ours.figure()}. Of "
                f"ours {our_imports.figure()} are the start of Python and imports, of DuckDB's {imports.figure()}; "
                "ours then goes on behind the last commit, as DuckDB does."
            )
        often, less = (line_of(result, f"Bytewax{how}: written per event") for how in (OFTEN, ""))
        if often and less and often.value > 10 * less.value:
            sentences.append(
                f"{work}: Bytewax writes {often.figure()} an event with a snapshot for each batch of 1,000, and "
                f"{less.figure()} with one a second: each key of a batch is a row of SQLite, which writes whole pages; "
                "ours writes what changed to the end of a file."
            )
        if less and less.met is False:
            sentences.append(
                f"{work}, {result.settings['events']:,} events: Bytewax writes {less.figure()} an event, "
                f"{number(less.ratio or 0)} times ours: ours keeps results in its changelog, too, to hand them out "
                "again after a crash, where Bytewax cuts its file of results off and writes them anew."
            )
        many, few = (line_of(result, f"{who}: most memory") for who in ("Pathway", "hybridstore, dicts"))
        if work == "hopping" and many and few:
            sentences.append(
                f"{work}: Pathway takes {many.figure()} for {result.settings['events']:,} events, ours {few.figure()}: "
                "an event is a row for each of the 60 windows that hold it there, and one sum of its second here."
            )
    return sentences


ABOUT: dict[str, Callable[[Figures], list[str]]] = {
    "peer engines": peer_engines,
    "stores": stores,
    "checkpoint": checkpoint,
    "changelog": changelog,
    "sliding": sliding,
    "changelog bytes": growth,
}


def wall(figures: Figures) -> list[str]:
    """Where Python itself is the wall, and what other forms would give."""
    put, floor, native, call, column = (
        figures.line("walls", name)
        for name in (
            "put + changelog",
            "the floor: log and insert, nothing checked",
            "two C calls: log and dict, and the packing",
            "a call with three arguments that does nothing, and the loop",
            "put_columns + changelog",
        )
    )
    if not (put and floor and native and call and column):
        return ["This was not measured in this run."]
    sentences = [
        f"A put of a window store with its share of the changelog costs {put.figure()}. The least that Python can do "
        f"for it, one call that logs a tuple and puts a row into a bucket and checks nothing, costs {floor.figure()}; "
        f"an empty call with the loop around it {call.figure()}. So {number(floor.value / put.value * 100)} % of a "
        f"put are the language, and the rest, {number(put.value - floor.value)} ns, is what makes it a store: the "
        "types of key, value and time, lateness, expiry, open snapshots, what the next checkpoint has to write. Each "
        "of these is a comparison or an attribute, and none is a loop.",
        "A native core could take those away, and the call. What it could not is the hashing, the packing and the "
        "copying, which are C already. Two C calls from the same loop, one that logs and one that inserts into a "
        f"dict, with the packing, come to {native.figure()}: a put could at best be "
        f"{number(put.value / native.value)} times as fast. By column, where the interpreter is entered once for many "
        f"rows, it is {number(put.value / column.value)} times as fast today ({column.figure()}). That is why the "
        "batch ways come first, and a native core would be worth its build only for single puts.",
    ]
    packed, whole = (
        figures.line("walls", "packed blocks, checked and kept in place"),
        figures.line("walls", "blocks as they are, to objects"),
    )
    objects, first, point = (
        figures.line("walls", name)
        for name in ("packed blocks, then to objects", "first read of a packed block", "point read of a packed block")
    )
    before, size, old_size = (
        figures.line("walls", name) for name in ("first read of a block as it is", "packed block", "block as it is")
    )
    if packed and whole and objects and first and point and before and size and old_size:
        sentences.append(
            "Packed blocks read in place, times and offsets in fixed width beside one arena of bytes, were tried and "
            f"not taken. They are there at {packed.figure()}, checked, where blocks as they are become objects at "
            f"{whole.figure()}; the first read of a block costs {first.figure()} instead of {before.figure()}. But "
            f"every later read costs {number(point.ratio or 0)} times a dict's ({point.figure()}), a full load to "
            f"objects falls to {objects.figure()}, because each value is cut out by a step of Python where msgpack "
            f"makes them all in C, and a block takes {size.figure()} instead of {old_size.figure()}. A restart reads "
            f"one block before it serves: the gain would be {number(before.value - first.value)} µs of it."
        )
    pack, unpack = (figures.line("walls", f"frame by column: {what}") for what in ("pack", "unpack"))
    bytes_now, bytes_then = figures.line("walls", "frame of puts as it is"), figures.line("walls", "frame by column")
    if pack and unpack and bytes_now and bytes_then:
        sentences.append(
            f"Frames by column for single puts: packing {number(pack.ratio or 0)}x, unpacking "
            f"{number(unpack.ratio or 0)}x of what it is, {number(bytes_then.value)} bytes a record instead of "
            f"{number(bytes_now.value)}. A replay would gain "
            f"{number(unpack.value / (unpack.ratio or 1) - unpack.value)} ns a mutation by it and every put would "
            f"lose {number(pack.value - pack.value / (pack.ratio or 1))}. Batches are logged by column already, and a "
            "frame of single puts of one store is turned into columns when it is replayed: that needs no other format."
        )
    return sentences


_NO_FLINK: Final = (
    "Flink: PyFlink's state is in its JVM too; its way of logging running aggregates is under changelog bytes."
)


def left_out(results: Sequence[Result], full: bool) -> list[str]:
    """What was not compared, and why."""
    suites = {result.suite for result in results}
    sentences = []
    if not suites.issuperset({"spark", "spark restart"}):
        sentences.append("Spark's engines: `make bench FULL=1` adds them; they need Java and most of an hour.")
    if not full:
        sentences.append("5 M records, 10 M to grow to, and sliding windows above 1,000 records: `make bench FULL=1`.")
    sentences += [
        "Real power loss, other file systems and network disks: not available here.",
        "Kafka Streams itself: its stores are behind a broker and a JVM. Its algorithms are compared instead: "
        "KIP-450's buckets under sliding windows, logging every overlapping window under changelog bytes.",
        "Faust keeps its state in RocksDB behind a broker: the stores above stand for it without its overhead."
        if "peer engines" in suites
        else "Faust, Quix and Bytewax keep their state in RocksDB, SQLite or pickles: the engines above stand for them "
        "without their frameworks' overhead.",
        *([] if "nexmark" in suites else [_NO_FLINK]),
        "RocksDB, LMDB and SQLite as stores to put into: their commits are other promises (a page, a write-ahead "
        "log), so only their restart is compared, where all hold the same records.",
        *sorted({note.rstrip(".") + "." for result in results for note in result.notes}),
    ]
    return sentences
