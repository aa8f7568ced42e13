"""Serving: gets over HTTP from `hybridstore serve`, beside the job that commits; every answer is checked.

    python -m benchmarks.suites.serving [--records 5000000] [--gets 20000] [--seconds 8]

    latency      one connection, one get after the other: half of them and 99 of 100 are below this (ms)
    rate         four connections at once: gets for each second of the server's processor time, and of the clock
    visible      from a commit's return until a get has the committed value (ms): with `min_version`, and without
    owner        processor time of the same commits alone, beside a server that follows, and beside a process that only
                 counts, for as much processor time as that server takes: what any busy process beside it costs
    memory       of the server: anonymous bytes after all gets; with a limit, the most of them between gets

The client writes and reads bare sockets, so that it costs little: on two cores it runs beside the server.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from time import perf_counter, process_time, sleep

import hybridstore as hs
from benchmarks.measure.timing import WrongAnswerError

BATCH = 100_000
CONNECTIONS = 4
COMMITS = 80
COMMIT_ROWS = 2_000
OWNER_TURNS = 36
# Counts for a share of each 50 ms, which is how often a server looks for newer versions.
COUNTING = """
import sys, time
share, number = float(sys.argv[1]), 0
print(flush=True)
while True:
    begun = time.perf_counter()
    while time.perf_counter() - begun < 0.05 * share:
        number += 1
    time.sleep(0.05 * (1 - share))
