"""nanochat's calculator: sums, and occurrences in a text."""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from forge.environments.tool import Tool

NUMBERS = re.compile(r"[0-9*+\-/.() ]*")
TEXTS = re.compile(r"[A-Za-z0-9'\"()._ ]*")
LONGEST = 1000  # characters of a call
OPERATORS: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


class Calculator(Tool):
    """Answers 12*(3+4) and "strawberry".count("r") as Python does.

    Digits and + - * / ( ) . alone, without powers; commas are left out first. Anything else, and a
    division by 0, gets no answer.
    """

    def answer(self, call: str) -> str | None:
        return calculated(call)


def calculated(text: str) -> str | None:
    """The value of an expression, as Python writes it; None for anything that is not one."""
    text = text.replace(",", "").strip()
    is_sum = NUMBERS.fullmatch(text) and "**" not in text
    is_count = TEXTS.fullmatch(text) and ".count(" in text
    if len(text) > LONGEST or not (is_sum or is_count):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python's parser, on odd texts
            tree = ast.parse(text, mode="eval").body
        return str(_sum(tree) if is_sum else _count(tree))
    except (ValueError, SyntaxError, ArithmeticError, RecursionError, MemoryError):
        return None


def _sum(node: ast.expr) -> int | float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_sum(node.left), _sum(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_sum(node.operand))
    raise ValueError(ast.dump(node))


def _count(node: ast.expr) -> int:
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(text)), attr="count"),
            args=[ast.Constant(value=str(part))],
            keywords=[],
        ):
            return text.count(part)
    raise ValueError(ast.dump(node))
