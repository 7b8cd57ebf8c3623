"""nanochat's dial: everything that follows from a depth.

The formulas are those of scripts/base_train.py and nanochat/gpt.py of karpathy/nanochat at 92d63d4,
in our words.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from forge.config.field import opt, section
from forge.config.model.decoder import Decoder
from forge.config.model.tensors import GATE
from forge.config.rule import nearest_divisor
from forge.config.scaling import horizon
from forge.config.scaling.base import Row, Scaling, Settings
from forge.config.scaling.counts import parameters
from forge.config.scaling.horizon import (
    FLOPS,
    RATIO,
    STEPS,
    TOKENS,
    set_batch,
    set_steps,
    typed_batch,
)

HEADS, KV_HEADS = "model.n_heads", "model.n_kv_heads"
EXPONENT = 0.383
"""Growth of the best batch with the tokens of a run (arXiv:2505.13738)."""


class Shape(NamedTuple):
    """Widths and numbers of a decoder's layers and heads."""

    layers: int
    dim: int
    head_dim: int

    @property
    def heads(self) -> int:
        return self.dim // self.head_dim


class Tokens(NamedTuple):
    """Tokens of the run and of the reference run, as the rules for batch and decay take them."""

    run: float
    reference: float
    why: str

    @property
    def share(self) -> float:
        return self.run / self.reference


