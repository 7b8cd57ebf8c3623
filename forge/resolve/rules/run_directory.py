"""Rules on the run directory, on changes when its run continues, and on the start of a run."""

from __future__ import annotations

import os
from pathlib import Path

from forge.config import changes
from forge.config.checkpoint import Checkpoint
from forge.config.model.tensors import TensorSpec
from forge.config.places import is_remote
from forge.config.problems import closest, did_you_mean, shown
from forge.config.root import Config
from forge.config.rule import Findings, rule, walk
from forge.config.run import Run
from forge.resolve.rules.steps.remote import absence_of
from forge.rundir import checkpoints, saved_config
from forge.rundir.files import unwritable

NAMED_STEPS = 3
SIZE, TOKENS = "train.global_batch_size", "train.global_batch_tokens"


@rule("run.place", "run.dir", "run.root")
def place(run: Run) -> Findings:
    """The run directory can be made: what is above it is a directory that may be written."""
    key, path, default = "run.root", run.root, "runs"
    if run.dir is not None:
        key, path, default = "run.dir", run.dir, "null"
    if why := unwritable(path):
        message = f"the directory {path} cannot be made or written: {why}."
        yield f"{key}={path}", message, f"{key}={default}, or a place that you may write in"


@rule("run.dir")
def run_dir(run: Run) -> Findings:
    """run.dir must be a run, which continues, or new, empty or absent."""
    if run.dir and os.path.isdir(run.dir):
        folder = Path(run.dir)
        if not saved_config.is_run(folder) and not saved_config.is_new(folder):
            hint = "run.dir=null, a run directory, or a new one"
            yield "run.dir", f"{folder} holds other files and is no run directory.", hint


@rule("run.identity", "run.dir", "run.allow_change")
def same_identity(config: Config, run: Run) -> Findings:
    """A run continues with the model, data, seed, batch, optimizer and schedule it has, unless
    run.allow_change names what changes.
    """
    stored = _stored(config)
    if isinstance(stored, str):
        yield "run.dir", stored, "give another run.dir"
    if not isinstance(stored, Config):
        return
    for change in _refused(stored, config):
        key = change.key
        old, new = shown(change.before), shown(change.after)
        keep = f"{key}={old}" if "." in key or key == "seed" else f"{key} as it was"
        if key == SIZE and stored.parallel.degrees() != config.parallel.degrees():
            keep += " train.batch_size=-1"  # the former micro-batch may not fit these ranks
        message = f"the run in {run.dir} has {key}={old}; here it is {new}."
        yield f"{key}={new}", message, f"{keep}, run.allow_change=[{key}], or another run.dir"


def _refused(stored: Config, config: Config) -> list[changes.Change]:
    """Changes that nothing permits. The global batch is named once: in tokens where typed so."""
    allowed = config.run.allow_change
    changed = {c.key: c for c in changes.changes(stored, config) if not c.free}
    if {SIZE, TOKENS} <= changed.keys():
        in_tokens = any(word.startswith(f"{TOKENS}=") for word in config.overrides)
        twin = changed.pop(SIZE if in_tokens else TOKENS).key
        if changes.permitted(twin, allowed):
            changed.pop(TOKENS if in_tokens else SIZE)
    elif "train.seq_len" in changed:
        changed.pop(TOKENS, None)
    return [c for c in changed.values() if not changes.permitted(c.key, allowed)]


@rule("run.adapter", "adapter", "run.dir", "run.allow_change")
def keeps_adapters(config: Config, run: Run) -> Findings:
    """A run continues with the adapters that its checkpoints have, or without any, whatever
    run.allow_change says.
    """
    stored = _stored(config)
    if not run.allow_change or not isinstance(stored, Config):
        return
    adapter_changes = [
        change for change in changes.changes(stored, config) if change.key.startswith("adapter")
    ]
    if not all(changes.permitted(change.key, run.allow_change) for change in adapter_changes):
        return  # run.identity reports it
    stored_shapes, current_shapes = (
        {tensor.name: tensor.shape for tensor in _added(version)} for version in (stored, config)
    )
    if adapter_changes and stored_shapes != current_shapes:
        hint = f"{adapter_changes[0].key} as it was, or run.dir=null checkpoint.init_from={run.dir}"
        yield (
            adapter_changes[0].key,
            f"the checkpoints in {run.dir} have other adapters, or none.",
            hint,
        )


def _added(config: Config) -> list[TensorSpec]:
    return list(config.adapter.added(config.model.tensors()))


