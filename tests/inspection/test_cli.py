"""The command line: answers on standard output, the rest on standard error, and the exit codes that scripts rely on."""

import csv
import io
import json
import re
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

import hybridstore as hs
from hybridstore.cli import GROUPS, command_parser, run
from hybridstore.inspection import look
from hybridstore.inspection.options import UsageError
from hybridstore.inspection.show.output import Out, key_cell, time_cell, value_cell
from hybridstore.reading.texts import format_key, parse_key
from hybridstore.state.opening import Tuning
from tests.tools.checkpoints import flip

ROOT = Path(__file__).resolve().parents[2]
START = 1_700_000_000_000


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    with hs.open(path) as s:
        names = s.key_value("names")
        clicks = s.window("clicks", retention="1 hour")
        names.put("alice", {"age": 30})
        names.put("bob", b"\x00\xff")
        s.commit()
        clicks.put("alice", 1, START)
        clicks.put("alice", 2, START + 60_000)
        clicks.put("bob", 3, START + 1)
        s.commit()
        s.checkpoint(wait=True)
        names.put("alice", {"age": 31})
        names.put("\x1b[31mred", "\x1b]0;title\x07")
        s.commit()
    return path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> "Cli":
    return Cli(capsys)


class Cli:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.err = ""

    def __call__(self, *arguments: object) -> tuple[int, str]:
        code = run(["inspect", *map(str, arguments)])
        captured = self._capsys.readouterr()
        self.err = captured.err
        return code, captured.out

    def rows(self, *arguments: object) -> list[dict[str, object]]:
        code, out = self(*arguments, "-o", "jsonl")
        assert code == 0, (out, self.err)
        return [json.loads(line) for line in out.splitlines()]


def test_get_prints_the_value_and_its_absence_is_exit_code_1(state: Path, cli: Cli) -> None:
    assert cli.rows("get", state, "names", "alice") == [{"key": "alice", "value": {"age": 31}}]
    assert cli("get", state, "names", "carol") == (1, "")
    assert cli.rows("get", state, "names", "alice", "--at", 2) == [{"key": "alice", "value": {"age": 30}}]
    assert cli.rows("get", state, "clicks", "alice", "--time-from", START + 1) == [
        {"key": "alice", "ts": START + 60_000, "value": 2}
    ]
    assert cli("get", state, "clicks", "bob", "-o", "raw") == (0, "3\n")


def test_scan_takes_bounds_limits_and_directions(state: Path, cli: Cli) -> None:
    assert [row["key"] for row in cli.rows("scan", state, "clicks")] == ["alice", "bob", "alice"]
    assert [row["ts"] for row in cli.rows("scan", state, "clicks", "--reverse", "--limit", 1)] == [START + 60_000]
    assert cli.rows("scan", state, "names", "--from", "b", "--keys-only") == [{"key": "bob"}]
    assert cli.rows("scan", state, "--count-only") == [
        {"store": "names", "records": 3},
        {"store": "clicks", "records": 3},
    ]
    assert cli.rows("keys", state, "clicks") == [{"key": "alice", "records": 2}, {"key": "bob", "records": 1}]
    assert cli.rows("scan", state, "clicks", "--limit", 1, "--iso")[0]["ts"] == "2023-11-14T22:13:20.000Z"


def test_every_form_carries_the_same_rows(state: Path, cli: Cli) -> None:
    lines = cli.rows("scan", state, "clicks")
    assert json.loads(cli("scan", state, "clicks", "-o", "json")[1]) == lines
    table = list(csv.DictReader(io.StringIO(cli("scan", state, "clicks", "-o", "csv")[1])))
    assert table == [{name: str(value) for name, value in row.items()} for row in lines]
    assert json.loads(cli("scan", state, "clicks", "--from", "z", "-o", "json")[1]) == []
    assert cli("scan", state, "clicks", "-o", "raw")[1].splitlines()[0] == f"alice\t{START}\t1"
    assert cli("scan", state, "names", "--from", "z", "-o", "csv")[1] == "key,value\n"


