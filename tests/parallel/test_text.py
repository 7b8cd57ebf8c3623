"""Text that a laid out model writes is that of one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.ranks import on_ranks
from parity_cases import layout_of
from parity_run import config_of, this_rank, world_of

from forge.models.head import head_of
from forge.models.sampling import DrawOptions, continue_rows, generate
from forge.models.token_distribution import Sampling
from forge.parallel.ranks import Ranks
from forge.training.models import build_model

CPU = torch.device("cpu")
LAYOUTS = [
    ("fsdp2", "dp_shard=2", "llama"),
    ("tp4 with 2 heads of keys", "tp=4", "llama"),
    ("tp2, gpt2", "tp=2", "gpt2"),
    ("cp2", "cp=2", "llama"),
    ("tp2, latents", "tp=2", "mla"),
    ("cp2, latents", "cp=2", "mla"),
    ("cp2, contiguous parts, gpt2", "cp=2 cp_load_balance=false", "gpt2"),
    ("cp2 ulysses, gpt2", "cp=2 ulysses", "gpt2"),
    ("fsdp2, nanochat", "dp_shard=2", "nanochat"),
    ("tp4, nanochat", "tp=4", "nanochat"),
    ("cp2 x tp2, nanochat", "cp=2 tp=2", "nanochat"),
    ("pp2, smeared", "pp2", "smeared"),
    ("ep4", "ep=4 batch=2", "moe, 8 experts"),
    ("ep2 x tp2, nothing is dropped", "ep=2 tp=2", "moe, capacity"),
    ("pp2 x tp2", "pp2 tp=2", "llama"),
    ("pp2, looped, tied", "pp2 schedule=interleaved_zero_bubble", "llama, tied, 5 blocks"),
    ("pp2 x fsdp2, zbv", "pp2 dp_shard=2 batch=4 schedule=zbv_zero_bubble", "llama, 5 blocks"),
]
WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9, "top_k": 20, "seed": 7},
    {"temperature": 0.0, "eos_id": 5},
]


def smearing(model: Any) -> Any:
    """Give a smear, if there is one, a factor other than 0, with which it begins."""
    with torch.no_grad():
        for name, values in model.named_parameters():
            if name == "smear.scale":
                values.fill_(0.7)
    return model


@pytest.mark.ci("pp2 x tp2")
@pytest.mark.parametrize(
    ("layout", "model"), [each[1:] for each in LAYOUTS], ids=[each[0] for each in LAYOUTS]
)
def test_text_is_that_of_one_device(layout, model) -> None:
    """Token by token, after whole sequences were read; and a text in runs of tokens."""
    config = config_of(model, layout_of(layout))
    plain = smearing(build_model(config_of(model), CPU, Ranks(), torch.float64)).eval()
    prompt = torch.randint(0, 301, (2, 5), generator=torch.Generator().manual_seed(1))
    ways = [*WAYS, {"seed": 2, "use_cache": False}] if config.parallel.tp == 1 else WAYS
    if config.parallel.cp > 1:
        ways = WAYS
    texts = [generate(plain, prompt, 12, **way) for way in ways]  # type: ignore[arg-type]
    rows, ragged = (
        [[4, 5, 6], [7], [8] * 6],
        DrawOptions(sampling=Sampling(temperature=0.9, seed=3)),
    )
    drawn = continue_rows(plain, rows, 9, ragged, CPU).tokens  # type: ignore[arg-type]
    logits = plain(texts[0]).detach()

    def work(_: int) -> None:
        ranks = this_rank(config)
        laid_out = smearing(build_model(config, CPU, ranks, torch.float64))
        trained = dict(laid_out.named_parameters())
        with torch.no_grad():
            laid_out.eval().hidden(ranks.own_part(torch.zeros(4, 16, dtype=torch.int64)))
            for way, text in zip(ways, texts, strict=True):
                assert torch.equal(generate(laid_out, prompt, 12, **way), text), way
            assert continue_rows(laid_out, rows, 9, ragged, CPU).tokens == drawn
            cache = laid_out.new_cache(17)
            for run, expected in zip(texts[0].split(4, 1), logits.split(4, 1), strict=True):
                hidden = laid_out.hidden(run, cache=cache)
                assert (head_of(laid_out).logits(hidden) - expected).abs().max() < 1e-5
        laid_out.train()
        assert all(parameter is trained[name] for name, parameter in laid_out.named_parameters())

    on_ranks(world_of(config), work)
