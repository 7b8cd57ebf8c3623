"""`${now:PATTERN}` and `${hydra:KEY}`, as in an application of Hydra, in files and overrides."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import hydra
import omegaconf
from omegaconf import Container, DictConfig, OmegaConf

FACTS = "_forge_facts"
"""Where a tree keeps what `${hydra:...}` reads; no value of the config."""


def hydra_section(
    overrides: Sequence[str], choices: Mapping[str, Any], config_name: str
) -> dict[str, Any]:
    """forge's part of the section `hydra` of Hydra's applications, under the same keys."""
    task = [text for text in overrides if not text.startswith("hydra")]
    return {
        "runtime": {
            "version": hydra.__version__,
            "cwd": os.getcwd(),
            "choices": dict(choices),
        },
        "job": {
            "name": "train",
            "config_name": config_name,
            "override_dirname": ",".join(sorted(text.lstrip("+~") for text in task)),
        },
        "overrides": {"task": task, "hydra": [text for text in overrides if text not in task]},
    }


def attach(tree: DictConfig, known: dict[str, Any]) -> None:
    """Let `${hydra:...}` in a tree read these facts."""
    vars(tree)[FACTS] = known  # apart from the values, kept elsewhere by OmegaConf


def register_resolvers() -> None:
    """Register the resolvers with OmegaConf; an unknown key is refused in OmegaConf's words."""
    old = omegaconf.__version__.startswith("2.3.")  # where register_resolver is another function
    add = getattr(OmegaConf, "register_new_resolver" if old else "register_resolver")
    if not OmegaConf.has_resolver("now"):
        add("now", _now, use_cache=True)
    add("hydra", _of_hydra, replace=True)


def _now(pattern: str) -> str:
    return time.strftime(pattern)


def _of_hydra(key: str, *, _root_: Container) -> Any:
    value: Any = _root_.__dict__.get(FACTS)
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None:
        keys = "runtime.cwd, runtime.version, runtime.choices.GROUP, job.name, "
        last_keys = "job.override_dirname, overrides.task"
        raise ValueError(f"there is no hydra:{key} here, but {keys}{last_keys}")
    return value
