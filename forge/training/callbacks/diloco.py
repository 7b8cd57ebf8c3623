"""Replicas that train apart: their outer step, and their part of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Shard

from forge.config.replicas.diloco import DiLoCo
from forge.optim.elementwise import zeros_of
from forge.optim.outer import ReplicaMeans, outer_step
from forge.rundir.checkpoints import WEIGHTS, CheckpointError
from forge.tensors.local import cut_dim, local
from forge.training.callback import Callback
from forge.training.checkpoints import tensor_storage
from forge.training.checkpoints.checkpoint import Tensors, optimizer_tensors, prefixed
from forge.training.checkpoints.damage import share_damage
from forge.training.checkpoints.restore import restore_optimizer
from forge.training.checkpoints.room import allocate_for

if TYPE_CHECKING:
    from forge.parallel.mesh import Mesh
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput

APART = "replicas"
"""Prefix of tensors of a checkpoint with a first dimension of replicas."""


@dataclass(kw_only=True)
class Sent:
    """Weights that are being summed over replicas, and the step that waits for the result."""

    names: list[str]
    due: int
    means: ReplicaMeans


class OuterStep(Callback):
    """Joins the replicas of parallel.dp_replicate every `diloco.sync_period` steps.

    Each replica trains on its part of the global batch alone. The mean of the replicas' weights is
    the outer optimizer's gradient, see `outer_step`; its result, the common weights, are what is
    evaluated, saved as the model, and exported. With `diloco.fragments` a part of the blocks is
    joined at a time; with `diloco.overlap_steps` the sum runs beside further steps. After the last
    step of the run all parts are joined.

    A checkpoint has the common weights as `model/`, the velocity by parameter, and as `replicas/`
    [replicas, ...] each replica's own weights and optimizer state. Stands before all callbacks
    that evaluate or save.
    """

    reads_gradients = False

    def __init__(self, session: Session) -> None:
        self.section: DiLoCo = session.config.diloco
        self.ranks, self.model, self.optimizer = session.ranks, session.model, session.optimizer
        self.parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.common: Tensors = {}
        self.velocity: Tensors = {}
        self.sent: list[Sent] = []
        self.is_joined = True
        if self.section.outer_momentum:
            self.velocity = {name: zeros_of(p) for name, p in self.parameters.items()}

    @classmethod
    def wanted(cls, session: Session) -> bool:
        return session.config.diloco.enabled

    def on_start(self, loop: Loop) -> None:
        if not self.common:
            self._take_common()

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        step, section = loop.state.step, self.section
        is_last = step >= loop.config.train.max_steps
        self.is_joined = False
        for sent in [sent for sent in self.sent if is_last or sent.due <= step]:
            self.sent.remove(sent)
            self._join(sent, mixing=section.mixing)
        if is_last:
            self._join(self._send(list(self.parameters), step), mixing=0.0)
        elif (part := section.part_at(step)) is not None:
            names = [name for name in self.parameters if section.part_of(name) == part]
            self.sent.append(self._send(names, step + section.overlap_steps))
            if not section.overlap_steps:
                self._join(self.sent.pop(), mixing=section.mixing)

    def _send(self, names: list[str], due: int) -> Sent:
        """Begin to sum the weights of some parameters over replicas. due: step to wait for it."""
        several = self.ranks.replicas[1] > 1
        group = self._mesh.dense.get_group("dp_replicate") if several else None
        means = ReplicaMeans([local(self.parameters[name]) for name in names], group)
        return Sent(names=names, due=due, means=means)

    @torch.no_grad()
    def _join(self, sent: Sent, *, mixing: float) -> None:
        """Make the outer step of some parameters, and give the result to this replica."""
        own = [local(self.parameters[name]) for name in sent.names]
        common = [local(self.common[name]) for name in sent.names]
        velocity = [local(self.velocity[name]) for name in sent.names if self.velocity]
        self.model.train(self.model.training)  # frees weights that are still gathered
        outer_step(
            common,
            velocity,
            sent.means.result(),
            lr=self.section.outer_lr,
            momentum=self.section.outer_momentum,
        )
        for weight, result in zip(own, common, strict=True):
            weight.lerp_(result, 1.0 - mixing)
        self.is_joined = len(sent.names) == len(self.parameters) and not mixing

    @property
    def _mesh(self) -> Mesh:
        assert self.ranks.mesh is not None
        return self.ranks.mesh

    @torch.no_grad()
    def _take_common(self) -> None:
        """Take the model's weights for the common ones."""
        for name, parameter in self.parameters.items():
            self.common[name] = zeros_of(parameter)
            local(self.common[name]).copy_(local(parameter))

    @contextmanager
    def evaluated_weights(self, loop: Loop) -> Iterator[None]:
        """Inside, the model has the common weights; after, the replica's own, to the bit."""
        if self.is_joined:
            yield
            return
        self.model.train(self.model.training)  # frees weights that are still gathered
        own = {name: local(p).detach().clone() for name, p in self.parameters.items()}
        self._put(self.common)
        try:
            yield
        finally:
            self.model.train(self.model.training)
            self._put(own)

    @torch.no_grad()
    def _put(self, values: Tensors) -> None:
        for name, parameter in self.parameters.items():
            local(parameter).copy_(local(values[name]))

    def state_dict(self) -> dict[str, Any]:
        sent = [{"names": sent.names, "due": sent.due} for sent in self.sent]
        return {"is_joined": self.is_joined, "sent": sent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.is_joined = state["is_joined"]
        self.sent = [
            Sent(names=each["names"], due=each["due"], means=ReplicaMeans([], None))
            for each in state["sent"]
        ]

    def parameter_state(self) -> Tensors:
        return self.velocity

    @torch.no_grad()
    def load_parameter_state(self, state: Tensors) -> None:
        for name, velocity in self.velocity.items():
            local(velocity).copy_(local(state[name]))

    def saved_weights(self, weights: Tensors) -> Tensors:
        """The weights of a checkpoint, with the common ones for a replica's own."""
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        every = self.model.named_parameters(remove_duplicate=False)
        return weights | {n: self.common[names[id(p)]] for n, p in every if id(p) in names}

    def saved_state(self, optimizer: torch.optim.Optimizer) -> Tensors:
        """What each replica has of its own: the optimizer's state, and weights between joins."""
        tensors = prefixed("optimizer", optimizer_tensors(self.model, optimizer))
        if not self.is_joined:
            tensors |= prefixed("model", dict(self.parameters))
        for sent in self.sent:
            for name, mean in zip(sent.names, sent.means.result(), strict=True):
                tensors[f"sent/{name}"] = zeros_of(self.parameters[name])
                local(tensors[f"sent/{name}"]).copy_(mean)
        return prefixed(APART, {name: self._stacked(tensor) for name, tensor in tensors.items()})

    def on_restore(self, loop: Loop, checkpoint: Path) -> None:
        """Take the loaded weights for the common ones, and read what this replica has alone."""
        self._take_common()
        with share_damage(checkpoint, self.ranks.saver):
            stored = tensor_storage.stored_metadata(checkpoint / WEIGHTS)
            prefix = f"{APART}/"
            self._check(checkpoint, [e for n, e in stored.items() if n.startswith(prefix)])
            own = {
                name.removeprefix(prefix): self._room(name.removeprefix(prefix), about)
                for name, about in stored.items()
                if name.startswith(prefix)
            }
            targets = prefixed(APART, {name: self._stacked(room) for name, room in own.items()})
            tensor_storage.load_tensors(targets, checkpoint / WEIGHTS, group=self.ranks.saver)
        of_kind: dict[str, Tensors] = {"model": {}, "optimizer": {}, "sent": {}}
        for name, tensor in own.items():
            kind, _, rest = name.partition("/")
            of_kind[kind][rest] = tensor
        if own:  # else of a run without replicas: all begin with its state
            restore_optimizer(self.model, self.optimizer, of_kind["optimizer"])
        if of_kind["model"]:
            self._put(of_kind["model"])
        for sent in self.sent:
            parts = [local(of_kind["sent"][name]) for name in sent.names]
            sent.means = ReplicaMeans(parts, None)

    def _check(self, checkpoint: Path, stored: list[Any]) -> None:
        """Refuse a checkpoint of another number of replicas."""
        numbers = {next(iter(entry.size)) for entry in stored if entry.size}
        ours = self.ranks.replicas[1]
        if numbers and numbers != {ours}:
            message = f"it has {max(numbers)} replicas, and this run {ours}"
            hint = f"parallel.dp_replicate={max(numbers)}, or checkpoint.init_from for its weights"
            raise CheckpointError(f"{checkpoint}: {message}. Give {hint}")

    def _room(self, name: str, stored: Any) -> Tensor:
        """Room for this replica's part of a stored tensor, laid out as its parameter."""
        kind, _, rest = name.partition("/")
        parameter = self.parameters[rest.rpartition("/")[0] if kind == "optimizer" else rest]
        if not stored.size:
            return allocate_for(None, stored)
        return torch.empty_like(parameter, dtype=stored.properties.dtype, requires_grad=False)

    def _stacked(self, tensor: Tensor) -> Tensor:
        """This replica's tensor as a part of that of all replicas: [replicas, ...].

        A number, such as a count of steps, is the same in all.
        """
        if not tensor.ndim:
            return tensor
        if not isinstance(tensor, DTensor):
            return tensor.unsqueeze(0)
        mesh = self._mesh.with_replicas(tensor.device_mesh)
        shape = torch.Size((self.ranks.replicas[1], *tensor.shape))
        return DTensor.from_local(
            local(tensor.detach()).unsqueeze(0),
            mesh,
            [Shard(0), *map(_behind, tensor.placements)],
            run_check=False,
            shape=shape,
            stride=torch.empty(shape, device="meta").stride(),
        )


def _behind(placement: Placement) -> Placement:
    """The placement of a tensor where a dimension is put before the others."""
    dim = cut_dim(placement)
    if dim is None:
        return placement
    factor = getattr(placement, "split_factor", None)  # of a strided shard: FSDP after TP
    if factor is None:
        return Shard(dim + 1)
    kind: Any = type(placement)
    return kind(dim + 1, split_factor=factor)
