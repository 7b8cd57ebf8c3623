"""`python -m forge.train [overrides]`: compose, check, make the run directory, start the ranks."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from forge import cli
from forge.compose import help
from forge.compose.composition import compose
from forge.compose.engine import CONF
from forge.config.launch import Submitit
from forge.config.problems import COMMAND_LINE, ConfigError, refusal, shown
from forge.config.root import Config
from forge.launch.local import processes
from forge.plan.launcher_environment import (
    LauncherEnvironment,
    launcher_environment,
    launcher_ranks,
)
from forge.rundir import directory, outcome
from forge.rundir.checkpoints import newest_usable
from forge.rundir.outcome import FAILED, REFUSED, Result
from forge.rundir.saved_config import newest

if TYPE_CHECKING:
    from forge.parallel.rendezvous import Rendezvous
    from forge.resolve.resolve import Resolution


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and exit with the worker's code; 2 when the configuration is refused."""
    arguments = cli.parser("forge.train", "Train what the groups and values name, on this machine.")
    add = arguments.add_argument
    add("-c", "--cfg", choices=("job",), help="print the composed config instead of running it")
    add("-p", "--package", default="", help="with --cfg: only this section")
    sweep = "a sweep: every combination of what is given several values, as seed=1,2,3"
    add("-m", "--multirun", action="store_true", help=sweep)
    info = "what Hydra says of the composition: defaults, searchpath, ..."
    add("-i", "--info", nargs="?", const="all", help=info)
    completion = "completion of forge-train: -sc install=bash (fish, zsh)"
    add("-sc", "--shell-completion", action="store_true", help=completion)
    add("--version", action="store_true", help="the version of forge")
    words = list(sys.argv[1:] if argv is None else argv)
    return on_ranks(lambda rendezvous: _answer(arguments, words, rendezvous))


def on_ranks(verb: Callable[[Rendezvous | None], int]) -> int:
    """Do what was typed. Of the ranks that torchrun or srun has started only the main one does, and
    the others follow it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for a script's background command
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def do() -> int:
        found = launcher_environment()
        if found is None or found.size == 1:
            return verb(None)
        from forge import worker

        return worker.leave(worker.together(found, verb, worker.Rendezvous()))

    return cli.refuse(do)


def _answer(
    arguments: argparse.ArgumentParser, argv: list[str], rendezvous: Rendezvous | None
) -> int:
    options = cli.parse(arguments, argv)
    if options.version:
        from importlib import metadata

        return cli.show(f"forge {metadata.version('forge-lm')}")
    if options.help:
        return cli.show(help.page("forge.train", arguments, options.overrides))
    if options.shell_completion:
        return cli.refuse(lambda: _completion(options.overrides))
    if options.info:
        return _hydra(argv)
    return cli.refuse(lambda: _main(options, rendezvous))


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
        ended = launch(_resolved(config), config.overrides)
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


def _resolved(config: Config) -> Resolution:
    from forge.resolve.resolve import resolve  # --cfg needs no rules

    return resolve(config)


def _train_together(found: LauncherEnvironment, config: Config) -> Ended:
    from forge import worker

    rendezvous, own = worker.Rendezvous(), list[Ended]()

    def lead(rendezvous: Rendezvous) -> int:
        own.append(launch(_resolved(config), config.overrides, rendezvous=rendezvous))
        return own[0].code

    code = worker.together(found, lead, rendezvous)
    if not rendezvous.command.run_dir:
        raise RuntimeError(f"rank 0 did not begin the run; it ended with exit code {code}")
    return own[0] if own else Ended(run_dir=Path(rendezvous.command.run_dir), code=code)


def _main(options, rendezvous: Rendezvous | None) -> int:
    if options.cfg:
        return _show(options)
    if options.multirun:
        return _sweep(options, rendezvous)
    composition, resolution = cli.resolved(options.overrides, options.config_dir)
    return launch(resolution, composition.overrides, options.config_dir, rendezvous=rendezvous).code


def _sweep(options, rendezvous: Rendezvous | None) -> int:
    if rendezvous is not None:
        what = (
            "another launcher has started the ranks, and a sweep starts those of each point itself."
        )
        fix = "type it without torchrun or srun; launch=slurm submits the points as jobs"
        raise refusal("-m", what, fix, COMMAND_LINE)
    from forge.launch.sweep import sweep

    return sweep.run(options.overrides, options.config_dir)


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
    from forge.compose.portable import portable
    from forge.resolve.rules.devices import HOST_MEMORY

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
    """Whether a run has a checkpoint to go on from, or has not yet saved one."""
    usable, _ = newest_usable(run_dir / config.checkpoint.dir, to_go_on=True)
    return usable is not None or not outcome.last_saved_step(run_dir)


def is_job(config: Config) -> bool:
    """Whether the run becomes a job, unless its ranks have been started already."""
    return isinstance(config.launch, Submitit) and launcher_ranks() is None


def _show(options) -> int:
    """Print the composed config; with -m that of each point, or of all trials, as YAML documents
    one after the other.
    """
    if not options.multirun:
        print(_yaml(options.overrides, options), end="")
        return 0
    from forge.launch.sweep import sweep

    for label, overrides in sweep.configs(options.overrides, options.config_dir):
        print(f"---\n# {label}\n{_yaml(overrides, options)}", end="")
    return 0


def _yaml(overrides: Sequence[str], options) -> str:
    from omegaconf import OmegaConf

    composition = compose(overrides, config_dirs=options.config_dir)
    if composition.problems:
        raise ConfigError(composition.problems)
    node, package = composition.tree, options.package
    if package:
        named = re.fullmatch(r"\w+(\.\w+)*", package)
        node = OmegaConf.select(node, package) if named else None
    if not OmegaConf.is_config(node):
        what, fix = "there is no such section.", "a group, such as --package model"
        raise refusal(f"--package {package}", what, fix)
    return OmegaConf.to_yaml(node)


def _completion(words: Sequence[str]) -> int:
    """Answer a shell; Hydra knows console scripts, so `python -m forge.train` is forge-train."""
    if len(words) != 1 or not re.fullmatch("(install|uninstall|query)=(bash|fish|zsh)", words[0]):
        what, fix = "it takes what to do, and for which shell.", "-sc install=bash (or fish, zsh)"
        raise refusal("-sc", what, fix)
    line = os.environ.get("COMP_LINE", "")
    os.environ["COMP_LINE"] = re.sub(r"^.*\s-m\s+forge\.train\b", "forge-train", line)
    sys.argv[0] = "forge-train"
    return _hydra(["-sc", words[0]])


def _hydra(argv: list[str]) -> int:
    import hydra

    from forge.config import schemas

    schemas.register()
    sys.argv[1:] = argv
    hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(lambda _: None)()
    return 0


class _Callable(types.ModuleType):
    """The package's `forge.train` is this module; calling it trains."""

    def __call__(self, config: Config) -> Result:
        return train(config)


sys.modules[__name__].__class__ = _Callable

if __name__ == "__main__":
    sys.exit(main())
