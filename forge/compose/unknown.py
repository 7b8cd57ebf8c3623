"""A key that names no option: why, and what was probably meant."""

from __future__ import annotations

import dataclasses
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, ListConfig, OmegaConf

from forge.compose import expected, seeds
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
    """A key that does not exist: why, what to type instead, a note on that, and a hint where
    nothing is close.
    """

    what: str
    meant: list[str]
    hint: str = ""
    note: str = ""

    @property
    def fix(self) -> str:
        """What to do, in one line."""
        return (
            did_you_mean(self.meant) + (f" ({self.note})" if self.note else "")
            if self.meant
            else self.hint
        )


def unknown(tree: DictConfig, key: str, library: Library, value: str = "") -> Unknown | None:
    """None when `key` names an option or section of the tree; else what is wrong with it. value: as
    it was typed for it.
    """
    node: Any = tree
    if "/" in key:
        dotted = key.replace("/", ".")
        meant = (
            advised(tree, library, dotted, value) if unknown(tree, dotted, library) is None else []
        )
        return Unknown(
            f"there is no group '{key}', and options are written with dots.", meant, HELP
        )
    parts = key.split(".")
    for depth, part in enumerate(parts):
        above = ".".join(parts[:depth])
        if isinstance(node, ListConfig):
            return Unknown(f"{above} is a list, and is given as a whole.", [], f"{above}=[...]")
        if not OmegaConf.is_dict(node):
            return Unknown(
                f"{above} is a value and has nothing below it.",
                advised(tree, library, above, value),
            )
        if part not in node:
            return _missing(tree, node, key, above, library, value)
        node = node._get_node(part)
    return None


def advised(tree: DictConfig, library: Library, ours: str, value: str) -> list[str]:
    """What to type for a key or a group that was meant: with the value where it takes it, else with
    one that it takes.
    """
    if "=" in ours:
        return [ours + value if ours.endswith("=") else ours]
    if not value:
        return [ours]
    if library.is_group(ours):
        options = library.options(ours)
        return [
            f"{ours}={option}"
            for option in ([value] if value in options else closest(value, options))
        ]
    found = declared(tree, ours)
    override = read(f"{ours}={value}")
    if found is None or not isinstance(override, Override) or override.is_sweep_override():
        return [f"{ours}={value}"]
    if choices := found.metadata.get("choices"):
        return [
            f"{ours}={choice}"
            for choice in ([value] if value in choices else closest(value, choices, limit=1))
        ]
    typed = override.value()
    whole = int(typed) if isinstance(typed, float) and typed.is_integer() else typed
    if any(fits(one, found.hint) for one in (typed, whole, value)) and not any(
        element_faults(ours, typed, found.metadata)
    ):
        return [f"{ours}={value}"]
    meant = expected.meant(ours, typed, found.hint)
    return [f"{ours}={literal(in_force(tree, ours) if meant is None else meant)}"]


def dashed(tree: DictConfig, library: Library, text: str) -> Problem:
    """What is said of an override with dashes in front, as other programs take their options."""
    key, sign, value = text.lstrip("-").partition("=")
    if schemas.declared(key) is not None and key not in (
        name for name, *_ in schemas.walk_options()
    ):  # an entry of a dict, such as launch.sbatch.mail-type
        added = "+" if key.partition(".")[0] in schemas.free_dicts() else ""
        return Problem(
            key=text,
            what="options are typed without dashes.",
            fix=f"write {added}{text.lstrip('-')}",
            where=COMMAND_LINE,
        )
    key, value = key.replace("-", "_"), value if sign else "true"
    found = None if library.is_group(key) else unknown(tree, key, library, value)
    what = "options are typed without dashes" + (f", and {found.what}" if found else ".")
    meant = advised(tree, library, key, value) if found is None else []
    fix = (
        found.fix
        if found
        else f"write {' or '.join(meant)}"
        if meant
        else f"options: {', '.join(library.options(key))}"
    )
    return Problem(key=text, what=what, fix=fix, where=COMMAND_LINE)