@section
class Depth(Scaling):
    """nanochat's dial: widths, batch, steps, learning rates and weight decay of a depth."""

    schema_name = "depth"
    depth: int = opt(20, "number of blocks, which the rest follows from", gt=0)
    aspect_ratio: int = opt(64, "width of the model a block, before it is rounded up", gt=0)
    head_dim: int = opt(128, "width of a head; the model's is rounded up to a multiple", gt=0)
    seq_len: int = opt(2048, "tokens a sequence", gt=0)
    target_param_data_ratio: float = opt(
        12.0, "tokens to train on for each parameter of blocks and output head", gt=0
    )
    target_flops: float | None = opt(
        None, "FLOPs to spend on the run; null = by target_param_data_ratio", gt=0, le=1e30
    )
    horizon_for_batch: str = opt(
        "ratio",
        "tokens that batch and weight decay follow: ratio = of target_param_data_ratio, whatever "
        "ends the run; actual = of the run",
        choices=("ratio", "actual"),
    )
    reference_depth: int = opt(12, "depth that rates and batch are of", gt=0)
    reference_batch_tokens: int = opt(2**19, "tokens a step at that depth", gt=0)
    scale_rates: bool | None = opt(
        None,
        "scale learning rates and weight decay; null = where the optimizer says which width they "
        "are of by lr_base_dim, as optimizer=nanochat",
    )
    scale_typed: bool = opt(
        False, "scale rates and weight decay that are typed too, as nanochat scales --matrix-lr"
    )

    def shape_of(self, depth: int, head_dim: int) -> Shape:
        """The shape of a depth: depth * aspect_ratio wide, rounded up to whole heads."""
        return Shape(depth, -(-depth * self.aspect_ratio // head_dim) * head_dim, head_dim)

    def shape(self, settings: Settings) -> None:
        if settings.lacks_decoder():
            return
        typed = settings.is_stated("model.head_dim") and settings.get("model.head_dim")
        head_dim = settings.set("model.head_dim", typed or self.head_dim, "scaling.head_dim")
        layers, dim, _ = self.shape_of(self.depth, head_dim)
        settings.set("model.n_layers", layers, f"scaling.depth={self.depth}")
        why = f"{self.depth} * {self.aspect_ratio}, a multiple of {head_dim}"
        dim = settings.set("model.dim", dim, why)
        self._heads(settings, dim, head_dim)
        settings.set("model.ffn_hidden_dim", *ffn_width(settings.config.model))
        length = settings.set("train.seq_len", self.seq_len, "scaling.seq_len")
        settings.set("model.max_seq_len", length, f"train.seq_len={length}")

    def _heads(self, settings: Settings, dim: int, head_dim: int) -> None:
        """Set heads and key/value heads."""
        if settings.is_stated(HEADS):
            number = settings.set(HEADS, max(dim // head_dim, 1), f"{dim} / {head_dim}")
        elif dim % head_dim:
            message = f"model.dim={dim} is no whole number of heads {head_dim} wide."
            hint = f"model.dim={max(round(dim / head_dim), 1) * head_dim}"
            settings.refuse(f"model.dim={dim}", message, hint)
            return
        else:
            number = settings.set(HEADS, dim // head_dim, f"{dim} / {head_dim}")
        if "n_kv_heads" in settings.config.model.mixer.unread:
            return
        kv_heads = settings.set(KV_HEADS, number, f"as many as {HEADS}")
        if number % (kv_heads or number):
            message = f"depth {self.depth} has {number} heads, which {kv_heads} key/value heads do "
            hint = f"{KV_HEADS}={nearest_divisor(number, kv_heads)}"
            depths = sorted(range(1, 2 * self.depth + 64), key=lambda d: abs(d - self.depth))
            fits = (d for d in depths if not self.shape_of(d, head_dim).heads % kv_heads)
            if not settings.is_stated(HEADS) and (near := next(fits, None)):
                hint = f"scaling.depth={near}, or {hint}"
            settings.refuse(f"scaling.depth={self.depth}", f"{message}not divide.", hint)

    def rates(self, settings: Settings) -> None:
        config, ends_by = settings.config, horizon.chosen(settings, FLOPS, RATIO)
        if not ends_by:
            return
        count, reference = parameters(config.model), self.reference_parameters(config.model)
        tokens = self._tokens(settings, ends_by, count, reference)
        batch = self._batch(settings, tokens)
        self._steps(settings, ends_by, batch, count)
        self._scale(settings, batch, tokens)

    def reference_parameters(self, model: Decoder) -> int:
        """Parameters of the model at the reference depth, with all else as it is."""
        reference = model.clone()
        reference.thaw()
        layers, dim, _ = self.shape_of(self.reference_depth, model.computed_head_dim)
        reference.n_layers, reference.dim = layers, dim
        reference.n_heads = reference.n_kv_heads = dim // model.computed_head_dim
        reference.ffn_hidden_dim = ffn_width(reference)[0]
        return parameters(reference)

    def _tokens(self, settings: Settings, ends_by: str, count: int, reference: int) -> Tokens:
        """Tokens that batch and decay follow."""
        ratio = self.target_param_data_ratio
        train, of_reference = settings.config.train, ratio * reference
        law = Tokens(max(int(ratio * count), 1), of_reference, f"{ratio:g} * {count:,} parameters")
        if self.horizon_for_batch == "ratio" or ends_by == RATIO:
            return law
        if ends_by == FLOPS:
            assert self.target_flops is not None
            flops = settings.config.model.flops_per_token(train.seq_len)
            why = f"{self.target_flops:g} FLOPs / {flops:,} a token"
            return Tokens(self.target_flops / flops, of_reference, why)
        if ends_by in horizon.BUDGETS:
            run = horizon.tokens_of(settings, ends_by)
            return Tokens(run, of_reference, ends_by)
        batch = typed_batch(settings)
        if batch is None:  # of steps alone: B = B_ref * (steps * B / D_ref)^e, solved for B
            share = train.max_steps * self.reference_batch_tokens / of_reference
            batch = self.reference_batch_tokens * share ** (EXPONENT / (1 - EXPONENT))
        why = f"{train.max_steps:,} steps"
        return Tokens(train.max_steps * batch, of_reference, why)

    def _batch(self, settings: Settings, tokens: Tokens) -> int:
        """Set the tokens of a step, a power of two, and return them."""
        base, seq_len = self.reference_batch_tokens, settings.config.train.seq_len
        best = 2 ** round(math.log2(base * tokens.share**EXPONENT))
        law = f"{base:,} * ({tokens.run:,.0f} tokens / {tokens.reference:,.0f})^{EXPONENT}"
        sequences, why = max(best // seq_len, 1), f"2^round(log2({law})), tokens of {tokens.why}"
        if sequences * seq_len != best:
            why += f"; {best:,} in whole sequences"
        return set_batch(settings, sequences, why)

    def _steps(self, settings: Settings, ends_by: str, batch: int, count: int) -> None:
        """Set the number of steps."""
        ratio, flops = self.target_param_data_ratio, self.target_flops
        if ends_by in horizon.BUDGETS:
            horizon.set_budget(settings, ends_by, batch)
            return
        if ends_by == FLOPS and flops is not None:
            each = settings.config.model.flops_per_token(settings.config.train.seq_len) * batch
            steps, why = round(flops / each), f"{flops:g} FLOPs / ({each:,} a step of {batch:,})"
            less, hint = f"scaling.target_flops={flops:g}", f"scaling.target_flops={each:.3g}"
        else:
            steps, why = (
                int(ratio * count) // batch,
                f"{ratio:g} * {count:,} parameters // {batch:,}",
            )
            less, each = f"scaling.target_param_data_ratio={ratio:g}", batch
            hint = f"scaling.target_param_data_ratio={math.ceil(100 * batch / count) / 100:g}"
        if steps < 1 and ends_by != STEPS:
            unit = "FLOPs" if ends_by == FLOPS else "tokens"
            message = f"{less} is less than one step, which takes {each:,} {unit}."
            settings.refuse(less, message, f"{hint} or more, or a smaller {TOKENS}=...")
        else:
            set_steps(settings, ends_by, steps, why)

    def _scale(self, settings: Settings, batch: int, tokens: Tokens) -> None:
        """Set learning rates and weight decay."""
        optimizer, base = settings.config.optimizer, self.reference_batch_tokens
        if self.scale_rates is None:
            widths = (entry.get("lr_base_dim") for entry in optimizer.groups.values())
            scaled, why = bool(optimizer.lr_base_dim or any(widths)), "rates have an lr_base_dim"
            if not scaled:
                why = "no rate says which width it is of: learning rates and decay stay as they are"
            settings.set("scaling.scale_rates", scaled, why)
        if not settings.get("scaling.scale_rates"):
            return
        factor, times = math.sqrt(batch / base), f"* sqrt({batch:,} / {base:,})"
        rates = {"optimizer.lr": optimizer.lr}
        for name, entry in optimizer.groups.items():
            if "lr" in entry and entry.get("roles") != [GATE]:
                rates[f"optimizer.groups.{name}.lr"] = entry["lr"]
        for key, rate in rates.items():
            self._set_rate(settings, key, rate * factor, f"{rate:g} {times}")
        decay = optimizer.weight_decay * factor / tokens.share
        why = f"{optimizer.weight_decay:g} {times} * {tokens.reference:,.0f} / {tokens.run:,.0f}"
        self._set_rate(settings, "optimizer.weight_decay", decay, why)

    def _set_rate(self, settings: Settings, key: str, value: float, why: str) -> None:
        settings.set(key, value, why, over_typed=self.scale_typed)

    def facts(self, config: Any) -> list[Row]:
        model, ratio = config.decoder, self.target_param_data_ratio
        if model is None:
            return []
        count, reference = parameters(model), self.reference_parameters(model)
        return [
            ("parameters that scale", f"{count:,} (blocks and output head)"),
            (f"of depth {self.reference_depth}", f"{reference:,}"),
            (f"{ratio:g} tokens for each", f"{int(ratio * count):,}"),
            ("FLOPs a token", f"{model.flops_per_token(config.train.seq_len):,}"),
        ]


def ffn_width(model: Decoder) -> tuple[int, str]:
    """Width of the feed-forward layer for a width of the model, and the formula."""
    if not model.is_gated:
        return 4 * model.dim, f"4 * {model.dim}"
    open_model = model.clone()
    open_model.thaw()
    open_model.ffn_hidden_dim = None
    return open_model.computed_ffn_hidden_dim, f"Llama's rule for {model.dim}, with a gate"
