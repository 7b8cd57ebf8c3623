"""Which parameters an optimizer takes and with which options: `optimizer.groups`, and freezing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge.config.adapters.adapter import adapted, is_taken
from forge.config.field import variants_of
from forge.config.horizon import open_steps
from forge.config.model.decoder import Decoder
from forge.config.model.tensors import (
    BIAS,
    EMBEDDING,
    EXPERT,
    HEAD,
    MATRIX,
    NORM,
    POSITION,
    ROUTER,
    TensorSpec,
)
from forge.config.optimizers.base import Optimizer
from forge.config.optimizers.schedules import Scheduler
from forge.config.root import Config

ALL_ROLES = (EMBEDDING, POSITION, HEAD, MATRIX, EXPERT, ROUTER, NORM, BIAS)
TABLES, VECTORS = (EMBEDDING, POSITION), (NORM, BIAS)

KIND, SCHEDULER = "optimizer", "scheduler"  # what an entry says beside options of that kind
ROLES, PARAMETERS = "roles", "parameters"
SELECTION = (ROLES, PARAMETERS)
OF_RUN = ("_target_", "groups", "trainable_parameters", "freeze_parameters")
OWN = ""  # the name of the group of all that no entry names
REST = "rest"  # the entry of optimizer=muon for what it does not take: any other comes before it

Named = tuple[str, str]
"""A parameter: its name and its role."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Parameters with the same options. name: of its entry; OWN = optimizer itself. explicit:
    whether its entry says the weight decay, which is of all its parameters then.
    """

    name: str
    section: Optimizer
    scheduler: Scheduler
    explicit: bool = False

    @property
    def kind(self) -> str:
        """What updates it, as it is chosen."""
        return self.section.schema_name or self.section._target_

    def decays(self, parameter: Named) -> bool:
        """Whether weight decay is of this parameter."""
        (name, role), section = parameter, self.section
        if not section.weight_decay or found(section.no_decay_parameters, name):
            return False
        if self.explicit:
            return True
        return role not in VECTORS and (role not in TABLES or section.decay_embeddings)


def groups(config: Config) -> dict[str, Group]:
    """Every group by name, optimizer itself first."""
    whole, scheduler = config.optimizer, config.scheduler
    made = {OWN: Group(name=OWN, section=whole, scheduler=scheduler)}
    for name, entry in whole.groups.items():
        own = entry.get(SCHEDULER)
        horizon = config.train.max_steps
        made[name] = Group(
            name=name,
            section=section_of(whole, entry),
            scheduler=scheduler if own is None else scheduler_of(scheduler, own, horizon),
            explicit="weight_decay" in entry,
        )
    return made


def members(config: Config, parameters: Iterable[Named]) -> dict[str, str | None]:
    """The name of the group of each parameter; None = it is frozen.

    An entry that names a parameter comes before one that names its role, and any before REST.
    """
    optimizer, is_trained = config.optimizer, trained(config)
    return {
        name: group_of(optimizer, name, role) if is_trained(name) else None
        for name, role in parameters
    }


def trained(config: Config) -> Callable[[str], bool]:
    """Whether a parameter is, by its name: what an adapter and patterns of the optimizer leave."""
    optimizer, adapter = config.optimizer, config.adapter
    only, never = optimizer.trainable_parameters, optimizer.freeze_parameters
    base: set[str] = set()
    if adapter.active and isinstance(config.model, Decoder):
        base = {one.name for one in config.model.tensors() if not adapter.trains(one)}

    def is_trained(name: str) -> bool:
        if name in base or is_taken(name):
            return False
        return (not only or found(only, name)) and not found(never, name)

    return is_trained


def some_frozen(config: Config) -> bool:
    """Whether some parameters may not be trained."""
    optimizer = config.optimizer
    patterns = optimizer.trainable_parameters or optimizer.freeze_parameters
    return bool(patterns) or config.adapter.active


def parameters_of(config: Config) -> list[Named]:
    """All parameters of a decoder, those of its adapters too."""
    assert isinstance(config.model, Decoder)
    return [(one.name, one.role) for one in adapted(config.model, config.adapter)]


def found(patterns: Sequence[str], name: str) -> bool:
    """Whether one of the regular expressions is in the name."""
    return any(re.search(pattern, name) for pattern in patterns)


def kinds(base: type[Any]) -> dict[str, type[Any]]:
    """forge's own optimizers, or schedules, by name: a worker knows no others by name."""
    found = (schema for schema in variants_of(base) if schema.__module__.startswith("forge."))
    return {schema.schema_name: schema for schema in found}


def section_of(whole: Optimizer, entry: Mapping[str, Any]) -> Optimizer:
    """The section of an entry: the run's, where it is of the same kind, else that kind's with what
    all kinds have from the run's; with the options of the entry.
    """
    return _read_as(whole, entry, KIND, Optimizer, leave=(*SELECTION, SCHEDULER))


def scheduler_of(whole: Scheduler, entry: Mapping[str, Any], horizon: int) -> Scheduler:
    """The same of a schedule. horizon: updates in the run, from which open steps follow."""
    made = _read_as(whole, entry, SCHEDULER, Scheduler)
    made.thaw()
    for phase in ("warmup", "decay"):
        if entry.get(f"{phase}_ratio") is not None and f"{phase}_steps" not in entry:
            setattr(made, f"{phase}_steps", None)
    follows = {"warmup_steps", "warmup_ratio", "decay_ratio"} & entry.keys()
    for name in ("decay_steps", "stable_steps") if follows else ():
        if hasattr(made, name) and name not in entry:
            setattr(made, name, None)
    for key, value, _ in open_steps(made, horizon):
        setattr(made, key.rpartition(".")[2], value)
    return made


def tensors_in(config: Config) -> dict[str | None, list[TensorSpec]]:
    """The parameters of each group that has any, frozen ones under None; {} if not known."""
    if not isinstance(config.model, Decoder):
        return {}
    tensors = adapted(config.model, config.adapter)
    member = members(config, ((one.name, one.role) for one in tensors))
    made: dict[str | None, list[TensorSpec]] = {}
    for one in tensors:
        made.setdefault(member[one.name], []).append(one)
    return made


def group_of(optimizer: Optimizer, name: str, role: str) -> str:
    """The name of the group of a parameter that is trained."""
    entries = sorted(optimizer.groups.items(), key=lambda entry: entry[0] == REST)
    by_name = (key for key, e in entries if found(e.get(PARAMETERS, ()), name))
    by_role = (key for key, e in entries if role in e.get(ROLES, ()))
    return next(by_name, None) or next(by_role, OWN)


def _read_as(
    whole: Any, entry: Mapping[str, Any], kind: str, base: type[Any], leave: Iterable[str] = ()
) -> Any:
    schema = kinds(base)[entry[kind]] if kind in entry else type(whole)
    same = whole.clone()
    if schema is not type(whole):
        same = schema(**{name: getattr(whole, name) for name in _shared(type(whole), schema)})
    own = {name: value for name, value in entry.items() if name not in (kind, *leave)}
    return dataclasses.replace(same, **own)


def _shared(one: type[Any], other: type[Any]) -> Iterator[str]:
    """Options that two kinds have from a class above both."""
    above = next(kind for kind in one.__mro__ if issubclass(other, kind))
    yield from (field.name for field in dataclasses.fields(above) if field.name != "_target_")
