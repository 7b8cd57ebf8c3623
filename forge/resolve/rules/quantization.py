"""Rules on the numbers that matrices are multiplied in."""

from __future__ import annotations

from dataclasses import replace

from forge.config.model import Decoder, Model
from forge.config.objective import Objective
from forge.config.parallel import Parallel
from forge.config.precision import Precision
from forge.config.quantization import PARTS, Emulated, Quantized
from forge.config.rule import Findings, rule
from forge.config.run import Run

WHICH = ("quantization.parts", "quantization.min_dim", "quantization.exclude")
EMULATE = "quantization.emulate"
HEAD = "quantization.include_head"


@rule("quantization.needs_decoder", *WHICH)
def needs_decoder(model: Model, quantization: Quantized) -> Findings:
    """quantization takes matrices of forge's Decoder, which it knows by their roles."""
    if not isinstance(model, Decoder):
        yield "quantization", "quantization=none"


@rule("quantization.takes_none", *WHICH, HEAD)
def takes_none(model: Decoder, quantization: Quantized) -> Findings:
    """quantization must take a matrix: long enough, and of sides that its numbers divide."""
    if quantization.chosen(model):
        return
    what = f"no matrix has sides of {quantization.min_dim} and more that are multiples of"
    what = f"{what} {quantization.multiple}, among those of quantization.parts."
    shorter = replace(quantization, min_dim=1).chosen(model)
    if shorter:
        least = max(min(one.shape[-2:]) for one in shorter)
        yield "quantization.min_dim", what, f"quantization.min_dim={least}"
    else:
        every = f"quantization.parts=[{','.join(PARTS)}]"
        yield "quantization.min_dim", what, f"{every}, or widths that are such multiples"


@rule("quantization.device", EMULATE, "run.device")
def device(quantization: Emulated, run: Run) -> Findings:
    """Kernels of 8 bits and fewer are for NVIDIA GPUs; quantization.emulate=true has the same
    numbers anywhere.
    """
    if run.device != "cuda" and not quantization.emulate:
        yield EMULATE, f"{EMULATE}=true, or no quantization"


@rule("quantization.precision", EMULATE, "precision.mixed_precision", "run.device")
def precision_of_products(quantization: Emulated, precision: Precision, run: Run) -> Findings:
    """On a GPU quantization=fp8 and its kin give their products in bf16."""
    wanted, here = quantization.on_cuda, precision.mixed_precision
    if run.device == "cuda" and not quantization.emulate and wanted not in ("", here):
        yield "precision.mixed_precision", f"precision={wanted}, or {EMULATE}=true"


@rule("quantization.tp", "parallel.tp")
def tp(quantization: Quantized, parallel: Parallel) -> Findings:
    """quantization rounds whole rows, which parallel.tp cuts, so that it would round otherwise."""
    if parallel.tp > 1 and not quantization.cut:
        yield "parallel.tp", "parallel.tp=1, or no quantization"


@rule("quantization.head", HEAD, "model.tie_embeddings", "objective.loss_fn")
def head(quantization: Quantized, model: Decoder, objective: Objective) -> Findings:
    """quantization.include_head takes a head of its own whose logits are all made at once."""
    if not quantization.include_head:
        return
    if model.tie_embeddings:
        what = "with model.tie_embeddings=true the head is the embedding, which is not rounded."
        yield HEAD, what, f"{HEAD}=false, or model.tie_embeddings=false"
    elif getattr(objective, "loss_fn", "") == "chunked_cross_entropy":
        what = "objective.loss_fn=chunked_cross_entropy makes the products of the head itself."
        yield HEAD, what, f"{HEAD}=false, or objective.loss_fn=cross_entropy"