def test_info_and_list_name_what_is_there(state: Path, cli: Cli) -> None:
    (info,) = cli.rows("info", state)
    assert (info["version"], info["checkpoint"], info["tail_versions"], info["stopped"]) == (3, 2, 1, "clean")
    assert [(store["store"], store["kind"]) for store in info["stores"]] == [
        ("names", "key_value"),
        ("clicks", "window"),
    ]  # type: ignore[attr-defined]
    listed = cli.rows("list", state)
    assert [(row["what"], row.get("versions")) for row in listed] == [
        ("store", None),
        ("store", None),
        ("checkpoint", "2"),
        ("segment", "1-3"),
    ]
    assert cli("list", state, "-o", "table")[1].endswith("--at can reach versions 1 to 3\n")


@pytest.mark.parametrize(
    "command", [["info"], ["list", "--iso"], ["scan"], ["scan", "clicks", "--iso"], ["keys", "names"]]
)
def test_tables_fit_80_columns_and_drive_no_terminal(
    state: Path, cli: Cli, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out = cli(command[0], state, *command[1:], "-o", "table")
    assert code == 0
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "\x1b" not in out
    assert "\x07" not in out


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "csv", "raw"])
def test_no_form_lets_what_is_stored_drive_a_terminal(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = _Terminal()
    text = "\x1b[31m\x07\x9b2J\u202e"
    Out(form, stream).rows([{"key": key_cell(text), "value": value_cell([text])}], ["key", "value"])
    assert stream.getvalue().replace("\n", "").replace("\t", "").isprintable()


def test_wide_characters_take_two_columns_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = io.StringIO()
    rows = [{"key": "\u6f22\u5b57", "value": "\u6f22" * 30}, {"key": "e\u0301a", "value": "a"}]
    Out("table", stream).rows(rows, ["key", "value"])
    head, wide, plain = stream.getvalue().splitlines()
    assert (head, plain) == ("key   value", "e\u0301a    a")
    assert wide == "\u6f22\u5b57  " + "\u6f22" * 16 + "\u2026"  # 4 + 2 + 32 + 1 columns


@pytest.mark.parametrize("iso", [False, True])
def test_numbers_and_times_of_a_table_that_is_too_wide_stay_whole(iso: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    ms = 1_700_000_000_000
    rows = [{"key": "k" * 40, "ts": time_cell(ms, iso), "until": time_cell(ms + 1000, iso)}]
    rows = [*rows * 201, {"key": "k", "ts": 10**15, "until": 3}]  # the last is none of those that the widths are of
    stream = io.StringIO()
    Out("table", stream).rows(rows, ["key", "ts", "until"])
    first, last = stream.getvalue().splitlines()[1::201]
    times = ["2023-11-14 22:13:20", "2023-11-14 22:13:21"] if iso else [str(ms), str(ms + 1000)]
    assert first == "  ".join(["kkkkk\u2026", *times])
    assert last.split() == ["k", str(10**15), "3"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["get", "STATE", "names", "int:5"], 2, "key 5: found int, expected str"),
        (["get", "STATE", "nope", "x"], 2, "no store 'nope' (known: names, clicks)"),
        (["get", "STATE", "names", "int:x"], 2, "found 'x', expected int"),
        (["get", "STATE"], 2, "Missing argument"),
        (["scan", "STATE", "--no-such"], 2, "No such option"),
        (["frobnicate", "STATE"], 2, "No such command"),
        (["get", "STATE", "names", "--", "-x"], 1, "names: no record of key -x"),
        (["get", "STATE", "--at", "3", "--", "-names", "-x"], 2, "no store '-names'"),
        (["info", "--", "-dash"], 3, "-dash: no such file or directory"),
        (["scan", "STATE", "names", "--time-from", "yesterday"], 2, "expected milliseconds or an ISO time"),
        (["info", "STATE", "--at", "9"], 3, "version 9 is not retained: the nearest below it is 3"),
        (["info", "STATE/nothing"], 3, "no such file or directory (give a state directory, "),
        (["info", "FOREIGN"], 3, "found neither changelog/ nor checkpoints/ in it"),
        (["info", "STATE", "--shard", "1"], 2, "no shard 1"),
    ],
)
def test_what_goes_wrong_is_one_sentence_and_a_code(
    state: Path, cli: Cli, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "a.txt").write_text("hello")
    given = [
        argument.replace("STATE", str(state)).replace("FOREIGN", str(tmp_path / "foreign")) for argument in arguments
    ]
    assert cli(*given) == (code, "")
    assert message in cli.err
    assert "Traceback" not in cli.err


