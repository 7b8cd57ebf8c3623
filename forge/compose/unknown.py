"""A key that names no option: why, and what was probably meant."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from forge.compose.aliases import ALIASES, ALONE, BY_VALUE, DECIDED_BY, HINTS
from forge.compose.engine import Library
from forge.compose.grammar import read_override
from forge.compose.hydra_adapter import Override
from forge.compose.nanochat_words import in_our_keys
from forge.compose.tree import LISTS, find_declaration, has, node_at, option_keys, value_in_force
from forge.config import schemas
from forge.config.adapters.adapter import in_ours, saved_in_ours
from forge.config.bounds import element_faults, fits
from forge.config.data.text import Data, unstreamed
from forge.config.problems import COMMAND_LINE, Problem, closest, did_you_mean, literal

HELP = "python -m forge.train --help lists them"
IN_OURS = {"target_modules=": in_ours, "modules_to_save=": saved_in_ours}
DEGREE = re.compile("(tp|pp|cp|ep)([0-9]+)")
OFF = ("false", "0", "no", "none", "null")
Fault = tuple[str, str]
"""What is wrong, and what to do."""


@dataclass(frozen=True)
class Keys:
    """The options of a composed tree and the groups, for the lookup of typed keys."""

    tree: DictConfig
    library: Library

    def unknown(self, key: str, value: str = "") -> Fault | None:
        """The fault of a key; None for the key of an option or section."""
        if "/" in key:
            dotted = key.replace("/", ".")
            meant = [] if self.unknown(dotted) else self.advised(dotted, value)
            message = f"there is no group '{key}', and options are written with dots."
            return message, did_you_mean(meant) or HELP
        node: Any = self.tree
        above = ""
        for part in key.split("."):
            if isinstance(node, LISTS):
                return f"{above} is a list, and is given as a whole.", f"{above}=[...]"
            if not isinstance(node, DictConfig):
                hint = did_you_mean(self.advised(above, value))
                return f"{above} is a value and has nothing below it.", hint
            if not has(node, part):
                return self._missing(node, above, part, key, value)
            node = node._get_node(part)
            above = f"{above}.{part}" if above else part
        return None

    def advised(self, key: str, value: str) -> list[str]:
        """The words to type for a probably meant key or group: with the value where admitted, else
        with an admitted value.
        """
        if not value:
            return [key]
        if self.library.is_group(key):
            options = self.library.options(key)
            near = [value] if value in options else closest(value, options)
            return [f"{key}={option}" for option in near]
        declaration, override = find_declaration(self.tree, key), read_override(f"{key}={value}")
        if (
            declaration is None
            or not isinstance(override, Override)
            or override.is_sweep_override()
        ):
            return [f"{key}={value}"]
        if choices := declaration.metadata.get("choices"):
            near = [value] if value in choices else closest(value, choices, limit=1)
            return [f"{key}={choice}" for choice in near]
        typed = override.value()
        as_int = int(typed) if isinstance(typed, float) and typed.is_integer() else typed
        is_of_type = any(fits(candidate, declaration.hint) for candidate in (typed, as_int, value))
        if is_of_type and not any(element_faults(key, typed, declaration.metadata)):
            return [f"{key}={value}"]
        return [f"{key}={literal(value_in_force(self.tree, key))}"]

    def _missing(self, node: DictConfig, above: str, part: str, key: str, value: str) -> Fault:
        """The fault of a part of a key missing in the section at `above`. node: the section."""
        suffix = key.removeprefix(f"{above}.").partition(".")[2]
        schema = OmegaConf.get_type(node)
        section = schema.__name__ if dataclasses.is_dataclass(schema) else above
        message = f"{section} has no option '{part}'."
        if not above:
            message = f"there is no group or option '{part}'."
        if hint := self._alias(key, value):
            return message, hint
        kind = schema if isinstance(schema, type) and issubclass(schema, Data) else None
        if kind is not None and (fault := unstreamed(kind, part)):
            return f"{message[:-1]}: {fault[0]}", fault[1]
        owners = _owners(above, part)
        if not above and suffix and part in self.library.groups():
            message = f"{part} is a group without options of its own."
            return message, f"choose one of its files: {part}=..."
        if not owners:
            near = self._near(node, above, part, suffix, value)
            same_name = self._same_name(part, suffix, value)
            meant = same_name or near if above else near or same_name
            if not meant and suffix and not above:
                meant = self._same_name(key.rpartition(".")[2], "", value)
            if meant:
                return message, did_you_mean(list(dict.fromkeys(meant))[:3])
        if not owners and above in ("", "model") and not suffix:
            inner = [f"model.{group}" for group in schemas.INNER]
            sections = [*inner, *schemas.SCHEMAS] if not above else inner
            owners = next(
                (o for section_name in sections if (o := _owners(section_name, part))), []
            )
        if owners:
            hint = f"choose {' or '.join(owners)}, or leave this out"
            return f"{message} It belongs to {', '.join(owners)}.", hint
        if above:
            options = [name for name in map(str, node) if not name.startswith("_")]
            return message, f"its options: {', '.join(options)}"
        return message, HELP

    def _near(self, node: DictConfig, above: str, part: str, rest: str, value: str) -> list[str]:
        """The words of similar spelling in the same section, or among the groups."""
        texts = []
        groups = [] if above else self.library.groups()
        for name in closest(part, [*groups, *map(str, node)]):
            full = f"{above}.{name}" if above else name
            inner = node_at(node, [name])
            below = f"{full}.{rest}"
            if rest and (
                OmegaConf.get_type(inner) is dict or (inner is not None and not self.unknown(below))
            ):
                texts += self.advised(below, value)
            is_section = isinstance(inner, DictConfig) and not self.library.is_group(full)
            if not rest and not (value and is_section):
                texts += self.advised(full, value)
        return texts

    def _same_name(self, name: str, rest: str, value: str) -> list[str]:
        """The options of this name in any section; with `rest`, the options holding entries."""
        keys = [key for key in option_keys(self.tree) if key.rpartition(".")[2] == name]
        if rest:
            keys = [f"{key}.{rest}" for key in keys if OmegaConf.is_dict(node_at(self.tree, key))]
        return [text for key in keys for text in self.advised(key, value)]

    def _alias(self, key: str, value: str) -> str:
        """The hint for a word of another framework; empty for any other word."""
        full = key.replace("-", "_").lower()
        last = full.rpartition(".")[2]
        word = full if last in ALONE else last
        translated = BY_VALUE.get(word, {}).get(value.lower(), "")
        target = translated.partition("=")[0]
        if target and (self.library.is_group(target) or find_declaration(self.tree, target)):
            return did_you_mean([translated])
        if line := in_our_keys(last, value, self.tree):
            return did_you_mean([line])
        ours = ALIASES.get(full) or ALIASES.get(word, "")
        if not ours:
            hint = HINTS.get(full) or HINTS.get(word, "")
            return self._hinted(hint, value) or self._of_seed(full, value)
        translate = IN_OURS.get(ours.rpartition(".")[2])
        if translate is not None:
            words = value.strip("[]").replace("'", "").replace('"', "").split(",")
            value = f"[{','.join(translate(w.strip() for w in words if w.strip()))}]"
        option = ours.rpartition(" ")[2].removesuffix("=")
        chosen_by = ("adapter=", "optimizer=", "data=", "scaling=")
        if ours.startswith(chosen_by) and find_declaration(self.tree, option):
            return did_you_mean(self.advised(option, value))  # the group's option in force has it
        if "=" in ours and value.lower() in OFF:
            return f"leave it out; {ours} switches it on"
        if "=" in ours:
            return did_you_mean([ours + value if ours.endswith("=") else ours])
        if self.library.is_group(ours):
            options = f"it is {ours} here; its options: {', '.join(self.library.options(ours))}"
            meant = self.advised(ours, value) or (as_values(ours, value) if value else [])
            return did_you_mean(meant) or options
        decides = DECIDED_BY.get(ours, "")
        if value and decides and value_in_force(self.tree, decides) is not None:
            return did_you_mean([f"{text} {decides}=null" for text in self.advised(ours, value)])
        return self._called(ours, value)

    def _hinted(self, text: str, value: str) -> str:
        """A text of HINTS with the value; only the override where its option is in force."""
        option = text.partition("={value}")[0]
        if (
            text.startswith(f"{option}={{value}},")
            and value
            and find_declaration(self.tree, option)
        ):
            return did_you_mean(self.advised(option, value))
        return text.replace("{value}", value or "...")

    def _of_seed(self, key: str, value: str) -> str:
        """The hint for an option of a seed of forge; empty for any other key."""
        from forge.compose.seed_keys import seed_rows

        ours, note = seed_rows().get(key, ("", ""))
        if not ours:
            return ""
        group, sign, _ = ours.partition("=")
        if sign:
            ours = ours if group in self.tree else f"+{ours}"
            return f"it is a choice of {group} here, like {ours}" + (f", {note}" if note else "")
        if self.library.is_group(ours) and not note:
            return f"it is {ours} here; its options: {', '.join(self.library.options(ours))}"
        if note and (self.library.is_group(ours) or not self.unknown(ours)):
            return f"it is {ours} here; {note}"
        return self._called(ours, value)

    def _called(self, ours: str, value: str) -> str:
        """The hint for an option of forge with the value, or for a key absent from the config."""
        if absent := self.unknown(ours):
            return f"it is {ours} here; {absent[1]}"
        return did_you_mean(self.advised(ours, value)) or f"it is {ours} here"

    def dashed(self, text: str) -> Problem:
        """The problem of an override with leading dashes, the form of options in other programs."""
        key, sign, value = text.lstrip("-").partition("=")
        key, value = key.replace("-", "_"), value if sign else "true"
        typed = self.advised(key, value) or [f"{key}={value}"]
        message, hint = "options are typed without dashes.", f"write {' or '.join(typed)}"
        is_known = self.library.is_group(key) or schemas.in_open_dict(key)
        if not is_known and (fault_of_key := self.unknown(key, value)):
            message, hint = f"{message[:-1]}, and {fault_of_key[0]}", fault_of_key[1]
        return Problem(text, message, hint, where=COMMAND_LINE)


def as_values(group: str, name: str) -> list[str]:
    """The words to type for a layout without a file, or for a path in place of an option."""
    if group == "parallel" and (degree := DEGREE.fullmatch(name)):
        return [f"parallel.{degree[1]}={degree[2]}"]
    if not re.search("[./]", name):
        return []
    variants = schemas.SCHEMAS.get(group, {}).items()
    taking = [option for option, schema in variants if "path" in schema.__dataclass_fields__]
    return [f"{group}={option} {group}.path={name}" for option in taking[:1]]


def _owners(section: str, part: str) -> list[str]:
    """The variants of the section with this option, as choices to type."""
    group = section.rpartition(".")[2]
    choice = section if group == section else f"+{group}@{section}"
    variants = schemas.SCHEMAS.get(group, {}).items()
    return [f"{choice}={name}" for name, schema in variants if part in schema.__dataclass_fields__]
