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
from forge.compose.portable import portable
from forge.config.launch import Submitit
from forge.config.problems import ConfigError, Problem, shown
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
from forge.rundir.outcome import FAILED, REFUSED, Result
from forge.rundir.saved_config import newest

if TYPE_CHECKING:
    from forge.parallel.rendezvous import Rendezvous


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and exit with the worker's code; 2 when the configuration is refused."""
    arguments = cli.parser("forge.train", "Train what the groups and values name, on this machine.")
    arguments.add_argument(
        "-c", "--cfg", choices=("job",), help="print the composed config instead of running it"
    )
    arguments.add_argument("-p", "--package", default="", help="with --cfg: only this section")
    arguments.add_argument(
        "-m",
        "--multirun",
        action="store_true",
        help="a sweep: every combination of what is given several values, as seed=1,2,3",
    )
    arguments.add_argument(
        "-i",
        "--info",
        nargs="?",
        const="all",
        help="what Hydra says of the composition: defaults, searchpath, ...",
    )
    arguments.add_argument(
        "-sc",
        "--shell-completion",
        action="store_true",
        help="completion of forge-train: -sc install=bash (fish, zsh)",
    )
    arguments.add_argument("--version", action="store_true", help="the version of forge")
    return on_ranks(
        lambda rendezvous: _answer(
            arguments, list(sys.argv[1:] if argv is None else argv), rendezvous
        )
    )


def on_ranks(verb: Callable[[Rendezvous | None], int]) -> int:
    """Do what was typed; of the ranks that torchrun or srun has started only the main one does, and
    tells the others what came of it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # see forge.launch.local.processes.stop_signals

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
        raise TypeError(
            f"forge.train takes a config, such as forge.compose([...]) gives, not {type(config).__name__}"
        )
    found = launcher_environment()
    if found is not None and found.size > 1:
        ended = _train_together(found, config)
    else:
        if is_job(config) and not (isinstance(config.launch, Submitit) and config.launch.wait):
            what = "forge.train gives back how the run has ended, so it waits for its job."
            raise ConfigError([Problem(key="launch.wait=false", what=what, fix="launch.wait=true")])
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
        raise ConfigError([Problem(key="-m", what=what, fix=fix, where=cli.COMMAND_LINE)])
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
    hopeless = [
        replace(warning, warning=False)
        for warning in resolution.warnings
        if warning.rule == HOST_MEMORY
    ]
    if hopeless:
        raise ConfigError(hopeless)
    for warning in resolution.warnings:
        print(f"warning: {warning.what} ({warning.key}; -> {warning.fix})", file=sys.stderr)
    job = rendezvous is None and is_job(resolution.config)
    if job:
        from forge.launch import jobs

        if (printed := jobs.check_run(resolution)) is not None:
            return Ended(run_dir=Path(), code=cli.show(printed))
    before = directory.before(resolution.config)
    kept = portable(overrides, config_dirs, resolution.config)
    run_dir, changes = directory.prepare(resolution, overrides=kept)
    # Of a fresh run of this machine it is said once it has begun.
    goes_on = (
        (job and resolution.config.checkpoint.enabled)
        if before.fresh
        else _can_go_on(run_dir, resolution.config)
    )
    again = f"   (goes on with: {directory.resume_command(run_dir)})" if goes_on else ""
    print(f"run directory: {directory.short(run_dir)}{again}")
    for change in changes:
        line = f"  changed: {change.key}={shown(change.after)}   (was {shown(change.before)}; kept in {newest(run_dir).name})"
        print(cli.printable(line))
    sys.stdout.flush()
    if job:
        from forge.launch import jobs

        return Ended(run_dir=run_dir, code=jobs.start_run(run_dir, resolution))
    if resolution.config.run.inline or rendezvous is not None:
        from forge import worker

        code = worker.main([str(run_dir), *resolution.config.run.trust], rendezvous)
    else:
        code = processes.start(run_dir, resolution.world.size, trust=resolution.config.run.trust)
    refused = outcome.refused_for(run_dir) if code == REFUSED else None
    if refused is not None and rendezvous is not None:
        rendezvous.wait_until_left()
    if refused is None or not before.fresh:
        return Ended(run_dir=run_dir, code=code)
    before.restore(run_dir)
    print("(nothing was trained, and the run directory is removed again)", file=sys.stderr)
    return Ended(run_dir=run_dir, code=code, refused=refused)


def _can_go_on(run_dir: Path, config: Config) -> bool:
    """Whether a run has a checkpoint to go on from, or has not got as far as to need one."""
    return newest_usable(run_dir / config.checkpoint.dir, to_go_on=True)[
        0
    ] is not None or not outcome.last_saved_step(run_dir)


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
    named = re.fullmatch(r"\w+(\.\w+)*", options.package)
    node = (
        OmegaConf.select(composition.tree, options.package)
        if named
        else None
        if options.package
        else composition.tree
    )
    if not OmegaConf.is_config(node):
        raise ConfigError(
            [
                Problem(
                    key=f"--package {options.package}",
                    what="there is no such section.",
                    fix="a group, such as --package model",
                )
            ]
        )
    return OmegaConf.to_yaml(node)


def _completion(words: Sequence[str]) -> int:
    """Answer a shell; Hydra knows a console script, so `python -m forge.train` becomes forge-train."""
    if len(words) != 1 or not re.fullmatch("(install|uninstall|query)=(bash|fish|zsh)", words[0]):
        raise ConfigError(
            [
                Problem(
                    key="-sc",
                    what="it takes what to do, and for which shell.",
                    fix="-sc install=bash (or fish, zsh)",
                )
            ]
        )
    os.environ["COMP_LINE"] = re.sub(
        r"^.*\s-m\s+forge\.train\b", "forge-train", os.environ.get("COMP_LINE", "")
    )
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
