"""Activation checkpointing (arXiv:1604.06174): blocks run again in backward, and keep the tensors
named by a policy.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from forge.adapters.experts import AdaptedExperts
from forge.adapters.lora import AdaptedLinear
from forge.config.recompute import INPUT, OFFLOAD, SELECTIVE, Policy, places_of
from forge.models.dropout import Noise
from forge.models.experts import Experts
from forge.parallel.host_memory import Host, InHost, Run
from forge.parallel.modules import blocks_of, layers_of, mix_in
from forge.parallel.named import (
    NOBODYS,
    Named,
    NamedExperts,
    NamedProducts,
    NamedSum,
    Places,
    RecomputedAdapter,
)
from forge.parallel.tensor import Layer

ENDS = ("out_proj", "mlpwo", "moe_mlpwo")
"""Matrices at the end of layers, where nothing follows the matrix."""


def recompute_blocks(
    model: nn.Module, policy: Policy | str, *, n_layers: int | None = None, layers: bool = False
) -> None:
    """Make blocks keep less for backward, in place; parameter names stay.

    policy: for all `n_layers` blocks of the whole model; a stage has some of these blocks, by their
    numbers. layers: keep by name in each layer of a block separately, and for a mixture in its
    experts and shared experts. Needed where FSDP gathers experts inside the block: compilers do not
    see through the gather. Raises ValueError for a model without blocks.
    """
    if isinstance(policy, str):
        policy = Policy(name=policy, places=places_of(policy), layers={})
    if not policy.recomputes:
        return
    blocks, host = _numbered_blocks(model), Host()
    noise = getattr(model, "noise", None)
    n_layers = len(blocks) if n_layers is None else n_layers
    first = next(iter(blocks), 0)
    for number, block in blocks.items():
        assert not any(isinstance(module, Recomputed) for module in block.modules()), "already done"
        if policy.recomputed(number, n_layers, first):
            block_places = policy.of_block(number, n_layers)
            _recompute_block(
                block, policy, block_places, host=host, number=number, noise=noise, apart=layers
            )


def _numbered_blocks(model: nn.Module) -> dict[int, nn.Module]:
    """The blocks of a model or a stage by their numbers in the whole model."""
    names = [name for name, _ in model.blocks.named_children()] if blocks_of(model) else []  # type: ignore[union-attr,operator]
    named_blocks = zip(names, blocks_of(model), strict=True)
    return {
        int(name) if name.isdecimal() else n: block for n, (name, block) in enumerate(named_blocks)
    }


def _recompute_block(
    block: nn.Module,
    policy: Policy,
    places: Mapping[str, str],
    *,
    host: Host,
    number: int,
    noise: Noise | None,
    apart: bool,
) -> None:
    in_host = {"host": host, "number": number, "run": None, "drawn_of": noise}
    if not set(places) - {INPUT}:
        if INPUT in places:
            mix_in(block, InputInHost, **in_host)
        else:
            mix_in(block, Recomputed, drawn_of=noise)
        return
    by_name = {"named": Places(places, everything=policy.name == SELECTIVE)}
    units: list[nn.Module] = [block]
    if apart:
        units = [*layers_of(block, mixtures=False)]
        units += [module for module in block.modules() if isinstance(module, Experts)]
    name_products(block, apart=apart)
    for unit in units:
        kind = ByName
        if isinstance(unit, Experts):
            kind = ExpertsByName
        elif OFFLOAD in places.values():
            kind = ByNameInHost
        host_options = in_host if OFFLOAD in places.values() else {"host": None, "drawn_of": noise}
        mix_in(unit, kind, **by_name, **host_options)


def name_products(block: nn.Module, *, apart: bool) -> None:
    """Mark the products of a block by the names in its modules' `kept_names`.

    Nobody reads in the second run the last product of a block, or with `apart` of a layer.
    """
    last = getattr(block, "feed_forward", None)
    is_last = getattr(block, "feed_forward_post_norm", block) is None
    for module in list(block.modules()):
        names: Mapping[str, str] = getattr(module, "kept_names", {})
        ends = apart or (module is last and is_last)
        ended = [child for child, name in names.items() if name in ENDS]
        names = dict(names) | dict.fromkeys(ended if ends else (), NOBODYS)
        if isinstance(module, AdaptedLinear | AdaptedExperts):
            mix_in(module, RecomputedAdapter)
        if isinstance(module, Experts):
            mix_in(module, NamedExperts, kept_as=names)
            continue
        if getattr(module, "fused", False):
            # A joined product has the place of all its matrices: rule model.fused_places.
            mix_in(module, NamedProducts, made_as=next(iter(names.values())))
        for child, name in names.items():
            matrix = getattr(module, child, None)
            if isinstance(matrix, nn.Module):
                summed = isinstance(module, Layer) and child in ended
                # Under tp the product is a rank's summand: the sum over ranks is kept.
                if summed:
                    mix_in(module, NamedSum, sum_kept_as=name)
                mix_in(matrix, Named, kept_as=NOBODYS if summed else name)


class Recomputed(nn.Module):
    """Mixin of a block: forward keeps the inputs and runs again in backward.

    drawn_of: noise of the first run; by backward another micro-batch may have been read.
    """

    drawn_of: Noise | None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run_again(super().forward, *args, **kwargs)

    def run_again(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        noise = self.drawn_of
        # A compiled block takes the noise as an input, which it keeps.
        if not torch.compiler.is_compiling() and noise is not None and noise.bits is not None:
            function = noise.bound(function)
        return run_again(function, *args, **kwargs)


class ByName(Recomputed):
    """Mixin of a block: forward runs again in backward, but results with a place are kept."""

    named: Places
    host: Host | None
    number: int
    run: Run | None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.again(super(Recomputed, self).forward, *args, **kwargs)

    def again(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        # Under a compiler the contexts only choose tensors; pack hooks move tensors to the host.
        contexts: Any = self.named.compiled_contexts
        if not torch.compiler.is_compiling():
            run = self.run if self.host and self.run else self.host and self.host.run(self.number)
            contexts = functools.partial(self.named.contexts, run)
        return self.run_again(function, *args, context_fn=contexts, **kwargs)


class ExpertsByName(ByName):
    """Mixin of experts, a unit with two entry points: results with a place are kept."""

    def equal(self, x: Tensor) -> Tensor:
        return self.again(super().equal, x)  # type: ignore[misc]


class InputInHost(Recomputed):
    """Mixin of a block: forward runs again in backward from an input kept in host memory."""

    host: Host
    number: int
    run: Run | None

    def __call__(self, x: Tensor, *rest: Any, **named: Any) -> Any:
        """Pack saved tensors outside of the compiled part, where autograd keeps the output of
        `packing`.
        """
        if not torch.is_grad_enabled():
            return super().__call__(x, *rest, **named)
        self.run = self.host.run(self.number)
        with saved_tensors_hooks(self.packing(self.run, x, (rest, named)), _unpack):
            return super().__call__(x, *rest, **named)

    def packing(self, run: Run, x: Tensor, rest: Any) -> Any:
        """Pack function of autograd for each saved tensor: the block's input goes to the host."""
        mine = _storage(x)

        def pack(tensor: Tensor) -> Any:
            # Views of the input share its storage; a copy of a small tensor is not worth while.
            if _storage(tensor) == mine and tensor.nbytes >= self.host.smallest:
                return run.hold(tensor)
            return tensor

        return pack


class ByNameInHost(InputInHost, ByName):
    """Mixin of a block: kept by name, some tensors in host memory.

    In an eager run the dispatch modes move tensors to the host; in a compiled run every saved
    tensor goes to the host except weights and inputs, older than the run.
    """

    def packing(self, run: Run, x: Tensor, rest: Any) -> Any:
        in_place = {_storage(value) for value in tree_leaves(rest) if isinstance(value, Tensor)}
        input_too = self.named.places.get(INPUT) == OFFLOAD
        named_too = self.named.offloads and self._compiled_call_impl is not None
        mine, owned = _storage(x), set[int]()

        def pack(tensor: Tensor) -> Any:
            if tensor.nbytes < self.host.smallest:
                return tensor
            storage = _storage(tensor)
            if storage == mine:
                return run.hold(tensor) if input_too else tensor
            if not named_too or storage in in_place:
                return tensor
            if not owned:  # by now FSDP has gathered them
                owned.update(_storage(value) for value in (*self.parameters(), *self.buffers()))
            return tensor if storage in owned else run.hold(tensor)

        return pack


# What a block draws is a hash, so there is no generator state to keep.
run_again = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


def _unpack(kept: Any) -> Tensor:
    return kept.take() if isinstance(kept, InHost) else kept


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
