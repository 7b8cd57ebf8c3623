"""One side of a parity check: some updates of SGD through the path of training, and all that they
computed, whole, on the main rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch

from forge.build import build
from forge.config.root import Config
from forge.data.shards import TokenStore
from forge.parallel.gather import Tensors, gather
from forge.parallel.ranks import Ranks
from forge.rundir.files import read_json, write_json
from forge.training.assemble import build_model, train_loader
from forge.training.process import loss_scaler
from forge.training.step import Update

LR = 0.1


@dataclass(kw_only=True)
class Record:
    """What a side computed, on the CPU and by global name: of each step what it found, and the
    weights before the first and after the last.

    A gradient that a rank did not have is None. state: the buffers that checkpoints hold, after the
    last step. replicas: tensors of which ranks have different bits where they should be copies.
    """

    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    gradients: list[Tensors] = field(default_factory=list)
    before: Tensors = field(default_factory=dict)
    after: Tensors = field(default_factory=dict)
    state: Tensors = field(default_factory=dict)
    replicas: list[str] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        """Write it into a folder."""
        from safetensors.torch import save_file

        for name, tensors in self._files().items():
            save_file(
                {key: value for key, value in tensors.items() if value is not None},
                folder / f"{name}.safetensors",
            )
        missing = {
            name: [key for key, value in tensors.items() if value is None]
            for name, tensors in self._files().items()
        }
        plain = {
            "losses": self.losses,
            "grad_norms": self.grad_norms,
            "missing": missing,
            "replicas": self.replicas,
        }
        write_json(folder / "record.json", plain)

    @classmethod
    def load(cls, folder: Path) -> Record:
        """Read what `save` wrote."""
        from safetensors.torch import load_file

        plain = read_json(folder / "record.json")
        files: dict[str, Tensors] = {}
        for name, missing in plain["missing"].items():
            files[name] = {**load_file(folder / f"{name}.safetensors"), **dict.fromkeys(missing)}
        gradients = [files[f"gradients_{step}"] for step in range(len(plain["losses"]))]
        numbers = {key: plain[key] for key in ("losses", "grad_norms", "replicas")}
        return cls(
            **numbers,
            gradients=gradients,
            before=files["before"],
            after=files["after"],
            state=files["state"],
        )

    def _files(self) -> dict[str, Tensors]:
        gradients = {f"gradients_{i}": found for i, found in enumerate(self.gradients)}
        return {"before": self.before, "after": self.after, "state": self.state, **gradients}


def measure(
    config: Config,
    ranks: Ranks,
    store: TokenStore,
    *,
    dtype: torch.dtype,
    steps: int = 5,
    lr: float = LR,
    device: torch.device | None = None,
) -> Record:
    """Lay the model out as the config says, make `steps` updates of plain SGD on the run's first
    batches, and record them.

    All ranks call it; the main rank gets the record, the others an empty one. dtype: of weights and
    of all that is computed.
    """
    device = device or torch.device("cpu")
    model = build_model(config, device, ranks, dtype)
    update = Update(
        model=model,
        objective=build(config.objective, path="objective", trust=config.run.trust),
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        schedule=lambda _: 1.0,
        device=device,
        scaler=loss_scaler(config.precision, device),
        clip_norm=config.train.grad_clip_norm,
        ranks=ranks,
        reduce_each=config.parallel.reduce_gradients == "micro_batch",
    )
    loader = train_loader(config, store, ranks, device)
    record = Record(before=gather(model.named_parameters(), ranks).tensors)

    def on_gradients() -> None:
        found = gather(
            ((name, parameter.grad) for name, parameter in model.named_parameters()), ranks
        )
        record.gradients.append(found.tensors)
        record.replicas += [
            f"the gradient of {name} in step {len(record.gradients)}" for name in found.differing
        ]

    update.on_gradients = on_gradients
    for number, step in zip(range(steps), loader, strict=False):
        output = update(step, number)
        record.losses.append(float(output.loss))
        record.grad_norms.append(float(output.grad_norm))
    parameters = dict(model.named_parameters())
    after = gather(model.named_parameters(), ranks)
    state = gather(
        ((name, value) for name, value in model.state_dict().items() if name not in parameters),
        ranks,
    )
    record.after, record.state = after.tensors, state.tensors
    record.replicas += [f"{name} after {steps} steps" for name in [*after.differing, *state.differing]]
    return record if ranks.main else Record()
