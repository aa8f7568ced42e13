"""State times: timestamps in the state variables of `transform_with_state`, as Spark returns them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ..topology.output_rows import columns_of_schema


class StateTimes:
    """Converts timestamps into the state and out of it, as Spark does: stored as moments, read without a zone in the
    process's local time.

    A datetime without a zone that is put is in local time, too. Columns of `timestamp_ntz` hold clock times, and no
    moments.
    """

    def __init__(self, schema: str) -> None:
        try:
            columns = columns_of_schema(schema) or []
        except ValueError:  # Spark reports the fault
            columns = []
        kinds = [column.kind.name.replace("timestamp_ntz", "") for column in columns]
        self._places = [place for place, kind in enumerate(kinds) if "timestamp" in kind]

    def put(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a value in its stored form. O(value) if there are timestamps."""
        return self._each(value, _moment) if self._places else value

    def read(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a stored value in the form for the user. O(value) if there are timestamps."""
        return self._each(value, _local) if self._places else value

    def _each(self, value: tuple[Any, ...], turn: Callable[[datetime], datetime]) -> tuple[Any, ...]:
        parts = list(value)
        for place in self._places:
            if place < len(parts):
                parts[place] = _turned(parts[place], turn)
        return tuple(parts)


def _turned(value: Any, turn: Callable[[datetime], datetime]) -> Any:
    if isinstance(value, datetime):
        return turn(value)
    if isinstance(value, list | tuple):
        return type(value)(_turned(part, turn) for part in value)
    if isinstance(value, dict):
        return {_turned(key, turn): _turned(part, turn) for key, part in value.items()}
    return value


def _moment(value: datetime) -> datetime:
    value = value.to_pydatetime() if hasattr(value, "to_pydatetime") else value  # of pandas
    if value.tzinfo is not None:
        return value.astimezone(UTC)
    seconds = int(time.mktime(value.timetuple()))  # the system chooses between two equal local times, as for Spark
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=value.microsecond)


def _local(value: datetime) -> datetime:
    return value.astimezone().replace(tzinfo=None)
