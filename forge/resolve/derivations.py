"""Derivations: every value that means "work it out", worked out, in this order, each with its
reason.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator

from forge.config import schemas
from forge.config.launch import Slurm
from forge.config.model import Decoder
from forge.config.problems import Problem
from forge.config.root import Config
from forge.config.scheduler import SCHEDULE, open_steps
from forge.config.tokenizer import BPE, FILE_NAME, TokenizerFile
from forge.plan.world import World
from forge.resolve.auto import auto, memory_for_time
from forge.resolve.derivation import Derived, derivation
from forge.resolve.layout import batch, layout, pipeline

PATHS = tuple(dict.fromkeys(schemas.marked("path")))
UNKNOWN_ROWS = (
    32000  # of a table for a tokenizer that cannot be read, so that the rest can be checked
)


@derivation(
    reads=("model.n_heads", "model.activation", "model.dim", "model.ffn_dim_multiplier"),
    writes=(
        "model.n_kv_heads",
        "model.gated_mlp",
        "model.ffn_hidden_dim",
        "model.moe.ffn_hidden_dim",
    ),
)
def model_shape(config: Config, world: World) -> Iterator[Derived]:
    """Key/value heads, gate, feed-forward width and width of an expert of a decoder."""
    model = config.model
    if not isinstance(model, Decoder):
        return
    if model.n_kv_heads is None:
        yield Derived(key="model.n_kv_heads", value=model.n_heads, why="as many as model.n_heads")
    if model.gated_mlp is None:
        yield Derived(
            key="model.gated_mlp", value=model.is_gated, why=f"model.activation={model.activation}"
        )
    if model.ffn_hidden_dim is None:
        why = f"256 * ceil(int(4 * {model.dim} * 2/3 * {model.ffn_dim_multiplier:g}) / 256)"
        yield Derived(key="model.ffn_hidden_dim", value=model.computed_ffn_hidden_dim, why=why)
    if model.moe.num_experts and model.moe.ffn_hidden_dim is None:
        yield Derived(
            key="model.moe.ffn_hidden_dim",
            value=model.computed_ffn_hidden_dim,
            why="that of model.ffn_hidden_dim",
        )


@derivation(
    reads=("run.device", "precision.mixed_precision", "precision.residual_dtype"),
    writes=("run.device", "precision.mixed_precision", "precision.residual_dtype"),
)
def device(config: Config, world: World) -> Iterator[Derived]:
    """The device, and the number formats that follow from it."""
    if config.run.device == "auto":
        yield Derived(
            key="run.device",
            value=world.device,
            why=f"{world.devices.gpus} GPUs: {world.devices.source}",
        )
    if config.precision.mixed_precision == "auto":
        chosen = "bf16" if world.device == "cuda" else "fp32"
        yield Derived(
            key="precision.mixed_precision", value=chosen, why=f"run.device={world.device}"
        )
    if config.precision.residual_dtype == "auto":
        mixed = config.precision.mixed_precision
        yield Derived(
            key="precision.residual_dtype",
            value="fp32" if mixed == "fp16" else mixed,
            why=f"precision.mixed_precision={mixed}",
        )


@derivation(reads=("run.device", "launch.gpus_per_node"), writes=("launch.gpus_per_node",))
def job(config: Config, world: World) -> Iterator[Derived]:
    """With launch=slurm, no GPUs for ranks on CPUs."""
    if (
        isinstance(config.launch, Slurm)
        and world.remote
        and world.device == "cpu"
        and config.launch.gpus_per_node is None
    ):
        yield Derived(key="launch.gpus_per_node", value=0, why=f"run.device={world.device}")


@derivation(reads=("eval.enabled", "eval.metric"), writes=("run.objective",))
def objective(config: Config, world: World) -> Iterator[Derived]:
    """The metric that a run is judged by."""
    if config.run.objective is None:
        evaluated = config.eval.enabled
        value, why = (
            (f"eval/{config.eval.metric}", f"eval.metric={config.eval.metric}")
            if evaluated
            else ("train/loss", "eval.enabled=false")
        )
        yield Derived(key="run.objective", value=value, why=why)


@derivation(reads=PATHS, writes=PATHS)
def paths(config: Config, world: World) -> Iterator[Derived]:
    """Paths become absolute: a run may start, or go on, elsewhere."""
    for key in PATHS:
        group, name = key.split(".")
        path = getattr(getattr(config, group), name, None)
        if path and not (key == "checkpoint.resume_from" and path.isdecimal()):
            absolute, why = (
                os.path.abspath(os.path.expanduser(path)),
                "from where the command was typed",
            )
            if key == "tokenizer.path" and os.path.isfile(
                inside := os.path.join(absolute, FILE_NAME)
            ):
                absolute, why = inside, "the file of that name in the directory"
            if absolute != path:
                yield Derived(key=key, value=absolute, why=why)


@derivation(
    reads=("model.vocab_size", "model.pad_vocab_to", "tokenizer.vocab_size", "tokenizer.path"),
    writes=("model.vocab_size",),
)
def vocabulary(config: Config, world: World) -> Iterator[Derived | Problem]:
    """Rows of the embedding table: the ids of the tokenizer with auto, and in any case a multiple
    of model.pad_vocab_to.
    """
    model, tokenizer = config.model, config.tokenizer
    rows, why = model.vocab_size, f"{model.vocab_size} rounded up"
    if rows == "auto":
        if tokenizer.n_ids is None and not isinstance(
            tokenizer, TokenizerFile
        ):  # of a file a rule says why
            what = f"how many ids the tokenizer has is not known before it is built: {type(tokenizer).__name__} has no n_ids."
            yield Problem(
                key="model.vocab_size=auto",
                what=what,
                fix="model.vocab_size=32000, or n_ids in its section",
                rule="model.vocab_size",
            )
        rows = tokenizer.n_ids or UNKNOWN_ROWS
        why = (
            f"tokenizer.vocab_size={rows}"
            if isinstance(tokenizer, BPE)
            else f"the tokenizer has {rows} ids"
        )
    padded = -(-rows // model.pad_vocab_to) * model.pad_vocab_to
    if padded != model.vocab_size:
        multiple = (
            f", a multiple of model.pad_vocab_to={model.pad_vocab_to}" if padded != rows else ""
        )
        yield Derived(key="model.vocab_size", value=padded, why=f"{why}{multiple}")


@derivation(reads=("run.dir", "run.root"), writes=("run.dir", "run.root"))
def home(config: Config, world: World) -> Iterator[Derived]:
    """A run directory under ~ is in the home directory."""
    for name in ("dir", "root"):
        path = getattr(config.run, name)
        if path and (expanded := os.path.expanduser(path)) != path:
            yield Derived(key=f"run.{name}", value=expanded, why="~ is the home directory")


@derivation(reads=("train.max_steps", "scheduler.warmup_steps"), writes=SCHEDULE)
def schedule(config: Config, world: World) -> Iterator[Derived]:
    """Warm-up, decay and stable steps from the horizon, train.max_steps."""
    for key, value, why in open_steps(config.scheduler, config.train.max_steps):
        yield Derived(key=key, value=value, why=why)


DERIVATIONS = (
    model_shape,
    device,
    job,
    objective,
    paths,
    vocabulary,
    home,
    auto,
    layout,
    batch,
    pipeline,
    memory_for_time,
    schedule,
)
"""In the order in which they run."""


def fit_epochs(config: Config, samples: int, derived: Collection[str]) -> list[Derived]:
    """Cut train.max_steps to train.max_epochs passes over `samples` sequences, once their number is
    known.

    Schedule steps that were worked out before (`derived`) are worked out again. Changes the config
    in place.
    """
    train = config.train
    steps = train.max_epochs * samples / (train.global_batch_size or 1)
    if not train.max_epochs or steps > train.max_steps - 1:
        return []
    train.max_steps = max(math.ceil(steps), 1)
    why = f"{train.max_epochs:g} epochs * {samples} sequences / {train.global_batch_size} a step"
    found = [Derived(key="train.max_steps", value=train.max_steps, why=why)]
    for key in SCHEDULE:
        if key in derived:
            setattr(config.scheduler, key.rpartition(".")[2], None)
    for key, value, why in open_steps(config.scheduler, train.max_steps):
        setattr(config.scheduler, key.rpartition(".")[2], value)
        found.append(Derived(key=key, value=value, why=why))
    return found
