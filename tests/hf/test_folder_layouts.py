"""Weights of a folder on every layout: each rank has its part of what one device has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from families import imported
from helpers.ranks import on_ranks
from tiny_families import peer

import forge
from forge.parallel.gather import gather_on_main
from forge.parallel.mesh import make_mesh
from forge.parallel.ranks import Ranks
from forge.training.checkpoints.restore import load_weights
from forge.training.models import build_model

COMMON = "tokenizer=bytes data=synthetic train.seq_len=32 optimizer=adamw run.device=cpu"
LAYOUTS = [
    ("llama 3.1", "parallel.dp_shard=2 parallel.tp=2"),
    ("gpt2", "parallel.tp=2 parallel.dp_shard=2"),
    ("qwen3 moe", "parallel.ep=2 parallel.tp=2"),
    ("deepseek 3", "parallel.ep=2 parallel.dp_shard=2"),
    ("llama 3.1", "parallel.pp=2 parallel.dp_shard=2"),
]


@pytest.mark.parametrize(("case", "layout"), LAYOUTS)
def test_ranks_have_their_parts(case: str, layout: str, tmp_path: Path) -> None:
    peer(case).save_pretrained(tmp_path)
    expected = imported(tmp_path).state_dict()
    words = f"model=hf model.path={tmp_path} {COMMON} {layout}"
    config = forge.compose(words.split()).validate(world_size=4).config

    def work(_: int) -> None:
        host, mesh = dist.new_group(), make_mesh(config.parallel, "cpu")
        ranks = Ranks(rank=dist.get_rank(), size=4, mesh=mesh, host=host)  # type: ignore[arg-type]
        model = build_model(config, torch.device("cpu"), ranks)
        load_weights(tmp_path, model=model, section=config.model)
        found = gather_on_main(model.state_dict().items(), ranks)
        assert found.differing == []
        if ranks.main:
            assert found.tensors.keys() == expected.keys()
            for name, values in found.tensors.items():
                assert values is not None
                assert torch.equal(values, expected[name]), name

    on_ranks(4, work)
