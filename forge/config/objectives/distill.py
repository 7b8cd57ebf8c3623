"""Distillation: what a student learns from a teacher beside its text."""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from forge.config.field import Condition, Section, opt, section
from forge.config.objectives.base import FP32, HeadShape, NextToken, auto_chunk_size
from forge.config.rule import Findings, rule

if TYPE_CHECKING:
    from forge.config.data.text import Data
    from forge.config.parallel import Parallel
    from forge.config.train import Train

SOFT = ("forward_kl", "reverse_kl", "jsd", "tvd")
TERMS = ("hard", *SOFT, "feature")
COPIES = 8  # of a chunk's logits: of both models, their logarithms, probabilities and slopes
OFFLINE = Condition(
    lambda config, ranks: config.objective.offline is not None, "with objective.offline=null"
)
FEATURES = Condition(
    lambda config, ranks: config.objective.feature.ever, "with objective.feature.value=0"
)
ONLINE = Condition(lambda config, ranks: config.objective.offline is None, "with objective.offline")
ON_POLICY = Condition(lambda config, ranks: config.objective.lmbda > 0, "with objective.lmbda=0")
JSD = Condition(lambda config, ranks: config.objective.jsd.ever, "with objective.jsd.value=0")


@section
class Scheduled(Section):
    """A number that may move over the run, from `value` to `end`."""

    value: float = opt(0.0, "the number, at the first step", ge=0)
    end: float | None = opt(None, "the number at the end of the run; null = it stays", ge=0)
    schedule: str = opt(
        "constant",
        "how it moves to end: in a line, or in half a cosine",
        choices=("constant", "linear", "cosine"),
    )

    @property
    def ever(self) -> bool:
        """Whether the number is ever above 0."""
        return max(self.value, self.end or 0.0) > 0

    def at(self, progress: float) -> float:
        """The number at a share of the run, 0 to 1."""
        if self.end is None or self.schedule == "constant":
            return self.value
        if self.schedule == "cosine":
            progress = (1 - math.cos(math.pi * progress)) / 2
        return self.value + (self.end - self.value) * progress


def scheduled(value: float, help: str) -> Any:
    """An option of a term: its weight over the run."""
    return field(default_factory=lambda: Scheduled(value=value), metadata={"help": help})


