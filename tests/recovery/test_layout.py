"""Names on disk: each builder and its parser agree, near misses are nobody's names, and names sort as what they
stand for.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery import layout
from recovery.layout import CheckpointName, LogName, PackName
from tests.tools.memory_storage import MemoryStorage

VERSIONS = st.integers(0, 10**20 - 1)
LAUNCHES = st.integers(1, 10**10 - 1)
HASHES = st.text("0123456789abcdef", min_size=1, max_size=32)


@pytest.mark.parametrize(
    ("name", "parse", "meaning"),
    [
        ("checkpoints/00000000000000000042-0af3.lmdb", layout.parse_checkpoint_name, CheckpointName(42, 0, "0af3")),
        (
            "checkpoints/00000000000000000042-0000000007-0af3.lmdb",
            layout.parse_checkpoint_name,
            CheckpointName(42, 7, "0af3"),
        ),
        (
            "packs/00000000000000000042-1767225600000-00ff00ff00ff00ff.pack",
            layout.parse_pack_name,
            PackName(42, 1767225600000, "00ff00ff00ff00ff"),
        ),
        (
            "log/00000000000000000042-0000000007-00000000000000000123-deadbeef",
            layout.parse_log_name,
            LogName(42, 7, 123, "deadbeef"),
        ),
        ("launches/0000000007", layout.parse_launch_name, 7),
        ("runs/0000000007", layout.parse_run_name, 7),
        ("operator/0000000000.json", layout.parse_operator_name, 0),
        ("000001/000042", layout.parse_shard_folder, (1, 42)),
        ("rescales/000001", layout.parse_rescale_name, 1),
        ("generations/0000000007.json", layout.parse_generation_name, 7),
    ],
)
def test_a_name_has_one_meaning_and_near_misses_have_none(name: str, parse: Callable[[str], Any], meaning: Any) -> None:
    assert parse(name) == meaning
    misses = [name + "x", "x" + name, name[:-1], name.upper(), name.replace("/", "//"), name + "\n", f"./{name}", ""]
    misses += [
        name.replace("0", "\u0660", 1),
        name.replace("00", "0", 1),
        name.replace("00", "000", 1),
        name.split("/")[-1],
    ]
    for miss in misses:
        assert miss == name or parse(miss) is None, miss


@pytest.mark.parametrize("wall_ms", [-5, 10**13 - 1, 10**13, 10**16])
def test_names_with_a_time_are_read_whatever_a_clock_says(wall_ms: int) -> None:
    """A note of a claim, or a pack, of a clock beyond the year 2286 was nobody's: acknowledged commits were lost."""
    assert layout.parse_fence_name(layout.fence_name(7, wall_ms)) == 7
    pack = layout.parse_pack_name(str(PackName(7, wall_ms, "00ff00ff00ff00ff")))
    assert pack == PackName(7, max(0, wall_ms), "00ff00ff00ff00ff")


@given(version=VERSIONS, launch=LAUNCHES, hash=HASHES, attempt=VERSIONS, digest=st.binary(min_size=16, max_size=16))
def test_every_parser_reads_what_its_builder_builds(
    version: int, launch: int, hash: str, attempt: int, digest: bytes
) -> None:
    for name in (CheckpointName(version, launch, hash), CheckpointName(version, 0, hash)):
        assert layout.parse_checkpoint_name(str(name)) == name
    named = LogName(version, launch, attempt, digest.hex()[:8])
    log = str(named)
    assert layout.parse_log_name(log) == named
    assert layout.parse_launch_name(layout.launch_name(launch)) == launch
    assert layout.parse_run_name(layout.run_name(launch)) == launch
    assert layout.parse_operator_name(layout.operator_name(launch)) == launch
    pack = PackName(version, launch, digest.hex()[:16])
    assert layout.parse_pack_name(str(pack)) == pack
    assert layout.parse_rescale_name(layout.rescale_name(launch % 10**6)) == launch % 10**6
    assert layout.parse_generation_name(layout.generation_name(launch)) == launch
    assert layout.parse_shard_folder(layout.shard_folder(launch % 10**6, version % 10**6)) == (
        launch % 10**6,
        version % 10**6,
    )


@given(st.lists(st.builds(LogName, VERSIONS, LAUNCHES, VERSIONS, st.just("00000000"))), VERSIONS)
def test_log_objects_sort_by_version_and_are_listed_from_a_version_on(names: list[LogName], version: int) -> None:
    assert sorted(map(str, names)) == [str(name) for name in sorted(names)]
    storage = MemoryStorage()
    for name in names:
        storage.create(str(name), b"")
    listed = storage.list(f"{layout.LOG}/", after=layout.log_before(version))
    assert [layout.parse_log_name(name) for name in listed] == sorted({n for n in names if n.version >= version})


def test_checkpoints_are_listed_oldest_first_and_markers_are_not_checkpoints() -> None:
    storage = MemoryStorage()
    names = [CheckpointName(42, 7, "aa"), CheckpointName(42, 12, "00"), CheckpointName(5, 0, "ff")]
    for name in names:
        storage.create(str(name), b"")
    storage.create(layout.damage_name(str(names[0])), b"")
    assert storage.list("checkpoints/00000000000000000042-0000000007")[0].endswith("-aa.damaged")
    assert layout.list_checkpoints(storage) == [names[2], names[0], names[1]]
