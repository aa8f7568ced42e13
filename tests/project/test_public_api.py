"""What users may import is written down in `public_names.txt`, one name a line: adding or removing one is a decision.

Whoever changes `hybridstore.__all__` changes that file in the same commit, and NEWS.md if users will notice.
"""

import ast
import importlib
import inspect
import pickle
import py_compile
import types
import zipfile
from pathlib import Path

import pytest

import hybridstore
from hybridstore import errors, spark
from hybridstore.faces import lazy

PINNED = (Path(__file__).parent / "public_names.txt").read_text(encoding="utf-8").split()


def test_the_public_names_are_those_written_down() -> None:
    added = sorted(set(hybridstore.__all__) - set(PINNED))
    removed = sorted(set(PINNED) - set(hybridstore.__all__))
    assert (added, removed) == ([], []), "tests/project/public_names.txt must say the same as hybridstore.__all__"


def test_the_public_names_are_sorted_and_unique() -> None:
    assert sorted(set(hybridstore.__all__)) == list(hybridstore.__all__)
    assert sorted(set(PINNED)) == PINNED


@pytest.mark.parametrize("name", PINNED)
def test_every_public_name_exists_and_says_what_it_is(name: str) -> None:
    value = getattr(hybridstore, name)
    assert inspect.getdoc(value), f"hybridstore.{name} has no docstring"
    if inspect.isclass(value):
        assert value.__doc__, f"hybridstore.{name} only inherits its docstring"


def test_nothing_else_is_within_reach() -> None:
    reachable = {name for name in vars(hybridstore) if not name.startswith("_")}
    modules = {name for name in reachable if isinstance(vars(hybridstore)[name], types.ModuleType)}
    assert reachable - modules - set(PINNED) - {"annotations"} == set()
    # modules are there because Python binds a package's submodules; ones of others are leaks
    assert {name for name in modules if not vars(hybridstore)[name].__name__.startswith("hybridstore.")} == set()


@pytest.mark.parametrize("form", ["source", "code", "both"])
def test_a_face_reads_its_names_from_its_source_or_its_code_in_an_archive_too(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        '"""A face.\n\n    from nowhere import nothing as nothing\n"""\nimport typing\n'
        "from hybridstore.faces import lazy\nif typing.TYPE_CHECKING:\n    from .part import ONE as ONE\n"
        "    from .part import TWO as _TWO\n\n    SECOND = _TWO\n\n__getattr__, __dir__, __all__ = lazy(__name__)\n"
    )
    package = f"face_by_its_{form}"
    with zipfile.ZipFile(tmp_path / "faces.zip", "w") as archive:
        for module, text in ("__init__", source), ("part", "ONE, TWO = 1, 2"):
            path = tmp_path / f"{module}.py"
            path.write_text(text, encoding="utf-8")
            if form != "code":
                archive.write(path, f"{package}/{module}.py")
            if form != "source":
                archive.write(py_compile.compile(str(path), doraise=True), f"{package}/{module}.pyc")
    monkeypatch.syspath_prepend(tmp_path / "faces.zip")
    face = importlib.import_module(package)
    assert face.__all__ == ["ONE", "SECOND"]
    assert (face.ONE, face.SECOND) == (1, 2)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        face.nothing  # noqa: B018
    monkeypatch.setattr(face.__spec__, "loader", None)
    with pytest.raises(ImportError, match=f"{package}: found neither source nor code of the package"):
        lazy(package)


@pytest.mark.parametrize("package", ["hybridstore", "hybridstore.spark", "hybridstore.testing"])
def test_the_code_of_a_face_has_the_names_of_its_source(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    face = importlib.import_module(package)
    assert face.__spec__ is not None
    names, loader = lazy(package)[2], face.__spec__.loader
    monkeypatch.setattr(face.__spec__, "loader", types.SimpleNamespace(get_code=loader.get_code))
    assert lazy(package)[2] == names


def test_every_public_method_has_a_docstring() -> None:
    bare = [
        f"{name}.{method}"
        for name in PINNED
        if inspect.isclass(value := getattr(hybridstore, name))
        for method, function in vars(value).items()
        if inspect.isfunction(function) and not method.startswith("_") and not inspect.getdoc(function)
    ]
    assert bare == []


def test_every_error_is_public_and_derives_from_one_root() -> None:
    names = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert names == set(errors.__all__)
    assert len([name for name in PINNED if name.endswith("Error")]) == 11
    for name in names:
        assert name.endswith("Error")
        assert issubclass(getattr(errors, name), hybridstore.HybridStoreError)


def test_an_error_reads_as_it_is_imported_and_survives_a_pickle() -> None:
    kinds = {getattr(hybridstore, name) for name in PINNED if name.endswith("Error")}
    kinds |= {getattr(errors, name) for name in errors.__all__} | {
        getattr(spark, n) for n in spark.__all__ if "Error" in n
    }
    for kind in kinds:
        home = "hybridstore" if kind.__name__ in PINNED else "hybridstore.errors"
        assert kind.__module__ == ("hybridstore.spark" if kind.__name__ in spark.__all__ else home)
        assert pickle.loads(pickle.dumps(kind)) is kind


def test_the_examples_and_the_typed_user_code_import_only_the_public_package() -> None:
    root = Path(__file__).resolve().parents[2]
    for path in [*root.glob("examples/*.py"), *root.glob("tests/typing/*.py")]:
        imported = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
        assert {name for name in imported if name.split(".")[0] in ("changelog", "recovery")} == set(), path.name
