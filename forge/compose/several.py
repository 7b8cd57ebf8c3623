"""`sweeper.params` as files have it: a list of YAML stands for the same several values as a text
with commas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from forge.config.problems import Problem, literal

PARAMS = "sweeper.params"


def as_texts(tree: DictConfig, written_at: Callable[[str], str]) -> list[Problem]:
    """Make texts of lists, in place; what is neither is taken out, and is a problem."""
    params = tree.sweeper._get_node("params")
    if (
        not OmegaConf.is_dict(params)
        or params._is_none()
        or params._is_missing()
        or params._is_interpolation()
    ):
        return []
    problems = []
    for key in list(params):
        if not OmegaConf.is_config(node := params._get_node(key)):
            continue
        value: Any = OmegaConf.to_container(node, resolve=False)
        name = f"{PARAMS}.{key}"
        if value and isinstance(value, list):
            params[key] = text_of(value)
            continue
        with open_dict(params):
            del params[key]
        if isinstance(value, dict) and value:
            what, fix = (
                "sweeper.params has dotted keys, with nothing below them.",
                "; ".join(_dotted(f"{key}", value)),
            )
        else:
            what, fix = "it stands for no value at all.", "at least one"
        problems.append(Problem(key=name, what=what, fix=fix, where=written_at(name)))
    return problems


def text_of(value: Any) -> str:
    """Values as they are typed for a sweep: a list with commas between them, a text as it is."""
    if isinstance(value, list):
        return ",".join(inner if isinstance(inner, str) else literal(inner) for inner in value)
    return value if isinstance(value, str) else literal(value)


def _dotted(key: str, value: Any) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{key}: {text_of(value)}"
        return
    for name, inner in value.items():
        yield from _dotted(f"{key}.{name}", inner)
