"""Groups of an optimizer's parameters and their options: `optimizer.groups`, and freezing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge.config.adapters.adapter import adapted, is_taken
from forge.config.field import variants_of
from forge.config.horizon import open_steps
from forge.config.model.tensors import (
    BIAS,
    EMBEDDING,
    EXPERT,
    GATE,
    HEAD,
    MATRIX,
    NORM,
    POSITION,
    RESIDUAL_SCALAR,
    ROUTER,
    VALUE_EMBEDDING,
    X0_SCALAR,
    TensorSpec,
)
from forge.config.optimizers.base import Optimizer
from forge.config.optimizers.schedules import Scheduler
from forge.config.root import Config

SCALARS = (RESIDUAL_SCALAR, X0_SCALAR, GATE)
TABLES, VECTORS = (EMBEDDING, POSITION, VALUE_EMBEDDING), (NORM, BIAS, *SCALARS)
ALL_ROLES = (*TABLES, HEAD, MATRIX, EXPERT, ROUTER, *VECTORS)

KIND, SCHEDULER = "optimizer", "scheduler"  # keys of an entry beside options of a kind
ROLES, PARAMETERS = "roles", "parameters"
SELECTION = (ROLES, PARAMETERS)
OF_RUN = ("_target_", "groups", "trainable_parameters", "freeze_parameters")
OWN = ""  # the group of parameters without an entry
REST = "rest"  # entry of optimizer=muon for the parameters Muon cannot take; other entries go first

Named = tuple[str, str]
"""A parameter: its name and its role."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Parameters with the same options. name: of the group's entry; OWN = optimizer itself.
    explicit: whether the entry states the weight decay, which then applies to all parameters of the
    group.
    """

    name: str
    section: Optimizer
    scheduler: Scheduler
    explicit: bool = False

    @property
    def kind(self) -> str:
        """The optimizer's option name, or its target."""
        return self.section.schema_name or self.section._target_

    def decays(self, parameter: Named) -> bool:
        """Whether weight decay applies to this parameter."""
        (name, role), section = parameter, self.section
        if not section.weight_decay or found(section.no_decay_parameters, name):
            return False
        if self.explicit:
            return True
        return role not in VECTORS and (role not in TABLES or section.decay_embeddings)


def groups(config: Config) -> dict[str, Group]:
    """Every group by name, optimizer itself first."""
    optimizer, scheduler = config.optimizer, config.scheduler
    by_name = {OWN: Group(name=OWN, section=optimizer, scheduler=scheduler)}
    for name, entry in optimizer.groups.items():
        schedule = entry.get(SCHEDULER)
        horizon = config.train.max_steps
        by_name[name] = Group(
            name=name,
            section=_entry_section(optimizer, entry),
            scheduler=scheduler if schedule is None else scheduler_of(scheduler, schedule, horizon),
            explicit="weight_decay" in entry,
        )
    return by_name


def members(config: Config, parameters: Iterable[Named]) -> dict[str, str | None]:
    """The name of each parameter's group; None = frozen.

    An entry that names a parameter comes before an entry that names its role, and any before REST.
    """
    optimizer, is_trained = config.optimizer, trained(config)
    return {
        name: group_name(optimizer, name, role) if is_trained(name) else None
        for name, role in parameters
    }


def trained(config: Config) -> Callable[[str], bool]:
    """Make a predicate of trained parameters by name: those an adapter and patterns of the
    optimizer leave.
    """
    optimizer, adapter = config.optimizer, config.adapter
    only, never = optimizer.trainable_parameters, optimizer.freeze_parameters
    base: set[str] = set()
    if adapter.active:
        base = {tensor.name for tensor in config.model.tensors() if not adapter.trains(tensor)}

    def is_trained(name: str) -> bool:
        if name in base or is_taken(name):
            return False
        return (not only or found(only, name)) and not found(never, name)

    return is_trained


