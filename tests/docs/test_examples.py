"""The demonstration at a small size: killed, restarted, and not one row different."""

import runpy
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import hybridstore as hs

TRAFFIC = Path(__file__).resolve().parents[2] / "examples" / "traffic.py"


def traffic(work: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TRAFFIC), "--workdir", str(work), "--lines", "4000", "--batches", "6", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=work.parent)


def check(answer: subprocess.CompletedProcess[str], killed: str) -> None:
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "0 differences" in answer.stdout
    assert "3 lines are not in the combined log format" in answer.stdout
    assert f"killed with SIGKILL {killed}" in answer.stdout


@pytest.mark.spark
def test_a_killed_job_ends_with_the_results_of_one_that_never_was(tmp_path: Path) -> None:
    sizes = ("--batches", "3", "--shards", "2")
    check(traffic(tmp_path / "demo", "--engine", "spark", "--kills", "1", *sizes), "once")
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


@pytest.mark.stress
def test_killed_again_and_again(tmp_path: Path, rounds: int) -> None:
    """More kills than commits in places, so that some fall into the making of the shards and between their commits."""
    for kills in (6 - number % 6 for number in range(1 + rounds // 10)):
        answer = traffic(tmp_path / "demo", "--engine", "plain", "--kills", str(kills))
        check(answer, "once" if kills == 1 else f"{kills} times")
        assert [path.name for path in tmp_path.iterdir()] == ["demo"]


def test_a_log_that_is_none_gets_one_sentence(tmp_path: Path) -> None:
    log = tmp_path / "notes.txt"
    log.write_text("dear diary\n")
    answer = traffic(tmp_path / "demo", "--log", str(log))
    assert answer.returncode == 1
    assert answer.stderr == f"traffic: {log}: found no line in the combined log format among 1\n"


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    work = tmp_path / "precious"
    work.mkdir()
    (work / "thesis.txt").write_text("years of work")
    answer = traffic(work)
    assert answer.returncode == 1
    assert "not empty and not from an earlier demonstration" in answer.stderr
    assert (work / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--lines", "-5"], 2, "argument --lines: found -5, expected 1 or more"),
        (["--batches", "0"], 2, "argument --batches: found 0, expected 1 or more"),
        (["--kills", "-1"], 2, "argument --kills: found -1, expected 0 or more"),
        (["--shards", "many"], 2, "argument --shards: invalid number value: 'many'"),
        (["--workdir", "/proc/nowhere"], 1, "traffic: [Errno 2] No such file or directory: '/proc/nowhere'"),
    ],
)
def test_impossible_options_get_one_sentence(options: list[str], code: int, message: str, tmp_path: Path) -> None:
    answer = traffic(tmp_path / "demo", "--engine", "plain", *options)
    assert answer.returncode == code
    assert answer.stderr.splitlines()[-1].endswith(message)
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_a_demonstration_that_is_stopped_takes_its_job_along(how: signal.Signals, tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(TRAFFIC),
        "--engine",
        "plain",
        "--workdir",
        "demo",
        "--kills",
        "0",
        "--lines",
        "60000",
    ]
    demo = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lock = tmp_path / "demo" / "state" / "clients" / "0" / "LOCK"
    while not lock.exists() and demo.poll() is None:
        # a loop that only looks would take a processor from the job
        with suppress(subprocess.TimeoutExpired):
            demo.wait(0.01)
    demo.send_signal(how)
    _, errors = demo.communicate()
    assert demo.returncode == 128 + how
    assert errors == ("traffic: interrupted\n" if how is signal.SIGINT else "")
    hs.open(lock.parent).close()  # nobody holds it any more


def test_a_demonstration_ends_a_job_that_it_was_asking_after_when_it_was_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A signal inside of `Popen.poll` leaves the lock of `Popen.wait` taken."""
    monkeypatch.syspath_prepend(TRAFFIC.parent)
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as job:
        job._waitpid_lock.acquire()  # type: ignore[attr-defined]
        runpy.run_path(str(TRAFFIC.with_name("interrupted.py")))["end"](job)
        assert job.returncode == -signal.SIGKILL
