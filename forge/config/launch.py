"""The `launch` group: the start of a run's ranks, and of the points of a sweep."""

from __future__ import annotations

from forge.config.field import Condition, Section, opt, section


@section
class Launch(Section):
    """Base of every launcher."""

    all_free = True


@section
class Local(Launch):
    """Processes on this machine."""

    schema_name = "local"
    jobs: int = opt(1, "points of a sweep at a time", gt=0)
    devices_per_job: int | None = opt(
        None,
        "GPUs of each point of a sweep; null = an equal share",
        gt=0,
        acts_when=Condition(lambda config, ranks: config.run.device == "cuda", "without CUDA"),
    )


@section
class Submitit(Launch):
    """Base of what submitit starts: a job a run."""

    wait: bool = opt(False, "wait for the jobs and show what fails; false = print their ids")


@section
class Slurm(Submitit):
    """Jobs of Slurm: one a run, an array for the points of a sweep that need the same nodes."""

    schema_name = "slurm"
    partition: str | None = opt(None, "queue; null = the cluster's default")
    account: str | None = opt(None, "account that the job is charged to")
    qos: str | None = opt(None, "quality of service")
    constraint: str | None = opt(None, "features that nodes must have, like h200")
    time: int = opt(60, "limit of a job in minutes", gt=0, time=True)
    signal_before: int = opt(120, "seconds before the limit at which a run saves and stops", ge=0)
    max_requeues: int = opt(5, "how many times a stopped job is queued again", ge=0)
    nodes: int | None = opt(None, "machines; null = as many as the ranks need", gt=0)
    gpus_per_node: int | None = opt(
        None, "GPUs of a machine; null = one a rank, 0 = ranks on CPUs", ge=0
    )
    gpu_type: str | None = opt(None, "type of the GPUs, by sinfo -o %G, like h200; null = any")
    tasks_per_node: int | None = opt(None, "ranks on a machine; null = one a GPU", gt=0)
    cpus_per_task: int | None = opt(None, "CPU cores a rank; null = the default", gt=0)
    mem: str | None = opt(None, "memory of a machine, like 64G; 0 = all; null = the default")
    exclusive: bool = opt(False, "share the machines with no other job")
    sbatch: dict[str, str] = opt(
        {}, "any other key of sbatch, like {mail-type: FAIL}; true for a flag"
    )
    setup: list[str] = opt(
        [], "shell before the run, like 'module load cuda'; a failure ends the job"
    )
    srun_args: list[str] = opt([], "further arguments of the srun that starts the ranks")
    array_parallelism: int | None = opt(None, "points of an array at a time; null = no limit", gt=0)
    dry_run: bool = opt(False, "print the scripts and submit nothing")


@section
class SubmititLocal(Submitit):
    """submitit's processes on this machine in place of a cluster; for tests."""

    schema_name = "submitit_local"
