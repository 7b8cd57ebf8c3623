"""Texts after prompts: where they end, what else is in the batch, and on which layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.ranks import on_ranks
from torch import Tensor, nn

from forge.data.tokenizers.tokenizer import Tokenizer
from forge.resolve.reading import reading_config
from forge.training.checkpoints.restore import Trained, load_run
from forge.training.models import load_on_ranks
from forge.training.writing import Writer

CPU = torch.device("cpu")
TEXT = "said the white captain: «the sea» and the ship\n\n# «white» whale, said the man"
PROMPTS = ["the sea", "", "ship and whale 0.123", "a", "1"]


class Scripted(nn.Module):
    """Writes given tokens, whatever it reads, and then the last of them."""

    def __init__(self, script: list[int], vocab: int) -> None:
        super().__init__()
        self.script, self.output_weight = torch.tensor(script), torch.eye(vocab)
        self.max_seq_len = 200
        self.began = 0

    def hidden(self, tokens: Tensor) -> Tensor:
        self.began = self.began or tokens.shape[1]
        place = tokens.shape[1] - self.began
        script = self.script[min(place, len(self.script) - 1)]
        return self.output_weight[script].expand(*tokens.shape, -1)


@pytest.fixture
def trained(tiny_run: Path) -> Trained:
    return load_run(tiny_run)


def scripted(trained: Trained, **options) -> Writer:
    ids = [*trained.tokenizer.encode(TEXT), trained.tokenizer.eos_id]
    model = Scripted(ids, trained.tokenizer.vocab_size)
    return Writer(model, trained.tokenizer, CPU, tokens=150, temperature=0, **options)


def fewest(tokenizer: Tokenizer, stop: str) -> int:
    """Tokens of TEXT that spell the first `stop`."""
    ids = tokenizer.encode(TEXT)
    return next(n for n in range(1, len(ids) + 1) if stop in tokenizer.decode(ids[:n]))


def test_a_text_ends_before_a_stop_string_wherever_tokens_do(trained) -> None:
    """Of any length, at any place, of several bytes a character; no token more is drawn."""
    stops = {TEXT[i : i + n] for n in (1, 2, 5, 9, 30) for i in range(0, len(TEXT) - n, 3)}
    assert len(stops) > 80
    inside = 0
    for stop in sorted(stops):
        (made,) = scripted(trained, stop=[stop]).write(["x"])
        assert made.text == TEXT.partition(stop)[0]
        drawn = fewest(trained.tokenizer, stop)
        assert (made.ended, made.tokens) == ("stop", drawn)
        inside += trained.tokenizer.decode(trained.tokenizer.encode(TEXT)[:drawn]) != (
            made.text + stop
        )
    assert inside > 10  # their last token has more than the string


def test_why_a_text_ends(trained) -> None:
    count = len(trained.tokenizer.encode(TEXT)) + 1
    (made,) = scripted(trained, stop=["sea", "white", "never"]).write(["x"])
    assert (made.text, made.ended) == ("said the ", "stop")
    (made,) = scripted(trained, stop=["never"]).write(["x"])
    assert (made.text, made.ended, made.tokens) == (TEXT, "end", count)
    writer = Writer(Scripted(trained.tokenizer.encode(TEXT), 300), trained.tokenizer, CPU, tokens=3)
    (made,) = writer.write(["x"])
    assert (made.ended, made.tokens) == ("length", 3)


def writer(trained: Trained, **options) -> Writer:
    return Writer(trained.model, trained.tokenizer, trained.device, tokens=9, **options)


def test_a_text_is_the_same_in_any_batch(trained) -> None:
    """It has the stream of its place among all prompts."""
    options = {"temperature": 1.2, "seed": 5, "stop": ["e "]}
    whole = list(writer(trained, **options).write(PROMPTS))
    for size in (1, 2, 3):
        assert list(writer(trained, **options, batch_size=size).write(PROMPTS)) == whole
    changed = list(writer(trained, **options).write(["the whale", *PROMPTS[1:]]))
    assert changed[1:] == whole[1:]
    same = [made.text for made in writer(trained, **options).write(["sea"] * 6)]
    assert len(set(same)) == 6


def test_what_was_read_and_written_is_counted(trained) -> None:
    one = writer(trained, temperature=0)
    made = list(one.write(PROMPTS))
    encoded = [len(trained.tokenizer.encode(prompt)) or 1 for prompt in PROMPTS]
    assert one.speed.read == sum(encoded)
    assert one.speed.written == sum(each.tokens for each in made) - len(PROMPTS)
    assert one.speed.reading > 0 < one.speed.writing


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "batch_size=0: must be at least 1"),
        ({"stop": ["a", ""]}, "stop='': every text begins with it; give a text that is not empty"),
        ({"min_p": 2.0}, "min_p=2.0: must be at least 0 and at most 1"),
    ],
)
def test_options_that_cannot_be(trained, options, said) -> None:
    with pytest.raises(ValueError, match=said):
        writer(trained, **options)


def test_too_long_a_prompt_is_named(trained) -> None:
    said = r"prompt 2 has \d+ tokens, more than model.max_seq_len=32; shorten it"
    with pytest.raises(ValueError, match=said):
        next(writer(trained).write(["a", "x" * 99]))


@pytest.mark.parametrize(
    ("layout", "precision"), [("tp2", "fp32"), ("fsdp2", "fp32"), ("fsdp2", "bf16")]
)
def test_ranks_write_what_one_device_writes(trained, layout, precision) -> None:
    """No weight is drawn before those of the checkpoint are loaded."""
    trained.config.thaw()
    trained.config.precision.mixed_precision = precision
    trained.config.freeze()
    options = {"temperature": 1.2, "seed": 2, "repetition_penalty": 1.1, "min_p": 0.01}
    if precision == "bf16":
        for parameter in trained.model.parameters():
            parameter.data = parameter.bfloat16()
    expected = list(writer(trained, **options).write(PROMPTS))
    config = reading_config(trained.config, layout)

    def work(_: int) -> None:
        from forge.parallel.mesh import make_mesh
        from forge.parallel.ranks import Ranks

        ranks = Ranks(
            rank=torch.distributed.get_rank(), size=2, mesh=make_mesh(config.parallel, "cpu")
        )
        model = load_on_ranks(trained.path, config, ranks, CPU)
        dtypes = {parameter.dtype for parameter in model.model.parameters()}
        assert dtypes == {torch.float32 if precision == "fp32" else torch.bfloat16}
        agree = ranks.copy_from_main
        assert list(writer(model, **options, agree=agree).write(PROMPTS)) == expected

    on_ranks(2, work)
