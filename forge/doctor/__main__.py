"""`python -m forge.doctor [overrides]`: what this machine has, lacks or has set up badly, each with
what to do.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forge.doctor.examine import Plan, examine
from forge.doctor.finding import Finding, lacking, missing, report

if TYPE_CHECKING:
    from forge.config.root import Config

ABOUT = "Python, torch, GPUs, Slurm, disk, threads and paths: ok, warn or missing, with the fix. Overrides tell which paths."


def main(argv: Sequence[str] | None = None) -> int:
    """Print the findings; exit 0 when nothing is missing that a plain run on the CPU needs, else 1;
    2 for a wrong override.
    """
    try:
        from forge import cli
        from forge.compose import help
    except Exception as error:  # without Hydra and OmegaConf the rest can still be looked at
        found = examine(Plan(runs=Path("runs").absolute(), cache=_cache(None)))
        return _show(
            [*found, _no_config(error)],
            as_json="--json" in (sys.argv[1:] if argv is None else argv),
        )
    arguments = cli.parser("forge.doctor", ABOUT)
    arguments.add_argument("--json", action="store_true", help="the same as JSON")
    options = cli.parse(arguments, argv)
    if options.help:
        return cli.show(help.page("forge.doctor", arguments, options.overrides))
    return cli.refuse(lambda: _show(examine(plan(_composed(options))), as_json=options.json))


def plan(config: Config) -> Plan:
    """Where a config writes and what its data loader takes; nothing of it is worked out or built."""
    data, train, run = config.data, config.train, config.run
    batch = 2 * 8 * train.batch_size * train.seq_len  # tokens and targets, int64
    return Plan(
        runs=Path(run.dir or run.root).absolute(),
        runs_option="run.dir=DIR" if run.dir else "run.root=DIR",
        cache=_cache(data.cache_dir),
        num_workers=data.num_workers,
        loader_bytes=data.num_workers * data.prefetch_factor * batch,
        num_threads=run.num_threads,
    )


def _composed(options) -> Config:
    from forge.compose import composition as compose
    from forge.config.bounds import check_bounds
    from forge.config.problems import ConfigError

    composition = compose.compose(options.overrides, config_dirs=options.config_dir)
    config = composition.typed()
    problems = [*composition.problems, *check_bounds(config)]
    if problems:
        raise ConfigError(problems)
    return config


def _cache(cache_dir: str | None) -> Path:
    """Where forge.data keeps what it prepares."""
    return Path(
        os.path.abspath(
            os.path.expanduser(cache_dir or os.environ.get("FORGE_CACHE") or "~/.cache/forge")
        )
    )


def _no_config(error: Exception) -> Finding:
    what = f"no config can be composed: {type(error).__name__}: {error}"
    return missing(
        "config",
        what,
        "install the packages that are missing; pip install -e . in a checkout installs all",
        needed=True,
    )


def _show(findings: Sequence[Finding], *, as_json: bool) -> int:
    lack = lacking(findings)
    content = {"ok": not lack, "findings": [dataclasses.asdict(finding) for finding in findings]}
    print(json.dumps(content, indent=1) if as_json else report(findings))
    return 1 if lack else 0


if __name__ == "__main__":
    sys.exit(main())
