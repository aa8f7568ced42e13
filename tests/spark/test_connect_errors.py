"""Errors of a worker at a client of Spark Connect, without Spark: a question near the location raises its error."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
from pyspark.sql import Row

from changelog.errors import CorruptFrameError, HybridStoreError
from hybridstore.spark.connect import run_near_location
from hybridstore.spark.errors import SparkSetupError

# Modules with errors of their own, beside those that `connect` imports.
for module in ("importing.report", "inspection.rebuild", "reading.archive", "reading.version", "rescaling.report"):
    importlib.import_module(f"hybridstore.{module}")


class Client:
    """A session of Spark Connect whose server's worker is this process."""

    __module__ = "pyspark.sql.connect.session"

    def range(self, rows: int, numPartitions: int) -> "Client":
        return self

    def mapInArrow(self, function: Callable[[Iterator[pa.RecordBatch]], Any], schema: str) -> "Client":
        self.answers = list(function(iter([pa.RecordBatch.from_pydict({"id": [0]})])))
        return self

    def collect(self) -> list[Row]:
        return [Row(answer=text) for part in self.answers for text in part.column(0).to_pylist()]


def asked(kind: Callable[..., Exception], *arguments: Any) -> Exception:
    def question() -> NoReturn:
        raise kind(*arguments)

    session: Any = Client()
    with pytest.raises(HybridStoreError) as raised:
        run_near_location(session, question)
    return raised.value


def kinds(kind: type[HybridStoreError] = HybridStoreError) -> list[type[HybridStoreError]]:
    """Every error of the packages: of workers as of others."""
    packages = ("hybridstore", "changelog", "recovery")
    below = [each for child in kind.__subclasses__() for each in kinds(child)]
    return [kind, *below] if kind.__module__.partition(".")[0] in packages else below


def test_a_client_gets_each_error_of_a_worker_with_its_own_type() -> None:
    for kind in kinds():
        arguments = ("log/1", 7, "no") if kind is CorruptFrameError else ("where: what",)
        error, at_client = kind(*arguments), asked(kind, *arguments)
        assert (str(type(at_client)), str(at_client)) == (str(kind), str(error))
        for name in ("path", "offset", "reason"):
            assert getattr(at_client, name, None) == getattr(error, name, None)


def test_errors_of_imports_are_among_them() -> None:
    names = {kind.__name__ for kind in kinds()}
    assert {"ImportRefusedError", "StaleAttemptError", "CorruptFrameError", "StorageUnreachableError"} <= names


def test_an_error_of_the_operating_system_is_one_of_the_setup() -> None:
    at_client = asked(PermissionError, 13, "Permission denied", "/state")
    assert type(at_client) is SparkSetupError
    assert str(at_client) == "[Errno 13] Permission denied: '/state'"
