"""`python -m forge.doctor [overrides]`: what this machine has, lacks or has set up badly, each with
what to do.

Examples:
    python -m forge.doctor
    python -m forge.doctor launch=slurm
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forge.config.numbers import GIB
from forge.doctor import accelerator, limits, places, software
from forge.doctor.finding import Finding, lacking, missing, render_findings

if TYPE_CHECKING:
    from forge.config.root import Config

ABOUT = (
    "Python, torch, GPUs, Slurm, disk, threads and paths: ok, warn or missing, with the fix. "
    "Overrides tell which paths."
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A config's folders, loader processes, their bytes in shared memory, and threads."""

    runs: Path
    runs_option: str = "run.root=DIR"
    cache: Path
    num_workers: int = 4
    loader_bytes: int = 0
    num_threads: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Print the findings.

    Exit code 1 when a need of a plain run on the CPU is missing, 2 for a wrong override, else 0.
    """
    try:
        from forge import cli
    except Exception as error:  # without Hydra and OmegaConf the rest can still be looked at
        message = f"no config can be composed: {type(error).__name__}: {error}"
        hint = "install the packages that are missing; pip install -e . in a checkout installs all"
        findings = examine(Plan(runs=Path("runs").absolute(), cache=_cache(None)))
        findings.append(missing("config", message, hint, needed=True))
        return _show(findings, as_json="--json" in (sys.argv[1:] if argv is None else argv))
    arguments = cli.parser("forge.doctor", ABOUT)
    arguments.add_argument("--json", action="store_true", help="the same as JSON")
    options = cli.parse(arguments, argv)
    if options.help:
        return cli.help("forge.doctor", arguments, options)
    return cli.refuse(lambda: _show(examine(plan(_composed(options))), as_json=options.json))


def plan(config: Config) -> Plan:
    """Find a config's folders and the demands of its data loader; nothing is derived or built."""
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


def examine(plan: Plan) -> list[Finding]:
    """Every finding about this machine, in the order of the report. Leaves nothing behind."""
    report, shm = accelerator.probe(), Path("/dev/shm")
    gpus, torch = len(report.get("cuda", {}).get("devices", ())), report.get("torch", {})
    cache = "data.cache_dir=DIR or FORGE_CACHE=DIR"
    home = "HOME=DIR; torch, Triton and W&B keep caches there"
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")  # Python ignores one it cannot write
    free = places.free_bytes(shm) if shm.is_dir() else None
    usable = limits.usable_cores(limits.cpu_quota())
    return [
        software.python(),
        *accelerator.findings(report),
        *software.packages(),
        software.slurm(),
        places.check_place("run.root", plan.runs, plan.runs_option, 10 * GIB),
        places.check_place("cache", plan.cache, cache, 5 * GIB),
        places.check_place("temporary", temporary, "TMPDIR=DIR", GIB),
        places.check_place("home", Path(os.path.expanduser("~")), home, GIB, needed=False),
        places.locks(plan.runs),
        places.shared_memory(plan.loader_bytes, plan.num_workers, gpus, free),
        limits.threads(usable, os.cpu_count() or 1, torch.get("threads"), plan.num_threads),
        limits.memory(limits.free_memory(), limits.memory_left()),
        software.git(),
        software.compiler(),
        software.wandb(),
    ]


def _composed(options: argparse.Namespace) -> Config:
    from forge.compose import composition as compose
    from forge.compose.trust import in_project
    from forge.config.optimizers.group_faults import check_values
    from forge.config.problems import ConfigError

    overrides = in_project(options.overrides)
    composition = compose.compose(overrides, config_dirs=options.config_dir)
    config = composition.typed()
    problems = [*composition.problems, *check_values(config)]
    if problems:
        raise ConfigError(problems)
    return config


def _cache(cache_dir: str | None) -> Path:
    folder = cache_dir or os.environ.get("FORGE_CACHE") or "~/.cache/forge"
    return Path(os.path.abspath(os.path.expanduser(folder)))


def _show(findings: Sequence[Finding], *, as_json: bool) -> int:
    lack = lacking(findings)
    content = {"ok": not lack, "findings": [dataclasses.asdict(finding) for finding in findings]}
    print(json.dumps(content, indent=1) if as_json else render_findings(findings))
    return 1 if lack else 0


if __name__ == "__main__":
    sys.exit(main())
