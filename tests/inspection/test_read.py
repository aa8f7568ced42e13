"""The read-only view: at every retained version it shows what the live store showed then, whatever lies in the
checkpoint.
"""

import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.reading import scan
from hybridstore.reading.places import Place, resolve
from hybridstore.reading.selection import Selection
from hybridstore.reading.view import View, open_view
from hybridstore.state.opening import Tuning
from recovery.index import decode
from recovery.pages import PageFile
from tests.tools.sizes import SMALL_PARTS

Rows = dict[str, list[Any]]
TUNING = Tuning(segment_bytes=2000, block_records=7, parts=SMALL_PARTS)


def live_rows(state: Any) -> Rows:
    """What the live stores hold, as (key, times, value) in their own order."""
    return {
        "kv": [(key, (), value) for key, value in state.key_value("kv").all()],
        "win": [(key, (ts,), value) for (key, ts), value in _window(state).all()],
        "dup": [(key, (ts,), value) for (key, ts), value in _duplicates(state).all()],
        "ses": [(key, (end, start), value) for (key, start, end), value in _session(state).all()],
        "ttl": [(key, value) for key, value in state.key_value("ttl", ttl=40).all()],
    }


def _window(state: Any) -> Any:
    return state.window("win", retention=100)


def _duplicates(state: Any) -> Any:
    return state.window("dup", retention=60, retain_duplicates=True)


def _session(state: Any) -> Any:
    return state.session("ses", retention=80)


def viewed_rows(view: View, *, reverse: bool = False) -> Rows:
    rows: Rows = {}
    for name, store in view.stores.items():
        actual = [tuple(record) for record in store.records(Selection(reverse=reverse))]
        rows[name] = [(key, value) for key, _, value in actual] if name == "ttl" else actual
    return rows


def act(state: Any, draw: random.Random, clock: int) -> None:
    key = f"k{draw.randrange(30)}"
    value = draw.choice([None, draw.randrange(1000), "text", (1, "a"), b"\x00", {"a": [1, 2]}])
    ts = max(0, clock - draw.randrange(50))
    match draw.randrange(6):
        case 0:
            state.key_value("kv").put(key, value)
        case 1:
            state.key_value("ttl", ttl=40).put(key, value, ts)
        case 2:
            _window(state).put(key, value, ts)
        case 3:
            _duplicates(state).put(key, value, ts)
        case 4:
            _session(state).put(key, value, start=max(0, ts - draw.randrange(20)), end=ts)
        case _:
            state.key_value("kv").delete(key)


def build(path: Path, seed: int, commits: int = 25) -> dict[int, Rows]:
    """Make a state by a random script, with one checkpoint at least; return what it held at every version."""
    draw = random.Random(seed)
    policy = hs.CheckpointPolicy(keep=100)
    seen: dict[int, Rows] = {}
    with hs.open(path, checkpoints=policy, _tuning=TUNING) as state:
        seen[0] = live_rows(state)
        clock = 0
        for number in range(commits):
            for _ in range(draw.randrange(1, 40)):
                clock += draw.randrange(4)
                act(state, draw, clock)
            seen[state.commit()] = live_rows(state)
            if draw.random() < 0.2 or number == commits // 2:
                state.checkpoint(wait=True)
    return seen


def place_of(path: Path) -> Place:
    (place,) = resolve(path)
    return place


def test_every_version_is_shown_as_it_was(tmp_path: Path, seed: int, rounds: int) -> None:
    for round_number in range(rounds):
        path = tmp_path / str(round_number)
        seen = build(path, seed + round_number)
        place = place_of(path)
        for version, rows in seen.items():
            if version == 0:
                continue
            view = open_view(place, version)
            assert view.faults == []
            assert viewed_rows(view) == rows
            assert viewed_rows(view, reverse=True) == {name: records[::-1] for name, records in rows.items()}
            for name, store in view.stores.items():
                assert store.count() == len(rows[name])


