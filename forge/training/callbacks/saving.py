"""The saving callback: at intervals, after the best evaluations, and at the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from forge.config.horizon import is_named
from forge.config.objectives.base import is_higher_better
from forge.data.batches.streams import joined
from forge.optim.train_eval_modes import Modes
from forge.rundir.checkpoints import CheckpointError, Saved
from forge.rundir.files import row_sizes
from forge.rundir.progress import row_files
from forge.training.callback import Callback
from forge.training.callbacks.metrics import nulls
from forge.training.checkpoints.callback_state import (
    callback_states,
    load_states,
    parameter_states,
)
from forge.training.checkpoints.checkpoint import Checkpointer, Tensors, prefixed
from forge.training.checkpoints.local_tier import LocalTier

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput


class Saving(Callback):
    """Saves at intervals of steps or minutes, after evaluations among the best, and at the end.

    Stands last among the callbacks: saved callback state is from the end of the same step. The
    metrics of an evaluation at the end of the run are added to the last save.
    """

    def __init__(
        self, session: Session, checkpointer: Checkpointer, local: LocalTier | None = None
    ) -> None:
        self.local = local
        self.session, self.checkpointer, self.ranks = session, checkpointer, session.ranks
        self.section, self.metric = session.config.checkpoint, session.config.eval.metric
        self.saved_at = 0.0
        self.time_is_over = self.reserved = False
        self.evaluated: tuple[int, dict[str, float]] = (-1, {})

    @classmethod
    def wanted(cls, session: Session) -> bool:
        return session.config.checkpoint.enabled

    def on_start(self, loop: Loop) -> None:
        self.saved_at = time.monotonic()
        if self._is_best(loop):  # after an evaluation broken off by a stop
            self.save(loop, "best")

    reads_gradients = False

    def on_gradients(self, loop: Loop) -> None:
        if self.checkpointer.is_copying:
            with loop.ledger.span("checkpoint"):
                self.checkpointer.wait_to_write()

    def on_evaluation(self, loop: Loop, metrics: dict[str, float]) -> None:
        self.evaluated = (loop.state.step, metrics)

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        self._announce(loop)
        pins = self.section.async_mode == "async_with_pinned_mem"
        if pins and not self.reserved:  # after the first update, which makes the optimizer's state
            self.reserved = True
            _, tensors = callback_states(loop.callbacks, loop.state.step)
            extra = prefixed("callbacks", tensors) | parameter_states(loop.callbacks)
            self.checkpointer.reserve(loop.model, loop.optimizer, extra)
        if reason := self._reason(loop):
            self.save(loop, reason)
            self._announce(loop)
        elif self.local and loop.state.step % self.section.local_interval == 0:
            self.save_to_disks(loop, self.local)

    def on_end(self, loop: Loop) -> None:
        with loop.ledger.long_span("checkpoint"), loop.paused():
            self.checkpointer.wait()
            missing = self.ranks.from_main(not self.checkpointer.has(loop.state.step))
            if missing and (loop.interrupted or self.section.last != "none"):
                self.save(loop, "end")  # nothing left to train after another run's save
                self.checkpointer.wait()
            if metrics := self._metrics(loop):
                self.checkpointer.evaluated(loop.state.step, metrics)
        self._announce(loop)

    def close(self) -> None:
        self.checkpointer.close()

    def save(self, loop: Loop, reason: str) -> None:
        with loop.ledger.long_span("checkpoint"), loop.paused():
            meta, tensors = self._state(loop, reason)
            weights_only = loop.ending and not loop.interrupted and self.section.last == "weights"
            state = {} if weights_only else prefixed("callbacks", tensors)
            with loop.reading():
                self.checkpointer.save(
                    loop.state.step,
                    model=loop.model,
                    optimizer=loop.optimizer,
                    meta=meta,
                    extra=state | parameter_states(loop.callbacks),
                    weights_only=weights_only,
                )
                # Otherwise on_gradients waits, and the copy overlaps with the next forward pass.
                if self._changes_soon(loop):
                    self.checkpointer.wait_to_write()
        loop.ledger.saved(loop.state.step)
        self.saved_at, self.time_is_over = time.monotonic(), False

    def save_to_disks(self, loop: Loop, local: LocalTier) -> None:
        """Save to the disks of the nodes, once a save that is still being written is done."""
        with loop.ledger.long_span("checkpoint"), loop.paused():
            self.checkpointer.wait()
            meta, tensors = self._state(loop, "local_interval")
            extra = prefixed("callbacks", tensors) | parameter_states(loop.callbacks)
            with loop.reading():
                local.save(
                    loop.state.step,
                    self.checkpointer.tensors_of(loop.model, loop.optimizer, extra),
                    self.checkpointer.about(loop.state.step, meta),
                )
                if self._changes_soon(loop):
                    self.checkpointer.wait_to_write()
        loop.ledger.saved(loop.state.step)

    def _state(self, loop: Loop, reason: str) -> tuple[dict[str, Any], Tensors]:
        """The content of meta.json, and the tensors of callbacks."""
        plain, tensors = callback_states(loop.callbacks, loop.state.step)
        meta = {
            "reason": reason,
            "metrics": self._metrics(loop),
            "best_by": self.metric,
            "higher_is_better": is_higher_better(self.metric),
            "train": loop.state.state_dict(),
            "loader": self._place(loop),
            "seconds": loop.clock.total(),
            "data": self.session.prepared.identity,
            "scaler": self.session.scaler.state_dict(),
            "rows": row_sizes(row_files(loop.run_dir)),
            "callbacks": plain,
        }
        return meta, tensors

    def requested(self, loop: Loop) -> int:
        """Whether interval_minutes are over since the last save, or it is written."""
        minutes = self.section.interval_minutes
        if self.section.continuous and self.checkpointer.is_idle:
            return 1
        return int(minutes > 0 and time.monotonic() - self.saved_at >= minutes * 60)

    def act(self, loop: Loop, number: int) -> None:
        self.time_is_over = True

    def _reason(self, loop: Loop) -> str | None:
        if loop.ending:
            saves = loop.interrupted or self.section.last != "none"
            return (loop.stop_reason or "end") if saves else None
        if self.section.interval and loop.state.step % self.section.interval == 0:
            return "interval"
        if is_named(loop.state.step, self.section.steps, self.section.per_decade):
            return "named step"
        if self.time_is_over:
            return "continuous" if self.section.continuous else "interval_minutes"
        return "best" if self._is_best(loop) else None

    def _changes_soon(self, loop: Loop) -> bool:
        """Whether saved tensors may change before the next update.

        True for an optimizer with modes, and if another callback acts before the update.
        """
        moments = [*loop.acting_at("on_step_start"), *loop.acting_at("on_gradients")]
        return isinstance(loop.optimizer, Modes) or any(
            callback is not self for callback in moments
        )

    def _place(self, loop: Loop) -> dict[str, Any]:
        """The run's place in the data. With a stream each rank knows only its own reads."""
        state = loop.loader.state_dict()
        return joined(self.ranks.of_all(state)) if loop.loader.streams else state

    def _is_best(self, loop: Loop) -> bool:
        step, metrics = self.evaluated
        if not self.section.keep_best or step != loop.state.step:
            return False
        return self.ranks.any(self.ranks.main and self.checkpointer.is_best(metrics[self.metric]))

    def _metrics(self, loop: Loop) -> dict[str, float | None]:
        """Metrics of the evaluation at this step; none without an evaluation."""
        step, metrics = self.evaluated
        return nulls(metrics) if step == loop.state.step else {}

    def _announce(self, loop: Loop) -> None:
        for path in self.checkpointer.committed():
            loop.call("on_checkpoint", path)


def restore(checkpoint: Saved, tensors: Tensors, loop: Loop) -> None:
    meta = checkpoint.meta
    if "OuterStep" in meta["callbacks"] and not loop.config.diloco.enabled:
        message = "each replica of diloco=on has an optimizer of its own in it"
        hint = "diloco=on, or checkpoint.init_from for its weights"
        raise CheckpointError(f"{checkpoint.path}: {message}. Give {hint}")
    loop.state.load_state_dict(meta["train"])
    loop.clock.before = meta["seconds"]
    if meta["scaler"]:
        loop.session.scaler.load_state_dict(meta["scaler"])
    load_states(loop.callbacks, meta["callbacks"], tensors, loop.state.step)
    loop.call("on_restore", checkpoint.path)
