"""The configs in a run directory: config.yaml, and config.N.yaml for each change with which the run
continued. The last config is in force, and changes.jsonl has all changed configs.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml

from forge.config.field import Section, thaw_value, types_of, variants_of
from forge.config.hydra_names import renamed
from forge.config.replicas.diloco import DiLoCo
from forge.config.replicas.fault_tolerance import FaultTolerance
from forge.config.rollouts.rollout import NoRollout, Rollout
from forge.config.root import Config
from forge.config.scaling.base import NoScaling, Scaling
from forge.config.targets import own, packages
from forge.config.targets.target import trusted
from forge.rundir.files import read_object, read_rows, read_sections, read_yaml, write_text
from forge.rundir.former_paths import TARGET, TYPE, current

CONFIG, OVERRIDES, ATTEMPTS = "config.yaml", "overrides.json", "attempts.jsonl"
CHANGES = "changes.jsonl"
BEFORE_CONFIG = "run.lock overrides.json derived.json warnings.json provenance.json git.diff"
NEWER: dict[Any, type[Section]] = {
    Rollout: NoRollout,
    Scaling: NoScaling,
    DiLoCo: DiLoCo,
    FaultTolerance: FaultTolerance,
}
"""Sections that earlier versions of forge had not, and what stands for their absence."""
EARLIER_REST = ["embedding", "position", "head", "router", "norm", "bias"]
REST = [
    *("embedding", "position", "value_embedding", "head", "router", "norm", "bias"),
    *("residual_scalar", "x0_scalar", "gate"),
]
"""Roles of the group `rest` in the presets of Muon, in an earlier version and today."""
S = TypeVar("S", bound=Section)


def is_run(path: Path) -> bool:
    """Whether a directory is a run; a directory with a config and a meta.json is a checkpoint."""
    return os.path.isfile(path / CONFIG) and not os.path.exists(path / "meta.json")


def is_new(path: Path) -> bool:
    """Whether a run may be made in a directory: absent, empty, or with a run only half made."""
    try:
        names = os.listdir(path) if os.path.exists(path) else []
    except OSError:
        return False
    return all(name in BEFORE_CONFIG.split() or name.startswith(".") for name in names)


def version(name: str) -> int:
    """1 for config.yaml, n for config.n.yaml, 0 for any other name."""
    match = re.fullmatch(r"config(?:\.(\d+))?\.yaml", name)
    return int(match[1] or 1) if match else 0


def numbered_file(name: str, n: int) -> str:
    stem, dot, suffix = name.partition(".")
    return name if n == 1 else f"{stem}.{n}{dot}{suffix}"


def newest(run_dir: Path) -> Path:
    """The config in force."""
    versions = [version(path.name) for path in run_dir.glob("config*.yaml")]
    return run_dir / numbered_file(CONFIG, max(versions, default=1))


def read_plain(run_dir: Path, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """The config in force as plain data, not to be changed. Raises ValueError with the file's name.

    known: sections by their text, when reading configs of many runs with mostly equal sections.
    """
    file = newest(run_dir)
    try:
        plain = current(read_yaml(file)) if known is None else read_sections(file, known, current)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
    if not isinstance(plain, dict):
        raise ValueError(f"{file} cannot be read: it is empty or damaged")
    return plain


def last_started(run_dir: Path) -> int:
    """The version of the config at the run's last start, the base for judging a change.

    0 when every start failed, the newest where no start is on record. A run with a save has
    started, even when the record is lost: then with the config of its newest checkpoint.
    """
    last = version(newest(run_dir).name)
    if not (run_dir / ATTEMPTS).exists():
        return last
    starts = [row for row in read_rows(run_dir / ATTEMPTS) if row.get("event") == "start"]
    recorded = min(max((version(str(row.get("config"))) for row in starts), default=0), last)
    return recorded if recorded == last else max(recorded, _last_saved(run_dir, last, recorded))


def _last_saved(run_dir: Path, last: int, recorded: int) -> int:
    """The version after `recorded` with which the newest checkpoint was saved.

    0 where there is no checkpoint; `last` where the checkpoint's config is of no version and no
    version is recorded.
    """
    checkpoint = _newest_checkpoint(run_dir)
    if checkpoint is None:
        return 0
    try:
        saved = _without_run(current(read_yaml(checkpoint / CONFIG)))
    except (OSError, ValueError):
        return 0 if recorded else last
    for n in range(last, recorded, -1):
        with suppress(OSError, ValueError):
            if _without_run(_read(run_dir / numbered_file(CONFIG, n))) == saved:
                return n
    return 0 if recorded else last


def _newest_checkpoint(run_dir: Path) -> Path | None:
    """The checkpoint of the last step in the folder of a run, complete or not.

    A checkpoint of another run, by its meta.json, does not count.
    """
    try:
        folder = run_dir / read_plain(run_dir)["checkpoint"]["dir"]
        own_id = read_object(run_dir / "provenance.json").get("run_id")
    except (OSError, ValueError, KeyError, TypeError):
        folder, own_id = run_dir / "checkpoints", None
    paths = [path for path in folder.glob("step_*") if re.fullmatch(r"step_\d+", path.name)]
    for path in sorted(paths, key=lambda path: int(path.name.removeprefix("step_")), reverse=True):
        try:
            saved_id = read_object(path / "meta.json").get("run_id")
        except (OSError, ValueError):
            saved_id = None
        if None in (own_id, saved_id) or own_id == saved_id:
            return path
    return None


def _without_run(plain: Any) -> Any:
    """A config without the section `run`, changed when a run is moved."""
    if not isinstance(plain, dict):
        raise ValueError("it is empty or damaged")
    return {key: value for key, value in plain.items() if key != "run"}


def to_plain(section: Section) -> dict[str, Any]:
    """Nested dicts, lists and scalars; `_type_` names the schema of a variant section.

    A schema's own target in forge is not written: the schema has the target.
    """
    hints = types_of(type(section))
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if field.name == TARGET and section.has_own_target:
            continue
        if isinstance(value, Section):
            kind = type(value)
            tag = {TYPE: kind.type_name()}
            plain[field.name] = (tag if kind is not hints[field.name] else {}) | to_plain(value)
        else:
            plain[field.name] = thaw_value(value)
    return plain


def from_plain(schema: type[S], plain: dict[str, Any], *, trust: tuple[str, ...] = ()) -> S:
    """The section written by `to_plain`, not yet frozen.

    An option newer than the file has its default, and a section newer than it is off. Raises
    ValueError for a class not allowed as the section.
    """
    hints = types_of(schema)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        hint = hints[field.name]
        if field.name not in plain:
            if hint in NEWER:
                values[field.name] = NEWER[hint]()
            continue
        value = plain[field.name]
        if isinstance(value, dict) and isinstance(hint, type) and issubclass(hint, Section):
            kind = _kind(value, hint, trust)
            value = from_plain(kind, value, trust=trust)
        values[field.name] = value
    return schema(**values)


def save_config(config: Config, path: Path) -> None:
    write_text(path, yaml.safe_dump(to_plain(config), sort_keys=False, allow_unicode=True))


def _with_new_roles(plain: dict[str, Any]) -> dict[str, Any]:
    """The config with the roles that presets have since gained: no parameter of it has one."""
    optimizer = plain.get("optimizer")
    groups = optimizer.get("groups") if isinstance(optimizer, dict) else None
    for entry in groups.values() if isinstance(groups, dict) else ():
        if isinstance(entry, dict) and list(entry.get("roles") or ()) == EARLIER_REST:
            entry["roles"] = REST
    return plain


def load_config(path: Path, *, trust: Sequence[str]) -> Config:
    """Read a config written by `save_config`, frozen; run.trust is `trust`, whatever the file says.

    Raises ValueError for a class that is not allowed, and TypeError for a file without a config.
    """
    plain = _read(path)
    if not isinstance(plain, dict) or not isinstance(plain.get("run"), dict):
        raise TypeError("it is empty or damaged")
    plain["run"]["trust"] = list(trust)
    config = from_plain(Config, _with_new_roles(renamed(plain)), trust=tuple(trust))
    config.freeze()
    return config


def load_own(run_dir: Path) -> Config:
    """The config in force of a run made by the user, with the trust in the config."""
    file = newest(run_dir)
    return load_config(file, trust=stored_trust(file))


def stored_trust(file: Path) -> tuple[str, ...]:
    """The run.trust in a config file, valid only in a directory made by the user."""
    return tuple(_read(file)["run"]["trust"])


def _read(file: Path) -> Any:
    """A config as plain data, read from changes.jsonl if the file was removed.

    Raises OSError and ValueError.
    """
    try:
        return current(read_yaml(file))
    except FileNotFoundError:
        for row in reversed(read_rows(file.parent / CHANGES)):
            if row.get("version") == version(file.name) and "config" in row:
                return current(row["config"])
        raise


def _kind(plain: dict[str, Any], base: type[Section], trust: tuple[str, ...]) -> type[Section]:
    """The class of a section in a file where `base` is declared."""
    name = plain.get(TYPE)
    if not name:
        return base
    if name != own.TYPE:
        return _schema(str(name), base, trust)
    group = own.config_group(base)
    if not group or not isinstance(plain.get(own.TARGET), str):
        raise ValueError(f"no {base.__qualname__} is named by {own.TARGET} alone")
    return own.schema(group, {key: value for key, value in plain.items() if key != TYPE})


def _schema(name: str, base: type[Section], trust: tuple[str, ...]) -> type[Section]:
    """The class named by a file for a section: a schema of forge, or a class under a trusted
    prefix.
    """
    module, _, attribute = name.rpartition(".")
    if not module:
        schemas = {
            variant.schema_name: variant for variant in variants_of(base) if variant.of_forge()
        }
        schema = schemas.get(name)
    elif trusted(name, trust):
        try:
            schema = getattr(importlib.import_module(module), attribute, None)
        except Exception as error:
            message, hint = packages.explain_import(module, error)
            raise ValueError(f"its schema {name} cannot be used: {message} -> {hint}") from error
    elif name.startswith(("forge.", "torch.")):
        schema = None
    else:
        package = name.partition(".")[0]
        advice = f"run.trust=[{package}.]; where a run is only read --trust {package}., in Python "
        advice += f"trust=['{package}.']"
        raise ValueError(
            f"its schema {name} is not under a trusted prefix; if you trust it: {advice}"
        )
    if not (isinstance(schema, type) and issubclass(schema, base)):
        raise ValueError(f"the schema {name} is no {base.__module__}.{base.__qualname__}")
    return schema
