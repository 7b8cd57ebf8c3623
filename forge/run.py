"""One run: from its resolved config to how it ended."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from forge import cli
from forge.compose.portable import portable
from forge.config.launch import Submitit
from forge.config.problems import REFUSED, ConfigError, refusal, shown
from forge.config.root import Config
from forge.launch.local import processes
from forge.plan.launcher_environment import (
    LauncherEnvironment,
    launcher_environment,
    launcher_ranks,
)
from forge.resolve.resolve import Resolution, resolve
from forge.resolve.rules.devices import HOST_MEMORY
from forge.rundir import directory, outcome
from forge.rundir.checkpoints import newest_usable
from forge.rundir.outcome import FAILED, Result
from forge.rundir.saved_config import newest

if TYPE_CHECKING:
    from forge.parallel.rendezvous import Rendezvous


def train(config: Config) -> Result:
    """Train a composed config and return how it ended; a run that a signal stopped has the status
    "stopped".

    With the run.dir of a run, that one goes on. Raises ConfigError (a ValueError) when it is
    refused, RuntimeError when the run fails, KeyboardInterrupt when SIGINT came before it had
    begun.
    """
    if not isinstance(config, Config):
        given = type(config).__name__
        raise TypeError(f"forge.train takes a config, as forge.compose([...]) gives, not {given}")
    found = launcher_environment()
    if found is not None and found.size > 1:
        ended = _train_together(found, config)
    else:
        if is_job(config) and not (isinstance(config.launch, Submitit) and config.launch.wait):
            what = "forge.train gives back how the run has ended, so it waits for its job."
            raise refusal("launch.wait=false", what, "launch.wait=true")
        ended = launch(resolve(config), config.overrides)
    if ended.refused is not None:
        raise RuntimeError(f"the run failed: {ended.refused}")
    result = outcome.read_result(ended.run_dir)
    if ended.code == cli.INTERRUPTED and (result is None or result.status != "stopped"):
        raise KeyboardInterrupt
    if result is None or result.status == "failed" or ended.code in (FAILED, REFUSED):
        known = outcome.failure(ended.run_dir) or {}
        said = known.get("message") or f"its worker ended with exit code {ended.code}"
        raise RuntimeError(f"the run in {ended.run_dir} failed: {said}")
    return result


def _train_together(found: LauncherEnvironment, config: Config) -> Ended:
    from forge import worker

    rendezvous, own = worker.Rendezvous(), list[Ended]()

    def lead(rendezvous: Rendezvous) -> int:
        own.append(launch(resolve(config), config.overrides, rendezvous=rendezvous))
        return own[0].code

    code = worker.together(found, lead, rendezvous)
    if not rendezvous.command.run_dir:
        raise RuntimeError(f"rank 0 did not begin the run; it ended with exit code {code}")
    return own[0] if own else Ended(run_dir=Path(rendezvous.command.run_dir), code=code)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run directory, the worker's exit code, and, where the directory was removed again, what the
    run was refused for.
    """

    run_dir: Path
    code: int
    refused: str | None = None


def launch(
    resolution: Resolution,
    overrides: Sequence[str],
    config_dirs: Sequence[str] = (),
    *,
    rendezvous: Rendezvous | None = None,
) -> Ended:
    """Make the run directory, or take up the one there is, and train in it.

    A fresh one is removed when the run is refused before its first step, as for data that cannot be
    read. rendezvous: of the ranks that another launcher has started, of which this is the main one.
    """
    config, warnings = resolution.config, resolution.warnings
    if hopeless := [replace(w, warning=False) for w in warnings if w.rule == HOST_MEMORY]:
        raise ConfigError(hopeless)
    for warning in warnings:
        print(f"warning: {warning.what} ({warning.key}; -> {warning.fix})", file=sys.stderr)
    job = rendezvous is None and is_job(config)
    if job:
        from forge.launch import jobs

        if (printed := jobs.check_run(resolution)) is not None:
            return Ended(run_dir=Path(), code=cli.show(printed))
    before = directory.before(config)
    kept = portable(overrides, config_dirs, config)
    run_dir, changes = directory.prepare(resolution, overrides=kept)
    # A fresh run of this machine says how it goes on once it has begun.
    goes_on = job and config.checkpoint.enabled if before.fresh else _can_go_on(run_dir, config)
    again = f"   (goes on with: {directory.resume_command(run_dir)})" if goes_on else ""
    print(f"run directory: {directory.short(run_dir)}{again}")
    for change in changes:
        was = f"   (was {shown(change.before)}; kept in {newest(run_dir).name})"
        print(cli.printable(f"  changed: {change.key}={shown(change.after)}{was}"))
    sys.stdout.flush()
    if job:
        from forge.launch import jobs

        return Ended(run_dir=run_dir, code=jobs.start_run(run_dir, resolution))
    if config.run.inline or rendezvous is not None:
        from forge import worker

        code = worker.main([str(run_dir), *config.run.trust], rendezvous)
    else:
        code = processes.start(run_dir, resolution.world.size, trust=config.run.trust)
    refused = outcome.refused_for(run_dir) if code == REFUSED else None
    if refused is not None and rendezvous is not None:
        rendezvous.wait_until_left()
    if refused is None or not before.fresh:
        return Ended(run_dir=run_dir, code=code)
    before.restore(run_dir)
    print("(nothing was trained, and the run directory is removed again)", file=sys.stderr)
    return Ended(run_dir=run_dir, code=code, refused=refused)


def _can_go_on(run_dir: Path, config: Config) -> bool:
    usable, _ = newest_usable(run_dir / config.checkpoint.dir, to_go_on=True)
    return usable is not None or not outcome.last_saved_step(run_dir)


def is_job(config: Config) -> bool:
    """Whether the run becomes a job, unless its ranks have been started already."""
    return isinstance(config.launch, Submitit) and launcher_ranks() is None
