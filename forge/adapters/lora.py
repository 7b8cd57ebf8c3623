"""Low-rank adapters (LoRA, arXiv:2106.09685), and DoRA (arXiv:2402.09353)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.adapters.adapter import Adapted, Adapter, decoder_of
from forge.adapters.experts import AdaptedExperts
from forge.adapters.packed import packed_in
from forge.adapters.pissa import take_out
from forge.config.adapters.adapter import MAGNITUDE, PISSA, TAKEN_A, A, adapter_name, adapter_prefix
from forge.config.adapters.adapter import LoRA as LoRASection
from forge.config.model.tensors import EMBEDDING, TensorSpec
from forge.models.dropout import Dropout
from forge.models.experts import Experts
from forge.models.mixin import mix_in
from forge.tensors.local import copy_local, full
from forge.tensors.masters import master


class LoRA(Adapter):
    """Low-rank adapters of a model's matrices.

    Parameters of a layer: lora_a [rank, in], lora_b [out, rank] and for DoRA lora_magnitude [out];
    of experts [experts, ...], prefixed by the name of the matrix.
    """

    section: LoRASection

    def inject(self, model: nn.Module) -> None:
        decoder = decoder_of(model)
        for spec in self.section.added(decoder.table.values()):
            path, _, name = spec.name.rpartition(".")
            empty = torch.empty(spec.shape, device="meta")
            model.get_submodule(path).register_parameter(name, nn.Parameter(empty))
        decoder.table |= {spec.name: spec for spec in self.section.added(decoder.table.values())}
        for spec in self._targets(model):
            if spec.of_experts:
                continue
            layer = model.get_submodule(adapter_prefix(spec))
            if spec.role == EMBEDDING:  # now, to stay inside of a lookup in a part of the table
                mix_in(layer, AdaptedTable, scaling=self._scale(spec), adapter_is_on=True)
            else:
                drops = Dropout(self.section.dropout, adapter_name(spec, "lora"), decoder.noise)
                layer.lora_dropout = drops if drops.rate else None  # type: ignore[assignment]

    def activate(self, model: nn.Module) -> None:
        modules, scales = dict(model.named_modules()), dict[nn.Module, dict[str, float]]()
        for spec in self._targets(model):
            layer = modules.get(adapter_name(spec, A).rpartition(".")[0])
            if isinstance(layer, Experts):
                scales.setdefault(layer, {})[spec.name.rpartition(".")[2]] = self._scale(spec)
            elif isinstance(layer, nn.Linear):  # otherwise of another stage, or a table
                mix_in(layer, AdaptedLinear, scaling=self._scale(spec), adapter_is_on=True)
        for layer, by_matrix in scales.items():
            mix_in(layer, AdaptedExperts, scaling=by_matrix, adapter_is_on=True)

    @torch.no_grad()
    def begin(self, model: nn.Module) -> None:
        """Set magnitudes to the lengths of the weights' rows; B changes only their direction."""
        if not self.section.dora:
            return
        parameters = dict(model.named_parameters())
        in_few_bits = {matrix.name: matrix for matrix in packed_in(model)}
        for spec in self._targets(model):
            if spec.name in in_few_bits:
                weight = in_few_bits[spec.name].whole()
            elif spec.name in parameters:
                weight = full(parameters[spec.name].detach())
            else:
                continue  # of another stage
            wide = torch.promote_types(weight.dtype, torch.float32)
            lengths, magnitude = (
                weight.to(wide).norm(dim=-1),
                parameters[adapter_name(spec, MAGNITUDE)],
            )
            copy_local(magnitude, lengths)
            copy_local(master(magnitude), lengths)

    def take_out(self, model: nn.Module) -> None:
        if self.section.init == PISSA:
            take_out(model, {spec: self._scale(spec) for spec in self._targets(model)})

    def _scale(self, one: TensorSpec) -> float:
        return self.section.scale(self.section.rank_of(one))

    def _targets(self, model: nn.Module) -> Iterator[TensorSpec]:
        parts = getattr(model, "parts", [model])
        yield from (spec for spec in parts[0].table.values() if self.section.rank_of(spec))


def merged_weight(
    weight: Tensor, a: Tensor, b: Tensor, magnitude: Tensor | None, *, role: str, scale: float
) -> Tensor:
    """Return the weight of an equal layer without an adapter, in the format of the weight.

    weight: [..., out, in], of an embedding [vocab, dim]. a: [..., rank, in]. b: [..., out, rank].
    magnitude: [..., out].
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    added = scale * (b.to(wide) @ a.to(wide))
    summed = weight.to(wide) + (added.T if role == EMBEDDING else added)
    if magnitude is not None:
        summed *= (magnitude.to(wide) / summed.norm(dim=-1)).unsqueeze(-1)
    return summed.to(weight.dtype)


class AdaptedLinear(Adapted):
    """Mixin of nn.Linear: `W x + scaling * B A x`.

    With magnitudes, the rows of W + scaling * B A have the magnitudes as lengths. Gradients treat
    the divisors, the lengths before, as constants (section 4.3).
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
        output = super().forward(x)
        if not self.adapter_is_on:
            return self.as_it_was(output, x)
        beside = self.inner(x)
        if not hasattr(self, MAGNITUDE):
            return torch.add(output, beside.to(output.dtype), alpha=self.scaling)
        bias = self.bias
        product = output if bias is None else output - bias
        y = (product + self.scaling * beside) * self.lengthened().to(output.dtype)
        return y if bias is None else y + bias

    def as_it_was(self, made: Tensor, x: Tensor) -> Tensor:
        """Return a product of the weight, with the part taken out of the weight added."""
        if not hasattr(self, TAKEN_A):
            return made
        beside = F.linear(F.linear(x, self.lora_taken_a), self.lora_taken_b)
        return made + beside.to(made.dtype)

    def inner(self, x: Tensor) -> Tensor:
        """Compute B A x."""
        drops = self.lora_dropout
        within = F.linear(x, self.lora_a) if drops is None else drops.linear(x, self.lora_a)
        return F.linear(within, self.lora_b)

    def lengthened(self) -> Tensor:
        """Return the factors [out] of the rows of the sum."""
        with torch.no_grad():
            squares = self.summed().square().sum(-1)
            lengths = self.total(squares).sqrt()
        return self.lora_magnitude / lengths  # type: ignore[operator]

    def summed(self) -> Tensor:
        """Return the sum [out, in] of this rank's weight and adapter."""
        return self.weight + self.scaling * (self.lora_b @ self.lora_a)

    def total(self, squares: Tensor) -> Tensor:
        """Return squares summed over ranks with parts of the rows; here rows are whole."""
        return squares

    def adapted_weight(self) -> Tensor:
        """Return the weight [out, in] of an equal layer without an adapter."""
        if not self.adapter_is_on:
            if not hasattr(self, TAKEN_A):
                return self.weight
            return (self.weight + self.lora_taken_b @ self.lora_taken_a).to(self.weight.dtype)
        summed = self.summed()
        if hasattr(self, MAGNITUDE):
            summed = summed * self.lengthened().unsqueeze(-1)
        return summed.to(self.weight.dtype)


class AdaptedTable(Adapted):
    """Mixin of the embedding: row t plus B times column t of A. lora_a: [rank, vocab]."""

    scaling: float
    lora_a: Tensor
    lora_b: Tensor

    def forward(self, tokens: Tensor) -> Tensor:
        rows = super().forward(tokens)
        if not self.adapter_is_on:
            return rows
        beside = F.linear(F.embedding(tokens, self.lora_a.T), self.lora_b)
        return torch.add(rows, beside.to(rows.dtype), alpha=self.scaling)
