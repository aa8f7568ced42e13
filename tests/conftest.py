"""What all tests share: the seed, the length of random runs, and one Spark session.

A run draws one seed, prints it at the top and in the last lines, and every random test takes its own from it, in
whichever process it runs; HYBRIDSTORE_SEED=N repeats the run. HYBRIDSTORE_STRESS=N (`make stress N=`) makes N the
number of examples of each Hypothesis test and the number of rounds of each test marked `stress`.

`@pytest.mark.further("test_name")` is on a further case of a property that the test of that name (in the same file, or
"tests/room/test_file.py::test_name") shows in every run, at less cost: `make stress` alone runs it.
"""

import gc
import os
import secrets
import shutil
import signal
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, chdir
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import none

from hybridstore.state.policy import SPEED
from hybridstore.topology import aggregating
from tests.tools import quick_java
from tests.tools.hooks import as_reference_machine, forget_states
from tests.tools.worker_server import worker_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Python 3.12.3 ended in a segmentation fault where lines were traced beside other threads.
TRACED = pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="Python 3.12 cannot trace lines beside threads")
STRESS = int(os.environ.get("HYBRIDSTORE_STRESS") or 0)
SEED = int(os.environ.get("HYBRIDSTORE_SEED") or secrets.randbelow(10**9))
# the processes of pytest-xdist are started from this one, and must not draw seeds of their own
os.environ["HYBRIDSTORE_SEED"] = str(SEED)
# NumPy's library of linear algebra, which nobody here uses, starts a thread for each core as it is imported: that is a
# third of what a Python takes that imports pyarrow, and the tests start some hundred.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

ASKED_OF_JAVA = os.environ.get("SPARK_SUBMIT_OPTS")
ROOT = Path(__file__).resolve().parents[1]
PYTHON_OF_SPARK = (str(ROOT / "tests/tools/python_of_spark"), str(ROOT))

# No deadlines, and no complaint that examples are drawn slowly: a shared machine pauses whenever it likes, and a timed
# assertion proves nothing.
settings.register_profile(
    "default",
    max_examples=12,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "stress",
    max_examples=max(STRESS, 1),
    stateful_step_count=100,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--vectors", metavar="DIR", help="run tests/stores/test_vectors.py on the cases in DIR instead of ours"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("stress" if STRESS else "default")
    # what runs in the background of a shell is deaf to it, and so would be the programs that tests interrupt
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Before Hypothesis' own hook reads it; its examples then follow from our seed too.
    if config.getoption("--hypothesis-seed", None) is None:
        config.option.hypothesis_seed = SEED


def seed_line() -> str:
    length = f", {STRESS} rounds and examples" if STRESS else ""
    return f"random runs: HYBRIDSTORE_SEED={SEED} repeats this one{length}"


def pytest_report_header(config: pytest.Config) -> str:
    return seed_line()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    yield
    # below the list of what failed, above the closing line
    terminalreporter.write_line(seed_line())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    from tests.tools.side_by_side import processes

    return processes()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.tools.side_by_side import Scheduling

    # `-n` asks for `load`, any other way was asked for by name
    return Scheduling(config, log) if config.getvalue("dist") == "load" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    asked: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    # modules and tests are no garbage, and the collector would look at all of them again and again
    gc.disable()
    try:
        if asked and session.config.args == session.config.getini("testpaths"):
            from tests.tools.side_by_side import import_ahead

            import_ahead(int(asked["workerid"].removeprefix("gw")), asked["workercount"])
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let collections between tests visit what is new: the modules and tests of a whole run are 400,000 objects, which
    take 0.2 s, and every sixth test leaves a state behind that has to be collected.
    """
    # Hypothesis asks the collector who has its generator; that of Python 3.14 does not say what is frozen
    settings(max_examples=1, database=None)(given(none())(lambda _: None))()
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    further = item.get_closest_marker("further")
    if further and not STRESS:
        pytest.skip(f"a further case of {further.args[0]}: make stress")
    # what a user asks for stays, and `make stress` is what Java's slower options are for
    if not item.get_closest_marker("spark"):
        return
    if not STRESS and ASKED_OF_JAVA is None:
        os.environ.update(quick_java.environment())
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys((*PYTHON_OF_SPARK, *filter(None, places))))


@pytest.fixture(scope="session", autouse=True)
def reference_machine() -> Iterator[None]:
    """Estimates of a restart, by which checkpoints begin, are those of the reference machine in every test: what a test
    finds on disk does not depend on how fast this machine was while it was measured.
    """
    with pytest.MonkeyPatch.context() as patch:
        as_reference_machine(patch)
        patch.setattr(SPEED, "observe", lambda *_: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def few_rows_by_column() -> Iterator[None]:
    """Small batches of Arrow go by column, as large ones do, in this process; `topology/test_few_rows.py` shows what
    they do elsewhere.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregating, "_FEW_ROWS", 0)
        yield


