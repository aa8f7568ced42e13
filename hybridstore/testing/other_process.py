"""Other process: runs a program for `elsewhere`: a job in msgpack from the standard input, results as JSON.

The clock is moved before the program is imported, so that the program has the moved one by whatever name.
"""

from __future__ import annotations

import datetime as dates
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from changelog.codec import unpack

from ..topology import engine, run
from .comparing import Case

_SHIFT: Final = dates.timedelta(days=400, hours=7, minutes=41, seconds=13, milliseconds=307)
_loaded = (engine, run)  # which have the clock as it is


class _Kind(type):
    """The type of a moved class: its instances are those of the class itself."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.__mro__[1])


def move_clock() -> None:
    """Let the modules `time` and `datetime` say that it is later, also what is imported from them from now on."""
    real_date, real_datetime = dates.date, dates.datetime

    class Date(real_date, metaclass=_Kind):  # type: ignore[valid-type, misc]
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return real_date(*args, **kwargs)

        @classmethod
        def today(cls) -> Any:
            return real_date.today() + _SHIFT

    class Datetime(real_datetime, metaclass=_Kind):  # type: ignore[valid-type, misc]
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return real_datetime(*args, **kwargs)

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return real_datetime.now(tz) + _SHIFT

        @classmethod
        def today(cls) -> Any:
            return real_datetime.today() + _SHIFT

        @classmethod
        def utcnow(cls) -> Any:
            return real_datetime.now(dates.UTC).replace(tzinfo=None) + _SHIFT

        @classmethod
        def fromtimestamp(cls, *args: Any, **kwargs: Any) -> Any:
            return real_datetime.fromtimestamp(*args, **kwargs)

    seconds, nanoseconds = _SHIFT.total_seconds(), _SHIFT // dates.timedelta(microseconds=1) * 1000
    real_time, real_time_ns = time.time, time.time_ns
    real_local, real_gm = time.localtime, time.gmtime
    moved: dict[Any, dict[str, Any]] = {
        dates: {"date": Date, "datetime": Datetime},
        time: {
            "time": lambda: real_time() + seconds,
            "time_ns": lambda: real_time_ns() + nanoseconds,
            "localtime": lambda at=None: real_local(real_time() + seconds if at is None else at),
            "gmtime": lambda at=None: real_gm(real_time() + seconds if at is None else at),
        },
    }
    for module, names in moved.items():
        for name, value in names.items():
            setattr(module, name, value)


def imported(file: str, name: str) -> Any:
    """Return what a file calls by a name."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file}: found no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def main() -> None:
    """Run the job."""
    job = unpack(sys.stdin.buffer.read())
    sys.path[:] = job["path"]
    move_clock()
    program = imported(job["file"], job["name"])
    by = None if job["by"] is None else tuple(job["by"])
    case = Case(program, job["rows"], by)
    states = [None if state is None else Path(state) for state in job["states"]]
    runs = [case.run(job["rows"], state, **job["options"]) for state in states]
    print(json.dumps([[list(result) for result in run] for run in runs]))


if __name__ == "__main__":
    main()