def some_frozen(config: Config) -> bool:
    """Whether some parameters may be frozen."""
    optimizer = config.optimizer
    patterns = optimizer.trainable_parameters or optimizer.freeze_parameters
    return bool(patterns) or config.adapter.active


def named_parameters(config: Config) -> list[Named]:
    """All known parameters of a model, its adapters and its objective."""
    return [(tensor.name, tensor.role) for tensor in _all_tensors(config)]


def _all_tensors(config: Config) -> list[TensorSpec]:
    model = config.model
    return [*adapted(model, config.adapter), *config.objective.added(model)]


def found(patterns: Sequence[str], name: str) -> bool:
    """Whether any of the regular expressions is found in a name."""
    return any(re.search(pattern, name) for pattern in patterns)


def kinds(base: type[Any]) -> dict[str, type[Any]]:
    """forge's own optimizers, or schedules, by name: a worker knows no others by name."""
    schemas = (schema for schema in variants_of(base) if schema.__module__.startswith("forge."))
    return {schema.schema_name: schema for schema in schemas}


def _entry_section(section: Optimizer, entry: Mapping[str, Any]) -> Optimizer:
    """Make the section of an entry with its options: from the run's section where the kind is the
    same, else a section of the entry's kind with the run's values of shared options.
    """
    return _read_as(section, entry, KIND, Optimizer, leave=(*SELECTION, SCHEDULER))


def scheduler_of(section: Scheduler, entry: Mapping[str, Any], horizon: int) -> Scheduler:
    """Make the schedule of an entry like `_entry_section`. horizon: updates in the run, for open
    steps.
    """
    schedule = _read_as(section, entry, SCHEDULER, Scheduler)
    schedule.thaw()
    for phase in ("warmup", "decay"):
        if entry.get(f"{phase}_ratio") is not None and f"{phase}_steps" not in entry:
            setattr(schedule, f"{phase}_steps", None)
    follows = {"warmup_steps", "warmup_ratio", "decay_ratio"} & entry.keys()
    for name in ("decay_steps", "stable_steps") if follows else ():
        if hasattr(schedule, name) and name not in entry:
            setattr(schedule, name, None)
    for key, value, _ in open_steps(schedule, horizon):
        setattr(schedule, key.rpartition(".")[2], value)
    return schedule


def tensors_in(config: Config) -> dict[str | None, list[TensorSpec]]:
    """The parameters of each non-empty group, frozen ones under None; {} if unknown."""
    if not config.model.has_blocks:
        return {}
    tensors = _all_tensors(config)
    member = members(config, ((tensor.name, tensor.role) for tensor in tensors))
    by_group: dict[str | None, list[TensorSpec]] = {}
    for tensor in tensors:
        by_group.setdefault(member[tensor.name], []).append(tensor)
    return by_group


def group_name(optimizer: Optimizer, name: str, role: str) -> str:
    """The name of a trained parameter's group."""
    entries = sorted(optimizer.groups.items(), key=lambda entry: entry[0] == REST)
    by_name = (key for key, e in entries if found(e.get(PARAMETERS, ()), name))
    by_role = (key for key, e in entries if role in e.get(ROLES, ()))
    return next(by_name, None) or next(by_role, OWN)


def _read_as(
    section: Any,
    entry: Mapping[str, Any],
    kind: str,
    base: type[Any],
    leave: Iterable[str] = (),
) -> Any:
    schema = kinds(base)[entry[kind]] if kind in entry else type(section)
    result = section.clone()
    if schema is not type(section):
        result = schema(**{name: getattr(section, name) for name in _shared(type(section), schema)})
    options = {name: value for name, value in entry.items() if name not in (kind, *leave)}
    return dataclasses.replace(result, **options)


def _shared(first: type[Any], second: type[Any]) -> Iterator[str]:
    """Yield the options two kinds share by a class above both."""
    above = next(kind for kind in first.__mro__ if issubclass(second, kind))
    yield from (field.name for field in dataclasses.fields(above) if field.name != "_target_")
