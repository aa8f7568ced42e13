"""The seeded event streams of all suites. They live in the package, so that `hybridstore bench` has them without a checkout."""

from hybridstore.benchmark.workload import SHAPES, START_MS, Rows, Stream, values_of

__all__ = ["SHAPES", "START_MS", "Rows", "Stream", "values_of"]
