"""`stat` and `plan`: the numbers are those of what is stored."""

import json
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.cli import run

HOUR = 3_600_000


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "s"
    with hs.open(path) as s:
        kv, win = s.key_value("kv"), s.window("win", retention="30 days")
        for i in range(10):
            kv.put(f"k{i}", "x" * (2**i))
        for i in range(50):
            win.put(f"k{i % 5}", i, i * HOUR)
        s.commit()
        s.checkpoint(wait=True)
        kv.put("k0", "again")
        s.commit()
    return path


def rows(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> list[dict[str, Any]]:
    assert run(["inspect", *map(str, arguments), "-o", "jsonl"]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_stat_counts_without_reading_a_block(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stores = {row["store"]: row for row in rows(capsys, "stat", state) if row["what"] == "stores"}
    assert (stores["win"]["records"], stores["win"]["exact"]) == (50, True)
    assert (stores["win"]["oldest"], stores["win"]["newest"]) == (0, 49 * HOUR)
    assert (stores["kv"]["dead"], stores["kv"]["exact"]) == (0.1, False)
    grown = [row for row in rows(capsys, "stat", state, "kv") if row["what"] == "growth"]
    assert [(row["checkpoint"], row["records"]) for row in grown] == [(1, 10)]


def test_stat_says_how_checkpoints_lie_in_packs(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hs.open(state) as s:
        s.key_value("kv").put("k1", "changed")
        s.commit()
        s.checkpoint(wait=True)
        metrics = s.metrics()
    laid = [row for row in rows(capsys, "stat", state) if row["what"] == "packs"]
    assert [row["checkpoint"] for row in laid] == [1, 3]
    assert [row["packs"] for row in laid] == [1, metrics.packs]
    assert laid[1]["live"] == round(metrics.live_share, 4)
    packs = sorted((state / "packs").iterdir())
    assert sum(row["bytes"] for row in laid[:1]) == packs[0].stat().st_size
    assert all(row["write_amplification"] > 1 for row in laid)
    assert metrics.write_amplification > 1


def test_stat_counts_the_layers_over_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hs.open(tmp_path / "s") as s:
        kv = s.key_value("kv")
        for changed in (range(1000), range(5), range(7)):
            kv.put_many((i, [changed.stop, i]) for i in changed)
            s.commit()
            s.checkpoint(wait=True)
    (store,) = [row for row in rows(capsys, "stat", tmp_path / "s") if row["what"] == "stores"]
    assert (store["blocks"], store["layers"]) == (1, 2)


def test_stat_finds_what_is_heavy_and_how_old(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = rows(capsys, "stat", state, "--top", 2, "--by-age", "--histogram", "--no-progress")
    largest = [row["largest_value_of"] for row in lines if row["what"] == "largest" and row["store"] == "kv"]
    assert largest == ["k9", "k8"]
    heaviest = [row for row in lines if row["what"] == "heaviest" and row["store"] == "win"]
    assert [row["records"] for row in heaviest] == [10, 10]
    ages = [row for row in lines if row["what"] == "age" and row["store"] == "win"]
    assert sum(row["records"] for row in ages) == 50
    assert sum(row["records"] for row in lines if row["what"] == "sizes") == 60


def test_restart_names_the_steps_of_a_restore(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row["step"] for row in rows(capsys, "restart", state)] == ["attach", "replay", "serve"]
    (segment,) = (state / "changelog").glob("*.log")
    raw = segment.read_bytes()
    segment.write_bytes(raw[:-10])
    assert [row["step"] for row in rows(capsys, "restart", state)] == ["attach", "replay", "cut", "serve"]
    damaged = bytearray(raw)
    damaged[raw.rfind(b"again")] ^= 1
    segment.write_bytes(damaged)
    assert "refuse" in [row["step"] for row in rows(capsys, "restart", state, code=1)]
