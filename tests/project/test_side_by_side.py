"""How tests are spread over processes: the rules, without starting any."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("xdist")

from tests.conftest import SEED
from tests.tools import side_by_side
from tests.tools.side_by_side import ALONE, LONG, SESSION, choose, from_own_place, processes, unit

ROOT = Path(__file__).resolve().parents[2]


def test_every_file_that_is_named_exists() -> None:
    assert [name for name in ALONE if not (ROOT / name).is_file()] == []
    assert [name for name in LONG if not list(ROOT.glob(f"{name}*"))] == []
    assert {
        "tests/docs/test_examples_in_docstrings.py",
        "tests/spark/test_operator.py",
        "tests/spark/test_rows.py",
    } <= {*SESSION}
    assert {"tests/spark/test_holder.py", "tests/spark/test_murders.py"}.isdisjoint(SESSION)


def test_tests_of_a_file_stay_together_unless_they_are_long() -> None:
    assert unit("tests/stores/test_session.py::TestA::test_b[x::y]") == "tests/stores/test_session.py"
    assert unit(f"{ALONE[0]}::test_b[1]") == f"{ALONE[0]}::test_b[1]"


def test_long_units_begin_first_and_never_wait_behind_one_another() -> None:
    first, second, third = [f"{name}::test_a[0]" for name in LONG if name not in SESSION][:3]
    queue = ["tests/aggregation/test_aggregator.py", third, first, "tests/stores/test_session.py", second]
    assert choose(queue, [], session=False) == first
    assert choose(queue, ["tests/stores/test_model.py"], session=False) == first
    assert choose(queue, [second], session=False) == "tests/aggregation/test_aggregator.py"
    assert choose([second, third], [first], session=False) == third  # there is nothing else


def test_half_of_the_processes_have_no_spark_session_while_there_is_something_else() -> None:
    spark, short, long = "tests/spark/test_rows.py", "tests/stores/test_session.py", LONG[-1]
    queue = [short, spark, long]
    assert choose(queue, [], session=True) == spark
    assert choose(queue, [], session=False) == long
    assert choose(queue, [spark], session=True) == short
    assert choose([spark], [], session=False) == spark
    assert choose([short, long], [], session=True) == long
    # where one process has the only session, nobody else is to take what needs it
    assert choose(queue, [spark], session=True, alone=True) == spark
    assert choose([short, long], [LONG[-2]], session=True, alone=True) == short
    assert choose(queue, [LONG[-2]], session=False, alone=True) == short


@pytest.mark.parametrize(
    ("cores", "gigabytes", "expected"), [(1, 16, 2), (2, 24, 3), (2, 4, 2), (1, 1, 1), (16, 64, 8), (64, 8, 4)]
)
def test_as_many_processes_as_cores_and_memory_bear(
    monkeypatch: pytest.MonkeyPatch, cores: int, gigabytes: int, expected: int
) -> None:
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": gigabytes * 2**18}
    monkeypatch.setattr(side_by_side.os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    monkeypatch.setattr(side_by_side.os, "sysconf", sizes.__getitem__)
    assert processes() == expected


@pytest.mark.parametrize("count", [1, 3, 4, 8])
def test_each_process_imports_all_files_and_another_part_of_them_first(count: int) -> None:
    files = [Path(f"{number:02d}") for number in range(19)]
    orders = [from_own_place(files, process, count) for process in range(count)]
    assert [sorted(order) for order in orders] == [files] * count
    first = [path for order in orders for path in order[: len(files) // count]]
    assert len(set(first)) == len(first)


def run(folder: Path, *options: str, **variables: str) -> str:
    """Run this checkout's conftest over a small test file in processes of its own."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "HYBRIDSTORE_"))
    }
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder)]
    command += ["-p", "tests.conftest", "-p", "no:cacheprovider", *options, str(folder)]
    answer = subprocess.run(
        command, cwd=ROOT, env=environment | variables, capture_output=True, text=True, check=False, timeout=300
    )
    return answer.stdout + answer.stderr


