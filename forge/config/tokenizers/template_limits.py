"""Limits of a chat template: steps of its loops and macros, and sizes of its values."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_STEPS = 1_000_000
"""Passes through loops and macros for one text; a conversation of 1,000 turns takes some 10,000
passes.
"""
MAX_SIZE = 64 * 1024 * 1024
"""Characters or entries of one value."""


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox with templates that end: each pass through a loop or a macro counts as a step, and
    each assigned, added or multiplied value is measured.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.local = threading.local()

    def begin(self) -> None:
        """Count steps from 0, for the next text."""
        self.local.steps = 0

    def step(self) -> None:
        """Count a step. TemplateError: too many steps."""
        self.local.steps = getattr(self.local, "steps", 0) + 1
        if self.local.steps > MAX_STEPS:
            raise TemplateError(f"more than {MAX_STEPS:,} passes through its loops and macros")

    def measure(self, value: Any) -> Any:
        """Measure a value. TemplateError: the value is too long."""
        if isinstance(value, str | list | tuple | dict) and len(value) > MAX_SIZE:
            raise TemplateError(f"a value of more than {MAX_SIZE:,} characters or entries")
        if isinstance(value, int) and value.bit_length() > MAX_SIZE:
            raise TemplateError(f"a number of more than {MAX_SIZE:,} bits")
        return value

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(v) for v in (left, right) if isinstance(v, str | list | tuple)]
        times = [v for v in (left, right) if isinstance(v, int)]
        if operator == "*" and sizes and times and sizes[0] * times[0] > MAX_SIZE:
            raise TemplateError(f"a value of more than {MAX_SIZE:,} characters or entries")
        if operator == "**" and len(times) == 2 and left.bit_length() * right > MAX_SIZE:
            raise TemplateError(f"a number of more than {MAX_SIZE:,} bits")
        return self.measure(super().call_binop(context, operator, left, right))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            node.body.insert(0, _statement("step"))
        _measure_values(tree)
        return tree


def _statement(method: str, *values: nodes.Expr) -> nodes.ExprStmt:
    function = nodes.EnvironmentAttribute(method)
    return nodes.ExprStmt(nodes.Call(function, list(values), [], None, None))


def _measure_values(node: nodes.Node) -> None:
    """Add a measuring statement after each assignment to a name."""
    for field in ("body", "else_", "elif_"):
        body = getattr(node, field, None)
        if isinstance(body, list):
            setattr(node, field, list(_measured(body)))
    for child in node.iter_child_nodes():
        _measure_values(child)


def _measured(body: list[nodes.Node]) -> Iterator[nodes.Node]:
    for node in body:
        yield node
        if isinstance(node, nodes.Assign | nodes.AssignBlock):
            for target in _targets(node.target):
                yield _statement("measure", target)


def _targets(target: nodes.Node) -> Iterator[nodes.Expr]:
    if isinstance(target, nodes.Name):
        yield nodes.Name(target.name, "load")
    elif isinstance(target, nodes.NSRef):
        yield nodes.Getattr(nodes.Name(target.name, "load"), target.attr, "load")
    elif isinstance(target, nodes.Tuple):
        for item in target.items:
            yield from _targets(item)
