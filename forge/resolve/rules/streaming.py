"""Rules on streamed text: read while the run trains."""

from __future__ import annotations

from forge.config.data.text import BUFFERED, Data, Rows
from forge.config.objectives.preference import Referenced
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.config.train import Train
from forge.resolve.rules.borders import all_read


@rule("data.streamed_epochs", "data.hf_streaming", "data.sources", "train.max_epochs")
def epochs(data: Data, train: Train) -> Findings:
    """The length of a stream is not known, so that train.max_epochs cannot end a run on one."""
    if data.streamed and train.max_epochs:
        yield "train.max_epochs", "train.max_epochs=0, and train.max_steps=... ends the run"


@rule(
    "data.streamed_packing",
    "data.hf_streaming",
    "data.sources",
    "data.packing",
    "data.max_segments_per_seq",
)
def packing_of_streams(data: Data) -> Findings:
    """Documents of a stream share a sequence in the order of their arrival: data.packing is
    concat_then_split, next_fit or none.
    """
    if not data.streamed:
        return
    if data.packing in BUFFERED:
        message = (
            "a stream resumes from a position, and documents stay in the buffer for any length of "
            "time: it is planned over prepared text."
        )
        hint = "data.hf_streaming=false, or data.packing=concat_then_split"
        yield "data.packing", message, hint
    elif data.packing in ("first_fit", "best_fit"):
        apart = "data.packing=next_fit, or data.packing=none"
        yield "data.packing", apart if data.pack_sequences else "data.packing=concat_then_split"
    elif data.packing == "concat_then_split" and data.max_segments_per_seq > 0:
        yield "data.max_segments_per_seq", "data.max_segments_per_seq=-1"


@rule("data.streamed_overfit", "data.hf_streaming", "data.sources", "data.overfit_batches")
def overfit(data: Data) -> Findings:
    """A stream goes forward, and data.overfit_batches goes back to its beginning."""
    if data.streamed and data.overfit_batches:
        yield "data.overfit_batches", "data.overfit_batches=0"


@rule("objective.streamed_reference", "objective.reference", "data.hf_streaming", "data.sources")
def streamed_reference(data: Data, objective: Referenced) -> Findings:
    """What the reference gives the examples of a stream is computed in each step: a stream cannot
    be read before training.
    """
    if data.streamed and objective.cached_model:
        yield "objective.reference", "objective.reference=copy"


@rule("data.on_bad_row", "data.on_bad_row", "data.hf_streaming", "data._target_", "data.sources")
def bad_rows(config: Config) -> Findings:
    """Bad rows are left out and counted by forge's own readers."""
    for key, section in all_read(config):
        if not isinstance(section, Rows) or section.on_bad_row == "refuse":
            continue
        if section._target_ != type(section)._target_:
            message = f"{section._target_} is a reader of your own, which leaves out what it will."
            yield f"{key}.on_bad_row", message, f"{key}.on_bad_row=refuse"
