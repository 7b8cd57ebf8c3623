"""Rules on groups of parameters: `optimizer.groups` and patterns of names, against a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from forge.config.model.decoder import Decoder
from forge.config.optimizers import param_groups
from forge.config.optimizers.base import GROUPED, PATTERNS, Optimizer
from forge.config.optimizers.low_bit import AdamWLowBit
from forge.config.optimizers.param_groups import (
    KIND,
    OWN,
    PARAMETERS,
    ROLES,
    found,
    members,
    named_parameters,
)
from forge.config.optimizers.schedule_free import ScheduleFreeAdamW
from forge.config.optimizers.schedules import Constant, NoSchedule, Scheduler
from forge.config.parallel import Parallel
from forge.config.problems import shown
from forge.config.root import Config
from forge.config.rule import Findings, get, rule
from forge.config.run import Run
from forge.config.train import Train

GROUPS = "optimizer.groups"
READS = ("model", *GROUPED)


@rule("optimizer.patterns", *READS)
def patterns(config: Config, model: Decoder, optimizer: Optimizer) -> Findings:
    """Each regular expression of an optimizer is found in the name of a parameter of the model."""
    expressions_by_key = {f"optimizer.{option}": getattr(optimizer, option) for option in PATTERNS}
    expressions_by_key |= {
        f"{GROUPS}.{n}.{PARAMETERS}": e.get(PARAMETERS, ()) for n, e in _entries(optimizer)
    }
    for key, expressions in expressions_by_key.items():
        if not expressions:
            continue
        names = [name for name, _ in named_parameters(config)]
        for pattern in expressions:
            if not any(found([pattern], name) for name in names):
                message = f"'{pattern}' is in the name of no parameter, such as {_last(names)}."
                yield key, message, f"{key}=[{_inner(names)}]"


@rule("optimizer.low_bit_mps", "optimizer", "run.device")
def low_bit_mps(optimizer: AdamWLowBit, run: Run) -> Findings:
    """torchao has no moments of few bits on an Apple GPU."""
    if run.device == "mps":
        yield "optimizer=adamw_low_bit", "optimizer=adamw"


@rule("optimizer.in_16_bits", "optimizer", "precision.param_dtype", GROUPS)
def updates_in_16_bits(config: Config, optimizer: Optimizer) -> Findings:
    """An optimizer of weights in 16 bits computes their updates in fp32, as forge's own do."""
    if not config.precision.weights_in_16_bits:
        return
    hint = "precision.param_dtype=fp32"
    for group in param_groups.groups(config).values():
        if isinstance(group.section, ScheduleFreeAdamW):
            message = "schedule_free_adamw has a mean of two sets of weights, which are too near to"
            yield "precision.param_dtype", f"{message} each other for 16 bits.", hint
        elif not group.section._target_.startswith("forge.optim."):
            message = (
                f"{group.section._target_} would compute in 16 bits, and keep its state in them."
            )
            yield "precision.param_dtype", message, hint


@rule("optimizer.bf16_gradients", "optimizer", "precision.grad_dtype", GROUPS)
def reads_bf16_gradients(config: Config, optimizer: Optimizer) -> Findings:
    """An optimizer of fp32 weights computes in fp32 with bf16 gradients, as forge's own do."""
    if not config.precision.gradients_in_bf16:
        return
    for group in param_groups.groups(config).values():
        target = group.section._target_
        if not target.startswith("forge.optim."):
            message = f"{target} would refuse gradients of another format, or add up in bf16."
            yield "precision.grad_dtype", message, "precision.grad_dtype=fp32"