def test_a_state_without_a_commit_says_so(tmp_path: Path, cli: Cli, state: Path) -> None:
    with hs.open(tmp_path / "new") as s:
        s.key_value("names")["alice"] = 1
    assert cli("scan", tmp_path / "new") == (0, "")
    assert cli.err.endswith("new: nothing was committed yet\n")
    assert cli("get", tmp_path / "new", "names", "alice")[0] == 2
    assert "no store 'names' (known: none: nothing was committed yet)" in cli.err
    cli("scan", state, "--at", "0")
    assert "committed" not in cli.err


def test_damage_gives_what_can_be_read_and_exit_code_4(state: Path, cli: Cli) -> None:
    (segment,) = (state / "changelog").glob("*.log")
    raw = bytearray(segment.read_bytes())
    at = raw.rfind(b"alice")
    raw[at] ^= 1
    segment.write_bytes(raw)
    code, out = cli("scan", state, "names", "-o", "jsonl")
    assert code == 4
    assert [json.loads(line)["key"] for line in out.splitlines()] == ["alice", "bob"]
    assert "checksum mismatch" in cli.err
    assert cli("list", state, "-o", "jsonl")[0] == 4


def test_a_list_with_one_damaged_checkpoint_in_front_of_a_sound_one_ends_with_4(tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "state"
    with hs.open(path) as s:
        for value in (1, 2):
            s.key_value("names")["k"] = value
            s.commit()
            s.checkpoint(wait=True)
    (older, _) = sorted((path / "checkpoints").glob("*.lmdb"))
    assert cli("list", path, "--checkpoints", "-o", "jsonl")[0] == 0
    older.write_bytes(b"\0" * older.stat().st_size)
    code, out = cli("list", path, "--checkpoints", "-o", "jsonl")
    assert code == 4
    assert [json.loads(line)["damaged"] for line in out.splitlines()].count(True) == 1


def test_a_damaged_block_is_left_out_and_named(tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "state"
    with hs.open(path, _tuning=Tuning(block_records=2)) as s:
        s.key_value("names").put_columns([f"k{i}" for i in range(6)], [str(i) * 5000 for i in range(6)])
        s.commit()
        s.checkpoint(wait=True)
    (pack,) = (path / "packs").iterdir()
    flip(pack, pack.read_bytes().find(b"2" * 5000) + 100)
    code, out = cli("scan", path, "names", "-o", "jsonl")
    assert code == 4
    assert [json.loads(line)["key"] for line in out.splitlines()] == ["k0", "k1", "k4", "k5"]
    assert "block checksum mismatch" in cli.err
    assert cli("get", path, "names", "k5", "-o", "raw") == (0, "5" * 5000 + "\n")


@pytest.mark.parametrize("retain_duplicates", [False, True])
def test_a_damaged_block_below_changes_is_left_out_and_named(
    tmp_path: Path, cli: Cli, *, retain_duplicates: bool
) -> None:
    path = tmp_path / "state"
    with hs.open(path, _tuning=Tuning(block_records=2)) as s:
        clicks = s.window("clicks", retention=1000, retain_duplicates=retain_duplicates)
        clicks.put_many([(f"k{i}", str(i) * 5000, 10) for i in range(6)])
        s.commit()
        s.checkpoint(wait=True)
        clicks.put_many([("k2", "new", 11), ("k5", "new", 9), ("k9", "new", 10)])
        s.commit()
    (pack,) = (path / "packs").iterdir()
    flip(pack, pack.read_bytes().find(b"2" * 5000) + 100)
    code, out = cli("scan", path, "clicks", "-o", "jsonl")
    assert code == 4
    rows = [(row["key"], row["ts"], len(row["value"])) for row in map(json.loads, out.splitlines())]
    assert sorted(rows) == sorted(
        [("k2", 11, 3), ("k5", 9, 3), ("k9", 10, 3), *((f"k{i}", 10, 5000) for i in (0, 1, 4, 5))]
    )
    assert "block checksum mismatch" in cli.err
    assert cli("list", path)[0] == cli("info", path)[0] == 0
    assert cli("get", path, "clicks", "k5", "-o", "jsonl")[0] == 0


def test_at_takes_times(state: Path, cli: Cli) -> None:
    committed = [row["committed"] for row in map(dict, (cli.rows("info", state, "--at", n)[0] for n in (1, 3)))]
    assert cli.rows("info", state, "--at", f"@{committed[1]}")[0]["version"] == 3
    assert cli.rows("info", state, "--at", "2999-01-01T00:00:00")[0]["version"] == 3
    assert cli("info", state, "--at", "1999-01-01")[0] == 2


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("alice", "alice"),
        ("int:5", 5),
        ("int:-5", -5),
        ("float:1.5", 1.5),
        ("bool:true", True),
        ("hex:00ff", b"\x00\xff"),
        ("text:int:5", "int:5"),
        ("http://x", "http://x"),
        ('json:["a", 5, "hex:00", 1.5]', ("a", 5, b"\x00", 1.5)),
        ("date:2026-01-31", date(2026, 1, 31)),
        ("time:2026-01-31T12:00:00.5Z", datetime(2026, 1, 31, 12, 0, 0, 500_000, UTC)),
        ("time:2026-01-31T12:00:00", datetime(2026, 1, 31, 12)),
        ("decimal:1.10", Decimal("1.10")),
        ("text:date:2026-01-31", "date:2026-01-31"),
        ('json:["a", "date:2026-01-31", null]', ("a", date(2026, 1, 31), None)),
    ],
)
def test_keys_are_typed_and_can_be_typed_back(text: str, key: object) -> None:
    assert parse_key(text) == key
    assert type(parse_key(text)) is type(key)
    assert parse_key(format_key(key)) == key


