"""Rules on how ranks are started, and on the declaration of a sweep."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path

from forge.config.launch import Kubernetes, Manifest, Slurm, Submitit
from forge.config.places import ADDRESS
from forge.config.problems import Problem, closest, did_you_mean, shown
from forge.config.rule import Findings, rule
from forge.config.run import Run
from forge.config.sweep import Sweep
from forge.config.sweeper import Optuna
from forge.planning.allocation import allocation, allocation_faults
from forge.planning.world import CPU_BUILD, World
from forge.resolve import decision

SHAPE = ("launch.nodes", "launch.tasks_per_node", "launch.gpus_per_node")
LARGEST_NODE = 8
"""Most ranks on GPUs for one node without a given number of GPUs a node."""
NAME = re.compile(r"[\w+-][\w.+-]*")
LONGEST, LONGEST_ARM = 200, 50
SCRIPT_TEXTS = (
    *("account", "constraint", "gpu_type", "mem", "partition", "qos", "sbatch", "srun_args"),
)
BASELINE, SEEDS = "sweep.ablation.baseline", "sweep.ablation.seeds"


@rule("launch.allocation", "run.num_processes", *SHAPE)
def ranks_fill_nodes(launch: Slurm, world: World) -> Findings:
    """The ranks fill the nodes that Slurm gives a job, one rank a GPU where there are GPUs."""
    if world.remote and world.size > 0:
        outcome = allocation(launch, world.size)
        if isinstance(outcome, Problem):
            yield outcome.key, outcome.what, outcome.fix


@rule("launch.machines", "run.num_processes", *SHAPE)
def ranks_fill_machines(launch: Manifest, world: World) -> Findings:
    """The ranks fill the machines of a job, equally many on each, one rank a GPU if any."""
    if world.remote and world.size > 0:
        outcome = allocation(launch, world.size)
        if isinstance(outcome, Problem):
            yield outcome.key, outcome.what, outcome.fix


@rule("launch.image", "launch.image")
def image_of_pods(launch: Kubernetes) -> Findings:
    """launch=kubernetes runs in containers: launch.image names the image, with forge in it."""
    if not launch.image:
        yield "launch.image", "launch.image=registry/name:tag"


@rule("launch.mounts", "launch.mounts", "run.dir", "run.root")
def run_on_shared_storage(launch: Manifest, run: Run) -> Findings:
    """The run directory lies below a path of launch.mounts, on storage that can rename and append:
    a claim or a volume, no bucket.
    """
    place = Path(os.path.abspath(run.dir or run.root))
    volumes = [path for path, source in launch.mounts.items() if not ADDRESS.match(source)]
    if any(place.is_relative_to(path) for path in volumes):
        return
    key, name = ("run.dir", "runs/mine") if run.dir else ("run.root", "runs")
    if volumes:
        yield key, f"{key}={Path(min(volumes)) / name}"
    else:
        yield "launch.mounts", f"'launch.mounts={{/data: my-volume}}' {key}=/data/{name}"


@rule("sweeper.here")
def trials_here(sweeper: Optuna, launch: Manifest) -> Findings:
    """sweeper=optuna waits for the trials, and these launchers submit without waiting."""
    yield "sweeper", "sweeper=basic, or another launcher"


@rule("launch.node_size", *SHAPE)
def node_size(launch: Slurm, world: World) -> Findings:
    """More than eight ranks on GPUs need to know how many GPUs a node has."""
    gives_size = launch.nodes or launch.tasks_per_node or launch.gpus_per_node
    if not gives_size and world.remote and world.device == "cuda" and world.size > LARGEST_NODE:
        yield "launch.gpus_per_node", "launch.gpus_per_node=8, or as many as a node has"


@rule("launch.unused_gpus", "run.device", "launch.gpus_per_node", warning=True)
def unused_gpus(launch: Slurm, world: World) -> Findings:
    """A job whose ranks are on CPUs should take no GPUs."""
    if world.remote and world.device == "cpu" and launch.gpus_per_node:
        other = "run.device=cuda"
        if world.devices.source == CPU_BUILD:
            other = (
                "a CUDA build of torch, for this one is for CPUs; plan.device=h100 plans for GPUs"
            )
        yield "launch.gpus_per_node", f"launch.gpus_per_node=0, or {other}"


@rule("launch.slurm", "launch.signal_before", "launch.time", "launch.sbatch")
def slurm_options(launch: Slurm) -> Findings:
    """launch.signal_before is less than launch.time; launch.sbatch has no key that forge sets."""
    for fault in allocation_faults(launch):
        yield fault.key, fault.what, fault.fix


@rule("launch.text", *(f"launch.{name}" for name in SCRIPT_TEXTS))
def script_text(launch: Slurm) -> Findings:
    """A text that stands in the script of a job has no line break or other control character, which
    would begin a command of its own.
    """
    for name in SCRIPT_TEXTS:
        value = getattr(launch, name)
        texts = [*value, *value.values()] if isinstance(value, Mapping) else value
        texts = [texts] if isinstance(texts, str) else texts or ()
        wrong = [
            text for text in texts if any(unicodedata.category(letter) == "Cc" for letter in text)
        ]
        if wrong and isinstance(value, Mapping):
            keys = [key for key, text in value.items() if {key, text} & set(wrong)]
            yield f"launch.{name}", " ".join(f"~launch.{name}.{key}" for key in keys)
        elif wrong:
            empty = "[]" if name == "srun_args" else "null"
            yield f"launch.{name}", f"launch.{name}={empty}, or the text without it"


@rule("launch.inline", "run.inline")
def inline_is_local(launch: Submitit, run: Run) -> Findings:
    """run.inline keeps the rank in this process, so it needs launch=local."""
    if run.inline:
        yield "run.inline", "run.inline=false, or launch=local"


@rule("sweeper.wait", "launch.wait")
def trials_wait(sweeper: Optuna, launch: Submitit) -> Findings:
    """sweeper=optuna chooses a trial by what those before it have reached, so it waits for them."""
    if not launch.wait:
        yield "launch.wait", "launch.wait=true"


@rule("sweep.name")
def sweep_name(sweep: Sweep) -> Findings:
    """sweep.name names one directory: letters, digits and . _ + -, at most 200 bytes."""
    text = sweep.name
    if text is not None and (not NAME.fullmatch(text) or len(text.encode()) > LONGEST):
        yield "sweep.name", "sweep.name=my_sweep; the directory above it is sweep.root"


@rule("sweep.decision")
def sweep_decision(sweep: Sweep) -> Findings:
    """A decision rule compares two arms, or two values of an option: A beats B by X, or A is no
    worse than B by X.
    """
    if sweep.decision is not None and decision.parse(sweep.decision) is None:
        yield "sweep.decision", decision.EXAMPLE


@rule("sweep.ablation", BASELINE, "sweep.ablation.arms", SEEDS)
def ablation(sweep: Sweep) -> Findings:
    """An ablation has a baseline among its arms, arms that can name directories, and each seed
    once.
    """
    arms, baseline, seeds = sweep.ablation.arms, sweep.ablation.baseline, sweep.ablation.seeds
    if arms and baseline is None:
        yield BASELINE, "which arm is the baseline?", f"{BASELINE}={next(iter(arms))}"
    elif baseline is not None and baseline not in arms:
        meant = did_you_mean([f"{BASELINE}={arm}" for arm in closest(baseline, arms)])
        hint = (
            meant or f"one of {', '.join(arms)}" if arms else f"sweep.ablation.arms.{baseline}=[]"
        )
        yield BASELINE, f"there is no arm '{baseline}'.", hint
    elif seeds and not arms:
        hint = f"{SEEDS}=[] -m seed={','.join(map(str, seeds))}"
        yield SEEDS, "there are no arms to run with these seeds.", hint
    for arm in arms:
        if not NAME.fullmatch(arm) or len(arm) > LONGEST_ARM:
            message = f"directories are named after arm '{arm}': letters, digits and . _ + -,"
            yield "sweep.ablation.arms", f"{message} at most {LONGEST_ARM}.", "another name"
    once = list(dict.fromkeys(seeds))
    if len(once) < len(seeds):
        yield SEEDS, "a seed is there twice.", f"{SEEDS}={shown(once)}"
