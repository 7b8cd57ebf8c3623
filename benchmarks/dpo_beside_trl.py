"""Tokens a second of DPO in forge and in TRL, on the same rows, interleaved.

    python benchmarks/dpo_beside_trl.py [--steps 12] [--times 2] [--threads 1]

A Llama of six layers in the shape of SmolLM2-135M (random weights, 49,152 rows of vocabulary), rows
of 40 to 57 tokens, 2 pairs a batch, fp32 on the CPU, at most 96 and 512 tokens a row. Seconds are
of the whole training, with the reference's log-probabilities: TRL computes them in each step, forge
before the first. Both begin with the same weights. Writes results/dpo_beside_trl.md beside this
file.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).resolve().with_name("results")
LENGTHS = (96, 512)
PAIRS = 2
BETA, RATE = 0.1, 1e-5
WORDS = ("the", "of", "and", "to", "in", "is", "it", "for", "on", "with", "from", "that", "this")


def main() -> None:
    """Run all, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--steps", type=int, default=12)
    add("--times", type=int, default=2)
    add("--threads", type=int, default=1)
    add("--trl", nargs=2, metavar=("FOLDER", "LENGTH"), help="the side of TRL alone")
    options = parser.parse_args()
    if options.trl:
        print(json.dumps(of_trl(Path(options.trl[0]), int(options.trl[1]), options)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tokens = write_inputs(folder, options.steps * PAIRS)
        found: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for number in range(options.times):
            for length in LENGTHS:
                ours = of_forge(folder, length, number, options)
                found.setdefault(("forge", length), []).append(ours)
                found.setdefault(("TRL", length), []).append(run_trl(folder, length, options))
    (RESULTS / "dpo_beside_trl.md").write_text(table(found, tokens, options), encoding="utf-8")


def table(found: dict[tuple[str, int], list[dict[str, Any]]], tokens: int, options: Any) -> str:
    """The page of results; tokens: of all rows, those of the prompts once a response."""
    import torch
    import transformers
    import trl

    versions = f"torch {torch.__version__}, TRL {trl.__version__}, "
    versions += f"transformers {transformers.__version__}, {platform.machine()}"
    command = " ".join(["python", "benchmarks/dpo_beside_trl.py", *sys.argv[1:]])
    lines = ["# DPO beside TRL\n", f"`{command}`, {versions}, {options.threads} thread.\n"]
    lines += [(__doc__ or "").partition("\n\n    ")[0] + "\n"]
    lines += [f"{options.steps} steps of {PAIRS} pairs, {tokens:,} tokens in all rows.\n"]
    lines += [
        "| at most | | seconds | tokens a second | forge / TRL |",
        "|---:|---|---:|---:|---:|",
    ]
    for length in LENGTHS:
        speeds = {}
        for name in ("forge", "TRL"):
            seconds = [each["seconds"] for each in found[name, length]]
            speeds[name] = tokens / median(seconds)
            shown = ", ".join(f"{each:.1f}" for each in seconds)
            ratio = f"{speeds['forge'] / speeds['TRL']:.2f}" if name == "TRL" else ""
            lines.append(f"| {length} | {name} | {shown} | {speeds[name]:,.0f} | {ratio} |")
    lines += ["\nLosses of the steps:\n", "| at most | | |", "|---:|---|---|"]
    for (name, length), runs in found.items():
        losses = " ".join(f"{loss:.4f}" for loss in runs[0]["losses"])
        lines.append(f"| {length} | {name} | {losses} |")
    return "\n".join(lines) + "\n"


def write_inputs(folder: Path, pairs: int) -> int:
    """A model's folder and rows; returns the tokens of both responses, each behind its prompt."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: number for number, letter in enumerate(letters)}
    raw = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(["<|endoftext|>", "<|pad|>"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|endoftext|>", pad_token="<|pad|>"
    )
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=6,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=256,
        pad_token_id=257,
    )
    LlamaForCausalLM(shape).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    draw, total = random.Random(0), 0

    def text(letters: int) -> str:
        words = " ".join(draw.choice(WORDS) for _ in range(letters))
        return words[:letters].strip()

    with (folder / "rows.jsonl").open("w") as file:
        for _ in range(pairs):
            prompt = text(24) + "?"
            sides = {side: " " + text(draw.randint(16, 32)) for side in ("chosen", "rejected")}
            total += sum(len(prompt) + len(side) + 1 for side in sides.values())
            file.write(json.dumps({"prompt": prompt} | sides) + "\n")
    return total


def of_forge(folder: Path, length: int, number: int, options: Any) -> dict[str, Any]:
    """Seconds and losses of `forge.train`."""
    run = folder / f"forge-{length}-{number}"
    words = f"model=hf model.path={folder / 'model'} data=preference objective=dpo"
    words += f" data.path={folder / 'rows.jsonl'} data.val_fraction=0 data.shuffle=false eval=off"
    words += f" data.cache_dir={run}-cache optimizer=adamw_finetune optimizer.lr={RATE}"
    words += f" objective.beta={BETA} scheduler=none train.grad_clip_norm=0 train.seq_len={length}"
    words += f" train.batch_size={PAIRS} train.global_batch_size={PAIRS} data.num_workers=0"
    words += f" train.max_steps={options.steps} run.device=cpu run.num_threads={options.threads}"
    words += f" checkpoint.enabled=false metrics.log_interval=1 run.dir={run} ~callbacks.samples"
    command = [sys.executable, "-u", "-m", "forge.train", *words.split()]
    begin, steps = 0.0, []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("computing the reference"):
                begin = time.perf_counter()
            if line.startswith("step "):
                steps.append(time.perf_counter())
    if process.returncode or not begin or len(steps) != options.steps:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    return {"seconds": steps[-1] - begin, "losses": losses}


def run_trl(folder: Path, length: int, options: Any) -> dict[str, Any]:
    """Seconds and losses of TRL, in a process of its own."""
    command = [sys.executable, __file__, "--trl", str(folder), str(length)]
    command += ["--steps", str(options.steps), "--threads", str(options.threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def of_trl(folder: Path, length: int, options: Any) -> dict[str, Any]:
    """The same rows, in the same order, by TRL's DPOTrainer."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.dpo_trainer import DPOTrainer

    torch.set_num_threads(options.threads)
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    config = DPOConfig(
        output_dir=str(folder / f"trl-{length}"),
        use_cpu=True,
        bf16=False,
        report_to="none",
        beta=BETA,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        weight_decay=0.0,
        per_device_train_batch_size=PAIRS,
        max_steps=options.steps,
        max_length=length,
        logging_steps=1,
        gradient_checkpointing=False,
        save_strategy="no",
        dataloader_num_workers=0,
        disable_tqdm=True,
    )

    class InOrder(DPOTrainer):
        def _get_train_sampler(self, *args: Any, **more: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)  # type: ignore[arg-type]

    model, reference = (
        AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
        for _ in range(2)
    )
    trainer = InOrder(
        model=model,
        ref_model=reference,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
    )
    found = trainer.train()
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    return {"seconds": found.metrics["train_runtime"], "losses": [float(x) for x in losses]}


if __name__ == "__main__":
    main()
