"""What a run starts from: its newest checkpoint, one that is named, weights alone, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge.adapters.adapter import adapter_of
from forge.config.changes import changes, permitted
from forge.config.root import Config
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.families import peft
from forge.families.folder import is_folder
from forge.optim.train_eval_modes import Modes
from forge.parallel.materialize import fill_weights
from forge.rundir import checkpoints, directory, outcome
from forge.rundir.checkpoints import TOKENIZER, CheckpointError, Damaged, NoCheckpoint, Saved
from forge.rundir.files import cut_rows
from forge.rundir.progress import row_files
from forge.rundir.remote.local_copy import local_copy_of
from forge.training.callbacks.saving import restore as load_state
from forge.training.checkpoints import restore
from forge.training.checkpoints.adapter_base import BASE, describe_base, hash_weights, located
from forge.training.checkpoints.checkpoint import Checkpointer
from forge.training.checkpoints.new_rows import of_new_rows
from forge.training.checkpoints.peft_folders import load_adapters
from forge.training.checkpoints.replicas import replicas_of
from forge.training.loop import Loop
from forge.training.process import say, stage
from forge.training.session import Session


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where the run starts: a checkpoint, `own` if of this run, or weights alone.

    weights: path of the weights alone. undo_after: own checkpoints of later steps are set aside.
    """

    checkpoint: Saved | None = None
    own: bool = False
    weights: Path | None = None
    undo_after: int | None = None

    @property
    def path(self) -> Path | None:
        """The path to read."""
        return self.checkpoint.path if self.checkpoint else self.weights

    @property
    def step(self) -> int:
        """The step of this run to resume from; 0 = none."""
        return self.meta.get("step", 0) if self.own else 0

    @property
    def meta(self) -> dict[str, Any]:
        return self.checkpoint.meta if self.checkpoint else {}


def choose_start(session: Session, checkpointer: Checkpointer) -> Start:
    """Choose the start on the main rank, for all ranks.

    In this order: checkpoint.resume_from, unless the last start took the same; the newest usable
    checkpoint of the run; checkpoint.resume_from; checkpoint.init_from; nothing. Unusable
    checkpoints are skipped with a warning. Raises CheckpointError for an unusable named
    checkpoint, or a run with only unusable checkpoints.
    """
    start: Start | Exception | None = None
    if session.ranks.main:
        try:
            checkpointer.clean()
            start = _choose(session.run_dir, session.config, checkpointer)
        except (ValueError, OSError) as error:
            start = error
    start = session.ranks.from_main(start)
    if isinstance(start, Exception):
        raise start
    assert start is not None
    return start


def _choose(run_dir: Path, config: Config, checkpointer: Checkpointer) -> Start:
    folder = run_dir / config.checkpoint.dir
    resume_from = config.checkpoint.resume_from
    if resume_from is not None and outcome.resumed_from(run_dir) != resume_from:
        return _wanted(folder, resume_from, checkpointer)
    damaged = checkpointer.passed.damaged
    newest, skipped = checkpoints.newest_usable(
        folder, checkpointer.run_id, to_go_on=True, damaged=damaged
    )
    checkpointer.passed.warn(skipped)
    if newest is not None:
        # Only undo_after sets a damaged checkpoint aside; keep_last_n would count it.
        return Start(checkpoint=newest, own=True, undo_after=newest.step if damaged else None)
    hint = "put one back, or give another run.dir to begin again"
    if skipped:
        faults = "; ".join(f"{checkpoint.path.name}: {fault}" for checkpoint, fault in skipped)
        if checkpoints.newest_usable(folder, checkpointer.run_id, damaged=damaged)[0]:
            run_name = directory.short(run_dir)
            hint = f"begin a new run with its weights, checkpoint.init_from={run_name}"
        raise NoCheckpoint(f"{folder} has checkpoints and none can be used ({faults}); {hint}")
    if step := outcome.last_saved_step(run_dir):
        if not config.checkpoint.enabled:
            hint = "checkpoint.enabled=false saved none; give another run.dir to begin again"
        raise NoCheckpoint(f"{folder} has no checkpoint, and this run was at step {step}; {hint}")
    if resume_from is not None:
        return _wanted(folder, resume_from, checkpointer)
    init_from = config.checkpoint.init_from
    if init_from is None:
        return Start()
    path = local_copy_of(init_from)
    if path.is_file() or is_folder(path):
        return Start(weights=path)
    name = "checkpoint.init_from="
    checkpoint, skipped = checkpoints.find_checkpoint(path, name=name, damaged=damaged)
    checkpointer.passed.warn(skipped)
    return Start(weights=checkpoint.path)


