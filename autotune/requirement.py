"""The two-sentence language of search spaces: ``when:`` and ``require:`` expressions.

Parsed to a whitelisted syntax tree: names (dotted), literals, arithmetic, comparison, ``in``,
``and``/``or``/``not``. Never ``eval``.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_LONGEST = 1000
_DEEPEST = 30


class BadRequirement(ValueError):
    """An expression is not in the language."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A parsed expression; ``holds`` evaluates it over knob and context values."""

    text: str
    tree: ast.expr = field(compare=False)  # equal texts mean equal trees
    names: frozenset[str]

    def holds(self, values: Mapping[str, Any]) -> bool:
        """True when satisfied. A name that is absent (an inactive knob) makes a comparison False.

        Raises BadRequirement for arithmetic on incompatible types or division by zero.
        """
        try:
            return bool(_evaluate(self.tree, values))
        except _Absent:
            return False
        except (TypeError, ZeroDivisionError, ValueError, OverflowError) as error:
            raise BadRequirement(f"cannot evaluate {self.text!r}: {error}") from error

    def is_violated(self, values: Mapping[str, Any]) -> bool:
        """True only when every name is present and the expression is false.

        The reading for ``require:``: a rule about a knob that is inactive says nothing.
        """
        return self.names <= values.keys() and not self.holds(values)

    def can_hold(self, values: Mapping[str, Any], open_names: Collection[str]) -> bool:
        """Whether some values of the open names (or their absence) would satisfy it.

        Errs on the side of True. A name that is neither known nor open stays absent.
        """
        return True in _outcomes(self.tree, values, open_names)


class _Absent(Exception):
    pass


class _Literals(ast.NodeTransformer):
    """YAML's spelling of the two truth values."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in ("true", "false"):
            return ast.Constant(value=node.id == "true")
        return node


def parse(text: str) -> Requirement:
    """Parse an expression; raises BadRequirement with the offending part."""
    if len(text) > _LONGEST:
        raise BadRequirement(f"an expression may have {_LONGEST} characters, not {len(text)}")
    try:
        tree = _Literals().visit(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError) as error:
        hint = "; == compares" if re.search(r"[^=!<>]=[^=]", text) else ""
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise BadRequirement(f"cannot parse {text!r}: {why}{hint}") from error
    names: set[str] = set()
    _check(tree, names, text, 0)
    return Requirement(text, tree, frozenset(names))


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := _dotted(node.value)):
        return f"{owner}.{node.attr}"
    return None


def _children(node: ast.expr, text: str) -> list[ast.expr]:
    match node:
        case ast.Constant(value=bool() | int() | float() | str()):
            return []
        case ast.BoolOp(values=values):
            return values
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            return [operand]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return [left, right]
        case ast.Compare(left=left, ops=ops, comparators=others) if all(
            type(o) in _COMPARE for o in ops
        ):
            return [left, *others]
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return items
    raise BadRequirement(f"{ast.unparse(node)!r} is not allowed in {text!r}")


def _check(node: ast.expr, names: set[str], text: str, depth: int) -> None:
    if depth > _DEEPEST:
        raise BadRequirement(f"{text[:60]!r}... is nested deeper than {_DEEPEST}")
    if name := _dotted(node):
        names.add(name)
        return
    for child in _children(node, text):
        _check(child, names, text, depth + 1)


def _evaluate(node: ast.expr, values: Mapping[str, Any]) -> Any:
    if name := _dotted(node):
        if name not in values:
            raise _Absent(name)
        return values[name]
    match node:
        case ast.Constant(value=value):
            return value
        case ast.BoolOp(op=op, values=parts):
            return _any(parts, values) if isinstance(op, ast.Or) else _all(parts, values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, values)
        case ast.UnaryOp(operand=operand):
            return -_evaluate(operand, values)
        case ast.BinOp(left=left, op=op, right=right):
            return _arithmetic(type(op), _evaluate(left, values), _evaluate(right, values))
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _compare(left, ops, others, values)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return [_evaluate(item, values) for item in items]
    raise AssertionError(f"parse() let {ast.dump(node)} through")


def equalities(requirement: Requirement) -> Iterator[tuple[str, Any]]:
    """Each (name, literal) that a requirement compares by ``==``, ``!=`` or ``in``."""
    for node in ast.walk(requirement.tree):
        if not isinstance(node, ast.Compare) or len(node.ops) != 1:
            continue
        left, op, right = node.left, node.ops[0], node.comparators[0]
        if isinstance(op, ast.In | ast.NotIn):
            listed = right.elts if isinstance(right, ast.Tuple | ast.List) else []
        elif isinstance(op, ast.Eq | ast.NotEq):
            listed = [right]
        else:
            continue
        for item in listed:
            if (name := _dotted(left)) and isinstance(item, ast.Constant):
                yield name, item.value
            elif isinstance(left, ast.Constant) and (name := _dotted(item)):
                yield name, left.value


def _outcomes(
    node: ast.expr, values: Mapping[str, Any], open_names: Collection[str]
) -> set[bool | None]:
    """What an expression can come to: True, False, or None for a name that is absent."""
    match node:
        case ast.BoolOp(op=op, values=parts):
            stop = isinstance(op, ast.Or)  # the truth value that ends the evaluation
            found: set[bool | None] = set()
            for part in parts:
                some = _outcomes(part, values, open_names)
                found |= some & ({True} if stop else {False, None})
                if not some - ({True} if stop else {False, None}):
                    return found
            return found | {not stop}
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            some = _outcomes(operand, values, open_names)
            return {None if x is None else not x for x in some}
    names: set[str] = set()
    _check(node, names, "", 0)
    if any(n not in values and n not in open_names for n in names):
        return {None}
    if any(n not in values for n in names):
        return {True, False, None}
    try:
        return {bool(_evaluate(node, values))}
    except (TypeError, ZeroDivisionError, ValueError, OverflowError):
        return {None}


def _arithmetic(op: type[ast.operator], left: Any, right: Any) -> Any:
    """Numbers only: ``*`` and ``%`` mean something else (and something costly) for text."""
    for value in (left, right):
        if not isinstance(value, int | float):
            raise TypeError(f"{value!r} is not a number")
    return _BINARY[op](left, right)


def _compare(
    left: ast.expr, ops: list[ast.cmpop], others: list[ast.expr], values: Mapping[str, Any]
) -> bool:
    before = _evaluate(left, values)
    for op, other in zip(ops, others, strict=True):
        after = _evaluate(other, values)
        if not _COMPARE[type(op)](before, after):
            return False
        before = after
    return True


def _any(parts: list[ast.expr], values: Mapping[str, Any]) -> bool:
    """An absent name spoils only its own alternative."""
    for part in parts:
        try:
            if _evaluate(part, values):
                return True
        except _Absent:
            continue
    return False


def _all(parts: list[ast.expr], values: Mapping[str, Any]) -> bool:
    return all(_evaluate(part, values) for part in parts)