def _missing(
    tree: DictConfig, node: DictConfig, key: str, above: str, library: Library, value: str
) -> Unknown:
    part, _, rest = key.removeprefix(f"{above}.").partition(".")
    schema = OmegaConf.get_type(node)
    what = (
        f"{schema.__name__ if dataclasses.is_dataclass(schema) else above} has no option '{part}'."
    )
    what = what if above else f"there is no group or option '{part}'."
    if found := _alias(tree, library, key, value, what):
        return found
    seed = _seed(tree, library, key, value, what)
    if seed is not None and seeds.names(key):
        return seed
    if owners := _owners(above, part):
        fix = (
            "choose one of these, or leave this out"
            if "," in owners
            else f"choose {owners}, or leave this out"
        )
        return Unknown(f"{what} It belongs to {owners}.", [], fix)
    if not above and rest and part in library.groups():
        return Unknown(
            f"{part} is a group without options of its own.",
            [],
            f"choose one of its files: {part}=...",
        )
    texts = _near(tree, library, node, above, part, rest, value) if not above else []
    texts = (
        texts
        or _same_name(tree, library, part, rest, value)
        or _near(tree, library, node, above, part, rest, value)
    )
    texts = texts or (
        _same_name(tree, library, key.rpartition(".")[2], "", value) if rest and not above else []
    )
    if texts:
        return Unknown(what, list(dict.fromkeys(texts))[:MOST])
    options = [name for name in map(str, node) if not name.startswith("_")]
    return seed or Unknown(
        what,
        [],
        f"its options: {', '.join(options)}" if above else _hint(tree, library, part, rest),
    )


def _near(
    tree: DictConfig,
    library: Library,
    node: DictConfig,
    above: str,
    part: str,
    rest: str,
    value: str,
) -> list[str]:
    """What is spelled nearly so in the same section, or among the groups."""
    texts = []
    for name in closest(part, [*([] if above else library.groups()), *map(str, node)]):
        full = f"{above}.{name}" if above else name
        inner = node._get_node(name) if name in node else None
        if rest and (
            OmegaConf.get_type(inner) is dict
            or (name in node and unknown(tree, f"{full}.{rest}", library) is None)
        ):
            texts += advised(tree, library, f"{full}.{rest}", value)
        elif not rest and not (value and OmegaConf.is_dict(inner) and not library.is_group(full)):
            texts += advised(tree, library, full, value)
    return texts


def _same_name(tree: DictConfig, library: Library, name: str, rest: str, value: str) -> list[str]:
    """The options of this name in any section; with `rest`, those that hold entries."""
    keys = [key for key in option_keys(tree) if key.rpartition(".")[2] == name][:MOST]
    keys = [
        f"{key}.{rest}" if rest else key
        for key in keys
        if not rest or OmegaConf.is_dict(OmegaConf.select(tree, key))
    ]
    return [text for key in keys for text in advised(tree, library, key, value)]


def _hint(tree: DictConfig, library: Library, part: str, rest: str) -> str:
    """What to do about something at the root that is like no option: the group that it may be, with
    what that offers.
    """
    group = next(iter(closest(part, library.groups(), limit=1)), "")
    if rest and group in tree:
        found = unknown(tree, f"{group}.{rest}", library)
        return found.hint if found else HELP
    return (
        f"did you mean the group {group}? its options: {', '.join(library.options(group))}"
        if group
        else HELP
    )


def _alias(tree: DictConfig, library: Library, key: str, value: str, what: str) -> Unknown | None:
    """What a word that is used elsewhere is here."""
    word = key.rpartition(".")[2].replace("-", "_").lower()
    if word in HINTS:
        return Unknown(what, [], HINTS[word])
    if found := computed(tree, word, value):
        ours, _, number = found[0].partition("=")
        if unknown(tree, ours, library) is None and advised(tree, library, ours, number) == [
            found[0]
        ]:
            return Unknown(what, [found[0]], note=found[1])
    ours = ALIASES.get(word, "")
    if "=" in ours and value.lower() in OFF:
        return Unknown(what, [], f"leave it out; {ours} switches it on")
    return _called(tree, library, [ours], value, what) if ours else None


def _seed(tree: DictConfig, library: Library, key: str, value: str, what: str) -> Unknown | None:
    """What became of a seed's option."""
    answer = seeds.answer(key)
    if answer is None:
        return None
    return (
        _called(tree, library, answer.ours, value, what, answer.note)
        if answer.ours
        else Unknown(what, [], answer.note)
    )


def _called(
    tree: DictConfig, library: Library, names: list[str], value: str, what: str, note: str = ""
) -> Unknown:
    """What was typed is called so here: keys, groups, or texts to type."""
    there = [
        name
        for name in names
        if "=" in name or library.is_group(name) or unknown(tree, name, library) is None
    ]
    meant = [text for name in there for text in advised(tree, library, name, value)]
    group = next((name for name in there if library.is_group(name)), "")
    absent = unknown(tree, names[0], library) if not there else None
    more = (
        f"its options: {', '.join(library.options(group))}"
        if group
        else absent.fix
        if absent
        else note
    )
    return Unknown(
        what, meant, f"it is {' or '.join(names)} here" + (f"; {more}" if more else ""), note
    )


def _owners(group: str, part: str) -> str:
    """Which variants of the group have this option."""
    owners = [
        name
        for name, schema in schemas.SCHEMAS.get(group, {}).items()
        if part in (f.name for f in dataclasses.fields(schema))
    ]
    return ", ".join(f"{group}={name}" for name in owners)
