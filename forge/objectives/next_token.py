"""Base of objectives on running text: each token is the target of the tokens before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from forge.data import IGNORE_INDEX
from forge.data.batches.loader import Batch
from forge.data.batches.samples import Sample, Samples
from forge.models.contract import LanguageModel
from forge.models.head import head_of
from forge.objectives.objective import Objective, hidden_of
from forge.tensors.wide import widest

LOGITS_AT_ONCE = 1 << 24


class NextToken(Objective):
    """Base of objectives on batches of `tokens` and `targets`, int64 [batch, seq]: targets[b, t] is
    the token after tokens[b, t], or IGNORE_INDEX for a token that does not count.

    To keep documents apart a batch has `documents` too, int32 [batch, seq], document numbers within
    the row, and the token after an end of text does not count. A batch of a mixture has `sources`,
    [batch, sources], 1 where the row is of the source and 0 elsewhere.
    """

    sums = ("nats", "targets", "correct", "byte_nats", "bytes")

    def collate(self, samples: Samples) -> Batch:
        """Make a row for each sample, padded with tokens 0 without targets."""
        tokens = np.empty((len(samples), samples.width), dtype=np.int64)
        targets, ends = np.empty_like(tokens), np.empty(0, dtype=bool)
        if samples.end_of_text is not None:
            ends = np.full(tokens.shape, samples.end_of_text == 0)
        for row, sample in enumerate(samples):
            window, counted = sample.tokens, sample.counted
            end = len(window) - 1
            tokens[row, :end], targets[row, :end] = window[:-1], window[1:]
            tokens[row, end:], targets[row, end:] = 0, IGNORE_INDEX
            if counted is not None:
                targets[row, :end][counted[1:] == 0] = IGNORE_INDEX
            if samples.end_of_text is not None:
                ends[row, :end] = sample.ends(window, samples.end_of_text)[:-1]
        batch = {"tokens": torch.from_numpy(tokens), "targets": torch.from_numpy(targets)}
        if samples.end_of_text is not None:
            targets[ends] = IGNORE_INDEX
            documents = (ends.cumsum(1) - ends).astype(np.int32)
            batch["documents"] = torch.from_numpy(documents)
        return batch

    def count(self, samples: Samples) -> int:
        if samples.end_of_text is None and not samples.masked:
            return samples.n_tokens if samples.packed else len(samples) * samples.seq_len
        return sum(_targets(sample, samples.end_of_text) for sample in samples)

    def evaluate(self, model: LanguageModel, batch: Batch) -> dict[str, Tensor]:
        """Sum over targets, a few rows of logits at a time. nats: of cross-entropy. correct: number
        of targets equal to the likeliest token. byte_nats, bytes: of the targets with text.
        """
        hidden, head = hidden_of(model, batch).flatten(0, 1), head_of(model)
        sizes_of = self.token_bytes.to(hidden.device)
        rows = max(LOGITS_AT_ONCE // head.vocab_size, 1)
        wide = widest(hidden.device)
        sums = torch.zeros(5, dtype=wide, device=hidden.device)
        for states, targets in zip(
            hidden.split(rows), batch["targets"].flatten().split(rows), strict=True
        ):
            logits, counted = head.logits(states).float(), targets != IGNORE_INDEX
            nats = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="none")
            nats = nats.to(wide)
            sizes = torch.where(counted, sizes_of[targets.clamp(min=0)], 0).to(wide)
            values = (nats, counted, logits.argmax(-1) == targets, nats * (sizes > 0), sizes)
            sums += torch.stack([value.to(wide).sum() for value in values])
        return dict(zip(NextToken.sums, sums, strict=True))

    def metrics(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Metrics of the sums. loss: mean cross-entropy in nats. perplexity: exp(loss).
        token_accuracy: share of targets equal to the likeliest token. bits_per_byte: nats of the
        targets with text / (ln 2 * their bytes), comparable across tokenizers.
        """
        loss = totals["nats"] / max(totals["targets"], 1)
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "token_accuracy": totals["correct"] / max(totals["targets"], 1),
            "bits_per_byte": totals["byte_nats"] / (math.log(2) * max(totals["bytes"], 1)),
        }

    @cached_property
    def token_bytes(self) -> Tensor:
        """Bytes of text of each token, int64 [ids of the tokenizer]."""
        assert self.tokenizer is not None
        return torch.as_tensor(self.tokenizer.token_bytes(), dtype=torch.int64)


def sums_by_source(batch: Batch, ce: Tensor) -> dict[str, Tensor]:
    """Sum cross-entropy and targets of each source of a mixture, as `ce/i` and `targets/i`, from
    the cross-entropy of each target, [batch * seq].
    """
    sources = batch["sources"].to(ce.dtype)
    counted = batch.get("weights", batch["targets"] != IGNORE_INDEX)
    of_rows = torch.stack([ce.view_as(counted).sum(1), counted.sum(1).to(ce.dtype)])
    sums = (of_rows @ sources).unbind(1)
    return {
        f"{name}/{source}": value
        for source, values in enumerate(sums)
        for name, value in zip(("ce", "targets"), values, strict=True)
    }


def _targets(sample: Sample, end_of_text: int | None) -> int:
    """Number of a sample's targets that count."""
    return int(kept_of(sample, end_of_text)[0].sum())


def kept_of(sample: Sample, end_of_text: int | None) -> tuple[np.ndarray, np.ndarray]:
    """For a sample's tokens but the last, whether the target counts, and the document's number in
    the row, as in `collate`.
    """
    window, counted = sample.tokens, sample.counted
    is_target, ends = np.ones(len(window) - 1, dtype=bool), np.zeros(len(window) - 1, dtype=bool)
    if counted is not None:
        is_target &= counted[1:] != 0
    if end_of_text is not None:
        ends = sample.ends(window, end_of_text)[:-1]
    return is_target & ~ends, ends.cumsum() - ends
