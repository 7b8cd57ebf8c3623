"""What a run directory does not decide by itself, since it reaches beyond the run: code, commands
and places; who types a command does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from forge.config.hydra_names import translate

SEARCH, TRUST = "hydra.searchpath", "run.trust"
COMMANDS = ("launch.setup", "launch.srun_args", "launch.sbatch")
FOLDERS = ("checkpoint.dir", "metrics.tensorboard_dir", "profiling.trace_dir")
PLAIN = re.compile(
    r"\$\{[\w.\[\]-]*\}"
)  # it refers to another option; what else there is in ${} may read the environment


def consent(overrides: Sequence[str]) -> list[str]:
    """Those that let code of others run: run.trust, and packages on the search path."""
    return [text for text in overrides if _lets_code_run(text)]


def without_consent(overrides: Sequence[str]) -> list[str]:
    """The rest."""
    return [text for text in overrides if not _lets_code_run(text)]


def reaching(config: Mapping[str, Any]) -> list[str]:
    """The options of a config, given as plain data, that are commands for its job, or folders
    outside of the run directory.
    """
    commands = [key for key in COMMANDS if _at(config, key)]
    return commands + [key for key in FOLDERS if leads_out(str(_at(config, key) or ""))]


def looking_up(config: Mapping[str, Any], above: str = "") -> list[str]:
    """The options of a composed config, given as plain data with its interpolations, that may have
    a value of the environment.
    """
    found = []
    for name, value in config.items():
        key = f"{above}{name}"
        found += (
            looking_up(value, f"{key}.")
            if isinstance(value, Mapping)
            else [key]
            if looks_up(str(value))
            else []
        )
    return found


def looks_up(text: str) -> bool:
    """Whether a text has more than a reference to another option, such as `${oc.env:NAME}`."""
    while (inner := PLAIN.sub("", text)) != text:
        text = inner
    return "${" in text


def behind(options: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The overrides that may have set these options: their own, those of all below one, and
    directories that have files which do.
    """
    keys = tuple(f"{key}." for key in (SEARCH, *options))
    said = [(text, f"{key_of(text)}.") for text in overrides if options]
    return [
        text
        for text, key in said
        if key.startswith(keys) or (looks_up(text) and any(one.startswith(key) for one in keys))
    ]


def key_of(text: str) -> str:
    """The option that an override sets, as forge spells it, whatever it says after an @."""
    return translate(text).lstrip("+~").partition("=")[0].partition("@")[0]


def leads_out(folder: str) -> bool:
    """Whether a folder, said from a directory, is not in it."""
    return os.path.isabs(folder) or ".." in folder.split("/")


def _lets_code_run(text: str) -> bool:
    """A package on the search path is imported; how it is quoted or escaped is Hydra's, and no matter."""
    key = key_of(text)
    return key == TRUST or (key == SEARCH and "://" in text.replace("\\", ""))


def _at(config: Mapping[str, Any], key: str) -> Any:
    section, _, name = key.partition(".")
    inside = config.get(section)
    return inside.get(name) if isinstance(inside, Mapping) else None
