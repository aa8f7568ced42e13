"""Modes: tests that run on Spark as it was (classic) and over Spark Connect."""

from collections.abc import Callable

import pytest

# For tests with the fixture `spark`, however they come by it.
both_modes = pytest.mark.parametrize("spark", ["classic", "connected"], indirect=True)
# For those among them that ask of Spark Connect what tests of `both_modes` ask of it in every run.
_OVER_CONNECT = pytest.param(
    "connected",
    marks=pytest.mark.further("tests/spark/test_operator.py::test_counts_go_on_over_batches_and_restarts"),
)
classic_first = pytest.mark.parametrize("spark", ["classic", _OVER_CONNECT], indirect=True)


def patiently(run: Callable[[], None]) -> None:
    """Run a query, again where Spark gave up a Python process that needed more than ten seconds to start: it has no
    setting for that, and a machine with ten times as much to do as it has cores needs them. There the test is skipped.

    What starts so: sources in Python, and the function of `foreachBatch` with Spark Connect.
    """
    from pyspark.errors import PySparkException

    for _ in range(4):
        try:
            return run()
        except PySparkException as error:
            if "failed to connect back" not in str(error):
                raise
    pytest.skip("Spark gave up a Python process four times, after ten seconds each: this machine is too busy")
