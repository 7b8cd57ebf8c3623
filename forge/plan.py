"""`python -m forge.plan MODEL [overrides]`: days to train it on a cluster that is not here, memory
and time by part, and the ten best layouts with why others lose.

Examples:
    python -m forge.plan llama3_1_405b --tokens 15e12 --device h100 --nodes 2048
    python -m forge.plan llama3_8b --device h200 --gpus 1 train.seq_len=4096
    python -m forge.plan model=llama3_70b plan.device=h100 plan.world_size=64 parallel.tp=8
"""

from __future__ import annotations

import argparse
import json
import pickle
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from forge import cli
from forge.compose.composition import compose
from forge.config.devices import DEVICES
from forge.config.numbers import byte_size, compact, counted, duration, percent
from forge.config.problems import COMMAND_LINE, closest, refusal
from forge.config.root import Config
from forge.planning.links import NETWORK, NVLINK
from forge.planning.sharding import held, in_small
from forge.planning.time import StepTime, device_of
from forge.planning.traffic import Rank
from forge.planning.world import World, ranks_of, ranks_per_node
from forge.resolve.resolve import resolve, worked_out
from forge.resolve.search import Layout, layouts, why_not

DESCRIPTION = "Days to train a model on machines that are not here; layouts, memory and time."
BEHIND = ("eval=off", "checkpoint=off", "data=synthetic", "tokenizer=bytes", "train=long")
BEHIND = (*BEHIND, "optimizer=adamw", "precision=bf16")
LEAST_TOKENS, TOKENS_A_RANK = 1 << 22, 1 << 10
"""Of a step where no batch is given: 4.2 million, and from 4,096 ranks on 1,024 for each, which
gives 16,384 ranks the 16.8 million that Llama 3 405B had there (arXiv:2407.21783, table 4).
"""
LONGEST = 8192
"""Tokens of a sequence where none is given, as far as the model takes them."""
SHOWN = 10


def main(argv: Sequence[str] | None = None) -> int:
    """Print the plan and exit 0, or what is wrong and exit 2; also where no layout fits: 1."""
    arguments = cli.parser("forge.plan", DESCRIPTION, takes="MODEL or OVERRIDE")
    add = arguments.add_argument
    add("--tokens", type=float, default=1e12, help="to train on (default 1e12)")
    add("--device", choices=tuple(DEVICES), help="the GPU: plan.device=...")
    add("--nodes", type=int, help="machines, of plan.gpus_per_node GPUs")
    add("--gpus", type=int, help="GPUs in all: plan.world_size=...")
    what = "lay the best layout out in small, over imagined ranks: what each holds and sends"
    add("--dry-run", action="store_true", help=what)
    options = cli.parse(arguments, argv)
    if options.help:
        return cli.help("forge.plan", arguments, options)
    return cli.refuse(lambda: _main(options))


