"""The `checkpoint` group: content and times of saves, and the start of a run."""

from __future__ import annotations

from forge.config.field import Condition, Section, opt, section

LOADED = Condition(
    lambda config, ranks: bool(config.checkpoint.init_from or config.checkpoint.resume_from),
    "without checkpoint.init_from",
)
LOCAL = Condition(
    lambda config, ranks: config.checkpoint.local_interval > 0, "with checkpoint.local_interval=0"
)
INITIAL = Condition(
    lambda config, ranks: bool(config.checkpoint.init_from), "without checkpoint.init_from"
)
REPLICATED = Condition(
    lambda config, ranks: config.parallel.dp_replicate > 1, "with parallel.dp_replicate=1"
)


@section
class Checkpoint(Section):
    """Checkpoints by torch.distributed.checkpoint, complete or absent."""

    enabled: bool = opt(
        True, "save checkpoints; false = none, and the run cannot be resumed", free=True
    )
    dir: str = opt(
        "checkpoints", "directory of the checkpoints, inside the run directory", folder=True
    )
    interval: int = opt(
        1000, "save every N steps, and at the end; 0 = only at the end", ge=0, free=True
    )
    steps: list[int] = opt([], "save after these steps too", gt=0, free=True)
    per_decade: int = opt(
        0,
        "save at this many steps of each power of ten too, evenly in log(step)",
        ge=0,
        free=True,
    )
    last: str = opt(
        "full",
        "content of the last checkpoint; a run can be resumed from full alone",
        choices=("full", "weights", "none"),
        free=True,
    )
    interval_minutes: float = opt(0.0, "save every M minutes too; 0 = off", ge=0, free=True)
    async_mode: str = opt(
        "disabled",
        "write while training continues; pinned staging needs a GPU",
        choices=("disabled", "async", "async_with_pinned_mem"),
        free=True,
    )
    continuous: bool = opt(
        False, "save again once the last save is written; with async_mode", free=True
    )
    local_dir: str | None = opt(
        None,
        "folder on each node's own disk or in its memory, as /dev/shm/forge; %n in it = the number "
        "of the node, %N = its name, as in Slurm",
        free=True,
        path=True,
        acts_when=LOCAL,
    )
    local_interval: int = opt(
        0, "save to the nodes' own disks every N steps, beside `interval`; 0 = off", ge=0, free=True
    )
    local_partner: bool = opt(
        True,
        "the next node has a copy of a node's part, and a lost node's part comes from there",
        free=True,
        acts_when=LOCAL,
    )
    local_ranks: int | None = opt(
        None,
        "ranks that share a disk; null = those with the same host name",
        gt=0,
        free=True,
        acts_when=LOCAL,
    )
    remote: str | None = opt(
        None,
        "copy each complete checkpoint and the run's files to this store in the background, as "
        "s3://bucket/runs: below it by the name of the run directory",
        free=True,
        address=True,
    )
    keep_last_n: int = opt(3, "keep the newest N; 0 = all", ge=0, free=True)
    keep_best: int = opt(0, "keep the N best by eval.metric too; 0 = off", ge=0, free=True)
    resume_from: str | None = opt(
        None,
        "resume from this step, or from this checkpoint or run, also s3://...",
        free=True,
        path=True,
        address=True,
    )
    branch_of: str | None = opt(
        None,
        "begin with the whole state of this run at the step where scheduler=wsd begins to decay, "
        "as if it had had this schedule from the start",
        path=True,
    )
    init_from: str | None = opt(
        None,
        "begin with the weights of this checkpoint, run, .safetensors file or Hugging Face folder, "
        "also s3://...",
        path=True,
        address=True,
    )
    init_optimizer: bool = opt(
        False,
        "load the optimizer state of init_from too; step, schedule and data begin again",
        acts_when=INITIAL,
    )
    exclude_from_loading: list[str] = opt(
        [],
        "prefixes of parameters that are not loaded by init_from and resume_from",
        acts_when=LOADED,
    )
    read_by_one_replica: bool = opt(
        False,
        "one replica of parallel.dp_replicate reads a checkpoint of forge, and sends it to the "
        "others: the files are read once",
        acts_when=REPLICATED,
        free=True,
    )
    export_at_end: bool = opt(
        False,
        "write the last checkpoint as a Hugging Face folder too, RUN/export, once all steps are "
        "done",
        free=True,
    )
    export_dtype: str = opt(
        "auto",
        "number format of exported weights; auto = that of training",
        choices=("auto", "float32", "bfloat16", "float16"),
        free=True,
    )
