"""`python -m forge.bench [overrides]`: how fast it trains on this machine, on random tokens.

Examples:
    python -m forge.bench model=small train.batch_size=4
    python -m forge.bench -m model=tiny,small optimizer=adamw,muon --markdown bench.md
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forge import cli
from forge.config.numbers import byte_size
from forge.config.problems import refusal
from forge.launch.local import processes
from forge.planning.activations import flops_again
from forge.planning.flops import flops_per_token
from forge.planning.launcher_environment import launcher_environment
from forge.planning.memory import memory_of
from forge.planning.world import check_startable
from forge.resolve.resolve import Resolution
from forge.rundir import directory, files, identity, outcome, provenance
from forge.rundir.provenance import typed_command

FILE = "bench.json"
BEHIND = ("eval=off", "checkpoint=off", "data=synthetic")
ALWAYS = ("metrics.enable_console=false", "run.inline=false")
COLUMNS = (
    *("config", "devices", "tokens/s", "ms a step", "p10 to p90", "MFU", "HFU"),
    *("peak memory", "estimate", "forward", "backward", "optimizer", "loss", "hash"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the measurements; exit 1 for a failed configuration, 2 for a refused configuration."""
    description = "Time the steps of a configuration on random tokens; nothing is saved of the run."
    arguments = cli.parser("forge.bench", description)
    add = arguments.add_argument
    add("-m", "--multirun", action="store_true", help="every combination of several values")
    add("--warmup", type=int, default=5, help="first steps that are left out (default 5)")
    add("--steps", type=int, default=20, help="steps that are timed (default 20)")
    add("--profiled", type=int, default=3, help="further steps whose kernels are listed; 0 = none")
    add("--json", type=Path, metavar="FILE", help="write all that was measured")
    add("--markdown", type=Path, metavar="FILE", help="write the table, with versions and commands")
    options = cli.parse(arguments, argv)
    if options.help:
        return cli.help("forge.bench", arguments, options)
    return cli.refuse(lambda: _main(options))


def _main(options: argparse.Namespace) -> int:
    environment = launcher_environment()
    if environment is not None and environment.size > 1:
        message, hint = "forge.bench starts its ranks itself.", "type it without torchrun or srun"
        raise refusal(f"{environment.source}={environment.size}", message, hint)
    for name, least in (("warmup", 1), ("steps", 2), ("profiled", 0)):
        if getattr(options, name) < least:
            raise refusal(f"--{name}", f"it is at least {least}.", f"--{name} {least}")
    cli.enter(options)
    rows = []
    with tempfile.TemporaryDirectory(prefix="forge_bench_") as folder:
        points = []
        for number, (label, overrides) in enumerate(_points(options)):
            words = [*overrides, f"run.dir={folder}/{number}"]
            resolution = cli.resolved(words, options.config_dir)[1]  # refuse before the first run
            check_startable(resolution.world)
            points.append((label, resolution))
        for label, resolution in points:
            print(f"{label} ...", flush=True)
            rows.append({"config": label} | _measure(resolution))
            print("\n".join(_text(rows[-1])), end="\n\n", flush=True)
    facts = provenance.facts()
    if options.json:
        files.write_json(options.json, {"facts": facts, "rows": rows})
    if options.markdown:
        files.write_text(options.markdown, _markdown(rows, facts))
    if len(rows) > 1:
        print("\n".join(cli.aligned_lines([COLUMNS, *(cells(row) for row in rows)])))
    return int(any("error" in row for row in rows))


def _points(options: argparse.Namespace) -> Iterator[tuple[str, Sequence[str]]]:
    """Label and overrides of each configuration."""
    words = _with_defaults(options)
    if not options.multirun:
        yield shlex.join(options.overrides) or "the default run", words
        return
    from forge.launch.sweep import sweep

    yield from sweep.point_overrides(words, options.config_dir)


def _with_defaults(options: argparse.Namespace) -> list[str]:
    """The typed overrides, after a measurement's defaults of groups not typed, and before the
    overrides of every measurement.
    """
    keys = {word.partition("=")[0].lstrip("+") for word in options.overrides}
    defaults = [word for word in BEHIND if word.partition("=")[0] not in keys]
    numbers = {name: getattr(options, name) for name in ("warmup", "steps", "profiled")}
    entry = ",".join(f"{name}:{number}" for name, number in numbers.items())
    total = sum(numbers.values())
    bench = f"+callbacks.bench={{_target_:forge.training.callbacks.bench.Bench,{entry}}}"
    steps = [f"train.max_steps={total}", f"metrics.log_interval={total}"]
    return [*defaults, *options.overrides, *ALWAYS, *steps, bench]


