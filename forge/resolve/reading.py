"""The layout to read a trained model on, independent of the layout of its training."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod

from forge.config.parallel import Parallel
from forge.config.problems import ConfigError
from forge.config.root import Config
from forge.planning.world import World, find_devices
from forge.resolve.rules.all import RULES

AXES = {"tp": "tp", "fsdp": "dp_shard", "ep": "ep"}
"""Names in a typed layout, and the option of each degree."""
SECTIONS = ("model.", "parallel.", "run.")
"""Sections whose rules hold for reading too."""


def reading_config(config: Config, layout: str) -> Config:
    """The config of a run, changed to read its model on a layout such as tp2, or tp2,fsdp2.

    Runs on as many GPUs as the layout has ranks, or on the CPU without GPUs. Raises ValueError for
    an impossible layout, ConfigError with the errors of the rules on layouts.
    """
    return laid_out(config, read_degrees(layout), f"--parallel {layout}")


def laid_out(config: Config, degrees: Mapping[str, int], source: str) -> Config:
    """The config of a run, changed to read its model with these degrees. source: of the degrees,
    for messages. Raises as `reading_config`.
    """
    size, devices = prod(degrees.values()), find_devices()
    device = config.run.device if config.run.device != "cuda" or devices.gpus else "cpu"
    if device == "cuda" and devices.gpus < size:
        raise ValueError(f"{source}: {size} GPUs, and there are {devices.gpus}")
    precision = config.precision
    if device == "cpu" and config.run.device == "cuda":
        precision = replace(precision, mixed_precision="fp32", residual_dtype="fp32")
    plain = {"compile_model": False, "activation_checkpointing": "none", "use_qk_clip": False}
    adapted = replace(
        config,
        parallel=_reading_layout(config.parallel, degrees),
        precision=precision,
        run=replace(config.run, device=device, num_processes=size, inline=False),
        train=replace(config.train, **plain),
        techniques={},
    )
    world = World(size=size, source=source, device=device, devices=devices)
    of_layouts = [
        rule
        for rule in RULES
        if all(key.startswith(SECTIONS) for key in rule.reads)
        and any(key.startswith("parallel.") for key in rule.reads)
    ]
    problems = [problem for rule in of_layouts for problem in rule.check(adapted, world)]
    if errors := [problem for problem in problems if not problem.warning]:
        raise ConfigError(errors)
    adapted.freeze()
    return adapted


def _reading_layout(trained: Parallel, degrees: Mapping[str, int]) -> Parallel:
    """The layout of forward passes alone, with these degrees, on the backend of training."""
    shards = degrees.get("dp_shard", 1)
    return Parallel(
        dp_shard=shards,
        dp_replicate=degrees.get("dp_replicate", 1),
        tp=degrees.get("tp", 1),
        pp=degrees.get("pp", 1),
        cp=degrees.get("cp", 1),
        ep=degrees.get("ep", 1),
        sequence_parallel=False,
        reshard_after_forward="always" if shards > 1 else "never",
        reduce_gradients="step",
        pp_microbatches=1,
        pp_stages_per_rank=1,
        backend=trained.backend,
        nccl_timeout_sec=trained.nccl_timeout_sec,
        nccl_train_timeout_sec=trained.nccl_train_timeout_sec,
    )


def read_degrees(layout: str) -> dict[str, int]:
    """Parse a layout into degrees above 1, by option. Raises ValueError."""
    degrees: dict[str, int] = {}
    for part in layout.split(","):
        match = re.fullmatch(r"([a-z]+)([1-9][0-9]*)", part)
        axis = match[1] if match else ""
        if match is None or axis not in AXES or AXES[axis] in degrees:
            message = "it is such as tp2, fsdp4 or tp2,fsdp2: of tp, fsdp and ep each once"
            if axis == "pp":
                message = (
                    "the stages of a pipeline would wait for each other at every token; take tp"
                )
            raise ValueError(f"--parallel {layout}: {message}")
        degrees[AXES[axis]] = int(match[2])
    return {axis: degree for axis, degree in degrees.items() if degree > 1}
