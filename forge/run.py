"""One run: from its resolved config to how it ended."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge import cli
from forge.compose.portable import portable
from forge.config.launch import Manifest, Submitit
from forge.config.problems import REFUSED, ConfigError, refusal, shown
from forge.config.root import Config
from forge.launch.local import processes
from forge.launch.local.background import Background
from forge.launch.local.elastic import Elastic
from forge.launch.local.notebook import in_notebook
from forge.launch.local.restarts import RestartedRanks
from forge.launch.sweep.local import visible_gpus
from forge.launch.sweep.messages import OUTPUT
from forge.planning.launcher_environment import (
    LauncherEnvironment,
    launcher_environment,
    launcher_ranks,
)
from forge.planning.world import check_startable, ranks_of
from forge.resolve.resolve import Resolution, resolve
from forge.resolve.rules.devices import HOST_MEMORY
from forge.rundir import directory, outcome
from forge.rundir.checkpoints import newest_usable, saved_folder
from forge.rundir.directory import DirectoryState
from forge.rundir.on_end import run_on_end
from forge.rundir.outcome import FAILED, Result
from forge.rundir.saved_config import CHANGES
from forge.rundir.wall_clock.starts import note_submission

if TYPE_CHECKING:
    from forge.parallel.rendezvous import Rendezvous


def train(config: Config, *, background: bool = False) -> Result | Background:
    """Train a composed config and return the run's result; the status is "stopped" after a signal.

    With the run.dir of an existing run, the existing run continues. background: return at once,
    while the run trains in separate processes. Raises ConfigError (a ValueError) for a refused
    config, RuntimeError when the run fails, KeyboardInterrupt for SIGINT before the run began.
    """
    if not isinstance(config, Config):
        type_name = type(config).__name__
        raise TypeError(
            f"forge.train takes a config, as forge.compose([...]) gives, not {type_name}"
        )
    return ended(lambda: (resolve(config), config.overrides), background=background)


def ended(
    resolved: Callable[[], tuple[Resolution, Sequence[str]]],
    config_dirs: Sequence[str] = (),
    *,
    background: bool = False,
) -> Result | Background:
    """Train a resolved run and return its result, or the run in the background.

    resolved: returns the resolution and its overrides; among ranks started by torchrun or srun only
    the main rank calls it. Raises as `train`.
    """
    environment = launcher_environment()
    if environment is not None and environment.size > 1:
        if background:
            raise _not_behind("its ranks have been started already.", "leave background=True out")
        return _result(_together(environment, resolved, config_dirs))
    resolution, overrides = resolved()
    config = resolution.config
    if is_job(config):
        if background:
            raise _not_behind("it becomes a job, which is in the background.", "launch=local")
        if not (isinstance(config.launch, Submitit) and config.launch.wait):
            message = "from Python the run is waited for, to give back how it has ended."
            raise refusal("launch.wait=false", message, "launch.wait=true")
    elif background and config.run.inline:
        raise _not_behind("run.inline=true keeps the run in this process.", "run.inline=false")
    elif background or (in_notebook() and not config.run.inline):
        _print_warnings(resolution)
        run = _behind(_make_run(resolution, overrides, config_dirs))
        return run if background else run.to_the_end()
    return _result(launch(resolution, overrides, config_dirs))


def _not_behind(what: str, fix: str) -> ConfigError:
    return refusal("background=True", what, fix)


def _behind(made: PreparedRun) -> Background:
    """Start a run's ranks apart from the signals to this process and its terminal."""
    run_dir = made.run_dir
    words: list[str] = []

    def start() -> RestartedRanks:
        return made.start(output=run_dir / OUTPUT, say=words.append, apart=True)

    def end(code: int, asked: bool) -> Result:
        return _result(made.end(code), asked_to_stop=asked)

    return Background(run_dir, run_dir / OUTPUT, start, end)


def _result(ended: Ended, *, asked_to_stop: bool = False) -> Result:
    """The result of an ended run. asked_to_stop: whether Background.stop was called; its signal may
    come before the run handles signals. Raises RuntimeError when the run has failed,
    KeyboardInterrupt as `train`.
    """
    if ended.refused is not None:
        raise RuntimeError(f"the run failed: {ended.refused}")
    result = outcome.read_result(ended.run_dir)
    unread = asked_to_stop and (result is None or result.status != "stopped")
    if unread and ended.code == 128 + signal.SIGTERM:
        result = Result(
            run_dir=ended.run_dir,
            status="stopped",
            reason="SIGTERM",
            step=outcome.last_saved_step(ended.run_dir),
            metrics={},
            objective=None,
        )
    if ended.code == cli.INTERRUPTED and (result is None or result.status != "stopped"):
        raise KeyboardInterrupt
    if result is None or result.status == "failed" or ended.code in (FAILED, REFUSED):
        failure = outcome.failure(ended.run_dir) or {}
        text = failure.get("message") or f"its worker ended with exit code {ended.code}"
        raise RuntimeError(f"the run in {ended.run_dir} failed: {text}")
    if result.status == "stopped" and outcome.rank() == 0:
        saved = newest_usable(saved_folder(ended.run_dir), to_go_on=True)[0]
        call = f"forge.resume({directory.short(ended.run_dir)!r})"
        text = "saved; it continues with" if saved else "and nothing is saved; it begins again with"
        print(f"stopped after {result.step:,} steps, {text}: {call}")
    return result


