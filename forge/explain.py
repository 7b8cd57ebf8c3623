"""`python -m forge.explain KEY... [overrides]`: the value of an option and where it comes from."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from omegaconf import OmegaConf

from forge import cli
from forge.compose import help
from forge.compose.composition import Composition, compose
from forge.compose.unknown import unknown
from forge.config.bounds import describe_bounds
from forge.config.field import Section
from forge.config.problems import ConfigError, Problem
from forge.config.schemas import walk_options
from forge.resolve.resolve import Resolution
from forge.resolve.rule import get
from forge.resolve.rules.all import RULES


def main(argv: Sequence[str] | None = None) -> int:
    """Print value, origin, meaning, bounds and rules of each key, and exit 0; or all problems, and
    exit 2.
    """
    arguments = cli.parser(
        "forge.explain",
        "The value of an option, where it comes from, what it means and which rules read it.",
    )
    options = cli.parse(arguments, argv)
    overrides = [text for text in options.overrides if "=" in text or text.startswith("~")]
    keys = [text.lstrip("-") for text in options.overrides if text not in overrides]
    if options.help or not keys:
        shown = cli.show(help.page("forge.explain KEY", arguments, []))
        return shown if options.help else cli.REFUSED

    def verb() -> int:
        try:
            composition, resolution = cli.resolved(overrides, options.config_dir)
        except ConfigError as error:
            composition = compose(overrides, config_dirs=options.config_dir)
            raise ConfigError([*_no_keys(keys, composition), *error.problems]) from None
        problems = _no_keys(keys, composition)
        if problems:
            raise ConfigError(problems)
        print("\n\n".join(explain(key, composition, resolution) for key in keys))
        return 0

    return cli.refuse(verb)


def explain(key: str, composition: Composition, resolution: Resolution) -> str:
    """Everything known about one option, section or group, as text."""
    choice = composition.choices.get(key)
    if key not in composition.tree and key in composition.library.groups():
        return (
            f"{key}={_show(choice)}   (its options: {', '.join(composition.library.options(key))})"
        )
    value = get(resolution.config, key)
    if isinstance(value, Section):
        names = [
            f"  {key}.{name} = {_show(getattr(value, name))}"
            for name in _fields(value)
            if not name.startswith("_")
        ]
        return "\n".join(
            [
                f"{key}={choice}   ({type(value).__name__}: {' '.join((type(value).__doc__ or '').split())})",
                *names,
            ]
        )
    lines = [f"{key} = {_show(value)}"]
    derived = next((d for d in resolution.derived if d.key == key), None)
    written = _show(OmegaConf.select(composition.tree, key))
    if derived is not None:
        lines.append(f"  worked out    {derived.why}")
        lines.append(f"  because       {written} is written at {composition.origin(key)}")
    elif key in composition.applied:
        lines.append(f"  from          the command line: {composition.applied[key]}")
    else:
        lines.append(f"  from          {composition.origin(key)}")
    for option, _, _, field in walk_options():
        if option == key:
            lines.append(
                f"  meaning       {field.metadata.get('help', 'what is built for this section')}"
            )
            admitted = describe_bounds(field.metadata)
            lines += [f"  admits        {admitted}"] if admitted else []
            break
    lines += [f"  rule          {rule.id}: {rule.sentence}" for rule in RULES if key in rule.reads]
    return "\n".join(lines)


def _no_keys(keys: Sequence[str], composition: Composition) -> list[Problem]:
    library = composition.library
    faults = [
        (key, unknown(composition.tree, key, library))
        for key in keys
        if key not in library.groups()
    ]
    return [
        Problem(key=key, what=found.what, fix=found.fix)
        for key, found in faults
        if found is not None
    ]


def _fields(section: Section) -> list[str]:
    return [name for name in vars(section) if not name.startswith("_frozen")]


def _show(value: object) -> str:
    return (
        {None: "null", True: "true", False: "false"}.get(value, str(value))
        if value is None or isinstance(value, bool)
        else str(value)
    )


if __name__ == "__main__":
    sys.exit(main())
