"""Help texts, made from the groups, their YAML comments and the schema."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from collections.abc import Iterator, Sequence

from omegaconf import Container, DictConfig, OmegaConf

from forge.compose.composition import Composition, compose
from forge.compose.engine import Library
from forge.compose.tree import node_at
from forge.compose.unknown import Keys
from forge.config import schemas
from forge.config.bounds import describe_bounds
from forge.config.field import Section, default_of
from forge.config.problems import ConfigError, Problem, closest, did_you_mean, shown
from forge.config.targets.own import Own


def help_page(
    command: str,
    arguments: argparse.ArgumentParser,
    words: Sequence[str],
    config_dirs: Sequence[str] = (),
    *,
    examples: str,
) -> str:
    """The help of a verb; with names of groups, the groups' options, with values by the choices and
    values among the words. examples: uses of the verb, at the end. Raises ConfigError for an
    unknown group.
    """
    topics = [word for word in words if not word.startswith(("+", "~")) and "=" not in word]
    composition = compose([word for word in words if word not in topics], config_dirs=config_dirs)
    groups = composition.library.groups()
    if unknown := [_unknown(topic, composition) for topic in topics if topic not in groups]:
        raise ConfigError([*composition.problems, *unknown])
    if topics:
        if composition.problems:
            raise ConfigError(composition.problems)
        return "\n\n".join(group_page(composition, topic) for topic in topics)
    listed = [f"  {group:<12} {', '.join(composition.library.options(group))}" for group in groups]
    root = [f"  {field.name:<12} {_describe_option(field)}" for field in schemas.root_options()]
    tip = f"  python -m {command.split()[0]} --help GROUP shows what one of them offers"
    flags = [
        f"  {', '.join(action.option_strings):<24} {action.help}"
        for action in arguments._actions
        if action.option_strings
    ]
    head = [f"python -m {command} [group=option] [key=value] ...", "", arguments.description or ""]
    lines = [*head, "", "groups", *listed, "", "at the root", *root, "", tip, "", "flags", *flags]
    return "\n".join([*lines, "", examples])


def _unknown(topic: str, composition: Composition) -> Problem:
    """The problem of a word after --help without a group."""
    groups = composition.library.groups()
    if Keys(composition.tree, composition.library).unknown(topic) is None:
        hint = f"python -m forge.explain {topic}, or --help {topic.partition('.')[0]}"
        return Problem(f"--help {topic}", f"{topic} is an option, and no group.", hint)
    meant = [f"--help {group}" for group in closest(topic, groups)]
    hint = did_you_mean(meant) or f"its groups: {', '.join(groups)}"
    return Problem(f"--help {topic}", f"there is no group '{topic}'.", hint)


def group_page(composition: Composition, group: str) -> str:
    """The options of a group with the first line of each file, the values of its section with their
    origins, and the options of the other variants.
    """
    library, chosen = composition.library, composition.choices.get(group)
    lines = [f"{group}   (now {group}={chosen})" if chosen else group]
    for option in library.options(group):
        lines.append(f"  {group}={option:<14} {option_summary(library, group, option)}")
    section = node_at(composition.tree, group)
    now = OmegaConf.get_type(section) if isinstance(section, DictConfig) else None
    variants = sorted(titles(group), key=lambda title: title[1] is not now)
    if isinstance(now, type) and issubclass(now, Own):
        about = (inspect.getdoc(now) or "").splitlines()[0]
        variants.insert(0, (f"{group}={chosen}", now, about))
    shared = {key for _, schema, _ in variants[:1] for key, _ in options_below(schema)}
    for choice, schema, first_line in variants:
        head = f"  {schema.__name__}{f' ({choice})' if choice else ''}: {first_line}"
        if schema is now:
            values = [
                _in_force(composition, f"{group}.{key}", f) for key, f in options_below(schema)
            ]
            lines += ["", f"{head} Now, and from where:", *values]
        else:
            own_options = [(key, f) for key, f in options_below(schema) if key not in shared]
            lines += ["", f"{head} Its own, with their defaults:"] if own_options else ["", head]
            lines += [f"    {group}.{key:<28} {_describe_option(f)}" for key, f in own_options]
    return "\n".join(lines)


def _in_force(composition: Composition, key: str, field: dataclasses.Field) -> str:
    """An option's value, meaning, and origin of the value."""
    node = node_at(composition.tree, key)
    if node is None:
        return f"    {key:<34} {_describe_option(field)}"
    value = OmegaConf.to_container(node) if isinstance(node, Container) else node._value()
    meaning, admitted = field.metadata.get("help", ""), describe_bounds(field.metadata)
    bounds = f" [{admitted}]" if admitted else ""
    origin = composition.written_at(key)
    return (
        f"    {key:<34} {yaml_value(value)}   {meaning}{bounds}{f'   ({origin})' if origin else ''}"
    )


def titles(group: str) -> Iterator[tuple[str, type[Section], str]]:
    """The schemas of a group, each with its group choice, where a group has several schemas, and
    the first line of its docstring.
    """
    if group in schemas.sections():
        for name, schema in schemas.variants(group).items():
            choice = f"{group}={name}" if group in schemas.SCHEMAS else ""
            yield choice, schema, (inspect.getdoc(schema) or "").splitlines()[0]


def options_below(schema: type[Section]) -> Iterator[tuple[str, dataclasses.Field]]:
    """The user's options of a section, by key below the section."""
    options = schemas.options_of(schema)
    return ((key, f) for key, _, f in options if "._" not in f".{key}")


def option_summary(library: Library, group: str, option: str) -> str:
    """The summary of an option: the first comment of its file."""
    file = library.file_of(f"{group}/{option}")
    lines = file.read_text(encoding="utf-8").splitlines() if file else []
    comments = (line for line in lines if line.startswith("#") and "@package" not in line)
    return next(comments, "").lstrip("# ")


def _describe_option(field: dataclasses.Field) -> str:
    """Default, meaning and bounds of an option in a single line."""
    admitted = describe_bounds(field.metadata)
    meaning = f"{yaml_value(default_of(field))}   {field.metadata.get('help', '')}"
    return f"{meaning} [{admitted}]" if admitted else meaning


def yaml_value(value: object) -> str:
    """A default value in YAML."""
    return str(list(value)) if isinstance(value, tuple | list) else shown(value)
