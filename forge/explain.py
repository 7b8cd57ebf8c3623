"""`python -m forge.explain KEY... [overrides]`: the value of an option and where it comes from.

Examples:
    python -m forge.explain scheduler.decay_steps
    python -m forge.explain optimizer.lr model=small
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from forge import cli
from forge.compose.composition import Composition, compose
from forge.compose.tree import find_declaration
from forge.compose.trust import in_project
from forge.compose.unknown import Keys
from forge.config.bounds import describe_bounds
from forge.config.field import Section
from forge.config.problems import COMMAND_LINE, ConfigError, Problem
from forge.config.rule import get
from forge.config.schemas import walk_options
from forge.resolve.resolve import Resolution
from forge.resolve.rules.all import RULES

DESCRIPTION = "The value of an option, where it comes from, what it means and which rules read it."


def main(argv: Sequence[str] | None = None) -> int:
    """Print value, origin, meaning, bounds and rules of each key, and exit 0; or all problems, and
    exit 2.
    """
    arguments = cli.parser("forge.explain", DESCRIPTION)
    options = cli.parse(arguments, argv)
    typed = [text for text in options.overrides if "=" in text or text.startswith("~")]
    keys = [text.lstrip("-") for text in options.overrides if text not in typed]
    if options.help or not keys:
        options.overrides = typed if keys else []
        code = cli.help("forge.explain KEY", arguments, options)
        return code if options.help else cli.REFUSED

    def verb() -> int:
        overrides = in_project(typed)
        try:
            composition, resolution = cli.resolved(overrides, options.config_dir)
        except ConfigError as error:
            composition = compose(overrides, config_dirs=options.config_dir)
            raise ConfigError([*_unknown(keys, composition), *error.problems]) from None
        if problems := _unknown(keys, composition):
            raise ConfigError(problems)
        print("\n\n".join(explain(key, composition, resolution) for key in keys))
        return 0

    return cli.refuse(verb)


def explain(key: str, composition: Composition, resolution: Resolution) -> str:
    choice = composition.choices.get(key)
    if key not in composition.tree and key in composition.library.groups():
        options = ", ".join(composition.library.options(key))
        return f"{key}={_show(choice)}   (its options: {options})"
    value = get(resolution.config, key)
    if isinstance(value, Section):
        meaning = " ".join((type(value).__doc__ or "").split())
        lines = [f"{key}={choice}   ({type(value).__name__}: {meaning})"]
        values = {name: v for name, v in vars(value).items() if not name.startswith("_")}
        return "\n".join([*lines, *(f"  {key}.{n} = {_show(v)}" for n, v in values.items())])
    lines = [f"{key} = {_show(value)}"]
    origin = composition.origin(key)
    if derived := next((d for d in resolution.derived if d.key == key), None):
        written = _show(OmegaConf.select(composition.tree, key))
        lines.append(f"  worked out    {derived.why}")
        lines.append(f"  because       {written} is written at {origin}")
    else:
        typed = composition.applied.get(key)
        source = "the command line" if origin == COMMAND_LINE else origin
        lines.append(f"  from          {f'{source}: {typed}' if typed else origin}")
        if other := next((d for d in resolution.overruled if d.key == key), None):
            lines.append(f"  in place of   {_show(other.value)} by scaling: {other.why}")
    if (metadata := _metadata(key, composition)) is not None:
        meaning = metadata.get("help", "what is built for this section")
        lines.append(f"  meaning       {meaning}")
        admitted = describe_bounds(metadata)
        lines += [f"  admits        {admitted}"] if admitted else []
    lines += [f"  rule          {rule.id}: {rule.sentence}" for rule in RULES if key in rule.reads]
    return "\n".join(lines)


def _metadata(key: str, composition: Composition) -> Mapping[str, Any] | None:
    """The metadata of an option; for a section without a schema, of its target's parameter."""
    option = find_declaration(composition.tree, key)
    if option is not None and not option.metadata and not key.endswith("_target_"):
        target = OmegaConf.select(composition.tree, f"{key.partition('.')[0]}._target_")
        return {"help": f"a parameter of {target}"}
    return next((field.metadata for name, _, _, field in walk_options() if name == key), None)


def _unknown(keys: Sequence[str], composition: Composition) -> list[Problem]:
    vocabulary = Keys(composition.tree, composition.library)
    faults = {
        key: vocabulary.unknown(key) for key in keys if key not in composition.library.groups()
    }
    return [Problem(key, *fault) for key, fault in faults.items() if fault]


def _show(value: object) -> str:
    special = value is None or isinstance(value, bool)
    return {None: "null", True: "true", False: "false"}[value] if special else str(value)


if __name__ == "__main__":
    sys.exit(main())
