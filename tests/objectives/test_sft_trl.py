"""Supervised fine-tuning equals TRL's: loss and gradients, of the same weights and batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_preference_trl import LAYERS, VOCAB, llama_tensors, peers

from forge.config.objectives.base import SFT as SFTConfig
from forge.data import IGNORE_INDEX
from forge.data.batches.noise import noise_of
from forge.models.dropout import bits_of
from forge.objectives.sft import SFT

pytestmark = pytest.mark.nightly
SEQ, ALPHA = 12, 5.0


def rows(lengths: tuple[int, ...]) -> list[dict[str, list[int]]]:
    """Prompts of three tokens and responses."""
    draw = torch.Generator().manual_seed(3)
    return [
        {
            "input_ids": torch.randint(2, VOCAB, (length,), generator=draw).tolist(),
            "completion_mask": [0] * 3 + [1] * (length - 3),
        }
        for length in lengths
    ]


def theirs_of(model: Any, lengths: tuple[int, ...], options: dict[str, Any], folder: Path) -> Any:
    """Loss of TRL's trainer, with gradients in its model, and its batch."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig as Config
    from trl import SFTTrainer

    vocab = {"<pad>": 0, "</s>": 1} | {str(n): n for n in range(2, VOCAB)}
    raw = Tokenizer(models.WordLevel(vocab, unk_token="</s>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="</s>")
    how = {"output_dir": str(folder), "use_cpu": True, "bf16": False, "report_to": "none"}
    how |= {"gradient_checkpointing": False, "max_length": None, "completion_only_loss": True}
    trainer = SFTTrainer(
        model=model,
        args=Config(**how, **options),
        train_dataset=Dataset.from_list(rows(lengths)),
        processing_class=tokenizer,
    )
    batch = trainer.data_collator(rows(lengths))
    model.train()
    loss = trainer.compute_loss(model, dict(batch))
    loss.backward()
    return loss.detach(), batch


@pytest.mark.parametrize("loss_fn", ["cross_entropy", "chunked_cross_entropy"])
@pytest.mark.parametrize("options", ["plain", "smoothing", "neftune"])
def test_loss_and_gradients_equal_those_of_trl(
    options: str, loss_fn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, peer = peers(0)
    lengths, noise = (SEQ, SEQ, SEQ) if options == "neftune" else (SEQ, 7, 9), None
    section, how = SFTConfig(loss_fn=loss_fn), {}
    if options == "smoothing":
        section.label_smoothing = how["label_smoothing_factor"] = 0.2
    if options == "neftune":
        # Their numbers are ours: within the bounds that their hook asks for.
        section.neftune_alpha = ALPHA
        noise = noise_of(0, range(3), SEQ - 1)
        unit = bits_of(noise, ours.jitter.keys, ours.section.dim) * 2.0**-31

        def uniform_(self: torch.Tensor, low: Any, high: Any) -> torch.Tensor:
            whole = torch.zeros_like(self)
            whole[:, : unit.shape[1]] = unit * high
            assert torch.equal(torch.as_tensor(low), -torch.as_tensor(high))
            return whole

        from transformers.integrations.neftune import neftune_post_forward_hook

        embedding = peer.model.embed_tokens
        embedding.neftune_noise_alpha = ALPHA
        embedding.register_forward_hook(neftune_post_forward_hook)
        monkeypatch.setattr(torch.Tensor, "uniform_", uniform_)
    expected, given = theirs_of(peer, lengths, how, tmp_path)

    tokens, targets = given["input_ids"][:, :-1], given["labels"][:, 1:]
    batch = {"tokens": tokens, "targets": targets}
    objective = SFT(section)
    if noise is not None:
        # They count the last token too, which nothing is read of.
        batch |= {"noise": noise, "jitter": torch.full(tokens.shape, ALPHA * SEQ**-0.5)}
    losses = objective(ours.train(), batch)
    loss = losses.total / int((targets != IGNORE_INDEX).sum())
    loss.backward()
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-5, atol=1e-6)
    gradients = llama_tensors(peer, lambda weight: weight.grad)
    assert len(gradients) == 3 + 9 * LAYERS
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        distance = (parameter.grad - gradients[name]).norm() / gradients[name].norm()
        assert distance < 1e-5, name
