"""The `run` group: where the run lives and what it runs on."""

from __future__ import annotations

from dataclasses import dataclass

from forge.config.field import Section, opt


@dataclass(kw_only=True)
class Run(Section):
    """Directory, device, threads and determinism of one run."""

    all_free = True

    dir: str | None = opt(
        None,
        "directory of the run, which goes on where there is one; null = a fresh dated one under run.root",
    )
    root: str = opt("runs", "where fresh run directories are made")
    name: str | None = opt(
        None, "readable part of a fresh directory's name; null = the model's preset"
    )
    device: str = opt(
        "auto",
        "auto = cuda where there is a GPU and a CUDA build of torch, else cpu",
        choices=("auto", "cpu", "cuda"),
    )
    num_processes: int | None = opt(
        None,
        "ranks on this machine; null = worked out from the launcher, the layout and the devices",
        gt=0,
    )
    num_threads: int = opt(
        0,
        "CPU threads a rank; 0 = torch's own choice, or a share of the cores where several processes are started here",
        ge=0,
    )
    deterministic: bool = opt(
        False, "only deterministic kernels; slower on a GPU, no effect on the numbers of a CPU"
    )
    detect_anomaly: bool = opt(False, "name the operation whose backward makes a NaN; slow")
    inline: bool = opt(False, "run the one rank in this process, for breakpoint() and notebooks")
    objective: str | None = opt(
        None,
        "metric that result.json reports as the objective; null = eval/ and eval.metric, else train/loss",
    )
    allow_change: list[str] = opt(
        [], "keys and sections that may differ when a run goes on, like optimizer.lr or model"
    )
    record_diff: bool = opt(
        True,
        "keep what differs from the last commit in git.diff; what looks like a key or a password is masked",
    )
    trust: list[str] = opt(
        [],
        "prefixes of further _target_ modules to build, like mypkg.; on the command line or in code only",
    )
