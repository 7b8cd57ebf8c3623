"""The `checkpoint` group: what is saved and when."""

from __future__ import annotations

from dataclasses import dataclass

from forge.config.field import Section, opt


@dataclass(kw_only=True)
class Checkpoint(Section):
    """Checkpoints by torch.distributed.checkpoint, complete or absent."""

    dir: str = opt("checkpoints", "directory of the checkpoints, relative to the run directory")
    interval: int = opt(1000, "save every N steps, and at the end", gt=0)
    async_mode: str = opt(
        "disabled", "write while training goes on; pinned staging needs a GPU", choices=("disabled", "async", "async_with_pinned_mem")
    )
    keep_last_n: int = opt(3, "keep the newest N; 0 = all", ge=0)
    load_path: str | None = opt(None, "start from this checkpoint (a step_N directory, or a run directory)")
    export_dtype: str = opt("bfloat16", "number format of the weights that forge.export writes", choices=("float32", "bfloat16"))
    exclude_from_loading: list[str] = opt([], "parameter name prefixes that load_path does not overwrite")
