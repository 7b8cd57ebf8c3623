"""A trained model from Python: the same text, numbers and logits as the verbs and the run have."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import forge
from forge import generate
from forge.rundir import checkpoints, outcome
from forge.rundir.checkpoints import CheckpointError


@pytest.fixture
def texts(text_file: Path) -> list[str]:
    return text_file.read_text().splitlines()[:40]


def test_what_it_is(tiny_run: Path) -> None:
    result = outcome.read_result(tiny_run)
    assert result is not None
    loaded = forge.load(result)
    assert (loaded.step, loaded.path.name, loaded.device.type) == (6, "step_6", "cpu")
    assert not loaded.model.training
    assert loaded.config.optimizer.lr == 0.01
    assert repr(loaded) == f"Decoder of step 6 on cpu, from {loaded.path}"


def test_it_writes_what_the_verb_writes(tiny_run: Path, capsys: pytest.CaptureFixture) -> None:
    loaded, prompts = forge.load(tiny_run), ["the sea", "", "ship"]
    words = [word for prompt in prompts for word in ("--prompt", prompt)]
    assert generate.main([str(tiny_run), "--tokens", "12", "--seed", "3", *words]) == 0
    written = loaded.generate(prompts, max_new_tokens=12, seed=3)
    told = "".join(f"{prompt}{text}\n" for prompt, text in zip(prompts, written, strict=True))
    assert capsys.readouterr().out == told
    assert loaded.generate("the sea", max_new_tokens=12, seed=3) == written[0]


def test_every_evaluation_of_the_run_is_repeated_to_the_bit(tiny_run: Path) -> None:
    """Of each checkpoint, which the run evaluated as it was saved."""
    result = outcome.read_result(tiny_run)
    assert result is not None
    rows = result.history("eval/loss", "eval/perplexity", "eval/bits_per_byte")
    for row in rows:
        found = forge.load(tiny_run, row["step"]).evaluate()
        for name in ("loss", "perplexity", "bits_per_byte"):
            assert found[name] == row[f"eval/{name}"]
    assert len(rows) == 3
    best = min(rows, key=lambda row: row["eval/loss"])["step"]
    meta = json.loads((tiny_run / "checkpoints" / f"step_{best}" / "meta.json").read_text())
    assert meta["best_by"] == "loss"
    assert forge.load(tiny_run, step="best").step == best


def test_logits_are_of_what_follows(tiny_run: Path) -> None:
    loaded, text = forge.load(tiny_run), "the sea and the ship"
    ids, logits = loaded.tokenizer.encode(text), loaded.logits(text)
    assert logits.shape == (len(ids), loaded.tokenizer.vocab_size)
    greedy = loaded.generate(text, max_new_tokens=1, temperature=0)
    assert loaded.tokenizer.decode([int(logits[-1].argmax())]) == greedy
    loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]))
    found = loaded.evaluate([text])  # and the end of the document
    end = torch.nn.functional.cross_entropy(logits[-1], torch.tensor(loaded.tokenizer.eos_id))
    together = (float(loss) * (len(ids) - 1) + float(end)) / len(ids)
    assert found["loss"] == pytest.approx(together, abs=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    with pytest.raises(
        ValueError, match=r"the text has \d+ tokens, more than model.max_seq_len=32"
    ):
        loaded.logits(text * 9)


def test_other_text_is_evaluated_whole(tiny_run: Path, tmp_path: Path, texts: list[str]) -> None:
    """A list of documents, a file of them, and options of data say the same."""
    file = tmp_path / "other.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    loaded = forge.load(tiny_run)
    found = loaded.evaluate(texts)
    assert found == loaded.evaluate(file) == loaded.evaluate({"path": str(file)})
    joined = np.concatenate(
        [loaded.tokenizer.document(loaded.tokenizer.encode(text)) for text in texts]
    )
    windows = [joined[i : i + 17].astype(np.int64) for i in range(0, len(joined) - 1, 16)]
    total = 0.0
    for window in windows:
        with torch.no_grad():
            logits = loaded.model(torch.from_numpy(window[None, :-1]))[0]
        wanted = torch.from_numpy(window[1:])
        total += float(torch.nn.functional.cross_entropy(logits, wanted, reduction="sum"))
    assert found["loss"] == pytest.approx(total / (len(joined) - 1), abs=1e-6)


def test_what_cannot_be_evaluated(tiny_run: Path, tmp_path: Path, text_file: Path) -> None:
    loaded = forge.load(tiny_run)
    with pytest.raises(ValueError, match="the documents have no token to predict"):
        loaded.evaluate([""])
    with pytest.raises(ValueError, match=r"evaluate\(.*\): .*nowhere"):
        loaded.evaluate(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="has no option 'pahts'"):
        loaded.evaluate({"pahts": "x"})
    said = "the run's objective reads running text, and this is pairs of responses; name other data"
    with pytest.raises(ValueError, match=said):
        loaded.evaluate({"data": "preference", "path": str(text_file)})
    original = text_file.read_text()
    try:
        text_file.write_text(original.replace("0 ", "1 ", 1))
        with pytest.raises(ValueError, match=r"the text of the run, .* has changed; name a text"):
            loaded.evaluate()
    finally:
        text_file.write_text(original)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"step": 3}, "has no such checkpoint, but those of steps 2, 4, 6; or"),
        ({"step": "bets"}, "step='bets': "),
        ({"device": "tpu"}, "device='tpu': it is cpu, cuda, cuda:N or mps"),
        ({"device": "mps"}, "device='mps': torch finds no such Apple GPU"),
        ({"device": "cuda:99"}, r"device='cuda:99': there are \d+ GPUs"),
    ],
)
def test_what_cannot_be_loaded(how: dict, said: str, tiny_run: Path) -> None:
    with pytest.raises(ValueError, match=said):
        forge.load(tiny_run, **how)


def test_code_of_others_is_trusted_by_name(tiny_run: Path) -> None:
    step = tiny_run / "checkpoints" / "step_6"
    config, meta = step / "config.yaml", step / "meta.json"
    config.write_text(config.read_text().replace("_type_: decoder", "_type_: mypkg.Mine"))
    about = json.loads(meta.read_text())
    about["files"]["config.yaml"] = config.stat().st_size
    del about["checksum"], about["sha256"]  # as a checkpoint of before them
    meta.write_text(json.dumps(about))
    for how, said in (({}, r"in Python trust=\['mypkg\.'\]"), ({"trust": ["mypkg."]}, "mypkg")):
        with pytest.raises(ValueError, match=said):
            forge.load(tiny_run, **how)


def test_one_checkpoint_is_taken_as_it_is(tiny_run: Path, tmp_path: Path) -> None:
    (one,) = (c for c in checkpoints.list_checkpoints(tiny_run / "checkpoints") if c.step == 4)
    assert forge.load(one.path, device="cpu").step == 4
    with pytest.raises(CheckpointError, match=r"is one checkpoint; leave step='best' out"):
        forge.load(one.path, "best")
    with pytest.raises(CheckpointError, match="there is no such directory"):
        forge.load(tmp_path / "nowhere")
