"""Ranks that share a model take the tokens that the main one draws, though their logits differ."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.ranks import on_ranks

from forge.config.data.text import Text
from forge.config.eval import Eval
from forge.config.parallel import Parallel
from forge.models.decoder import Decoder
from forge.parallel.fsdp import shard
from forge.parallel.mesh import make_mesh
from forge.parallel.ranks import Ranks
from forge.training.callbacks.samples import Samples

SECTION = Eval(sample_prompts=["ab", "q"], sample_tokens=20, sample_temperature=1.0)


class Characters:
    """A tokenizer of single characters, of which F ends a text."""

    begin_id = None
    eos_id = end_id = last_id = 6
    vocab_size = 61

    def encode(self, text: str) -> list[int]:
        return [ord(one) - 64 for one in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(one + 64) for one in ids)


def texts(model: Decoder, folder: Path, ranks: Ranks) -> list[str]:
    """What a callback writes for the prompts."""
    folder.mkdir()
    quiet = SimpleNamespace(enable_console=False)
    config: Any = SimpleNamespace(eval=SECTION, seed=48, metrics=quiet, data=Text())
    session: Any = SimpleNamespace(
        config=config,
        model=model,
        tokenizer=Characters(),
        device=torch.device("cpu"),
        run_dir=folder,
        ranks=ranks,
    )
    loop: Any = SimpleNamespace(evaluating=nullcontext, state=SimpleNamespace(step=4))
    samples, file = Samples(session), folder / "samples.jsonl"
    samples.path = file  # also of a rank that writes nothing
    samples.sample(loop)
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line)["text"] for line in lines]


def sharded(model: Decoder, rank: int) -> Ranks:
    mesh = make_mesh(Parallel(dp_shard=2), "cpu")
    shard(model, mesh)
    return Ranks(rank=rank, size=2, mesh=mesh, host=dist.group.WORLD)


@pytest.mark.parametrize(
    "differs", [lambda states: -states, lambda states: states * torch.nan], ids=["other", "NaN"]
)
def test_the_text_is_the_main_ranks(differs, small_decoder, tmp_path) -> None:
    """A rank that drew for itself might end sooner; the other would wait for its shards."""
    expected = texts(small_decoder(), tmp_path / "alone", Ranks())
    assert len(expected) == 2
    assert max(map(len, expected)) < 20  # both end

    def work(rank: int) -> None:
        model = small_decoder()
        ranks = sharded(model, rank)
        if rank == 1:
            model.norm.register_forward_hook(lambda module, states, out: differs(out))
        assert texts(model, tmp_path / str(rank), ranks) == expected

    on_ranks(2, work)


def test_all_give_up_where_the_main_rank_has_no_text(small_decoder, tmp_path) -> None:
    def work(rank: int) -> None:
        model = small_decoder()
        ranks = sharded(model, rank)
        if rank == 0:
            model.norm.register_forward_hook(lambda module, states, out: out * torch.nan)
        assert texts(model, tmp_path / str(rank), ranks) == []

    on_ranks(2, work)
