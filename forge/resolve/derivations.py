"""Work out every open value, in the order of DERIVATIONS, each with its reason."""

from __future__ import annotations

import os
from collections.abc import Iterator

from forge.config import schemas
from forge.config.adapters.adapter import Adapter, LoRA
from forge.config.checkpoint import Checkpoint
from forge.config.data.mixture import Mix
from forge.config.data.reading import NAME, entry_options, schema_of
from forge.config.data.text import Data
from forge.config.eval import Eval
from forge.config.launch import Slurm
from forge.config.model.decoder import Decoder
from forge.config.model.hub_folder import FolderDecoder, grows
from forge.config.model.layer import Model
from forge.config.model.tensors import EMBEDDING, HEAD
from forge.config.objectives.preference import Referenced
from forge.config.parallel import Parallel
from forge.config.places import ADDRESS, is_remote
from forge.config.precision import Precision
from forge.config.problems import Problem, shown
from forge.config.root import Config
from forge.config.rule import Derived, derivation, walk
from forge.config.run import Run
from forge.config.tokenizers.tokenizer import BPE, Tokenizer
from forge.config.tokenizers.tokenizer_files import FILE_NAME, Existing, TokenizerFile
from forge.families import peft
from forge.families.download import fetch_model, is_id
from forge.families.shards import FolderError
from forge.planning.world import World
from forge.resolve.auto import auto, memory_for_time
from forge.resolve.exchanges import fastest_exchanges
from forge.resolve.horizon import branch, budget, schedule, stages_of_rows
from forge.resolve.layout import batch, layout, padding, pipeline
from forge.resolve.recompute import recompute
from forge.resolve.rules.steps.diloco import number_of_replicas
from forge.resolve.scaling import scaled_rates, scaled_shape
from forge.rundir.checkpoints import BEST, TOKENIZER

PATHS = tuple(dict.fromkeys(schemas.keys_with("path")))
TYPED_AT = "from where the command was typed"
UNKNOWN_ROWS = 32000
"""Rows for an unreadable tokenizer, to check the rest of the config."""

ADDED_TOKENS, NEW_ROWS = ("tokenizer.add_tokens", "tokenizer.add_special_tokens"), "model.new_rows"
MOE_WIDTH, SHARED_WIDTH = "model.moe.ffn_hidden_dim", "model.moe.shared_hidden_dim"
GROUP_SCORE = "model.moe.group_score"


@derivation(
    "model.n_heads",
    "model.activation",
    "model.dim",
    "model.ffn_dim_multiplier",
    writes=(
        "model.n_kv_heads",
        "model.head_dim",
        "model.gated_mlp",
        "model.ffn_hidden_dim",
        MOE_WIDTH,
        SHARED_WIDTH,
        GROUP_SCORE,
    ),
)
def model_shape(model: Decoder) -> Iterator[Derived]:
    """Key/value heads, gate, and widths of a head, the feed-forward layer and an expert."""
    width, unread = model.computed_ffn_hidden_dim, model.mixer.unread
    if model.n_kv_heads is None and "n_kv_heads" not in unread:
        yield Derived("model.n_kv_heads", model.n_heads, "as many as model.n_heads")
    divides = model.dim % model.n_heads == 0  # else a rule reports the fault
    if model.head_dim is None and divides and "head_dim" not in unread:
        yield Derived("model.head_dim", model.computed_head_dim, "model.dim / model.n_heads")
    if model.gated_mlp is None:
        yield Derived("model.gated_mlp", model.is_gated, f"model.activation={model.activation}")
    if model.ffn_hidden_dim is None:
        why = f"256 * ceil(int(4 * {model.dim} * 2/3 * {model.ffn_dim_multiplier:g}) / 256)"
        yield Derived("model.ffn_hidden_dim", width, why)
    if model.moe.num_experts and model.moe.ffn_hidden_dim is None:
        yield Derived(MOE_WIDTH, width, "that of model.ffn_hidden_dim")
    if model.moe.shared_experts and model.moe.shared_hidden_dim is None and model.is_moe:
        yield Derived(SHARED_WIDTH, model.expert_hidden_dim, "that of the routed experts")
    if model.moe.n_routing_groups > 1 and model.moe.group_score is None and model.is_moe:
        why = f"model.moe.router={model.moe.router}"
        yield Derived(GROUP_SCORE, model.moe.computed_group_score, why)


