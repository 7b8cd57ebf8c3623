"""Laying a model out takes the memory of a rank's share, at no moment that of the whole."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from ranks import on_ranks

from forge.config import compose
from forge.parallel.apply import apply
from forge.parallel.mesh import make_mesh

WIDE = ["model.n_layers=4", "model.dim=1024", "model.n_heads=8", "model.ffn_hidden_dim=4096", "tokenizer.vocab_size=300"]
SIZES = [
    "model.vocab_size=8192",
    "model.tie_embeddings=false",
    "train.seq_len=16",
    "train.compile_model=false",
    "train.global_batch_size=32",
]
LAYOUTS = {"fsdp4": ["parallel.dp_shard=4"], "tp2 x fsdp2": ["parallel.tp=2", "parallel.dp_shard=2"], "pp4": ["parallel=pp4"]}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the peak of memory from Linux")
@pytest.mark.parametrize("name", LAYOUTS)
def test_no_rank_ever_holds_the_whole_model(name: str) -> None:
    config = compose.config([*WIDE, *SIZES, "train.batch_size=8", *LAYOUTS[name]]).validate(world_size=4).config
    whole = 4 * config.model.num_params_estimate

    def work(_: int) -> None:
        mesh = make_mesh(config.parallel, "cpu")
        first = apply(lambda: small(config), config, mesh, torch.device("cpu"))  # what torch itself allocates, once
        del first
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        before = peak()
        model = apply(lambda: build(config), config, mesh, torch.device("cpu"))
        share = sum(p.to_local().numel() * 4 for p in model.parameters())  # type: ignore[operator]
        assert share < 0.4 * whole
        assert peak() - before < share + 0.15 * whole, (peak() - before, share, whole)

    on_ranks(4, work)


def build(config):
    from forge.models.decoder import Decoder

    return Decoder(config.model)


def small(config):
    from dataclasses import replace

    from forge.models.decoder import Decoder

    return Decoder(replace(config.model, dim=64, ffn_hidden_dim=64, vocab_size=64))


def peak() -> int:
    """Bytes that were resident at most."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