@pytest.fixture(scope="module", autouse=True)
def nothing_of_earlier_files() -> None:
    """Let collections visit nothing that earlier files have left: modules that they imported, and what those keep."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def nothing_unpacked_is_left() -> Iterator[None]:
    """Remove what archives were unpacked into: a process of xdist ends without the functions of `atexit`."""
    yield
    archive = sys.modules.get("hybridstore.reading.archive")
    for folder in () if archive is None else archive._unpacked.values():
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def memory_of_its_own() -> None:
    """No state of an earlier test shares the memory of this one."""
    forget_states()


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this test: it follows from the run's seed and from the test's name, whatever else runs."""
    return zlib.crc32(f"{SEED}:{request.node.nodeid}".encode())


@pytest.fixture
def rounds() -> int:
    """How often a test marked `stress` repeats itself: once by default."""
    return max(STRESS, 1)


@pytest.fixture(scope="session")
def classic(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """One local Spark session, on the loopback interface, set as the operator of hybridstore asks for."""
    sql = pytest.importorskip("pyspark.sql")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Spark would start its workers with the python3 of PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    folder = tmp_path_factory.mktemp("spark")
    asked = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.daemon.module": "tests.tools.python_daemon",
        # for `connected`
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }
    builder = sql.SparkSession.builder.master("local[2]").appName("hybridstore tests")
    for name, value in asked.items():
        builder = builder.config(name, value)
    # where programs run that name files by relative paths (`workplace`)
    (folder / "work").mkdir()
    with ExitStack() as life:
        with chdir(folder / "work"), pytest.MonkeyPatch.context() as patch:
            if not STRESS:
                patch.setenv("WORKER_SERVER", life.enter_context(worker_server(folder)))
            session = builder.getOrCreate()
        if not STRESS:
            quick_java.quicken_files(session)
            quick_java.remember_names(session)
            quick_java.forget_history(session)
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()


@pytest.fixture(scope="session")
def connected(request: pytest.FixtureRequest) -> Iterator["SparkSession"]:
    """A client of a Spark Connect server in the JVM of `classic`, which costs no second one.

    HYBRIDSTORE_CONNECT=sc://HOST:PORT takes another server, which must see the same files.
    """
    pytest.importorskip("grpc")
    from pyspark.sql.connect.session import SparkSession as Client

    address = os.environ.get("HYBRIDSTORE_CONNECT")
    if address is None:
        context: Any = request.getfixturevalue("classic").sparkContext
        service = context._jvm.org.apache.spark.sql.connect.service.SparkConnectService
        service.start(context._jsc.sc())
        kind = context._jvm.java.lang.Class.forName(f"{service._fqn}$")
        address = f"sc://127.0.0.1:{kind.getField('MODULE$').get(None).localPort()}"
    session: Any = Client.builder.remote(address).create()
    yield session
    session.stop()


@pytest.fixture
def workplace(classic: "SparkSession") -> Iterator[Path]:
    """The working directory of the session's Java, in which a program finds that session, and its files by relative
    paths.
    """
    context: Any = classic.sparkContext
    place = Path(context._jvm.java.lang.System.getProperty("user.dir"))
    yield place
    # the folder itself stays, in which Java and Spark's workers are
    for entry in place.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    context.setLogLevel("ERROR")


@pytest.fixture
def spark(request: pytest.FixtureRequest) -> Iterator["SparkSession"]:
    """The Spark session: `classic`; for tests that `tests.tools.modes.both_modes` marks also `connected`."""
    mode: str = getattr(request, "param", "classic")
    session = request.getfixturevalue(mode)
    # pyspark's functions ask the environment which of the two they are for
    with pytest.MonkeyPatch.context() as patch:
        if mode == "connected":
            patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        yield session
