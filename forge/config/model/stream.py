"""The residual stream of a decoder: its width, and the norms and factors around its layers."""

from __future__ import annotations

from forge.config.field import Section, opt, section

PLACEMENTS = ("pre", "post", "both")


@section
class Stream(Section):
    """Options of the model that all layers of a block have in common."""

    dim: int = opt(4096, "width of the residual stream", gt=0)
    n_layers: int = opt(32, "number of transformer blocks", gt=0)
    norm_type: str = opt("rmsnorm", "normalisation layer", choices=("rmsnorm", "layernorm"))
    norm_eps: float | None = opt(
        1e-5,
        "epsilon of the normalisation layers; null = the smallest difference from 1 of the format "
        "that they compute in, at least fp32, as in nanochat",
        gt=0,
    )
    norm_with_scale: bool = opt(
        True, "weights of the norms around layers; nanochat and the first OLMo have none"
    )
    embedding_norm: bool = opt(False, "normalise embeddings before the first layer")
    norm_placement: str = opt(
        "pre",
        "norms before attention and feed-forward layer, after them, or both",
        choices=PLACEMENTS,
    )
    norm_unit_offset: bool = opt(False, "scale by 1 + weight, which begins at 0, as in Gemma")
    residual_multiplier: float = opt(
        1.0, "factor of each layer's output to the residual stream, as in Granite", gt=0
    )
    embedding_multiplier: float = opt(
        1.0, "factor of the embeddings: sqrt(dim) in Gemma, 12 in Granite", gt=0
    )
    logits_multiplier: float = opt(
        1.0, "factor of the logits: 1 / logits_scaling of Granite, logit_scale of Cohere", gt=0
    )
    final_logits_soft_cap: float = opt(
        0.0, "cap logits by cap * tanh(logits / cap), as in Gemma 2; 0 = no cap", ge=0
    )
    logits_dot_in_fp32: bool = opt(
        False, "in 16 bits, compute logits in fp32, without rounding them to 16 bits"
    )
    dropout: float = opt(
        0.0,
        "dropout of embeddings and of the output of attention and feed-forward layers",
        ge=0,
        lt=1,
    )
    bias: bool = opt(False, "add biases to the linear and LayerNorm layers of the blocks")

    @property
    def norms_before(self) -> bool:
        """Whether the inputs of attention and feed-forward layer are normalised."""
        return self.norm_placement != "post"

    @property
    def norms_after(self) -> bool:
        """Whether the outputs of attention and feed-forward layer are normalised."""
        return self.norm_placement != "pre"
