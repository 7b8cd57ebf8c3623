"""What a run has done so far; with the weights and the optimizer it is all that a checkpoint needs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(kw_only=True)
class TrainState:
    """Counters of trained-on data, in updates, sequences and target tokens, over all ranks."""

    step: int = 0
    samples: int = 0
    tokens: int = 0

    def state_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for field in dataclasses.fields(self):
            setattr(self, field.name, state[field.name])