def begin(start: Start, checkpointer: Checkpointer, loop: Loop) -> None:
    """Load a start, restore the place in data and rows, and report the start.

    Damaged tensors: all ranks take the next choice; a damaged checkpoint asked for by name is
    refused.
    """
    config, ranks = loop.config, loop.session.ranks
    while True:
        try:
            source = _load(start, checkpointer, loop)
            break
        except Damaged as error:
            if error.path != start.path:
                raise  # the damaged base of adapters has no substitute
            checkpointer.passed.damaged[error.path] = error.fault
            start = choose_start(loop.session, checkpointer)
    if config.adapter.active:
        base = _base_of(start, checkpointer, config) if ranks.main else None
        checkpointer.base = ranks.from_main(base)
    if start.checkpoint is None:
        _begin_adapters(start, loop)
    if isinstance(loop.optimizer, Modes):
        loop.optimizer.train()
    if config.train.compile_model:
        stage(config, "start: the first step compiles the model")
    if ranks.main:
        _record(start, source, checkpointer, loop)


def _begin_adapters(start: Start, loop: Loop) -> None:
    """Begin the adapters of a new run, with the values of adapter.init_from if given."""
    config, adapter = loop.config, loop.config.adapter
    adapter_of(config).take_out(loop.model)
    if adapter.peft_folder:
        folder = Path(adapter.peft_folder)
        _check_base(folder, start.weights, config)
        load_adapters(folder, loop.model, config.model, adapter)
        say(f"beginning with the adapters of {adapter.peft_folder}")


def _record(start: Start, source: str, checkpointer: Checkpointer, loop: Loop) -> None:
    """Put the run directory in the state of the start: checkpoints, rows and the record."""
    run_dir, config = loop.run_dir, loop.config.checkpoint
    if start.undo_after is not None and (moved := checkpointer.set_aside(start.undo_after)):
        say(f"set aside: {', '.join(path.name for path in moved)}")
    if start.checkpoint is None and config.enabled:
        # Only now: a refused run leaves nothing to continue with.
        say(f"resume with: {directory.resume_command(run_dir)}")
    loop.trackers.resumed_at = start.step
    cut_rows(row_files(run_dir), start.meta.get("rows", {}) if start.own else {})
    step, resume_from = loop.state.step, config.resume_from
    outcome.record_start(run_dir, step=step, source=source, resume_from=resume_from)


def _load(start: Start, checkpointer: Checkpointer, loop: Loop) -> str:
    """Load a start and report the source; returns the source in words.

    Raises CheckpointError; Damaged on all ranks.
    """
    if start.path is not None:
        stage(loop.config, f"start: read {directory.short(start.path)}")
    if start.weights is not None:
        return _load_weights(start.weights, loop)
    if start.checkpoint is not None:
        return _continue_run(start, start.checkpoint.path, checkpointer, loop)
    return "nothing"


def _load_weights(path: Path, loop: Loop) -> str:
    """Begin a new run with weights, and with an optimizer's state if asked for."""
    config, model = loop.config, loop.model
    ranks = {"group": loop.session.ranks.saver, "replicas": replicas_of(loop.session)}
    exclude = tuple(config.checkpoint.exclude_from_loading)
    _check_vocabulary(path, loop.session)
    if config.checkpoint.init_optimizer:
        _check_state(path, config)
        part = restore.Part(exclude=exclude)
        restore.load_checkpoint(path, model=model, optimizer=loop.optimizer, part=part, **ranks)
        say(f"beginning with the weights and the optimizer of {path}")
    else:
        options = {"exclude": exclude, "trust": config.run.trust, **ranks}
        restore.load_weights(path, model=model, section=config.model, **options)
        say(f"beginning with the weights of {path}{of_new_rows(path, config.model)}")
    adapter_of(config).begin(model)
    return str(path)


