"""The next token: probabilities of the candidates, and the draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from forge.tensors.wide import widest

NOT_FINITE = "the model's logits are not finite; its weights were trained to NaN or infinity"
NONE = -1  # in place of a token that cannot be drawn
ROOM = (1 << 32) - 1


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Options of the draw, as in `next_token_probabilities`. ValueError for values out of bounds.

    repetition_penalty: as in `penalised`. seed: of the rows' streams, together with a row's number.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, holds, bounds in (
            ("temperature", 0 <= self.temperature < float("inf"), "at least 0"),
            ("top_k", self.top_k >= 0, "at least 0 (0 = all tokens)"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "at least 0 and at most 1"),
            ("repetition_penalty", 0 < self.repetition_penalty < float("inf"), "above 0"),
        ):
            if not holds:
                raise ValueError(f"{name}={getattr(self, name)}: must be {bounds}")

    def draw(self, logits: Tensor, uniform: Tensor, had: Tensor | None = None) -> Tensor:
        """Draw tokens [batch] from logits: [batch, vocab] by uniform: [batch], from 0 to 1; NONE
        where logits are not finite. had: as in `penalised`.
        """
        logits = logits.float()
        # 0 times infinity is NaN; cheaper than a look for extremes. The row's draw is masked below.
        usable = (logits * 0).sum(-1) == 0
        if had is not None:
            logits = penalised(logits, had, self.repetition_penalty)
        if self.temperature == 0:
            drawn = logits.argmax(-1)
        else:
            cuts = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
            drawn = _drawn(*_likeliest(logits, self.temperature, **cuts), uniform)
        return drawn.masked_fill(~usable, NONE)

    @property
    def cuts(self) -> bool:
        """Whether some tokens are never drawn."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    def support(self, logits: Tensor) -> Tensor:
        """Ids of the tokens that may be drawn from logits: [batch, vocab], the likeliest first:
        [batch, candidates], NONE after the last of them. With top_k or top_p.
        """
        cuts = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
        probabilities, ids = _likeliest(logits.float(), self.temperature, **cuts)
        assert ids is not None
        return ids.masked_fill(probabilities == 0, NONE)

    @property
    def options(self) -> tuple[float, ...]:
        """All but the seed: rows with equal options are drawn at once."""
        cuts = (self.top_k, self.top_p, self.min_p)
        return (self.temperature, *cuts, self.repetition_penalty)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities of the next token: logits [batch, vocab] -> [batch, vocab]."""
        cuts = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
        return next_token_probabilities(logits, self.temperature, **cuts)


def next_token_probabilities(
    logits: Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Tensor:
    """logits: [batch, vocab] -> fp32 probabilities: temperature first, then top-k, top-p and min-p.

    top_k keeps the k likeliest tokens (0 = all). top_p keeps the fewest likeliest tokens with a
    joint probability of at least top_p (nucleus sampling, arXiv:1904.09751). min_p keeps the tokens
    with at least min_p times the probability of the likeliest (arXiv:2407.01082). Temperature 0
    gives probability 1 to the likeliest. Raises FloatingPointError for logits not finite.
    """
    logits = logits.float()
    if not bool(torch.isfinite(logits).all()):
        raise FloatingPointError(NOT_FINITE)
    if temperature == 0:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    probabilities, ids = _likeliest(logits, temperature, top_k, top_p, min_p)
    return (
        probabilities if ids is None else torch.zeros_like(logits).scatter_(-1, ids, probabilities)
    )


def _likeliest(
    logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[Tensor, Tensor | None]:
    """Probabilities [batch, candidates], the largest first, and the candidates' ids; or of all
    tokens in order, and None. Among equals the lowest ids are taken, on every device.
    """
    vocab = logits.shape[-1]
    cut = 0 < top_k < vocab
    if not cut and top_p == 1 and min_p == 0:
        return torch.softmax(scaled(logits, temperature), dim=-1), None
    if cut:
        ids = _first_of(logits, top_k)
        likeliest = torch.softmax(logits.gather(-1, ids) / temperature, dim=-1)
    else:
        probabilities = torch.softmax(logits / temperature, dim=-1)
        likeliest, ids = probabilities.sort(dim=-1, descending=True, stable=True)
    if top_p < 1:
        likelier_mass = running_sum(likeliest) - likeliest
        likeliest = likeliest.masked_fill(likelier_mass >= top_p, 0.0)
    if min_p > 0:
        likeliest = likeliest.masked_fill(likeliest < min_p * likeliest[:, :1], 0.0)
    return likeliest / likeliest.sum(-1, keepdim=True), ids


def _first_of(logits: Tensor, count: int) -> Tensor:
    """Ids of the largest logits, in order, the lowest ids first among equals, without a full sort:
    by integers with the order of fp32 values in the upper 32 bits, and of ids in the lower.
    """
    bits = (logits + 0.0).view(torch.int32)  # -0.0 is 0.0
    # Negative floats order backwards as integers: flip all bits but the sign.
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long() << 32
    below = torch.arange(logits.shape[-1] - 1, -1, -1, device=logits.device)
    return logits.shape[-1] - 1 - (ordered | below).topk(count, dim=-1).values.bitwise_and(ROOM)


def _drawn(probabilities: Tensor, ids: Tensor | None, uniform: Tensor) -> Tensor:
    """Draw by `drawn_from` in the order of ids, in whatever order probabilities are."""
    if ids is None:
        return drawn_from(probabilities, uniform)
    ids, order = ids.sort(-1)
    index = drawn_from(probabilities.gather(-1, order), uniform)
    return ids.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def scaled(logits: Tensor, temperature: float) -> Tensor:
    return logits if temperature == 1 else logits / temperature


def logprobs_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities of tokens: [batch, 1] by logits: [batch, vocab] -> [batch, 1], in fp32 at
    least, with NaN where logits are not finite.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide.gather(-1, tokens) - wide.logsumexp(-1, keepdim=True)


def logprobs_within(logits: Tensor, tokens: Tensor, support: Tensor) -> Tensor:
    """As `logprobs_of`, of a distribution over the tokens `support` alone, [batch, candidates];
    NONE in places without a token.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    among = wide.gather(-1, support.clamp(min=0)).masked_fill(support == NONE, -torch.inf)
    return wide.gather(-1, tokens) - among.logsumexp(-1, keepdim=True)


