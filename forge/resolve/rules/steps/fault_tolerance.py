"""Rules of replica groups that continue when one dies, see `forge.config.replicas`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from forge.config.replicas.fault_tolerance import LIGHTHOUSE, FaultTolerance
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.config.run import Run

ENABLED = "fault_tolerance.enabled"
TEXT = ("pretrain", "sft")
OTHER_STATE = ("schedule_free_adamw", "adamw_low_bit")
INSTALL = "pip install 'forge-lm[torchft]'"
OFF = "fault_tolerance=off"


@rule("fault_tolerance.package", ENABLED)
def package(fault_tolerance: FaultTolerance) -> Findings:
    """fault_tolerance=torchft needs the package torchft."""
    if fault_tolerance.enabled and not fault_tolerance.has_torchft():
        yield ENABLED, "torchft is not installed.", f"{OFF}, or {INSTALL}"


@rule("fault_tolerance.lighthouse", ENABLED, "fault_tolerance.lighthouse")
def lighthouse(fault_tolerance: FaultTolerance) -> Findings:
    """fault_tolerance.lighthouse is http://HOST:PORT of a torchft_lighthouse, which you start."""
    if not fault_tolerance.enabled:
        return
    address = fault_tolerance.lighthouse or os.environ.get(LIGHTHOUSE, "")
    if not re.fullmatch(r"https?://[^/]+:\d+/?", address):
        key = "fault_tolerance.lighthouse"
        what = f"'{address}' is no such address." if address else f"nor is {LIGHTHOUSE} set."
        command = "torchft_lighthouse --min_replicas 1 --bind '[::]:29510'"
        yield key, what, f"{key}=http://HOST:29510, with `{command}` running on HOST"


@rule("fault_tolerance.replica_id", "fault_tolerance.replica_id", "fault_tolerance.group_size")
def replica_of_group(fault_tolerance: FaultTolerance) -> Findings:
    """fault_tolerance.replica_id counts from 0 to fault_tolerance.group_size - 1."""
    if fault_tolerance.enabled and fault_tolerance.replica_id >= fault_tolerance.group_size:
        key = "fault_tolerance.replica_id"
        yield key, f"{key}={fault_tolerance.group_size - 1}"


@rule(
    "fault_tolerance.min_replica_size",
    "fault_tolerance.min_replica_size",
    "fault_tolerance.group_size",
)
def enough_of_group(fault_tolerance: FaultTolerance) -> Findings:
    """fault_tolerance.min_replica_size is at most fault_tolerance.group_size."""
    of = fault_tolerance
    if of.enabled and of.min_replica_size > of.group_size:
        key = "fault_tolerance.min_replica_size"
        yield key, f"{key}={of.group_size}"


@rule("fault_tolerance.nccl", "fault_tolerance.process_group", "run.device")
def nccl_of_gpus(fault_tolerance: FaultTolerance, run: Run) -> Findings:
    """fault_tolerance.process_group=nccl carries gradients of NVIDIA GPUs alone."""
    of = fault_tolerance
    if of.enabled and of.process_group == "nccl" and run.device != "cuda":
        key = "fault_tolerance.process_group"
        yield key, f"{key}=gloo"


@rule(
    "fault_tolerance.alone",
    ENABLED,
    "diloco.enabled",
    "parallel.pp",
    "parallel.cp",
    "parallel.tp",
    "parallel.cpu_offload",
    "parallel.offload_optimizer",
    "precision.param_dtype",
    "precision.grad_dtype",
    "precision.mixed_precision",
    "train.optimizer_in_backward",
    "train.skip_step_on_spikes",
    "model",
    "objective",
    "optimizer",
    "adapter",
    "data",
    "run.elastic",
)
def groups_apart_from_others(config: Config) -> Findings:
    """Replica groups of torchft train all weights of a dense model in fp32, with one objective on
    stored text, under FSDP.
    """
    if not config.fault_tolerance.enabled:
        return
    for key, is_so, hint in _others(config):
        if is_so:
            yield key, "it does not compose with fault_tolerance=torchft.", hint


def _others(config: Config) -> Iterator[tuple[str, bool, str]]:
    """What does not compose: the key, whether it is so, and the way out."""
    train, parallel, precision = config.train, config.parallel, config.precision
    objective, state = config.objective, config.optimizer.schema_name
    text = objective.schema_name in TEXT and getattr(objective, "weighting", "token") == "token"
    for name in ("pp", "cp", "tp"):
        yield f"parallel.{name}", getattr(parallel, name) > 1, f"parallel.{name}=1"
    for key, flag in {
        "parallel.cpu_offload": parallel.cpu_offload,
        "parallel.offload_optimizer": parallel.offload_optimizer,
        "train.optimizer_in_backward": train.optimizer_in_backward,
        "train.skip_step_on_spikes": train.skip_step_on_spikes,
    }.items():
        yield key, flag, f"{key}=false"
    fp16 = precision.mixed_precision == "fp16"
    yield "diloco.enabled", config.diloco.enabled, "diloco=off"
    yield "precision.param_dtype", precision.weights_in_16_bits, "precision.param_dtype=fp32"
    yield "precision.grad_dtype", precision.gradients_in_bf16, "precision.grad_dtype=fp32"
    yield "precision.mixed_precision", fp16, "precision.mixed_precision=bf16"
    yield "run.elastic", bool(config.run.elastic), "run.elastic=null"
    yield "optimizer", state in OTHER_STATE, "optimizer=adamw"
    yield "adapter", config.adapter.active, "adapter=none"
    yield "model", config.model.is_moe, OFF
    yield "objective", not text, OFF
    yield "data", config.data.streamed, "data.hf_streaming=false"
