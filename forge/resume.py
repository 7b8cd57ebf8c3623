"""`python -m forge.resume RUN [overrides]`: let a run resume from the overrides it was made with.

Examples:
    python -m forge.resume runs/mine
    python -m forge.resume runs/mine train.max_steps=3200
    python -m forge.resume s3://bucket/runs/mine
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from forge import cli
from forge.compose import make_callable
from forge.compose.options import Options, texts
from forge.compose.portable import searched, unsaid
from forge.compose.project import allowing
from forge.compose.trust import use
from forge.config.data import budget
from forge.config.places import is_remote
from forge.config.problems import COMMAND_LINE, ConfigError, quoted, refusal
from forge.config.root import Config
from forge.launch.local.elastic import words_for_ranks
from forge.rundir import directory, saved_config, versions
from forge.rundir.directory import Place, path_of
from forge.rundir.saved_config import to_plain
from forge.rundir.untrusted import (
    SEARCH,
    TRUST,
    code_overrides,
    environment_options,
    option_of,
    other_overrides,
    overrides_behind,
    reaching_out,
)

if TYPE_CHECKING:
    from forge.launch.local.background import Background
    from forge.parallel.rendezvous import Rendezvous
    from forge.resolve.resolve import Resolution
    from forge.rundir.outcome import Result


def main(argv: Sequence[str] | None = None) -> int:
    """Resume, and exit with the worker's code; 2 when these overrides forbid it."""
    description = "Let a run continue: with the overrides it was made with, then those given here."
    arguments = cli.parser("forge.resume", description, takes="RUN [OVERRIDE ...]")
    from forge.train import on_ranks

    def answer(rendezvous: Rendezvous | None) -> int:
        options = cli.parse(arguments, argv)
        if options.help:
            return cli.print_text(arguments.format_help())
        return cli.refuse(lambda: _main(options, rendezvous))

    return on_ranks(answer)


def _main(options, rendezvous: Rendezvous | None) -> int:
    from forge.run import launch

    if not options.overrides:
        hint = "python -m forge.resume runs/<run>"
        raise refusal("RUN", "which run is to continue?", hint, COMMAND_LINE)
    place, *typed = options.overrides
    run_dir, said = _run_of(place)
    resolution, overrides = _resolved(run_dir, [*said, *typed], options.config_dir)
    return launch(resolution, overrides, options.config_dir, rendezvous=rendezvous).code


def _run_of(run: Place) -> tuple[Path, list[str]]:
    """The directory of a run, brought here from an address, and words said by the address."""
    if not (isinstance(run, str) and is_remote(run)):
        return path_of(run), []
    from forge.rundir.remote.brought import run_to_resume  # imported late: of few runs

    return run_to_resume(run)


def _resolved(
    place: Path, typed: Sequence[str], config_dirs: Sequence[str]
) -> tuple[Resolution, tuple[str, ...]]:
    """The run, with all of its overrides. Raises ConfigError."""
    for text in typed:
        if text.lstrip("+").startswith("run.dir="):
            message = f"it is the run in {place} that continues, in its own directory."
            raise refusal(text, message, "leave it out", COMMAND_LINE)
    words = words_for_ranks(overrides_of(place, typed), config_dirs)
    composition, resolution = cli.resolved(words, config_dirs)
    _check_reach(place, typed, config_dirs, composition.tree, resolution.config)
    return resolution, composition.overrides


def overrides_of(run_dir: Path, typed: Sequence[str] = ()) -> list[str]:
    """The overrides to resume a run with: the run's own, then `typed`.

    Raises ConfigError for a directory without a run, and for trust missing in `typed`.
    """
    if not saved_config.is_run(run_dir):
        why = "it has no config.yaml" if os.path.exists(run_dir) else "there is no such directory"
        message, hint = f"{run_dir} is no run directory: {why}.", "give the directory of a run"
        raise refusal(str(run_dir), message, hint, COMMAND_LINE)
    run_overrides = _own(run_dir)
    allowed = _of_project(run_dir, run_overrides)
    trusted = code_overrides(typed) or code_overrides(allowed)
    if (missing := code_overrides(run_overrides)) and not trusted:
        raise _asks(
            run_dir,
            missing,
            "was made with code outside of forge, which is only used by who asks for it.",
        )
    return [
        *(trusted if not code_overrides(typed) else ()),
        *_without_replaced(other_overrides(run_overrides), typed),
        *typed,
        f"run.dir={quoted(str(run_dir.resolve()))}",
    ]


