"""Predicates of `bisect`: an expression over a value, evaluated node by node, or a function of a file of the user's.

An expression has literals, `value`, comparisons, `and`, `or`, `not`, `in`, arithmetic without powers, indexes, and the
functions of `_FUNCTIONS`. No attribute, no other name and no other call is understood, so no expression reaches
anything but the value, and no text of a state is ever evaluated.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Final, TypeAlias

from ..inspection.options import UsageError

Predicate: TypeAlias = Callable[[Any], Any]

_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "abs": abs,
    "all": all,
    "any": any,
    "float": float,
    "int": int,
    "len": len,
    "max": max,
    "min": min,
    "round": round,
    "sorted": sorted,
    "str": str,
    "sum": sum,
}
_BINARY: Final[Mapping[type[ast.AST], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_UNARY: Final[Mapping[type[ast.AST], Callable[[Any], Any]]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_KNOWN: Final = (
    ast.BoolOp, ast.And, ast.Or, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Constant, ast.Name, ast.Load, ast.Subscript,
    ast.Slice, ast.List, ast.Tuple, ast.IfExp, ast.Call, *_BINARY, *_UNARY,
)  # fmt: skip


def expression(text: str) -> Predicate:
    """Return the predicate that an expression over `value` describes. Raises UsageError for anything else."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"--bad: found {text!r}, expected an expression such as 'value < 0' ({error})") from None
    for node in ast.walk(tree):
        if not isinstance(node, _KNOWN):
            raise _unknown(text, type(node).__name__)
        if isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
            if called not in _FUNCTIONS or node.keywords:
                raise _unknown(text, f"the call {ast.unparse(node)}")
        elif isinstance(node, ast.Name) and node.id != "value" and node.id not in _FUNCTIONS:
            raise _unknown(text, f"the name {node.id}")
    return lambda value: _evaluated(tree, value)


def _unknown(text: str, what: str) -> UsageError:
    return UsageError(
        f"--bad: found {what} in {text!r}, expected value, literals, comparisons, and, or, not, in, arithmetic, "
        f"indexes and {', '.join(_FUNCTIONS)} (write a function for more: --predicate FILE.py:FUNCTION)"
    )


def _evaluated(node: ast.expr, value: Any) -> Any:
    match node:
        case ast.Constant(value=constant):
            return constant
        case ast.Name(id="value"):
            return value
        case ast.Name(id=name):
            return _FUNCTIONS[name]
        case ast.BoolOp(op=op, values=[*parts, last]):
            for part in parts:
                result = _evaluated(part, value)
                if bool(result) is isinstance(op, ast.Or):
                    return result
            return _evaluated(last, value)
        case ast.UnaryOp(op=sign, operand=operand):
            return _UNARY[type(sign)](_evaluated(operand, value))
        case ast.BinOp(left=first, op=op, right=second):
            return _BINARY[type(op)](_evaluated(first, value), _evaluated(second, value))
        case ast.Compare(left=first, ops=ops, comparators=others):
            before = _evaluated(first, value)
            for comparison, other in zip(ops, others, strict=True):
                behind = _evaluated(other, value)
                if not _BINARY[type(comparison)](before, behind):
                    return False
                before = behind
            return True
        case ast.IfExp(test=test, body=body, orelse=other):
            return _evaluated(body if _evaluated(test, value) else other, value)
        case ast.List(elts=parts):
            return [_evaluated(part, value) for part in parts]
        case ast.Tuple(elts=parts):
            return tuple(_evaluated(part, value) for part in parts)
        case ast.Slice(lower=lower, upper=upper, step=step):
            return slice(*(None if part is None else _evaluated(part, value) for part in (lower, upper, step)))
        case ast.Subscript(value=whole, slice=index):
            return _evaluated(whole, value)[_evaluated(index, value)]
        case ast.Call(func=func, args=args):
            return _evaluated(func, value)(*(_evaluated(part, value) for part in args))
    raise UsageError(f"--bad: found {ast.unparse(node)}, expected an expression over value")


def function_of(place: str) -> Predicate:
    """Return the function that FILE.py:FUNCTION names; the file is run. Raises UsageError."""
    file, _, name = place.rpartition(":")
    spec = spec_from_file_location(Path(file).stem, file) if file.endswith(".py") and Path(file).is_file() else None
    if spec is None or spec.loader is None or not name:
        raise UsageError(f"--predicate: found {place!r}, expected FILE.py:FUNCTION, a file and a function of it")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    predicate = getattr(module, name, None)
    if not callable(predicate):
        raise UsageError(f"--predicate: found no function {name} in {file}")
    return predicate  # type: ignore[no-any-return]
