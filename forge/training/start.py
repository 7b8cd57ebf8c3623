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
from forge.parallel.materialize import fill
from forge.rundir import checkpoints, directory, outcome
from forge.rundir.checkpoints import TOKENIZER, CheckpointError, Damaged, NoneLeft, Saved
from forge.rundir.files import cut_rows
from forge.rundir.progress import row_files
from forge.training.callbacks.saving import restore as load_state
from forge.training.checkpoints import restore
from forge.training.checkpoints.adapter_base import BASE, fingerprint, identity, located
from forge.training.checkpoints.checkpoint import Checkpointer
from forge.training.checkpoints.new_rows import of_new_rows
from forge.training.checkpoints.peft_folders import load_adapters
from forge.training.loop import Loop
from forge.training.process import say, stage
from forge.training.session import Session


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where the run goes on from; `own` when that is a checkpoint of this run. weights: what it
    takes the weights alone from. undo_after: own checkpoints of later steps are set aside.
    """

    checkpoint: Saved | None = None
    own: bool = False
    weights: Path | None = None
    undo_after: int | None = None

    @property
    def path(self) -> Path | None:
        """What is read."""
        return self.checkpoint.path if self.checkpoint else self.weights

    @property
    def step(self) -> int:
        """The step of this run that it goes on from; 0 = none."""
        return self.meta.get("step", 0) if self.own else 0

    @property
    def meta(self) -> dict[str, Any]:
        return self.checkpoint.meta if self.checkpoint else {}


def choose(session: Session, checkpointer: Checkpointer) -> Start:
    """What the run starts from, on all ranks what the main one finds. Raises CheckpointError when
    what was asked for cannot be used, or nothing that is there can.

    In this order: checkpoint.resume_from, when the last start did not take it; the newest usable
    checkpoint of the run; checkpoint.resume_from; checkpoint.init_from; nothing. What cannot be
    used is passed over with a warning.
    """
    found: Start | Exception | None = None
    if session.ranks.main:
        try:
            checkpointer.clean()
            found = _choose(session.run_dir, session.config, checkpointer)
        except (ValueError, OSError) as error:
            found = error
    found = session.ranks.from_main(found)
    if isinstance(found, Exception):
        raise found
    assert found is not None
    return found


def _choose(run_dir: Path, config: Config, checkpointer: Checkpointer) -> Start:
    folder = run_dir / config.checkpoint.dir
    wanted = config.checkpoint.resume_from
    if wanted is not None and outcome.resumed_from(run_dir) != wanted:
        return _wanted(folder, wanted, checkpointer)
    damaged = checkpointer.passed.damaged
    newest, skipped = checkpoints.newest_usable(
        folder, checkpointer.run_id, to_go_on=True, damaged=damaged
    )
    checkpointer.passed.warn(skipped)
    if newest is not None:
        # Nothing else shows that a damaged one is, and keep_last_n would count it.
        return Start(checkpoint=newest, own=True, undo_after=newest.step if damaged else None)
    anew = "put one back, or give another run.dir to begin anew"
    if skipped:
        what = "; ".join(f"{one.path.name}: {fault}" for one, fault in skipped)
        if checkpoints.newest_usable(folder, checkpointer.run_id, damaged=damaged)[0]:
            own = directory.short(run_dir)
            anew = f"begin a new run with its weights, checkpoint.init_from={own}"
        raise NoneLeft(f"{folder} has checkpoints and none can be used ({what}); {anew}")
    if step := outcome.last_saved_step(run_dir):
        if not config.checkpoint.enabled:
            anew = "checkpoint.enabled=false saved none; give another run.dir to begin anew"
        raise NoneLeft(f"{folder} has no checkpoint, and this run was at step {step}; {anew}")
    if wanted is not None:
        return _wanted(folder, wanted, checkpointer)
    init_from = config.checkpoint.init_from
    if init_from is None:
        return Start()
    if Path(init_from).is_file() or is_folder(init_from):
        return Start(weights=Path(init_from))
    name = "checkpoint.init_from="
    found, skipped = checkpoints.find(Path(init_from), name=name, damaged=damaged)
    checkpointer.passed.warn(skipped)
    return Start(weights=found.path)


def begin(start: Start, checkpointer: Checkpointer, loop: Loop) -> None:
    """Load what the start names, put data and rows where it left them, and say so.

    Where its tensors turn out damaged, on all ranks the next choice is taken; one that was asked
    for by its name is refused.
    """
    config, run_dir, ranks = loop.config, loop.run_dir, loop.session.ranks
    model, optimizer = loop.model, loop.optimizer
    while True:
        try:
            source = _load(start, checkpointer, loop)
            break
        except Damaged as error:
            if error.path != start.path:
                raise  # what adapters stand beside
            checkpointer.passed.damaged[error.path] = error.fault
            start = choose(loop.session, checkpointer)
    adapter = config.adapter
    if adapter.active:
        base = _base_of(start, checkpointer, config) if ranks.main else None
        checkpointer.base = ranks.from_main(base)
    if start.checkpoint is None:
        adapter_of(config).take_out(model)
    if start.checkpoint is None and adapter.peft_folder:
        folder = Path(adapter.peft_folder)
        _check_base(folder, start.weights, config)
        load_adapters(folder, model, config.model, adapter)
        say(f"beginning with the adapters of {adapter.peft_folder}")
    if isinstance(optimizer, Modes):
        optimizer.train()
    if config.train.compile_model:
        stage(config, "start: the first step compiles the model")
    if not ranks.main:
        return
    if start.undo_after is not None and (moved := checkpointer.set_aside(start.undo_after)):
        say(f"set aside: {', '.join(path.name for path in moved)}")
    if start.checkpoint is None and config.checkpoint.enabled:
        # Only now: a run that is refused leaves nothing to go on with.
        say(f"goes on with: {directory.resume_command(run_dir)}")
    loop.trackers.resumed_at = start.step
    cut_rows(row_files(run_dir), start.meta.get("rows", {}) if start.own else {})
    resume_from = config.checkpoint.resume_from
    outcome.record_start(run_dir, step=loop.state.step, source=source, resume_from=resume_from)


def _load(start: Start, checkpointer: Checkpointer, loop: Loop) -> str:
    """Load what the start names, and say so; returns it in words. Raises CheckpointError; Damaged
    on all ranks.
    """
    config, run_dir, ranks = loop.config, loop.run_dir, loop.session.ranks
    model, optimizer = loop.model, loop.optimizer
    exclude = tuple(config.checkpoint.exclude_from_loading)
    source = "nothing"
    if place := start.weights or (start.checkpoint and start.checkpoint.path):
        stage(config, f"start: read {directory.short(place)}")
    if start.weights is not None:
        source = str(start.weights)
        _check_vocabulary(start.weights, loop.session)
        if config.checkpoint.init_optimizer:
            _check_state(start.weights, config)
            more = {"exclude": exclude, "group": ranks.saver}
            restore.load(start.weights, model=model, optimizer=optimizer, **more)
            say(f"beginning with the weights and the optimizer of {source}")
        else:
            more = {"exclude": exclude, "trust": config.run.trust, "group": ranks.saver}
            restore.load_weights(start.weights, model=model, section=config.model, **more)
            say(f"beginning with the weights of {source}{of_new_rows(start.weights, config.model)}")
        adapter_of(config).begin(model)
    elif start.checkpoint is not None:
        path = start.checkpoint.path
        same_text = _check_data(start, path, loop.session)
        with _or_another(start, checkpointer):
            before = restore.config_of(path, trust=config.run.trust)
            changed = any(change.key.startswith("model") for change in changes(before, config))
            if start.own and changed and checkpointer.passed.damaged:
                fill(model, config.seed)  # of a damaged one something was loaded
                adapter_of(config).begin(model)
            old, new = before.optimizer, config.optimizer
            same_optimizer = (old.variant, old._target_) == (new.variant, new._target_)
            tensors = restore.load(
                path,
                model=model,
                optimizer=optimizer,
                exclude=() if start.own else exclude,
                changed=start.own and changed,
                with_optimizer_state=same_optimizer,
                init_from=config.checkpoint.init_from,
                trust=config.run.trust,
                group=ranks.saver,
            )
        load_state(start.meta, tensors, loop)
        if not same_text:
            loop.state.samples = 0
        place = {"samples": loop.state.samples}
        if same_text:
            place |= start.meta.get("loader", {})  # older checkpoints have none
        loop.loader.load_state_dict(place)
        source = str(path.relative_to(run_dir)) if path.is_relative_to(run_dir) else str(path)
        where = "where it stopped in the data"
        if not same_text:
            where = "at the beginning of this corpus, which is another one"
        left = loop.end_step - loop.state.step
        rest = (
            f"{left} steps to go" if left > 0 else "nothing is left to train; raise train.max_steps"
        )
        say(f"going on from {source} at step {loop.state.step}, {where}: {rest}")
        if not same_optimizer:
            say(f"the optimizer begins anew: {source} has the state of another")
    return source


def _base_of(start: Start, checkpointer: Checkpointer, config: Config) -> dict[str, Any]:
    """What adapters stand beside: what the checkpoint says, where it is now, or what the run begins
    with.
    """
    place = start.weights
    if start.checkpoint is not None and BASE in start.meta:
        place = located(start.meta[BASE], start.checkpoint.path, config.checkpoint.init_from)
    return identity(place, checkpointer.folder)


def _wanted(folder: Path, wanted: str, checkpointer: Checkpointer) -> Start:
    """checkpoint.resume_from: a step of this run, or a path."""
    key, passed = f"checkpoint.resume_from={wanted}", checkpointer.passed
    if wanted.isdecimal():
        found = Saved(folder / f"step_{int(wanted)}")
        fault = passed.damaged.get(found.path)
        fault = fault or found.fault(checkpointer.run_id, to_go_on=True)
        if fault is not None:
            raise CheckpointError(f"{key}: {found.path} cannot be used: {fault}")
        own = True
    else:
        name = "checkpoint.resume_from="
        found, skipped = checkpoints.find(
            Path(wanted), name=name, to_go_on=True, damaged=passed.damaged
        )
        passed.warn(skipped)
        own = found.meta.get("run_id") == checkpointer.run_id and found.path.parent == folder
    return Start(checkpoint=found, own=own, undo_after=found.step if own else -1)


@contextmanager
def _or_another(start: Start, checkpointer: Checkpointer) -> Iterator[None]:
    """A checkpoint that cannot be read is refused with the others that the run has."""
    try:
        yield
    except Damaged:
        raise
    except CheckpointError as error:
        steps = [
            str(one.step)
            for one in checkpoints.listed(checkpointer.folder)
            if one.fault(checkpointer.run_id, to_go_on=True) is None and one != start.checkpoint
        ]
        if not start.own or not steps:
            raise
        others = f"checkpoint.resume_from={steps[-1]}; this run has steps {', '.join(steps)}"
        raise CheckpointError(f"{error}: {others}") from error


def _check_vocabulary(path: Path, session: Session) -> None:
    """Raises CheckpointError for the weights of a run with another tokenizer, unless
    run.allow_change permits it.
    """
    its = Saved(path).meta.get("data", {}).get("tokenizer")
    ours = session.prepared.identity["tokenizer"]
    if its in (None, ours) or _is_base_with_added(path, session, ours):
        return
    if not permitted("tokenizer", session.config.run.allow_change):
        typed = Tokenizer.load(path / TOKENIZER).typed(path / TOKENIZER / "tokenizer.json")
        what = checkpoints.OTHER_TOKENIZER
        fix = f"take its own: {typed}; run.allow_change=[tokenizer] takes the weights all the same"
        raise CheckpointError(f"checkpoint.init_from={path}: {what}; {fix}")


def _is_base_with_added(path: Path, session: Session, ours: str) -> bool:
    """Whether the tokenizer of the run is that of a checkpoint with added tokens."""
    section = session.config.tokenizer
    try:
        its = Tokenizer.load(path / TOKENIZER).with_added(section) if section.added else None
    except (OSError, ValueError):
        return False
    return its is not None and its.fingerprint == ours


def _check_base(adapters: Path, weights: Path | None, config: Config) -> None:
    """Raises CheckpointError for adapters that name another folder of weights which is there, with
    other weights, unless run.allow_change permits it.
    """
    named = peft.read(adapters).get("base_model_name_or_path")
    if not isinstance(named, str) or not is_folder(named):
        return
    if weights is None or not is_folder(weights):
        return
    key = "adapter.init_from"
    if permitted(key, config.run.allow_change) or fingerprint(Path(named)) == fingerprint(weights):
        return
    what = f"it has adapters of {named}, and this run begins with other weights, of {weights}"
    fix = f"take model.path={named}; run.allow_change=[{key}] takes them all the same"
    raise CheckpointError(f"{key}={adapters}: {what}; {fix}")


def _check_state(path: Path, config: Config) -> None:
    """Raises CheckpointError where checkpoint.init_from has no state of such an optimizer."""
    fault, saved = None, Saved(path)
    if config.adapter.active:
        fault = f"adapter={config.adapter.schema_name} trains none of what it has the state of"
    elif not saved.meta or saved.meta.get("weights_only"):
        fault = "it holds the weights alone"
    else:
        old, new = restore.config_of(path, trust=config.run.trust).optimizer, config.optimizer
        if (old.variant, old._target_) != (new.variant, new._target_):
            fault = f"it has the state of optimizer={old.schema_name}"
    if fault:
        fix = "set checkpoint.init_optimizer=false, and the optimizer begins anew"
        raise CheckpointError(f"checkpoint.init_from={path}: {fault}; {fix}")


def _check_data(start: Start, path: Path, session: Session) -> bool:
    """Whether the text is the same. Raises CheckpointError when it or the tokenizer is another one
    and run.allow_change does not permit it.
    """
    before, data = start.meta["data"], session.prepared.identity
    allowed, run_dir = session.config.run.allow_change, session.run_dir
    same_text = before["train"] == data["train"]
    retokenized = before["tokenizer"] != data["tokenizer"]
    if retokenized and not (start.own and permitted("tokenizer", allowed)):
        what = checkpoints.OTHER_TOKENIZER
        if start.own and not same_text:
            what = "the text has changed under this run, and with it the tokenizer trained on it"
        kept = (run_dir if start.own else path) / TOKENIZER / "tokenizer.json"
        its = Tokenizer.load(path / TOKENIZER).typed(kept)
        fix = f"put it back, or take its own: {its}"
        allow = " run.allow_change=[data,tokenizer]" if start.own else ""
        raise CheckpointError(f"{path}: {what}; {fix}{allow}")
    if not same_text and start.own and not permitted("data", allowed):
        what = "the text has changed under this run, so its place in the data means something else"
        fix = "put it back, or run.allow_change=[data] goes on at the beginning of the new text"
        raise CheckpointError(f"{path}: {what}; {fix}")
    return same_text
