"""docs/inspect.md shows what the commands really print: every console block is run, in order, on one fixed state.

HYBRIDSTORE_WRITE_DOCS=1 writes the page anew; look at the difference before committing it.
"""

import io
import os
import re
import shlex
import zlib
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import hybridstore as hs
from hybridstore.cli import GROUPS, run
from tests.tools.hooks import as_reference_machine

PAGE = Path(__file__).resolve().parents[2] / "docs" / "inspect.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
START = 1_767_225_600  # 2026-01-01T00:00:00Z
# Sizes and names of indexes are those of the streams of zlib 1.2 and 1.3; zlib-ng, say, compresses otherwise.
SAME_STREAMS = zlib.crc32(zlib.compress(b"".join(b"%d" % (i * i) for i in range(2000)))) == 0x35D85E78


class Clock:
    """What `time` says: it stands still until the script of a state moves it, however often it is asked."""

    def __init__(self) -> None:
        self.ms = START * 1000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A directory with the states that the page speaks of, and a terminal of 80 columns that shows both streams."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    with monkeypatch.context() as fixed:
        clock = Clock()
        fixed.setattr("time.time", lambda: clock.ms / 1000)
        fixed.setattr("time.time_ns", lambda: clock.ms * 1_000_000)
        fixed.setattr("os.urandom", lambda size: bytes(range(size)))
        _shop(Path("state"), clock)
        _damaged(Path("damaged"))
        _job(Path("job"))
    # estimates are of this machine, the page's are not
    as_reference_machine(monkeypatch)
    # no act is so long here that a bar is shown, however slow the machine is
    monkeypatch.setattr("hybridstore.progress._PATIENCE_SECONDS", 1e9)
    # what a redacted export draws
    monkeypatch.setattr("os.urandom", lambda size: bytes(range(size)))
    return Terminal()


def _shop(path: Path, clock: Clock) -> None:
    with hs.open(path, checkpoints=hs.CheckpointPolicy(keep=3)) as state:
        names = state.key_value("names")
        clicks = state.window("clicks", retention="1 hour")
        visits = state.session("visits", retention="1 day")
        names.put_many([(f"user{i:02}", {"visits": 0}) for i in range(40)])
        state.commit()
        for minute in range(30):
            ts = START * 1000 + minute * 60_000
            clicks.put_many([(f"user{(minute * 7 + i) % 40:02}", minute + i, ts + i * 1000) for i in range(10)])
            if minute % 10 == 9:
                visits.put(f"user{minute:02}", {"pages": minute}, start=ts - 300_000, end=ts)
                names.put("user07", {"visits": minute})
                state.set("position", minute * 10)
                clock.ms += 1500
                state.commit()
                if minute < 25:
                    state.checkpoint(wait=True)


def _damaged(path: Path) -> None:
    with hs.open(path) as state:
        names = state.key_value("names")
        for i in range(3):
            names.put("user07", f"value {i}")
            state.commit()
    (segment,) = (path / "changelog").glob("*.log")
    raw = bytearray(segment.read_bytes())
    raw[raw.find(b"value 1")] ^= 1
    segment.write_bytes(raw)


def clicks(**aggregates: hs.Aggregator) -> hs.Topology:
    """The job of the page."""
    windows = hs.TumblingWindows("1 minute")
    return hs.stream(key="user", timestamp="ts").windowed_by(windows).aggregate(requests=hs.Count(), **aggregates)


# What `changes` imports as clicks_job.
PROGRAM = clicks(largest=hs.Max("bytes"))


def _job(path: Path) -> None:
    rows = [{"user": f"user{i % 3}", "ts": START * 1000 + i * 10_000, "bytes": i} for i in range(30)]
    for _ in clicks(bytes=hs.Sum("bytes")).run(rows[:20], path, commit_rows=10):
        pass
    for _ in clicks().run(rows, path, commit_rows=10, allow="drop aggregate bytes"):
        pass
    module = f"from {__name__} import PROGRAM as topology\n"
    Path("clicks_job.py").write_text(module, encoding="utf-8")


def shown(block: str, terminal: Terminal) -> str:
    """Run the commands of a block and return it as it should read."""
    lines: list[str] = []
    for line in block.splitlines():
        if not line.startswith("$ "):
            continue
        terminal.seek(0)
        terminal.truncate()
        words = shlex.split(line[2:])
        assert words[0] in ("hybridstore", "echo"), line
        if words[0] == "hybridstore":
            with redirect_stdout(terminal), redirect_stderr(terminal):
                code = run(words[1:])
            lines += [line, *terminal.getvalue().splitlines()]
        else:
            lines += [line, str(code)]
    return "".join(f"{line.rstrip()}\n" for line in lines)


@pytest.mark.skipif(not SAME_STREAMS, reason="zlib compresses otherwise here than where the page was made")
def test_the_page_shows_what_the_commands_print(terminal: Terminal) -> None:
    page = PAGE.read_text(encoding="utf-8")
    fresh = BLOCK.sub(lambda match: f"```console\n{shown(match.group(1), terminal)}```", page)
    if os.environ.get("HYBRIDSTORE_WRITE_DOCS"):
        PAGE.write_text(fresh, encoding="utf-8")
    assert page == fresh


def test_every_command_is_shown() -> None:
    # the page of joins shows what only a join has
    page = "".join(path.read_text(encoding="utf-8") for path in (PAGE, PAGE.parent / "joins.md"))
    missing = [name for name in GROUPS["inspect"].commands if f"$ hybridstore inspect {name} " not in page]
    assert missing == []
