"""The table of the rules on how runs are started, and on the declaration of a sweep."""

from __future__ import annotations

from rule_cases import Case

ONE_NAME = "it names one directory: letters, digits and . _ + -, at most 200 bytes."
ARMS = "\"sweep.ablation.arms={a: [], b: ['seed=1']}\""
SUCH_AS = "sweep.name=my_sweep; the directory above it is sweep.root"

LAUNCH_CASES = [
    Case(
        "launch.allocation",
        "launch=slurm launch.nodes=2 launch.tasks_per_node=2 parallel.dp_shard=2",
        "the mesh has 2 ranks, and the job 2 machines x 2 ranks = 4.",
        "launch.nodes=1, or leave it out; or parallel degrees whose product is 4",
        "launch=slurm launch.nodes=2 launch.tasks_per_node=1 parallel.dp_shard=2",
    ),
    Case(
        "launch.allocation",
        "launch=slurm launch.tasks_per_node=4 parallel.dp_shard=6 train.global_batch_size=12",
        "6 ranks do not fill machines of 4 ranks: 6 = 1 x 4 + 2.",
        "launch.tasks_per_node=3, which takes 2 machines; or parallel degrees whose product is a multiple of 4",
        "launch=slurm launch.tasks_per_node=3 parallel.dp_shard=6 train.global_batch_size=12",
    ),
    Case(
        "launch.node_size",
        "launch=slurm run.device=cuda parallel.dp_shard=16 train.global_batch_size=32",
        "over how many nodes 16 ranks go is not said.",
        "launch.gpus_per_node=8, or as many as a node has",
        "launch=slurm run.device=cuda parallel.dp_shard=16 train.global_batch_size=32 launch.gpus_per_node=8",
    ),
    Case(
        "launch.unused_gpus",
        "launch=slurm launch.gpus_per_node=1",
        "the ranks are on CPUs, and the job takes 1 GPUs of each node all the same.",
        "launch.gpus_per_node=0, or run.device=cuda",
        "launch=slurm",
    ),
    Case(
        "launch.slurm",
        "launch=slurm launch.time=2",
        "a job of launch.time=2 minutes has 120 s, so the signal would come before it begins.",
        "launch.signal_before=60 or launch.time=3",
        "launch=slurm launch.time=2 launch.signal_before=60",
    ),
    Case(
        "launch.slurm",
        "launch=slurm launch.sbatch.output=x",
        "forge sets this key of sbatch itself.",
        "leave it out: it is the log of each rank",
        "launch=slurm launch.sbatch.mail-type=FAIL",
    ),
    Case(
        "launch.devices_per_job",
        "launch.devices_per_job=1",
        "on a CPU no devices are shared out.",
        "launch.devices_per_job=null",
        "launch.jobs=2",
    ),
    Case(
        "launch.inline",
        "launch=slurm run.inline=true",
        "a job does not run in this process.",
        "run.inline=false, or launch=local",
        "run.inline=true",
    ),
    Case("sweep.name", "sweep.name=a/b", ONE_NAME, SUCH_AS, "sweep.name=a_b"),
    Case("sweep.name", "sweep.name=..", ONE_NAME, SUCH_AS, "sweep.name=a..b"),
    Case("sweep.name", "'sweep.name=\"a b\"'", ONE_NAME, SUCH_AS, "sweep.name=1.5"),
    Case("sweep.name", f"sweep.name={'x' * 201}", ONE_NAME, SUCH_AS, f"sweep.name={'x' * 200}"),
    Case(
        "sweep.ablation",
        ARMS,
        "which arm is the baseline?",
        "sweep.ablation.baseline=a",
        f"{ARMS} sweep.ablation.baseline=a",
    ),
    Case(
        "sweep.ablation",
        f"{ARMS} sweep.ablation.baseline=c",
        "there is no arm 'c'.",
        "sweep.ablation.baseline=a or sweep.ablation.baseline=b",
        f"{ARMS} sweep.ablation.baseline=b",
    ),
    Case(
        "sweep.ablation",
        "sweep.ablation.baseline=c",
        "there is no arm 'c'.",
        "sweep.ablation.arms.c=[], and others",
        "sweep.ablation.baseline=null",
    ),
    Case(
        "sweep.ablation",
        "sweep.ablation.seeds=[1,2]",
        "there are no arms to run with these seeds.",
        "sweep.ablation.seeds=[] -m seed=1,2",
        "sweep.ablation.seeds=[1,2] sweep.ablation.arms={a:[]} sweep.ablation.baseline=a",
    ),
    Case(
        "sweep.ablation",
        "sweep.ablation.seeds=[1,2,1] sweep.ablation.arms={a:[]} sweep.ablation.baseline=a",
        "seed 1 is there twice.",
        "sweep.ablation.seeds=[1,2]",
        "sweep.ablation.seeds=[1,2] sweep.ablation.arms={a:[]} sweep.ablation.baseline=a",
    ),
    Case(
        "sweep.ablation",
        "sweep.ablation.arms={a/b:[]} sweep.ablation.baseline=a/b",
        "the name of an arm is part of directories' names: letters, digits and . _ + -, at most 50.",
        "another name",
        "sweep.ablation.arms={a+b:[]} sweep.ablation.baseline=a+b",
    ),
    Case(
        "sweeper.wait",
        "sweeper=optuna launch=slurm",
        "sweeper=optuna needs the objective of a trial to choose the next.",
        "launch.wait=true",
        "sweeper=optuna",
    ),
]
