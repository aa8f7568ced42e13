"""The HTML page and the Python face: what a state holds is shown as text, whatever it is."""

import base64
import hashlib
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.cli import run
from hybridstore.inspection import inspect
from hybridstore.inspection.api import InspectedState
from hybridstore.inspection.commands.report import over_event_time
from hybridstore.inspection.show.page_style import SCRIPT
from hybridstore.reading.events import UNKNOWN

HOSTILE = [
    "<script>alert(1)</script>",
    "</td></table><img src=x onerror=alert(1)>",
    "'\"><svg onload=alert(1)>",
    "</title></style></script><script>alert(2)</script>",
    "<!--",
    "&lt;b&gt;",
    "\ud800 \x00 \x1b[31m \u202e",
]
VOID = {"meta", "input", "br", "img", "link"}


class Page(HTMLParser):
    """Reads a page strictly: every element must be closed where it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open[-1:] == ["script"] else self.text).append(data)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    path = tmp_path / "<state> & 'co'"
    with hs.open(path) as state:
        for name in HOSTILE:
            kv = state.key_value(name)
            win = state.window(f"w{name}", retention="1 hour")
            for i, text in enumerate(HOSTILE):
                kv.put(text, {text: [text, text.encode("utf-8", "surrogatepass")]})
                win.put(text, text, i * 60_000)
        state.set(HOSTILE[0], HOSTILE[1])
        state.commit()
        state.checkpoint(wait=True)
    return path


def test_the_records_of_a_block_are_spread_over_the_times_between_its_first_and_last() -> None:
    blocks = [(1, 7, 7), (94, 95, 4), (-9, 0, 10), (-9, -1, 9)]
    entries = [SimpleNamespace(low=low, high=high, records=records) for low, high, records in blocks]
    store: Any = SimpleNamespace(span=(0, 95), entries=entries, changed={})
    heights = [height for _, height, _ in over_event_time(store)]
    # 96 ms in slices of 3 ms; of the block that began before the oldest time, all is at that time
    assert (len(heights), heights[:4], heights[-2:]) == (32, [12, 3, 2, 0], [0, 4])


def test_nothing_that_is_stored_becomes_markup(hostile: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    assert run(["inspect", "report", str(hostile), "-o", str(target)]) == 0
    text = target.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert page.scripts == [SCRIPT]
    assert {tag for tag, _ in page.tags} <= {
        *("html", "head", "meta", "title", "style", "body", "header", "main", "article", "section", "script", "svg"),
        *("h1", "h2", "h3", "p", "dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td", "div", "ul", "li"),
        *("rect", "text", "input"),
    }
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert not re.search(r"(src|href)\s*=", re.sub(r"&\w+;", "", text).split("<body>")[0])
    shown = " ".join(page.text)
    assert HOSTILE[0] in shown
    assert HOSTILE[1] in shown
    assert "\x1b" not in text
    assert "\x00" not in text


def test_the_page_allows_its_own_script_only_and_no_network(hostile: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    run(["inspect", "report", str(hostile), "-o", str(target)])
    page = Page(target.read_text(encoding="utf-8"))
    (policy,) = [
        values["content"] for tag, values in page.tags if values.get("http-equiv") == "Content-Security-Policy"
    ]
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert policy is not None
    assert policy.split(";")[0] == "default-src 'none'"
    assert f"script-src 'sha256-{digest}'" in policy
    assert run(["inspect", "report", str(hostile), "-o", str(target)]) == 2
    assert run(["inspect", "report", str(hostile), "-o", str(target), "--force"]) == 0


@pytest.mark.slow
def test_a_browser_runs_nothing_that_a_state_holds(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("needs chromium")
    with hs.open(tmp_path / "s") as state:
        kv = state.key_value("kv")
        for i, payload in enumerate(
            ["<script>document.title='owned'</script>", "<img src=x onerror=\"document.title='owned'\">"]
        ):
            kv.put(payload, payload)
            kv.put(f"k{i}", {payload: [payload]})
        state.commit()
    page = tmp_path / "report.html"
    assert run(["inspect", "report", str(tmp_path / "s"), "-o", str(page)]) == 0
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    answer = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    assert "<title>State of" in answer.stdout
    assert "<title>owned" not in answer.stdout
    assert answer.stdout.count("<script>") == 1
    assert "<img" not in answer.stdout


def test_a_report_of_a_damaged_state_names_the_damage(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s") as state:
        kv = state.key_value("kv")
        for i in range(3):
            kv.put("k", f"value {i}")
            state.commit()
    (segment,) = (tmp_path / "s" / "changelog").glob("*.log")
    raw = bytearray(segment.read_bytes())
    raw[raw.find(b"value 1")] ^= 1
    segment.write_bytes(raw)
    assert run(["inspect", "report", str(tmp_path / "s"), "-o", str(tmp_path / "r.html")]) == 4
    assert "checksum mismatch" in (tmp_path / "r.html").read_text()


@pytest.fixture
def state(tmp_path: Path) -> InspectedState:
    with hs.open(tmp_path / "s") as s:
        kv, win = s.key_value("kv"), s.window("win", retention="1 hour")
        for i in range(3):
            kv.put("a", i)
            win.put("b", i, i)
            s.set("position", i)
            s.commit()
    inspection = inspect(tmp_path / "s")
    assert isinstance(inspection, InspectedState)
    return inspection


def test_the_python_face_shows_stores_versions_history_and_differences(state: InspectedState) -> None:
    assert (list(state), state.version, state.settings, state.faults) == (["kv", "win"], 3, {"position": 2}, [])
    assert [tuple(record) for record in state["win"]] == [("b", (0,), 0), ("b", (1,), 1), ("b", (2,), 2)]
    assert [record.value for record in state["kv"].get("a")] == [2]
    assert [record.times for record in state["win"].scan(time_from=1, reverse=True)] == [(2,), (1,)]
    assert len(state["win"]) == 3
    assert [commit.version for commit in state.versions] == [1, 2, 3]
    assert [(event.version, event.new) for event in state.history("kv", "a")] == [(1, 0), (2, 1), (3, 2)]
    assert all(event.old is not UNKNOWN for event in state.history("kv", "a"))
    (change,) = state.at(1).diff(state)["kv"]
    assert (change.change, change.key, change.old, change.new) == ("changed", "a", 0, 2)
    assert state.diff(state) == {}
    with pytest.raises(KeyError, match="no store 'nope'"):
        state["nope"]


def test_a_notebook_shows_tables_with_everything_escaped(hostile: Path, state: InspectedState) -> None:
    assert "<table>" in state._repr_html_()
    assert "<td>b</td>" in state["win"]._repr_html_()
    inspection = inspect(hostile)
    assert isinstance(inspection, InspectedState)
    for text in (inspection._repr_html_(), inspection[HOSTILE[0]]._repr_html_()):
        assert "<script" not in text
        assert "<img" not in text


def test_watch_shows_what_was_committed_meanwhile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hs.open(tmp_path / "s") as s:
        s.key_value("kv").put("a", 1)
        s.commit()
        assert run(["inspect", "watch", str(tmp_path / "s"), "--interval", "0.05", "--count", "2", "-o", "csv"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("shard,version,versions_per_s")
    assert [line.split(",")[1] for line in lines] == ["1", "1"]


def test_a_key_of_another_type_is_named(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s") as s:
        s.key_value("kv").put("a", 1)
        s.commit()
        s.checkpoint(wait=True)
    state = inspect(tmp_path / "s")
    assert isinstance(state, InspectedState)
    kv = state["kv"]
    for read in (lambda: kv.get(5), lambda: list(kv.scan(prefix=5)), lambda: list(kv.scan(key_from=5))):
        with pytest.raises(TypeError, match="store 'kv': key 5: found int, expected str"):
            read()