@rule(
    "train.optimizer_in_backward",
    "train.optimizer_in_backward",
    "train.grad_clip_norm",
    "train.grad_accum_steps",
    "train.skip_step_on_spikes",
    "parallel.pp",
    "precision.mixed_precision",
    "metrics.norms_by_role",
    "checkpoint.async_mode",
    "optimizer",
    GROUPS,
)
def in_backward(config: Config, train: Train, optimizer: Optimizer) -> Findings:
    """train.optimizer_in_backward updates a parameter by its own gradient of one micro-batch,
    before others are known.
    """
    if not train.optimizer_in_backward:
        return
    key, off = "train.optimizer_in_backward", "train.optimizer_in_backward=false"
    requirements = {
        "train.grad_clip_norm": (0, "the norm is of all gradients"),
        "train.grad_accum_steps": (1, "gradients of micro-batches are added up first"),
        "parallel.pp": (1, "gradients of micro-batches are added up first"),
        "train.skip_step_on_spikes": (False, "a spike is known when all gradients are"),
        "metrics.norms_by_role": (False, "there is no time at which all gradients are there"),
        "checkpoint.async_mode": ("disabled", "what is saved changes before it is copied"),
    }
    for name, (value, why) in requirements.items():
        if get(config, name) != value:
            hint = f"{name}={shown(value)}"
            if name == "train.grad_accum_steps":
                hint = "train.grad_accum_steps=1 train.global_batch_size=null"
            yield key, f"{name} is {shown(get(config, name))}, and {why}.", f"{hint}, or {off}"
    if config.precision.mixed_precision == "fp16":
        message = "precision.mixed_precision=fp16 finds the scale of the loss by all gradients."
        yield key, message, f"precision.mixed_precision=bf16, or {off}"
    yield from _not_one_by_one(config, key, off)


@rule("parallel.offload_optimizer", "parallel.offload_optimizer", "optimizer", GROUPS)
def offload_optimizer(config: Config, parallel: Parallel) -> Findings:
    """parallel.offload_optimizer has the state of one parameter after another on the device."""
    if parallel.offload_optimizer:
        off = "parallel.offload_optimizer=false"
        yield from _not_one_by_one(config, "parallel.offload_optimizer", off)


def _not_one_by_one(config: Config, key: str, off: str) -> Findings:
    for group in param_groups.groups(config).values():
        if not group.section.one_by_one:
            message = f"{group.kind} does not update one parameter without the others."
            yield key, message, f"optimizer=adamw, or {off}"
            return


@rule("optimizer.roles", *READS)
def roles(config: Config, model: Decoder, optimizer: Optimizer) -> Findings:
    """A role, or a parameter that is named, is of one group, and of `rest` where of no other."""
    yield from _twice(
        optimizer, ROLES, lambda role, selected: role in selected, param_groups.ALL_ROLES
    )
    if sum(PARAMETERS in entry for _, entry in _entries(optimizer)) > 1:
        names = [name for name, _ in named_parameters(config)]
        yield from _twice(
            optimizer, PARAMETERS, lambda name, selected: found(selected, name), names
        )


@rule("optimizer.takes", *READS)
def takes(config: Config, model: Decoder, optimizer: Optimizer) -> Findings:
    """An optimizer is of parameters that it can update: muon of matrices and experts."""
    groups = param_groups.groups(config)
    if not any(group.section.takes for group in groups.values()):
        return
    parameters = named_parameters(config)
    of_group = members(config, parameters)
    for name, group in groups.items():
        group_roles = [role for parameter, role in parameters if of_group[parameter] == name]
        untaken = [role for role in dict.fromkeys(group_roles) if role not in group.section.takes]
        if group.section.takes and untaken:
            message = f"{group.kind} updates {' and '.join(group.section.takes)} only, and is given"
            listed, key = ", ".join(untaken), f"{GROUPS}.{name}"
            hint = f"'+{GROUPS}.others={{{KIND}: adamw, {ROLES}: [{listed}]}}'"
            if name != OWN:
                given_roles = optimizer.groups[name].get(ROLES, ())
                taken = ", ".join(role for role in given_roles if role in group.section.takes)
                hint = f"'{key}.{ROLES}=[{taken}]'" if taken else f"~{key}"
                if not taken and KIND not in optimizer.groups[name]:
                    hint = f"+{key}.{KIND}=adamw, or {hint}"
            yield key if name != OWN else "optimizer", f"{message} {listed}.", hint


