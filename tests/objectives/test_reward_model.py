"""Reward models: the loss against TRL's trainer, and the score that a reward gives."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from test_preference import batch
from test_pretrain import TinyModel

from forge.config.objectives.reward_model import RewardModel as Section
from forge.objectives.reward_model import RewardModel, last_of, scores_of

ROW = 3


@pytest.mark.parametrize("center", [0.0, 0.1])
def test_the_loss_and_its_gradient_equal_trls(center: float) -> None:
    """TRL's on the logits of a classifier with the head's row as its score, by its own last
    token.
    """
    trl = pytest.importorskip("trl.trainer.reward_trainer")
    data = batch()
    data = {name: values[:4] for name, values in data.items()}  # the complete pairs
    model = TinyModel().double()
    tokenizer = SimpleNamespace(eos_id=ROW, ids={})
    objective = RewardModel(Section(center_rewards=center), tokenizer=tokenizer)  # type: ignore[arg-type]
    losses = objective(model, data)  # type: ignore[arg-type]
    (losses.total / 2).backward()
    ours = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()

    places = [int(row.nonzero()[-1]) for row in data["targets"] != -100]
    assert last_of(data["targets"] != -100).tolist() == places

    def classifier(tokens, **_):
        states = model.hidden(tokens)[torch.arange(4), places]
        logits = states @ model.output_weight[ROW]
        return SimpleNamespace(logits=torch.cat([logits[0::2], logits[1::2]])[:, None])

    class Trainer(trl.RewardTrainer):
        def __init__(self) -> None:
            gather = lambda values: values  # noqa: E731
            self.accelerator = SimpleNamespace(gather=gather, gather_for_metrics=gather)
            self.args = SimpleNamespace(center_rewards_coefficient=center or None)
            self.model, self._total_train_tokens, self._tp_size = model, 0, 1
            self._metrics = {"train": {name: [] for name in NAMES}}

    inputs = {"tokens": data["tokens"], "attention_mask": torch.ones(4, 7)}
    trainer = Trainer()
    theirs = trainer.compute_loss(classifier, inputs)
    theirs.backward()
    assert (losses.total / 2).item() == pytest.approx(theirs.item(), rel=1e-12)
    for name, grad in ours.items():
        torch.testing.assert_close(grad, model.get_parameter(name).grad, rtol=1e-12, atol=1e-12)
    sums = losses.sums
    assert sums["accuracy"].item() / 2 == trainer._metrics["train"]["accuracy"][0]
    assert sums["margin"].item() / 2 == pytest.approx(trainer._metrics["train"]["margin"][0])


NAMES = ("num_tokens", "min_reward", "mean_reward", "max_reward", "accuracy", "margin")


def test_scores_do_not_depend_on_the_batch() -> None:
    model, draw = TinyModel().double(), torch.Generator().manual_seed(0)
    ids = [torch.randint(19, (n,), generator=draw).tolist() for n in (3, 7, 1, 5, 7)]
    cpu = torch.device("cpu")
    by_one = [scores_of(model, [row], ROW, batch_size=1, device=cpu)[0] for row in ids]
    assert len(set(by_one)) == 5
    for size in (2, 16):
        together = scores_of(model, ids, ROW, batch_size=size, device=cpu)
        assert together == pytest.approx(by_one, rel=1e-12)
