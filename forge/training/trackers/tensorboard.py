"""Metrics as TensorBoard event files."""

from __future__ import annotations

from pathlib import Path


class TensorBoard:
    """One scalar a metric, in fp32 as the format has it; for `tensorboard --logdir DIRECTORY`.

    What earlier starts of the run logged after step `resumed_at` is hidden from readers. Each log
    is flushed, so that a killed process leaves all rows up to its last checkpoint.
    """

    def __init__(self, directory: Path, *, resumed_at: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory), purge_step=resumed_at + 1)

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
