"""The `run` group: directory and device of the run."""

from __future__ import annotations

from forge.config.field import Condition, Section, opt, section

OWN_RANKS = Condition(
    lambda config, ranks: config.launch.schema_name == "local" and not config.run.inline,
    "where another launcher restarts ranks (launch.max_restarts), or with run.inline=true",
)


ELASTIC = Condition(
    lambda config, ranks: config.launch.schema_name in ("local", "slurm") and not config.run.inline,
    "under this launcher, which has a fixed number of ranks, or with run.inline=true",
)


def elastic_bounds(text: str | None) -> tuple[int, int]:
    """The least and the most ranks of run.elastic. Raises ValueError."""
    least, colon, most = (text or "").partition(":")
    if not (colon and least.isdecimal() and most.isdecimal()):
        raise ValueError("two numbers of ranks, as 2:8")
    return int(least), int(most)


def least_ranks(run: Run) -> int:
    """The ranks that a start needs, by run.elastic; 0 = all."""
    return elastic_bounds(run.elastic)[0] if run.elastic else 0


@section
class Run(Section):
    """Directory, device, threads and determinism of one run."""

    all_free = True

    dir: str | None = opt(
        None,
        "directory of the run, resumed if it exists; null = a new one in run.root",
        folder=True,
    )
    root: str = opt("runs", "where new run directories are made", folder=True)
    name: str | None = opt(None, "name in the directory's name; null = the model's preset")
    device: str = opt(
        "auto",
        "auto = cuda where torch has a GPU, else cpu; mps = the GPU of Apple silicon, in fp32",
        choices=("auto", "cpu", "cuda", "mps"),
    )
    num_processes: int | None = opt(
        None, "ranks on this machine; null = by the launcher, layout and devices", gt=0
    )
    num_threads: int = opt(
        0, "CPU threads a rank; 0 = torch's choice, or a share of the cores", ge=0
    )
    deterministic: bool = opt(False, "deterministic kernels only; slower on a GPU")
    detect_anomaly: bool = opt(False, "find the operation whose backward makes a NaN; slow")
    inline: bool = opt(False, "run the one rank in this process, for breakpoint() and notebooks")
    max_restarts: int = opt(
        0,
        "starts from the newest checkpoint after a rank has died or failed, by this launcher",
        ge=0,
        acts_when=OWN_RANKS,
    )
    elastic: str | None = opt(
        None,
        "least and most ranks of a restart, as 2:8: killed ranks are left out, at the same batch",
        verbatim=True,
        acts_when=ELASTIC,
    )
    elastic_retry_minutes: float = opt(
        10.0,
        "minutes on fewer ranks until the run saves and all ranks are tried again",
        gt=0,
        acts_when=Condition(lambda config, ranks: bool(config.run.elastic), "without run.elastic"),
    )
    stack_trace_interval_seconds: float = opt(
        0.0,
        "write the stacks of every rank into RUN/stacks so often; 0 = only when a rank hangs",
        ge=0,
    )
    on_end: str | None = opt(
        None,
        "shell command at the end of the run, with FORGE_RUN_DIR, FORGE_STATUS, FORGE_REASON, "
        "FORGE_STEP and FORGE_EXIT_CODE",
        verbatim=True,
    )
    objective: str | None = opt(
        None, "metric reported as the objective; null = that of eval, else train/loss"
    )
    allow_change: list[str] = opt([], "keys that may change on resume, like optimizer.lr or model")
    record_diff: bool = opt(True, "keep uncommitted changes in git.diff, with secrets masked")
    trust: list[str] = opt([], "modules whose _target_ may be built, like mypkg.; not in files")
