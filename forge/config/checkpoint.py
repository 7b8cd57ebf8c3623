"""The `checkpoint` group: what is saved and when, and what a run starts from."""

from __future__ import annotations

from dataclasses import dataclass

from forge.config.field import Condition, Section, opt

LOADED = Condition(
    lambda config, ranks: bool(config.checkpoint.init_from or config.checkpoint.resume_from),
    "without checkpoint.init_from",
)


@dataclass(kw_only=True)
class Checkpoint(Section):
    """Checkpoints by torch.distributed.checkpoint, complete or absent."""

    enabled: bool = opt(
        True, "save; false = never, and then a run that has ended cannot go on", free=True
    )
    dir: str = opt("checkpoints", "directory of the checkpoints, relative to the run directory")
    interval: int = opt(
        1000, "save every N steps, and at the end; 0 = only at the end", ge=0, free=True
    )
    last: str = opt(
        "full",
        "what the save at the end holds; with weights a run cannot go on from there; one that a signal stops saves all",
        choices=("full", "weights", "none"),
        free=True,
    )
    interval_minutes: float = opt(0.0, "save every M minutes too; 0 = off", ge=0, free=True)
    async_mode: str = opt(
        "disabled",
        "write while training goes on; pinned staging needs a GPU",
        choices=("disabled", "async", "async_with_pinned_mem"),
        free=True,
    )
    keep_last_n: int = opt(3, "keep the newest N; 0 = all", ge=0, free=True)
    keep_best: int = opt(
        0,
        "keep the N best by eval.metric too, each saved when it is found; 0 = off",
        ge=0,
        free=True,
    )
    resume_from: str | None = opt(
        None,
        "go on from this step of the run, or from this checkpoint or run elsewhere",
        free=True,
        path=True,
    )
    init_from: str | None = opt(
        None, "begin with the weights alone of this checkpoint, run or .safetensors file", path=True
    )
    exclude_from_loading: list[str] = opt(
        [],
        "parameter name prefixes that keep their initial values in init_from and resume_from",
        acts_when=LOADED,
    )
    export_dtype: str = opt(
        "bfloat16",
        "number format of the weights that forge.export writes",
        choices=("float32", "bfloat16"),
        free=True,
    )
