"""Rules on packed sequences: several documents in one sequence, kept apart."""

from __future__ import annotations

from math import prod

from forge.config.data.text import BEST_FIT_PAD, BUFFERED, Data
from forge.config.model.decoder import Decoder
from forge.config.model.document_attention import why_not_flex
from forge.config.model.layer import Model
from forge.config.objectives.base import Objective
from forge.config.parallel import Parallel
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.config.train import Train
from forge.planning.world import World
from forge.resolve.layout import PADDED, why_whole_rows

OPTION = "data.pack_sequences"
WITHOUT_MASK = ("flash", "cudnn")
"""Kernels of attention without a mask."""


@rule(OPTION, OPTION, "model.mixer", "model.kinds", "model.layers")
def pack_sequences(data: Data, model: Model, objective: Objective) -> Findings:
    """With data.pack_sequences the objective, the model and the mixers of its layers must keep
    documents apart.
    """
    if not data.pack_sequences or "" not in objective.compares:  # preferences have a rule
        return
    mixers = (layer.mixer for _, layer in model.in_use())
    for section in (objective, model, *mixers):
        # A user's class in a section of forge may do less than the section says.
        if not section.reads_documents or section._target_ != type(section)._target_:
            message = f"{section._target_} reads a sequence as one text."
            yield OPTION, message, f"{OPTION}=false"
            return


@rule("data.pack_kernel", OPTION, "model.sdpa_backend")
def pack_kernel(data: Data, model: Decoder) -> Findings:
    """With data.pack_sequences the kernel of attention must take a mask: model.sdpa_backend is
    auto, efficient or math.
    """
    if data.pack_sequences and model.sdpa_backend in WITHOUT_MASK:
        yield "model.sdpa_backend", "model.sdpa_backend=auto"


@rule(
    "model.document_attention",
    "model.document_attention",
    OPTION,
    "model.mixer",
    "parallel.cp",
    "train.compile_model",
    "train.compile_backend",
)
def document_attention(
    data: Data, model: Decoder, parallel: Parallel, train: Train, world: World
) -> Findings:
    """flex_attention, which model.document_attention=flex asks for, must run there."""
    asked = data.pack_sequences and model.document_attention == "flex"
    if asked and (reason := why_not_flex(model, parallel, train, world.device)):
        hint = "model.document_attention=auto"
        yield "model.document_attention", f"flex_attention does not run: {reason}.", hint


@rule("data.packing", "data.packing", "data.max_segments_per_seq", OPTION)
def packing(data: Data, objective: Objective) -> Findings:
    """Which documents share a sequence is planned where they are kept apart, with
    data.pack_sequences; and by best_fit_crop and best_fit_pad.
    """
    if data.pack_sequences or data.packing in BUFFERED or "" not in objective.compares:
        return
    if data.packing != "concat_then_split":
        yield "data.packing", f"{OPTION}=true"
    elif data.max_segments_per_seq > 0:
        yield "data.max_segments_per_seq", f"{OPTION}=true"


@rule("data.too_long", "data.too_long", "data.packing")
def too_long(data: Data) -> Findings:
    """data.too_long is obeyed where whole documents are packed, or are examples; best_fit_pad
    divides none.
    """
    if data.packing == BEST_FIT_PAD and data.too_long == "split":
        yield "data.too_long", "data.too_long=truncate, drop or refuse"
    if not data.examples and data.too_long != "split" and data.packing == "concat_then_split":
        hint = f"data.packing=best_fit {OPTION}=true, or data.too_long=split"
        yield "data.too_long", hint


@rule(PADDED, PADDED, "data.packing", "parallel.pp", "parallel.tp", "parallel.cp")
def padded(config: Config, parallel: Parallel) -> Findings:
    """Rows end before train.seq_len where each is one document or example; cp and tp cut them."""
    multiple = config.data.pad_to_multiple_of
    if multiple <= 0:
        return
    if why := why_whole_rows(config):
        yield PADDED, f"rows cannot end before train.seq_len: {why}.", f"{PADDED}=0"
    elif multiple % (parts := prod(parallel.sequence_factors.values())):
        factors = " * ".join(parallel.sequence_factors)
        yield PADDED, f"rows are cut into {factors} parts ({parts}).", f"{PADDED}={parts}"
