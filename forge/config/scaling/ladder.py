"""OLMo-core's ladder: batch, learning rate, warm-up and steps of a size, by its laws.

The laws are those of src/olmo_core/model_ladder/wsds_chinchilla_run_configurator.py of
allenai/OLMo-core, which takes batch and rate from arXiv:2406.19146; the sizes are its OLMo 3
models. In our words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from forge.config.field import opt, section
from forge.config.model.decoder import Decoder
from forge.config.optimizers.schedules import WSD, Constant
from forge.config.rule import Findings, rule
from forge.config.scaling import horizon
from forge.config.scaling.base import Row, Scaling, Settings
from forge.config.scaling.horizon import MULTIPLE, STEPS
from forge.config.sweeper import Sweeper

RUNG = "scaling.size"
REFERENCE = 108_000_000
"""Parameters that the published batch and rate are of."""
BATCH, RATE = 160 * 2048, 0.0047
LARGE = 524_288
"""Tokens a step from which the second moment is kept over fewer steps."""


class Size(NamedTuple):
    """The shape of a rung."""

    dim: int
    layers: int
    heads: int
    ffn: int


SIZES = {
    "190M": Size(768, 12, 12, 3072),
    "370M": Size(1024, 16, 16, 4096),
    "600M": Size(1280, 16, 16, 5120),
    "760M": Size(1536, 16, 16, 6144),
    "1B": Size(2048, 16, 16, 8192),
    "3B": Size(3328, 16, 16, 13312),
    "7B": Size(4096, 32, 32, 11008),
    "13B": Size(5120, 40, 40, 13824),
}


@section
class Ladder(Scaling):
    """OLMo-core's ladder: widths of a size; batch, learning rate, warm-up and steps by its laws."""

    schema_name = "ladder"
    size: str = opt("190M", "rung of the ladder, by its name in OLMo-core", choices=tuple(SIZES))
    seq_len: int = opt(8192, "tokens a sequence", gt=0)
    chinchilla_multiple: float = opt(
        1.0, "length of the run, in tokens_per_param a parameter", gt=0
    )
    tokens_per_param: float = opt(20.0, "tokens a parameter at a chinchilla_multiple of 1", gt=0)
    lr_multiplier: float = opt(1.0, "factor of the learning rate of the law", gt=0)
    batch_multiple: int = opt(8, "sequences a step are a multiple of this", gt=0)

    def shape(self, settings: Settings) -> None:
        if settings.lacks_decoder():
            return
        shape = SIZES[self.size]
        why = f"OLMo 3 of {self.size}"
        settings.set("model.dim", shape.dim, why)
        settings.set("model.n_layers", shape.layers, why)
        heads = settings.set("model.n_heads", shape.heads, why)
        settings.set("model.n_kv_heads", heads, "as many as model.n_heads")
        settings.set(
            "model.head_dim", settings.get("model.dim") // heads, "model.dim / model.n_heads"
        )
        settings.set("model.ffn_hidden_dim", shape.ffn, why)
        length = settings.set("train.seq_len", self.seq_len, "scaling.seq_len")
        settings.set("model.max_seq_len", length, f"train.seq_len={length}")

    def rates(self, settings: Settings) -> None:
        ends_by = horizon.chosen(settings, MULTIPLE)
        if not ends_by:
            return
        number = non_embedding(settings.config.model)
        batch = self._batch(settings, number)
        if not self._steps(settings, ends_by, number, batch):
            return
        scheduler = settings.config.scheduler
        if isinstance(scheduler, Constant):
            warmup = min(round(number / batch), settings.get(STEPS))
            why = f"a token for each of {number:,} parameters / {batch:,}"
            settings.set("scheduler.warmup_steps", warmup, why)
        self._optimizer(settings, number, batch)

    def _steps(self, settings: Settings, ends_by: str, number: int, batch: int) -> bool:
        """Set the number of steps; False where there is not one."""
        if ends_by in horizon.BUDGETS:
            horizon.set_budget(settings, ends_by, batch)
            return True
        tokens = self.tokens_per_param * self.chinchilla_multiple * number
        steps = round(tokens / batch)
        if steps < 1 and ends_by != STEPS:
            key = f"{MULTIPLE}={self.chinchilla_multiple:g}"
            message = f"{tokens:,.0f} tokens are less than one step, which has {batch:,}."
            least = batch / (self.tokens_per_param * number)
            settings.refuse(key, message, f"{MULTIPLE}={1.01 * least:.2g}")
            return False
        horizon.set_steps(
            settings,
            ends_by,
            steps,
            f"{self.tokens_per_param:g} * {self.chinchilla_multiple:g} * {number:,} parameters / "
            f"{batch:,} tokens",
        )
        return True

    def _batch(self, settings: Settings, number: int) -> int:
        """Set the tokens of a step and return them."""
        law = BATCH * (number / REFERENCE) ** (2 / 3)
        seq_len, unit = settings.get("train.seq_len"), self.batch_multiple
        sequences = max(round(law / seq_len / unit), 1) * unit
        why = f"{BATCH:,} * ({number:,} / {REFERENCE:,})^(2/3) = {law:,.0f}, in {unit} sequences"
        return horizon.set_batch(settings, sequences, why)

    def _optimizer(self, settings: Settings, number: int, batch: int) -> None:
        """Set learning rate, decay and betas of an optimizer of Adam's kind."""
        if not hasattr(settings.config.optimizer, "eps"):
            settings.note("optimizer.lr", "the law is of AdamW: the rate stays as it is")
            return
        rate = RATE * (number / REFERENCE) ** (-1 / 3) * self.lr_multiplier
        why = f"{RATE} * ({number:,} / {REFERENCE:,})^(-1/3) * {self.lr_multiplier:g}"
        if isinstance(settings.config.scheduler, WSD):
            rate, why = rate / 2, f"{why} / 2 of scheduler=wsd"
        settings.set("optimizer.lr", rate, why)
        settings.set("optimizer.weight_decay", 0.1, "OLMo-core's")
        settings.set("optimizer.decay_embeddings", False, "OLMo-core's")
        beta = 0.95 if batch >= LARGE else 0.99
        side = "from" if batch >= LARGE else "below"
        settings.set("optimizer.betas", [0.9, beta], f"{side} {LARGE:,} tokens a step")

    def facts(self, config: Any) -> list[Row]:
        number = non_embedding(config.model)
        chinchilla = (config.train.global_batch_tokens or 0) * config.train.max_steps / number
        chinchilla /= self.tokens_per_param
        return [
            ("parameters that scale", f"{number:,} (all but the embedding)"),
            ("length in Chinchilla's", f"{chinchilla:.3g} * {self.tokens_per_param:g} a parameter"),
        ]


def non_embedding(model: Decoder) -> int:
    """All parameters but the embedding table, as OLMo-core counts them: the head is among them."""
    return model.num_params_estimate - model.vocab_size * model.dim


@rule("scaling.rungs", RUNG, "sweeper.params")
def rungs(scaling: Ladder, sweeper: Sweeper) -> Findings:
    """A ladder has two sizes or more: sweeper.params has several of scaling.size."""
    sizes = sweeper.params.get(RUNG)
    if sizes is not None and "," not in str(sizes):
        hint = f"\"sweeper.params={{{RUNG}:'190M,370M,760M'}}\""
        message = f"a ladder of one size, {sizes}, has no law."
        yield "sweeper.params", message, hint
