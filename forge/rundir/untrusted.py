"""Limits of a run directory, as somebody else may have made the directory: no code or commands,
no writes elsewhere, no reads of the environment, unless the user who types a command decides so.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from forge.config.hydra_names import translate
from forge.config.problems import ConfigError, Problem

SEARCH, TRUST = "hydra.searchpath", "run.trust"
PROJECT = "FORGE_PROJECT"  # trust and overrides of the user's project, for messages of workers
HERE = "local"  # the schema of the launcher that starts ranks as this command's own processes
LAUNCH = "launch"
COMMANDS = ("launch.setup", "launch.srun_args", "launch.sbatch", "run.on_end")
STORE = "checkpoint.remote"
FOLDERS = ("checkpoint.dir", "metrics.tensorboard_dir", "profiling.trace_dir")
# A reference to another option; anything else in ${} may read the environment.
REFERENCE = re.compile(r"\$\{[\w.\[\]-]*\}")
# W&B makes this link for each of its runs, and nothing is written through it.
WANDB_LINK = "wandb/*/logs/debug-core.log"
OTHER_DISK = (
    "checkpoints go to another disk by checkpoint.dir=/scratch/mine, "
    "for this run with run.allow_change=[checkpoint.dir]"
)


def note_project(trust: Sequence[str], overrides: Sequence[str]) -> None:
    """Note for this process and its workers the permissions of the user's project.

    The permissions are its trusted prefixes, and its overrides, placed before the typed overrides.
    """
    os.environ[PROJECT] = json.dumps({"trust": list(trust), "overrides": list(overrides)})


def of_project(name: str) -> list[str]:
    """The noted trust or overrides of the project, not typed again in the project."""
    try:
        return [str(text) for text in json.loads(os.environ.get(PROJECT, "{}"))[name]]
    except (ValueError, KeyError, TypeError):
        return []


def code_overrides(overrides: Sequence[str]) -> list[str]:
    """The overrides that let code outside of forge run: run.trust, and packages on the search
    path.
    """
    return [text for text in overrides if _lets_code_run(text)]


def other_overrides(overrides: Sequence[str]) -> list[str]:
    """The overrides that let no code outside of forge run."""
    return [text for text in overrides if not _lets_code_run(text)]


def reaching_out(config: Mapping[str, Any]) -> list[str]:
    """The options of a config, as plain data, with effects outside of the run directory.

    A job elsewhere and its commands, folders outside of the run directory, a store to copy the run
    to, and addresses for a tracker to send to or serve.
    """
    commands = [LAUNCH] if _at(config, f"{LAUNCH}._type_") not in (None, HERE) else []
    commands += [key for key in (*COMMANDS, STORE) if _at(config, key)]
    folders = [key for key in FOLDERS if leads_out(str(_at(config, key) or ""))]
    return [*commands, *folders, *_tracker_options(config)]


def _tracker_options(config: Mapping[str, Any]) -> Iterator[str]:
    trackers = config.get("trackers")
    for name, entry in trackers.items() if isinstance(trackers, Mapping) else ():
        for option, value in entry.items() if isinstance(entry, Mapping) else ():
            outside = isinstance(value, str) and (leads_out(value) or ":" in value)
            if outside or (option == "port" and value):
                yield f"trackers.{name}.{option}"


def environment_options(config: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The options of a composed config with values possibly from the environment.

    config: plain data with its interpolations.
    """
    options = []
    for name, value in config.items():
        if isinstance(value, Mapping):
            options += environment_options(value, f"{prefix}{name}.")
        elif reads_environment(str(value)):
            options.append(f"{prefix}{name}")
    return options


def reads_environment(text: str) -> bool:
    """Whether a text has more than references to other options, such as `${oc.env:NAME}`."""
    while (inner := REFERENCE.sub("", text)) != text:
        text = inner
    return "${" in text


def overrides_behind(options: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The overrides possibly after these options: of the option itself, above or below the option,
    and of the search path.
    """
    keys = tuple(f"{key}." for key in (SEARCH, *options)) if options else ()
    responsible = []
    for text in overrides:
        key = f"{option_of(text)}."
        above = reads_environment(text) and any(option.startswith(key) for option in keys)
        if key.startswith(keys) or above:
            responsible.append(text)
    return responsible


def option_of(text: str) -> str:
    """The option set by an override, by forge's name, without the text after an @."""
    return translate(text).lstrip("+~").partition("=")[0].partition("@")[0]


def leads_out(folder: str) -> bool:
    """Whether a folder, given relative to a directory, is outside of the directory."""
    return os.path.isabs(folder) or ".." in folder.split("/")


def check_links(folder: Path, apart: Collection[str] = ()) -> None:
    """Raise ConfigError when symbolic links below a directory lead out.

    Forge would write over other files. apart: inner folders of directories checked separately.
    """
    links = sorted(str(path) for path in _links_out(folder, apart))
    if links:
        shown = ", ".join(f"{path} -> {os.path.realpath(path)}" for path in links)
        which = "these links lead" if len(links) > 1 else "this link leads"
        message = f"{which} out of it, and nothing is written through one: {shown}."
        hint = f"rm {shlex.join(links)}; {OTHER_DISK}"
        raise ConfigError([Problem(key=str(folder), what=message, fix=hint)])


def _links_out(folder: Path, apart: Collection[str]) -> Iterator[Path]:
    root = os.path.realpath(folder)
    for directory, directories, files in os.walk(root):
        inside = os.path.relpath(directory, root)
        for name in (*directories, *files):
            path = Path(directory, name)
            allowed = not path.is_symlink() or PurePath(inside, name).match(WANDB_LINK)
            if not allowed and not Path(os.path.realpath(path)).is_relative_to(root):
                yield folder / path.relative_to(root)
        directories[:] = directories if inside not in apart else []


def _lets_code_run(text: str) -> bool:
    """A package on the search path is imported; Hydra takes `pkg\\://` for `pkg://`."""
    key = option_of(text)
    return key == TRUST or (key == SEARCH and "://" in text.replace("\\", ""))


def _at(config: Mapping[str, Any], key: str) -> Any:
    section, _, name = key.partition(".")
    inside = config.get(section)
    return inside.get(name) if isinstance(inside, Mapping) else None
