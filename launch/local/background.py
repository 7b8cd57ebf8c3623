"""A run in the background of a Python process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from forge.launch.local.notebook import STEP, OneLine, in_notebook
from forge.launch.local.restarts import RestartedRanks
from forge.rundir import history
from forge.rundir.directory import short
from forge.rundir.files import last_lines
from forge.rundir.outcome import Result

EVERY = 0.2  # seconds between looks at a run's output


class Background:
    """A run training in processes apart from this process; when this process ends, the run is saved
    and ends too. The run prints to logs/output.log of its directory.
    """

    def __init__(
        self,
        run_dir: Path,
        output: Path,
        start: Callable[[], RestartedRanks],
        end: Callable[[int, bool], Result],
    ) -> None:
        """start: starts the ranks. end: returns the result for the ranks' exit code and a flag for
        a requested stop, or raises the cause of a missing result. Raises as `start`.
        """
        self.run_dir = run_dir
        self._output, self._partial = output, b""
        self._seen = output.stat().st_size if output.is_file() else 0
        self._stopped = False
        self._ranks, self._result = Future[RestartedRanks](), Future[Result]()
        # Linux ends a child with its starting thread, so the starting thread stays with the ranks.
        threading.Thread(target=self._run, args=(start, end), daemon=True).start()
        self._ranks.result()

    def __repr__(self) -> str:
        status, folder = self.status, short(self.run_dir)
        if status in ("finished", "stopped"):
            return f"{status} after {self._result.result().step:,} steps in {folder}"
        last = [text for text in last_lines(self._output) if STEP.match(text)][-1:]
        return " | ".join([f"{status} in {folder}", *last])

    @property
    def status(self) -> str:
        """running, finished, stopped or failed."""
        if not self._result.done():
            return "running"
        return "failed" if self._result.exception() else self._result.result().status

    def wait(self, timeout: float | None = None) -> Result:
        """Wait for the end, and return the result. Raises TimeoutError after `timeout` seconds, and
        RuntimeError for a failed run. An interrupt of the wait does nothing to the run.
        """
        return self._result.result(timeout)

    def stop(self) -> Result:
        """Let the run finish its step and save; forge.resume(run_dir) continues."""
        self._stopped = True
        self._pass_on(signal.SIGTERM)
        return self.wait()

    def watch(self) -> Result:
        """`wait`, and print the run's output meanwhile; in a notebook progress is a single line."""
        line = OneLine() if in_notebook() else None
        while True:
            ended = self._result.done()
            for text in self._printed(to_the_end=ended):
                if line is not None and STEP.match(text):
                    line.write(text)
                else:
                    print(text, flush=True)
            if ended:
                return self._result.result()
            with suppress(TimeoutError):
                self._result.exception(EVERY)

    def to_the_end(self) -> Result:
        """`watch`, where an interrupt saves and stops the run; a second ends the run at once."""
        while True:
            try:
                return self.watch()
            except KeyboardInterrupt:
                if self._result.done():
                    raise
                self._pass_on(signal.SIGINT)

    def tail(self, lines: int = 20) -> str:
        """The last lines printed by the run."""
        return "\n".join(last_lines(self._output, lines))

    def history(self, *metrics: str) -> history.Rows:
        """The metrics logged so far, as `history` of a result."""
        return history.history(self.run_dir, *metrics)

    def _run(self, start: Callable[[], RestartedRanks], end: Callable[[int, bool], Result]) -> None:
        try:
            ranks = start()
        except BaseException as error:
            self._ranks.set_exception(error)
            return
        self._ranks.set_result(ranks)
        try:
            code = ranks.wait()
            self._result.set_result(end(code, self._stopped))
        except BaseException as error:
            self._result.set_exception(error)

    def _pass_on(self, number: int) -> None:
        if not self._result.done():
            self._ranks.result().pass_on(number)

    def _printed(self, *, to_the_end: bool) -> list[str]:
        """The lines since the last look; an unfinished line waits for its end."""
        with suppress(FileNotFoundError), self._output.open("rb") as file:
            file.seek(self._seen)
            new = file.read()
            self._seen += len(new)
            self._partial += new
        *complete, self._partial = self._partial.split(b"\n")
        if to_the_end and self._partial:
            complete, self._partial = [*complete, self._partial], b""
        return [line.decode(errors="replace") for line in complete]
