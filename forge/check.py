"""`python -m forge.check [overrides]`: what would run, or everything that is wrong with it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from forge import cli
from forge.compose import help
from forge.compose.composition import Composition
from forge.config.launch import Slurm
from forge.config.model import Decoder
from forge.config.numbers import byte_size
from forge.config.root import Config
from forge.plan.allocation import Allocation, allocation
from forge.plan.memory import memory_by_part
from forge.plan.world import ranks_of
from forge.resolve.resolve import Resolution
from forge.rundir import directory
from forge.rundir.checkpoints import newest_usable
from forge.rundir.stored import is_run

OF_EVERY_RUN, OF_SWEEPS = [("launch", "local")], ("sweep", "sweeper")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the plan and exit 0, or print every problem and exit 2."""
    arguments = cli.parser(
        "forge.check",
        "What would run: sizes, steps, memory and every derived value; or all problems.",
    )
    options = cli.parse(arguments, argv)
    if options.help:
        return cli.show(help.page("forge.check", arguments, options.overrides))

    def verb() -> int:
        print(report(*cli.resolved(options.overrides, options.config_dir)))
        return 0

    return cli.refuse(verb)


def report(composition: Composition, resolution: Resolution) -> str:
    """The plan of a run as text."""
    config, world = resolution.config, resolution.world
    train, model = config.train, config.model
    tokens = train.global_batch_tokens or 0
    choices = " ".join(f"{g}={o}" for g, o in _choices(composition))
    lines = [choices, ""]
    if isinstance(model, Decoder):
        flops = model.flops_per_token(train.seq_len)
        lines += _table(
            "model",
            [
                ("parameters", f"{model.num_params_estimate:,}"),
                *((f"  {name}", f"{n:,}") for name, n in model.params_by_part().items()),
                *(
                    [("active parameters", f"{model.num_active_params:,} (what one token meets)")]
                    if model.is_moe
                    else []
                ),
                (
                    "FLOPs a token",
                    f"{flops:.4g} (forward and backward, {train.seq_len} tokens of context)",
                ),
                ("FLOPs in all", f"{flops * tokens * train.max_steps:.4g}"),
            ],
        )
    ends = [f"{train.max_steps:,} steps"]
    ends += [f"{train.max_epochs:g} epochs"] if train.max_epochs else []
    ends += [f"{train.max_time:g} minutes"] if train.max_time else []
    lines += _table(
        "training",
        [
            ("global batch", f"{train.global_batch_size:,} sequences = {tokens:,} tokens"),
            ("ends after", " or ".join(ends) + (", whichever is first" if len(ends) > 1 else "")),
            ("tokens", f"{tokens * train.max_steps:,}"),
        ],
    )
    fresh = f"{config.run.root}/<date>_{directory.readable(config.run.name or config.preset)}_<id>"
    memory = memory_by_part(config)
    if memory:
        rows = [
            ("estimated memory", byte_size(sum(memory.values()))),
            *((f"  {name}", byte_size(n)) for name, n in memory.items()),
        ]
        lines += _table("each device", rows)
    lines += _table(
        "where",
        [
            (
                "world",
                f"{ranks_of(world.size)} on {world.device}, from {world.source} ({world.devices.source})",
            ),
            ("directory", config.run.dir or fresh),
            *_job(config, world.size),
            *_going_on(config),
        ],
    )
    lines += _table("worked out", [(d.key, f"{d.value}   ({d.why})") for d in resolution.derived])
    lines += warnings(resolution)
    return "\n".join(lines).rstrip()


def warnings(resolution: Resolution) -> list[str]:
    """The warnings of a resolution as lines, with a heading; empty when there are none."""
    found = resolution.warnings
    if not found:
        return []
    return [f"{len(found)} warning{'s' if len(found) > 1 else ''}", *(w.render() for w in found)]


def _job(config: Config, ranks: int) -> list[tuple[str, str]]:
    """What launch=slurm asks for."""
    section = config.launch
    needs = allocation(section, ranks) if isinstance(section, Slurm) else None
    if not isinstance(needs, Allocation) or not isinstance(section, Slurm):
        return []
    gpus = f", {needs.gpus_per_node} GPUs each" if needs.gpus_per_node else ""
    return [
        (
            "job",
            f"{needs.nodes} node{'s' * (needs.nodes > 1)} with {needs.tasks_per_node} ranks{gpus}, {section.time} minutes",
        )
    ]


def _going_on(config: Config) -> list[tuple[str, str]]:
    """What a run that exists goes on from."""
    if config.run.dir is None or not is_run(Path(config.run.dir)):
        return []
    newest, skipped = newest_usable(Path(config.run.dir) / config.checkpoint.dir, to_go_on=True)
    start = (
        f"step {newest.step} of {config.train.max_steps}"
        if newest
        else "the beginning: it has no checkpoint that can be used"
    )
    return [
        ("goes on from", start),
        *((f"  passed over: {one.path.name}", fault) for one, fault in skipped),
    ]


def _choices(composition: Composition) -> list[tuple[str, str]]:
    groups = composition.library.groups()
    made = [
        (g, str(composition.choices[g])) for g in groups if composition.choices.get(g) is not None
    ]
    return [choice for choice in made if choice not in OF_EVERY_RUN and choice[0] not in OF_SWEEPS]


def _table(title: str, rows: list[tuple[str, str]]) -> list[str]:
    return [title, *(_row(name, value) for name, value in rows), ""] if rows else []


def _row(name: str, value: str) -> str:
    return f"  {name:<30} {value}"


if __name__ == "__main__":
    sys.exit(main())
