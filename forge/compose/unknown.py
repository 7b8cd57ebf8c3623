"""A key that names no option: why, and what was probably meant."""

from __future__ import annotations

import dataclasses
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, ListConfig, OmegaConf

from forge.compose import values
from forge.compose.aliases import ALIASES, HINTS, computed
from forge.compose.engine import Library
from forge.compose.grammar import read
from forge.compose.tree import declared, in_force, option_keys
from forge.config import schemas
from forge.config.bounds import element_faults, fits
from forge.config.problems import COMMAND_LINE, Problem, closest, did_you_mean, literal

MOST = 3
HELP = "python -m forge.train --help lists them"
OFF = ("false", "0", "no", "none", "null")


@dataclasses.dataclass(frozen=True)
class Unknown:
    """A key that does not exist: why, what to type instead, a hint where nothing is close, and a
    note on what to type.
    """

    what: str
    meant: list[str]
    hint: str = ""
    note: str = ""

    @property
    def fix(self) -> str:
        """What to do, in one line."""
        note = f" ({self.note})" if self.note else ""
        return did_you_mean(self.meant) + note if self.meant else self.hint


def unknown(tree: DictConfig, key: str, library: Library, value: str = "") -> Unknown | None:
    """None when `key` names an option or section of the tree; else what is wrong with it. value: as
    it was typed for it.
    """
    if "/" in key:
        dotted = key.replace("/", ".")
        exists = unknown(tree, dotted, library) is None
        what = f"there is no group '{key}', and options are written with dots."
        return Unknown(what, advised(tree, library, dotted, value) if exists else [], HELP)
    node: Any = tree
    above = ""
    for part in key.split("."):
        if isinstance(node, ListConfig):
            return Unknown(f"{above} is a list, and is given as a whole.", [], f"{above}=[...]")
        if not OmegaConf.is_dict(node):
            what = f"{above} is a value and has nothing below it."
            return Unknown(what, advised(tree, library, above, value))
        if part not in node:
            return _Finder(tree, library, node, above, key, value).find()
        node = node._get_node(part)
        above = f"{above}.{part}" if above else part
    return None


def advised(tree: DictConfig, library: Library, key: str, value: str) -> list[str]:
    """What to type for a key or a group that was meant: with the value where it takes it, else with
    one that it takes.
    """
    if "=" in key:
        return [key + value if key.endswith("=") else key]
    if not value:
        return [key]
    found = declared(tree, key)
    choices = library.options(key) if library.is_group(key) else None
    override = read(f"{key}={value}")
    if choices is None and found and isinstance(override, Override):
        choices = None if override.is_sweep_override() else found.metadata.get("choices")
    if choices:
        near = closest(value, choices, limit=3 if library.is_group(key) else 1)
        return [f"{key}={choice}" for choice in ([value] if value in choices else near)]
    if found is None or not isinstance(override, Override) or override.is_sweep_override():
        return [f"{key}={value}"]
    typed = override.value()
    as_int = int(typed) if isinstance(typed, float) and typed.is_integer() else typed
    if any(fits(one, found.hint) for one in (typed, as_int, value)) and not any(
        element_faults(key, typed, found.metadata)
    ):
        return [f"{key}={value}"]
    meant = values.meant(key, typed, found.hint)
    return [f"{key}={literal(in_force(tree, key) if meant is None else meant)}"]


def dashed(tree: DictConfig, library: Library, text: str) -> Problem:
    """The problem of an override with dashes in front, as other programs take their options."""
    typed = text.lstrip("-")
    key, sign, value = typed.partition("=")
    is_option = any(key == name for name, *_ in schemas.walk_options())
    what, meant = "options are typed without dashes", [typed]
    if schemas.declared(key) is not None and not is_option:  # such as launch.sbatch.mail-type
        meant = [f"{'+' * (key.partition('.')[0] in schemas.free_dicts())}{typed}"]
    else:
        key, value = key.replace("-", "_"), value if sign else "true"
        found = None if library.is_group(key) else unknown(tree, key, library, value)
        if found:
            return Problem(text, f"{what}, and {found.what}", found.fix, where=COMMAND_LINE)
        meant = advised(tree, library, key, value)
    fix = f"write {' or '.join(meant)}" if meant else f"options: {', '.join(library.options(key))}"
    return Problem(text, f"{what}.", fix, where=COMMAND_LINE)


