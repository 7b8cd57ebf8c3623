"""What training reports of experts on several ranks is what it reports on one device."""

from __future__ import annotations

import torch
from helpers.ranks import on_ranks
from parity_run import Tokens, config_of, this_rank

from forge.build import build
from forge.config.root import Config
from forge.parallel.ranks import Ranks
from forge.training.data import train_loader
from forge.training.models import build_model
from forge.training.step import Update
from forge.training.step_output import StepOutput

LAYOUT = "parallel.dp_replicate=2 parallel.dp_shard=2 train.batch_size=2"


def outputs(config: Config, ranks: Ranks) -> list[StepOutput]:
    device = torch.device("cpu")
    model = build_model(config, device, ranks, torch.float64)
    objective = build(config.objective, path="objective")
    update = Update(
        model=model,
        objective=objective,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        schedule=lambda number: 1.0,
        device=device,
        clip_norm=1.0,
        ranks=ranks,
        max_steps=3,
    )
    loader = train_loader(config, Tokens(), objective, ranks, device)  # type: ignore[arg-type]
    return [update(step, number) for number, step in zip(range(3), loader, strict=False)]


def test_sums_and_means_are_those_of_one_device() -> None:
    expected, config = outputs(config_of("moe"), Ranks()), config_of("moe", LAYOUT)
    assert {"moe/load_max", "moe/bias"} < {*expected[0].means}

    def work(_: int) -> None:
        for ours, theirs in zip(outputs(config, this_rank(config)), expected, strict=True):
            for found, wanted in ((ours.sums, theirs.sums), (ours.means, theirs.means)):
                assert found.keys() == wanted.keys()
                for name in wanted:
                    torch.testing.assert_close(
                        found[name], wanted[name], rtol=1e-6, atol=0, msg=name
                    )

    on_ranks(4, work)