def _measure(resolution: Resolution) -> dict[str, Any]:
    """Train in the run's directory and return the measurement, or the failure."""
    config = resolution.config
    row = {"hash": identity.hash_of(config), "estimate_bytes": dict(memory_of(config).parts)}
    model = config.decoder
    if model is not None:
        row["parameters"] = model.num_params_estimate
        row["flops_a_token"] = flops_per_token(config)
    run_dir, _ = directory.prepare_directory(resolution, overrides=())
    if code := processes.start(run_dir, resolution.world.size, trust=config.run.trust):
        failure = outcome.failure(run_dir) or {}
        return row | {"error": failure.get("message") or f"a rank ended with exit code {code}"}
    row |= json.loads((run_dir / FILE).read_text())
    if row["mfu"] is not None and model is not None:
        row["hfu"] = row["mfu"] * (1 + flops_again(config) / row["flops_a_token"])
    return row


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    if "error" in row:
        return [
            row["config"],
            f"failed: {row['error'].splitlines()[0]}",
            *[""] * (len(COLUMNS) - 2),
        ]
    steps, parts, memory = row["step_seconds"], row["parts_seconds"], row["memory_bytes"]

    def ms(seconds: float | None) -> str:
        return "" if seconds is None else f"{seconds * 1e3:.1f}"

    def percent(share: float | None) -> str:
        return "" if share is None else f"{share:.1%}"

    estimate = sum(row["estimate_bytes"].values())
    return [
        row["config"],
        f"{row['world']} x {row['device']}",
        f"{row['tokens_per_second']:,.0f}",
        ms(steps["median"]),
        f"{ms(steps['p10'])} to {ms(steps['p90'])}",
        percent(row["mfu"]),
        percent(row.get("hfu")),
        byte_size(memory["peak"]),
        byte_size(estimate) if estimate else "",
        ms(parts.get("forward", parts.get("gradients"))),
        ms(parts.get("backward, reduction, clipping")),
        ms(parts["optimizer"]),
        f"{row['loss']['first']:.3f} to {row['loss']['last']:.3f}",
        row["hash"][:8],
    ]


def _text(row: dict[str, Any]) -> list[str]:
    """Lines of a measurement."""
    if "error" in row:
        return [f"  failed: {row['error']}"]
    lines = [
        f"  {name:<30} {cell}" for name, cell in zip(COLUMNS[1:7], cells(row)[1:7], strict=True)
    ]
    lines = [line for line in lines if not line.endswith(" ")]
    lines.append(f"  {'first step':<30} {row['first_step_seconds'] * 1e3:.1f} ms")
    for title, part in (("ms a step", "parts_seconds"), ("kernels, ms a step", "kernels_seconds")):
        lines.append(f"  {title}")
        lines += [f"    {name:<28} {s * 1e3:.2f}" for name, s in row.get(part, {}).items()]
    if row["world"] > 1 and "communication_seconds" in row:
        lines.append(f"    {'all communication':<28} {row['communication_seconds'] * 1e3:.2f}")
    for title, part in (("memory", "memory_bytes"), ("estimated memory", "estimate_bytes")):
        lines.append(f"  {title}")
        lines += [f"    {name:<28} {_bytes(name, n)}" for name, n in row[part].items()]
        if part == "memory_bytes":
            lines.append(f"    {'the peak is of':<28} {row['peak_holds']}")
    if row["graphs"]:
        lines.append(
            f"  compiled graphs                {row['graphs']}, breaks {row['graph_breaks']}"
        )
    return lines


def _bytes(name: str, number: int) -> str:
    return str(number) if name == "allocation retries" else byte_size(number)


def _markdown(rows: Sequence[dict[str, Any]], facts: dict[str, Any]) -> str:
    """The table as a page, with the facts needed to repeat the measurement."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    lines = [
        f"    {typed_command(facts['argv'])}",
        "",
        f"Python {facts['python']}, {versions}.",
        "",
    ]
    lines += [_line(COLUMNS), _line(["---"] + ["---:"] * (len(COLUMNS) - 1))]
    lines += [_line(cells(row)) for row in rows]
    holds = dict.fromkeys(row["peak_holds"] for row in rows if "peak_holds" in row)
    formulas = (
        "MFU: FLOPs of the model a token, forward and backward, times tokens a second, over the "
        "peak of the devices (PaLM, arXiv:2204.02311, appendix B). HFU: the same with what blocks "
        "compute again in backward. Times are medians in ms; memory is of the main rank: "
        f"{' or '.join(holds)}. Hash: of the config."
    )
    return "\n".join([*lines, "", formulas, ""])


def _line(row: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"


if __name__ == "__main__":
    sys.exit(main())