@dataclasses.dataclass(frozen=True)
class _Finder:
    """Looks for what was meant by a key of which the part below `above` does not exist; node: the
    section at `above`.
    """

    tree: DictConfig
    library: Library
    node: DictConfig
    above: str
    key: str
    value: str

    def find(self) -> Unknown:
        part, _, rest = self.key.removeprefix(f"{self.above}.").partition(".")
        schema = OmegaConf.get_type(self.node)
        section = schema.__name__ if dataclasses.is_dataclass(schema) else self.above
        what = f"{section} has no option '{part}'."
        if not self.above:
            what = f"there is no group or option '{part}'."
        if found := self._alias(what):
            return found
        owners = _owners(self.above, part)
        if owners and self.above:
            return Unknown(f"{what} It belongs to {', '.join(owners)}.", [], _choose(owners))
        if not self.above and rest and part in self.library.groups():
            what = f"{part} is a group without options of its own."
            return Unknown(what, [], f"choose one of its files: {part}=...")
        texts = [] if self.above else self._near(part, rest)
        texts = texts or self._same_name(part, rest) or self._near(part, rest)
        if rest and not self.above:
            texts = texts or self._same_name(self.key.rpartition(".")[2], "")
        if texts:
            return Unknown(what, list(dict.fromkeys(texts))[:MOST])
        if self.above:
            options = [name for name in map(str, self.node) if not name.startswith("_")]
            return Unknown(what, [], f"its options: {', '.join(options)}")
        if found := next((o for g in schemas.SCHEMAS if (o := _owners(g, part))), None):
            return Unknown(f"{what} It belongs to {', '.join(found)}.", [], _choose(found))
        return Unknown(what, [], self._group_hint(part, rest))

    def _advised(self, key: str) -> list[str]:
        return advised(self.tree, self.library, key, self.value)

    def _exists(self, key: str) -> bool:
        return unknown(self.tree, key, self.library) is None

    def _near(self, part: str, rest: str) -> list[str]:
        """What is spelled nearly so in the same section, or among the groups."""
        texts = []
        groups = [] if self.above else self.library.groups()
        for name in closest(part, [*groups, *map(str, self.node)]):
            full = f"{self.above}.{name}" if self.above else name
            inner = self.node._get_node(name) if name in self.node else None
            if rest and (
                OmegaConf.get_type(inner) is dict
                or (name in self.node and self._exists(f"{full}.{rest}"))
            ):
                texts += self._advised(f"{full}.{rest}")
            is_plain_section = OmegaConf.is_dict(inner) and not self.library.is_group(full)
            if not rest and not (self.value and is_plain_section):
                texts += self._advised(full)
        return texts

    def _same_name(self, name: str, rest: str) -> list[str]:
        """The options of this name in any section; with `rest`, those that hold entries."""
        keys = [key for key in option_keys(self.tree) if key.rpartition(".")[2] == name][:MOST]
        if rest:
            is_dict = [OmegaConf.is_dict(OmegaConf.select(self.tree, key)) for key in keys]
            keys = [f"{key}.{rest}" for key, holds in zip(keys, is_dict, strict=True) if holds]
        return [text for key in keys for text in self._advised(key)]

    def _group_hint(self, part: str, rest: str) -> str:
        """What to do where only the group may be told that was meant."""
        group = next(iter(closest(part, self.library.groups(), limit=1)), "")
        if rest and group in self.tree:
            found = unknown(self.tree, f"{group}.{rest}", self.library)
            return found.hint if found else HELP
        if not group:
            return HELP
        options = ", ".join(self.library.options(group))
        return f"did you mean the group {group}? its options: {options}"

    def _alias(self, what: str) -> Unknown | None:
        """What a word of another framework is called here."""
        word = self.key.rpartition(".")[2].replace("-", "_").lower()
        if word in HINTS:
            return Unknown(what, [], HINTS[word])
        if found := computed(self.tree, word, self.value):
            text, note = found
            ours, _, number = text.partition("=")
            if self._exists(ours) and advised(self.tree, self.library, ours, number) == [text]:
                return Unknown(what, [text], note=note)
        ours = ALIASES.get(word)
        if ours is None:
            return None
        if "=" in ours and self.value.lower() in OFF:
            return Unknown(what, [], f"leave it out; {ours} switches it on")
        if self.library.is_group(ours):
            options = ", ".join(self.library.options(ours))
            return Unknown(what, self._advised(ours), f"it is {ours} here; its options: {options}")
        absent = None if "=" in ours else unknown(self.tree, ours, self.library)
        if absent:
            return Unknown(what, [], f"it is {ours} here; {absent.fix}")
        return Unknown(what, self._advised(ours), f"it is {ours} here")


def _owners(group: str, part: str) -> list[str]:
    """Which variants of the group have this option."""
    variants = schemas.SCHEMAS.get(group, {}).items()
    return [f"{group}={name}" for name, schema in variants if part in schema.__dataclass_fields__]


def _choose(owners: list[str]) -> str:
    return f"choose {owners[0] if len(owners) == 1 else 'one of these'}, or leave this out"
