"""`python -m forge.generate` of several prompts: files, rows, layouts, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml

import forge
from forge import generate
from forge.training.prompts import read_prompts

Capture = pytest.CaptureFixture[str]
PROMPTS = ["the sea", "ship «é»\u2028", "a  ", "1"]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """PROMPTS as a .jsonl, under both names."""
    file = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"text": each, "id": 1}, ensure_ascii=False) for each in PROMPTS[:2]]
    lines += [json.dumps({"prompt": each, "text": "what followed"}) for each in PROMPTS[2:]]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def run(*words: object) -> int:
    return generate.main([str(word) for word in words])


def test_prompts_of_a_file(rows: Path, tmp_path: Path) -> None:
    assert read_prompts(rows) == PROMPTS
    text = tmp_path / "prompts.txt"
    text.write_bytes("the sea\r\nship «é»\u2028\na  ".encode())
    assert read_prompts(text) == PROMPTS[:3]


def test_the_assistant_answers(tiny_run: Path, tmp_path: Path, capsys: Capture) -> None:
    """What is read before the answer is what the chat template writes."""
    words = ["--tokens", 5, "--seed", 3]
    assert run(tiny_run, "--chat", "hi", "--system", "Be kind.", *words) == 0
    answer = capsys.readouterr().out
    assert run(tiny_run, "--prompt", "System: Be kind.\nUser: hi\nAssistant:", *words) == 0
    assert capsys.readouterr().out.partition("Assistant:")[2].strip() == answer.strip()
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    out = tmp_path / "out.jsonl"
    assert run(tiny_run, "--prompts", tmp_path / "a.jsonl", "--out", out, *words) == 0
    row = json.loads(out.read_text())
    assert (row["messages"], row["text"].strip()) == (messages, answer.strip())
    loaded = forge.load(tiny_run)
    assert loaded.chat(messages, max_new_tokens=5, seed=3) == answer.strip()
    assert loaded.chat("hi", max_new_tokens=5) == loaded.chat(messages[1:], max_new_tokens=5)


def test_rows_are_written_in_order_whatever_the_batch(
    tiny_run: Path, rows: Path, tmp_path: Path, capsys: Capture
) -> None:
    """As from Python with the same options; stderr has tokens and seconds."""
    outs = [tmp_path / "made" / f"{size}.jsonl" for size in (1, 3, 32)]
    options = ["--min-p", 0.01, "--repetition-penalty", 1.2, "--stop", "e", "--stop", "sh"]
    options += ["--tokens", 12, "--seed", 3, "--top-p", 0.9]
    for out in outs:
        size = ["--batch-size", out.stem]
        assert run(tiny_run, "--prompts", rows, "--out", out, *options, *size) == 0
        said = capsys.readouterr()
        assert said.out == ""
        count = sum(max(len(forge.load(tiny_run).tokenizer.encode(one)), 1) for one in PROMPTS)
        assert said.err.startswith(f"prefill: {count} tokens in ")
        assert "; decode: " in said.err
    first = outs[0].read_text(encoding="utf-8")
    assert all(out.read_text(encoding="utf-8") == first for out in outs)
    made = [json.loads(line) for line in first.split("\n")[:-1]]
    assert [row["prompt"] for row in made] == PROMPTS
    how = {"max_new_tokens": 12, "seed": 3, "min_p": 0.01, "repetition_penalty": 1.2}
    loaded = forge.load(tiny_run)
    texts = loaded.generate(PROMPTS, **how, top_p=0.9, stop=["e", "sh"])  # type: ignore[arg-type]
    assert [row["text"] for row in made] == texts
    assert {row["ended"] for row in made} <= {"stop", "end", "length"}
    assert all(1 <= row["tokens"] <= 12 for row in made)
    assert loaded.generate(PROMPTS[0], **how, top_p=0.9, stop="e").partition("sh")[0] == texts[0]


def test_samples_and_their_log_probabilities(tiny_run: Path, rows: Path, tmp_path: Path) -> None:
    """The first sample is what --n 1 writes; each log-probability is of the model's own softmax."""
    words = ["--prompts", rows, "--tokens", 6, "--seed", 3, "--logprobs", "--batch-size", 5]
    single, out = tmp_path / "single.jsonl", tmp_path / "several.jsonl"
    assert run(tiny_run, *words, "--out", single) == 0
    assert run(tiny_run, *words, "--out", out, "--n", 3) == 0
    made = [json.loads(line) for line in out.read_text(encoding="utf-8").split("\n")[:-1]]
    assert [(row["prompt"], row["sample"]) for row in made] == [
        (prompt, sample) for prompt in PROMPTS for sample in range(3)
    ]
    alone = [json.loads(line) for line in single.read_text(encoding="utf-8").split("\n")[:-1]]
    assert [row["text"] for row in alone] == [row["text"] for row in made[::3]]
    assert len({row["text"] for row in made[:3]}) > 1
    loaded = forge.load(tiny_run)
    for row in made[:4]:
        ids = loaded.tokenizer.encode(row["prompt"])
        text = torch.tensor([ids + row["ids"]])
        with torch.no_grad():
            said = loaded.model(text)[0, len(ids) - 1 : -1].log_softmax(-1)
        expected = said.gather(-1, torch.tensor(row["ids"])[:, None])[:, 0]
        assert len(row["ids"]) == len(row["logprobs"]) == row["tokens"]
        torch.testing.assert_close(torch.tensor(row["logprobs"]), expected, rtol=0, atol=1e-4)
    again = loaded.continuations(PROMPTS, n=3, logprobs=True, max_new_tokens=6, seed=3)
    assert [(each.text, each.ids) for each in again] == [(row["text"], row["ids"]) for row in made]


