"""Learning from preferences: `data=preference` and `data=labelled`, and the objectives that read
them.
"""

from __future__ import annotations

from dataclasses import replace

from forge.config.data.chats import ChatRows, Chats
from forge.config.data.text import Documents, Files, Rows, Streams
from forge.config.field import Condition, Section, opt, section
from forge.config.objectives.base import HeadShape, Objective

READS_REFERENCE = Condition(
    lambda config, ranks: not config.objective.reference_free, "with objective.reference_free=true"
)
SIGMOID = Condition(
    lambda config, ranks: config.objective.loss_fn == "sigmoid",
    "with objective.loss_fn=hinge or ipo",
)
EXAMPLES = {
    "": "running text",
    "pairs": "pairs of responses",
    "labels": "responses with a label",
    "prompts": "prompts",
}
LOSSES = ("sigmoid", "hinge", "ipo")
SMOOTHING = "probability that a label is wrong (conservative DPO); 0 = off"


@section
class LongExamples(Section):
    """What becomes of examples longer than a row."""

    too_long: str = opt(
        "truncate",
        "what becomes of an example with more than seq_len + 1 tokens on a side",
        choices=("truncate", "drop", "refuse"),
    )


@section
class LabelField(Section):
    """The label of a response."""

    label_field: str = opt(
        "label", "field with true for a desirable response, false for an undesirable one"
    )


@section
class PreferencePairs(LongExamples, Streams, Documents, Rows, Files):
    """Prompts with a response that is preferred and one that is not, in JSON lines."""

    schema_name = "preference"
    examples = "pairs"
    _target_: str = "forge.data.sources.preferences.preference"
    prompt_field: str = opt("prompt", "field of the text that both responses follow")
    chosen_field: str = opt("chosen", "field of the response that is preferred")
    rejected_field: str = opt("rejected", "field of the other response")


@section
class ChatPreference(LongExamples, Streams, ChatRows):
    """Rows of two conversations that end with another turn of the assistant, as lists of messages;
    or of such turns, or texts, after a prompt.
    """

    schema_name = "chat_preference"
    examples = "pairs"
    _target_: str = "forge.data.sources.preferences.chat_preference"
    prompt_field: str = opt("prompt", "field of what both follow, where they do not begin with it")
    chosen_field: str = opt("chosen", "field of the conversation that is preferred, or its end")
    rejected_field: str = opt("rejected", "field of the other one")
    train_on: str = opt(
        "last_response",
        "what is compared: the last turns of the assistant, all of them, or all tokens",
        choices=("all", "responses", "last_response"),
    )


@section
class PreferenceDemo(LongExamples, Chats):
    """Answers of data=chat_demo against the same words in another order; without a download
    (PSF-2.0).
    """

    schema_name = "preference_demo"
    examples = "pairs"
    prompt = "What does Path.exists do?"
    _target_: str = "forge.data.sources.preferences.preference_demo"


@section
class Labelled(LabelField, LongExamples, Streams, Documents, Rows, Files):
    """Prompts with a response that is desirable or is not, in JSON lines."""

    schema_name = "labelled"
    examples = "labels"
    _target_: str = "forge.data.sources.labelled.labelled"
    prompt_field: str = opt("prompt", "field of the text that the response follows")
    completion_field: str = opt("completion", "field of the response")


@section
class ChatLabelled(LabelField, LongExamples, Streams, ChatRows):
    """Rows of a conversation that ends with a turn of the assistant, which is desirable or not, as
    messages; or of such a turn, or a text, after a prompt.
    """

    schema_name = "chat_labelled"
    examples = "labels"
    _target_: str = "forge.data.sources.labelled.chat_labelled"
    prompt_field: str = opt("prompt", "field of what it answers, a text or messages")
    completion_field: str = opt("completion", "field of the answer, a text or messages")
    train_on: str = opt(
        "last_response",
        "what the label is of: the last turn of the assistant, all of them, or all tokens",
        choices=("all", "responses", "last_response"),
    )


@section
class Responses(Objective):
    """Base of objectives on log-probabilities of whole responses."""

    def logits_bytes(self, head: HeadShape) -> int:
        """Bytes of the loss, as in chunked cross-entropy."""
        return replace(head, compiled=False).chunked_bytes()