@pytest.mark.parametrize(("store", "key"), [("floats", "float:nan"), ("pairs", 'json:["float:nan", "a"]')])
def test_nan_is_no_key_and_gets_no_record_of_another_one(tmp_path: Path, cli: Cli, store: str, key: str) -> None:
    with hs.open(tmp_path / "state") as state:
        state.key_value("floats")[1.5] = 1
        state.key_value("pairs")[1.5, "a"] = 1
        state.commit()
    assert cli("get", tmp_path / "state", store, key) == (2, "")
    assert "found a float without order" in cli.err


@pytest.mark.parametrize("command", list(GROUPS["inspect"].commands))
def test_help_of_every_command_has_an_example(command: str, cli: Cli) -> None:
    code, out = cli(command, "--help")
    assert code == 0
    assert f"Example: hybridstore inspect {command}" in " ".join(out.split())


@pytest.mark.parametrize("command", list(GROUPS["bench"].commands))
def test_every_benchmark_can_be_asked_for_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", command, "--help"]) == 0
    assert f"Example: hybridstore bench {command}" in " ".join(capsys.readouterr().out.split())


def test_the_command_itself_tells_its_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert "inspect" in out
    assert "bench" in out
    assert run(["bench", "nothing"]) == 2


def test_a_reader_that_stops_early_is_no_error(state: Path) -> None:
    with hs.open(state) as s:
        s.key_value("names").put_columns([f"k{i}" for i in range(20_000)], ["x" * 50] * 20_000)
        s.commit()
    command = [sys.executable, "-m", "hybridstore", "inspect", "scan", str(state), "names"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_a_command_is_a_file_of_its_name() -> None:
    files = (ROOT / "hybridstore" / "inspection" / "commands").glob("[a-z]*.py")
    assert sorted(file.stem for file in files) == sorted(GROUPS["inspect"].commands)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("info a/b", {"path": "a/b", "at": None, "iso": False, "output": None, "shard": None}),
        ("info a/b -o json --iso --at 2026-01-31", {"output": "json", "iso": True, "at": "2026-01-31"}),
        ("info p -oraw", {"output": "raw"}),
        ("list --logs p --shard 3", {"logs": True, "stores": False, "path": "p", "shard": 3}),
        ("get p store int:5 --time-from=5 -o raw", {"key": "int:5", "time_from": "5", "output": "raw"}),
        ("get p --at 4 store -- -k", {"store": "store", "key": "-k", "at": "4"}),
        ("get p store -5", {"key": "-5"}),
        ("scan p", {"store": None, "limit": None, "reverse": False}),
        ("scan p --limit 1 store", {"store": "store", "limit": 1}),
        ("scan p store --from a --to b --reverse --count-only --keys-only", {"key_from": "a", "key_to": "b"}),
        ("scan p --from=-x", {"key_from": "-x"}),
        ("scan -- p", {"path": "p"}),
        ("scan p --limit 1 --limit 2", {"limit": 2}),
        ("log p -f --op put --from-version 3 --commits", {"follow": True, "op": "put", "from_version": 3}),
        ("diff a@3 @4 --summary", {"path": "a@3", "other": "@4", "summary": True}),
        ("stat p --top 5 --by-age --no-progress", {"top": 5, "by_age": True, "no_progress": True}),
        ("watch p --interval 0.5 --count 3", {"interval": 0.5, "count": 3}),
        ("pack p --to x.zip", {"to": "x.zip"}),
        ("report p -o r.html --sample 5 --force", {"to": Path("r.html"), "sample": 5, "force": True}),
        ("verify p --quick --debug", {"quick": True, "full": False, "debug": True}),
        ("scan p a b", "unexpected argument 'b'"),
        ("scan p --limit -1", "argument --limit: found '-1', expected a whole number of at least 0"),
        ("scan p --limit x", "argument --limit: found 'x', expected a whole number of at least 0"),
        ("watch p --interval 0", "argument --interval: found '0', expected a number of at least 0.05"),
        ("watch p --interval nan", "argument --interval: found 'nan', expected a number of at least 0.05"),
        ("scan p --at", "argument --at: expected one argument"),
        ("scan p -o nope", "invalid choice: 'nope'"),
        ("log p --op nope", "invalid choice: 'nope'"),
        ("get p", "Missing argument STORE, KEY (usage: hybridstore inspect get PATH STORE KEY [OPTIONS]"),
        ("pack p", "Missing argument --to"),
        ("verify p --quick --full", "not allowed with argument --quick"),
        ("scan p --limt 3", "No such option --limt (did you mean --limit?)"),
        ("scan p --lim 3", "No such option --lim (did you mean --limit?)"),
    ],
)
def test_what_a_command_line_says(line: str, expected: dict[str, object] | str) -> None:
    name, *words = line.split()
    _, parser = command_parser("inspect", name)
    if isinstance(expected, str):
        with pytest.raises(UsageError, match=re.escape(expected)):
            parser.parse(words)
    else:
        given = vars(parser.parse(words))
        assert {field: given[field] for field in expected} == expected


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("inspect sacn", "scan"),
        ("inspect inf state", "info"),
        ("inspekt", "inspect"),
        ("inspect qqqqq", None),
        ("scan p", "inspect scan"),
    ],
)
def test_an_unknown_command_gets_a_suggestion(words: str, near: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words.split()) == 2
    error = capsys.readouterr().err
    assert "No such command" in error
    assert ("did you mean" in error) == (near is not None)
    assert near is None or f"did you mean {near}?" in error