@rule("run.allow_change")
def allow_change(config: Config, run: Run) -> Findings:
    """run.allow_change names keys or sections that exist."""
    keys = [key for key, _, _ in walk(config)]
    for name in run.allow_change:
        if name not in keys:
            meant = [f"run.allow_change=[{other}]" for other in closest(name, keys, limit=1)]
            hint = did_you_mean(meant) or "a key such as optimizer.lr, or model"
            message = f"there is no option or section '{name}'."
            yield f"run.allow_change=[{name}]", message, hint


@rule("checkpoint.init_from", "checkpoint.init_from", "checkpoint.dir", "run.dir")
def init_from(config: Config, checkpoint: Checkpoint) -> Findings:
    """checkpoint.init_from must exist, until the run has a checkpoint of its own."""
    path = checkpoint.init_from
    if path is None or os.path.exists(path) or has_saved_since(config, "init_from"):
        return
    if is_remote(path):
        if fault := absence_of(path):
            yield f"checkpoint.init_from={path}", *fault
        return
    if os.path.basename(path) != checkpoints.BEST or not os.path.isdir(os.path.dirname(path)):
        hint = (
            "a step_N directory, a run directory with checkpoints, RUN/best, a .safetensors file "
            "or a Hugging Face folder"
        )
        yield "checkpoint.init_from", f"there is nothing at {path}.", hint


@rule("checkpoint.resume_from", "checkpoint.resume_from", "checkpoint.dir", "run.dir")
def resume_from(config: Config, checkpoint: Checkpoint, run: Run) -> Findings:
    """checkpoint.resume_from is a step that the run in run.dir has saved, or a directory."""
    key, start = "checkpoint.resume_from", checkpoint.resume_from
    if start is None or has_saved_since(config, "resume_from"):
        return
    if is_remote(start):
        if fault := absence_of(start):
            yield f"{key}={start}", *fault
    elif not start.isdecimal():
        if not os.path.isdir(start):
            hint = "a step of this run, a step_N directory, or a run directory with checkpoints"
            yield key, f"there is no directory {start}.", hint
    elif run.dir is None:
        message = "a step is one of the run in run.dir, which is not given."
        yield key, message, "run.dir=..., or a path"
    elif not os.path.isdir(Path(run.dir, checkpoint.dir, f"step_{int(start)}")):
        folder = Path(run.dir, checkpoint.dir)
        names = (path.name.removeprefix("step_") for path in folder.glob("step_*"))
        steps = sorted(int(name) for name in names if name.isdecimal())
        fixes = [f"{key}={step}" for step in steps[-NAMED_STEPS:]]
        hint = " or ".join(fixes) or f"{key}=null: the run begins again"
        yield key, f"{folder} has no checkpoint of step {start}.", hint


@rule("checkpoint.two_starts", "checkpoint.init_from", "checkpoint.resume_from", "run.dir")
def two_starts(checkpoint: Checkpoint) -> Findings:
    """A new run starts from checkpoint.init_from or from checkpoint.resume_from elsewhere, not from
    both.
    """
    start = checkpoint.resume_from
    if checkpoint.init_from is not None and start is not None and not start.isdecimal():
        hint = "checkpoint.init_from=null or checkpoint.resume_from=null"
        yield "checkpoint.init_from", hint


@rule("checkpoint.dir")
def checkpoint_dir(checkpoint: Checkpoint) -> Findings:
    """checkpoint.dir is a directory of its own, in the run directory or at an absolute path."""
    path = Path(checkpoint.dir)
    if ".." in path.parts or path in (Path(), Path("/")):
        yield "checkpoint.dir", "checkpoint.dir=checkpoints, or an absolute path of its own"


def _stored(config: Config) -> Config | str | None:
    """Load the config of a resumed run; a reason as text where unreadable, None for none."""
    if config.run.dir is None or not saved_config.is_run(Path(config.run.dir)):
        return None
    base = saved_config.last_started(Path(config.run.dir))
    if not base:
        return None  # nothing was trained yet: any config may continue
    file = Path(config.run.dir) / saved_config.numbered_file(saved_config.CONFIG, base)
    try:
        return saved_config.load_config(file, trust=config.run.trust)
    except Exception as error:  # a damaged file can raise anything
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        return f"{file} cannot be read: {first_line}."


def has_saved_since(config: Config, start: str) -> bool:
    """Whether the run in run.dir began with this option and has saved since; then the path in the
    option is not read again.
    """
    stored = _stored(config)
    if not isinstance(stored, Config):
        return False
    unchanged = getattr(stored.checkpoint, start) == getattr(config.checkpoint, start)
    return unchanged and any(Path(str(config.run.dir), config.checkpoint.dir).glob("step_[0-9]*"))
