"""What activations are fewer or more because weights are frozen, and have adapters beside them."""

from __future__ import annotations

from collections.abc import Callable

from forge.config.adapters.adapter import Adapter, LoRA
from forge.config.adapters.ia3 import IA3
from forge.config.model.activations import Numbers
from forge.config.model.decoder import Decoder
from forge.config.model.tensors import EXPERT, HEAD, MATRIX, NORM, TensorSpec, within
from forge.config.optimizers.param_groups import some_frozen, trained
from forge.config.root import Config


class Beside:
    """Bytes of a token that a block keeps without recomputation, and the ends of a model, beside
    those of a model all of whose weights are trained.
    """

    def __init__(self, config: Config, model: Decoder, rows_of_token: float) -> None:
        self.model, self.adapter, self.rows = model, config.adapter, rows_of_token
        self.is_trained: Callable[[str], bool] = trained(config)
        self.changes, self.tp = some_frozen(config), config.parallel.tp

    @property
    def norms_frozen(self) -> bool:
        """Whether the weights of all norms are."""
        norms = (one for one in self.model.tensors() if one.role == NORM)
        return self.changes and not any(self.is_trained(one.name) for one in norms)

    def of_block(self, number: int, numbers: Numbers) -> float:
        """Of a block by its number; negative where it is less."""
        if not self.changes:
            return 0.0
        model, adapter = self.model, self.adapter
        kind = model.kind_of(number)
        layer, name = model.of_kind(kind.name), f"blocks.{number}"
        own = list(within(name, model.block_tensors(kind)))
        matrices = [one for one in own if one.role in (MATRIX, EXPERT)]
        found = sum(self._kept(one, adapter, numbers) for one in matrices)
        entering = numbers.width * layer.dim
        parts = ["attention"] if kind.moe else ["attention", "feed_forward"]
        for part in parts:
            here = [one for one in matrices if one.name.startswith(f"{name}.{part}.")]
            if not any(self.reads(one) for one in here if not one.residual):
                found -= entering
        if not kind.moe:
            down = [one for one in matrices if one.residual and ".feed_forward." in one.name]
            if down and not any(map(self.reads, down)):
                found -= numbers.width * down[0].shape[-1] / numbers.tp
        alone = not (layer.moe.shared_experts or layer.moe.beside_dense)
        if kind.moe and alone and not self.is_trained(f"{name}.feed_forward.router.weight"):
            found -= entering
        if number == 0 and numbers.norms_frozen and not self.trains_before():
            found -= numbers.norm(model.norm_type, model.dim, numbers.residual)
        return found

    def of_head(self, numbers: Numbers, tokens: int) -> float:
        """Of the output head: what it reads, and the weight that an adapter makes."""
        tables, after = self.model.outside()
        head = next((one for one in after if one.role == HEAD), tables[0])
        if not self.reads(head):
            return -numbers.width * self.model.dim
        if _rank(self.adapter, head):
            return numbers.width * head.size / self.tp / tokens
        return 0.0

    def reads(self, one: TensorSpec) -> bool:
        """Whether the backward pass reads what a matrix is multiplied with."""
        adapter = self.adapter
        if isinstance(adapter, IA3) and adapter.has(one) and adapter.scales_input(one):
            return True
        return self.is_trained(one.name) or bool(_rank(adapter, one))

    def trains_before(self) -> bool:
        """Whether anything before the first block has a gradient."""
        return any(map(self.reads, self.model.outside()[0]))

    def _kept(self, one: TensorSpec, adapter: Adapter, numbers: Numbers) -> float:
        """What A gives to B, and what magnitudes of DoRA and vectors of IA3 multiply."""
        if isinstance(adapter, IA3):
            given = adapter.has(one) and not adapter.scales_input(one)
            return numbers.width * one.on_rank(numbers.tp)[0] if given else 0.0
        rank = _rank(adapter, one)
        rows = self.rows if one.of_experts else 1.0
        kept = numbers.width * rank * rows
        if rank and isinstance(adapter, LoRA) and adapter.dora:
            cut = one.cut(numbers.tp) == len(one.shape) - 2
            kept += numbers.width * one.shape[-2] * rows / (numbers.tp if cut else 1)
        return kept


def _rank(adapter: Adapter, one: TensorSpec) -> int:
    return adapter.rank_of(one) if isinstance(adapter, LoRA) else 0
