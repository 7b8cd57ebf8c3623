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
from forge.config.problems import COMMAND_LINE, ConfigError, closest, refusal
from forge.config.root import Config
from forge.planning.links import NETWORK, NVLINK
from forge.planning.memory import WORDS
from forge.planning.sharding import held, in_small
from forge.planning.time import StepTime, device_of
from forge.planning.traffic import Rank
from forge.planning.world import World, ranks_of, ranks_per_node
from forge.resolve.resolve import resolve, worked_out
from forge.resolve.search import Layout, largest_loss, layouts

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
    """Print the plan and exit 0; exit 1 where no layout fits, 2 with the problems of the config."""
    arguments = cli.parser("forge.plan", DESCRIPTION, takes="MODEL or OVERRIDE")
    add = arguments.add_argument
    add("--tokens", type=float, default=1e12, help="to train on (default 1e12)")
    add("--device", choices=tuple(DEVICES), help="the GPU: plan.device=...")
    add("--nodes", type=int, help="machines, of plan.gpus_per_node GPUs")
    add("--gpus", type=int, help="GPUs in all: plan.world_size=...")
    dry_run = "lay the best layout out in small, over imagined ranks: what each holds and sends"
    add("--dry-run", action="store_true", help=dry_run)
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
        message = "one number says how many GPUs there are."
        raise refusal("--nodes", message, "leave --gpus out", COMMAND_LINE)
    options.overrides = [
        word if "=" in word or word.startswith("~") else f"model={word}"
        for word in options.overrides
    ]
    cli.enter(options)
    config, typed = _config(options)
    if options.dry_run and "" not in config.objective.compares:
        name = config.objective.schema_name
        message = f"its step is one of running text, and objective={name} compares examples."
        raise refusal("--dry-run", message, "leave --dry-run out", COMMAND_LINE)
    config, world = worked_out(config)
    if config.decoder is None:
        message = "the time is known of forge's decoders alone, of which this model is none."
        raise refusal("model", message, "model=llama3_8b, or another preset")
    device = device_of(config)
    plans = layouts(config, world, device, kept=typed)
    if not plans:
        message = f"no layout on {ranks_of(world.size)} keeps the rules with a global batch of"
        message += f" {config.train.global_batch_size:,} sequences."
        hint = "train.global_batch_size= with a multiple of the ranks, or another number of GPUs"
        raise refusal("parallel", message, hint)
    best = plans[0]
    if best.fits:
        resolve(_as_given(best.config))  # raises for faults found by the other rules
    print(_report(config, world, plans, options.tokens))
    if options.dry_run and best.fits:
        text, right = report_dry_run(best.config)
        print(f"\n{text}")
        return 0 if right else 1
    return 0 if best.fits else 1


OF_BATCH = ("train.global_batch_size", "train.global_batch_tokens", "train.grad_accum_steps")
"""Options with the size of a step; without one a plan chooses the size."""


def _config(options: argparse.Namespace) -> tuple[Config, frozenset[str]]:
    """The config with a plan's defaults for options not typed, and the typed keys."""
    keys = frozenset(word.partition("=")[0].lstrip("+~") for word in options.overrides)
    defaults = [word for word in BEHIND if word.partition("=")[0] not in keys]
    words = [*defaults, *options.overrides]
    if options.device:
        words.append(f"plan.device={options.device}")
    if options.gpus:
        words.append(f"plan.world_size={options.gpus}")
    composition = compose(words, config_dirs=options.config_dir)
    config = composition.typed()
    if composition.problems:
        resolve(config, known=tuple(composition.problems), origin=composition.origin)
    if config.plan.device is None:
        raise _no_device()
    if options.nodes:
        config.plan.world_size = options.nodes * config.plan.gpus_per_node
    if config.run.device == "auto":
        config.run.device = "cuda"
    if "objective.loss_fn" not in keys:
        config.objective.chunk()
    if "train.seq_len" not in keys:
        config.train.seq_len = min(config.model.max_seq_len, LONGEST)
    if keys.isdisjoint(OF_BATCH):
        ranks = config.plan.world_size or config.plan.gpus_per_node
        config.train.global_batch_size = _batch_of(ranks, config.train.seq_len)
    if "parallel" not in keys:  # a layout is searched for, not chosen by memory
        config.parallel.layout = "given"
    degrees = config.parallel.degrees()
    fixed = {f"parallel.{axis}" for axis, degree in degrees.items() if degree > 1}
    is_open = {f"parallel.{axis}" for axis, degree in degrees.items() if degree < 1}
    return config, keys - is_open | fixed


