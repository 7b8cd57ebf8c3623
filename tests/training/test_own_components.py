"""Components that files name by `_target_` alone train, are saved and continue like forge's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helpers.tiny import TWO_LAYERS
from run_helpers import assert_bit_equal, built, logged, meta, step_of, stored, weights

from forge import cli, worker
from forge.config.problems import ConfigError
from forge.rundir import directory
from forge.training.checkpoints.restore import load_run

TRUST = ["mine18."]
RUN = [text for text in TWO_LAYERS if not text.startswith(("model.", "scheduler", "optimizer.b"))]
RUN += [f"run.trust=[{TRUST[0]}]", "run.inline=true", "train.max_steps=10", "checkpoint.interval=5"]
RUN += ["checkpoint.keep_last_n=0", "train.grad_clip_norm=0", "data.num_workers=0"]
MINE = """
from pathlib import Path

import torch
import torch.nn.functional as F
from forge.config.tokenizers.tokenizer import Bytes
from forge.data.text.corpus import Corpus
from forge.data.text.reading import text_document
from forge.data.tokenizers.tokenizer import byte_ids
from forge.models.head import head_of
from forge.objectives.losses import Losses
from forge.objectives.next_token import NextToken
from forge.objectives.objective import hidden_of
from torch import nn

def curve(step, warmup, max_steps):
    return min((step + 1) / warmup, 1 - step / max_steps)

class Closed(torch.optim.LBFGS):
    def __init__(self, params, lr):
        super().__init__(params[0]["params"], lr)

class GRULM(nn.Module):
    def __init__(self, vocab_size, dim=16, act=None):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim)
        self.gru = nn.GRU(dim, dim, 2, batch_first=True)
        self.act = act or nn.Identity()
        self.out = nn.Linear(dim, vocab_size)
        self.register_buffer("share", torch.tensor(0.5), persistent=False)

    def forward(self, tokens):
        return self.out(self.act(self.gru(self.embedding(tokens))[0])) * self.share

class Focal(NextToken):
    def __call__(self, model, batch):
        logits = head_of(model).logits(hidden_of(model, batch)).flatten(0, 1)
        ce = F.cross_entropy(logits, batch["targets"].flatten(), reduction="none")
        total = ((1 - (-ce).exp()) ** self.section.gamma * ce).sum()
        return Losses(total=total, sums={"ce": ce.detach().sum()})

def one_file(place):
    files = (Path(place),)
    return Corpus(name="text", source=place, files=files, reader="mine", read=text_document)

def letters(section, text):
    return byte_ids(Bytes(add_bos=section.begin_it), text=text)

class Narrow(GRULM):
    def forward(self, tokens):
        return super().forward(tokens)[..., :-1]

class Mean(GRULM):
    def forward(self, tokens):
        return super().forward(tokens).mean(1)

class Named(GRULM):
    def __init__(self, vocab_size):
        super().__init__(vocab_size)
        self.hidden = nn.Linear(3, 3)
"""
FILES = {
    "optimizer": "_target_: torch.optim.SGD\nmomentum: 0.9\n",
    "scheduler": "_target_: mine18.curve\nwarmup: 2\n",
    "model": "_target_: mine18.GRULM\nact: {_target_: torch.nn.GELU, _args_: [tanh]}\n",
}
Make = Callable[..., Path]


@pytest.fixture
def new(tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """The run directory of a run with components of one's own, as files of their groups say."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine18.py").write_text(MINE)

    def make(*overrides: str, **files: str) -> Path:
        for group, text in (FILES | files).items():
            file = tmp_path / "conf" / group / "mine.yaml"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        chosen = [f"{group}=mine" for group in FILES | files]
        text = ["data=text", f"data.path={text_file}"]
        chooses = {text.partition("=")[0] for text in overrides} | files.keys()
        given = tuple(f"{group}." for group in ("tokenizer", "data") if group in chooses)
        words = [text for text in [*RUN, *text] if not text.startswith((*given, "data=text"))]
        words += ["data=text"] if "data" not in files else []
        place = [f"run.root={tmp_path / 'runs'}", f"hydra.searchpath=[{tmp_path / 'conf'}]"]
        composition, resolution = cli.resolved([*words, *place, *chosen, *overrides])
        return directory.create(resolution, overrides=composition.overrides)[0]

    return make


