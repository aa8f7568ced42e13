"""What inspection writes, always into a new place: compacted and repaired copies, exports, packs."""

import csv
import errno
import hashlib
import json
import random
import re
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import hybridstore as hs
from changelog.storage import storage_at
from hybridstore.cli import run
from hybridstore.reading.parquet import write_parquet
from hybridstore.reading.places import resolve
from hybridstore.reading.view import open_view
from hybridstore.state.opening import Tuning
from hybridstore.stores.kinds import Row
from recovery.errors import CorruptCheckpointError
from tests.tools.s3_server import S3Server
from tests.tools.sizes import SMALL_PARTS

TUNING = Tuning(segment_bytes=1500, block_records=5, parts=SMALL_PARTS)


def content(path: Path) -> dict[str, Any]:
    with hs.open(path) as state:
        return {
            "version": state.version,
            "settings": state.settings,
            "kv": list(state.key_value("kv").all()),
            "win": list(state.window("win", retention=100).all()),
            "dup": list(state.window("dup", retention=100, retain_duplicates=True).all()),
            "ses": list(state.session("ses", retention=100).all()),
        }


def build(path: Path, seed: int, commits: int = 12) -> None:
    draw = random.Random(seed)
    with hs.open(path, _tuning=TUNING) as state:
        kv, win = state.key_value("kv"), state.window("win", retention=100)
        dup, ses = state.window("dup", retention=100, retain_duplicates=True), state.session("ses", retention=100)
        clock = 0
        for number in range(commits):
            for _ in range(draw.randrange(1, 20)):
                clock += draw.randrange(6)
                key, ts = f"k{draw.randrange(12)}", max(0, clock - draw.randrange(30))
                value = draw.choice(
                    [1, 1.5, "a", (1, "b"), b"\xff", {"n": [1]}, {1: 2}, datetime(2026, 1, 2, tzinfo=UTC)]
                )
                kv.put(key, value)
                win.put(key, value, ts)
                dup.put(key, value, ts)
                ses.put(key, value, start=max(0, ts - 5), end=ts)
            state.set("position", clock)
            state.commit()
            # one at least, which each 70th draw has not
            if draw.random() < 0.3 or number == commits // 2:
                state.checkpoint(wait=True)


def test_a_compacted_state_goes_on(tmp_path: Path, seed: int) -> None:
    build(tmp_path / "s", seed)
    assert run(["inspect", "compact", str(tmp_path / "s"), "--to", str(tmp_path / "n"), "--write"]) == 0
    for path in (tmp_path / "s", tmp_path / "n"):
        for _ in range(2):
            with hs.open(path, _tuning=TUNING) as state:
                state.key_value("kv").put("k1", "later")
                state.window("win", retention=100).put("k1", "later", 10_000)
                state.commit()
                state.checkpoint(wait=True)
    assert content(tmp_path / "n") == content(tmp_path / "s")


def test_compact_keeps_the_state_and_lets_its_history_go(tmp_path: Path, seed: int) -> None:
    build(tmp_path / "s", seed)
    before = content(tmp_path / "s")
    assert run(["inspect", "compact", str(tmp_path / "s")]) == 0
    assert not (tmp_path / "c").exists()
    assert run(["inspect", "compact", str(tmp_path / "s"), "--to", str(tmp_path / "c"), "--write"]) == 0
    assert run(["inspect", "verify", str(tmp_path / "c"), "--full"]) == 0
    assert content(tmp_path / "c") == before
    assert run(["inspect", "diff", str(tmp_path / "s"), str(tmp_path / "c")]) == 0
    assert run(["inspect", "compact", str(tmp_path / "s"), "--to", str(tmp_path / "c"), "--write"]) == 3
    assert run(["inspect", "compact", str(tmp_path / "s"), "--write"]) == 2


