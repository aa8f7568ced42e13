"""A `file:` URI is a location wherever a path is one: one rule, `local_path`, for all doors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import hybridstore as hs
from changelog.errors import HybridStoreError
from changelog.storage import local_path
from hybridstore.cli import run

COMMANDS = [
    "inspect stat {uri}",
    "inspect get {uri} users ann",
    "inspect scan {uri} users",
    "inspect log {uri}",
    "inspect list {uri}",
    "inspect report {uri} -o {folder}/report.html",
    "inspect verify {uri}",
    "inspect diff {uri} {uri}",
    "inspect restart {uri}",
    "inspect pack {uri} --to {uri}.zip",
    "inspect stat {uri}.zip",
    "inspect compact {uri} --to {uri}-compacted --write",
    "bisect {uri} users ann --bad",
    "pin {uri} good",
    "pin {uri}",
    "inspect get {uri}/pins/good users ann",
    "fork {uri}@1 {uri}-fork",
    "rewind {uri}-fork --to 1 --write",
    "erase {uri}-fork ann",
]


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("file:///data/a%20b", "/data/a b"),
        ("file:/data/é#?@1", "/data/é#?@1"),
        ("file://localhost/data", "/data"),
        ("file:///data/", "/data"),
        ("file:///data/%FF%C3%A9", "/data/\udcffé"),  # as `Path.as_uri` writes a name that is not in UTF-8
        ("data/file:", "data/file:"),
        (Path("state"), "state"),
    ],
)
def test_a_location_is_a_path(location: str | Path, path: str) -> None:
    assert local_path(location) == Path(path)


@pytest.mark.parametrize("location", ["file:data", "file://", "file://host/data", "file:"])
def test_a_uri_of_another_machine_is_refused(location: str) -> None:
    for door in (local_path, hs.open, hs.inspect, hs.serve, hs.pins):
        with pytest.raises(HybridStoreError, match=f"^{location}: found no path of this machine, expected file:///"):
            door(location)  # type: ignore[operator]


@pytest.mark.parametrize("form", ["file://{}", "file:{}", "file://localhost{}"])
def test_every_door_takes_it(tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    uri = form.format(str(folder / "state").replace(" ", "%20"))
    with hs.open(uri) as state:
        for number in range(2):
            state.key_value("users").put_many({"ann": number, "bob": 5})
            state.commit()
        state.checkpoint(wait=True)
    assert {each.name for each in folder.iterdir()} == {"state"}
    with hs.inspect(uri).follow() as view, hs.serve(uri) as server:
        assert view.get("users", "ann")[0].value == 1
        assert json.load(urlopen(f"{server.url}/stores/users/rows?key=ann"))["rows"] == [{"key": "ann", "value": 1}]
    for line in COMMANDS:
        words = [word.format(uri=uri, folder=folder) for word in line.split()]
        more = ["value > 0"] if "--bad" in words else []
        assert run([*words, *more]) == 0, (line, capsys.readouterr().err)
    assert hs.fork(uri, f"{uri}-2") == folder / "state-2"
    hs.pin(uri, "later")
    assert [pin.name for pin in hs.pins(uri)] == ["good", "later"]
    hs.unpin(uri, "later")
    assert hs.erase(uri, "bob", forks="erase").records == 4
    assert hs.prove(uri, "ann").traces
    assert {each.name for each in folder.iterdir()} == {
        "state", "state-2", "state-fork", "state-compacted", "state.zip", "report.html"
    }  # fmt: skip
    assert not (Path.cwd() / "file:").exists()


@pytest.mark.parametrize(
    ("location", "error", "words"),
    [
        ("", ValueError, r"location: found '', expected a path or a URL"),
        (b"state", TypeError, r"location: found bytes, expected a path or a URL"),
        (None, TypeError, r"location: found NoneType, expected a path or a URL"),
    ],
)
def test_what_is_no_location_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: Any, error: type[Exception], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for ask in (hs.open, hs.inspect):
        with pytest.raises(error, match=words):
            ask(location)
    assert not list(tmp_path.iterdir())
