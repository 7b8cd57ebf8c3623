"""Low-rank adapters (LoRA, arXiv:2106.09685), and DoRA (arXiv:2402.09353)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.adapters.adapter import Adapted, Adapter
from forge.adapters.experts import AdaptedExperts
from forge.adapters.packed import packed_in
from forge.adapters.pissa import take_out
from forge.config.adapters.adapter import MAGNITUDE, PISSA, TAKEN_A, A, name_of, place_of
from forge.config.adapters.adapter import LoRA as LoRASection
from forge.config.model.tensors import EMBEDDING, TensorSpec
from forge.models.decoder import Decoder
from forge.models.dropout import Dropout
from forge.models.experts import Experts
from forge.models.mixin import mix_in
from forge.tensors.local import copy_local, full
from forge.tensors.masters import master


class LoRA(Adapter):
    """Parameters of a layer: lora_a [rank, in], lora_b [out, rank] and of DoRA lora_magnitude
    [out]; of experts [experts, ...], with the name of their matrix before it.
    """

    section: LoRASection

    def inject(self, model: nn.Module) -> None:
        assert isinstance(model, Decoder), model
        for one in self.section.added(model.table.values()):
            place, _, name = one.name.rpartition(".")
            empty = torch.empty(one.shape, device="meta")
            model.get_submodule(place).register_parameter(name, nn.Parameter(empty))
        model.table |= {one.name: one for one in self.section.added(model.table.values())}
        for one in self._targets(model):
            if one.of_experts:
                continue
            layer = model.get_submodule(place_of(one))
            if one.role == EMBEDDING:  # now, so that it is inside of what looks up a part of it
                mix_in(layer, AdaptedTable, scaling=self._scale(one), adapter_is_on=True)
            else:
                drops = Dropout(self.section.dropout, name_of(one, "lora"), model.noise)
                layer.lora_dropout = drops if drops.rate else None  # type: ignore[assignment]

    def activate(self, model: nn.Module) -> None:
        modules, scales = dict(model.named_modules()), dict[nn.Module, dict[str, float]]()
        for one in self._targets(model):
            layer = modules.get(name_of(one, A).rpartition(".")[0])
            if isinstance(layer, Experts):
                scales.setdefault(layer, {})[one.name.rpartition(".")[2]] = self._scale(one)
            elif isinstance(layer, nn.Linear):  # else it is of another stage, or a table
                mix_in(layer, AdaptedLinear, scaling=self._scale(one), adapter_is_on=True)
        for layer, own in scales.items():
            mix_in(layer, AdaptedExperts, scaling=own, adapter_is_on=True)

    @torch.no_grad()
    def begin(self, model: nn.Module) -> None:
        """Magnitudes are the lengths of the rows of the weights, whose direction is B's to turn."""
        if not self.section.dora:
            return
        own = dict(model.named_parameters())
        in_few_bits = {one.name: one for one in packed_in(model)}
        for one in self._targets(model):
            if one.name in in_few_bits:
                whole = in_few_bits[one.name].whole()
            elif one.name in own:
                whole = full(own[one.name].detach())
            else:
                continue  # of another stage
            wide = torch.promote_types(whole.dtype, torch.float32)
            lengths, magnitude = whole.to(wide).norm(dim=-1), own[name_of(one, MAGNITUDE)]
            copy_local(magnitude, lengths)
            copy_local(master(magnitude), lengths)

    def take_out(self, model: nn.Module) -> None:
        if self.section.init == PISSA:
            take_out(model, {one: self._scale(one) for one in self._targets(model)})

    def _scale(self, one: TensorSpec) -> float:
        return self.section.scale(self.section.rank_of(one))

    def _targets(self, model: nn.Module) -> Iterator[TensorSpec]:
        parts = getattr(model, "parts", [model])
        yield from (one for one in parts[0].table.values() if self.section.rank_of(one))


def merged(
    weight: Tensor, a: Tensor, b: Tensor, magnitude: Tensor | None, *, role: str, scale: float
) -> Tensor:
    """What a layer without an adapter would have: weight [..., out, in], a [..., rank, in], b [...,
    out, rank], magnitude [..., out]; of an embedding [vocab, dim]. In the format of the weight.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    added = scale * (b.to(wide) @ a.to(wide))
    summed = weight.to(wide) + (added.T if role == EMBEDDING else added)
    if magnitude is not None:
        summed *= (magnitude.to(wide) / summed.norm(dim=-1)).unsqueeze(-1)
    return summed.to(weight.dtype)


class AdaptedLinear(Adapted):
    """Mixin of nn.Linear: `W x + scaling * B A x`. With magnitudes the rows of W + scaling * B A
    have those lengths; gradients take what they are divided by for constant (section 4.3).
    """

    scaling: float
    weight: Tensor
    bias: Tensor | None
    lora_a: Tensor
    lora_b: Tensor
    lora_taken_a: Tensor
    lora_taken_b: Tensor
    lora_dropout: Dropout | None

    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        if not self.adapter_is_on:
            return self.as_it_was(made, x)
        beside = self.inner(x)
        if not hasattr(self, MAGNITUDE):
            return torch.add(made, beside.to(made.dtype), alpha=self.scaling)
        bias = self.bias
        product = made if bias is None else made - bias
        y = (product + self.scaling * beside) * self.lengthened().to(made.dtype)
        return y if bias is None else y + bias

    def as_it_was(self, made: Tensor, x: Tensor) -> Tensor:
        """A product of the weight, with what was taken out of that."""
        if not hasattr(self, TAKEN_A):
            return made
        beside = F.linear(F.linear(x, self.lora_taken_a), self.lora_taken_b)
        return made + beside.to(made.dtype)

    def inner(self, x: Tensor) -> Tensor:
        """B A x."""
        drops = self.lora_dropout
        within = F.linear(x, self.lora_a) if drops is None else drops.linear(x, self.lora_a)
        return F.linear(within, self.lora_b)

    def lengthened(self) -> Tensor:
        """[out], by what rows of the sum are multiplied."""
        with torch.no_grad():
            squares = self.summed().square().sum(-1)
            lengths = self.total(squares).sqrt()
        return self.lora_magnitude / lengths  # type: ignore[operator]

    def summed(self) -> Tensor:
        """[out, in], of what this rank has."""
        return self.weight + self.scaling * (self.lora_b @ self.lora_a)

    def total(self, squares: Tensor) -> Tensor:
        """Of rows, a part of which each of some ranks may have."""
        return squares

    def adapted_weight(self) -> Tensor:
        """[out, in]: what a layer without an adapter would have."""
        if not self.adapter_is_on:
            if not hasattr(self, TAKEN_A):
                return self.weight
            return (self.weight + self.lora_taken_b @ self.lora_taken_a).to(self.weight.dtype)
        summed = self.summed()
        if hasattr(self, MAGNITUDE):
            summed = summed * self.lengthened().unsqueeze(-1)
        return summed.to(self.weight.dtype)


class AdaptedTable(Adapted):
    """Mixin of the embedding: row t and column t of A, turned by B. lora_a: [rank, vocab]."""

    scaling: float
    lora_a: Tensor
    lora_b: Tensor

    def forward(self, tokens: Tensor) -> Tensor:
        found = super().forward(tokens)
        if not self.adapter_is_on:
            return found
        beside = F.linear(F.embedding(tokens, self.lora_a.T), self.lora_b)
        return torch.add(found, beside.to(found.dtype), alpha=self.scaling)
