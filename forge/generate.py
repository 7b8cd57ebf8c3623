"""`python -m forge.generate RUN --prompt TEXT`: let a trained model continue texts.

Examples:
    python -m forge.generate runs/mine --prompt 'def ' --tokens 100 --temperature 0.8
    python -m forge.generate runs/mine --chat 'What is 2+2?' --system 'Be brief.'
    python -m forge.generate runs/mine --prompts prompts.txt --out texts.jsonl --stop '###'
    python -m forge.generate runs/mine --prompts prompts.jsonl --out texts.jsonl --parallel tp2
    python -m forge.generate runs/mine --prompts prompts.jsonl --out texts.jsonl --n 4 --logprobs
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge import cli
from forge.compose.trust import for_run
from forge.config.eval import EMA, TRAINED
from forge.rundir import checkpoints, saved_config
from forge.rundir.checkpoints import BEST
from forge.rundir.files import replacing
from forge.rundir.remote.local_copy import local_copy_of
from forge.rundir.saved_config import CONFIG
from forge.training.prompts import Prompt, read_prompts

if TYPE_CHECKING:
    from forge.training.writing import Writer

DRAWING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
WRITING = (*DRAWING, "tokens", "stop", "batch_size", "n", "logprobs", "speculate")
"""Options that forge.training.writing.Writer takes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the prompts with their continuations; exit 2 for a run without a usable checkpoint."""
    parser = reader("forge.generate", "Continue texts with the newest checkpoint of a run.")
    add = parser.add_argument
    text = "text to continue, or several (default: a new document)"
    add("--prompt", action="append", metavar="TEXT", help=text)
    asked = "what a user says, or several; the assistant answers, by the run's chat template"
    add("--chat", action="append", metavar="TEXT", help=asked)
    add("--system", metavar="TEXT", help="the system turn before each --chat")
    rows = 'a .txt, a line a prompt, or a .jsonl with "prompt" or "text", or with "messages"'
    add("--prompts", type=Path, metavar="FILE", help=rows)
    written = "write a row each to a .jsonl: prompt, text, tokens, and what ended it"
    add("--out", type=Path, metavar="FILE", help=written)
    add("--overwrite", action="store_true", help="replace the file where there is one")
    add("--tokens", type=int, default=128, help="tokens to add at most (default 128)")
    several = "texts for each prompt, each drawn by itself (default 1)"
    add("--n", type=int, default=1, metavar="N", help=several)
    logprobs = "with --out: the id of each token, and the logarithm of what the model gave it"
    add("--logprobs", action="store_true", help=logprobs)
    add_sampling(parser)
    stops = "end a text before this string, or the first of several"
    add("--stop", action="append", default=[], metavar="TEXT", help=stops)
    add("--seed", type=int, default=0, help="the same seed writes the same text (default 0)")
    spread = "read the model on several devices, as tp2 or tp2,fsdp2, of tp, fsdp and ep"
    add("--parallel", metavar="LAYOUT", help=spread)
    own = "with --temperature 0: draft tokens by the model's own modules for further tokens"
    add("--speculate", action="store_true", help=own)
    at_once = "prompts that are continued at once (default 32)"
    add("--batch-size", type=int, default=32, metavar="N", help=at_once)
    try:
        return _generate(parser.parse_args(argv))
    except (ValueError, FloatingPointError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the options by which each token is drawn."""
    add = parser.add_argument
    heat = "0 = always the likeliest token (default 0.8)"
    add("--temperature", type=float, default=0.8, help=heat)
    add("--top-k", type=int, default=50, help="among the k likeliest; 0 = all (default 50)")
    most = "among the likeliest that reach this probability (default 1)"
    add("--top-p", type=float, default=1.0, help=most)
    least = "among those with this share of the likeliest one's probability (default 0)"
    add("--min-p", type=float, default=0.0, help=least)
    penalty = "above 1: what the text has is less likely (default 1)"
    add("--repetition-penalty", type=float, default=1.0, help=penalty)


def reader(prog: str, description: str) -> cli.Parser:
    """A parser for a verb loading the weights of a run."""
    parser = cli.Parser(prog, description)
    run = (
        "a run directory, or one of its step_N checkpoints; also of a store, s3://bucket/runs/mine"
    )
    parser.add_argument("run", type=cli.run_or_address, help=run)
    best = "the best checkpoint by the run's eval.metric, instead of the newest"
    parser.add_argument("--best", action="store_true", help=best)
    mean = "the moving mean of the weights (train.ema_decay), instead of the trained ones"
    parser.add_argument("--ema", action="store_true", help=mean)
    trust = "also build the model from modules like mypkg."
    parser.add_argument("--trust", action="append", default=[], metavar="PREFIX", help=trust)
    return parser


