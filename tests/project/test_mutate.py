"""The mutation script: its changes, the tests that it runs, and what it says of a change that a test notices."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = '''"""Module."""

LIMIT = 3  # not in a function


def kept(rows: "list[int]", limit: int = 10) -> list[int]:
    """A docstring."""
    kept = []
    for row in rows:
        if row < limit and row:
            kept.append(row)
            continue
    if not kept:
        raise ValueError(f"found {1 + 1} rows")
    return kept


def put(store: Store, rows: list[int]) -> int:
    store.rows = sorted(row for row in rows if row)
    del store.before
    return divmod(rows, store) if rows else store
'''


@pytest.fixture(scope="module")
def mutate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutate", ROOT / "scripts" / "mutate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # NamedTuple asks for the module's names
    sys.modules["mutate"] = module
    spec.loader.exec_module(module)
    return module


def test_each_mutant_is_one_change_of_what_a_function_does(mutate: ModuleType) -> None:
    mutants = list(mutate.mutants_of("file.py", SOURCE))
    assert [f"{mutant.line}: {mutant.what}" for mutant in mutants] == [
        "6: 10  ->  (11)",
        "10: row < limit and row  ->  (not (row < limit and row))",
        "10: row < limit and row  ->  (row < limit or row)",
        "10: row < limit and row  ->  (row)",
        "10: row < limit and row  ->  (row < limit)",
        "10: row < limit  ->  (row <= limit)",
        "11: kept.append(row)  ->  pass",
        "12: continue  ->  break",
        "13: not kept  ->  (not (not kept))",
        "13: not kept  ->  (kept)",
        '14: raise ValueError(f"found {1 + 1} rows")  ->  pass',
        "19: store.rows = sorted(row for row in rows if row)  ->  pass",
        "19: sorted  ->  list",
        "19: row  ->  True",
        "20: del store.before  ->  pass",
        "21: divmod(rows, store) if rows else store  ->  (store if rows else divmod(rows, store))",
        "21: divmod(rows, store)  ->  (divmod(store, rows))",
    ]
    for mutant in mutants:
        text = mutate.changed(SOURCE, mutant)
        assert text != SOURCE
        compile(text, "file.py", "exec")


def test_the_nearest_tests_come_first(mutate: ModuleType) -> None:
    tests = mutate.tests_of("changelog/codec.py", ROOT)
    assert tests[0] == "tests/changelog/test_codec.py"
    # of its room all, of other rooms those that import it
    assert {"tests/changelog/test_writer.py", "tests/aggregation/test_rows.py"} <= set(tests)
    # and all of the room that uses its room
    assert "tests/state/test_cold_in_place.py" in mutate.tests_of("hybridstore/stores/window.py", ROOT)
    assert "tests/docs/test_readme.py" not in tests


def test_a_change_that_a_test_notices_is_killed_and_another_one_survives(mutate: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "changelog").mkdir()
    (tmp_path / "tests" / "changelog").mkdir(parents=True)
    # a package as the installed one is, so that it comes first
    (tmp_path / "changelog" / "__init__.py").touch()
    (tmp_path / "changelog" / "small.py").write_text("def small(n):\n    return n < 3\n")
    (tmp_path / "tests" / "changelog" / "test_small.py").write_text(
        "from changelog.small import small\n\ndef test_small():\n    assert small(2)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    spark\n")
    judge = mutate.Judge(tmp_path, 600)
    source = (tmp_path / "changelog" / "small.py").read_text()
    verdicts = {mutant.what: judge.judge(mutant) for mutant in mutate.mutants_of("changelog/small.py", source)}
    assert verdicts == {
        "n < 3  ->  (n <= 3)": ("passed", ""),
        "3  ->  (4)": ("passed", ""),
    }
    (tmp_path / "tests" / "changelog" / "test_small.py").write_text(
        "from changelog.small import small\n\ndef test_small():\n    assert not small(3)\n"
    )
    (mutant, _) = mutate.mutants_of("changelog/small.py", source)
    assert judge.judge(mutant) == ("failed", "tests/changelog/test_small.py::test_small")
    assert (tmp_path / "changelog" / "small.py").read_text() == source
