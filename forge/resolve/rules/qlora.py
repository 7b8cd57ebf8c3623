"""Rules on QLoRA: base weights kept in few bits."""

from __future__ import annotations

from forge.config.adapters.packed import BLOCK
from forge.config.adapters.qlora import QLoRA
from forge.config.model.decoder import Decoder
from forge.config.parallel import Parallel
from forge.config.quantization import Quantization
from forge.config.rule import Findings, rule


@rule("adapter.packed", "adapter", "model")
def packed(model: Decoder, adapter: QLoRA) -> Findings:
    """adapter=qlora keeps in few bits the matrices of blocks whose rows are whole blocks of 64
    weights, of which a model has some.
    """
    if not any(map(adapter.packs, model.tensors())):
        yield "adapter", "adapter=lora, or a model.dim that is a multiple of 64"


@rule("adapter.packed_tp", "parallel.tp", "adapter", "model")
def packed_tp(model: Decoder, adapter: QLoRA, parallel: Parallel) -> Findings:
    """Where tp cuts the rows of weights in few bits, each part has whole blocks of 64 weights."""
    if adapter.base_format == "int8" or parallel.tp < 2:
        return
    for tensor in model.tensors():
        cut = adapter.packs(tensor) and tensor.cut(parallel.tp) == len(tensor.shape) - 1
        if cut and tensor.shape[-1] % (BLOCK * parallel.tp):
            message = (
                f"{tensor.name} has rows of {tensor.shape[-1]} weights, "
                f"which tp={parallel.tp} cuts."
            )
            yield "parallel.tp", message, "parallel.tp=1, or adapter.base_format=int8"
            return


@rule("adapter.packed_products", "quantization", "adapter")
def packed_products(adapter: QLoRA, quantization: Quantization) -> Findings:
    """Weights in few bits are made again for each product, in the numbers of the precision group;
    quantization would round them a second time.
    """
    if quantization.in_products:
        yield "adapter", "adapter=lora"
