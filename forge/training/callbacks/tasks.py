"""Tasks of evaluation in the loop: at intervals, at named steps, at the start and at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.config.horizon import is_named
from forge.evaluation.cache import Cache
from forge.evaluation.engine import Engine
from forge.evaluation.run import Runner
from forge.evaluation.tasks import facts, flat_metrics, save, tasks_ready
from forge.tasks.declared import tasks_of
from forge.training.callback import Callback
from forge.training.callbacks.evaluation import Interrupted
from forge.training.process import say

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput


class Tasks(Callback):
    """Runs the tasks of eval.tasks at the steps that `eval` names, and logs TASK/METRIC.

    Training is the same with and without. A run about to stop breaks the tasks off, and repeats
    them when resumed. metrics: of the last evaluation, after update number `at`.
    """

    reads_gradients = False

    def __init__(self, session: Session) -> None:
        """Raises ValueError for a task that cannot be asked, before the first step."""
        self.session, config = session, session.config
        self.section, self.entries = config.eval, tasks_of(config.eval)
        self.engine = Engine(
            session.model,
            device=session.device,
            ranks=session.ranks,
            batch_tokens=self.section.tasks_batch_tokens,
        )
        longest = self.engine.longest
        with session.ranks.main_first():
            self.ready = tasks_ready(self.entries, config, session.tokenizer, self.section, longest)
        self.metrics: dict[str, float] = {}
        self.at: int | None = None
        self.due = False

    @classmethod
    def wanted(cls, session: Session) -> bool:
        section = session.config.eval
        return bool(tasks_of(section)) and section.enabled

    def on_start(self, loop: Loop) -> None:
        if self.due or (loop.state.step == 0 and self.section.tasks_at_start):
            self.run(loop)

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        step, section = loop.state.step, self.section
        regular = section.tasks_interval and step % section.tasks_interval == 0
        if regular or is_named(step, section.tasks_steps, section.tasks_per_decade):
            self.run(loop)

    def on_end(self, loop: Loop) -> None:
        if self.section.tasks_at_end and self.at != loop.state.step and not loop.interrupted:
            self.run(loop)

    def run(self, loop: Loop) -> None:
        """Run all tasks with the present weights, write the results, and log the metrics."""
        self.due, session, step = True, self.session, loop.state.step

        def watch() -> None:
            if session.signals.interrupted(loop):
                raise Interrupted

        runner = Runner(
            engine=self.engine,
            tokenizer=session.tokenizer,
            cache=Cache(None),
            seconds=self.section.tasks_seconds,
            watch=watch,
        )
        try:
            with loop.evaluating():
                results = runner.run(self.ready)
        except Interrupted:
            return
        except FloatingPointError as error:
            self.due = False
            say(f"no tasks at step {step}: {error}")
            return
        self.due = False
        self.at, self.metrics = step, flat_metrics(results, errors=False)
        if session.ranks.main:
            save(loop.run_dir, results, step, self.entries, facts(session.config, None))
        loop.log({f"eval/{name}": value for name, value in self.metrics.items()})

    def results(self) -> dict[str, float]:
        return {f"eval/{name}": value for name, value in self.metrics.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"due": self.due, "at": self.at, "metrics": self.metrics}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.due, self.at, self.metrics = state["due"], state["at"], state["metrics"]
