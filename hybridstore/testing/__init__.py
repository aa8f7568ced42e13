"""hybridstore.testing: tools by which users test their programs, and by which hybridstore tests itself.

    from hybridstore import testing as ht

    with ht.Driver(topology) as driver:                       # a topology, row by row, without Spark
        driver.push({"user": "ann", "ts": 500})
    ht.check(topology, rows, ht.shuffled(within="10 s"))      # other ways to run, the same results

Importing this needs neither pyspark nor hypothesis nor pytest.
"""

from __future__ import annotations

import typing as _typing

from ..faces import lazy as _lazy
from .checking import check
from .comparing import Case, DifferentResultsError, Way
from .crashes import Consumer, crash_everywhere, crashes
from .driver import Driver
from .elsewhere import elsewhere
from .ways import cut_anyhow, cut_rows, rescaled, same_on_spark, shuffled, shuffled_rows

if _typing.TYPE_CHECKING:
    from ..spark.tws_tester import TwsTester as TwsTester
    from .strategies import rows as rows

# They need packages that hybridstore does not need.
__getattr__, __dir__, _later = _lazy(__name__)

__all__ = [
    "Case",
    "Consumer",
    "DifferentResultsError",
    "Driver",
    "Way",
    "check",
    "crash_everywhere",
    "crashes",
    "cut_anyhow",
    "cut_rows",
    "elsewhere",
    "rescaled",
    "same_on_spark",
    "shuffled",
    "shuffled_rows",
    *_later,
]