def _continue_run(start: Start, path: Path, checkpointer: Checkpointer, loop: Loop) -> str:
    """Resume from a checkpoint: weights, optimizer, callbacks, and the place in the data."""
    config, run_dir = loop.config, loop.run_dir
    same_text = _check_data(start, path, loop.session)
    with _or_another(start, checkpointer):
        saved_config = restore.read_checkpoint_config(path, trust=config.run.trust)
        difference = changes(saved_config, config)
        changed = start.own and any(change.key.startswith("model") for change in difference)
        if changed and checkpointer.passed.damaged:
            fill_weights(loop.model, config.seed)  # a damaged checkpoint left some tensors behind
            adapter_of(config).begin(loop.model)
        old, new = saved_config.optimizer, config.optimizer
        same_optimizer = (old.variant, old._target_) == (new.variant, new._target_)
        tensors = restore.load_checkpoint(
            path,
            model=loop.model,
            optimizer=loop.optimizer,
            part=restore.Part(
                exclude=() if start.own else tuple(config.checkpoint.exclude_from_loading),
                changed=changed,
                optimizer_state=same_optimizer,
            ),
            init_from=config.checkpoint.init_from,
            trust=config.run.trust,
            group=loop.session.ranks.saver,
            replicas=replicas_of(loop.session),
        )
    load_state(Saved(path), tensors, loop)
    _take_place(start, loop, same_text)
    source = str(path.relative_to(run_dir)) if path.is_relative_to(run_dir) else str(path)
    where = "where it stopped in the data"
    if not same_text:
        where = "at the beginning of this corpus, which is another one"
    to_go = f"{loop.end_step - loop.state.step} steps to go"
    if loop.end_step <= loop.state.step:
        to_go = "nothing is left to train; raise train.max_steps"
    say(f"resuming from {source} at step {loop.state.step}, {where}: {to_go}")
    if not same_optimizer:
        say(f"the optimizer begins again: {source} has the state of another")
    return source


def _take_place(start: Start, loop: Loop, same_text: bool) -> None:
    """Set the loader to the checkpoint's place in the data, of another text to the beginning."""
    # Samples are counted within a text, and a new text begins at 0.
    if not same_text:
        loop.state.samples = 0
    location = {"samples": loop.state.samples}
    if same_text:
        location |= start.meta.get("loader", {})  # older checkpoints have none
    loop.loader.load_state_dict(location)


def _base_of(start: Start, checkpointer: Checkpointer, config: Config) -> dict[str, Any]:
    """Find the base of the adapters: of the checkpoint at its present path, or the run's."""
    path = start.weights
    if start.checkpoint is not None and BASE in start.meta:
        path = located(start.meta[BASE], start.checkpoint.path, config.checkpoint.init_from)
    return describe_base(path, checkpointer.folder)


def _wanted(folder: Path, resume_from: str, checkpointer: Checkpointer) -> Start:
    """Start from checkpoint.resume_from: a step of this run, or a path."""
    key, passed = f"checkpoint.resume_from={resume_from}", checkpointer.passed
    if resume_from.isdecimal():
        checkpoint = Saved(folder / f"step_{int(resume_from)}")
        fault = passed.damaged.get(checkpoint.path)
        fault = fault or checkpoint.fault(checkpointer.run_id, to_go_on=True)
        if fault is not None:
            raise CheckpointError(f"{key}: {checkpoint.path} cannot be used: {fault}")
        is_own = True
    else:
        name = "checkpoint.resume_from="
        checkpoint, skipped = checkpoints.find_checkpoint(
            local_copy_of(resume_from), name=name, to_go_on=True, damaged=passed.damaged
        )
        passed.warn(skipped)
        of_run = (checkpoint.meta.get("run_id"), checkpoint.path.parent)
        is_own = of_run == (checkpointer.run_id, folder)
    return Start(checkpoint=checkpoint, own=is_own, undo_after=checkpoint.step if is_own else -1)


@contextmanager
def _or_another(start: Start, checkpointer: Checkpointer) -> Iterator[None]:
    """Refuse an unreadable checkpoint with a list of the run's other checkpoints."""
    try:
        yield
    except Damaged:
        raise
    except CheckpointError as error:
        steps = [
            str(saved.step)
            for saved in checkpoints.list_checkpoints(checkpointer.folder)
            if saved.fault(checkpointer.run_id, to_go_on=True) is None and saved != start.checkpoint
        ]
        if not start.own or not steps:
            raise
        alternatives = f"checkpoint.resume_from={steps[-1]}; this run has steps {', '.join(steps)}"
        raise CheckpointError(f"{error}: {alternatives}") from error


