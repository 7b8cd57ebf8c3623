"""Metrics as TensorBoard event files."""

from __future__ import annotations

from pathlib import Path

FLUSH_SECONDS = 10


class TensorBoard:
    """One scalar a metric, in fp32 as the format has it; for `tensorboard --logdir DIRECTORY`."""

    def __init__(self, directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory), flush_secs=FLUSH_SECONDS)

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
