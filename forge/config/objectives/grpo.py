"""Policy optimization from groups of completions: GRPO and its kin, by the options of one loss."""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.adapters.adapter import VALUE_HEAD, Adapter
from forge.config.data.prompts import Prompts
from forge.config.field import Condition, opt, section
from forge.config.model.layer import Model
from forge.config.model.tensors import HEAD, TensorSpec
from forge.config.objectives.base import Objective
from forge.config.objectives.preference import Responses
from forge.config.parallel import Parallel
from forge.config.rollouts.rollout import LocalRollout, Rollout, SampledRollout
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.config.train import Train

PROMPTS = "prompts"
GAE = "gae"
KL_ON = Condition(lambda config, ranks: config.objective.beta > 0, "with objective.beta=0")
CLIPS = Condition(
    lambda config, ranks: config.objective.clip not in ("none", "sapo"),
    "with objective.clip=none or sapo",
)
TWO_SIDED = Condition(lambda config, ranks: config.objective.clip == "two_sided", "without it")
DUAL = Condition(lambda config, ranks: config.objective.clip == "dual", "without it")
SAPO = Condition(lambda config, ranks: config.objective.clip == "sapo", "without it")
COPIED = Condition(
    lambda config, ranks: config.objective.beta > 0 and config.objective.reference == "copy",
    "without a copy as the reference",
)
MOVES = Condition(
    lambda config, ranks: config.objective.beta > 0 and config.objective.reference == "ema",
    "without objective.reference=ema",
)
CRITIC = Condition(
    lambda config, ranks: config.objective.advantage == GAE, "without objective.advantage=gae"
)
CORRECTS = Condition(lambda config, ranks: config.objective.mismatch != "none", "without it")


