"""One model, one set of rows, and the settings of both sides, for benchmarks beside TRL."""

from __future__ import annotations

import json
import platform
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"
WORDS = ("the", "of", "and", "to", "in", "is", "it", "for", "on", "with", "from", "that", "this")
END, PAD = 256, 257


def write_model(folder: Path, **shape: Any) -> None:
    """A Llama with random weights and a tokenizer of bytes, as a Hugging Face folder."""
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
    config = LlamaConfig(
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=PAD,
        **shape,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def prose(draw: random.Random, letters: int) -> str:
    """Words, at most this many letters."""
    return " ".join(draw.choice(WORDS) for _ in range(letters))[:letters].strip()


def pair(draw: random.Random) -> dict[str, str]:
    """A prompt and two responses to it."""
    prompt = prose(draw, 24) + "?"
    sides = {side: " " + prose(draw, draw.randint(16, 32)) for side in ("chosen", "rejected")}
    return {"prompt": prompt} | sides


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Reads JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def forge_words(run: Path, model: Path, rows: Path, options: Any) -> list[str]:
    """Overrides of every run: rows in their order, AdamW at one rate, no clipping, fp32, CPU.

    options: its rate, batch, length, steps and threads.
    """
    words = f"model=hf model.path={model} data.path={rows} data.val_fraction=0 data.shuffle=false"
    words += f" eval=off data.cache_dir={run}-cache data.num_workers=0 optimizer=adamw_finetune"
    words += f" optimizer.lr={options.rate} scheduler=none train.grad_clip_norm=0"
    words += f" train.seq_len={options.length} train.batch_size={options.batch}"
    words += f" train.global_batch_size={options.batch} train.max_steps={options.steps}"
    words += f" run.device=cpu run.num_threads={options.threads} run.dir={run}"
    words += " checkpoint.enabled=false metrics.log_interval=1 ~callbacks.samples"
    return words.split()


def forge_losses(run: Path) -> list[float]:
    """Losses of a run's steps."""
    return [row["train/loss"] for row in read_rows(run / "metrics.jsonl") if "train/loss" in row]


def trl_settings(folder: Path, options: Any) -> dict[str, Any]:
    """Arguments of every config of TRL that say what `forge_words` says."""
    return {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "learning_rate": options.rate,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "weight_decay": 0.0,
        "per_device_train_batch_size": options.batch,
        "max_steps": options.steps,
        "max_length": options.length,
        "logging_steps": 1,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "dataloader_num_workers": 0,
        "disable_tqdm": True,
    }


class InOrder:
    """Mixed into a trainer: it reads its rows in their order."""

    train_dataset: Any

    def _get_train_sampler(self, *args: Any, **more: Any) -> Any:
        from torch.utils.data import SequentialSampler

        return SequentialSampler(self.train_dataset)


def plain_model(folder: Path) -> Any:
    """transformers' model in fp32."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def train_by_trl(trainer: Any) -> dict[str, Any]:
    """Seconds and losses of the steps of a trainer."""
    seconds = trainer.train().metrics["train_runtime"]
    losses = [float(each["loss"]) for each in trainer.state.log_history if "loss" in each]
    return {"seconds": seconds, "losses": losses}


def in_a_process(script: str, *words: str) -> Any:
    """What a script prints as its last line, in JSON."""
    command = [sys.executable, script, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def versions(*packages: str) -> str:
    """Versions of torch, TRL, transformers and other packages, and the machine."""
    from importlib.metadata import version

    names = {"torch": "torch", "trl": "TRL", "transformers": "transformers"}
    names |= {package: package for package in packages}
    shown = [f"{name} {version(package)}" for package, name in names.items()]
    return ", ".join([*shown, platform.machine()])