def _main(options: argparse.Namespace) -> int:
    for name in ("tokens", "nodes", "gpus"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            raise refusal(f"--{name}", "it is more than 0.", f"--{name} 1", COMMAND_LINE)
    if options.nodes and options.gpus:
        what = "one number says how many GPUs there are."
        raise refusal("--nodes", what, "leave --gpus out", COMMAND_LINE)
    options.overrides = [
        word if "=" in word or word.startswith("~") else f"model={word}"
        for word in options.overrides
    ]
    cli.enter(options)
    config, typed = _config(options)
    if options.dry_run and "" not in config.objective.compares:
        name = config.objective.schema_name
        what = f"its step is one of running text, and objective={name} compares examples."
        raise refusal("--dry-run", what, "leave --dry-run out", COMMAND_LINE)
    config, world = worked_out(config)
    if config.decoder is None:
        what = "the time is known of forge's decoders alone, of which this model is none."
        raise refusal("model", what, "model=llama3_8b, or another preset")
    device = device_of(config)
    found = layouts(config, world, device, kept=typed)
    if not found:
        what = f"no layout on {ranks_of(world.size)} keeps the rules with a global batch of"
        what += f" {config.train.global_batch_size:,} sequences."
        fix = "train.global_batch_size= with a multiple of the ranks, or another number of GPUs"
        raise refusal("parallel", what, fix)
    best = found[0]
    if best.fits:
        resolve(_as_given(best.config))  # what other rules say of it is refused here
    print(report(config, world, found, options.tokens))
    if options.dry_run and best.fits:
        text, right = report_dry_run(best.config)
        print(f"\n{text}")
        return 0 if right else 1
    return 0 if best.fits else 1


def _config(options: argparse.Namespace) -> tuple[Config, frozenset[str]]:
    """The config with what a plan takes for what was not typed, and the keys that were."""
    keys = frozenset(word.partition("=")[0].lstrip("+~") for word in options.overrides)
    before = [word for word in BEHIND if word.partition("=")[0] not in keys]
    words = [*before, *options.overrides]
    if options.device:
        words.append(f"plan.device={options.device}")
    if options.gpus:
        words.append(f"plan.world_size={options.gpus}")
    composition = compose(words, config_dirs=options.config_dir)
    config = composition.typed()
    if composition.problems:
        resolve(config, known=tuple(composition.problems), origin=composition.origin)
    if config.plan.device is None:
        near = closest("h", DEVICES) or list(DEVICES)
        what = "a plan is for a kind of GPU."
        raise refusal("--device", what, f"--device {near[0]}, or one of {', '.join(DEVICES)}")
    if options.nodes:
        config.plan.world_size = options.nodes * config.plan.gpus_per_node
    if config.run.device == "auto":
        config.run.device = "cuda"
    if "objective.loss_fn" not in keys:
        config.objective.chunk()
    if "train.seq_len" not in keys:
        config.train.seq_len = min(config.model.max_seq_len, LONGEST)
    ranks = config.plan.world_size or config.plan.gpus_per_node
    given = {"train.global_batch_size", "train.global_batch_tokens", "train.grad_accum_steps"}
    if not keys & given:
        tokens = max(LEAST_TOKENS, TOKENS_A_RANK * ranks)
        per_step = max(tokens // config.train.seq_len // ranks, 1) * ranks
        fewer = ranks > tokens // config.train.seq_len  # than a sequence a rank: tp, pp, cp share
        config.train.global_batch_size = tokens // config.train.seq_len if fewer else per_step
    if "parallel" not in keys:  # a layout is searched for, not chosen by memory
        config.parallel.layout = "given"
    degrees = config.parallel.degrees()
    given = {f"parallel.{axis}" for axis, degree in degrees.items() if degree > 1}
    is_open = {f"parallel.{axis}" for axis, degree in degrees.items() if degree < 1}
    return config, keys - is_open | given


def _as_given(config: Config) -> Config:
    """A copy whose layout is not worked out again."""
    result = config.clone()
    result.thaw()
    result.parallel.layout = "given"
    return result


def report(config: Config, world: World, found: Sequence[Layout], tokens: float) -> str:
    """The plan, in lines."""
    best, node = found[0], ranks_per_node(world)
    train, plan = best.config.train, config.plan
    fitting = [one for one in found if one.fits]
    nodes = -(-world.size // min(plan.gpus_per_node, world.size))
    where = f"{world.size:,} {plan.device} ({counted(nodes, 'node')})"
    batch = f"{train.global_batch_size:,} sequences of {train.seq_len:,} tokens"
    lines = [f"{config.preset} on {where}, {batch} a step", ""]
    if not fitting:
        needed, there = byte_size(best.needed), byte_size(device_of(config).memory)
        lines += [f"no layout of {len(found)} fits: the leanest needs {needed} of {there}", ""]
        lines += ["  " + best.name, *_memory(best)]
        return "\n".join(lines)
    time = best.time
    assert time is not None
    days = tokens / (time.tokens_per_second * time.ranks) / 86400
    hours = days * 24 * time.ranks
    lines += [
        f"  {compact(tokens)} tokens       {duration(days * 86400)}, {compact(hours)} GPU hours",
        f"  speed           {time.tokens_per_second:,.0f} tokens/s a GPU, MFU {time.mfu:.1%}",
        f"  best layout     {best.name}",
        "",
        *time_lines(time),
        "",
        *_memory(best),
        "",
        *_table(fitting, config, node),
        "",
        *_losers(found, config, node),
        "",
        "to train so",
        f"  {best.overrides()}",
    ]
    return "\n".join(lines)


def time_lines(time: StepTime) -> list[str]:
    """A step by part, and what a GPU sends."""
    lines = [f"a step          {duration(time.seconds)}, as the model of docs/planning.md has it"]
    for name, part in sorted(time.parts.items(), key=lambda pair: -pair[1]):
        lines.append(f"  {name:<24} {duration(part):>9}  {time.shares[name]:6.1%}")
    sent = [
        f"{link} {time.links[link] / 1e9:,.3g} GB"
        for link in (NVLINK, NETWORK)
        if link in time.links
    ]
    if sent:
        hidden = f"; {duration(time.hidden)} of it beside products" if time.hidden else ""
        lines.append(f"  a GPU sends              {', '.join(sent)}{hidden}")
    return lines


def _memory(one: Layout) -> list[str]:
    device = device_of(one.config)
    lines = [f"a device        {byte_size(one.needed)} of {byte_size(device.memory)}"]
    return lines + [f"  {name:<28} {byte_size(size):>10}" for name, size in one.memory.items()]


def _table(fitting: Sequence[Layout], config: Config, node: int) -> list[str]:
    """The best layouts, of each choice of degrees the best; where those are few, others too."""
    head = ("", "layout", "step", "tokens/s a GPU", "MFU", "memory", "behind the best by")
    rows: list[Sequence[str]] = [head]
    device = device_of(config)
    shown = _by_degrees(fitting)[:SHOWN]
    others = [one for one in fitting if one not in shown]
    for one in sorted([*shown, *others[: SHOWN - len(shown)]], key=lambda one: one.seconds):
        assert one.time is not None
        why = why_not(one, fitting[0], device, node) if one is not fitting[0] else ""
        speed = f"{one.time.tokens_per_second:,.0f}"
        step, mfu = duration(one.seconds), f"{one.time.mfu:.1%}"
        rows.append((str(len(rows)), one.name, step, speed, mfu, byte_size(one.needed), why))
    return ["the best layouts", *(f"  {line}" for line in cli.lines_of(rows))]


def _by_degrees(fitting: Sequence[Layout]) -> list[Layout]:
    """The fastest of each choice of degrees."""
    best: dict[tuple[int, ...], Layout] = {}
    for one in fitting:
        best.setdefault(tuple(one.config.parallel.degrees().values()), one)
    return list(best.values())


def _losers(found: Sequence[Layout], config: Config, node: int) -> list[str]:
    """Why the others lose, by reason, with the best that loses so."""
    device, groups = device_of(config), defaultdict(list)
    degrees = {tuple(one.config.parallel.degrees().values()) for one in found}
    for one in _by_degrees(found)[SHOWN:]:
        groups[why_not(one, found[0], device, node).partition(":")[0]].append(one)
    lines = [f"the others, of {counted(len(degrees), 'choice')} of degrees"]
    for reason, ones in sorted(groups.items(), key=lambda pair: -len(pair[1])):
        near = ones[0]
        slower = near.seconds / found[0].seconds if near.fits else 0
        said = f"{slower:.2f} times the step" if near.fits else byte_size(near.needed)
        lines.append(f"  {len(ones):>4}  {reason:<32} as {near.name}: {said}")
    return lines


WORKER = "forge.training.dry_run"
ROUNDED = 64
"""Bytes by which collectives that are rounded down one by one differ from their sum."""


def report_dry_run(config: Config) -> tuple[str, bool]:
    """What ranks of a resolved layout hold and send, in lines; whether it is as the plan says, and
    within plan.sharding_tolerance.
    """
    small, stages = in_small(config), sorted({0, config.parallel.pp - 1})
    found = take_a_step(small, stages)
    lines, right = [], True
    size = config.run.num_processes or 1
    lines.append(f"in small, one process as rank of {size:,} (torch's fake process group)")
    for stage, one in zip(stages, found, strict=True):
        expected = held(small, stage).parameters
        right &= one["held"] == expected
        lines.append(f"  rank {one['rank']:,} holds {one['held']:,} values; the plan: {expected:,}")
        sent, planned = one.get("sent", {}), _planned(small, stage) if "sent" in one else {}
        for kind in sorted({*sent, *planned}):
            counted, said = sent.get(kind, 0), planned.get(kind, 0)
            right &= abs(counted - said) <= ROUNDED
            lines.append(f"    {kind:<16} {counted:>12,} bytes sent; the plan: {said:,}")
        excess, most = held(config, stage).excess, config.plan.sharding_tolerance
        right &= excess <= most or size == 1
        said = f"  of the model itself it holds {percent(excess)} more than an equal share"
        lines.append(f"{said}; plan.sharding_tolerance is {percent(most)}")
    if config.parallel.pp > 1:
        lines.append("  a pipeline takes no step here: its ranks wait for one another")
    lines += ["", "what rank 0 holds of the small model", *_parameter_table(found[0]["parameters"])]
    lines += ["", "all of it is as the plan says" if right else "NOT as the plan says, or too much"]
    return "\n".join(lines), right


def take_a_step(config: Config, stages: list[int]) -> list[dict[str, Any]]:
    """What `forge.training.dry_run` finds of ranks of the pipeline. Raises ConfigError."""
    command = [sys.executable, "-m", WORKER]
    done = subprocess.run(command, input=pickle.dumps((config, stages)), capture_output=True)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [""]
        what = f"the layout cannot be laid out: {last[0]}"
        raise refusal("--dry-run", what, "python -m forge.doctor, which says whether torch is here")
    return json.loads(done.stdout.decode().strip().splitlines()[-1])


def _planned(config: Config, stage: int) -> dict[str, int]:
    """Bytes that the rank sends, by kind of collective."""
    model = config.decoder
    assert model is not None
    kinds: Counter[str] = Counter()
    for sent in Rank(config, model, stage).sent():
        kinds[sent.kind] += sent.bytes
    return dict(kinds)


def _parameter_table(parameters: list[list[Any]]) -> list[str]:
    """Parameters of the first block and of what is outside: shapes, and what cuts them."""
    first = min((name.split(".")[1] for name, *_ in parameters if "blocks." in name), default="0")
    rows = [("", "shape", "here", "cut by")]
    for name, shape, here, cuts in parameters:
        if "blocks." not in name or f"blocks.{first}." in name:
            rows.append((name, str(shape), str(here), cuts))
    return [f"  {line}" for line in cli.lines_of(rows)]


if __name__ == "__main__":
    sys.exit(main())
