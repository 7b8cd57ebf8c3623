"""Next-token prediction."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from forge.config.objective import Pretrain as PretrainConfig
from forge.models.head import head_of, loss_by_rows
from forge.objectives.chunked_cross_entropy import chunked_cross_entropy
from forge.objectives.cross_entropy import cross_entropy
from forge.objectives.losses import Losses


class LanguageModel(Protocol):
    """What pretraining asks of a model; logits = hidden @ output_weight.T."""

    @property
    def output_weight(self) -> Tensor:
        """[vocab, dim]"""
        ...

    def hidden(self, tokens: Tensor, /) -> Tensor:
        """[batch, seq] -> [batch, seq, dim]"""
        ...

    def __call__(self, tokens: Tensor, /) -> Tensor:
        """[batch, seq] -> logits [batch, seq, vocab]"""
        ...


class TokenBatch(Protocol):
    """Token ids and what follows each of them, both [batch, seq]; a target of -100 is masked."""

    @property
    def tokens(self) -> Tensor: ...

    @property
    def targets(self) -> Tensor: ...


class Pretrain:
    """Sum over unmasked targets of cross-entropy + z_loss_weight * (log-partition)^2.

    The second term is PaLM's z-loss (arXiv:2204.02311, section 5).
    """

    def __init__(self, section: PretrainConfig) -> None:
        self.section = section

    def __call__(self, model: LanguageModel, batch: TokenBatch) -> Losses:
        z_loss_weight = self.section.z_loss_weight
        chunked = self.section.loss_fn == "chunked_cross_entropy"
        hidden = model.hidden(batch.tokens)
        if chunked or loss_by_rows(model):
            size = self.section.ce_chunk_size if chunked else batch.targets.numel()
            total, ce, z_loss = chunked_cross_entropy(
                hidden, head_of(model), batch.targets, z_loss_weight=z_loss_weight, chunk_size=size
            )
        else:
            total, ce, z_loss = cross_entropy(
                head_of(model).logits(hidden), batch.targets, z_loss_weight=z_loss_weight
            )
        return Losses(
            total=total, sums={"ce": ce, "z_loss": z_loss} if z_loss_weight > 0 else {"ce": ce}
        )