"""
GOALS = {"p99 ms": 2.0, "gets/s a core": 5_000.0, "visible ms": 100.0, "owner x": 1.03, "limit x": 1.15}
LEAST_LIMIT = 64_000_000


def value_of(number: int) -> str:
    """Return the value of a key."""
    return f"value-{number:09d}-{'x' * 12}"


def build(path: Path, records: int) -> None:
    """Write a state with this many records, a checkpoint, and a little changelog behind it."""
    with hs.open(path, checkpoints=hs.CheckpointPolicy(every_commits=None), durability="os") as state:
        users = state.key_value("users")
        for start in range(0, records, BATCH):
            users.put_many({f"user-{i:09d}": value_of(i) for i in range(start, min(start + BATCH, records))})
            state.commit()
        state.checkpoint(wait=True)
        users["last"] = 0
        state.commit()


@contextmanager
def server(path: Path, *more: str) -> Iterator[tuple[int, int]]:
    """Run `hybridstore serve` in a process of its own; yield its process and its port."""
    command = [sys.executable, "-m", "hybridstore", "serve", str(path), "--port", "0", *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield process.pid, int(line.partition("127.0.0.1:")[2].split()[0])
    finally:
        process.terminate()
        process.wait()


class Client:
    """One connection that is kept."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get(self, key: str, query: str = "") -> bytes:
        """Return the body of the answer to a get of a key of the store `users`."""
        self._socket.sendall(f"GET /stores/users/rows?key={key}{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._receive(key)
        head, body = data[:end].lower(), data[end + 4 :]
        size = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        while len(body) < size:
            body += self._receive(key)
        if not head.startswith(b"http/1.1 200"):
            raise WrongAnswerError(f"{key}: {head[:40]!r} {body!r}")
        return body

    def _receive(self, key: str) -> bytes:
        part = self._socket.recv(65536)
        if not part:
            raise WrongAnswerError(f"{key}: the server ended the connection in the middle of an answer")
        return part

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def check(body: bytes, key: str, value: object) -> None:
    """Raise WrongAnswerError unless an answer has this value."""
    rows = json.loads(body)["rows"]
    if rows != [{"key": key, "value": value}]:
        raise WrongAnswerError(f"{key}: found {rows}, expected {value!r}")


def gets(port: int, records: int, count: int, seed: int, times: list[float]) -> None:
    """Get random keys over one connection; append the time of each (s)."""
    draw, client, bodies = random.Random(seed), Client(port), []
    for _ in range(count):
        number = draw.randrange(records)
        key = f"user-{number:09d}"
        begun = perf_counter()
        body = client.get(key)
        times.append(perf_counter() - begun)
        bodies.append((body, key, value_of(number)))
    client.close()
    for body, key, value in bodies:
        check(body, key, value)


def cpu_of(pid: int) -> float:
    """Return the processor time of a process (s)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def warm_up(pid: int) -> None:
    """Return when the server has loaded the records, as far as it does: its memory grows no more."""
    sizes = [0, anonymous(pid)]
    while sizes[-1] > sizes[-2] * 1.001:
        sleep(1.0)
        sizes.append(anonymous(pid))


def anonymous(pid: int) -> int:
    """Return the anonymous memory of a process (bytes)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def measure_gets(path: Path, records: int, count: int) -> None:
    """Print latency, rate and memory of gets."""
    with server(path) as (pid, port):
        idle = anonymous(pid)
        warm_up(pid)
        gets(port, records, min(count, 2_000), 1, [])
        times: list[float] = []
        gets(port, records, count, 2, times)
        times.sort()
        p50, p99 = (times[int(len(times) * share)] * 1000 for share in (0.5, 0.99))
        show("latency, one connection", f"half below {p50:.2f} ms, 99 % below {p99:.2f} ms", p99 < GOALS["p99 ms"])
        many: list[list[float]] = [[] for _ in range(CONNECTIONS)]
        cpu, wall = cpu_of(pid), perf_counter()
        with ThreadPoolExecutor(CONNECTIONS) as threads:
            started = [
                threads.submit(gets, port, records, count // CONNECTIONS, 3 + at, times)
                for at, times in enumerate(many)
            ]
            for each in started:
                each.result()  # a wrong answer ends the run
        cpu, wall = cpu_of(pid) - cpu, perf_counter() - wall
        total = sum(map(len, many))
        rate = total / cpu
        text = f"{rate:,.0f} gets for a second of the server's processor, {total / wall:,.0f} a second of the clock"
        show(f"rate, {CONNECTIONS} connections", text, rate >= GOALS["gets/s a core"])
        show("memory of the server", f"{anonymous(pid) / 1e6:.0f} MB, {idle / 1e6:.0f} before it was warm", None)
    limit = max(LEAST_LIMIT, records * 40)  # about a third of what the records take
    with server(path, "--memory-limit", str(limit)) as (pid, port):
        most = 0
        for seed in range(8):
            gets(port, records, count // 8, 10 + seed, [])
            most = max(most, anonymous(pid))
        text = f"{most / 1e6:.0f} MB, {idle / 1e6:.0f} MB of them before; the limit is {limit / 1e6:.0f} MB"
        show("memory with a limit", text, most <= GOALS["limit x"] * limit)


def measure_visible(path: Path) -> None:
    """Print how long a commit takes to be seen: by a client that asks for its version, and by one that asks for none,
    again and again.
    """
    waits: tuple[list[float], list[float]] = ([], [])
    with server(path) as (_, port), hs.open(path) as state:
        client, users = Client(port), state.key_value("users")
        for number in range(COMMITS):
            users["last"] = number
            version = state.commit()
            begun = perf_counter()
            if number % 2:
                body = client.get("last")
                while json.loads(body)["version"] < version:
                    sleep(0.001)
                    body = client.get("last")
            else:
                body = client.get("last", f"&min_version={version}&wait_ms=5000")
            waits[number % 2].append((perf_counter() - begun) * 1000)
            check(body, "last", number)
            sleep(0.013 * (number % 5))
        client.close()
    for name, each in zip(("to who asks for it", "to all"), waits, strict=True):
        text = f"half in {statistics.median(each):.0f} ms, all in {max(each):.0f} ms"
        show(f"visible after a commit {name}", text, max(each) < GOALS["visible ms"])


def commits(state: hs.State, numbers: list[int], seconds: float) -> tuple[float, int]:
    """Update these keys for a time of the clock; return the rows for a second of this process, and the last version."""
    users, rows = state.key_value("users"), 0
    cpu, ended = process_time(), perf_counter() + seconds
    while perf_counter() < ended:
        users.put_many({f"user-{number:09d}": value_of(number) for number in numbers})
        version = state.commit()
        rows += COMMIT_ROWS
    return rows / (process_time() - cpu), version


def measure_owner(path: Path, records: int, seconds: float) -> None:
    """Print what a server beside it costs the owner: rates by processor time, in short turns, in each order of the
    three as often. Both have all records in memory; the server is stopped in the turns of others, and catches up
    before its own.

    A process that shares nothing with the owner costs it processor time, too: the cores share their clock and caches.
    So the price of following is what is beyond that of a process that counts.
    """
    draw = random.Random(7)
    numbers = [draw.randrange(records) for _ in range(COMMIT_ROWS)]
    policy = hs.CheckpointPolicy(every_commits=None)
    turn = seconds / OWNER_TURNS
    with server(path) as (pid, port), hs.open(path, durability="os", checkpoints=policy) as state:
        while state.hydrate(1000):
            pass
        warm_up(pid)
        client, used, clock = Client(port), 0.0, 0.0

        def alone() -> float:
            return commits(state, numbers, turn)[0]

        def beside() -> float:
            nonlocal used, clock
            client.get("last", f"&min_version={state.version}&wait_ms=10000")
            cpu, begun = cpu_of(pid), perf_counter()
            rate, version = commits(state, numbers, turn)
            client.get("last", f"&min_version={version}&wait_ms=10000")
            used, clock = used + cpu_of(pid) - cpu, clock + perf_counter() - begun
            return rate

        for _ in range(5):
            beside()
        rates: list[tuple[float, float, float]] = []
        orders = list(permutations(range(3)))
        with counting(used / clock) as counter, stopped(pid), stopped(counter):
            for number in range(OWNER_TURNS):
                each = [0.0, 0.0, 0.0]
                for which in orders[number % len(orders)]:
                    if which == 0:
                        each[which] = alone()
                    else:
                        with going(pid if which == 2 else counter):
                            each[which] = beside() if which == 2 else alone()
                rates.append((each[0], each[1], each[2]))
        client.close()
    medians = [statistics.median(column) for column in zip(*rates, strict=True)]
    busy, ratio, net = (
        middle(sorted(rate[first] / rate[second] for rate in rates)) for first, second in ((0, 1), (0, 2), (1, 2))
    )
    rows = f"{medians[0]:,.0f} rows/s alone, {medians[2]:,.0f} beside"
    show(
        "owner's rows for a second of processor",
        f"{rows}: {ratio_text(ratio)}, {len(rates)} turns",
        ratio[0] <= GOALS["owner x"],
    )
    text = f"{medians[1]:,.0f} rows/s, {ratio_text(busy)}; the server beyond it {ratio_text(net)}"
    show(f"owner beside a process that counts for {used / clock:.0%} of a core", text, net[0] <= GOALS["owner x"])


def middle(ratios: list[float]) -> tuple[float, float, float]:
    """Return the median of sorted ratios, and between which of them it is in 95 of 100 runs (order statistics)."""
    reach = 0.98 * len(ratios) ** 0.5
    first, last = (round((len(ratios) - 1) / 2 + side * reach) for side in (-1, 1))
    return statistics.median(ratios), ratios[max(first, 0)], ratios[min(last, len(ratios) - 1)]


def ratio_text(ratio: tuple[float, float, float]) -> str:
    """Return a ratio with its bounds as text."""
    return "x{:.3f} ({:.3f} to {:.3f})".format(*ratio)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process, but in `going`."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def going(pid: int) -> Iterator[None]:
    """Let a stopped process go on for a while."""
    os.kill(pid, signal.SIGCONT)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGSTOP)


@contextmanager
def counting(share: float) -> Iterator[int]:
    """Run a process that counts for this share of the time, and touches nothing else; yield its id."""
    command = [sys.executable, "-c", COUNTING, str(min(share, 1.0))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it has begun
            yield process.pid
        finally:
            process.kill()


def show(name: str, text: str, reached: bool | None) -> None:
    """Print a line; a missed goal is marked."""
    print(f"{name}: {text}{'' if reached is None else '' if reached else '   GOAL MISSED'}", flush=True)


def main() -> None:
    """Run the suite."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--gets", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=8.0)
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp())
    try:
        build(root / "state", given.records)
        print(f"{given.records:,} records; goals: {GOALS}", flush=True)
        measure_gets(root / "state", given.records, given.gets)
        measure_visible(root / "state")
        measure_owner(root / "state", given.records, given.seconds)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
