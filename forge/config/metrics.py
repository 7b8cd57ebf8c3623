"""The `metrics` group: logged values and their destinations."""

from __future__ import annotations

from forge.config.field import Section, opt, section
from forge.config.parallel import SEVERAL_RANKS


@section
class Metrics(Section):
    """Every run writes metrics.jsonl and performance.jsonl; the console, TensorBoard and W&B are
    switches.
    """

    all_free = True

    log_interval: int = opt(10, "log every N steps", gt=0)
    norms_by_role: bool = opt(
        False, "log norms of weights, gradients and updates of embeddings, matrices, norms, ..."
    )
    internals: int = opt(
        0,
        "log statistics of activations, gradients and weights by layer every N steps, and name the "
        "first layer with a NaN; 0 = off",
        ge=0,
    )
    monitor_step_time_deviation: bool = opt(
        True, "name a rank that the others wait for", acts_when=SEVERAL_RANKS
    )
    step_deviation_interval_seconds: int = opt(
        30, "compare the ranks every N seconds", gt=0, acts_when=SEVERAL_RANKS
    )
    enable_console: bool = opt(True, "progress bar and log lines on the terminal")
    enable_tensorboard: bool = opt(False, "write TensorBoard event files")
    tensorboard_dir: str = opt(
        "tb_logs", "directory of the event files, inside the run directory", folder=True
    )
    enable_wandb: bool = opt(False, "log to Weights & Biases")
    wandb_mode: str = opt(
        "online",
        "offline: `wandb sync` uploads later; WANDB_MODE goes before online",
        choices=("online", "offline"),
    )
    wandb_project: str = opt("forge", "W&B project")
    wandb_run_name: str | None = opt(None, "W&B run name; null = the name of the run directory")
    wandb_entity: str | None = opt(None, "W&B team or user; null = the default one of the login")
    wandb_group: str | None = opt(None, "W&B group, to show runs together; null = none")
    wandb_notes: str | None = opt(None, "W&B notes on the run")
    wandb_run_id: str = opt("", "W&B run id to continue; empty = the id of this run")
    peak_tflops: float = opt(0.0, "peak TFLOP/s of the device, for MFU; 0 = from its name", ge=0)
