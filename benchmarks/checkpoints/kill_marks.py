"""A callback that says where a run is, and holds it at the place where it is to be killed; it
changes no number.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forge.training.callback import Callback
from forge.training.callbacks.evaluation import Evaluation
from forge.training.callbacks.saving import Saving
from forge.training.checkpoints import checkpoint, tensor_storage
from forge.training.loop import Loop
from forge.training.step_output import StepOutput

STEP, ORDER, REACHED = "step", "order.json", "reached.json"
PLACES = {
    "step": "at the end of a step",
    "tensors": "half of the tensors of a checkpoint are written",
    "commit": "inside an asynchronous save, before the commit",
    "prune": "an old checkpoint is half removed",
    "evaluation": "inside an evaluation",
    "last save": "inside the save of the last step",
    "last evaluation": "inside the evaluation at the end",
    "end": "after the samples at the end",
    "close": "everything is done, result.json is not written",
}


class Marks(Callback):
    """Writes the step into `folder`/step and, where `folder`/order.json says {"place", "step",
    "skip", "seconds"}, waits.

    It waits once, for so many seconds, having written reached.json: at that place, from that step
    on, after so many passages.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        order = self.folder / ORDER
        self.order: dict[str, Any] = (
            json.loads(order.read_text()) if order.exists() else {"place": None}
        )
        self.loop: Loop | None = None
        self.written = 0

    def on_start(self, loop: Loop) -> None:
        self.loop = loop
        self.counter = os.open(self.folder / STEP, os.O_WRONLY | os.O_CREAT)
        self._count(loop.state.step)
        for other in loop.callbacks:
            if isinstance(other, Saving):
                other.checkpointer.before_commit.append(self._at_commit)
            if isinstance(other, Evaluation):
                other.run = self._between_batches(other.run)
        if self.order["place"] == "tensors":
            tensor_storage._write = self._around_tensors(
                tensor_storage._write, len(list(loop.model.parameters()))
            )
        if self.order["place"] == "prune":
            shutil.rmtree = self._half_removed(shutil.rmtree)

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        self._count(loop.state.step)
        self._hold("step")

    def on_end(self, loop: Loop) -> None:
        self._hold("end")

    def close(self) -> None:
        self._hold("close")

    def _at_commit(self, path: Path) -> None:
        saved = int(re.findall(r"\d+", path.name)[0])  # the loop may be steps further
        self._hold(self._late("commit", "last save"), saved=saved)

    def _late(self, name: str, at_the_end: str) -> str:
        assert self.loop is not None
        return at_the_end if self.loop.ending else name

    def _count(self, step: int) -> None:
        os.pwrite(self.counter, f"{step:12d}".encode(), 0)

    def _between_batches(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def held(interrupted: Callable[[], bool]) -> Any:
            def asked() -> bool:
                self._hold(self._late("evaluation", "last evaluation"))
                return interrupted()

            return run(asked)

        return held

    def _around_tensors(self, write: Callable[..., Any], half: int) -> Callable[..., Any]:
        def held(*arguments: Any) -> Any:
            self.written += 1
            if self.written > half:
                self._hold("tensors")
            return write(*arguments)

        return held

    def _half_removed(self, remove: Callable[..., Any]) -> Any:
        def held(path: Path, *arguments: Any, **keywords: Any) -> None:
            if Path(path).name.endswith(f".{checkpoint.REMOVED}") and Path(path).exists():
                (Path(path) / checkpoint.META).unlink(missing_ok=True)
                self._hold("prune")
            remove(path, *arguments, **keywords)

        return held

    def _hold(self, place: str, *, saved: int | None = None) -> None:
        assert self.loop is not None
        step = self.loop.state.step
        if self.order["place"] != place or (saved or step) < self.order["step"]:
            return
        self.order["skip"] -= 1
        if self.order["skip"] >= 0:
            return
        self.order["place"] = None
        self._count(step)
        scratch = self.folder / f".{REACHED}"
        scratch.write_text(json.dumps({"place": place, "step": step}))
        scratch.replace(self.folder / REACHED)
        time.sleep(self.order["seconds"])