def test_a_path_without_a_command_is_told_where_the_command_belongs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", str(tmp_path), "-o", "table"]) == 2
    assert f"a command comes before the path: hybridstore inspect COMMAND {tmp_path}" in capsys.readouterr().err


def test_help_is_bold_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "get", "--help"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    terminal = _Terminal()
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", terminal)
    assert run(["inspect", "get", "--help"]) == 0
    assert "\x1b[1mwhich windows\x1b[0m:" in terminal.getvalue()


@pytest.mark.parametrize("words", ["get STATE names bob", "info STATE", "list STATE"])
def test_reading_imports_only_what_it_needs(state: Path, words: str) -> None:
    arguments = ["inspect", *words.replace("STATE", str(state)).split()]
    # a state of key-value and window stores: neither the other kinds nor aggregation
    others = ["hybridstore.aggregation", "hybridstore.stores.session", "hybridstore.stores.sliding", "socket"]
    heavy = ["pyarrow", "pandas", "pyspark", "rich", "pydantic", *others]
    code = (
        f"import sys; from hybridstore.cli import run; run({arguments!r}); "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"


def test_the_release_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    shown = capsys.readouterr().out
    assert re.fullmatch(r"hybridstore (\d+\.\d+\.\d+)\n", shown) or shown.endswith("not installed\n")


def test_a_look_behind_many_records_of_changelog_says_why_it_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(look, "_MANY", 100)
    with hs.open(tmp_path / "s") as state:
        state.key_value("a").put_many({f"{number}": number for number in range(98)})
        state.commit()
        assert run(["inspect", "get", str(tmp_path / "s"), "a", "7"]) == 0
        assert capsys.readouterr().err == ""
        state.key_value("a").put("x", 1)
        state.commit()
        assert run(["inspect", "get", str(tmp_path / "s"), "a", "7"]) == 0
        assert re.search(r"s: 1\d\d records of the changelog were read, because", capsys.readouterr().err)
        state.checkpoint(wait=True)
        assert run(["inspect", "get", str(tmp_path / "s"), "a", "7"]) == 0
        assert capsys.readouterr().err == ""