@section
class Distill(NextToken):
    """A student learns the teacher's distribution of each next token (arXiv:1503.02531), beside the
    token itself: the sum of hard * cross-entropy, temperature^2 * the weighted divergences, and
    feature * the distance of hidden states, over the learned tokens.
    """

    schema_name = "distill"
    reads_documents = True
    _target_: str = "forge.objectives.distill.Distill"
    teacher: str | None = opt(
        None,
        "a run, a checkpoint, or a folder of Hugging Face with the run's tokenizer; it is laid out "
        "as the student, or by teacher_tp",
        path=True,
    )
    teacher_tp: int = opt(
        0,
        "ranks that share each layer of the teacher beside a student without tp, and read the "
        "batches of one another; 0 = it is laid out as the student",
        ge=0,
        free=True,
        acts_when=ONLINE,
    )
    offline: str | None = opt(
        None, "a folder of python -m forge.teach, in place of a teacher", path=True
    )
    hard: Scheduled = scheduled(0.5, "weight of cross-entropy with the text")
    forward_kl: Scheduled = scheduled(0.5, "weight of KL(teacher || student)")
    reverse_kl: Scheduled = scheduled(0.0, "weight of KL(student || teacher)")
    jsd: Scheduled = scheduled(0.0, "weight of the generalised Jensen-Shannon divergence")
    tvd: Scheduled = scheduled(0.0, "weight of the total variation distance")
    feature: Scheduled = scheduled(0.0, "weight of the distance of hidden states")
    temperature: Scheduled = scheduled(1.0, "softmax temperature of both models' divergences")
    jsd_beta: float = opt(
        0.5,
        "weight of the teacher in the mixture: 0 is forward_kl, 1 reverse_kl (as TRL has it)",
        ge=0,
        le=1,
        acts_when=JSD,
    )
    tail: str = opt(
        "bucket",
        "tokens that offline has no probability of: one outcome together, a lower bound of the "
        "divergence; or impossible for the teacher; or left out of both softmaxes",
        choices=("bucket", "zero", "renormalise"),
        acts_when=OFFLINE,
    )
    feature_loss: str = opt(
        "cosine", "1 - cosine, or the mean square", choices=("cosine", "l2"), acts_when=FEATURES
    )
    feature_layers: list[int] = opt(
        [], "layers of the student whose output is compared; [] = the last", acts_when=FEATURES
    )
    teacher_layers: list[int] = opt(
        [], "the teacher's layer for each of these; [] = the same", acts_when=FEATURES
    )
    lmbda: float = opt(
        0.0,
        "lambda: share of rows whose last response the student writes again before it learns from "
        "it (on-policy distillation, GKD, arXiv:2306.13649)",
        ge=0,
        le=1,
    )
    max_new_tokens: int = opt(
        128, "tokens of what the student writes, at most", gt=0, acts_when=ON_POLICY
    )
    sampling_temperature: float = opt(
        1.0, "softmax temperature of its writing", gt=0, acts_when=ON_POLICY
    )
    ce_chunk_size: int = opt(0, "tokens a chunk; 0 = by the vocabulary", ge=0)

    @property
    def chunked(self) -> bool:
        return True

    @property
    def extra_sums(self) -> int:
        return sum(getattr(self, name).ever for name in TERMS)

    def frozen_models(self) -> dict[str, str | None]:
        return {} if self.offline is not None else {"teacher": self.teacher}

    def layout_of_frozen(self, parallel: Parallel) -> Parallel:
        if self.teacher_tp < 2:
            return parallel
        shards = parallel.dp_replicate * parallel.dp_shard // self.teacher_tp
        degrees = {"dp_replicate": 1, "dp_shard": shards, "tp": self.teacher_tp}
        return replace(parallel, **degrees, sequence_parallel=False)

    def logits_bytes(self, head: HeadShape) -> int:
        """Bytes of the loss: what a chunk has of both models' logits, and gradients."""
        auto = max(auto_chunk_size(vocab=head.vocab, dim=head.dim) // 2, 1)
        rows = min(self.ce_chunk_size or auto, head.tokens)
        of_head = FP32 * head.dim * head.vocab if head.trained else 0
        return COPIES * FP32 * head.vocab * rows + head.width * head.dim * head.tokens + of_head


@rule("distill.teacher", "objective.teacher", "objective.offline")
def teacher_or_offline(objective: Distill) -> Findings:
    """A student learns from objective.teacher or from objective.offline."""
    if objective.teacher is None and objective.offline is None:
        message = "there is no teacher to learn from."
        yield "objective.teacher", message, "objective.teacher=runs/teacher"
    elif objective.teacher is not None and objective.offline is not None:
        message = "objective.offline stands in place of a teacher, and both are given."
        yield "objective.offline", message, "objective.offline=null; objective.teacher=null"


@rule("distill.schedule", *(f"objective.{n}.{o}" for n in TERMS for o in ("end", "schedule")))
def schedules(objective: Distill) -> Findings:
    """A weight moves with both an end and a schedule other than constant."""
    for name in (*TERMS, "temperature"):
        weight, key = getattr(objective, name), f"objective.{name}"
        if weight.end is not None and weight.schedule == "constant":
            message = f"{key}.end says where it moves to, and {key}.schedule is constant."
            yield f"{key}.schedule", message, f"{key}.schedule=linear; {key}.end=null"
        elif weight.end is None and weight.schedule != "constant":
            message = f"{key}.schedule moves it to {key}.end, which is null."
            yield f"{key}.end", message, f"{key}.end=0.1; {key}.schedule=constant"


@rule("distill.terms", "objective.temperature.value", "objective.temperature.end")
def terms(objective: Distill) -> Findings:
    """Some term has a weight above 0, and the temperature is above 0."""
    if not any(getattr(objective, name).ever for name in TERMS):
        yield "objective.forward_kl.value", "no term has a weight.", "objective.forward_kl.value=1"
    for option in ("value", "end"):
        if getattr(objective.temperature, option) == 0:
            key = f"objective.temperature.{option}"
            yield key, "the temperature divides logits.", f"{key}=1"


@rule("distill.offline", "objective.offline", "objective.tail")
def of_offline(objective: Distill) -> Findings:
    """Stored probabilities have one temperature and no hidden states; objective.tail=zero makes
    reverse_kl infinite.
    """
    if objective.offline is None:
        return
    if objective.feature.ever:
        yield "objective.feature.value", "", "objective.feature.value=0 objective.feature.end=null"
    if objective.temperature.end is not None:
        hint = "objective.temperature.end=null objective.temperature.schedule=constant"
        yield "objective.temperature.end", "", hint
    one_sided = objective.reverse_kl.ever or (objective.jsd.ever and objective.jsd_beta == 1)
    if objective.tail == "zero" and one_sided:
        yield "objective.tail", "objective.tail=bucket"


@rule("distill.feature", "objective.feature.value", "parallel.tp", "train.compile_model")
def of_features(objective: Distill, parallel: Parallel, train: Train) -> Findings:
    """Hidden states of layers are compared where a rank has them whole and uncompiled: with
    parallel.tp=1 and train.compile_model=false.
    """
    if not objective.feature.ever:
        return
    if parallel.tp > 1:
        yield "parallel.tp", "parallel.tp=1"
    if train.compile_model:
        yield "train.compile_model", "train.compile_model=false"


@rule("distill.on_policy", "objective.lmbda", "objective.offline", "objective.hard.value")
def on_policy(objective: Distill) -> Findings:
    """With objective.lmbda a teacher reads what the student wrote, whose cross-entropy with itself
    teaches nothing.
    """
    if objective.lmbda and objective.offline is not None:
        message = "objective.offline has probabilities of the stored text alone."
        yield "objective.lmbda", message, "objective.lmbda=0"
    if objective.lmbda and objective.hard.ever:
        message = "the expected gradient of that term is 0: it only adds noise."
        hint = "objective.hard.value=0 objective.hard.end=null"
        yield "objective.hard.value", message, hint


@rule("distill.on_policy_data", "objective.lmbda", "data._target_", "data.packing")
def on_policy_data(objective: Distill, data: Data, train: Train) -> Findings:
    """objective.lmbda reads prompts of data with responses, one in each row of a step."""
    if not objective.lmbda:
        return
    if not data.marks_responses:
        message = "nothing of this text is marked as a response, so there is no prompt."
        yield "objective.lmbda", message, "objective.lmbda=0; or data=pairs data.path=my.jsonl"
    elif data.packing != "none":
        yield "data.packing", "data.packing=none"
    if train.seq_len_stages:
        yield "train.seq_len_stages", "train.seq_len_stages={}"


@rule("distill.on_policy_layout", "objective.lmbda", "parallel.pp", "parallel.cp")
def on_policy_layout(objective: Distill, parallel: Parallel) -> Findings:
    """A student writes token by token on one, ddp, fsdp, tp and ep layouts."""
    for name in ("pp", "cp") if objective.lmbda else ():
        if getattr(parallel, name) > 1:
            message = "a token is one position of one stage: the other ranks would wait."
            yield f"parallel.{name}", message, f"parallel.{name}=1"


@rule("distill.teacher_tp", "objective.teacher_tp", "parallel.tp", "parallel.cp", "parallel.ep")
def teacher_tp(objective: Distill, parallel: Parallel) -> Findings:
    """objective.teacher_tp divides the ranks of a student that has data parallelism alone."""
    degree, ranks = objective.teacher_tp, parallel.dp_replicate * parallel.dp_shard
    if degree < 2:
        return
    shared = [name for name in ("tp", "cp", "ep", "pp") if getattr(parallel, name) > 1]
    for name in shared:
        message = "ranks of the student share a batch, and the teacher would read it twice."
        yield f"parallel.{name}", message, "objective.teacher_tp=0"
    if ranks % degree and not shared:
        message = f"it does not divide the ranks of the student, {ranks}."
        yield "objective.teacher_tp", message, "objective.teacher_tp=0"
    if objective.feature.ever:
        message = "hidden states of the teacher's layers are of the batches of all ranks together."
        yield "objective.feature.value", message, "objective.teacher_tp=0"
