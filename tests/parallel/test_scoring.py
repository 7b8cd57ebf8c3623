"""The scoring engine: against a model that reads each request alone, and on every layout."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from parity_run import config_of, main_ranks

from forge.evaluation.cache import Cache
from forge.evaluation.encoding import encode_pair, shortened, windows
from forge.evaluation.engine import Engine, _look_up
from forge.evaluation.requests import Request, readings, rounds
from forge.evaluation.trees import joined_by_beginning
from forge.models.head import Head
from forge.parallel.ranks import Ranks
from forge.tasks.item import Score
from forge.training.models import build_model

FP64, CPU = torch.float64, torch.device("cpu")


def some_requests(longest: int, vocab: int = 301, count: int = 40) -> list[Request]:
    """Short and long, one as long as the model, equal ones, and four choices after one prefix."""
    draw = random.Random(3)

    def ids(size: int) -> tuple[int, ...]:
        return tuple(draw.randrange(vocab) for _ in range(size))

    found = [Request(ids(draw.randint(1, 9)), ids(draw.randint(1, 5))) for _ in range(count)]
    full = Request(ids(longest - 3), ids(4))
    prefix = ids(5)
    choices = [Request(prefix, (letter,)) for letter in (7, 8, 9, 10)]
    shots = ids(longest // 2)  # two questions of three choices after the same examples
    asked = [Request((*shots, *ids(2)), ids(size)) for size in (2, 3)]
    asked += [Request(each.prefix, ids(size)) for each in asked for size in (1, 2)]
    return [*found, full, *choices, found[0], Request(prefix, (7, 3)), *asked]


def alone(model: Any, request: Request) -> Score:
    """The definition: the whole row through the model, without packing or batches."""
    tokens = torch.tensor([[*request.prefix, *request.continuation[:-1]]])
    with torch.no_grad():
        logits = model(tokens)[0].log_softmax(-1)
    rows = logits[len(request.prefix) - 1 :]
    labels = torch.tensor(request.continuation)
    logprob = rows.gather(1, labels[:, None]).sum().item()
    return Score(logprob, len(labels), int((rows.argmax(-1) == labels).sum()))


def scores_on(config: Any, ranks: Ranks, dtype: torch.dtype, batch_tokens: int) -> list[Any]:
    model = build_model(config, CPU, ranks, dtype)
    engine = Engine(model, device=CPU, ranks=ranks, batch_tokens=batch_tokens)
    return engine.score(some_requests(engine.longest))


def near(left: list[Any], right: list[Any], bound: float) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert one[0] == pytest.approx(other[0], rel=bound, abs=bound)
        assert list(one[1:]) == list(other[1:])


ALONE = ("smeared", "delta")
"""Models that read the token before, and so no trees."""


@pytest.mark.parametrize("name", ["llama", "kinds", "gpt2", "mla", "moe", "llama4", *ALONE])
@pytest.mark.parametrize("batch_tokens", [1, 100, 4096])
def test_packed_in_any_batch_equals_one_by_one(name: str, batch_tokens: int) -> None:
    config = config_of(name)
    model = build_model(config, CPU, Ranks(), FP64).eval()
    engine = Engine(model, device=CPU, batch_tokens=batch_tokens)
    requests = some_requests(engine.longest)
    read = engine._readings(requests)
    assert any(reading.ends for reading in read) == (batch_tokens > 1 and name not in ALONE)
    near(engine.score(requests), [alone(model, each) for each in requests], 1e-12)


@pytest.mark.parametrize(
    "layout",
    [
        "parallel.dp_shard=2",
        "parallel.tp=2",
        "parallel.cp=2",
        "parallel.pp=2",
        "parallel.dp_replicate=2",
    ],
)
@pytest.mark.parametrize(("dtype", "bound"), [(FP64, 1e-12), (torch.float32, 1e-6)])
def test_every_layout_gives_the_scores_of_one_device(
    layout: str, dtype: torch.dtype, bound: float
) -> None:
    config = config_of("llama", layout)
    others = main_ranks(config, lambda ranks: scores_on(config, ranks, dtype, 64))
    near(others, scores_on(config_of("llama"), Ranks(), dtype, 4096), bound)


def test_choices_of_one_token_share_a_forward() -> None:
    requests = some_requests(24)[:-6]
    shared = [reading for reading in readings(requests) if len(reading.requests) > 1]
    assert sorted(len(reading.requests) for reading in shared) == [2, 4]
    planned = rounds(readings(requests), longest=24, batch_tokens=100, parts=2)
    read = sum(len(reading.tokens) for each in planned for row in each.rows for reading in row)
    room = sum(each.width * len(each.rows) for each in planned)
    assert read / room > 0.8


@pytest.mark.parametrize("parts", [1, 3])
def test_rows_hold_every_reading_once_and_are_nearly_full(parts: int) -> None:
    draw = random.Random(5)
    sizes = [900, *(draw.randint(2, 200) for _ in range(300))]
    asked = [Request(tuple(range(n, n + size)), (1,)) for n, size in enumerate(sizes)]
    planned = rounds(readings(asked), longest=1024, batch_tokens=1024, parts=parts)
    rows = [row for each in planned for row in each.rows]
    assert sorted(i for row in rows for reading in row for i in reading.requests) == [*range(301)]
    assert planned[0].width == 900
    room = 0
    for each in planned:
        used = [sum(len(reading.tokens) for reading in row) for row in each.rows]
        assert max(used) == each.width
        assert each.per_part * each.width <= 1024
        assert len(used) <= each.per_part * parts
        room += each.width * len(used)
    assert sum(sizes) / room > 0.95


def test_sums_over_a_large_vocabulary_in_fp32_are_those_of_float64() -> None:
    """Of logits that fp32 holds exactly."""
    torch.manual_seed(0)
    hidden, weight = (torch.randn(size, 8).mul(8).round() / 8 for size in (200, 49152))
    labels = torch.randint(49152, (200,))
    sums = torch.zeros(2, 200, dtype=FP64)
    targets = [(place, label, place) for place, label in enumerate(labels.tolist())]
    _look_up(hidden, Head(weight), torch.arange(200), targets, sums)
    logits = hidden.double() @ weight.double().T
    exact = logits.log_softmax(-1)[torch.arange(200), labels]
    assert (sums[0] - exact).abs().max() < 2e-6
    assert torch.equal(sums[1], (logits.argmax(-1) == labels).double())


def test_a_beginning_is_read_once_for_all_that_goes_on_from_it() -> None:
    """Ten questions of four choices after 100 tokens of examples: the tokens of the trie."""
    shots = tuple(range(100))
    asked = [(*shots, 200 + number, *range(8)) for number in range(10)]
    requests = [Request(ask, (300 + choice, 1, 2)) for ask in asked for choice in range(4)]
    (tree,) = joined_by_beginning(readings(requests), 4096)
    assert len(tree.tokens) == 100 + 10 * (9 + 4 * 2)
    assert sorted(tree.requests) == list(range(40))
    seen = [sum(end > place for end in tree.ends[: place + 1]) for place in range(270)]
    assert max(seen) == 100 + 9 + 2  # no text sees more than itself
    unlike = [Request((number, *range(60)), (1, 2)) for number in range(9)]
    assert all(reading.ends is None for reading in joined_by_beginning(readings(unlike), 4096))
    small = joined_by_beginning(readings(requests), 150)
    assert max(len(reading.tokens) for reading in small) <= 150
    assert sum(len(reading.targets) for reading in small) == 120


class Letters:
    """A token for each letter, begin token 1 and end token 2."""

    eos_id, begin_id = 2, 1

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


def test_pairs_are_encoded_as_lm_eval_does() -> None:
    request = encode_pair(Letters(), "a b ", "c")
    assert request == Request((1, 97, 32, 98), (32, 99))
    assert encode_pair(Letters(), "", "c") == Request((1,), (99,))
    plain: Any = type("Plain", (Letters,), {"begin_id": None})()
    assert encode_pair(plain, "a", "c") == Request((97,), (99,))
    assert encode_pair(plain, "", "c") == Request((2,), (99,))
    assert shortened(Request((1, 2, 3), (4, 5)), 3) == Request((2, 3), (4, 5))
    with pytest.raises(ValueError, match="3 tokens is longer"):
        shortened(Request((1,), (2, 3, 4)), 2)


def test_windows_score_every_token_once_with_as_much_context_as_there_is() -> None:
    ids, longest = list(range(10, 17)), 3
    found = windows(ids, 9, longest)
    assert [token for request in found for token in request.continuation] == ids
    assert found[0] == Request((9,), (10, 11, 12))
    assert found[-1] == Request((13, 14, 15), (16,))
    assert all(request.length <= longest for request in found)


def test_a_cache_survives_a_torn_line(tmp_path: Any) -> None:
    cache = Cache(tmp_path / "c.jsonl")
    cache.add([("a", [1.5, 2, 2])])
    with (tmp_path / "c.jsonl").open("a") as file:
        file.write('{"key": "b", "val')
    again = Cache(tmp_path / "c.jsonl")
    assert again.known == {"a": [1.5, 2, 2]}
    again.add([("b", [0.1, 1, 0])])
    assert Cache(tmp_path / "c.jsonl").known == {"a": [1.5, 2, 2], "b": [0.1, 1, 0]}


def test_a_score_that_is_no_number_is_refused() -> None:
    model = build_model(config_of("llama"), CPU, Ranks(), FP64)
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(FloatingPointError):
        Engine(model, device=CPU).score([Request((1,), (2,))])
