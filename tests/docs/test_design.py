"""The page about the design names every room, the page about recovery every file of it, and they are there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/design.md").read_text(encoding="utf-8")
ROOMS = [
    "changelog",
    "recovery",
    *(f"hybridstore/{path.parent.name}" for path in ROOT.glob("hybridstore/*/__init__.py")),
]


def test_every_room_has_a_row_and_every_row_is_of_a_room() -> None:
    assert sorted(re.findall(r"^\| `([a-z/]+)/` \|", PAGE, re.MULTILINE)) == sorted(ROOMS)


def test_every_file_that_a_row_or_the_way_of_a_record_names_is_there() -> None:
    for room, row in re.findall(r"^\| `([a-z/]+)/` \| (.*) \|$", PAGE, re.MULTILINE):
        for name in re.findall(r"`([a-z_]+(?:\.py|/))`", row):
            assert (ROOT / room / name).exists(), f"{room}/{name}"
    way = PAGE.partition("## The way of a record")[2].partition("## ")[0]
    for line in way.splitlines():
        folder = ""
        for path in re.findall(r"[a-z_/]+\.py", line):
            folder = path.rpartition("/")[0] or folder
            places = [ROOT / folder / Path(path).name, ROOT / "hybridstore" / folder / Path(path).name]
            assert any(place.is_file() for place in places), path


def test_the_page_about_recovery_names_every_file_of_the_room() -> None:
    page = (ROOT / "docs/recovery.md").read_text(encoding="utf-8")
    files = {path.stem for path in ROOT.glob("recovery/*.py")} - {"__init__"}
    assert set(re.findall(r"`recovery/(\w+)\.py`", page)) == files
