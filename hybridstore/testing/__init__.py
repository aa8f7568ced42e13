"""hybridstore.testing: tools by which users test their programs, and by which hybridstore tests itself.

    from hybridstore import testing as ht

    with ht.Driver(topology) as driver:                       # a topology, row by row, without Spark
        driver.push({"user": "ann", "ts": 500})
    ht.check(topology, rows, ht.shuffled(within="10 s"))      # other ways to run, the same results

Importing this needs neither pyspark nor hypothesis nor pytest.
"""

from __future__ import annotations

import typing as _typing
from importlib import import_module as _import_module

from .checking import check
from .comparing import Case, DifferentResultsError, Way
from .crashes import Consumer, crash_everywhere, crashes
from .driver import Driver
from .elsewhere import elsewhere
from .ways import cut_anyhow, cut_rows, rescaled, same_on_spark, shuffled, shuffled_rows

if _typing.TYPE_CHECKING:
    from ..spark.tws_tester import TwsTester
    from .strategies import rows

# Imported when first asked for: they need packages that hybridstore does not need.
_HOME = {"TwsTester": "..spark.tws_tester", "rows": ".strategies"}


def __getattr__(name: str) -> _typing.Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(home, __name__), name)


__all__ = [
    "Case",
    "Consumer",
    "DifferentResultsError",
    "Driver",
    "TwsTester",
    "Way",
    "check",
    "crash_everywhere",
    "crashes",
    "cut_anyhow",
    "cut_rows",
    "elsewhere",
    "rescaled",
    "rows",
    "same_on_spark",
    "shuffled",
    "shuffled_rows",
]
