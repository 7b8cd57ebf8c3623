"""From a session to a loop ready to run: the remaining parts, in the order of the data flow."""

from __future__ import annotations

from forge.rundir import directory, outcome, versions
from forge.rundir.checkpoints import TOKENIZER
from forge.rundir.files import write_json
from forge.rundir.wall_clock.ledger import Ledger
from forge.training.callback import Callback, is_users
from forge.training.callbacks.build_trackers import trackers_of
from forge.training.callbacks.diloco import OuterStep
from forge.training.callbacks.every_step import Agreement, BadSteps
from forge.training.callbacks.garbage import Garbage
from forge.training.callbacks.internals import Internals
from forge.training.callbacks.metrics import Logger
from forge.training.callbacks.norms import Norms
from forge.training.callbacks.progress import StepSigns
from forge.training.callbacks.reference_average import ReferenceAverage
from forge.training.callbacks.remote_copies import RemoteCopies
from forge.training.callbacks.rollout_tables import RolloutTables
from forge.training.callbacks.saving import Saving
from forge.training.callbacks.sparsity import Sparsity
from forge.training.callbacks.spikes import Spikes
from forge.training.callbacks.stopping import HealthCheck, StopVote, TimeLimit
from forge.training.callbacks.stragglers import Stragglers
from forge.training.callbacks.tasks import Tasks
from forge.training.callbacks.weight_average import WeightAverage
from forge.training.checkpoints.checkpoint import Checkpointer
from forge.training.checkpoints.handing_over import hand_over_of
from forge.training.checkpoints.local_tier import LocalTier, local_tier_of
from forge.training.data import how_streamed
from forge.training.entries import build_entries
from forge.training.loop import Loop
from forge.training.process import say
from forge.training.session import Session
from forge.training.start import Start, begin, choose_start
from forge.training.step import Update
from forge.training.step_source import source_of


def build_loop(session: Session, ledger: Ledger | None = None) -> Loop:
    """Build the loop of a run, restored to the end of the last start.

    Raises ValueError for mistakes.
    """
    config, run_dir, ranks = session.config, session.run_dir, session.ranks
    hand_over = hand_over_of(session)
    loader = source_of(session, hand_over)
    for line in how_streamed(config, session.prepared.train, ranks.batch[1]):
        say(line)
    spikes = Spikes(session) if Spikes.wanted(session) else None
    update = Update(
        model=session.model,
        objective=session.objective,
        optimizer=session.optimizer,
        schedule=session.schedule,
        device=session.device,
        scaler=session.scaler,
        clip_norm=config.train.grad_clip_norm,
        clip_value=config.train.grad_clip_value,
        spikes=spikes,
        ranks=ranks,
        max_steps=config.train.max_steps,
        reduce_each=config.parallel.reduce_gradients == "micro_batch",
        in_backward=config.train.optimizer_in_backward,
    )
    checkpointer = Checkpointer(
        run_dir / config.checkpoint.dir,
        config,
        session.tokenizer,
        directory.run_id(run_dir),
        ranks,
    )
    if hand_over is not None:
        hand_over.of(checkpointer)
    local = local_tier_of(checkpointer)
    if local and outcome.resumed_from(run_dir) == config.checkpoint.resume_from:
        local.put_together()
    start = choose_start(session, checkpointer)
    trackers = trackers_of(session)
    entries = build_entries(session)
    votes = ranks.size > 1 and any(map(is_users, entries))
    loop = Loop(
        session,
        update=update,
        loader=loader,
        trackers=trackers,
        callbacks=[
            *([spikes] if spikes else []),
            *_order_callbacks(session, entries, checkpointer, local, votes=votes),
        ],
        votes=votes,
        ledger=ledger,
    )
    _begin(start, checkpointer, loop)
    if local:
        local.forget_after(loop.state.step)
    if ranks.main:
        keep(session)
    return loop


def _begin(start: Start, checkpointer: Checkpointer, loop: Loop) -> None:
    """Join the other replica groups, if any, and load the start."""
    if loop.config.fault_tolerance.enabled:
        from forge.training.replicas.replicas import join_replicas  # of few runs

        join_replicas(loop)
    begin(start, checkpointer, loop)


def _order_callbacks(
    session: Session,
    entries: list[Callback],
    checkpointer: Checkpointer,
    local: LocalTier | None,
    *,
    votes: bool,
) -> list[Callback]:
    """Order the entries of `callbacks` among the callbacks for stopping, logging and saving.

    Each callback stands after the callbacks it looks at, see their docstrings.
    """

    def wanted(*kinds: type[Callback]) -> list[Callback]:
        return [kind(session) for kind in kinds if kind.wanted(session)]  # type: ignore[call-arg]

    callbacks = wanted(OuterStep)
    checkpointer.apart = next(iter(callbacks), None)  # type: ignore[assignment]
    callbacks += [
        *wanted(StepSigns, Stragglers, Sparsity, WeightAverage, ReferenceAverage),
        session.signals,
    ]
    callbacks += wanted(Garbage, Agreement, BadSteps, Logger, Norms, Internals, RolloutTables)
    callbacks += wanted(TimeLimit)
    callbacks += [*entries, *wanted(Tasks, HealthCheck)]
    if votes:
        callbacks.append(StopVote(session))
    if Saving.wanted(session):
        callbacks.append(Saving(session, checkpointer, local))
    callbacks += wanted(RemoteCopies)
    return callbacks


def keep(session: Session) -> None:
    """Write the manifest, derived values and tokenizer; last, so a refused run leaves nothing."""
    run_dir = session.run_dir
    write_json(run_dir / "data.json", session.prepared.manifest)
    versions.replace_part(run_dir, versions.number_in_force(run_dir), "derived", session.derived)
    if not (run_dir / TOKENIZER).exists():  # the first start's, for any later text
        session.tokenizer.save(run_dir / TOKENIZER)
