"""The wheel holds what it should and nothing else, works from where it is unpacked, and minds its manners."""

import configparser
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """The wheel of this checkout, built by the hatchling of this environment, so without a network."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    answer = subprocess.run(build, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (file,) = folder.glob("*.whl")
    return zipfile.Path(file)


@pytest.fixture(scope="module")
def unpacked(wheel: zipfile.Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files in an empty folder, as an installer would leave them in site-packages."""
    folder = tmp_path_factory.mktemp("site")
    wheel.root.extractall(folder)
    return folder


def run(code: str, *path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh Python that finds these folders before anything installed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONSAFEPATH": "1"}
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True)


def test_the_top_level_names_are_exactly_ours(wheel: zipfile.Path) -> None:
    dist_info = f"{PROJECT['name']}-{PROJECT['version']}.dist-info"
    expected = {"changelog", "hybridstore", "recovery", dist_info}
    expected |= {path.name for path in ROOT.glob("pyspark_hybridstore.py")}
    assert {name.split("/")[0] for name in wheel.root.namelist()} == expected


def test_every_module_of_the_checkout_is_in_the_wheel_and_typed(wheel: zipfile.Path) -> None:
    ours = {name for name in wheel.root.namelist() if not name.split("/")[0].endswith(".dist-info")}
    sources = [p for package in ("changelog", "hybridstore", "recovery") for p in (ROOT / package).rglob("*")]
    modules = {str(p.relative_to(ROOT)) for p in sources if p.suffix == ".py"}
    assert modules <= ours
    assert {"changelog/py.typed", "hybridstore/py.typed", "recovery/py.typed"} <= ours
    assert not [name for name in ours if "__pycache__" in name or name.endswith(".pyc")]


def test_the_licence_travels_with_it(wheel: zipfile.Path) -> None:
    licences = [name for name in wheel.root.namelist() if name.endswith("licenses/LICENSE")]
    assert len(licences) == 1
    assert "Apache License" in wheel.root.read(licences[0]).decode()


def test_it_works_from_where_it_is_unpacked(unpacked: Path, tmp_path: Path) -> None:
    code = (
        "import hybridstore as hs\n"
        "with hs.open('state') as s:\n"
        "    s.key_value('names')['a'] = 1\n"
        "    s.commit()\n"
        "with hs.open('state') as s:\n"
        "    print(hs.__file__, s.version, s.key_value('names')['a'])\n"
    )
    answer = run(code, unpacked, cwd=tmp_path)
    assert answer.stderr == ""
    assert answer.stdout.split() == [str(unpacked / "hybridstore" / "__init__.py"), "1", "1"]


@pytest.mark.skipif(not (ROOT / "hybridstore" / "cli.py").exists(), reason="the command line is not there yet")
def test_the_console_script_leads_to_a_function(unpacked: Path, tmp_path: Path) -> None:
    scripts = configparser.ConfigParser()
    scripts.read(next(unpacked.glob("*.dist-info")) / "entry_points.txt")
    module, function = scripts["console_scripts"]["hybridstore"].split(":")
    answer = run(f"import {module} as m; print(callable(m.{function}))", unpacked, cwd=tmp_path)
    assert (answer.stdout.strip(), answer.stderr) == ("True", "")


@pytest.mark.parametrize("foreign", ["changelog/__init__.py", "changelog.py", "recovery/__init__.py"])
@pytest.mark.parametrize(
    "source",
    [
        pytest.param("", id="sound"),
        # SQLAlchemy's `changelog` is such a one: without sphinx its own import fails
        pytest.param("import a_module_that_is_not_installed_here\n", id="broken"),
    ],
)
def test_a_foreign_package_of_the_same_name_gets_one_clear_sentence(
    unpacked: Path, tmp_path: Path, foreign: str, source: str
) -> None:
    module = tmp_path / "theirs" / foreign
    module.parent.mkdir(parents=True)
    module.write_text(source)
    name = foreign.split("/")[0].removesuffix(".py")
    answer = run("import hybridstore", tmp_path / "theirs", unpacked, cwd=tmp_path)
    assert answer.stderr.splitlines()[-1] == (
        f"ImportError: another package named {name!r} ({module}) hides hybridstore's; they cannot share an environment "
        "(install hybridstore into an environment of its own)"
    )
