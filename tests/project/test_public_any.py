"""No `Any` in a public signature without a reason: every one is matched by a line of REASONS, and every line is used.

A user of stores, topologies and joins meets typed keys, values and results; `Any` stays where the shape is the user's
own, another library's, or data that is only handed on.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import FunctionType
from typing import Final

import pytest

import hybridstore as hs

API: Final = (Path(__file__).resolve().parents[2] / "docs/api.md").read_text(encoding="utf-8")
# a pattern of `function(argument)` or `function(return)`, and why it is Any
REASONS: Final = {
    # columns and rows of other libraries
    r"(put|add|hold)_columns\((keys|values|times)\)": "a list, a numpy array or an Arrow array",
    r"(Engine\.(process(_batch|_many)?|records|split_batch|table_of)|Topology\.run)\((rows?|part|return)\)": (
        "a row is a dict, a named tuple or an Arrow batch, and its values are of any type"
    ),
    r"Engine\.(commit|finish|windows|find_sessions)\((key|return)\)": "rows: dicts of a topology's columns",
    r"(Engine\.position|Topology\.run)\((return|position)\)": "a position is what the user's source calls one",
    r"(apply|backfill|initial_state|import_spark|rescale|configure|apply_program|foreach_batch|(apply|transform)_.*)"
    r"\((df|frame|history|results|query|write|spark|grouped|builder_or_session|function|func|program|.*StructType"
    r"|initialState|types|return|order|columns)\)": (
        "a DataFrame, session, type or class of pyspark, which is imported only where it is installed, and classic and "
        "Connect have classes of their own"
    ),
    # what the user's own functions take and return
    r"(map|filter|process|fire|select|bind|bound|suppression|suppression_store|Reduce\.__init__|Aggregator\.__init__)"
    r"\((function|output_schema|on_timer|call|key|size_of|return|init|copy|result|add_many|strategy)\)": (
        "a function of the user's, over rows, keys or values of the user's"
    ),
    r"\w+\.(exact_for|finish|fold|of|value_of)\((value|aggregate|values|row|return)\)": (
        "an aggregator takes values and makes aggregates of any type: SlidingStore has types for them"
    ),
    r"check_laws\(samples\)|BufferFullError\.__init__\(emitted\)": "values, and emissions, of any store",
    # what is described, stored or shown as msgpack carries it
    r"[\w.]+\.(describe|metrics|mapped_schema|erase_orders|settings|stores)\(return\)|metrics\(return\)": (
        "numbers and texts of any shape; stores of any kind"
    ),
    r"State\.(set|order_erase)\((value|orders)\)": "what msgpack carries",
    # keys
    r"\w+\.scan\(prefix\)": "a beginning of a text or of bytes, or the first parts of a tuple",
    r"\w+\.(erase|prefetch|touch|times_of|rows_of)\(keys?\)|(erase|prove|bisect)\((keys?|bad)\)": (
        "any key: one that the store cannot have is refused, or is no key of it"
    ),
    r"KeyValueStore\.get\(.*\)": "three overloads say the types",
    r"KeyValueStore\.put_many\(rows\)": "a mapping, or rows with a time or without",
}


def public_functions(face: object) -> dict[str, FunctionType]:
    """Return the public functions of a face, and the methods that docs/api.md shows of its classes, by name."""
    shown = dict(re.findall(r"autoclass:: [\w.]+\.(\w+)\n   :members: (.*)", API))
    functions: dict[str, FunctionType] = {}
    for name in face.__all__:  # type: ignore[attr-defined]
        thing = getattr(face, name)
        if inspect.isfunction(thing):
            functions[name] = thing
        for attribute in shown.get(name, "").split(", ") if inspect.isclass(thing) else ():
            method = inspect.getattr_static(thing, attribute, None)
            method = getattr(method, "fget", None) or getattr(method, "__func__", method)
            if inspect.isfunction(method):
                functions[f"{name}.{attribute}"] = method
    return functions


def meets(functions: dict[str, FunctionType]) -> list[str]:
    """Return `function(argument)` for each annotation with Any."""
    given = []
    for name, function in sorted(functions.items()):
        signature = inspect.signature(function)
        annotations = {each.name: each.annotation for each in signature.parameters.values()}
        annotations["return"] = signature.return_annotation
        given += [f"{name}({part})" for part, text in annotations.items() if re.search(r"\bAny\b", str(text))]
    return given


def test_every_any_that_a_user_meets_has_a_reason() -> None:
    pytest.importorskip("pyspark")
    from hybridstore import spark as hsp

    given = meets(public_functions(hs)) + meets(public_functions(hsp))
    patterns = {re.compile(f"(?:.*\\.)?(?:{pattern})"): 0 for pattern in REASONS}
    without = []
    for each in given:
        fitting = [pattern for pattern in patterns if pattern.fullmatch(each)]
        without += [] if fitting else [each]
        for pattern in fitting:
            patterns[pattern] += 1
    assert without == []
    assert [pattern.pattern for pattern, uses in patterns.items() if not uses] == []


def test_a_planted_any_is_named() -> None:
    def planted(row: "list[Any]") -> "int": ...  # type: ignore[name-defined, empty-body]  # noqa: F821, UP037

    assert meets({"planted": planted}) == ["planted(row)"]  # type: ignore[dict-item]
