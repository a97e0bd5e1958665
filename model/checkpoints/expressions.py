"""Sizes as the header descriptions write them: integers, names, `+`, `*`, `//` and `rup(x, multiple)`.

Evaluated over a parsed tree of just these, so that a description stays data.
"""

import ast
from collections.abc import Mapping


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def evaluate(expression: str, names: Mapping[str, int]) -> int:
    """Return the value of `expression`; ValueError for anything that is no such expression."""
    return _value(ast.parse(expression, mode="eval").body, names)


def names_in(expression: str) -> set[str]:
    """Return the names that `evaluate` needs."""
    tree = ast.parse(expression, mode="eval")
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - {"rup"}


def _value(node: ast.expr, names: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left, names) + _value(right, names)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _value(left, names) * _value(right, names)
        case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
            return _value(left, names) // _value(right, names)
        case ast.Call(func=ast.Name(id="rup"), args=[value, multiple], keywords=[]):
            return round_up(_value(value, names), _value(multiple, names))
    raise ValueError(f"no size expression: {ast.unparse(node)}")