def _no_device() -> ConfigError:
    """The refusal of a plan without a kind of GPU."""
    near = closest("h", DEVICES) or list(DEVICES)
    hint = f"--device {near[0]}, or one of {', '.join(DEVICES)}"
    return refusal("--device", "a plan is for a kind of GPU.", hint)


def _batch_of(ranks: int, seq_len: int) -> int:
    """Sequences of a step on so many ranks, where no size is typed."""
    sequences = max(LEAST_TOKENS, TOKENS_A_RANK * ranks) // seq_len
    if ranks > sequences:  # fewer than a sequence a rank: tp, pp, cp share
        return sequences
    return max(sequences // ranks, 1) * ranks


def _as_given(config: Config) -> Config:
    """A copy with its layout as given, not worked out again."""
    result = config.clone()
    result.thaw()
    result.parallel.layout = "given"
    return result


def _report(config: Config, world: World, found: Sequence[Layout], tokens: float) -> str:
    """The plan, in lines."""
    best, node = found[0], ranks_per_node(world)
    train, plan = best.config.train, config.plan
    fitting = [layout for layout in found if layout.fits]
    nodes = -(-world.size // min(plan.gpus_per_node, world.size))
    where = f"{world.size:,} {plan.device} ({counted(nodes, 'node')})"
    batch = f"{train.global_batch_size:,} sequences of {train.seq_len:,} tokens"
    lines = [f"{config.preset} on {where}, {batch} a step", ""]
    if not fitting:
        needed, available = byte_size(best.needed), byte_size(device_of(config).memory)
        lines += [f"no layout of {len(found)} fits: the leanest needs {needed} of {available}", ""]
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
    """Lines of the step time by part, and of the bytes sent by a GPU."""
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
    memory = one.memory
    needed = f"{byte_size(memory.allocated)}, and {byte_size(memory.reserved)} reserved"
    lines = [f"a device        {needed} of {byte_size(device.memory)}, {WORDS[memory.moment]}"]
    return lines + [f"  {name:<28} {byte_size(size):>10}" for name, size in memory.parts.items()]


def _table(fitting: Sequence[Layout], config: Config, node: int) -> list[str]:
    """A table of the best layout of each choice of degrees, padded with further layouts."""
    head = ("", "layout", "step", "tokens/s a GPU", "MFU", "memory", "behind the best by")
    rows: list[Sequence[str]] = [head]
    device = device_of(config)
    shown = _by_degrees(fitting)[:SHOWN]
    slower = [layout for layout in fitting if layout not in shown]
    for layout in sorted(
        [*shown, *slower[: SHOWN - len(shown)]], key=lambda layout: layout.seconds
    ):
        assert layout.time is not None
        why = largest_loss(layout, fitting[0], device, node) if layout is not fitting[0] else ""
        speed = f"{layout.time.tokens_per_second:,.0f}"
        step, mfu = duration(layout.seconds), f"{layout.time.mfu:.1%}"
        rows.append((str(len(rows)), layout.name, step, speed, mfu, byte_size(layout.needed), why))
    return ["the best layouts", *(f"  {line}" for line in cli.aligned_lines(rows))]


def _by_degrees(fitting: Sequence[Layout]) -> list[Layout]:
    """The fastest of each choice of degrees."""
    best: dict[tuple[int, ...], Layout] = {}
    for layout in fitting:
        best.setdefault(tuple(layout.config.parallel.degrees().values()), layout)
    return list(best.values())


def _losers(found: Sequence[Layout], config: Config, node: int) -> list[str]:
    """Lines of the losing layouts by reason, each with the best layout losing for it."""
    device, groups = device_of(config), defaultdict(list)
    degrees = {tuple(layout.config.parallel.degrees().values()) for layout in found}
    for layout in _by_degrees(found)[SHOWN:]:
        groups[largest_loss(layout, found[0], device, node).partition(":")[0]].append(layout)
    lines = [f"the others, of {counted(len(degrees), 'choice')} of degrees"]
    for reason, ones in sorted(groups.items(), key=lambda pair: -len(pair[1])):
        near = ones[0]
        slower = near.seconds / found[0].seconds if near.fits else 0
        loss = f"{slower:.2f} times the step" if near.fits else byte_size(near.needed)
        lines.append(f"  {len(ones):>4}  {reason:<32} as {near.name}: {loss}")
    return lines


WORKER = "forge.training.dry_run"
ROUNDED = 64
"""Bytes by which collectives that are rounded down one by one differ from their sum."""


def report_dry_run(config: Config) -> tuple[str, bool]:
    """Lines of the values held and bytes sent by ranks of a resolved layout; and whether both are
    as planned, and the shards within plan.sharding_tolerance.
    """
    small, stages = in_small(config), sorted({0, config.parallel.pp - 1})
    shares = take_a_step(small, stages)
    lines, right = [], True
    size = config.run.num_processes or 1
    lines.append(f"in small, one process as rank of {size:,} (torch's fake process group)")
    for stage, share in zip(stages, shares, strict=True):
        expected = held(small, stage).parameters
        right &= share["held"] == expected
        lines.append(
            f"  rank {share['rank']:,} holds {share['held']:,} values; the plan: {expected:,}"
        )
        sent, planned = share.get("sent", {}), _planned(small, stage) if "sent" in share else {}
        for kind in sorted({*sent, *planned}):
            counted, stated = sent.get(kind, 0), planned.get(kind, 0)
            right &= abs(counted - stated) <= ROUNDED
            lines.append(f"    {kind:<16} {counted:>12,} bytes sent; the plan: {stated:,}")
        excess, most = held(config, stage).excess, config.plan.sharding_tolerance
        right &= excess <= most or size == 1
        stated = f"  of the model itself it holds {percent(excess)} more than an equal share"
        lines.append(f"{stated}; plan.sharding_tolerance is {percent(most)}")
    if config.parallel.pp > 1:
        lines.append("  a pipeline takes no step here: its ranks wait for one another")
    lines += [
        "",
        "what rank 0 holds of the small model",
        *_parameter_table(shares[0]["parameters"]),
    ]
    lines += ["", "all of it is as the plan says" if right else "NOT as the plan says, or too much"]
    return "\n".join(lines), right


def take_a_step(config: Config, stages: list[int]) -> list[dict[str, Any]]:
    """Findings of `forge.training.dry_run`, one dict a pipeline rank. Raises ConfigError."""
    command = [sys.executable, "-m", WORKER]
    done = subprocess.run(command, input=pickle.dumps((config, stages)), capture_output=True)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [""]
        message = f"the layout cannot be laid out: {last[0]}"
        raise refusal(
            "--dry-run", message, "python -m forge.doctor, which says whether torch is here"
        )
    return json.loads(done.stdout.decode().strip().splitlines()[-1])


def _planned(config: Config, stage: int) -> dict[str, int]:
    """Bytes sent by the rank, by kind of collective."""
    model = config.decoder
    assert model is not None
    kinds: Counter[str] = Counter()
    for sent in Rank(config, model, stage).sent():
        kinds[sent.kind] += sent.bytes
    return dict(kinds)


def _parameter_table(parameters: list[list[Any]]) -> list[str]:
    """Lines of the parameters of the first block and outside of blocks: shapes and cutting axes."""
    first = min((name.split(".")[1] for name, *_ in parameters if "blocks." in name), default="0")
    rows = [("", "shape", "here", "cut by")]
    for name, shape, local_shape, cuts in parameters:
        if "blocks." not in name or f"blocks.{first}." in name:
            rows.append((name, str(shape), str(local_shape), cuts))
    return [f"  {line}" for line in cli.aligned_lines(rows)]


if __name__ == "__main__":
    sys.exit(main())