@pytest.mark.parametrize("damaged", ["checkpoints/*.lmdb", "packs/*.pack", "changelog/*.log"])
def test_what_repair_writes_opens_at_the_last_version_that_can_be_read(tmp_path: Path, seed: int, damaged: str) -> None:
    draw = random.Random(seed)
    for i in range(8):
        path, mended = tmp_path / f"s{i}", tmp_path / f"r{i}"
        build(path, seed + i)
        victims = sorted(path.glob(damaged))
        if not victims:  # a script that made no checkpoint
            continue
        victim = draw.choice(victims)
        raw = bytearray(victim.read_bytes())
        if draw.random() < 0.3:
            del raw[draw.randrange(len(raw)) :]
        else:
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        victim.write_bytes(raw)
        (place,) = resolve(path)
        view = open_view(place)
        for store in view.stores.values():
            with suppress(CorruptCheckpointError):  # of a block below changes of a window store with duplicates
                list(store.records())
        code = run(["inspect", "repair", str(path), "--to", str(mended), "--write"])
        if view.version == 0 or code == 3:
            assert (code, mended.exists()) == (3, False)
            assert view.faults
            continue
        assert content(mended)["version"] == view.version
        (whole,) = resolve(mended)
        assert open_view(whole).faults == []


def pruning(state: hs.State, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """When the command first calls this function, the owner of the state first makes checkpoints, and prunes."""
    module = import_module(name.rpartition(".")[0])
    waited = getattr(module, name.rpartition(".")[2])

    def late(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(name, waited)
        for i in range(3):
            state.key_value("kv").put("late", i)
            state.commit()
            state.checkpoint(wait=True)
        return waited(*given, **named)

    monkeypatch.setattr(name, late)


@pytest.mark.parametrize("at", ["repair_steps", "_log_steps", "_fault", "open_view"])
def test_a_repair_beside_an_owner_that_prunes_is_of_what_is_there_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seed: int, at: str
) -> None:
    build(tmp_path / "s", seed)
    with hs.open(tmp_path / "s", _tuning=TUNING) as state:
        pruning(state, monkeypatch, f"hybridstore.inspection.commands.repair.{at}")
        code = run(["inspect", "repair", str(tmp_path / "s"), "--to", str(tmp_path / "n"), "--write"])
        message = capsys.readouterr().err
        versions = [state.version - 3, state.version]  # before the owner went on, and after
    assert code == 0
    assert message in [f"hybridstore: {tmp_path / 'n'}: version {version} written\n" for version in versions]
    assert run(["inspect", "verify", str(tmp_path / "n"), "--full"]) == 0


def test_a_repair_whose_files_are_pruned_while_it_copies_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    build(tmp_path / "s", seed)
    with hs.open(tmp_path / "s", _tuning=TUNING) as state:
        pruning(state, monkeypatch, "hybridstore.inspection.commands.repair._copy")
        code = run(["inspect", "repair", str(tmp_path / "s"), "--to", str(tmp_path / "n"), "--write"])
    words = r".*cannot read: .*/s/.*: was removed while it was copied, .* and nothing was written \("
    assert (code, bool(re.match(words, capsys.readouterr().err))) == (3, True)
    assert not (tmp_path / "n").exists()


def exported(path: Path, name: str) -> Path:
    target = path.parent / name
    assert run(["inspect", "export", str(path), "--to", str(target), "--no-progress"]) == 0
    assert run(["inspect", "export", str(path), "--to", str(target)]) == 2
    return target


def test_export_to_lines_csv_and_parquet_hold_every_record(tmp_path: Path, seed: int) -> None:
    build(tmp_path / "s", seed)
    count = sum(len(rows) for name, rows in content(tmp_path / "s").items() if name not in ("version", "settings"))
    assert len(exported(tmp_path / "s", "e.jsonl").read_text().splitlines()) == count
    assert len(json.loads(exported(tmp_path / "s", "e.json").read_text())) == count
    with exported(tmp_path / "s", "e.csv").open(newline="") as stream:
        assert len(list(csv.DictReader(stream))) == count
    parquet = pytest.importorskip("pyarrow.parquet")
    files = exported(tmp_path / "s", "tables").iterdir()
    assert sum(parquet.read_table(file).num_rows for file in files) == count


def test_parquet_has_the_rows_of_a_store_in_their_types(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    with hs.open(tmp_path / "s") as state:
        state.window("clicks", retention="1 day").put_many([("ann", {"n": 3, "f": 0.5}, 1000), ("bob", {"n": 4}, 2000)])
        state.session("visits", retention="1 day").put(7, ["a", "b"], start=1000, end=5000)
        state.key_value("mixed").put_many({"a": 1, "b": "x"})
        state.key_value("bare")["a"] = {}
        state.key_value("none")
        state.commit()
    folder = exported(tmp_path / "s", "tables")
    assert sorted(file.name for file in folder.iterdir()) == [
        f"{name}.parquet" for name in ("bare", "clicks", "mixed", "none", "visits")
    ]
    clicks = parquet.read_table(exported_store(tmp_path / "s", "clicks"))
    assert clicks.equals(parquet.read_table(folder / "clicks.parquet"))
    assert clicks.schema.field("ts").type == pa.timestamp("ms", "UTC")
    assert clicks.column("ts").cast(pa.int64()).to_pylist() == [1000, 2000]
    assert clicks.column("value").to_pylist() == [{"n": 3, "f": 0.5}, {"n": 4, "f": None}]
    (visit,) = parquet.read_table(folder / "visits.parquet").to_pylist()
    assert (visit["key"], visit["value"], visit["end"] - visit["start"]) == (7, ["a", "b"], timedelta(seconds=4))
    assert parquet.read_table(folder / "mixed.parquet").column("value").to_pylist() == ["1", '"x"']
    assert parquet.read_table(folder / "bare.parquet").to_pylist() == [{"key": "a", "value": "{}"}]
    assert parquet.read_table(folder / "none.parquet").num_rows == 0


def exported_store(path: Path, name: str) -> Path:
    target = path.parent / f"{name}.parquet"
    assert run(["inspect", "export", str(path), name, "--to", str(target)]) == 0
    return target


def test_a_parquet_file_is_of_one_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    path, target = held_by_name(tmp_path, ["a", "b"]), tmp_path / "e.parquet"
    assert run(["inspect", "export", str(path), "--to", str(target)]) == 2
    assert "for 2 stores, expected one store in a Parquet file (name one of a, b" in capsys.readouterr().err
    assert not target.exists()


def test_rows_that_change_their_type_late_are_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")

    def rows() -> Iterator[tuple[str, Row]]:
        for number in range(100_000):
            yield f"{number % 3}", Row(number, (number,), number if number < 90_000 else "late")

    count = write_parquet(tmp_path / "e.parquet", ["ts"], rows, several=True)
    table = parquet.read_table(tmp_path / "e.parquet")
    assert (count, table.num_rows) == (100_000, 100_000)
    assert table.column("shard").to_pylist() == [f"{number % 3}" for number in range(100_000)]
    assert table.column("value").to_pylist()[89_999:90_001] == ["89999", '"late"']
    assert "keys and values are text" in capsys.readouterr().err


def held_by_name(root: Path, names: list[str]) -> Path:
    with hs.open(root / "s") as state:
        for name in names:
            state.key_value(name).put("k", name)
        state.commit()
    return root / "s"


@given(names=st.lists(st.text(st.characters(), min_size=1, max_size=8), min_size=1, max_size=6, unique=True))
@example(names=["\ud800", "\udfff", "?"])
@example(names=["K", "\u212a"])
def test_a_store_of_any_name_is_exported_to_every_form(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    path = held_by_name(tmp_path_factory.mktemp("names"), names)
    assert len(exported(path, "e.csv").read_bytes()) > 0
    assert len(exported(path, "e.jsonl").read_text().splitlines()) == len(names)
    parquet = pytest.importorskip("pyarrow.parquet")
    tables = [parquet.read_table(file) for file in exported(path, "tables").iterdir()]
    # a text that is no UTF-8 is written typed, as JSON
    shown = [value.strip('"') for table in tables for value in table.column("value").to_pylist()]
    assert len(shown) == len(names)
    assert {name for name in names if name.isalnum() and name.isascii()} <= set(shown)


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1", "plain", "'=1", ""]


def csv_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_texts_that_a_spreadsheet_would_run_are_guarded_when_asked(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s") as state:
        kv = state.key_value("=store")
        for i, text in enumerate(FORMULAS):
            kv.put(f"{i}", text)
            kv.put(f"={i}", -i)
        kv.put("x", -1.5)
        state.commit()
    rows = csv_rows(exported(tmp_path / "s", "plain.csv"))
    assert {row["key"]: row["value"] for row in rows if row["key"].isdigit()} == {
        str(i): text for i, text in enumerate(FORMULAS)
    }
    target = tmp_path / "guarded.csv"
    assert run(["inspect", "export", str(tmp_path / "s"), "--to", str(target), "--guard-formulas"]) == 0
    rows = csv_rows(target)
    assert {row["store"] for row in rows} == {"'=store"}
    for row in rows:
        for cell in row.values():
            # a number may begin with a minus, a text may not
            assert not cell.startswith(tuple("=+-@\t\r\n\uff1d")) or cell[1:].replace(".", "").isdigit()
    by_key = {row["key"]: row["value"] for row in rows}
    assert {by_key[str(i)].removeprefix("'") for i in range(len(FORMULAS)) if FORMULAS[i] != "'=1"} == {
        text for text in FORMULAS if text != "'=1"
    }
    assert (by_key["2"], by_key["8"], by_key["9"], by_key["x"], by_key["'=3"]) == ("'-1", "plain", "'=1", "-1.5", "-3")


def test_formulas_are_guarded_in_csv_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = held_by_name(tmp_path, ["a"])
    assert run(["inspect", "export", str(path), "--to", str(tmp_path / "e.jsonl"), "--guard-formulas"]) == 2
    assert "--guard-formulas: found form jsonl, expected csv" in capsys.readouterr().err
    assert run(["inspect", "export", str(path), "-o", "csv", "--guard-formulas"]) == 0


def test_export_into_a_folder_that_does_not_exist_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hs.open(tmp_path / "s").close()
    assert run(["inspect", "export", str(tmp_path / "s"), "--to", str(tmp_path / "none" / "x.csv")]) == 2
    assert f"--to: {tmp_path / 'none'}: found no such folder for x.csv (make it first)" in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_disk_that_takes_no_more_bytes_cannot_be_written(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        (tmp_path / "x.csv").touch()
        raise OSError(number, "no more bytes")

    hs.open(tmp_path / "s").close()
    monkeypatch.setattr("hybridstore.inspection.commands.export._write", full)
    assert run(["inspect", "export", str(tmp_path / "s"), "--to", str(tmp_path / "x.csv")]) == 3
    assert f"cannot write: [Errno {number}] no more bytes" in capsys.readouterr().err
    assert not (tmp_path / "x.csv").exists()


@pytest.mark.parametrize("to", ["new", "s3"])
@pytest.mark.parametrize("command", ["compact", "repair"])
def test_on_a_full_disk_no_part_of_a_state_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, to: str
) -> None:
    def full(into: Any, *_: Any, **__: Any) -> None:
        if not isinstance(into, Path):
            into.create("packs/part", b"part")
        raise OSError(errno.ENOSPC, "no more bytes")

    with hs.open(tmp_path / "s") as state:
        state.key_value("kv")["a"] = 1
        state.commit()
    monkeypatch.setattr("hybridstore.inspection.rebuild.write_checkpoint", full)
    monkeypatch.setattr("hybridstore.inspection.commands.repair.shutil.copyfile", full)
    with S3Server() as server:
        target = storage_at(server.bucket("new") if to == "s3" else tmp_path / "new")
        monkeypatch.setattr("hybridstore.inspection.rebuild.storage_at", lambda _: target)
        assert run(["inspect", command, str(tmp_path / "s"), "--to", target.url, "--write"]) == 3
        assert "cannot write: [Errno 28] no more bytes" in capsys.readouterr().err
        assert list(target.list()) == []
    assert not (tmp_path / "new").exists()


def test_redacted_exports_hold_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hs.open(tmp_path / "s") as state:
        kv = state.key_value("kv")
        kv.put("secret-key", {"field": "secret-value", "n": 5, "list": [b"secret-bytes"]})
        state.commit()
    assert run(["inspect", "export", str(tmp_path / "s"), "--redact"]) == 0
    out = capsys.readouterr().out
    assert "secret" not in out
    assert json.loads(out)["value"] == {"field": "<str 12>", "n": 5, "list": ["<bytes 12>"]}


def test_pack_is_a_zip_with_the_checksum_of_every_file(tmp_path: Path, seed: int) -> None:
    build(tmp_path / "s", seed)
    assert run(["inspect", "pack", str(tmp_path / "s"), "--to", str(tmp_path / "s.zip")]) == 0
    with zipfile.ZipFile(tmp_path / "s.zip") as archive:
        manifest = json.loads(archive.read("manifest.json"))
        for entry in manifest["files"]:
            assert hashlib.sha256(archive.read(entry["name"])).hexdigest() == entry["sha256"]
        archive.extractall(tmp_path / "out")
    assert manifest["states"][0]["version"] == 12
    assert content(tmp_path / "out") == content(tmp_path / "s")
