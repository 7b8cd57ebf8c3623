"""Every optimizer preset trains every parameter of a model with nanochat's parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from forge.compose import composition
from forge.compose.hydra_adapter import CONF
from forge.config.model.decoder import Decoder as Section
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.optim.build import build_optimizer

PRESETS = sorted(path.stem for path in (Path(CONF) / "optimizer").glob("*.yaml"))
SMALL = (
    "model=nanochat model.dim=64 model.n_layers=2 model.n_heads=2 model.vocab_size=320 "
    "tokenizer.vocab_size=300 model.max_seq_len=128 model.initial_law=normal train.seq_len=32 "
    "train.max_steps=100 precision=fp32 run.device=cpu parallel=single"
)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_parameter_is_moved(preset: str) -> None:
    words = [f"optimizer={preset}", *SMALL.split()]
    config = composition.config(words).validate(world_size=1).config
    assert isinstance(config.model, Section)
    model = Decoder(config.model)
    init_weights(model, 0)
    with torch.no_grad():
        assert model.smear is not None
        model.smear.scale.fill_(0.1)  # else its gate has no gradient in the first step
    optimizer, still = build_optimizer(config, model), dict(model.named_parameters())
    before = {name: values.detach().clone() for name, values in still.items()}
    tokens = torch.randint(320, (2, 32), generator=torch.Generator().manual_seed(0))
    for _ in range(2):  # two steps of signs may end where they began
        optimizer.zero_grad()
        logits = model(tokens)[:, :-1].flatten(0, 1)
        (100 * torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())).backward()
        optimizer.step()
        still = {name: values for name, values in still.items() if values.equal(before[name])}
    assert not still.keys()
