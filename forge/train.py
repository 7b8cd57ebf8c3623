"""`python -m forge.train [overrides]`: compose, check, make the run directory, start the ranks."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from forge import cli
from forge.compose import help
from forge.compose.composition import compose
from forge.compose.engine import CONF
from forge.config.problems import COMMAND_LINE, ConfigError, refusal
from forge.config.root import Config
from forge.plan.launcher_environment import launcher_environment

if TYPE_CHECKING:
    from forge.parallel.rendezvous import Rendezvous
    from forge.rundir.outcome import Result


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


def _main(options, rendezvous: Rendezvous | None) -> int:
    if options.cfg:
        return _show(options)
    if options.multirun:
        return _sweep(options, rendezvous)
    from forge.run import launch  # and its imports, which --cfg needs not

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
        """Train a composed config and return how it ended; see forge.run.train."""
        from forge.run import train

        return train(config)


sys.modules[__name__].__class__ = _Callable

if __name__ == "__main__":
    sys.exit(main())
