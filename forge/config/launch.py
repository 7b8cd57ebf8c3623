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
    max_restarts: int = opt(
        0,
        "how many times a job is queued again after a rank has died, without that rank's node",
        ge=0,
    )
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


@section
class Manifest(Launch):
    """Base of launchers that write a file a job, and have a command submit it."""

    nodes: int | None = opt(None, "machines; null = as many as the ranks need", gt=0)
    gpus_per_node: int | None = opt(
        None, "GPUs of a machine; null = one a rank, 0 = ranks on CPUs", ge=0
    )
    tasks_per_node: int | None = opt(None, "ranks on a machine; null = one a GPU", gt=0)
    cpus: str | None = opt(None, "CPU cores of a machine, like 16; null = the default")
    memory: str | None = opt(None, "memory of a machine; null = the default")
    env: dict[str, str] = opt({}, "variables of the environment of the ranks, by name")
    mounts: dict[str, str] = opt(
        {},
        "claims of Kubernetes, volumes or buckets of SkyPilot, by their path in the job; run.dir "
        "lies in a claim or volume",
    )
    setup: list[str] = opt([], "shell before the run; a failure ends the job")
    python: str = opt("python", "command of Python in the job")
    port: int = opt(29500, "port of rank 0", gt=0, lt=65536)
    max_restarts: int = opt(3, "how many times a failed job is started again", ge=0)
    dry_run: bool = opt(False, "print the files and submit nothing")


@section
class Kubernetes(Manifest):
    """A JobSet of Kubernetes (jobset.sigs.k8s.io): one indexed job, a pod a machine."""

    schema_name = "kubernetes"
    image: str = opt("", "container image with forge in it")
    namespace: str | None = opt(None, "namespace; null = that of kubectl")
    queue: str | None = opt(None, "queue of Kueue that admits the job; null = none")
    gpu_resource: str = opt("nvidia.com/gpu", "name of the resource that GPUs are")
    node_selector: dict[str, str] = opt({}, "labels that machines must have")
    priority_class: str | None = opt(None, "priority class of the pods; null = the default")
    service_account: str | None = opt(None, "service account of the pods; null = the default")
    shared_memory: str = opt("16Gi", "size of /dev/shm")
    grace_seconds: int = opt(120, "seconds for a run that is told to stop to save", gt=0)


@section
class SkyPilot(Manifest):
    """Managed jobs of SkyPilot, which finds machines in clouds, and others for lost ones."""

    schema_name = "skypilot"
    accelerator: str | None = opt(None, "type of the GPUs, by sky show-gpus, like H100")
    infra: str | None = opt(None, "cloud, region and zone, like aws/us-east-1; null = the cheapest")
    image: str | None = opt(None, "image of the machine, like docker:me/forge; null = the default")
    workdir: str | None = opt(None, "folder that is copied to the machines; null = none")
    use_spot: bool = opt(False, "take machines that may be taken away again")
    disk_size: int = opt(256, "GB of the disk of a machine", gt=0)