@derivation("model.path", "model.revision", writes=("model.path",))
def of_hub(model: FolderDecoder) -> Iterator[Derived]:
    """The id of a model on the hub becomes its folder in the cache."""
    if is_id(model.path):
        folder, fault = fetch_model(model.path, model.revision)
        if not fault:  # else composition fails and reports it
            yield Derived("model.path", folder, f"{model.path} in the cache of Hugging Face")


@derivation(
    "model.path",
    "model.pretrained",
    "checkpoint.resume_from",
    writes=("tokenizer.path", "checkpoint.init_from"),
)
def of_folder(
    model: FolderDecoder, tokenizer: Tokenizer, checkpoint: Checkpoint
) -> Iterator[Derived]:
    """With model=hf the tokenizer and the weights are those of its folder."""
    if not model.path:
        return  # a rule reports the missing path
    if isinstance(tokenizer, TokenizerFile) and not tokenizer.path:
        yield Derived("tokenizer.path", model.path, "that of model.path")
    goes_on = checkpoint.resume_from is not None and not checkpoint.resume_from.isdecimal()
    if model.pretrained and checkpoint.init_from is None and not goes_on:
        yield Derived("checkpoint.init_from", model.path, "that of model.path")


@derivation("tokenizer.path", "checkpoint.init_from", "objective", writes=("tokenizer.path",))
def of_base(tokenizer: TokenizerFile, config: Config) -> Iterator[Derived]:
    """With tokenizer=file and no path the tokenizer is of checkpoint.init_from or a teacher."""
    base = config.checkpoint.init_from or getattr(config.objective, "teacher", None)
    if tokenizer.path or not base:
        return
    run = os.path.dirname(base) if os.path.basename(base) == BEST else base
    files = (os.path.join(run, TOKENIZER, FILE_NAME), os.path.join(run, FILE_NAME))
    if file := next((file for file in files if os.path.isfile(os.path.expanduser(file))), ""):
        name = "checkpoint.init_from" if config.checkpoint.init_from else "objective.teacher"
        yield Derived("tokenizer.path", file, f"that of {name}")


@derivation(
    "checkpoint.init_from",
    "adapter",
    "model",
    writes=("adapter.init_from", "checkpoint.init_from"),
)
def of_adapters(model: Model, adapter: LoRA, checkpoint: Checkpoint) -> Iterator[Derived]:
    """Adapters of PEFT in checkpoint.init_from are adapter.init_from, and what they stand beside is
    as their config says.
    """
    folder = checkpoint.init_from
    if folder is None or not peft.is_peft(folder) or adapter.init_from is not None:
        return
    try:
        base = peft.read_adapter_config(folder).get("base_model_name_or_path")
    except FolderError:
        base = None  # a rule reports the fault
    model_folder = model.path if isinstance(model, FolderDecoder) and model.pretrained else None
    yield Derived("adapter.init_from", folder, "the adapters in checkpoint.init_from")
    if model_folder or (base and os.path.exists(base)):
        why = "that of model.path" if model_folder else "the base that the adapters name"
        yield Derived("checkpoint.init_from", model_folder or base, why)


FORMATS = ("run.device", "precision.mixed_precision", "precision.residual_dtype")
MASTERS = "precision.master_weights"


@derivation(*FORMATS, writes=FORMATS)
def device(run: Run, precision: Precision, world: World) -> Iterator[Derived]:
    """The device, and the number formats that follow from it."""
    mixed = precision.mixed_precision
    if run.device == "auto":
        why = f"{world.devices.gpus} GPUs: {world.devices.source}"
        yield Derived("run.device", world.device, why)
    if mixed == "auto":
        mixed = "bf16" if world.device == "cuda" else "fp32"
        yield Derived("precision.mixed_precision", mixed, f"run.device={world.device}")
    if precision.residual_dtype == "auto":
        residual = "fp32" if mixed == "fp16" else mixed
        yield Derived("precision.residual_dtype", residual, f"precision.mixed_precision={mixed}")


@derivation("precision.param_dtype", "precision.stochastic_rounding", MASTERS, writes=(MASTERS,))
def masters(precision: Precision) -> Iterator[Derived]:
    """fp32 masters of weights in 16 bits, unless these are rounded stochastically."""
    if precision.master_weights is None:
        has_masters, why = False, "precision.param_dtype=fp32"
        if precision.weights_in_16_bits:
            has_masters = not precision.stochastic_rounding
            why = f"precision.stochastic_rounding={str(not has_masters).lower()}"
        yield Derived(MASTERS, has_masters, why)


