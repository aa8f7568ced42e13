"""State refusals: the errors of state variables, in the words by which Spark's tests, and users', know them."""

from __future__ import annotations

from typing import Any, Final

from recovery.errors import ProgramMismatchError

# What Spark's error says for an operation on a variable that was deleted; nothing: the operation iterates over nothing.
WITHOUT: Final[dict[str, dict[str, str]]] = {
    "value": {
        "exists": "checking value state exists",
        "get": "getting value state",
        "update": "updating value state",
        "clear": "clearing value state",
    },
    "list": {
        "exists": "checking value state exists",
        "get": "",
        **dict.fromkeys(("put", "appendValue", "appendList"), "updating value state"),
        "clear": "clearing value state",
    },
    "map": {
        "exists": "checking map state exists",
        "getValue": "getting value",
        "containsKey": "checking if map state contains key",
        "updateValue": "updating map state value",
        **dict.fromkeys(("iterator", "keys", "values"), ""),
        "removeKey": "removing key from map state",
        "clear": "clearing map state",
    },
}
# How Spark's errors of timers begin.
TIMER_ERRORS: Final = {"register_timer": "Error register timer: ", "delete_timer": "Error deleting timer: "}


def refusal(text: str) -> Exception:
    """Return the error that Spark raises for a refused use of state."""
    from pyspark.errors import PySparkRuntimeError

    return PySparkRuntimeError(text)


def differing(name: str, known: Any, kind: str, schema: str) -> ProgramMismatchError:
    """Return the error for a variable of another kind or schema than `known`, with Spark's words for a schema."""
    changed = "[STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION] Schema evolution is not possible: "
    return ProgramMismatchError(
        f"{changed if known[0] == kind else ''}state variable {name!r}: the state has {known[0]} {known[1]}, asked for "
        f"{kind} {schema} (say how one becomes the other: transform_with_state(..., upgrade={{{name!r}: function}}), "
        "or use another name)"
    )


def invalid_state(operation: str, state: str = "INITIALIZED") -> str:
    """Return what Spark says of an operation that the state of the handle forbids."""
    return (
        "[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] Failed to perform stateful processor "
        f"operation={operation} with invalid handle state={state}."
    )