def penalised(logits: Tensor, had: Tensor, penalty: float) -> Tensor:
    """Penalise tokens that a text `had`, bool [batch, vocab]: positive logits are divided by the
    penalty, others multiplied (CTRL, arXiv:1909.05858, section 4.1; for negative logits as in
    transformers).
    """
    return torch.where(had, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def drawn_from(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Draw ids [batch] from probabilities [batch, vocab] by uniform: [batch], from 0 to 1: the
    inverse of the cumulative sum.
    """
    upto = running_sum(probabilities.to(uniform.dtype))
    thresholds = uniform[:, None] * upto[:, -1:]
    # right=True takes the first sum above the threshold, so a token of probability 0 is never
    # drawn; where rounding leaves no such sum, the last token that adds to it.
    last = torch.searchsorted(upto, upto[:, -1:].contiguous())
    last = last.clamp(max=upto.shape[-1] - 1)  # NaN has no place in an order
    return torch.searchsorted(upto, thresholds, right=True).minimum(last).squeeze(-1)


def running_sum(values: Tensor) -> Tensor:
    """Sum cumulatively along the last dimension."""
    # On a GPU the order of summands may differ from call to call. Torch refuses the call where all
    # must be deterministic, although no draw sees the difference in fp64.
    strict = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        return values.cumsum(-1)
    finally:
        torch.use_deterministic_algorithms(strict)


def uniforms(seed: int, rows: Sequence[object], count: int, device: torch.device) -> Tensor:
    """Random numbers [rows, count], from 0 to 1, of each row's own stream; a larger count continues
    the stream. Equal bits on every device with fp64.
    """
    drawn = [_stream(seed, row, count).to(widest(device)) for row in rows]
    return torch.stack(drawn).to(device)


def _stream(seed: int, row: object, count: int) -> Tensor:
    key = blake2b(f"{seed} {row}".encode(), digest_size=7).digest()
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(key, "little"))
    return torch.rand(count, dtype=torch.float64, generator=generator)