@section
class Referenced(Responses):
    """Base of those that compare a response with what a reference gives it."""

    reference_free = False
    beta: float = opt(0.1, "strength of the pull towards the reference", gt=0)
    reference: str = opt(
        "auto",
        "log-probabilities of the reference: cached before training; from a frozen copy in "
        "each step; or from the model without its adapter; auto = adapter where it is the "
        "reference, else cached, for a stream copy",
        choices=("auto", "cached", "copy", "adapter"),
        acts_when=READS_REFERENCE,
    )
    reference_model: str | None = opt(
        None,
        "run or checkpoint of the reference; null = the initial weights, those of "
        "checkpoint.init_from",
        path=True,
        acts_when=READS_REFERENCE,
    )

    @property
    def cached_model(self) -> bool:
        """Whether the reference is read before training alone."""
        return not self.reference_free and self.reference == "cached"

    def frozen_models(self) -> dict[str, str | None]:
        copied = not self.reference_free and self.reference == "copy"
        return {"reference": self.reference_model} if copied else {}


@section
class Preference(Responses):
    """Base of objectives that compare two responses to one prompt; the loss is a mean over pairs.

    A reward is what the loss compares, as each objective says; margin: that of the chosen response
    less that of the rejected one. accuracy: share of pairs with a margin above 0. logp: of all
    tokens of a response.
    """

    metrics = (
        "loss",
        "accuracy",
        "margin",
        "reward_chosen",
        "reward_rejected",
        "logp_chosen",
        "logp_rejected",
    )
    higher_is_better = frozenset({"accuracy", "margin", "reward_chosen"})
    compares = ("pairs",)
    rows = 2


@section
class DPO(Preference, Referenced):
    """Direct preference optimization (arXiv:2305.18290): a reward is beta times how much likelier a
    response is than with the reference. kl: mean log-ratio to it of both responses, in nats.
    """

    schema_name = "dpo"
    metrics = (*Preference.metrics, "kl")
    _target_: str = "forge.objectives.dpo.DPO"
    loss_fn: str = opt("sigmoid", "or hinge (SLiC), or ipo (arXiv:2310.12036)", choices=LOSSES)
    beta: float = opt(0.1, "strength of the pull towards the reference; of ipo its tau", gt=0)
    label_smoothing: float = opt(0.0, SMOOTHING, ge=0, le=1, acts_when=SIGMOID)
    reference_free: bool = opt(False, "compare the log-probabilities alone, without a reference")


@section
class KTO(Referenced):
    """Kahneman-Tversky optimization (arXiv:2402.01306) of responses with a label, desirable or not:
    a reward is beta times how much likelier a response is than with the reference.

    kl: mean log-ratio to it, in nats, of responses to other prompts, at least 0; margin: how far a
    reward is on its label's side of beta * kl. accuracy: share of examples with a margin above 0.
    Rewards and logp are means over the examples of a label; logp is of all tokens of a response.
    """

    schema_name = "kto"
    metrics = (
        "loss",
        "accuracy",
        "margin",
        "kl",
        "reward_desirable",
        "reward_undesirable",
        "logp_desirable",
        "logp_undesirable",
    )
    higher_is_better = frozenset({"accuracy", "margin", "reward_desirable"})
    compares = ("labels",)
    rows_ahead = 1
    _target_: str = "forge.objectives.kto.KTO"
    desirable_weight: float = opt(1.0, "weight of desirable examples", gt=0)
    undesirable_weight: float = opt(1.0, "weight of undesirable examples", gt=0)


@section
class ORPO(Preference):
    """Odds ratio preference optimization (arXiv:2403.07691), with no reference: cross-entropy of
    the chosen response, per token, and how likely it is against the other.

    A reward is lambda_weight times the log-probability per token.
    """

    schema_name = "orpo"
    metrics = (*Preference.metrics, "nll", "log_odds")
    _target_: str = "forge.objectives.orpo.ORPO"
    lambda_weight: float = opt(0.1, "weight of the odds ratio", gt=0)


@section
class SimPO(Preference):
    """SimPO (arXiv:2405.14734), with no reference: a reward is beta times the log-probability per
    token.
    """

    schema_name = "simpo"
    _target_: str = "forge.objectives.simpo.SimPO"
    beta: float = opt(2.0, "factor of the log-probability per token", gt=0)
    gamma: float = opt(0.5, "target margin of the rewards", ge=0)
    label_smoothing: float = opt(0.0, SMOOTHING, ge=0, le=1)


@section
class CPO(Preference):
    """Contrastive preference optimization (arXiv:2401.08417), with no reference: a reward is beta
    times the log-probability; and cross-entropy of the chosen response, per token.
    """

    schema_name = "cpo"
    metrics = (*Preference.metrics, "nll")
    _target_: str = "forge.objectives.cpo.CPO"
    loss_fn: str = opt("sigmoid", "or hinge, or ipo", choices=LOSSES)
    beta: float = opt(0.1, "factor of the log-probability; of ipo its tau", gt=0)
    label_smoothing: float = opt(0.0, SMOOTHING, ge=0, le=1, acts_when=SIGMOID)
    nll_weight: float = opt(1.0, "weight of the cross-entropy", ge=0)
