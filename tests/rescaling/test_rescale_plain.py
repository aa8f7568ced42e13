"""A plain topology's state with another number of shards: the run goes on as one that was never changed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.cli import run as run_command
from hybridstore.rescaling import plain
from hybridstore.rescaling.api import remove_old_shards
from hybridstore.state.generations import current_shards
from recovery.layout import GENERATIONS
from tests.tools.ways import two_in_a_piece

WINDOWED = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(100, grace=50))
TOPOLOGIES = {
    "record": WINDOWED.aggregate(count=hs.Count(), total=hs.Sum("n")),
    "commit": WINDOWED.aggregate(count=hs.Count(), total=hs.Sum("n"), emit="commit"),
    "sliding": hs.stream(key="k", timestamp="ts").windowed_by(hs.SlidingWindows(500)).aggregate(total=hs.Sum("n")),
}


def rows_of(count: int, seed: int = 7) -> list[dict[str, Any]]:
    """Rows in the order of their times, so that none is late in whatever shard."""
    lot = random.Random(seed)
    return [{"k": f"k{lot.randrange(20)}", "ts": number * 3, "n": lot.randrange(9)} for number in range(count)]


def run(topology: Any, rows: list[dict[str, Any]], state: Path | str, shards: int, **options: Any) -> list[str]:
    return sorted(map(str, topology.run(rows, location=state, shards=shards, commit_rows=10, **options)))


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize(("shards", "into"), [(1, 3), (2, 4), (3, 2), (4, 1)])
def test_a_run_goes_on_with_the_rows_of_one_that_was_never_changed(
    tmp_path: Path, name: str, shards: int, into: int
) -> None:
    topology, rows = TOPOLOGIES[name], rows_of(120)
    for state in ("always", "job"):
        run(topology, rows[:60], tmp_path / state, shards)
    expected = run(topology, rows, tmp_path / "always", shards)
    report = hs.rescale(tmp_path / "job", shards=into, accept_late=True)
    assert (report.done, report.shards, report.into) == (True, shards, into)
    assert hs.inspect(tmp_path / "job").position == 60
    assert run(topology, rows, tmp_path / "job", into) == expected
    with pytest.raises(hs.ProgramMismatchError, match=f"hybridstore rescale .*/job --shards {shards}"):
        topology.open(tmp_path / "job", shards=shards)


@pytest.mark.usefixtures(two_in_a_piece.__name__)
@pytest.mark.parametrize(("shards", "into"), [(2, 4), (3, 2), (1, 2)])
def test_results_that_were_not_taken_are_handed_out_again_after_a_rescale(
    tmp_path: Path, shards: int, into: int
) -> None:
    topology, rows = TOPOLOGIES["commit"], rows_of(60)
    again = []
    for state in ("always", "job"):
        results = topology.run(rows, location=tmp_path / state, shards=shards, commit_rows=10)
        for _ in range(25):
            next(results)
        results.close()
        if state == "job":
            assert hs.rescale(tmp_path / state, shards=into, accept_late=True).done
        number = into if state == "job" else shards
        again.append(sorted(map(str, topology.run(rows, location=tmp_path / state, shards=number, commit_rows=10))))
    assert again[0] == again[1]


def test_a_state_that_is_open_is_refused(tmp_path: Path) -> None:
    topology = TOPOLOGIES["record"]
    run(topology, rows_of(20), tmp_path / "state", 2)
    with (
        topology.open(tmp_path / "state", shards=2),
        pytest.raises(hs.RescaleError, match="shard 0 cannot be opened, so nothing was changed"),
    ):
        hs.rescale(tmp_path / "state", shards=4)


def test_what_cannot_be_is_refused_in_a_sentence(tmp_path: Path) -> None:
    topology = TOPOLOGIES["record"]
    with pytest.raises(hs.RescaleError, match="found no state of a topology"):
        hs.rescale(tmp_path / "nothing", shards=4)
    run(topology, rows_of(20), tmp_path / "state", 2)
    with pytest.raises(hs.RescaleError, match="has 2 shards already"):
        hs.rescale(tmp_path / "state", shards=2)
    with pytest.raises(hs.RescaleError, match="expected a whole number of 1 or more"):
        hs.rescale(tmp_path / "state", shards=0)
    (tmp_path / "state" / "1" / "changelog").rename(tmp_path / "elsewhere")
    with pytest.raises(hs.RescaleError, match="nothing was changed"):
        hs.rescale(tmp_path / "state", shards=4)


def test_the_way_back_is_open_until_a_commit_was_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topology, rows, state = TOPOLOGIES["record"], rows_of(60), tmp_path / "state"
    run(topology, rows[:30], state, 2)
    assert run_command(["rescale", str(state), "--shards", "4"]) == 0
    assert run_command(["rescale", str(state), "--back"]) == 0
    assert "the 2 shards from before count again" in capsys.readouterr().out
    run(topology, rows[:40], state, 2)
    hs.rescale(state, shards=4)
    run(topology, rows, state, 4)
    with pytest.raises(hs.RescaleError, match="a commit was made with 4 shards"):
        hs.rescale(state, back=True)
    assert remove_old_shards(state) > 0


def test_the_shard_before_a_rescale_is_not_opened_for_writing(tmp_path: Path) -> None:
    topology, rows, state = TOPOLOGIES["record"], rows_of(60), tmp_path / "state"
    run(topology, rows[:30], state, 1)
    hs.rescale(state, shards=2)
    with pytest.raises(hs.ProgramMismatchError, match="rescaled to 2 shards, found an opening of the shard before"):
        hs.open(state)
    with hs.open(state, at="newest") as before:
        version = before.version
    hs.rescale(state, back=True)
    with hs.open(state) as again:
        assert again.version == version


def test_a_crash_before_the_last_create_keeps_the_old_shards_in_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def dies(*_: Any) -> None:
        raise Killed

    topology, rows, state = TOPOLOGIES["record"], rows_of(60), tmp_path / "state"
    run(topology, rows[:30], state, 2)
    with monkeypatch.context() as patch:
        patch.setattr(plain, "_describe", dies)
        with pytest.raises(Killed):
            hs.rescale(state, shards=3)
    assert [name.name for name in (state / GENERATIONS).iterdir()] == ["0000000001.json"]
    run(topology, rows[:40], state, 2)
    assert hs.rescale(state, shards=4).generation == 2
    run(topology, rows, state, 4)


def test_a_state_on_an_object_store_is_rescaled_there() -> None:
    pytest.importorskip("obstore")
    from changelog.storage import storage_at
    from tests.tools.s3_server import S3Server

    topology, rows = TOPOLOGIES["commit"], rows_of(60)
    with S3Server() as server:
        state, always = server.bucket("plain"), server.bucket("always")
        run(topology, rows[:30], state, 2)
        run(topology, rows[:30], always, 2)
        assert hs.rescale(state, shards=4).done
        assert run(topology, rows, state, 4) == run(topology, rows, always, 2)
        there = current_shards(storage_at(state))
        assert there is not None
        assert there.shards == 4