def _together(
    found: LauncherEnvironment,
    resolved: Callable[[], tuple[Resolution, Sequence[str]]],
    config_dirs: Sequence[str],
) -> Ended:
    from forge import worker

    rendezvous, outcomes = worker.Rendezvous(), list[Ended]()

    def lead(rendezvous: Rendezvous) -> int:
        outcomes.append(launch(*resolved(), config_dirs, rendezvous=rendezvous))
        return outcomes[0].code

    code = worker.together(found, lead, rendezvous)
    if not rendezvous.command.run_dir:
        raise RuntimeError(f"rank 0 did not begin the run; it ended with exit code {code}")
    return outcomes[0] if outcomes else Ended(run_dir=Path(rendezvous.command.run_dir), code=code)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run directory and the worker's exit code. refused: the reason for a refusal, where the
    directory was removed again.
    """

    run_dir: Path
    code: int
    refused: str | None = None


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run directory ready for its ranks. before: the directory's content before the run."""

    run_dir: Path
    resolution: Resolution
    before: DirectoryState
    elastic: Elastic

    def start(self, **options: Any) -> RestartedRanks:
        """Start the ranks; options: as in `Ranks`."""
        run, world = self.resolution.config.run, self.resolution.world
        gpus = visible_gpus(world.size) if world.device == "cuda" and run.elastic else []
        options |= {"gpus": gpus, "trust": run.trust}
        return RestartedRanks(self.run_dir, world.size, run, self.elastic, **options)

    def end(self, code: int, rendezvous: Rendezvous | None = None) -> Ended:
        """The outcome of the run. A fresh directory is removed when the run was refused before its
        first step, as for unreadable data. code: exit code of the ranks.
        """
        refused = outcome.refused_for(self.run_dir) if code == REFUSED else None
        if refused is not None and rendezvous is not None:
            rendezvous.wait_until_left()
        if refused is None or not self.before.fresh:
            return Ended(run_dir=self.run_dir, code=code)
        self.before.restore(self.run_dir)
        print("(nothing was trained, and the run directory is removed again)", file=sys.stderr)
        return Ended(run_dir=self.run_dir, code=code, refused=refused)


def launch(
    resolution: Resolution,
    overrides: Sequence[str],
    config_dirs: Sequence[str] = (),
    *,
    rendezvous: Rendezvous | None = None,
) -> Ended:
    """Make the run directory, or take up an existing one, and train in the directory.

    rendezvous: of ranks started by another launcher, with this process as the main rank.
    """
    config = resolution.config
    _print_warnings(resolution)
    job = rendezvous is None and is_job(config)
    if job:
        from forge.launch import jobs

        if (printed := jobs.check_run(resolution)) is not None:
            return Ended(run_dir=Path(), code=cli.print_text(printed))
    prepared = _make_run(resolution, overrides, config_dirs, job=job)
    run_dir = prepared.run_dir
    if job:
        from forge.launch import jobs

        return Ended(run_dir=run_dir, code=jobs.start_run(run_dir, resolution))
    if config.metrics.enable_console:
        print(f"start: load torch on {ranks_of(resolution.world.size)}", flush=True)
    if config.run.inline or rendezvous is not None:
        from forge import worker

        code = worker.main([str(run_dir), *config.run.trust], rendezvous)
        run_on_end(run_dir, config.run.on_end, code)
    else:
        size, trust = resolution.world.size, config.run.trust
        code = processes.start(run_dir, size, trust=trust, begun=prepared.start)
    return prepared.end(code, rendezvous)


def _print_warnings(resolution: Resolution) -> None:
    """Print the warnings. Raises ConfigError for a warning fatal to the run, and for absent
    machines.
    """
    check_startable(resolution.world)
    warnings = resolution.warnings
    if hopeless := [replace(w, warning=False) for w in warnings if w.rule == HOST_MEMORY]:
        raise ConfigError(hopeless)
    for warning in warnings:
        print(f"warning: {warning.what} ({warning.key}; -> {warning.fix})", file=sys.stderr)


def _make_run(
    resolution: Resolution,
    overrides: Sequence[str],
    config_dirs: Sequence[str] = (),
    *,
    job: bool = False,
) -> PreparedRun:
    """Make the run directory, or take up an existing one; print its path and the changed options.
    Raises ConfigError.
    """
    if resolution.config.checkpoint.remote:
        from forge.rundir.remote.brought import prepare_store

        if prepare_store(resolution.config):  # a run was brought here: it is one that continues
            resolution = resolve(resolution.config)
    config = resolution.config
    previous = directory.before(config)
    portable_overrides = portable(overrides, config_dirs, config)
    run_dir, changes = directory.prepare_directory(resolution, overrides=portable_overrides)
    note_submission(run_dir)
    # A fresh local run prints the command to resume only once it has begun.
    goes_on = job and config.checkpoint.enabled if previous.fresh else _can_go_on(run_dir, config)
    resume_note = f"   (resume with: {directory.resume_command(run_dir)})" if goes_on else ""
    print(f"run directory: {directory.short(run_dir)}{resume_note}")
    for change in changes:
        was = f"   (was {shown(change.before)}; kept in {CHANGES})"
        print(cli.printable(f"  changed: {change.key}={shown(change.after)}{was}"))
    sys.stdout.flush()
    elastic = Elastic(
        run_dir=run_dir, resolution=resolution, overrides=overrides, config_dirs=config_dirs
    )
    return PreparedRun(run_dir=run_dir, resolution=resolution, before=previous, elastic=elastic)


def _can_go_on(run_dir: Path, config: Config) -> bool:
    usable, _ = newest_usable(run_dir / config.checkpoint.dir, to_go_on=True)
    return usable is not None or not outcome.last_saved_step(run_dir)


def is_job(config: Config) -> bool:
    """Whether the run becomes a job, unless its ranks have been started already."""
    return isinstance(config.launch, Submitit | Manifest) and launcher_ranks() is None
