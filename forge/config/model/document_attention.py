"""Attention apart for documents in one row: by masks, or in blocks of flex_attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.config.model.decoder import Decoder
from forge.config.model.mixers.attention import Attention

if TYPE_CHECKING:
    from forge.config.parallel import Parallel
    from forge.config.root import Config
    from forge.config.train import Train

LEAST_HEAD = 16  # width of the narrowest head of flex_attention on a GPU


def in_blocks(config: Config, device: str) -> bool:
    """Whether documents are kept apart in blocks, by model.document_attention.

    device: the type of the device.
    """
    model, train = config.decoder, config.train
    if not config.data.pack_sequences or model is None:
        return False
    if model.document_attention != "auto":
        return model.document_attention == "flex"
    usual = model.sdpa_backend == "auto" and config.precision.mixed_precision != "fp32"
    return usual and not why_not_flex(model, config.parallel, train, device)


def why_not_flex(model: Decoder, parallel: Parallel, train: Train, device: str) -> str:
    """Return the reason against flex_attention, empty without a reason."""
    if device != "cuda":
        return f"it has no backward pass with run.device={device}"
    if parallel.cp > 1:
        return f"parallel.cp={parallel.cp} cuts masks over ranks, and not blocks"
    if not train.compile_model or train.compile_backend != "inductor":
        return "it is a kernel only with train.compile_model=true train.compile_backend=inductor"
    for _, layer in model.in_use():
        if layer.mixer.recurrent:
            continue
        if layer.mixer._target_ != Attention._target_:
            return f"{layer.mixer._target_} is given a mask"
        if layer.chooses_blocks(train.seq_len):
            return "model.moba is given a mask of each head"
        if layer.computed_head_dim < LEAST_HEAD:
            return f"it takes heads of {LEAST_HEAD} or more, not {layer.computed_head_dim}"
    return ""
