"""What a rank owns of a model that is laid out: what torch gives it, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.ranks import on_ranks
from parity_cases import layout_of
from parity_run import config_of, this_rank
from torch import nn
from torch.distributed.tensor import DTensor

from forge.config.root import Config
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.parallel.materialize import materialize
from forge.parallel.ranks import Ranks
from forge.training.models import build_model

CLEAR = Path("/proc/self/clear_refs")
LARGE = "model.vocab_size=20000 model.dim=512 model.n_layers=4 model.tie_embeddings=true"
WIDE = "model.dim=96 model.n_layers=4 model.ffn_hidden_dim=256"


@pytest.mark.parametrize("layout", ["dp_shard=2 tp=2", "pp2 tp=2", "cp=2 dp_shard=2"])
def test_no_rank_holds_the_whole_model(layout) -> None:
    """Nor memory for it: storages are no larger than what is owned."""
    config = config_of("llama, 4 heads of keys", f"{layout_of(layout)} {WIDE}")
    share = sum(parameter.numel() for parameter in meta(config).parameters()) / 4

    def work(_: int) -> None:
        model = build_model(config, torch.device("cpu"), this_rank(config))
        held = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
        assert share * 0.9 < sum(p.numel() for p in held) < share * 1.1
        assert sum(p.untyped_storage().nbytes() for p in held) < share * 1.1 * 4

    on_ranks(4, work)


@pytest.mark.skipif(not CLEAR.exists(), reason="the peak is asked of Linux")
def test_no_rank_ever_holds_the_whole_model() -> None:
    """The peak of a rank's memory while a large model is built: its quarter, and drawn blocks."""
    layout = "parallel.dp_shard=4 train.batch_size=2"
    small, large = (config_of("llama", f"{layout} {sizes}") for sizes in ("", LARGE))
    whole = 4 * sum(parameter.numel() for parameter in meta(large).parameters())

    def work(_: int) -> None:
        ranks = this_rank(small)
        build_model(small, torch.device("cpu"), ranks)  # what the first use of everything takes
        CLEAR.write_text("5")
        before = peak()
        model = build_model(large, torch.device("cpu"), ranks)
        grown = (peak() - before) / whole
        del model
        assert grown < 1 / 2  # how little it is depends on what this process had freed before

    on_ranks(4, work)


def meta(config: Config) -> Decoder:
    with torch.device("meta"):
        return Decoder(config.model)  # type: ignore[arg-type]


def peak() -> int:
    """The most memory that this process has had at once since it was asked to forget, in bytes."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024


def test_one_device_builds_where_nothing_has_memory_too(monkeypatch) -> None:
    """Or torch would draw initial weights that are thrown away: for 8B, for a minute."""
    config, drawn_on = config_of("llama"), set()
    kaiming = torch.nn.init.kaiming_uniform_

    def draw(tensor: torch.Tensor, **how: Any) -> torch.Tensor:
        drawn_on.add(tensor.device.type)
        return kaiming(tensor, **how)

    monkeypatch.setattr(torch.nn.init, "kaiming_uniform_", draw)
    model = build_model(config, torch.device("cpu"), Ranks())
    assert drawn_on == {"meta"}
    plain = Decoder(config.model)  # type: ignore[arg-type]
    init_weights(plain, config.seed)
    state = plain.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    tokens = torch.arange(12)[None]
    assert torch.equal(model(tokens), plain(tokens))


def test_a_buffer_without_a_value_is_named() -> None:
    """Built on the meta device, a buffer does not have what its constructor gave it."""

    class Forgetful(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.register_buffer("table", torch.ones(3))
            self.register_buffer("other", torch.ones(3), persistent=False)
            self.register_buffer("count", torch.ones(3, dtype=torch.int64))

        def init_std(self, name: str) -> float:
            return 1.0

        def reset_buffers(self) -> None:
            self.other.fill_(1.0)

    with torch.device("meta"):
        model = Forgetful()
    what = r"^Forgetful\.reset_buffers\(\) gives table no value; a model is built without memory"
    with pytest.raises(ValueError, match=what):
        materialize(model, torch.device("cpu"), 0)
