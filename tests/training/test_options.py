"""Options of training that no other test of this folder turns, and what a run shows of its text."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from run_helpers import built, read

from forge.generate import main as generate
from forge.rundir.files import read_rows
from forge.training.callbacks.samples import opening
from forge.training.checkpoints.restore import load_run
from forge.training.result import summary

EVALUATED = "eval.enabled=true eval.steps=1 eval.interval=100"
SAMPLES = f"{EVALUATED} 'eval.sample_prompts=[the sea,ship]'"


def test_a_loader_process_ends_for_its_rank_only(assembled):
    loader = assembled("data.num_workers=1").loader
    next(loader)
    (process,) = multiprocessing.active_children()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        code = f"import os; os.kill({process.pid}, {int(number)})"
        subprocess.run([sys.executable, "-c", code], check=True)
    next(loader)
    assert process.is_alive()
    os.kill(process.pid, signal.SIGTERM)
    process.join(5)
    assert process.exitcode == 0
    loader.close()


@pytest.mark.parametrize(("interval", "steps"), [(0, [5]), (2, [2, 4, 5]), (5, [5])])
def test_samples_of_each_prompt_are_those_of_the_model(trained, interval, steps):
    path = trained(
        f"train.max_steps=5 eval.sample_interval={interval} eval.sample_tokens=4 {SAMPLES}",
        "eval.sample_temperature=0",
    )
    samples = read_rows(path / "samples.jsonl")
    found = [(sample["step"], sample["prompt"]) for sample in samples]
    assert found == [(step, prompt) for step in steps for prompt in ("the sea", "ship")]
    run = load_run(path)
    tokens = run.tokenizer.encode("ship")
    for _ in range(4):
        with torch.no_grad():
            tokens.append(int(run.model(torch.tensor([tokens]))[0, -1].argmax()))
    assert "ship" + samples[-1]["text"] == run.tokenizer.decode(tokens)


def test_a_prompt_that_cannot_fit_is_refused_before_training(assembled):
    said = r"eval\.sample_prompts: a prompt has \d+ tokens, more than model\.max_seq_len=\d+; short"
    with pytest.raises(ValueError, match=said):
        assembled(f"eval.enabled=true eval.sample_prompts=[{'x' * 400}]")


def test_without_a_prompt_the_text_gives_one(trained, capsys):
    """The same in each run; the command that the summary advises continues it."""
    said = set()
    for _ in range(2):
        path = trained(EVALUATED, "eval.sample_tokens=3 metrics.enable_console=true")
        (sample,) = read_rows(path / "samples.jsonl")
        prompt = sample["prompt"]
        said.add(prompt)
        prepared = built(path).session.prepared
        assert re.fullmatch(r"\d+( [a-z]+){4}", prompt)
        assert prepared.tokenizer.decode(prepared.val.read(0, 50).tolist()).startswith(prompt)
        derived = {one["key"]: one["value"] for one in read(path / "derived.json")}
        assert derived["eval.sample_prompts"] == [prompt]
        lines = capsys.readouterr().out.splitlines()
        (advised,) = [shlex.split(line)[1:] for line in lines if line.startswith("  next ")]
        assert advised == ["python", "-m", "forge.generate", str(path), "--prompt", prompt]
        assert generate(advised[3:]) == 0
        assert capsys.readouterr().out.startswith(prompt)
    assert len(said) == 1


OPENINGS = [
    ("\n\n  \tTo be, or not  to be, that is\nthe question", 50, "To be, or not  to"),
    ("Αρχή\n", 3, "Α"),
    ("word " + "x" * 99, 50, "word " + "x" * 35),
    ("中" * 60, 200, "中" * 40),
    ("cut 中\ufffd", 50, "cut 中"),
    (" \n\n", 50, ""),
    ("To be", 0, ""),
]


@pytest.mark.parametrize(("text", "longest", "prompt"), OPENINGS)
def test_the_opening_of_a_split(text, longest, prompt):
    """At most five words and 40 characters of one line, and no more tokens than may be: here its
    bytes are the tokens.
    """

    class Bytes:
        begin_id, borders = None, frozenset([256])

        def encode(self, text):
            return list(text.encode())

        def decode(self, ids):
            return bytes(ids).decode(errors="replace")

    class Store(list):
        def read(self, start, stop):
            return np.array(self[start:stop])

    assert opening(Store([*text.encode(), 256]), Bytes(), longest) == prompt


def test_the_summary_says_how_to_train_longer(assembled):
    loop = assembled()
    loop.run()
    last = summary(loop, "end", loop.results()).splitlines()[-1]
    again = f"python -m forge.resume {loop.run_dir} train.max_steps=12"
    assert last == f"  resume with      {again}"


def test_weights_that_are_not_finite(trained, caplog, capsys):
    with caplog.at_level(logging.WARNING):
        path = trained("optimizer.lr=1e18 train.grad_clip_norm=0", SAMPLES)
    assert caplog.text.count("is not finite") == 1
    assert "no sample at step 6: the model's logits are not finite" in capsys.readouterr().out
    assert generate([str(path), "--prompt", "sea"]) == 2
    said = "the model's logits are not finite; its weights were trained to NaN or infinity\n"
    assert capsys.readouterr().err == said


def test_a_reader_that_leaves_early_does_not_fail_the_run(trained, monkeypatch):
    """Such as `head`."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        monkeypatch.setattr("sys.stdout", gone)
        path = trained("metrics.enable_console=true", SAMPLES)
    assert read(path / "result.json")["status"] == "finished"


def test_the_order_of_samples_has_a_seed_of_its_own_or_none(assembled):
    """Another seed of data leaves the weights as they are; without shuffling the text begins."""
    plain, other = assembled(), assembled("data.shuffle_seed=5")
    same, text = assembled("data.shuffle_seed=5 seed=7"), assembled("data.shuffle=false")
    rows = [next(loop.loader).batches[0]["tokens"] for loop in (plain, other, same, text)]
    assert not torch.equal(rows[0], rows[1])
    assert torch.equal(rows[1], rows[2])
    first, second, third = (next(loop.model.parameters()) for loop in (plain, other, same))
    assert torch.equal(first, second)
    assert not torch.equal(second, third)
    (store,) = text.session.prepared.train.stores.values()
    begins = store.read(0, rows[3].numel()).astype(np.int64)
    assert (rows[3].flatten().numpy() == begins).all()
