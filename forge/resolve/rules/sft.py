"""Rules on supervised fine-tuning, and on noise and dropout."""

from __future__ import annotations

from forge.config.data.text import Data
from forge.config.model.decoder import Decoder
from forge.config.model.layer import Model
from forge.config.objectives.base import SFT
from forge.config.rule import Findings, rule


@rule("objective.responses", "objective.weighting", "data.sources", warning=True)
def responses(objective: SFT, data: Data) -> Findings:
    """objective=sft learns what the data marks, such as the responses of data=pairs; of other text
    it learns every token.
    """
    if not data.marks_responses:
        message = "nothing of this text is marked as a response, so every token of it is learnt."
        yield "data", message, "data=pairs data.path=my.jsonl; or objective=pretrain, which says so"


@rule(
    "objective.weighting",
    "objective.weighting",
    "data.pack_sequences",
    "data.packing",
    warning=True,
)
def weighting(objective: SFT, data: Data) -> Findings:
    """objective.weighting=example counts documents where data.pack_sequences keeps them apart, and
    else whole rows, each as one example.
    """
    apart = data.pack_sequences or data.packing == "none"
    if objective.weighting == "example" and not apart:
        yield "objective.weighting", "data.pack_sequences=true, or objective.weighting=token"


@rule("objective.neftune_alpha", "objective.neftune_alpha", "model._target_")
def neftune(objective: SFT, model: Model) -> Findings:
    """NEFTune adds noise to the embeddings of forge's decoders."""
    if objective.neftune_alpha and not takes_noise(model):
        message = f"{model._target_} is a model of your own, which takes no noise."
        yield "objective.neftune_alpha", message, "objective.neftune_alpha=0"


@rule("model.dropout", "model.dropout", "model._target_")
def dropout(model: Decoder) -> Findings:
    """Dropout is that of forge's decoders."""
    if model.dropout and not takes_noise(model):
        message = f"{model._target_} is a model of your own, whose dropout is its own."
        yield "model.dropout", message, "model.dropout=0"


def takes_noise(model: Model) -> bool:
    """Whether the model is forge's own decoder: a user's class in its section may draw no noise."""
    return model.has_blocks and model._target_ == type(model)._target_
