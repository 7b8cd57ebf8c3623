"""The indexer of latent attention: it chooses the keys of each query, as in DeepSeek 3.2."""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.field import Condition, Section, opt, section
from forge.config.model.activations import FP32, Numbers
from forge.config.model.layer import LayerShape
from forge.config.model.tensors import TensorSpec, linear, norm


def indexed(model: LayerShape) -> Iterator[tuple[str, LayerShape, Indexed]]:
    """Yield the kinds of layers with an indexer: path, layer, and mixer."""
    for path, layer in model.in_use():
        if isinstance(layer.mixer, Indexed) and layer.mixer.use_indexer:
            yield path, layer, layer.mixer


INDEXED = Condition(
    lambda config, ranks: next(indexed(config.model), None) is not None,
    "without use_indexer=true of latent attention",
)


@section
class Indexed(Section):
    """Options of a narrow attention with scores that choose the keys of a query (DeepSeek-V3.2,
    arXiv:2512.02556, section 2.1).
    """

    use_indexer: bool = opt(
        False, "give the layer an indexer, which chooses keys, as in DeepSeek 3.2"
    )
    indexer_head_dim: int = opt(128, "width of an indexer's heads", gt=0, acts_when=INDEXED)
    indexer_n_heads: int = opt(
        64, "heads of an indexer, which share a key", gt=0, acts_when=INDEXED
    )
    indexer_topk: int = opt(2048, "keys chosen for a query", gt=0, acts_when=INDEXED)
    indexer_sparse_training: bool = opt(
        False,
        "attend to the chosen keys alone; false = to all keys, while the indexer learns to choose",
        acts_when=INDEXED,
    )
    indexer_loss_scaling_factor: float = opt(
        0.0,
        "factor of the indexer's loss, its divergence from the attention of all heads; 0 = the "
        "indexer learns nothing",
        ge=0,
        acts_when=INDEXED,
    )
    indexer_shared: bool = opt(
        False,
        "read the keys chosen by the nearest earlier layer with an indexer, as in GLM 5.2; the "
        "layer then has none",
        acts_when=INDEXED,
    )
    indexer_rope_interleave: bool = opt(
        False,
        "rotate adjacent pairs of an indexer's heads, as in GLM 5; false = pairs half of the "
        "rotated width apart",
        acts_when=INDEXED,
    )

    @property
    def has_indexer(self) -> bool:
        """Whether the layer has the parameters of an indexer."""
        return self.use_indexer and not self.indexer_shared

    @property
    def chooses(self) -> bool:
        """Whether attention reads the chosen keys alone."""
        return self.use_indexer and self.indexer_sparse_training

    @property
    def learns_to_choose(self) -> bool:
        """Whether the indexer has a loss."""
        return self.has_indexer and self.indexer_loss_scaling_factor > 0

    def read_keys(self, layer: LayerShape, seq_len: int) -> int:
        """Return the number of keys read by attention in a sequence of this length."""
        seen = layer.seen(seq_len)
        return min(self.indexer_topk, seen) if self.chooses else seen

    def indexer_tensors(self, dim: int, latent: int) -> Iterator[TensorSpec]:
        """Yield the indexer's parameters. latent: width of the latent of queries."""
        heads, width, part = self.indexer_n_heads, self.indexer_head_dim, "attention"
        yield from linear("indexer.queries", heads * width, latent, part=part)
        yield from linear("indexer.keys", width, dim, part=part)
        yield from norm("indexer.key_norm", width, part=part, bias=True)
        yield from linear("indexer.weights", heads, dim, part=part)

    def indexer_kept(self, numbers: Numbers) -> int:
        """Return the bytes of a token kept until the backward pass: the mask of its choice, what
        the norm of keys reads, and gradients by queries, keys and weights.
        """
        mask = numbers.width * numbers.seq_len if self.chooses and self.has_indexer else 0
        if not self.learns_to_choose:
            return mask
        heads, width = self.indexer_n_heads, self.indexer_head_dim
        return mask + numbers.width * width + FP32 * (heads * width + width + heads)

    def indexer_flops(self, layer: LayerShape, seq_len: int, latent: int, of_scores: int) -> int:
        """Return the training FLOPs a token of scores and of the loss, less those that its matrices
        do not have: their inputs get no gradient.

        latent: width of the latent of queries. of_scores: width of the attention's queries of all
        heads, whose scores are the target.
        """
        if not self.has_indexer:
            return 0
        heads, width, seen = self.indexer_n_heads, self.indexer_head_dim, layer.seen(seq_len)
        values = latent * heads * width + layer.dim * (heads + width)
        total = 2 * heads * (width + 1) * seen if self.chooses else 0
        if not self.learns_to_choose:
            return total - 4 * values
        # Scores, their gradients by queries, keys and weights, and the target.
        of_loss = 2 * heads * (3 * width + 2) * seen + 2 * of_scores * seen
        return total + of_loss - 2 * values