@derivation(
    "objective.reference",
    "objective.reference_model",
    "adapter",
    "parallel.pp",
    "data.hf_streaming",
    "data.sources",
    writes=("objective.reference",),
)
def reference(
    objective: Referenced, adapter: Adapter, parallel: Parallel, data: Data
) -> Iterator[Derived]:
    """How the reference of a preference objective is read."""
    if objective.reference != "auto":
        return
    why = why_no_reference(adapter, parallel)
    if objective.reference_model:
        why = "it is objective.reference_model"
    chosen = "cached" if why else "adapter"
    if why and data.streamed:
        chosen, why = "copy", f"{why}, and a stream cannot be read before training"
    yield Derived("objective.reference", chosen, why or "it is the model without its adapter")


def why_no_reference(adapter: Adapter, parallel: Parallel) -> str:
    """Reason against the model without its adapter as its reference; empty if there is none."""
    if not adapter.active:
        return "there is no adapter"
    if parallel.pp > 1:
        return f"a pipeline of {parallel.pp} reads a batch once"
    if adapter.trains_base:
        return "weights of the base are trained too"
    return ""


@derivation("run.device", "launch.gpus_per_node", writes=("launch.gpus_per_node",))
def job(launch: Slurm, world: World) -> Iterator[Derived]:
    """With launch=slurm, no GPUs for ranks on CPUs."""
    if world.remote and world.device == "cpu" and launch.gpus_per_node is None:
        yield Derived("launch.gpus_per_node", 0, "run.device=cpu")


@derivation("eval.enabled", "eval.metric", writes=("run.objective",))
def objective(run: Run, eval: Eval) -> Iterator[Derived]:
    """The metric that a run is judged by."""
    if run.objective is None and eval.enabled:
        yield Derived("run.objective", f"eval/{eval.metric}", f"eval.metric={eval.metric}")
    elif run.objective is None:
        yield Derived("run.objective", "train/loss", "eval.enabled=false")


@derivation(*PATHS, writes=PATHS)
def paths(config: Config) -> Iterator[Derived]:
    """Paths become absolute: a run may start, or continue, elsewhere."""
    for key, section, field in walk(config):  # also keys of users' sections, unknown to PATHS
        path = getattr(section, field.name) if field.metadata.get("path") else None
        is_step = key == "checkpoint.resume_from" and path and path.isdecimal()
        if not path or is_step or (field.metadata.get("address") and is_remote(path)):
            continue
        absolute, why = os.path.abspath(os.path.expanduser(path)), TYPED_AT
        file = os.path.join(absolute, FILE_NAME)
        is_tokenizer = key == "tokenizer.path" and isinstance(section, TokenizerFile)
        if is_tokenizer and os.path.isfile(file):
            absolute, why = file, "the file of that name in the directory"
        if absolute != path:
            yield Derived(key, absolute, why)


@derivation("eval.sets", "data.sources", writes=("eval.sets", "data.sources"))
def paths_of_entries(config: Config, data: Data, eval: Eval) -> Iterator[Derived]:
    """So do those of evaluation sets and of the sources of a mixture."""
    entries = {f"eval.sets.{name}": entry for name, entry in eval.sets.items()}
    if isinstance(data, Mix):
        entries |= {f"data.sources.{name}": entry for name, entry in data.sources.items()}
    for key, entry in entries.items():
        is_readable = isinstance(entry, dict) and NAME.fullmatch(key.split(".", 2)[2])
        schema = is_readable and schema_of(data, entry)
        for option, field in entry_options(schema).items() if schema else ():
            path = entry.get(option)
            is_path = isinstance(path, str) and not ADDRESS.match(path)
            if path and is_path and field.metadata.get("path"):
                absolute = os.path.abspath(os.path.expanduser(path))
                if absolute != path:
                    yield Derived(f"{key}.{option}", absolute, TYPED_AT)