def trained(run: Path) -> Path:
    assert worker.main([str(run), *TRUST]) == 0
    return run


def test_a_run_is_the_loop_that_one_would_write_in_plain_torch(new: Make):
    """With the model as its constructor makes it, torch's SGD, and the function of the step."""
    run = trained(new())
    loop = built(new())
    import mine18  # type: ignore[import-not-found]

    torch.manual_seed(loop.config.seed)
    rows = loop.config.model.vocab_size
    model = mine18.GRULM(rows, act=torch.nn.GELU("tanh"))
    assert_bit_equal(weights(loop.model), weights(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for number, step in zip(range(10), loop.loader, strict=False):
        optimizer.param_groups[0]["lr"] = 0.01 * min((number + 1) / 2, 1 - number / 10)
        (batch,) = step.batches
        loss = F.cross_entropy(model(batch["tokens"]).flatten(0, 1), batch["targets"].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert logged(run, "train/loss")[number + 1] == pytest.approx(loss.item(), rel=1e-6)
    loop.close(None)
    theirs = weights(load_run(run, trust=TRUST, fp32=True).model)
    for name, values in weights(model).items():
        torch.testing.assert_close(theirs[name], values, rtol=1e-5, atol=1e-7)


@pytest.mark.nightly
def test_they_go_on_as_if_never_stopped(new: Make):
    nadam = {"optimizer": "_target_: torch.optim.NAdam\n"}
    whole = trained(new(**nadam))
    resumed = trained(new(f"checkpoint.resume_from={whole}/checkpoints/step_5", **nadam))
    ours, theirs = (step_of(run, 10) for run in (resumed, whole))
    assert any("mu_product" in name for name in stored(ours)), "the state of NAdam is saved"
    assert_bit_equal(stored(ours), stored(theirs))
    assert meta(ours) == meta(theirs)


def test_text_tokenizer_and_objective_of_ones_own(new: Make, text_file: Path):
    """They are made to be what forge has, so that the numbers are the same."""
    files = {
        "data": f"_target_: mine18.one_file\nplace: {text_file}\nnum_workers: 0\n",
        "tokenizer": "_target_: mine18.letters\nbegin_it: true\nadd_bos: true\n",
        "objective": "_target_: mine18.Focal\ngamma: 0\n",
    }
    ours = trained(new("model.vocab_size=258", **files))
    theirs = new("tokenizer=bytes", "tokenizer.add_bos=true", "model.vocab_size=258")
    expected = logged(trained(theirs), "train/loss")
    assert logged(ours, "train/loss") == pytest.approx(expected, rel=1e-6)
    focal = trained(new("model.vocab_size=258", "objective.gamma=2", **files))
    assert logged(focal, "train/loss") != logged(ours, "train/loss")


REFUSED = {
    "its step computes the loss again, by a closure": {"optimizer": "_target_: mine18.Closed\n"},
    "Narrow gives 299 logits, and model.vocab_size=300 are": {"model": "_target_: mine18.Narrow\n"},
    r"Mean gives \(4, 300\) for tokens \(4, 16\), and no": {"model": "_target_: mine18.Mean\n"},
    "Named has a module called hidden": {"model": "_target_: mine18.Named\n"},
    "objective.loss_fn=chunked_cross_entropy makes logits": {"loss": "chunked_cross_entropy"},
    "mine18.curve builds a float, which is no": {"model": "_target_: mine18.curve\n"},
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_none_is_refused(new: Make, what: str):
    files = dict(REFUSED[what])
    loss = files.pop("loss", "cross_entropy")
    more = ["model.step=1", "model.warmup=1", "model.max_steps=1"] if "curve" in what else []
    with pytest.raises((ValueError, ConfigError), match=what):
        built(new(f"objective.loss_fn={loss}", *more, **files)).run()


def test_what_draws_random_numbers_is_named(new: Make, caplog: pytest.LogCaptureFixture):
    drops = "_target_: mine18.GRULM\nact: {_target_: torch.nn.Dropout, p: 0.1}\n"
    built(new(model=drops))
    assert "model._target_=mine18.GRULM: act draws random numbers" in caplog.text