def _of_project(run_dir: Path, own: Sequence[str]) -> list[str]:
    """A run's own search path and trust, where a trusted project has both: the project of the run
    directory, of the search path, or of the working directory.
    """
    words = [text for text in own if option_of(text) in (SEARCH, TRUST)]
    folders = [Path(entry) for text in words for entry in searched(text) if "://" not in entry]
    projects = allowing(words, (run_dir, *folders, Path.cwd())) if words else None
    if projects is None:
        return []
    use(projects)
    return words


def _own(run_dir: Path) -> list[str]:
    try:
        return directory.own_overrides(run_dir)
    except (OSError, ValueError, TypeError) as error:
        file = versions.part_file(run_dir, "overrides", max(saved_config.last_started(run_dir), 1))
        hint = f"type the overrides of the run again, with run.dir={run_dir}"
        raise refusal(
            str(run_dir), f"{file} cannot be read: {error}.", hint, COMMAND_LINE
        ) from None


def _check_reach(
    run_dir: Path,
    typed: Sequence[str],
    config_dirs: Sequence[str],
    composed: DictConfig,
    config: Config,
) -> None:
    """Refuse job commands, folders outside of the run and values of the environment from the run
    directory, or from files named in the run directory, unless typed by the user.
    """
    raw = OmegaConf.to_container(composed)
    assert isinstance(raw, dict)
    reaching = [
        *reaching_out(to_plain(config)),
        *environment_options({str(k): raw[k] for k in raw}),
    ]
    options = list(dict.fromkeys(reaching))
    sources = overrides_behind(options, other_overrides(_own(run_dir)))
    missing = unsaid(sources, [*typed, *_of_project(run_dir, _own(run_dir))], config_dirs)
    if missing:
        reach = "reaches beyond its directory and is only used by who asks for it."
        message = f"has {', '.join(options)}, which {reach}"
        raise _asks(run_dir, [*typed, *missing], message, key=missing)


def _asks(run_dir: Path, words: Sequence[str], what: str, key: Sequence[str] = ()) -> ConfigError:
    """The error asking the user to type these words. key: the words at fault."""
    command = shlex.join(["python", "-m", "forge.resume", str(run_dir), *dict.fromkeys(words)])
    hint = f"if you trust it: {command}"
    return refusal(" ".join(key or words), f"the run {what}", hint, COMMAND_LINE)


def _without_replaced(own: Sequence[str], typed: Sequence[str]) -> list[str]:
    """The run's own overrides without run.allow_change, without overrides inside a group chosen
    again, and without another horizon where one is typed: a change allowed once is asked for again.
    """

    def key(text: str) -> str:
        return text.lstrip("+").partition("=")[0]

    chosen = {key(text) for text in typed if text not in own}  # groups have no dot
    unreplaced = [text for text in own if key(text).partition(".")[0] not in chosen]
    if budget.typed(typed):
        unreplaced = [text for text in unreplaced if key(text) not in budget.HORIZON]
    return [text for text in unreplaced if key(text) != "run.allow_change"]


def _resume(
    run: Place,
    overrides: Options = (),
    *,
    config_dirs: Sequence[str] = (),
    background: bool = False,
) -> Result | Background:
    """Resume a run with the run's own overrides, then `overrides`; raises as forge.run.train."""
    from forge.run import ended

    run_dir, said = _run_of(run)
    typed = [*said, *texts(overrides)]
    return ended(lambda: _resolved(run_dir, typed, config_dirs), config_dirs, background=background)


make_callable(__name__, _resume)

if __name__ == "__main__":
    sys.exit(main())
