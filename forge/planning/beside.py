"""Differences of activations due to frozen weights and adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from forge.config.model.activations import Numbers
from forge.config.model.decoder import Decoder
from forge.config.model.tensors import EXPERT, HEAD, MATRIX, TensorSpec, within
from forge.config.optimizers.param_groups import some_frozen, trained
from forge.config.root import Config


class Beside:
    """Difference of the bytes of a token, kept by blocks without recomputation and by the ends of a
    model, from the same model with all weights trained.
    """

    def __init__(self, config: Config, model: Decoder, rows_of_token: float) -> None:
        self.model, self.adapter, self.rows = model, config.adapter, rows_of_token
        self.is_trained: Callable[[str], bool] = trained(config)
        self.changes, self.tp = some_frozen(config), config.parallel.tp

    def of_block(self, number: int, numbers: Numbers) -> float:
        """Extra bytes of a block, by its number; negative for fewer bytes."""
        if not self.changes:
            return 0.0
        model, adapter = self.model, self.adapter
        kind = model.kind_of(number)
        layer, name = model.of_kind(kind.name), f"blocks.{number}"
        tensors = within(name, model.block_tensors(kind))
        matrices = [tensor for tensor in tensors if tensor.role in (MATRIX, EXPERT)]
        extra = sum(adapter.kept_bytes(tensor, numbers, self.rows) for tensor in matrices)
        entering = numbers.width * layer.dim
        for part in ["attention"] if kind.moe else ["attention", "feed_forward"]:
            of_part = [tensor for tensor in matrices if tensor.name.startswith(f"{name}.{part}.")]
            if of_part and not self._reads_input(of_part):
                extra -= entering
        if not kind.moe and (down := self._unread_down(matrices)):
            extra -= numbers.width * down.shape[-1] / numbers.tp
        alone = not (layer.moe.shared_experts or layer.moe.beside_dense)
        if kind.moe and alone and not self.is_trained(f"{name}.feed_forward.router.weight"):
            extra -= entering
        return extra

    def of_products(self, number: int, numbers: Numbers) -> float:
        """Bytes of a token for the outputs of adapters of a block and their gradients, until the
        compiler adds them up: three times those into the feed-forward, as measured.
        """
        if not self.adapter.active:
            return 0.0
        kind = self.model.kind_of(number)
        tensors = within(f"blocks.{number}", self.model.block_tensors(kind))
        wide = (
            tensor.shape[-2] / (self.tp if tensor.cut(self.tp) == len(tensor.shape) - 2 else 1)
            for tensor in tensors
            if tensor.role == MATRIX and ".feed_forward." in tensor.name and not tensor.residual
            if self.adapter.rank_of(tensor)
        )
        return 3 * numbers.width * sum(wide)

    def of_head(self, numbers: Numbers, tokens: int) -> float:
        """Extra bytes of the output head: its input, and the weight merged with an adapter."""
        tables, outputs = self.model.outside()
        head = next((tensor for tensor in outputs if tensor.role == HEAD), tables[0])
        if not self.reads(head):
            return -numbers.width * self.model.dim
        if self.adapter.rank_of(head):
            return numbers.width * head.size / self.tp / tokens
        return 0.0

    def reads(self, one: TensorSpec) -> bool:
        """Whether the backward pass reads the input of a matrix."""
        return self.adapter.reads_input(one) or self.is_trained(one.name)

    def _reads_input(self, matrices: Iterable[TensorSpec]) -> bool:
        """Whether the backward pass reads the input of a layer with these matrices."""
        return any(self.reads(matrix) for matrix in matrices if not matrix.residual)

    def _unread_down(self, matrices: Iterable[TensorSpec]) -> TensorSpec | None:
        """The matrix out of a feed-forward, if the backward pass does not read its input."""
        down = [m for m in matrices if m.residual and ".feed_forward." in m.name]
        return down[0] if down and not any(map(self.reads, down)) else None
