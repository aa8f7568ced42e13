"""Run conformance cases (`tests/vectors/*.json`) against anything that offers the plain API.

A case is a store and a list of steps with what they must give; `tests/vectors/README.md` says what the fields are. The
runner knows nothing of models or real stores: a `Subject` opens the state, and the same steps drive either. Each case
can be run in five ways, which differ in what happens to the state between the steps and must not differ in any result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import hybridstore as hs
from hybridstore.state.opening import Tuning
from tests.conftest import SEED, STRESS
from tests.tools.hooks import crash, force_cold
from tests.tools.sizes import SMALL_PARTS

Case = dict[str, Any]
Step = dict[str, Any]

# Thresholds of `hybridstore.open(..., _tuning=SMALL)`: small enough that blocks pack, buckets split and segments roll
# within the steps of a case.
SMALL = Tuning(frame_records=3, segment_bytes=256, block_records=4, bucket_divisor=8, parts=SMALL_PARTS)
# Where the bound of a short run is looked up -> fields of three records: the long form comes early, too
SMALL_RUNS = {
    "hybridstore.stores.window.SHORT": 6,
    "hybridstore.stores.window_runs.SHORT": 6,
    "hybridstore.stores.session.SHORT": 9,
    "hybridstore.stores.session_runs.SHORT": 9,
    # a scan under a limit has a row or two at a time
    "hybridstore.state.memory_budget.LEAST_PIECE": 1,
}
# A cold tail in parts: a row waits until its key is touched or counted, or someone has looked a few times
SMALL_TAIL = {
    "hybridstore.stores.cold_tail.FREE_LOOKS": 3,
    "hybridstore.stores.cold_tail.LEAST_ROWS": 2,
    "hybridstore.stores.cold_tail.FEW_ROWS": 0,
}
# Names of aggregators in the cases -> ours
AGGREGATORS = {"sum": "Sum", "count": "Count", "min": "Min", "max": "Max"}

WAYS = {
    "plain": "as it is",
    "reopened": "closed and reopened from disk before every step",
    "crashed": "checkpoint and a crash of the process before every third step",
    "cold": "all blocks forced cold before every step",
    "tail": "a crash before every step, and nothing of the changelog applied before its key is touched; "
    "now and then a checkpoint",
}


def ways_of(number: int) -> list[str]:
    """Return the ways in which a case is run, by its number: as it is, and one of the others in turn, another one with
    another seed; in `make stress` all.
    """
    plain, *others = WAYS
    return [*WAYS] if STRESS else [plain, others[(number + SEED) % len(others)]]


def opened(path: Path) -> hs.State:
    """Open a state below a folder, with blocks of a few records and without syncs."""
    return hs.open(path / "s", durability="os", _tuning=SMALL)


# The rule at the top of docs/semantics.md, and the only place that decides what is not run: never by the id of a case.
SKIPPED_TAGS = {
    "quirk": "a Kafka defect or oddity, not copied",
    "live-iterator": "our iterators are snapshots (KIP-428); Kafka's see later changes",
    "codec": "order of negative int32 keys by their bytes; our int keys are in order of number",
    "view": "prior values are of Kafka's processor, not of the buffer of KIP-328",
    "sizer": "asserts Kafka's or the KIP's byte sizes; test_design_examples.py runs the KIP's tables",
    "after-close": "a closed store is refused, not read as empty",
    "optional": "an alternative that the KIP rejected",
}
SKIPPED_KAFKA_TAGS = {"changelog": "what Kafka logs beyond effective mutations"}
SKIPPED_TYPES = {
    "time_ordered_buffer": "Kafka's internal store under suppress: reference only",
}


def skip_reason(case: Case) -> str | None:
    """Why a case is not run, or None. Dialect, tags and the type of the store decide alone."""
    tags = case.get("tags") or []
    reasons = [SKIPPED_TAGS[tag] for tag in tags if tag in SKIPPED_TAGS]
    if case["dialect"] == "kafka":
        reasons += [SKIPPED_KAFKA_TAGS[tag] for tag in tags if tag in SKIPPED_KAFKA_TAGS]
    if case["store"]["type"] in SKIPPED_TYPES:
        reasons.append(SKIPPED_TYPES[case["store"]["type"]])
    return reasons[0] if reasons else None


def load(folder: Path) -> list[Case]:
    """All cases of a folder, file by file; an empty folder is an error, so that a wrong path cannot pass."""
    cases = [case for path in sorted(folder.glob("*.json")) for case in json.loads(path.read_text("utf-8"))]
    if not cases:
        raise ValueError(f"vectors: no cases in {folder} (expected *.json files, each a list of cases)")
    return cases


@dataclass(frozen=True)
class Subject:
    """What the cases are run against: how to open its state, and how it says what is not a plain value.

    `logged` gives the rows that the changelog of an open state holds for the store "case": (key, ..., value or None).
    """

    open: Callable[[], Any]
    logged: Callable[[Any], list[tuple[Any, ...]]]
    full_error: type[Exception]
    aggregator: Callable[[str], Any]


# Codecs: what stands in the files <-> what the store is given. int32 keys are ordered by their bytes there.
ENCODE: dict[str, Callable[[Any], Any]] = {
    "string": str,
    "int32": lambda key: key.to_bytes(4, "big", signed=True),
    "hex": bytes.fromhex,
}
DECODE: dict[str, Callable[[Any], Any]] = {
    "string": str,
    "int32": lambda key: int.from_bytes(key, "big", signed=True),
    "hex": bytes.hex,
}
BYTES_OF_VALUE: dict[str, Callable[[Any], int]] = {
    "string": lambda value: len(value.encode()),
    "int64": lambda value: 8,
}


@dataclass
class Lookahead:
    """A Java-like iterator over a Python one: has_next and peek read one row ahead."""

    rows: Iterator[Any]
    ahead: list[Any] = field(default_factory=list)
    finished: bool = False

    def has_next(self) -> bool:
        if not self.ahead and not self.finished:
            # what a closed store has in place of a row is no row, and Java's hasNext does not throw
            with suppress(hs.StateClosedError):
                self.ahead = list(islice(self.rows, 1))
            self.finished = not self.ahead
        return bool(self.ahead)

    def peek(self) -> Any:
        if not self.has_next():
            raise StopIteration
        return self.ahead[0]

    def next(self) -> Any:
        row = self.peek()
        self.ahead = []
        return row

    def close(self) -> None:
        self.ahead, self.finished = [], True


class Runner:
    """One run of one case, in one way."""

    def __init__(self, case: Case, subject: Subject, way: str) -> None:
        self.case = case
        self.params = case["store"]
        self.subject = subject
        self.way = way
        self.state: Any = None
        self.store: Any = None
        self.iterators: dict[str, Lookahead] = {}
        self.dropped_before = 0  # by stores of this case that have been closed since
        self.not_logged: list[range] = []  # positions in the changelog of what `restore` put
        self.errors: dict[str, type[Exception]] = {
            "null": TypeError,
            "invalid_argument": ValueError,
            "exhausted": StopIteration,
            "capacity": subject.full_error,
        }

    def run(self) -> None:
        for number, step in enumerate(self.case["steps"]):
            if step["op"] == "construct":
                self.fails(step, self.start)
                continue
            if self.state is None:
                self.start()
            elif self.store is not None and not any(rows.has_next() for rows in self.iterators.values()):
                self.between(number)
            self.step(number, step)
        if self.state is not None:
            self.state.close()

    def start(self) -> None:
        self.state = self.subject.open()
        self.store = STORES[self.params["type"]](self)

    def between(self, number: int) -> None:
        if self.way == "reopened":
            self.reopen()
        elif self.way == "crashed" and number % 3 == 2:
            self.crash()  # what was committed since the last checkpoint is read from the changelog
            self.state.checkpoint(wait=True)
            self.crash()  # and now everything comes from the checkpoint
        elif self.way == "cold":
            self.state.commit()
            force_cold(self.state)
        elif self.way == "tail":
            if number % 5 == 4:
                self.state.commit()
                self.state.checkpoint(wait=True)
            self.crash()
        self.store._check()

    def reopen(self) -> None:
        self.dropped_before += sum(self.store.dropped.values())
        self.state.commit()
        self.state.close()
        self.start()

    def crash(self) -> None:
        self.dropped_before += sum(self.store.dropped.values())
        self.state.commit()
        crash(self.state)
        self.start()

    def step(self, number: int, step: Step) -> None:
        operation = OPERATIONS[self.params["type"]].get(step["op"]) or COMMON[step["op"]]
        if "error" in step:
            self.fails(step, lambda: operation(self, step))
            return
        actual = operation(self, step)
        where = f"step {number} {json.dumps(step)}"
        if "expect" in step:
            # as JSON text, because Python finds 1, 1.0 and True equal
            assert json.dumps(actual) == json.dumps(step["expect"]), f"{where}: found {actual!r}"
        if "expect_set" in step:
            results, expected = ({json.dumps(row) for row in rows} for rows in (actual, step["expect_set"]))
            assert results == expected, f"{where}: found {actual!r}"

    def fails(self, step: Step, operation: Callable[[], Any]) -> None:
        error = self.errors[step["error"]]
        try:
            result = operation()
        except error:
            return
        raise AssertionError(f"{json.dumps(step)}: expected {error.__name__}, found {result!r}")

    # What the operations below need: keys and values in and out, options, rows as lists

    def key(self, key: Any) -> Any:
        if key is None:
            return None
        if isinstance(key, list):
            return (self.key(key[0]), *key[1:])
        return ENCODE[self.params.get("key", "string")](key)

    def back(self, key: Any) -> Any:
        if isinstance(key, tuple):
            return [self.back(key[0]), *key[1:]]
        return DECODE[self.params.get("key", "string")](key)

    def size_of(self, key: Any, value: Any) -> int:
        """The sizer of the case; a windowed key counts its 8 bytes of window start, as Kafka serializes it."""
        if self.params["sizer"] == "value_chars":
            return len(value or "")
        text, window = (key[0], 8) if isinstance(key, tuple) else (key, 0)
        key_bytes = len(text if isinstance(text, bytes) else text.encode()) + window
        value_bytes = 0 if value is None else BYTES_OF_VALUE[self.params["value"]](value)
        return 8 + key_bytes + value_bytes + 20 + len(self.params["topic"])

    def query(self, step: Step) -> list[list[Any]]:
        return list(QUERIES[self.params["type"]][step["op"]](self, step))


def reverse(step: Step) -> dict[str, bool]:
    return {"reverse": True} if step.get("reverse") else {}


# The stores, by type


def open_window(run: Runner) -> Any:
    given = {name: run.params[name] for name in ("window_size", "grace") if name in run.params}
    return run.state.window(
        "case", retention=run.params["retention"], retain_duplicates=run.params["retain_duplicates"], **given
    )


def open_suppression(run: Runner) -> Any:
    params = run.params
    final = params["mode"] == "window_close"
    rule = (
        {"until_window_closes": params["grace"]}
        if final
        else {"time_limit": params["time_limit"], "timer": params["buffer_time"]}
    )
    return run.state.suppression(
        "case",
        max_records=params["max_records"],
        max_bytes=params["max_bytes"],
        on_full="raise" if params["when_full"] == "shut_down" else "emit",
        size_of=run.size_of,
        **rule,
    )


STORES: dict[str, Callable[[Runner], Any]] = {
    "kv": lambda run: run.state.key_value("case"),
    "window": open_window,
    "session": lambda run: run.state.session("case", retention=run.params["retention"]),
    "suppress": open_suppression,
    "sliding_seed": lambda run: run.state.sliding(
        "case", size=run.params["size"], aggregator=run.subject.aggregator(run.params["aggregator"])
    ),
}


# Queries: lazily, row by row, in the form of the suite


def kv_rows(run: Runner, rows: Any) -> Iterator[list[Any]]:
    return ([run.back(key), value] for key, value in rows)


def window_rows(run: Runner, rows: Any) -> Iterator[list[Any]]:
    return ([run.back(key), ts, value] for (key, ts), value in rows)


def session_rows(run: Runner, rows: Any) -> Iterator[list[Any]]:
    return ([run.back(key), start, end, value] for (key, start, end), value in rows)


def window_fetch(run: Runner, step: Step) -> Iterator[list[Any]]:
    rows = run.store.fetch(run.key(step["key"]), step["from"], step["to"], **reverse(step))
    return ([step["key"], ts, value] for ts, value in rows)


def key_range(run: Runner, step: Step) -> tuple[Any, Any]:
    return run.key(step["key_from"]), run.key(step["key_to"])


Query = Callable[[Runner, Step], Iterator[list[Any]]]
QUERIES: dict[str, dict[str, Query]] = {
    "kv": {
        "range": lambda run, step: kv_rows(run, run.store.scan(*key_range(run, step), **reverse(step))),
        "all": lambda run, step: kv_rows(run, run.store.all(**reverse(step))),
        "prefix_scan": lambda run, step: kv_rows(run, run.store.scan(prefix=run.key(step["prefix"]), **reverse(step))),
    },
    "window": {
        "fetch": window_fetch,
        "fetch_range": lambda run, step: window_rows(
            run, run.store.scan(*key_range(run, step), time_from=step["from"], time_to=step["to"], **reverse(step))
        ),
        "fetch_all": lambda run, step: window_rows(
            run, run.store.scan(time_from=step["from"], time_to=step["to"], **reverse(step))
        ),
        "all": lambda run, step: window_rows(run, run.store.all(**reverse(step))),
    },
    "session": {
        "find_sessions": lambda run, step: session_rows(
            run,
            run.store.find_sessions(run.key(step["key"]), step["earliest_end"], step["latest_start"], **reverse(step)),
        ),
        "find_sessions_range": lambda run, step: session_rows(
            run,
            run.store.find_sessions_range(
                *key_range(run, step), step["earliest_end"], step["latest_start"], **reverse(step)
            ),
        ),
        "find_sessions_by_end": lambda run, step: session_rows(
            run, run.store.find_sessions_by_end(step["earliest_end"], step["latest_end"], **reverse(step))
        ),
        "fetch": lambda run, step: session_rows(run, run.store.fetch(run.key(step["key"]), **reverse(step))),
        "fetch_range": lambda run, step: session_rows(run, run.store.scan(*key_range(run, step), **reverse(step))),
    },
    "suppress": {},
    "sliding_seed": {},
}


# Operations that all types share


def iter_open(run: Runner, step: Step) -> None:
    query = step["query"]
    run.iterators[step["id"]] = Lookahead(iter(QUERIES[run.params["type"]][query["op"]](run, query)))


def iter_peek(run: Runner, step: Step) -> Any:
    row = run.iterators[step["id"]].peek()
    return row[0] if run.params["type"] == "kv" else row[:-1]


def iter_rest(run: Runner, step: Step) -> list[Any]:
    rows = run.iterators[step["id"]]
    rest = []
    while rows.has_next():
        rest.append(rows.next())
    return rest


def restore(run: Runner, step: Step) -> None:
    """Put and commit; the rows of the changelog that this makes are not counted as logged."""
    run.state.commit()
    before = len(run.subject.logged(run.state))
    for record in step["records"]:
        run.store.put(run.key(record[0]), *RECORDS[run.params["type"]](record))
    run.state.commit()
    run.not_logged.append(range(before, len(run.subject.logged(run.state))))


def changelog(run: Runner, step: Step) -> list[list[Any]]:
    run.state.commit()
    rows = enumerate(run.subject.logged(run.state))
    return [[run.back(key), *rest] for number, (key, *rest) in rows if not any(number in gap for gap in run.not_logged)]


def reopen(run: Runner, step: Step) -> None:
    if run.store is None:
        run.start()
    else:
        run.reopen()
    run.dropped_before = 0


def close(run: Runner, step: Step) -> None:
    run.state.commit()
    run.state.close()
    run.store = None
    for rows in run.iterators.values():
        rows.ahead = []  # the iterator itself must say that nothing is left


Operation = Callable[[Runner, Step], Any]
COMMON: dict[str, Operation] = {
    "iter_open": iter_open,
    "iter_has_next": lambda run, step: run.iterators[step["id"]].has_next(),
    "iter_next": lambda run, step: run.iterators[step["id"]].next(),
    "iter_peek": iter_peek,
    "iter_rest": iter_rest,
    "iter_close": lambda run, step: run.iterators[step["id"]].close(),
    "restore": restore,
    "reopen": reopen,
    "changelog": changelog,
    "dropped": lambda run, step: run.dropped_before + sum(run.store.dropped.values()),
    "close": close,
    "flush": lambda run, step: run.state.commit(),
}

# A changelog record without its key -> the arguments of put after the key
RECORDS: dict[str, Callable[[list[Any]], tuple[Any, ...]]] = {
    "kv": lambda record: (record[1],),
    "window": lambda record: (record[2], record[1]),
    "session": lambda record: (record[3], record[1], record[2]),
}


def run_query(run: Runner, step: Step) -> list[list[Any]]:
    return run.query(step)


def suppress_process(run: Runner, step: Step) -> list[list[Any]]:
    emitted = run.store.put(run.key(step["key"]), step["value"], step["ts"])
    return [[run.back(key), value, ts] for key, value, ts in emitted]


def sliding_process(run: Runner, step: Step) -> list[list[Any]]:
    row = run.store.add(run.key(step["key"]), step["value"], step["ts"])
    return [] if row is None else [[run.back(row[0]), *row[1:]]]


def kv_entries(run: Runner, step: Step) -> list[tuple[Any, Any]]:
    return [(run.key(key), value) for key, value in step["entries"]]


OPERATIONS: dict[str, dict[str, Operation]] = {
    "kv": {
        "put": lambda run, step: run.store.put(run.key(step["key"]), step["value"]),
        "get": lambda run, step: run.store.get(run.key(step["key"])),
        "delete": lambda run, step: run.store.delete(run.key(step["key"])),
        "put_if_absent": lambda run, step: run.store.put_if_absent(run.key(step["key"]), step["value"]),
        "put_all": lambda run, step: run.store.put_many(kv_entries(run, step)),
        "size": lambda run, step: len(run.store),
    },
    "window": {
        "put": lambda run, step: run.store.put(run.key(step["key"]), step["value"], step["ts"]),
        "fetch_one": lambda run, step: run.store.get(run.key(step["key"]), step["ts"]),
    },
    "session": {
        "put": lambda run, step: run.store.put(
            run.key(step["key"]), step["value"], start=step["start"], end=step["end"]
        ),
        "remove": lambda run, step: run.store.delete(run.key(step["key"]), step["start"], step["end"]),
        "fetch_session": lambda run, step: run.store.get(run.key(step["key"]), step["start"], step["end"]),
    },
    "suppress": {
        "process": suppress_process,
        "buffered": lambda run, step: [[run.back(key), value, ts] for key, value, ts in run.store.buffered()],
        "num_records": lambda run, step: run.store.num_records,
        "buffer_size": lambda run, step: run.store.buffer_size,
        "min_timestamp": lambda run, step: run.store.min_timestamp,
    },
    "sliding_seed": {"process": sliding_process},
}
for suite, queries in QUERIES.items():
    OPERATIONS[suite].update(dict.fromkeys(queries, run_query))