@pytest.mark.nightly
def test_several_ranks_write_the_same(
    tiny_run: Path, rows: Path, tmp_path: Path, capfd: Capture
) -> None:
    layout = "tp2"
    alone, out = tmp_path / "alone.jsonl", tmp_path / "spread.jsonl"
    options = ["--tokens", 10, "--seed", 1, "--stop", "e"]
    assert run(tiny_run, "--prompts", rows, "--out", alone, *options) == 0
    assert run(tiny_run, "--prompts", rows, "--out", out, *options, "--parallel", layout) == 0
    assert out.read_text() == alone.read_text()
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.count("prefill: ") == 2
    long = ["--prompt", "a", "--prompt", "x" * 99, "--parallel", layout]
    assert run(tiny_run, *long) == 2
    said = capfd.readouterr().err.strip()
    assert said.startswith("prompt 2 has ")
    assert said.endswith(" tokens, more than model.max_seq_len=32; shorten it")


FILES = {
    "a.csv": ("x", "{file}: prompts are in a file .txt or .jsonl"),
    "a.txt": ("", "{file} is empty; a prompt is a line of it"),
    "b.txt": (
        "a\n\nb\n",
        '{file}, line 2: it is empty; an empty prompt is {{"prompt": ""}} in a .jsonl',
    ),
    "c.txt": (b"a\xff", "{file} is no UTF-8 text: invalid start byte at byte 1"),
    "a.jsonl": (
        '{"text": "a"}\n{"text": 1}',
        '{file}, line 2: it has no text under "prompt" or "text"',
    ),
    "b.jsonl": ("[1]", '{file}, line 1: it has no text under "prompt" or "text"'),
    "c.jsonl": (
        '{"text": "a"',
        '{file}, line 1: it is no JSON; a row is such as {{"prompt": "The "}}',
    ),
    "d.jsonl": (None, "{file} cannot be read: No such file or directory"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_without_prompts_is_refused(name: str, tmp_path: Path, capsys: Capture) -> None:
    """Before the run is looked at."""
    content, said = FILES[name]
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert run(tmp_path / "absent", "--prompts", file) == 2
    assert capsys.readouterr() == ("", said.format(file=file) + "\n")


WORDS = {
    "--batch-size 0": "batch_size=0: must be at least 1",
    "--min-p 2": "min_p=2.0: must be at least 0 and at most 1",
    "--repetition-penalty 0": "repetition_penalty=0.0: must be above 0",
    "--tokens -1": "tokens=-1: must be at least 0",
    "--prompts {rows} --prompt a": "--prompt and --prompts: give one of them",
    "--n 0": "n=0: must be at least 1",
    "--n 2 --temperature 0": "n=2: with temperature=0 all would be the same; give it above 0",
    "--logprobs": "--logprobs: they are written to a file; add --out texts.jsonl",
    "--out x.txt": "--out x.txt: rows are written to a .jsonl",
    "--out {rows}": "{rows} exists; give another name, or --overwrite",
    "--parallel tp": "--parallel tp: it is such as tp2, fsdp4 or tp2,fsdp2: of tp, fsdp and ep "
    "each once",
    "--parallel tp2,tp2": "--parallel tp2,tp2: it is such as tp2, fsdp4 or tp2,fsdp2: of tp, fsdp "
    "and ep each once",
    "--parallel pp2": "--parallel pp2: the stages of a pipeline would wait for each other at every "
    "token; take tp",
    "--parallel tp4": "1 problem; nothing was started or written.\n"
    "  1. parallel.tp=4\n"
    "     model.n_heads (2) must be divisible by parallel.tp (4).",
    "--parallel ep2": "parallel.ep=2",
}


@pytest.mark.parametrize("words", WORDS)
def test_options_that_cannot_be_are_refused(
    words: str, tiny_run: Path, rows: Path, capsys: Capture
) -> None:
    assert run(tiny_run, *words.format(rows=rows).split()) == 2
    assert WORDS[words].format(rows=rows) in capsys.readouterr().err


def test_a_layout_needs_as_many_gpus(
    tiny_run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of a GPU is read by ranks on the CPU where there is none; torchrun is refused."""
    from forge.planning.world import Devices
    from forge.resolve import reading
    from forge.rundir import saved_config

    step = tiny_run / "checkpoints" / "step_6"
    config, meta = step / "config.yaml", step / "meta.json"
    plain = yaml.safe_load(config.read_text())
    plain["run"]["device"], plain["precision"]["mixed_precision"] = "cuda", "bf16"
    config.write_text(yaml.safe_dump(plain))
    about = json.loads(meta.read_text())
    about["files"]["config.yaml"] = config.stat().st_size
    del about["checksum"], about["sha256"]  # as a checkpoint of before them
    meta.write_text(json.dumps(about))
    monkeypatch.setattr(reading, "find_devices", lambda: Devices(gpus=1, source="NVML"))
    assert run(step, "--parallel", "tp2") == 2
    assert capsys.readouterr().err == "--parallel tp2: 2 GPUs, and there are 1\n"
    monkeypatch.setattr(reading, "find_devices", lambda: Devices(gpus=0, source="none"))
    made = reading.reading_config(saved_config.load_config(config, trust=()), "tp2")
    assert (made.run.device, made.precision.mixed_precision) == ("cpu", "fp32")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29999")
    assert run(step, "--parallel", "tp2") == 2
    said = "--parallel starts the ranks itself, on this machine; no torchrun or srun"
    assert capsys.readouterr().err == f"WORLD_SIZE=2: {said}\n"
