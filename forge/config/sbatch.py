"""Keys of sbatch under launch.sbatch: which are forge's own, and what can be wrong with others
where no Slurm is asked.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator

from forge.config.launch import Slurm
from forge.config.problems import Problem

CPUS = "launch.cpus_per_task, since each rank has one GPU"
GPUS = "launch.gpus_per_node, with launch.gpu_type for their type"
LOG = "the log of each rank, next to the scripts"
RANKS = "the parallel degrees"
OURS = {
    "account": "launch.account",
    "array": "a sweep's points, launch.array_parallelism at a time",
    "constraint": "launch.constraint",
    "cpus_per_gpu": CPUS,
    "cpus_per_task": "launch.cpus_per_task",
    "error": LOG,
    "gpus": GPUS,
    "gpus_per_node": GPUS,
    "gpus_per_socket": GPUS,
    "gpus_per_task": GPUS,
    "job_name": "run.name, or sweep.name",
    "mem": "launch.mem",
    "no_requeue": "launch.max_requeues",
    "nodes": "launch.nodes",
    "ntasks": RANKS,
    "ntasks_per_gpu": "one, since each rank has one GPU",
    "ntasks_per_node": "launch.tasks_per_node",
    "open_mode": "append, for a job that is queued again",
    "output": LOG,
    "partition": "launch.partition",
    "qos": "launch.qos",
    "requeue": "launch.max_requeues",
    "signal": "launch.signal_before",
    "time": "launch.time, in minutes",
}
"""Keys of sbatch that have another source, which a word under launch.sbatch would contradict."""

PRINTS = "sbatch would print that, and submit nothing."
SAYS_NO_ID = "sbatch would not say the job's id as forge reads it."
SPOILING = {
    "clusters": (
        "squeue and scancel would look for the job in this cluster.",
        "export SLURM_CLUSTERS, which all of them read",
    ),
    "help": (PRINTS, "leave it out"),
    "parsable": (SAYS_NO_ID, "leave it out"),
    "quiet": (SAYS_NO_ID, "leave it out"),
    "test_only": (
        "sbatch would submit nothing.",
        "launch.dry_run=true, which shows what sbatch --test-only says",
    ),
    "usage": (PRINTS, "leave it out"),
    "version": (PRINTS, "leave it out"),
    "wait": ("sbatch would not return before the job's end.", "launch.wait=true"),
    "wrap": ("the command of the script is forge's.", "launch.setup, for lines of shell before it"),
}
"""Keys of sbatch with which forge could not submit the job, or follow it: why, and what to do
instead.
"""

FLAGS = "consolidate-segments contiguous hold ignore-pbs overcommit oversubscribe reboot spread-job spread-segments stepmgr use-min-nodes"
# a value, or none
OPTIONAL = "exclusive get-user-env nice no-kill oom-kill-step propagate resv-ports verbose"
VALUED = """
acctg-freq batch bb bbf begin chdir cluster-constraint comment container container-id core-spec cores-per-socket cpu-freq deadline
delay-boot dependency distribution exclude export export-file extra extra-node-info gid gpu-bind gpu-freq gres gres-flags hint input
kill-on-invalid-dep licenses mail-type mail-user mcs-label mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile nodelist
ntasks-per-core ntasks-per-socket power prefer priority profile reservation segment sockets-per-node switches thread-spec
threads-per-core time-min tmp tres-bind tres-per-task uid wait-all-nodes wckey
"""
FLAG_NAMES, VALUED_NAMES = (set(text.replace("-", "_").split()) for text in (FLAGS, VALUED))
KNOWN = {*OURS, *SPOILING, *FLAG_NAMES, *OPTIONAL.replace("-", "_").split(), *VALUED_NAMES}
"""Long options of sbatch, from 22.05 to 25.05. A plugin of a cluster (SPANK) may have others."""

LETTERS = """
a:array A:account b:begin B:extra_node_info c:cpus_per_task C:constraint d:dependency D:chdir e:error F:nodefile G:gpus H:hold i:input
J:job_name k:no_kill L:licenses m:distribution M:clusters n:ntasks N:nodes o:output O:overcommit p:partition q:qos Q:quiet
s:oversubscribe S:core_spec t:time v:verbose w:nodelist W:wait x:exclude
"""
LONG = {pair[0]: pair[2:] for pair in LETTERS.split()}
NEAR = 0.85  # as difflib measures it; container-env of a plugin is 0.8 from container-id
KEY = re.compile(r"[A-Za-z][\w-]*", re.ASCII)
EXCLUSIVE_TO = {"user", "mcs", "topo"}
MEMORY_IS = (
    "memory is a whole number with K, M, G or T behind it; without a letter it is in megabytes."
)
MEMORY = re.compile(r"\d+([KMGT]B?)?", re.ASCII | re.IGNORECASE)
GPU = re.compile(r"(?:^|[,/])gpu(?:[:=](?P<type>[A-Za-z][^:=,]*))?(?:[:=](?P<count>\d+))?(?=,|$)")
TYPE = re.compile(r"[\w.+-]+", re.ASCII)


def given(section: Slurm) -> dict[str, str | bool]:
    """What launch.sbatch adds to a script: names with underscores, True for a key without a value."""
    return {
        _name(key): True if value == "" or _is_flag(key, value) else value
        for key, value in section.sbatch.items()
    }


def key_faults(section: Slurm) -> Iterator[Problem]:
    """What is wrong with each key of launch.sbatch."""
    count = Counter(map(_name, section.sbatch))
    for key, value in section.sbatch.items():
        said = f"launch.sbatch.{key}={value}"
        fault = (
            ("the same key is there twice, with - and with _.", "leave one out")
            if count[_name(key)] > 1
            else _fault(section, key, value)
        )
        if fault is not None:
            yield Problem(key=said, what=fault[0], fix=fault[1])


def value_faults(section: Slurm) -> Iterator[Problem]:
    """What is wrong with the options of forge that are handed on to sbatch as they are."""
    if section.mem is not None and not MEMORY.fullmatch(section.mem):
        yield Problem(
            key=f"launch.mem={section.mem}",
            what=MEMORY_IS,
            fix="launch.mem=64G, or 0 for all of a machine",
        )
    if section.constraint is not None and re.search(r"\s", section.constraint):
        words = re.sub(
            r"\s+",
            "&",
            re.sub(r"\s*([&|,])\s*|(?<=[(\[])\s+|\s+(?=[)\]*])", r"\1", section.constraint.strip()),
        )
        what = (
            "Slurm takes no spaces between features: a&b is a node with both, a|b one with either."
        )
        yield Problem(
            key=f"launch.constraint={section.constraint}",
            what=what,
            fix=f"'launch.constraint=\"{words}\"'",
        )
    for name in ("partition", "account", "qos"):
        text = getattr(section, name)
        if text is not None and (not text or re.search(r"\s", text)):
            what = "that is no name: it is empty, or has spaces."
            yield Problem(
                key=f"launch.{name}={text}",
                what=what,
                fix=f"launch.{name}=null for the cluster's default",
            )
    if section.gpu_type is not None and not TYPE.fullmatch(section.gpu_type):
        what = "a type is one word; how many GPUs there are is said apart."
        yield Problem(
            key=f"launch.gpu_type={section.gpu_type}",
            what=what,
            fix="launch.gpu_type=h200 launch.gpus_per_node=8",
        )
    elif section.gpu_type is not None and section.gpus_per_node == 0:
        what = "the job takes no GPUs: launch.gpus_per_node=0."
        yield Problem(
            key=f"launch.gpu_type={section.gpu_type}", what=what, fix="launch.gpu_type=null"
        )


def _fault(section: Slurm, key: str, value: str) -> tuple[str, str] | None:
    """Why a key cannot be given to sbatch, or not with this value, and what to do instead."""
    name = _name(key)
    if not KEY.fullmatch(name):
        return (
            "that is no option of sbatch.",
            "launch.sbatch.mail-type=FAIL, such as sbatch --help lists them",
        )
    if name in SPOILING:
        return SPOILING[name]
    if name in OURS:
        return "forge sets this key of sbatch itself.", f"leave it out: it is {OURS[name]}"
    if "\n" in value:
        return "a value is on one line.", "one without a line break"
    if name not in KNOWN:
        return _unknown(name)
    return _of_flag(name, value) or _contradiction(section, name, value)


def _unknown(name: str) -> tuple[str, str] | None:
    """One letter, the beginning of an option, or nearly one; of anything else a plugin may know."""
    near = (
        [LONG[name]] if name in LONG else sorted(known for known in KNOWN if known.startswith(name))
    )
    near = near or difflib.get_close_matches(name, sorted(KNOWN), n=1, cutoff=NEAR)
    if not near:
        return None
    fixes = [_to_type(one) for one in near[:3]]
    return (
        f"sbatch has no option --{name.replace('_', '-')}.",
        f"did you mean {' or '.join(dict.fromkeys(fixes))}?",
    )


def _to_type(name: str) -> str:
    """Where an option of sbatch is set."""
    own = OURS.get(name, "").partition(",")[0]
    return own if own.startswith(("launch.", "run.")) else f"launch.sbatch.{name.replace('_', '-')}"


def _of_flag(name: str, value: str) -> tuple[str, str] | None:
    shown = name.replace("_", "-")
    if name in FLAG_NAMES and value and not _is_flag(name, value):
        return (
            f"--{shown} is a flag and has no value.",
            f"launch.sbatch.{shown}=true, or leave it out",
        )
    if name in VALUED_NAMES and not value:
        return f"--{shown} needs a value.", f"launch.sbatch.{shown}=<value>, or leave it out"
    return None


def _contradiction(section: Slurm, name: str, value: str) -> tuple[str, str] | None:
    """A key that says what an option of forge says, or another key."""
    memory = [f"launch.mem={section.mem}"] * (section.mem is not None)
    memory += [
        f"launch.sbatch.{key}"
        for key in section.sbatch
        if _name(key) in ("mem_per_cpu", "mem_per_gpu") and _name(key) != name
    ]
    if name in ("mem_per_cpu", "mem_per_gpu"):
        if memory:
            return (
                f"sbatch takes one way to say how much memory, and {memory[0]} is another.",
                "leave one of them out",
            )
        if not MEMORY.fullmatch(value):
            return MEMORY_IS, f"launch.sbatch.{name.replace('_', '-')}=4G"
    if name in ("gres", "tres_per_task") and GPU.search(value):
        return "it asks for GPUs, which forge does itself.", _without_gpus(
            value
        ) if name == "gres" else "leave it out: each rank has one GPU"
    if name == "exclusive" and (section.exclusive or value.lower() not in EXCLUSIVE_TO):
        return "forge sets this key of sbatch itself.", "leave it out: it is launch.exclusive=true"
    if name == "oversubscribe" and section.exclusive:
        return (
            "launch.exclusive=true shares the machines with no other job.",
            "leave one of them out",
        )
    return None


def _without_gpus(gres: str) -> str:
    """The options that say the same: 'nvme:1,gpu:h200:8' is so many GPUs, of this type, and the
    rest.
    """
    found = GPU.search(gres)
    assert found is not None
    said = [
        f"launch.gpus_per_node={found['count'] or 1}",
        *([f"launch.gpu_type={found['type']}"] if found["type"] else []),
    ]
    rest = ",".join(part for part in gres.split(",") if not GPU.search(part))
    return " ".join([*said, *([f"'launch.sbatch.gres=\"{rest}\"'"] if rest else [])])


def _is_flag(key: str, value: str) -> bool:
    return _name(key) in FLAG_NAMES and value.lower() in ("", "true")


def _name(key: str) -> str:
    return key.lstrip("-").replace("-", "_")