@derivation("eval.tasks", "rewards", writes=("eval.tasks", "rewards"))
def paths_of_tasks(config: Config) -> Iterator[Derived]:
    """And those of tasks and rewards."""
    dicts = {"eval.tasks": config.eval.tasks, "rewards": config.rewards}
    for key, entry in ((f"{above}.{n}", e) for above, d in dicts.items() for n, e in d.items()):
        path = entry.get("path") if isinstance(entry, dict) else None
        if isinstance(path, str) and path and not ADDRESS.match(path):
            absolute = os.path.abspath(os.path.expanduser(path))
            if absolute != path:
                yield Derived(f"{key}.path", absolute, TYPED_AT)


@derivation(
    "model.vocab_size",
    "model.pad_vocab_to",
    "model.grow_vocab",
    "tokenizer.vocab_size",
    "tokenizer.path",
    *ADDED_TOKENS,
    writes=("model.vocab_size",),
)
def vocabulary(model: Model, tokenizer: Tokenizer) -> Iterator[Derived | Problem]:
    """Rows of the embedding table: with auto as many as the tokenizer has ids, and always a
    multiple of model.pad_vocab_to.
    """
    rows, why = model.vocab_size, f"{model.vocab_size} rounded up"
    if rows == "auto":
        # the rule of a tokenizer reports why its file cannot be read
        if tokenizer.n_ids is None and not isinstance(tokenizer, Existing):
            message = f"the number of ids is not known before {type(tokenizer).__name__} is built."
            hint = "model.vocab_size=32000, or a property n_ids of its section"
            yield Problem("model.vocab_size=auto", message, hint, rule="model.vocab_size")
        rows = tokenizer.n_ids or UNKNOWN_ROWS
        why = f"the tokenizer has {rows} ids"
        if isinstance(tokenizer, BPE):
            why = f"tokenizer.vocab_size={rows}"
    elif _may_grow(model, tokenizer, rows) and (tokenizer.n_ids or 0) > rows:
        why = f"the tokenizer has {tokenizer.n_ids} ids, the folder {rows} rows"
        rows = tokenizer.n_ids or rows
    padded = -(-rows // model.pad_vocab_to) * model.pad_vocab_to
    if padded != rows:
        why += f", a multiple of model.pad_vocab_to={model.pad_vocab_to}"
    if padded != model.vocab_size:
        yield Derived("model.vocab_size", padded, why)


def _may_grow(model: Model, tokenizer: Tokenizer, rows: int) -> bool:
    """Whether rows may be added to a folder's table: by grow_vocab, or for added tokens alone."""
    ids_before = tokenizer.ids_before
    for_tokens = isinstance(model, FolderDecoder) and ids_before is not None and ids_before <= rows
    return grows(model) or (bool(tokenizer.added) and for_tokens)  # type: ignore[arg-type]


@derivation("checkpoint.init_from", "tokenizer.path", *ADDED_TOKENS, NEW_ROWS, writes=(NEW_ROWS,))
def new_rows(model: Decoder, tokenizer: Tokenizer, checkpoint: Checkpoint) -> Iterator[Derived]:
    """Rows of added tokens are new to weights that the run begins with."""
    ids_before, number = tokenizer.ids_before, len(tokenizer.added)
    if checkpoint.init_from is None or not number or ids_before is None or model.new_rows[1]:
        return
    names = [tensor.name for tensor in model.tensors() if tensor.role in (EMBEDDING, HEAD)]
    origin = f"of {shown(tokenizer.added)}: rows of {' and '.join(names)}"
    why = f"{origin} that begin as the mean of the {ids_before} before"
    yield Derived(NEW_ROWS, [ids_before, ids_before + number], why)


@derivation("run.dir", "run.root", writes=("run.dir", "run.root"))
def home(run: Run) -> Iterator[Derived]:
    """A run directory under ~ is in the home directory."""
    for key, path in (("run.dir", run.dir), ("run.root", run.root)):
        if path and (expanded := os.path.expanduser(path)) != path:
            yield Derived(key, expanded, "~ is the home directory")


DERIVATIONS = (
    of_hub,
    of_folder,
    of_adapters,
    of_base,
    scaled_shape,
    model_shape,
    device,
    masters,
    job,
    reference,
    objective,
    paths,
    paths_of_entries,
    vocabulary,
    new_rows,
    home,
    scaled_rates,
    auto,
    layout,
    number_of_replicas,
    batch,
    budget,
    stages_of_rows,
    pipeline,
    fastest_exchanges,
    padding,
    memory_for_time,
    recompute,
    schedule,
    branch,
)
"""All derivations, in the order of their run."""