def checkpoint_path(options: argparse.Namespace) -> Path:
    """The requested checkpoint or run; refused without a usable checkpoint, before the import of
    torch, of several seconds.
    """
    if isinstance(options.run, str):  # an address
        options.run = local_copy_of(f"{options.run}/{BEST}" if options.best else options.run)
        options.best = False
    path = options.run / BEST if options.best else options.run
    checkpoints.find_checkpoint(path)
    return path


def _generate(options: argparse.Namespace) -> int:
    prompts, out = _prompts(options), options.out
    if out is not None and out.suffix != ".jsonl":
        raise ValueError(f"--out {out}: rows are written to a .jsonl")
    if out is not None and out.exists() and not options.overwrite:
        raise ValueError(f"{out} exists; give another name, or --overwrite")
    if options.logprobs and out is None:
        raise ValueError("--logprobs: they are written to a file; add --out texts.jsonl")
    if options.speculate and options.parallel is not None:
        raise ValueError("--speculate: drafts are made on one device; leave --parallel out")
    path = checkpoint_path(options)
    trust, weights = for_run(path, options.trust), EMA if options.ema else TRAINED
    writer_options = {name: getattr(options, name) for name in WRITING}
    if options.parallel is not None:
        read = partial(_on_ranks, trust, options.parallel, prompts, out, writer_options, weights)
        return checkpoints.read_checkpoint(path, read)
    from forge.training.checkpoints.restore import load_run
    from forge.training.writing import Writer

    trained = load_run(path, trust=trust, weights=weights)
    writer = Writer(trained.model, trained.tokenizer, trained.device, **writer_options)
    write_texts(writer, prompts, out)
    return 0


def _prompts(options: argparse.Namespace) -> list[Prompt]:
    sources = {"--prompt": options.prompt, "--chat": options.chat, "--prompts": options.prompts}
    several = [name for name, value in sources.items() if value]
    if len(several) > 1:
        raise ValueError(f"{' and '.join(several)}: give one of them")
    if options.system is not None and not options.chat:
        raise ValueError("--system: it stands before what a user says; give that with --chat")
    if options.prompts is not None:
        return read_prompts(options.prompts)
    system = [] if options.system is None else [{"role": "system", "content": options.system}]
    asked = options.chat or ()
    chats: list[Prompt] = [[*system, {"role": "user", "content": text}] for text in asked]
    return chats or options.prompt or [""]


def _on_ranks(
    trust: Sequence[str],
    layout: str,
    prompts: list[Prompt],
    out: Path | None,
    how: dict[str, Any],
    weights: str,
    saved: checkpoints.Saved,
) -> int:
    """Start the ranks of a layout, with the main rank writing, and return the exit code. Raises
    Damaged for a checkpoint found damaged by the ranks.
    """
    from forge.launch.local.verb_ranks import run_on_ranks
    from forge.resolve.reading import reading_config

    checkpoint_dir = saved.path.resolve()
    config = reading_config(saved_config.load_config(checkpoint_dir / CONFIG, trust=trust), layout)
    config = replace(config, eval=replace(config.eval, weights=weights))
    request = {"path": str(checkpoint_dir), "prompts": prompts, "out": out and str(out), "how": how}
    module = "forge.generate_worker"
    return run_on_ranks(module, config, request, saved, words="--parallel", trust=trust)[0]


def write_texts(
    writer: Writer, prompts: Sequence[Prompt], out: Path | None, *, main: bool = True
) -> None:
    """Print prompts with continuations, and answers of the assistant, or write all of them to a
    file, visible only when complete; then print the speed. Called on all ranks, written by the main
    rank.
    """
    texts = writer.write(prompts)
    asked = [prompt for prompt in prompts for _ in range(writer.n)]
    if not main:
        for _ in texts:
            pass
        return
    if out is None:
        for prompt, text in zip(asked, texts, strict=True):
            is_text = isinstance(prompt, str)
            print(prompt + text.text if is_text else text.text.strip(), flush=True)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as scratch, scratch.open("w", encoding="utf-8") as file:
            for prompt, text in zip(asked, texts, strict=True):
                name = "prompt" if isinstance(prompt, str) else "messages"
                row = {name: prompt, **text.row()}
                print(json.dumps(row, ensure_ascii=False), file=file)
    print(writer.speed, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
