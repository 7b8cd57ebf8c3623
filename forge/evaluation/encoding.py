"""Texts to requests: contexts and continuations, and documents in windows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from forge.evaluation.requests import Request
from forge.tasks.item import Aligned


class Encodes(Protocol):
    """The part of a tokenizer that requests need."""

    eos_id: int
    begin_id: int | None

    def encode(self, text: str) -> list[int]: ...


def first_id(tokenizer: Encodes) -> int:
    """The token that stands before a text without a context: that of the begin of documents, or
    their end.
    """
    return tokenizer.eos_id if tokenizer.begin_id is None else tokenizer.begin_id


def encode_pair(tokenizer: Encodes, context: str, continuation: str) -> Request:
    """A request for a continuation, as lm-eval makes it.

    The context's trailing spaces belong to the continuation. Both are encoded as one text, which is
    cut where the context alone would end. The begin token of documents, if any, stands first, once.
    Raises ValueError for a continuation without tokens.
    """
    spaces = len(context) - len(context.rstrip())
    if spaces:
        context, continuation = context[:-spaces], context[-spaces:] + continuation
    whole = tokenizer.encode(context + continuation)
    cut = len(tokenizer.encode(context)) if context else 0
    if cut >= len(whole):
        raise ValueError(f"the continuation {continuation!r} has no tokens of its own")
    begins = tokenizer.begin_id is not None or not cut
    first = (first_id(tokenizer),) if begins else ()
    return Request((*first, *whole[:cut]), tuple(whole[cut:]))


def encode_aligned(tokenizer: Encodes, ask: Aligned, longest: int) -> Request:
    """A request for the part of a text where its tokens part from those of others, each after one
    token that begins documents; without tokens where the others resume from all of it.

    At most `longest` tokens with the last one, which is not read. Raises ValueError where the first
    text's tokens do not begin the text, and where the part alone is longer.
    """
    encoded = [(first_id(tokenizer), *_ids(tokenizer, text)) for text in ask.texts]
    ids = encoded[ask.index]
    if ask.by == "first":
        cut = len(encoded[0])
        if ids[:cut] != encoded[0]:
            text = ask.texts[0][-40:]
            raise ValueError(f"the tokens of a prompt ending in {text!r} change with its answer")
    elif ask.by == "start":
        cut = _common(encoded)
    else:
        cut = len(ids) - _common([each[::-1] for each in encoded])
    excess = max(len(ids) - longest, 0)
    if excess >= cut:
        raise ValueError(f"{len(ids) - cut} tokens to score leave no context in {longest}")
    return Request(ids[excess:cut], ids[cut:])


@lru_cache(maxsize=64)
def _ids(tokenizer: Encodes, text: str) -> tuple[int, ...]:
    """The tokens of a text, which is compared with several others."""
    return tuple(tokenizer.encode(text))


def _common(encoded: Sequence[Sequence[int]]) -> int:
    """Number of tokens that all begin with."""
    shortest = min(map(len, encoded))
    for place in range(shortest):
        if len({ids[place] for ids in encoded}) > 1:
            return place
    return shortest


def shortened(request: Request, longest: int) -> Request:
    """A request that reads at most `longest` tokens, by leaving out the beginning of its prefix;
    the continuation is never cut. Raises ValueError for a longer continuation.
    """
    excess = request.length - longest
    if excess <= 0:
        return request
    if excess >= len(request.prefix):
        count = len(request.continuation)
        raise ValueError(f"a continuation of {count} tokens is longer than the model's {longest}")
    return Request(request.prefix[excess:], request.continuation)


def windows(ids: Sequence[int], first: int, longest: int) -> list[Request]:
    """Requests that score every token of a document once, as lm-eval's rolling windows: the first
    window after the token `first`; the last window has a full context but scores only what is left.
    """
    requests, begin = [], 0
    whole = (first, *ids)
    while begin < len(ids):
        end = min(begin + longest, len(ids))
        start = max(end - longest, 0)  # of the window's tokens in `whole`
        requests.append(Request(tuple(whole[start : begin + 1]), tuple(whole[begin + 1 : end + 1])))
        begin = end
    return requests
