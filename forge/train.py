"""`python -m forge.train [overrides]`: compose, check, make the run directory, start the ranks.

Examples:
    python -m forge.train model=small train.max_steps=200
    python -m forge.train parallel=fsdp run.num_processes=2
    python -m forge.train -m optimizer.lr=3e-3,1e-2 seed=1,2,3 launch.jobs=2
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from forge import cli
from forge.compose import make_callable
from forge.compose.composition import compose
from forge.compose.hydra_adapter import CONF, VERSION_BASE, to_yaml
from forge.config.problems import COMMAND_LINE, ConfigError, refusal
from forge.config.root import Config
from forge.planning.launcher_environment import launcher_environment

if TYPE_CHECKING:
    from forge.launch.local.background import Background
    from forge.parallel.rendezvous import Rendezvous
    from forge.rundir.outcome import Result


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and exit with the worker's code; 2 when the configuration is refused."""
    arguments = cli.parser("forge.train", "Train what the groups and values name, on this machine.")
    add = arguments.add_argument
    shown = "print the composed config instead of running it; all: with what forge has of hydra.*"
    add("-c", "--cfg", choices=("job", "hydra", "all"), help=shown)
    add("-p", "--package", default="", help="with --cfg: only this section")
    add("--resolve", action="store_true", help="with --cfg: with the values that ${...} refer to")
    sweep = "a sweep: every combination of what is given several values, as seed=1,2,3"
    add("-m", "--multirun", action="store_true", help=sweep)
    info = "what Hydra says of the composition: defaults, searchpath, ..."
    add("-i", "--info", nargs="?", const="all", help=info)
    completion = "completion of the command forge: -sc install=bash (fish, zsh)"
    add("-sc", "--shell-completion", action="store_true", help=completion)
    add("--hydra-help", action="store_true", help="which words of Hydra's applications work here")
    add("--version", action="store_true", help="the version of forge")
    words = list(sys.argv[1:] if argv is None else argv)
    return on_ranks(lambda rendezvous: _answer(arguments, words, rendezvous))


def on_ranks(verb: Callable[[Rendezvous | None], int]) -> int:
    """Run a verb; among ranks started by torchrun or srun only on the main rank, followed by the
    other ranks.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for a script's background command
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def do() -> int:
        environment = launcher_environment()
        if environment is None or environment.size == 1:
            return verb(None)
        from forge import worker

        return worker.leave(worker.together(environment, verb, worker.Rendezvous()))

    return cli.refuse(do)


def _answer(arguments: cli.Parser, argv: list[str], rendezvous: Rendezvous | None) -> int:
    options = cli.parse(arguments, argv)
    if options.version:
        from importlib import metadata

        return cli.print_text(f"forge {metadata.version('forge-lm')}")
    if options.help:
        return cli.help("forge.train", arguments, options)
    if options.shell_completion:
        return cli.refuse(lambda: _completion(options.overrides))
    if options.hydra_help:
        from forge.compose.hydra_help import TEXT

        return cli.print_text(TEXT)
    if options.info:
        return _hydra(argv)
    return cli.refuse(lambda: _main(options, rendezvous))


def _main(options, rendezvous: Rendezvous | None) -> int:
    cli.enter(options)
    if options.cfg:
        return _show(options)
    if options.multirun:
        return _sweep(options, rendezvous)
    from forge.run import launch  # imported late: --cfg does without the launcher's imports

    words = options.overrides
    if launcher_environment() is not None:
        from forge.launch.local.elastic import words_for_ranks

        words = words_for_ranks(words, options.config_dir)
    composition, resolution = cli.resolve_single_run(words, options.config_dir)
    return launch(resolution, composition.overrides, options.config_dir, rendezvous=rendezvous).code


def _sweep(options, rendezvous: Rendezvous | None) -> int:
    if rendezvous is not None:
        message = (
            "another launcher has started the ranks, and a sweep starts those of each point itself."
        )
        hint = "type it without torchrun or srun; launch=slurm submits the points as jobs"
        raise refusal("-m", message, hint, COMMAND_LINE)
    from forge.launch.sweep import sweep

    return sweep.run_sweep(options.overrides, options.config_dir)


def _show(options) -> int:
    """Print the composed config; with -m the config of each point, or of all trials, as successive
    YAML documents.
    """
    if not options.multirun:
        print(_yaml(options.overrides, options), end="")
        return 0
    from forge.launch.sweep import sweep

    for label, overrides in sweep.point_overrides(options.overrides, options.config_dir):
        print(f"---\n# {label}\n{_yaml(overrides, options)}", end="")
    return 0


def _yaml(overrides: Sequence[str], options) -> str:
    from omegaconf import OmegaConf

    composition = compose(overrides, config_dirs=options.config_dir)
    if composition.problems:
        raise ConfigError(composition.problems)
    tree, package = composition.tree, options.package
    if options.resolve:
        OmegaConf.resolve(tree)
    of_hydra = OmegaConf.create({"hydra": composition.facts})
    node = of_hydra if options.cfg == "hydra" else tree
    if package:
        root = of_hydra if package.split(".")[0] == "hydra" else tree
        path_match = re.fullmatch(r"\w+(\.\w+)*", package)
        node = OmegaConf.select(root, package) if path_match else None
    if not OmegaConf.is_config(node):
        message, hint = "there is no such section.", "a group, such as --package model"
        raise refusal(f"--package {package}", message, hint)
    hydra_text = to_yaml(of_hydra) if options.cfg == "all" and not package else ""
    return hydra_text + to_yaml(node)


def _completion(words: Sequence[str]) -> int:
    """Print the completion code for a shell, as Hydra's flag of the same name."""
    from forge.completion import SHELLS

    shell = words[0].removeprefix("install=") if len(words) == 1 else ""
    if shell not in SHELLS:
        message, hint = (
            "it takes what to do, and for which shell.",
            "-sc install=bash (or fish, zsh)",
        )
        raise refusal("-sc", message, hint)
    print(SHELLS[shell])
    return 0


def _hydra(argv: list[str]) -> int:
    import hydra

    from forge.config import schemas

    schemas.register_schemas()
    sys.argv[1:] = argv
    hydra.main(config_path=str(CONF), config_name="config", **VERSION_BASE)(lambda _: None)()
    return 0


def _train(config: Config, *, background: bool = False) -> Result | Background:
    """Train a composed config and return the result; see forge.run.train."""
    from forge.run import train

    return train(config, background=background)


make_callable(__name__, _train)

if __name__ == "__main__":
    sys.exit(main())