def test_a_selection_takes_what_a_filter_over_everything_takes(tmp_path: Path, seed: int) -> None:
    build(tmp_path / "s", seed)
    view = open_view(place_of(tmp_path / "s"))
    for name, store in view.stores.items():
        everything = list(store.records())
        for chosen in (
            Selection(key_from="k1", key_to="k2"),
            Selection(prefix="k1"),
            Selection(key_from="k10", prefix="k1"),
            Selection(prefix="zz"),
        ):
            assert list(store.records(chosen)) == [row for row in everything if chosen.takes(row.key)], (name, chosen)
        if store.columns:
            times = sorted(row.times[0] for row in everything) or [0]
            middle = times[len(times) // 2]
            # a session counts when it overlaps the range
            after = [row for row in everything if row.times[0] >= middle]
            before = [row for row in everything if row.times[-1] <= middle]
            assert list(store.records(Selection(time_from=middle))) == after
            assert list(store.records(Selection(time_to=middle))) == before


def test_pages_hold_what_the_engine_reads(tmp_path: Path, seed: int) -> None:
    build(tmp_path / "s", seed)
    for path in sorted((tmp_path / "s" / "checkpoints").glob("*.lmdb")):
        data = path.read_bytes()
        assert dict(PageFile(data, "index").items()) == decode(data, str(path))


def test_a_checkpoint_file_alone_shows_its_version(tmp_path: Path, seed: int) -> None:
    seen = build(tmp_path / "s", seed)
    path = sorted((tmp_path / "s" / "checkpoints").glob("*.lmdb"))[-1]
    for folder in ("checkpoints", "packs"):
        shutil.copytree(tmp_path / "s" / folder, tmp_path / "lonely" / folder)
    view = open_view(place_of(tmp_path / "lonely" / "checkpoints" / path.name))
    assert viewed_rows(view) == seen[view.version]


def test_the_first_segment_alone_shows_its_last_version(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s") as state:
        state.key_value("kv").put("a", 1)
        state.commit()
    (segment,) = (tmp_path / "s" / "changelog").glob("*.log")
    view = open_view(place_of(segment))
    assert [tuple(row) for row in view.store("kv").records()] == [("a", (), 1)]


def test_a_live_writer_is_read_without_its_lock(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s") as state:
        state.key_value("kv").put("a", 1)
        state.commit()
        state.key_value("kv").put("b", 2)
        view = open_view(place_of(tmp_path / "s"))
        assert [row.key for row in view.store("kv").records()] == ["a"]


def test_every_look_beside_a_busy_writer_shows_one_whole_version(tmp_path: Path) -> None:
    """Segments roll, checkpoints come and old files go all the time; no look may see damage, or half of a version."""
    policy = hs.CheckpointPolicy(every_commits=3, keep=1)
    finished = threading.Event()
    wrong: list[object] = []

    def look() -> None:
        while not finished.is_set():
            view = open_view(place)
            rows = [row.value for row in view.store("kv").records()]
            if view.faults or rows != [view.version] * 2:
                wrong.append((view.version, rows, view.faults))

    with hs.open(tmp_path / "s", checkpoints=policy, _tuning=Tuning(segment_bytes=400)) as state:
        kv = state.key_value("kv")
        place = place_of(tmp_path / "s")
        reader = threading.Thread(target=look)
        for i in range(1, 200):
            kv.put("a", i)
            kv.put("b", i)
            state.commit()
            if i == 1:
                reader.start()
        finished.set()
        reader.join()
    assert wrong == []


@pytest.mark.parametrize("damaged", ["checkpoints/*.lmdb", "packs/*.pack", "changelog/*.log"])
def test_damage_is_named_and_what_is_before_it_is_shown(tmp_path: Path, seed: int, damaged: str) -> None:
    seen = build(tmp_path / "s", seed)
    draw = random.Random(seed)
    for path in sorted((tmp_path / "s").glob(damaged)):
        whole = path.read_bytes()
        for _ in range(5):
            raw = bytearray(whole)
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
            path.write_bytes(raw)
            view = open_view(place_of(tmp_path / "s"))
            rows = viewed_rows(view)
            # a flipped bit may fall where nothing is stored; whatever it hits, no row is made up
            assert view.faults or rows == seen[view.version]
            for name, records in rows.items():
                assert view.faults or set(map(repr, records)) <= set(map(repr, seen[view.version][name]))
        path.write_bytes(whole)


@pytest.mark.parametrize("tail", [10**6, 1])
def test_duplicates_over_blocks_are_those_of_the_store_in_order_of_arrival(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, tail: int
) -> None:
    monkeypatch.setattr(scan, "_LONG_TAIL", tail)
    r = random.Random(seed)
    with hs.open(tmp_path / "s", durability="os", _tuning=Tuning(block_records=3)) as state:
        clicks = state.window("clicks", retention=1000, retain_duplicates=True)
        for number in range(200):
            clicks.put(f"k{r.randrange(9)}", number, r.randrange(900 if number % 50 else 1200))
            if number == 120:
                state.commit()
                state.checkpoint(wait=True)
        state.commit()
        expected = list(clicks.all())
        seen = hs.inspect(tmp_path / "s")["clicks"]
        assert [((row.key, *row.times), row.value) for row in seen.scan()] == expected
        assert [((row.key, *row.times), row.value) for row in seen.scan(reverse=True)] == expected[::-1]
        for key in range(9):
            of_key = [row for row in expected if row[0][0] == f"k{key}"]
            assert [((row.key, *row.times), row.value) for row in seen.get(f"k{key}")] == of_key


def test_a_key_written_in_every_version_of_a_long_tail_counts_once(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", durability="os") as state:
        counts = state.key_value("counts")
        for _ in range(3):
            counts.put_many({f"k{n}": n for n in range(1500)})
            state.commit()
    (place,) = resolve(tmp_path / "s")
    counted = open_view(place).stores["counts"].counted
    assert (counted.records, counted.exact) == (1500, False)


def test_a_key_of_another_type_is_named_where_the_tail_is_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_LONG_TAIL", 3)
    with hs.open(tmp_path / "s") as state:
        for first in (0, 20):
            state.window("clicks", retention=1000).put_many([(f"k{i % 7}", i, first + i) for i in range(20)])
            state.commit()
            if not first:
                state.checkpoint(wait=True)
    clicks = hs.inspect(tmp_path / "s")["clicks"]
    for look in (lambda: clicks.get(5), lambda: list(clicks.scan(key_from=5, key_to=5))):
        with pytest.raises(TypeError, match="store 'clicks': key 5: found int, expected str"):
            look()


def test_a_long_tail_shows_the_same(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long tail only what is asked for is looked at; every answer stays what it was."""
    seen = build(tmp_path / "s", seed)
    monkeypatch.setattr(scan, "_LONG_TAIL", -1)
    (place,) = resolve(tmp_path / "s")
    for version in sorted(seen)[1::4]:
        for name, rows in seen[version].items():
            if name == "ttl":
                continue
            store = open_view(place, version).stores.get(name)
            if store is None:
                assert rows == []
                continue
            assert not store.counted.exact
            assert store.counted.records >= 0
            cold = store._live.cold_blocks
            for key in {row[0] for row in rows} | {"k1", "nobody"}:
                mine = [row for row in rows if row[0] == key]
                assert [tuple(row) for row in store.of_key(key)] == mine
                # of the blocks of one key nothing is put in place for the others
                assert store.kind not in ("window", "session") or store._live.cold_blocks == cold
                assert [tuple(row) for row in store.records(Selection(key, key, reverse=True))] == mine[::-1]
                late = [row for row in mine if not row[1] or (row[1][0] >= 40 and row[1][-1] <= 90)]
                assert [tuple(row) for row in store.records(Selection(key, key, None, 40, 90))] == late
            assert store.count() == len(rows)
            assert [tuple(row) for row in store.records()] == rows