@rule("optimizer.nothing", *READS)
def nothing(config: Config, model: Decoder, optimizer: Optimizer) -> Findings:
    """Something is trained: patterns leave a parameter that is not frozen."""
    only = optimizer.trainable_parameters or optimizer.freeze_parameters
    if only and all(group is None for group in members(config, named_parameters(config)).values()):
        key = "freeze_parameters" if optimizer.freeze_parameters else "trainable_parameters"
        yield f"optimizer.{key}", f"optimizer.{key}=[]"


@rule("optimizer.schedule_free", "optimizer", "scheduler", warning=True)
def schedule_free(optimizer: ScheduleFreeAdamW, scheduler: Scheduler) -> Findings:
    """Schedule-free AdamW has no use for a learning rate that falls: its mean takes that place."""
    if not isinstance(scheduler, NoSchedule) and type(scheduler) is not Constant:
        yield "scheduler", "scheduler=constant"


@rule("optimizer.schedule_free_betas", "optimizer.betas")
def schedule_free_betas(optimizer: ScheduleFreeAdamW) -> Findings:
    """The first of optimizer.betas is above 0, else the weights that are trained have no share of
    the mean that is read.
    """
    beta1, beta2 = optimizer.betas
    if not beta1:
        yield "optimizer.betas", f"optimizer.betas=[0.9,{beta2}]"


def _entries(optimizer: Optimizer) -> Iterable[tuple[str, dict]]:
    return optimizer.groups.items()


def _twice(
    optimizer: Optimizer,
    selection: str,
    selects: Callable[[str, Sequence[str]], bool],
    things: Iterable[str],
) -> Findings:
    for thing in things:
        groups = [n for n, e in _entries(optimizer) if selects(thing, e.get(selection, ()))]
        groups = [name for name in groups if name != param_groups.REST]
        if len(groups) > 1:
            message = f"{thing} is of the groups {' and '.join(groups)}."
            key = f"{GROUPS}.{groups[-1]}.{selection}"
            yield key, message, f"~{GROUPS}.{groups[-1]}"
            return


def _last(names: Sequence[str]) -> str:
    return names[-1]


def _inner(names: Sequence[str]) -> str:
    """The name in the middle of the list, without its prefix and suffix."""
    return names[len(names) // 2].removesuffix(".weight").rpartition(".")[2]


@rule(
    "train.use_qk_clip",
    "model",
    "parallel.cp",
    "data.pack_sequences",
    "precision.master_weights",
    GROUPS,
)
def qk_clip(config: Config, model: Decoder, train: Train) -> Findings:
    """train.use_qk_clip scales what makes the logits of attention that it can see."""
    if not train.use_qk_clip:
        return
    option, layers = "train.use_qk_clip=false", [layer for _, layer in model.in_use()]
    if unknown := [layer.mixer._target_ for layer in layers if not layer.mixer.clips_qk]:
        yield "train.use_qk_clip", f"{unknown[0]} has no logits that it could see.", option
    elif any(layer.qk_norm and "qk_norm" not in layer.mixer.unread for layer in layers):
        message = "norms of queries and keys, model.qk_norm=true, undo what it scales."
        yield "train.use_qk_clip", message, f"model.qk_norm=false, or {option}"
    elif any(layer.attn_logits_soft_cap for layer in layers):
        message = "model.attn_logits_soft_cap bounds what it would bring down."
        yield "train.use_qk_clip", message, f"model.attn_logits_soft_cap=0, or {option}"
    if config.parallel.cp > 1:
        message = f"parallel.cp={config.parallel.cp} cuts the keys that a query sees."
        yield "train.use_qk_clip", message, option
    if config.data.pack_sequences and model.document_attention != "mask":
        message = "it sees packed documents by masks, not in blocks."
        yield "train.use_qk_clip", message, f"model.document_attention=mask, or {option}"
    if config.precision.master_weights:
        message = "precision.master_weights=true makes the weights again that it has scaled."
        yield "train.use_qk_clip", message, f"precision.param_dtype=fp32, or {option}"
    kinds = [type(group.section) for group in param_groups.groups(config).values()]
    if ScheduleFreeAdamW in kinds:
        message = "optimizer=schedule_free_adamw has two sets of weights, and it would scale one."
        yield "train.use_qk_clip", message, f"optimizer=adamw, or {option}"
