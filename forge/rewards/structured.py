"""Rewards for JSON: that it can be read, and that it keeps a schema."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forge.rewards.completion import Completion, Reward, completion_text

FENCE_OF_JSON = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL)
INSTALL = "pip install 'forge-lm[rewards]'"


class JSON(Reward):
    """1 where a completion is JSON that keeps the schema, `readable` where it is other JSON, else
    0.

    schema: a JSON schema; null = any JSON counts. A row's own schema, as JSON or as text, in the
    column `schema` goes before. fenced: the first fenced block counts, where there is one.
    """

    isolated = True  # a schema has patterns, which may take forever

    def __init__(
        self,
        schema: Mapping[str, Any] | None = None,
        readable: float = 0.0,
        fenced: bool = True,
    ) -> None:
        self.schema, self.readable, self.fenced = schema, readable, fenced

    def faults(self) -> Iterator[tuple[str, str]]:
        if self.schema is None:
            return
        if importlib.util.find_spec("jsonschema") is None:
            yield "a schema needs the package jsonschema, which is not installed.", INSTALL
            return
        from jsonschema import SchemaError
        from jsonschema.validators import validator_for

        try:
            validator_for(self.schema).check_schema(dict(self.schema))
        except SchemaError as error:
            yield f"schema is no JSON schema: {error.message}.", "correct the schema"

    def __call__(
        self, completions: Sequence[Completion], schema: Sequence[Any] | None = None
    ) -> list[float]:
        schemas = schema or [None] * len(completions)
        pairs = zip(completions, schemas, strict=True)
        return [self._reward(completion_text(completion), own) for completion, own in pairs]

    def _reward(self, text: str, schema: Any) -> float:
        block = FENCE_OF_JSON.search(text) if self.fenced else None
        try:
            value = json.loads(block[1] if block else text, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return 0.0
        schema = self.schema if schema is None else schema
        schema = json.loads(schema) if isinstance(schema, str) else schema
        if schema is None:
            return 1.0
        from jsonschema.validators import validator_for

        return 1.0 if validator_for(schema)(schema).is_valid(value) else self.readable


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