def test_all_processes_have_the_seed_that_is_printed_above_the_closing_line(tmp_path: Path) -> None:
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).write_text(
            "import pytest\nfrom tests.conftest import SEED\n\n"
            "@pytest.mark.parametrize('n', range(3))\ndef test_it(n, seed):\n    print(f'seed {SEED} {n} {seed}')\n"
        )
    drawn = run(tmp_path, "-n2", "-rP")
    closing, line = reversed(drawn.splitlines()[-2:])
    assert "6 passed" in closing, drawn
    assert line.startswith("random runs: HYBRIDSTORE_SEED=")
    seed = line.split("=")[1].split()[0]
    seeds = sorted(printed for printed in drawn.splitlines() if printed.startswith("seed "))
    assert len(set(seeds)) == 6
    assert {printed.split()[1] for printed in seeds} == {seed}
    # in one process, and with the seed asked for, each test has the seed that it had
    again = run(tmp_path, "-n0", "-rP", HYBRIDSTORE_SEED=seed)
    assert sorted(printed for printed in again.splitlines() if printed.startswith("seed ")) == seeds


def test_a_test_that_ends_its_process_fails_once_and_all_others_run(tmp_path: Path) -> None:
    passing = "import pytest\n\n@pytest.mark.parametrize('n', range(4))\ndef test_it(n): pass\n"
    for number in range(12):
        (tmp_path / f"test_{number:02d}.py").write_text(passing)
    ending = "\n\ndef test_end():\n    import os\n    os._exit(1)\n\ndef test_later(): pass\n"
    (tmp_path / "test_05.py").write_text(passing + ending)
    answer = run(tmp_path, "-n2")
    assert "1 failed, 49 passed" in answer.splitlines()[-1], answer


class Process:
    """Stands for a process of tests: what it was told, with the rule of pytest-xdist that it begins a test only when it
    knows what comes behind it.
    """

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id="gw")
        self.tests: list[int] = []
        self.shutting_down = False
        self.ended = False

    def send_runtest_some(self, tests: list[int]) -> None:
        if self.ended:
            raise BrokenPipeError
        self.tests += tests

    def shutdown(self) -> None:
        self.shutting_down = True

    def next(self) -> int | None:
        return self.tests.pop(0) if len(self.tests) > self.shutting_down ^ 1 else None


@pytest.mark.parametrize("units", [[2, 1, 1, 3], [1, 1], [3, 1], [4, 4, 1, 1, 1], [2] * 8])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("deaf", [False, True])
def test_what_a_process_leaves_is_run_by_others_whatever_they_have(units: list[int], late: bool, deaf: bool) -> None:
    names = [f"tests/a/test_{file}.py::test_{test}" for file, count in enumerate(units) for test in range(count)]
    options = SimpleNamespace(loadscopereorder=False)
    config: Any = SimpleNamespace(option=options, getvalue=lambda name: ["popen", "popen"])
    log: Any = SimpleNamespace(loadscopesched=lambda *_: None)
    scheduling = side_by_side.Scheduling(config, log)
    first, second, third = Process(), Process(), Process()
    for process in (first, second):
        scheduling.add_node(process)
    for process in (first, second):
        scheduling.add_node_collection(process, names)
    scheduling.schedule()
    ran = list[str]()

    def run(process: Process) -> None:
        while (test := process.next()) is not None:
            ran.append(names[test])
            scheduling.mark_test_complete(process, test)

    def end(process: Process) -> None:
        ended_in = scheduling.remove_node(process)
        ran.extend([ended_in] if ended_in else [])

    if late:  # the other process is through with all that it can get
        run(second)
    while deaf and (test := first.next()) is not None:  # its answers arrive when it has ended
        ran.append(names[test])
        first.ended = True
        scheduling.mark_test_complete(first, test)
    scheduling.add_node(third)  # it is not ready yet
    end(first)
    if second.shutting_down:
        run(second)
        end(second)
    scheduling.add_node_collection(third, names)
    scheduling.schedule()
    for _ in names:
        for process in (second, third):
            if process in scheduling.nodes:
                run(process)
    assert scheduling.tests_finished
    for process in {second, third} & {*scheduling.nodes}:
        process.shutdown()
        run(process)
    assert sorted(ran) == sorted(names)


def test_the_seed_of_this_run_is_in_the_environment() -> None:
    assert os.environ["HYBRIDSTORE_SEED"] == str(SEED)