def _check_vocabulary(path: Path, session: Session) -> None:
    """Raise CheckpointError for weights of a run with another tokenizer.

    run.allow_change may permit the change.
    """
    saved = Saved(path).meta.get("data", {}).get("tokenizer")
    ours = session.prepared.identity["tokenizer"]
    if saved in (None, ours) or _is_base_with_added(path, session, ours):
        return
    if not permitted("tokenizer", session.config.run.allow_change):
        typed = Tokenizer.load(path / TOKENIZER).typed(path / TOKENIZER / "tokenizer.json")
        message = checkpoints.OTHER_TOKENIZER
        hint = f"take its own: {typed}; run.allow_change=[tokenizer] takes the weights all the same"
        raise CheckpointError(f"checkpoint.init_from={path}: {message}; {hint}")


def _is_base_with_added(path: Path, session: Session, ours: str) -> bool:
    """Whether the tokenizer of the run equals a checkpoint's tokenizer with added tokens."""
    section = session.config.tokenizer
    try:
        tokenizer = Tokenizer.load(path / TOKENIZER).with_added(section) if section.added else None
    except (OSError, ValueError):
        return False
    return tokenizer is not None and tokenizer.fingerprint == ours


def _check_base(adapters: Path, weights: Path | None, config: Config) -> None:
    """Raise CheckpointError for adapters of another existing folder with other weights.

    run.allow_change may permit the change.
    """
    base = peft.read_adapter_config(adapters).get("base_model_name_or_path")
    if not isinstance(base, str) or not is_folder(base):
        return
    if weights is None or not is_folder(weights):
        return
    key = "adapter.init_from"
    if permitted(key, config.run.allow_change) or hash_weights(Path(base)) == hash_weights(weights):
        return
    message = f"it has adapters of {base}, and this run begins with other weights, of {weights}"
    hint = f"take model.path={base}; run.allow_change=[{key}] takes them all the same"
    raise CheckpointError(f"{key}={adapters}: {message}; {hint}")


def _check_state(path: Path, config: Config) -> None:
    """Raise CheckpointError where checkpoint.init_from has no state of this optimizer."""
    fault, saved = None, Saved(path)
    if config.adapter.active:
        fault = f"adapter={config.adapter.schema_name} trains none of what it has the state of"
    elif not saved.meta or saved.meta.get("weights_only"):
        fault = "it holds the weights alone"
    else:
        before = restore.read_checkpoint_config(path, trust=config.run.trust)
        old, new = before.optimizer, config.optimizer
        if before.diloco.enabled:
            fault = "each replica of diloco=on has a state of its own"
        elif (old.variant, old._target_) != (new.variant, new._target_):
            fault = f"it has the state of optimizer={old.schema_name}"
    if fault:
        hint = "set checkpoint.init_optimizer=false, and the optimizer begins again"
        raise CheckpointError(f"checkpoint.init_from={path}: {fault}; {hint}")


def _check_data(start: Start, path: Path, session: Session) -> bool:
    """Whether the text is the same.

    Raises CheckpointError for another text or tokenizer, unless run.allow_change permits the
    change.
    """
    saved, data = start.meta["data"], session.prepared.identity
    allowed, run_dir = session.config.run.allow_change, session.run_dir
    same_text = saved["train"] == data["train"]
    retokenized = saved["tokenizer"] != data["tokenizer"]
    if retokenized and not (start.own and permitted("tokenizer", allowed)):
        message = checkpoints.OTHER_TOKENIZER
        if start.own and not same_text:
            message = "the text has changed under this run, and with it the tokenizer trained on it"
        tokenizer_file = (run_dir if start.own else path) / TOKENIZER / "tokenizer.json"
        typed = Tokenizer.load(path / TOKENIZER).typed(tokenizer_file)
        hint = f"put it back, or take its own: {typed}"
        allow = " run.allow_change=[data,tokenizer]" if start.own else ""
        raise CheckpointError(f"{path}: {message}; {hint}{allow}")
    if not same_text and start.own and not permitted("data", allowed):
        message = (
            "the text has changed under this run, so its place in the data means something else"
        )
        hint = "put it back, or run.allow_change=[data] continues at the beginning of the new text"
        raise CheckpointError(f"{path}: {message}; {hint}")
    return same_text