@section
class GRPO(Responses):
    """Policy optimization: for each learnt token the loss is w (L + beta KL) - c H, where L is a
    clipped product of the advantage and of the ratio of probabilities, and w the weight by
    aggregation (arXiv:2402.03300; presets of the objective group name the other papers).
    """

    schema_name = "grpo"
    compares = (PROMPTS,)
    metrics = ("reward", "best_reward")
    higher_is_better = frozenset({"reward", "best_reward"})
    _target_: str = "forge.objectives.grpo.GRPO"
    advantage: str = opt(
        "group",
        "reward less the group's mean, over the group's deviation; without division (centred); "
        "over the batch's deviation; less the mean of the others (rloo); each reward by its "
        "group, summed, then by the batch (GDPO, arXiv:2601.05242); or of each token, by a value "
        "head (gae, arXiv:1506.02438)",
        choices=("group", "centred", "batch", "rloo", "per_reward", GAE),
    )
    gamma: float = opt(1.0, "discount of later rewards, a token", gt=0, le=1, acts_when=CRITIC)
    lam: float = opt(
        0.95, "lambda: 1 = returns less values, 0 = one token ahead", ge=0, le=1, acts_when=CRITIC
    )
    whiten_advantages: bool = opt(
        True, "mean 0 and deviation 1 over the tokens of the rollout", acts_when=CRITIC
    )
    vf_coef: float = opt(0.1, "weight of the loss of the value head", gt=0, acts_when=CRITIC)
    cliprange_value: float = opt(
        0.2,
        "values move so far from those at the rollout without loss of gradient; 0 = any way",
        ge=0,
        acts_when=CRITIC,
    )
    ratio_level: str = opt(
        "token",
        "ratio of each token; of the sequence, its geometric mean (GSPO, arXiv:2507.18071); or "
        "that value with the gradient of each token (GSPO-token)",
        choices=("token", "sequence", "sequence_token"),
    )
    clip: str = opt(
        "ppo",
        "min(r A, clip(r) A); with r at most delta (two_sided); with the loss at most c |A| where "
        "A < 0 (dual); the ratio as a capped weight (cispo, arXiv:2506.13585); a soft gate (sapo, "
        "arXiv:2511.20347); r A",
        choices=("ppo", "two_sided", "dual", "cispo", "sapo", "none"),
    )
    epsilon: float = opt(0.2, "ratios are clipped below 1 - epsilon", ge=0, acts_when=CLIPS)
    epsilon_high: float | None = opt(
        None,
        "and above 1 + epsilon_high, null = epsilon; of cispo the cap itself",
        gt=0,
        acts_when=CLIPS,
    )
    delta: float = opt(4.0, "upper limit of the unclipped ratio", gt=1, acts_when=TWO_SIDED)
    dual_clip: float = opt(3.0, "c of clip=dual", gt=1, acts_when=DUAL)
    sapo_temperature_pos: float = opt(
        1.0, "tau where the advantage is above 0", gt=0, acts_when=SAPO
    )
    sapo_temperature_neg: float = opt(1.05, "tau elsewhere", gt=0, acts_when=SAPO)
    aggregation: str = opt(
        "token_mean",
        "all tokens of the step count the same; or all sequences; or a sequence is the sum of its "
        "tokens, which is divided by rollout.max_new_tokens too (dr_grpo, arXiv:2503.20783)",
        choices=("token_mean", "sequence_mean", "sequence_sum", "dr_grpo", "bnpo"),
    )
    beta: float = opt(0.0, "weight of the KL divergence from the reference; 0 = no reference", ge=0)
    kl: str = opt(
        "k3",
        "its estimate of each token: e^-d + d - 1, d^2 / 2, or k3 with the gradient of k2",
        choices=("k1", "k2", "k3", "k3_plus"),
        acts_when=KL_ON,
    )
    kl_in: str = opt(
        "loss",
        "whether the divergence is in the loss, or its sum over a completion is taken off the "
        "reward; with advantage=gae each token's off that token's",
        choices=("loss", "reward"),
        acts_when=KL_ON,
    )
    reference: str = opt(
        "copy",
        "a frozen model; the model without its adapter; or the initial weights, moved towards the "
        "trained ones now and then (ema)",
        choices=("copy", "adapter", "ema"),
        acts_when=KL_ON,
    )
    reference_model: str | None = opt(
        None,
        "a run or a checkpoint of it; null = the initial weights, those of checkpoint.init_from",
        path=True,
        acts_when=COPIED,
    )
    reference_interval: int = opt(512, "updates between its moves", gt=0, acts_when=MOVES)
    reference_mix: float = opt(
        0.6, "share of the trained weights in each move", gt=0, le=1, acts_when=MOVES
    )
    num_iterations: int = opt(1, "passes over each rollout (mu)", gt=0)
    num_mini_batches: int = opt(
        1, "updates of each pass: a rollout has so many times train.global_batch_size rows", gt=0
    )
    mismatch: str = opt(
        "none",
        "correction for a sampler whose probabilities differ: the ratio trainer / sampler of each "
        "token, or of the sequence, cut off at mismatch_max, or masked beyond it",
        choices=("none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
    )
    mismatch_min: float = opt(0.0, "lower limit of that ratio", ge=0, acts_when=CORRECTS)
    mismatch_max: float = opt(3.0, "upper limit of that ratio", gt=0, acts_when=CORRECTS)
    entropy_bonus: float = opt(0.0, "weight of the mean entropy of tokens, which is rewarded")
    drop_degenerate: bool = opt(
        False, "groups of equal rewards teach nothing: leave them out of every mean too"
    )
    refill: int = opt(
        0,
        "rounds of further prompts that take the place of such groups, at most; 0 = none (dynamic "
        "sampling, arXiv:2503.14476)",
        ge=0,
    )
    missing_eos_penalty: float = opt(
        0.0, "taken off the reward of completions cut off at max_new_tokens", ge=0
    )
    mask_truncated: bool = opt(False, "learn nothing from completions cut off at max_new_tokens")

    @property
    def updates(self) -> int:
        """Updates of each rollout."""
        return self.num_iterations * self.num_mini_batches

    @property
    def has_critic(self) -> bool:
        """Whether a value head is trained beside the policy."""
        return self.advantage == GAE

    def added(self, model: Model) -> Iterator[TensorSpec]:
        if self.has_critic and (dim := model.known_dim) is not None:
            yield TensorSpec(name=VALUE_HEAD, shape=(dim,), role=HEAD, part="output head", tp=0)

    @property
    def has_reference(self) -> bool:
        return self.beta > 0

    @property
    def reference_moves(self) -> bool:
        return self.beta > 0 and self.reference == "ema"

    def frozen_models(self) -> dict[str, str | None]:
        source = self.reference_model if self.reference == "copy" else None
        return {"reference": source} if self.beta > 0 and self.reference != "adapter" else {}


@rule("rollout.needed", "rollout", "objective", "data._target_")
def needed(rollout: Rollout, objective: Objective) -> Findings:
    """An objective that learns from completions needs rollout=local or openai; no other does."""
    learns = PROMPTS in objective.compares
    if learns and not rollout.active:
        yield (
            "rollout",
            "this objective learns from completions, and none are written.",
            "rollout=local",
        )
    elif rollout.active and not learns:
        yield "rollout", "this objective learns from the text of its data.", "rollout=none"


@rule("rollout.rewards", "rewards", "environment", "objective")
def rewards(config: Config, objective: GRPO) -> Findings:
    """Completions need a reward to learn from, or an environment that gives it."""
    if not (config.rewards or config.environment):
        yield "rewards", "+reward@rewards.exact=exact"


@rule("rollout.group", "rollout.num_generations", "train.global_batch_size")
def group(rollout: SampledRollout, objective: GRPO, train: Train) -> Findings:
    """An update learns from whole groups: train.global_batch_size is a multiple of
    rollout.num_generations, above 1 without a value head.
    """
    size, count = train.global_batch_size, rollout.num_generations
    if count == 1 and not objective.has_critic:
        message = "one completion has no others to compare with: its advantage would be 0."
        yield "rollout.num_generations", message, "rollout.num_generations=8"
    elif size and size % count:
        nearest = max(round(size / count), 1) * count
        yield "train.global_batch_size", f"train.global_batch_size={nearest}"


@rule("rollout.room", "rollout.max_new_tokens", "train.seq_len")
def room(rollout: SampledRollout, objective: GRPO, train: Train) -> Findings:
    """A row has room for a prompt and its completion: rollout.max_new_tokens is below
    train.seq_len.
    """
    if rollout.max_new_tokens >= train.seq_len:
        yield "rollout.max_new_tokens", f"rollout.max_new_tokens={max(train.seq_len // 2, 1)}"


@rule("rollout.stop")
def stop(rollout: SampledRollout) -> Findings:
    """A text that ends a completion is not empty: every text begins with the empty one."""
    if "" in rollout.stop:
        yield "rollout.stop", "rollout.stop=[]"


@rule("rollout.top_p", "rollout.top_p", "rollout.top_k")
def top_p(rollout: LocalRollout) -> Findings:
    """The loss compares distributions over the tokens that were drawn from: rollout.top_p goes with
    rollout.top_k, which bounds their number.
    """
    if rollout.top_p < 1 and not rollout.top_k:
        yield "rollout.top_p", f"rollout.top_k=50 rollout.top_p={rollout.top_p:g}"


@rule("rollout.layout", "parallel.pp", "parallel.cp", "rollout")
def layout(rollout: SampledRollout, parallel: Parallel) -> Findings:
    """Completions are written token by token on one, ddp, fsdp, tp and ep layouts."""
    if parallel.pp > 1:
        message = "token by token all stages but one would wait: a pipeline writes no completions."
        yield "parallel.pp", message, "parallel.pp=1, with parallel.dp_shard or parallel.tp"
    if parallel.cp > 1:
        message = "a token is one position, and no part of a sequence to spread over ranks."
        yield "parallel.cp", message, "parallel.cp=1, with parallel.dp_shard or parallel.tp"


@rule("rollout.ramp", "train.rampup_start", "rollout")
def ramp(rollout: SampledRollout, train: Train) -> Findings:
    """Rollouts have one size: no ramp-up of the batch."""
    if train.rampup_start:
        yield "train.rampup_start", "train.rampup_start=0"


@rule("rollout.data", "data._target_", "data.shuffle", "data.overfit_batches", "rollout")
def data(config: Config, rollout: SampledRollout) -> Findings:
    """Rollouts read data=prompts alone, in whole passes."""
    if config.data.mixes:
        yield "data.sources", "prompts of one source are read.", "data=prompts data.path=my.jsonl"
    elif isinstance(config.data, Prompts) and config.data.overfit_batches:
        yield "data.overfit_batches", "data.overfit_batches=0, and a file of few prompts"


@rule("objective.bnpo", "objective.aggregation")
def bnpo(objective: GRPO) -> Findings:
    """objective.aggregation=bnpo is a mean of means of micro-batches: other batch sizes and ranks
    would train another model.
    """
    if objective.aggregation == "bnpo":
        yield "objective.aggregation", "objective.aggregation=token_mean, the mean over all tokens"


@rule("objective.k1", "objective.kl", "objective.beta")
def k1(objective: GRPO) -> Findings:
    """The expected gradient of k1 in the loss is 0: it pulls nowhere, and only adds noise."""
    if objective.kl == "k1" and objective.beta and objective.kl_in == "loss":
        yield "objective.kl", "objective.kl=k2, k3 or k3_plus; or objective.kl_in=reward, its place"


@rule("objective.delta", "objective.delta", "objective.epsilon", "objective.epsilon_high")
def delta(objective: GRPO) -> Findings:
    """objective.delta is above 1 + objective.epsilon_high, else no clipped ratio is taken."""
    high = objective.epsilon if objective.epsilon_high is None else objective.epsilon_high
    if objective.clip == "two_sided" and objective.delta <= 1 + high:
        yield "objective.delta", f"objective.delta={2 * (1 + high):g}"


@rule("objective.mismatch_max", "objective.mismatch_max", "objective.mismatch_min")
def mismatch_limits(objective: GRPO) -> Findings:
    """objective.mismatch_min is below objective.mismatch_max."""
    if objective.mismatch != "none" and objective.mismatch_min >= objective.mismatch_max:
        yield "objective.mismatch_min", "objective.mismatch_min=0"


@rule("objective.moving_reference", "objective.reference", "objective.beta", "adapter")
def moving_reference(objective: GRPO, adapter: Adapter) -> Findings:
    """objective.reference=ema is a mean of all weights: without an adapter."""
    if objective.reference_moves and adapter.active:
        yield "objective.reference", "objective.reference=adapter, or adapter=none"


@rule("objective.reference_of_adapter", "objective.reference", "objective.beta", "adapter")
def reference(objective: GRPO, adapter: Adapter) -> Findings:
    """objective.reference=adapter needs an adapter, and a base that stays as it is."""
    if not objective.beta or objective.reference != "adapter":
        return
    if not adapter.active:
        message = "there is no adapter."
        yield "objective.reference", message, "objective.reference=copy, or adapter=lora"
    elif adapter.trains_base:
        message = "weights of the base are trained too."
        yield "objective.reference", message, "objective.reference=copy"


@rule("objective.value_head", "objective.advantage", "model._target_")
def value_head(objective: GRPO, model: Model) -> Findings:
    """objective.advantage=gae reads values from the hidden states of one of forge's decoders."""
    is_ours = model.has_blocks and model._target_ == type(model)._target_
    if objective.has_critic and not is_ours:
        message = "the model is no decoder of forge, so its hidden states may be logits."
        yield "objective.advantage", message, "objective.advantage=group"


@rule("objective.gae_groups", "objective.drop_degenerate", "objective.refill")
def gae_groups(objective: GRPO) -> Findings:
    """With a value head groups of equal rewards teach as any other, and none is left out."""
    if not objective.has_critic:
        return
    if objective.drop_degenerate:
        yield "objective.drop_degenerate", "objective.drop_degenerate=false"
    if objective.refill:
        yield "objective.refill", "objective.refill=0"
