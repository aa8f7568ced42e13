"""Every public name of docs/api.md shows an example in its docstring, and every example does what it shows.

An example runs in an empty folder and knows two names: `hs` (hybridstore) and `hsp` (hybridstore.spark). Examples with
Spark also know `spark` (a session), `events` (a streaming DataFrame of `user` and `ts`: ann at 0 and at 500 ms)
and `location` (an empty folder); they run one after the other in the session of the tests.
"""

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hybridstore
import hybridstore.spark
from hybridstore.state.usable import OPEN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NEEDS_SPARK = re.compile(r"(?<![.\w])(spark|pyspark|events)\b")
# Roots that nothing raises, or few; what only forged bytes cause; and two minutes of waiting for an object store.
NOT_SHOWN = {"ChangelogError", "CheckpointError", "StorageUnreachableError"}


def modules_with_examples() -> list[str]:
    files = [path for room in ("changelog", "recovery", "hybridstore") for path in sorted((ROOT / room).rglob("*.py"))]
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in files
        if ">>> " in path.read_text(encoding="utf-8")
    ]


class Finder(doctest.DocTestFinder):
    """Finds the examples of errors, too, whose `__module__` is the package that users import them from."""

    def _from_module(self, module: Any, object: Any) -> bool:
        if inspect.isclass(object) and issubclass(object, Exception):
            return f"\nclass {object.__name__}(" in inspect.getsource(module)
        return super()._from_module(module, object)  # type: ignore[misc, no-any-return]


def examples(module: str, *, spark: bool) -> Iterator[doctest.DocTest]:
    """Yield the examples of a module, one for each docstring: those that need a session of Spark, or the others."""
    for test in Finder(exclude_empty=True).find(importlib.import_module(module), globs={}):
        source = "".join(example.source for example in test.examples)
        if test.examples and bool(NEEDS_SPARK.search(source)) is spark:
            yield test


def problems(test: doctest.DocTest, folder: Path, **names: Any) -> str:
    """Run an example in an empty folder, close every state that it leaves open, and return what differs."""
    folder.mkdir()
    text: list[str] = []
    test.globs = {"hs": hybridstore, "hsp": hybridstore.spark, **names}
    before = set(OPEN)
    with chdir(folder):
        doctest.DocTestRunner(verbose=False, optionflags=FLAGS).run(test, out=text.append)
        for state in set(OPEN) - before:
            state.close()
    return "".join(text)


def public(page: str) -> dict[str, Any]:
    """Return what a page of the API names: functions, classes, and the members of classes."""
    names: dict[str, Any] = {}
    for name, members in re.findall(r"\.\. auto\w+:: (\S+)\n(?:   :members: (.*))?", page):
        module, _, attribute = name.rpartition(".")
        value = names[name] = getattr(importlib.import_module(module), attribute)
        for member in filter(None, members.split(", ")):
            names[f"{name}.{member}"] = getattr(value, member)
    return names


def without_example(names: dict[str, Any]) -> list[str]:
    """Return the names whose docstring has no example."""
    return [
        name
        for name, value in names.items()
        if name.rpartition(".")[2] not in NOT_SHOWN and ">>> " not in (inspect.getdoc(value) or "")
    ]


def test_every_public_name_shows_an_example() -> None:
    names = public((ROOT / "docs/api.md").read_text(encoding="utf-8"))
    assert "hybridstore.KeyValueStore.scan" in names
    assert without_example(names) == []


@pytest.mark.parametrize("module", modules_with_examples())
def test_the_examples_of_a_module_do_what_they_show(module: str, tmp_path: Path) -> None:
    tests = examples(module, spark=False)
    assert "".join(problems(test, tmp_path / str(i)) for i, test in enumerate(tests)) == ""


@pytest.mark.spark
def test_the_examples_that_need_spark_do_what_they_show(spark: "SparkSession", tmp_path: Path) -> None:
    tests = [test for module in modules_with_examples() for test in examples(module, spark=True)]
    assert tests
    source = tmp_path / "events"
    source.mkdir()
    (source / "1.json").write_text('{"user": "ann", "ts": 0}\n{"user": "ann", "ts": 500}\n', encoding="utf-8")
    events = spark.readStream.schema("user string, ts long").json(str(source))
    text = ""
    for i, test in enumerate(tests):
        text += problems(test, tmp_path / str(i), spark=spark, events=events, location=str(tmp_path / f"location-{i}"))
    assert text == ""


class Planted:
    """A class with one example that is right.

    >>> hs.Count().of([7, 8])
    2
    """

    def bare(self) -> None:
        """Show no example."""

    def wrong(self) -> None:
        """Show what is not so.

        >>> hs.Count().of([7, 8])
        3
        """


def test_a_planted_name_without_an_example_is_named() -> None:
    names = {"Planted": Planted, "Planted.bare": Planted.bare, "Planted.wrong": Planted.wrong}
    assert without_example(names) == ["Planted.bare"]
    assert without_example({"hybridstore.errors.ChangelogError": hybridstore.errors.ChangelogError}) == []


def test_a_planted_example_that_is_wrong_is_reported(tmp_path: Path) -> None:
    tests = {test.name.rpartition(".")[2]: test for test in doctest.DocTestFinder().find(Planted) if test.examples}
    texts = {name: problems(test, tmp_path / name) for name, test in tests.items()}
    assert texts["Planted"] == ""
    assert "Expected:\n    3\nGot:\n    2" in texts["wrong"]
