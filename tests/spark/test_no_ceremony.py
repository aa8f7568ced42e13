"""A job that sets nothing: the session, the workers' interpreter and the number of shards are what it needs; and where
workers lack hybridstore, they say so.
"""

import importlib
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from hybridstore import spark as hsp
from hybridstore.spark.operator import default_shards
from hybridstore.spark.session import ADAPTIVE, EMPTY_RULE, EXCLUDED, SOCKETS
from hybridstore.spark.shipped import ARCHIVE, MISSING, carried
from tests.tools import quick_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]

JOB = """
import sys
from pyspark.sql import SparkSession
import hybridstore as hs
from hybridstore import spark as hsp

session = SparkSession.builder.master("local[1]").getOrCreate()
events = session.readStream.schema("k string, t timestamp").json(sys.argv[1] + "/in")
counted = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows("1 minute")).aggregate(n=hs.Count())
place = sys.argv[1] + "/checkpoint"
query = counted.apply(events, "counts", location=place).writeStream.format("json").option("checkpointLocation", place)
query.trigger(availableNow=True).start(sys.argv[1] + "/out").awaitTermination()
print("shards:", len(hsp.metrics(place)), "rows:", sum(shard["rows"] for shard in hsp.metrics(place)))
"""


@pytest.mark.spark
@pytest.mark.slow
def test_a_job_that_sets_nothing_runs_with_the_interpreter_that_it_was_started_with(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/0.json").write_text('{"k": "a", "t": "2026-01-01T00:00:00Z"}\n')
    (tmp_path / "job.py").write_text(JOB)
    # what Spark would take
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").write_text("#!/bin/sh\necho 'the python3 of PATH' >&2\nexit 1\n")
    (tmp_path / "bin/python3").chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    environment |= {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"PYTHONPATH": str(ROOT), **quick_java.environment()}
    job = subprocess.run(
        [sys.executable, "-P", str(tmp_path / "job.py"), str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert job.returncode == 0, job.stderr[-3000:]
    assert job.stdout.splitlines()[-1] == "shards: 4 rows: 1"
    (line,) = (line for line in job.stderr.splitlines() if line.startswith("changed Spark session settings"))
    assert f"the interpreter of Python workers to {sys.executable}" in line
    assert f"{ADAPTIVE} to false" in line


class Builder:
    """Spark's builder, as far as `configure` uses it."""

    def __init__(self, **options: str) -> None:
        self._options = {name.replace("_", "."): value for name, value in options.items()}

    def config(self, name: str, value: str) -> "Builder":
        self._options[name] = value
        return self

    def getOrCreate(self) -> None:
        """Is what a builder has and a session has not."""


def test_configure_sets_on_a_builder_what_cannot_be_set_later(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_PYTHON", "SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_LOCAL_CONNECT_REUSE"):
        monkeypatch.delenv(name, raising=False)
    settings = {ADAPTIVE: "false", EXCLUDED: EMPTY_RULE}
    assert hsp.configure(Builder())._options == settings | {SOCKETS: "true"}
    far = hsp.configure(Builder(spark_remote="sc://host"))._options
    assert far == settings | {"spark.remote": "sc://host"}  # a server that runs already would warn of what is static
    assert "PYSPARK_PYTHON" not in os.environ
    assert SOCKETS in hsp.configure(Builder(spark_remote="local[2]"))._options
    with monkeypatch.context() as patch:
        patch.setenv("SPARK_REMOTE", "sc://host")
        assert hsp.configure(Builder())._options == settings
    # the server of remote("local[2]") that this process, or an earlier one, has started
    for started in ("SPARK_LOCAL_REMOTE", "SPARK_LOCAL_CONNECT_REUSE"):
        with monkeypatch.context() as patch:
            patch.setenv(started, "1")
            assert SOCKETS not in hsp.configure(Builder())._options
            assert SOCKETS not in hsp.configure(Builder(spark_remote="local[2]"))._options
    assert SOCKETS not in hsp.configure(Builder(spark_remote="local", spark_local_connect_reuse="true"))._options
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "chosen")
    hsp.configure(Builder(spark_master="local[2]"))
    assert os.environ["PYSPARK_PYTHON"] == "chosen"


@pytest.mark.spark
def test_a_client_is_not_warned_of_what_only_its_server_can_set(connected: "SparkSession") -> None:
    from pyspark.sql.connect.session import SparkSession as Client

    def warnings_of(builder: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert builder.getOrCreate() is connected
        return [str(warning.message) for warning in caught if SOCKETS in str(warning.message)]

    assert warnings_of(Client.builder.config(SOCKETS, "true"))
    assert warnings_of(hsp.configure(Client.builder)) == []


def test_the_default_number_of_shards() -> None:
    assert [default_shards(tasks) for tasks in (1, 2, 8, 1000, None)] == [4, 4, 16, 64, 16]


def test_a_worker_without_hybridstore_says_how_to_get_it(tmp_path: Path) -> None:
    from pyspark import cloudpickle

    (tmp_path / "sent").write_bytes(cloudpickle.dumps(carried(hsp.heartbeat_keys)))
    assert len(pickle.loads((tmp_path / "sent").read_bytes())(2)) == 2
    code = "import pickle, sys; sys.modules['hybridstore'] = None; pickle.load(open('sent', 'rb'))([])"
    worker = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, env={}
    )
    last = worker.stderr.splitlines()[-1]
    assert last.startswith(f"RuntimeError: {MISSING}: {sys.executable} on ")
    assert ARCHIVE in last


def test_a_worker_takes_what_it_lacks_from_the_archive_that_spark_has_unpacked(tmp_path: Path) -> None:
    from pyspark import cloudpickle

    # a module that no interpreter has, in the archive beside the files of the session
    (tmp_path / "files" / ARCHIVE).mkdir(parents=True)
    (tmp_path / "files" / ARCHIVE / "brought.py").write_text("def shown(batches): return ['brought', *batches]")
    (tmp_path / "brought.py").write_text("def shown(batches): raise AssertionError")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        brought = importlib.import_module("brought")
        (tmp_path / "sent").write_bytes(cloudpickle.dumps(carried(brought.shown)))
        del sys.modules["brought"]
    code = "import pickle, sys; sys.path = [*sys.path[1:], 'files']; print(pickle.load(open('sent', 'rb'))([1]))"
    worker = [sys.executable, "-c", code]
    done = subprocess.run(worker, cwd=tmp_path, capture_output=True, text=True, check=True, env={})
    assert done.stdout == "['brought', 1]\n"
