"""Prompts in the `data` group: what a model answers in reinforcement learning."""

from __future__ import annotations

from forge.config.data.text import Data, Files, Rows
from forge.config.field import opt, section


@section
class Prompts(Rows, Files):
    """Rows of JSON lines with a prompt, a text or messages; rewards get the other fields."""

    schema_name = "prompts"
    examples = "prompts"
    tokenized = True  # nothing to train a tokenizer on: the model has one
    _target_: str = "forge.data.sources.prompts.prompts"
    prompt_field: str = opt("prompt", "field of the prompt: a text, or a list of messages")
    as_messages: bool = opt(False, "a prompt that is a text is what the user says, in a chat")
    system_prompt: str | None = opt(None, "what the system says before the messages of a prompt")
    val_fraction: float = opt(
        0.0, "share of prompts held out for validation, chosen by a hash; 0 = none", ge=0, lt=1
    )
    too_long: str = opt(
        "drop",
        "prompts of more than train.seq_len - rollout.max_new_tokens tokens: left out, cut at "
        "their beginning, or refused",
        choices=("drop", "truncate", "refuse"),
    )


@section
class SumsDemo(Data):
    """Sums of one digit to answer, such as 2+3=, with the answer beside; without a download."""

    schema_name = "sums_demo"
    examples = "prompts"
    tokenized = True
    _target_: str = "forge.data.sources.prompts.sums_demo"
    val_fraction: float = opt(
        0.0, "share of prompts held out for validation, chosen by a hash; 0 = none", ge=0, lt=1
    )
