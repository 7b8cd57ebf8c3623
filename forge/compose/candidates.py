"""What a word on a command line may become: groups and their options, keys and their values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from omegaconf import DictConfig

from forge.compose.composition import Composition, compose
from forge.compose.tree import find_declaration, node_at, value_in_force
from forge.config.problems import shown


def completions(word: str, before: Sequence[str], config_dirs: Sequence[str] = ()) -> list[str]:
    """Completions of `word` after the words `before`; the overrides in `before` decide on the
    options: `optimizer=adamw optimizer.be` becomes `optimizer.betas=`.
    """
    composition = compose([text for text in before if "=" in text], config_dirs=config_dirs)
    name = word.lstrip("+~")
    signs = word[: len(word) - len(name)]
    key, equals, value = name.partition("=")
    if equals:
        head = value[: value.rfind(",") + 1]  # complete the last of a sweep's several values
        texts = [f"{key}={head}{option}" for option in _values(key, composition)]
    else:
        texts = list(_keys(key, composition))
    return sorted({f"{signs}{text}" for text in texts if text.startswith(name)})


def _values(key: str, composition: Composition) -> Iterator[str]:
    if composition.library.is_group(group := key.partition("@")[0]):
        yield from composition.library.options(group)
        return
    option = find_declaration(composition.tree, key)
    if option is None:
        return
    if option.hint is bool:
        yield from ("true", "false")
    yield from map(str, option.metadata.get("choices") or ())
    if (now := value_in_force(composition.tree, key)) is not None and not isinstance(
        now, dict | list
    ):
        yield shown(now)


def _keys(start: str, composition: Composition) -> Iterator[str]:
    """Groups, and the keys of the section in `start`, one level down."""
    above, dot, _ = start.rpartition(".")
    if not dot:
        yield from (f"{group}=" for group in composition.library.groups())
    node = node_at(composition.tree, above) if above else composition.tree
    for name in node if isinstance(node, DictConfig) else ():
        if str(name).startswith("_"):
            continue
        key = f"{above}.{name}" if above else str(name)
        below: Any = node._get_node(name)
        if not isinstance(below, DictConfig) or below._is_none():
            yield f"{key}="
        elif len(below):
            yield f"{key}."
