"""A block of a decoder: a token mixer, then a feed-forward layer or experts."""

from __future__ import annotations

from torch import Tensor, nn

from forge.build import build_part
from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.moe import is_moe_layer
from forge.models.cache import LayerCache
from forge.models.documents import Seen
from forge.models.dropout import Noise, StreamDropout
from forge.models.moe import MoE
from forge.models.norm import make_norm
from forge.models.rope import Rotation
from forge.models.skips.hyper_connections import StreamMixing, Streams
from forge.models.skips.scalars import rescaled, scalar


class Block(nn.Module):
    """A token mixer, then a feed-forward layer or experts, each added to the residual stream, with
    norms before, after, or both.

    section: the layer's own. noise: source of dropout. name: "" = that of a block.
    """

    def __init__(
        self, section: DecoderConfig, layer: int, noise: Noise | None = None, name: str = ""
    ) -> None:
        super().__init__()
        norms = section.norms_before, section.norms_after
        mixes, feeds = not section.mixer.absent, not section.feed_forward.absent
        self.multiplier = section.residual_multiplier
        self.residual_scalar = scalar(section.residual_scalars)
        self.x0_scalar = scalar(section.x0_scalars)
        wide = section.mhc_expansion_rate > 1
        self.attention_streams = Streams(section) if mixes and wide else None
        self.attention_norm = make_norm(section) if mixes and norms[0] else None
        self.attention = build_part(section.mixer, section) if mixes else None
        self.attention_post_norm = make_norm(section) if mixes and norms[1] else None
        self.feed_forward_streams = Streams(section) if feeds and wide else None
        self.feed_forward_norm = make_norm(section) if feeds and norms[0] else None
        self.feed_forward = self._fed(section, layer) if feeds else None
        self.feed_forward_post_norm = make_norm(section) if feeds and norms[1] else None
        name = name or f"blocks.{layer}"
        names = [f"{name}.{child}" for child in ("attention", "feed_forward")]
        rate = section.dropout
        dropouts = [StreamDropout(rate, name, noise) if rate else None for name in names]
        self.attention_dropout, self.feed_forward_dropout = dropouts

    def forward(
        self,
        x: Tensor,
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
        *seen: Seen,
        x0: Tensor | None = None,
        **named: Tensor,
    ) -> Tensor:
        """x: [batch, seq, dim], or the streams of mHC, -> the same shape. seen: mask of rows shared
        by documents, see `forge.models.documents`. x0: input of the first block. named: for the
        mixer, as `seen`.
        """
        if self.residual_scalar is not None or self.x0_scalar is not None:
            x = rescaled(x, self.residual_scalar, self.x0_scalar, x0)
        norm, post_norm = self.attention_norm, self.attention_post_norm
        if self.attention is not None:
            joint = self.attention_streams(x) if self.attention_streams is not None else None
            u = self._entering(x if joint is None else joint.entering, norm, post_norm)
            y = self.attention(u, rotation, cache, *seen, **named)
            x = self._added(x, y, post_norm, self.attention_dropout, joint)
            del y  # it would live until feed-forward ends
        elif cache is not None:
            cache.keep(x.shape[1])
        return x if self.feed_forward is None else self.feed(x)

    def feed(self, x: Tensor) -> Tensor:
        """Add the feed-forward layer or the experts to x, of the shape of `forward`."""
        assert self.feed_forward is not None
        norm, post_norm = self.feed_forward_norm, self.feed_forward_post_norm
        joint = self.feed_forward_streams(x) if self.feed_forward_streams is not None else None
        y = self.feed_forward(
            self._entering(x if joint is None else joint.entering, norm, post_norm)
        )
        return self._added(x, y, post_norm, self.feed_forward_dropout, joint)

    def _fed(self, section: DecoderConfig, layer: int) -> nn.Module:
        """The experts of a layer, or its feed-forward layer."""
        if is_moe_layer(section.moe, layer):
            return MoE(section, layer)
        return build_part(section.feed_forward, section)

    def _entering(self, x: Tensor, before: nn.Module | None, after: nn.Module | None) -> Tensor:
        if before is not None:
            return before(x)
        assert after is not None
        # A norm returns the format of its weights; without one the residual stream may be fp32.
        made = after.made if after.weight is None else after.weight.dtype
        return x if made is None else x.to(made)  # type: ignore[arg-type]

    def _added(
        self,
        x: Tensor,
        y: Tensor,
        after: nn.Module | None,
        dropout: nn.Module | None,
        joint: StreamMixing | None,
    ) -> Tensor:
        y = y if after is None else after(y)
        y = y if dropout is None else dropout(y)
        y = y if self.multiplier == 1 else y * self.multiplier
        return x + y if joint is None else joint.leave(x, y)
