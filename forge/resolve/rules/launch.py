"""Rules on how ranks are started, and on the declaration of a sweep."""

from __future__ import annotations

import re
from collections.abc import Iterator

from forge.config.launch import Local, Slurm, Submitit
from forge.config.problems import Problem, closest, shown
from forge.config.root import Config
from forge.config.sweeper import Optuna
from forge.plan.allocation import allocation, faults
from forge.plan.world import CPU_BUILD, World
from forge.resolve.rule import Finding, rule

SHAPE = ("launch.nodes", "launch.tasks_per_node", "launch.gpus_per_node")
HANDED_ON = (
    "launch.sbatch",
    "launch.mem",
    "launch.constraint",
    "launch.partition",
    "launch.account",
    "launch.qos",
    "launch.gpu_type",
)
LARGEST_NODE = (
    8  # ranks on GPUs that are put on one node where nobody says how many GPUs a node has
)
NAME = re.compile(r"[\w+-][\w.+-]*")
LONGEST = 200
MOST = 3  # arms that are named


@rule("launch.allocation", reads=("run.num_processes", *SHAPE))
def ranks(config: Config, world: World) -> Iterator[Finding]:
    """The ranks fill the nodes that Slurm gives a job, one rank a GPU where there are GPUs."""
    section = config.launch
    if isinstance(section, Slurm) and world.remote and world.size > 0:
        found = allocation(section, world.size)
        if isinstance(found, Problem):
            yield found.key, found.what, found.fix


@rule("launch.node_size", reads=SHAPE)
def node_size(config: Config, world: World) -> Iterator[Finding]:
    """More than eight ranks on GPUs need to know how many GPUs a node has."""
    section = config.launch
    said = isinstance(section, Slurm) and (
        section.nodes or section.tasks_per_node or section.gpus_per_node
    )
    if (
        isinstance(section, Slurm)
        and not said
        and world.remote
        and world.device == "cuda"
        and world.size > LARGEST_NODE
    ):
        what = f"over how many nodes {world.size} ranks go is not said."
        yield "launch.gpus_per_node=null", what, "launch.gpus_per_node=8, or as many as a node has"


@rule("launch.unused_gpus", reads=("run.device", "launch.gpus_per_node"), warning=True)
def unused_gpus(config: Config, world: World) -> Iterator[Finding]:
    """A job that takes GPUs should use them."""
    section = config.launch
    if (
        isinstance(section, Slurm)
        and world.remote
        and world.device == "cpu"
        and section.gpus_per_node
    ):
        what = f"the ranks are on CPUs, and the job takes {section.gpus_per_node} GPUs of each node all the same."
        other = (
            "a CUDA build of torch, for this one is for CPUs"
            if world.devices.source == CPU_BUILD
            else "run.device=cuda"
        )
        yield (
            f"launch.gpus_per_node={section.gpus_per_node}",
            what,
            f"launch.gpus_per_node=0, or {other}",
        )


@rule("launch.slurm", reads=("launch.signal_before", "launch.time", *HANDED_ON))
def slurm(config: Config, world: World) -> Iterator[Finding]:
    """A job is told to stop after it has begun; what is handed on to sbatch can be right, and
    nothing of it is what forge sets.
    """
    for fault in faults(config.launch) if isinstance(config.launch, Slurm) else ():
        yield fault.key, fault.what, fault.fix


@rule("launch.devices_per_job", reads=("launch.devices_per_job", "run.device"), warning=True)
def devices_per_job(config: Config, world: World) -> Iterator[Finding]:
    """launch.devices_per_job has an effect on GPUs only."""
    section = config.launch
    if isinstance(section, Local) and section.devices_per_job and world.device == "cpu":
        what = "on a CPU no devices are shared out."
        yield (
            f"launch.devices_per_job={section.devices_per_job}",
            what,
            "launch.devices_per_job=null",
        )


@rule("launch.inline", reads=("run.inline",))
def inline(config: Config, world: World) -> Iterator[Finding]:
    """run.inline keeps the rank in this process, so it needs launch=local."""
    if config.run.inline and isinstance(config.launch, Submitit):
        yield (
            "run.inline=true",
            "a job does not run in this process.",
            "run.inline=false, or launch=local",
        )


@rule("sweep.name", reads=("sweep.name",))
def sweep_name(config: Config, world: World) -> Iterator[Finding]:
    """sweep.name is the name of one directory, without spaces or slashes."""
    text = config.sweep.name
    if text is not None and (not NAME.fullmatch(text) or len(text.encode()) > LONGEST):
        what = f"it names one directory: letters, digits and . _ + -, at most {LONGEST} bytes."
        yield (
            f"sweep.name={text}",
            what,
            "sweep.name=my_sweep; the directory above it is sweep.root",
        )


@rule(
    "sweep.ablation",
    reads=("sweep.ablation.baseline", "sweep.ablation.arms", "sweep.ablation.seeds"),
)
def ablation(config: Config, world: World) -> Iterator[Finding]:
    """An ablation has a baseline among its arms, arms that can name directories, and each seed
    once.
    """
    section = config.sweep.ablation
    if section.arms and section.baseline is None:
        yield (
            "sweep.ablation.baseline=null",
            "which arm is the baseline?",
            f"sweep.ablation.baseline={next(iter(section.arms))}",
        )
    elif section.baseline is not None and section.baseline not in section.arms:
        meant = [
            f"sweep.ablation.baseline={arm}"
            for arm in closest(section.baseline, section.arms) or list(section.arms)[:MOST]
        ]
        fix = " or ".join(meant) or f"sweep.ablation.arms.{section.baseline}=[], and others"
        yield (
            f"sweep.ablation.baseline={section.baseline}",
            f"there is no arm '{section.baseline}'.",
            fix,
        )
    elif section.seeds and not section.arms:
        seeds = ",".join(map(str, section.seeds))
        yield (
            f"sweep.ablation.seeds={list(section.seeds)}",
            "there are no arms to run with these seeds.",
            f"sweep.ablation.seeds=[] -m seed={seeds}",
        )
    for arm in section.arms:
        if not NAME.fullmatch(arm) or len(arm) > LONGEST // 4:
            what = f"the name of an arm is part of directories' names: letters, digits and . _ + -, at most {LONGEST // 4}."
            yield f"sweep.ablation.arms.{arm}", what, "another name"
    twice = [seed for seed in section.seeds if list(section.seeds).count(seed) > 1]
    if twice:
        yield (
            f"sweep.ablation.seeds={list(section.seeds)}",
            f"seed {twice[0]} is there twice.",
            f"sweep.ablation.seeds={shown(list(dict.fromkeys(section.seeds)))}",
        )


@rule("sweeper.wait", reads=("launch.wait",))
def wait(config: Config, world: World) -> Iterator[Finding]:
    """sweeper=optuna chooses a trial by what those before it have reached, so it waits for them."""
    if (
        isinstance(config.sweeper, Optuna)
        and isinstance(config.launch, Submitit)
        and not config.launch.wait
    ):
        yield (
            "launch.wait=false",
            "sweeper=optuna needs the objective of a trial to choose the next.",
            "launch.wait=true",
        )
