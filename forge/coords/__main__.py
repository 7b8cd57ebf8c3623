"""`python -m forge.coords [overrides]`: a coordinate check: trains a few steps at several widths or
depths, and writes a page with the changes of activations by size, beside those without scaling.

Examples:
    python -m forge.coords scaling=mup optimizer=adamw
    python -m forge.coords scaling=completep optimizer=adamw --depths 2,4,8,16 --widths 64
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from forge import cli
from forge.config.problems import COMMAND_LINE, refusal
from forge.coords.page import Measured, markdown, page

DESCRIPTION = (
    "Train a few steps on one batch at several widths or depths, under the scaling of the "
    "overrides and without, and write a page: changes of activations by size. Flat lines mean that "
    "rates found at one size hold at another."
)
SETUP = (
    *("data=synthetic", "tokenizer=bytes", "scheduler=constant", "scheduler.warmup_steps=0"),
    *("train.seq_len=64", "train.batch_size=8", "train.global_batch_size=8"),
    *("data.overfit_batches=1", "model.tie_embeddings=false", "model.vocab_size=auto"),
    *("eval=off", "checkpoint=off", "train.grad_clip_norm=0", "run.inline=true"),
    *("metrics.log_interval=1", "metrics.enable_console=false", "parallel=single"),
)
"""Overrides of every run, before the typed ones."""
RECORDER = "+callbacks.coords={_target_: forge.training.callbacks.activations.Activations}"


def main(argv: Sequence[str] | None = None) -> int:
    """Train at every width, print the table and write the page; exit 0, or 2 for a wrong word."""
    arguments = cli.parser("forge.coords", DESCRIPTION)
    add = arguments.add_argument
    add("--widths", default="64,128,256,512", help="values of model.dim, the base first")
    add("--depths", default="", help="values of model.n_layers in place of several widths")
    add("--head-dim", type=int, default=16, help="width of a head, at every width")
    add("--steps", type=int, default=5, help="updates at each width")
    add("--out", type=Path, default=Path("coords"), help="folder of the page and of the runs")
    options = cli.parse(arguments, argv)
    if options.help:
        return cli.help("forge.coords", arguments, options)
    return cli.refuse(lambda: _check(options))


def _check(options: argparse.Namespace) -> int:
    cli.enter(options)
    sizes = _sizes(options)
    chosen = [word for word in options.overrides if word.startswith("scaling=")]
    if not chosen or chosen[-1] == "scaling=none":
        message = "a coordinate check is of a scaling."
        raise refusal("scaling", message, "scaling=mup or scaling=completep", COMMAND_LINE)
    others = [word for word in options.overrides if not word.startswith("scaling")]
    label = chosen[-1].partition("=")[2]
    base = [f"scaling.base_dim={sizes[0].width}"]
    base += [f"scaling.base_layers={sizes[0].depth}"] if options.depths else []
    base += [word for word in options.overrides if word.startswith("scaling.")]
    measured = [
        *_train_all("standard", others, sizes, options),
        *_train_all(label, [*others, chosen[-1], *base], sizes, options),
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    axis = "model.n_layers" if options.depths else "model.dim"
    text = markdown(measured, options.steps, axis)
    (options.out / "coords.md").write_text(text, encoding="utf-8")
    file = options.out / "coords.html"
    command = " ".join(sys.argv[1:])
    file.write_text(page(measured, options.steps, axis, command), encoding="utf-8")
    print(f"{text}\n{file}")
    return 0


class Size(NamedTuple):
    """The shape of a run."""

    width: int
    depth: int


def _sizes(options: argparse.Namespace) -> list[Size]:
    """The shapes, smallest first. Raises ConfigError."""
    widths, depths = _numbers(options.widths), _numbers(options.depths) if options.depths else [2]
    by = f"--depths {options.depths}" if options.depths else f"--widths {options.widths}"
    head_dim = max(options.head_dim, 1)
    if len(depths if options.depths else widths) < 2:
        message = "changes by size need two widths or depths, or more."
        raise refusal(by, message, f"{by.partition(' ')[0]} 4,8,16,32", COMMAND_LINE)
    if options.depths and len(widths) > 1:
        widths = widths[:1]
    if uneven := [width for width in widths if width % head_dim]:
        message = f"heads {head_dim} wide do not divide a width of {uneven[0]}."
        fitting = f"--widths {','.join(str(-(-w // head_dim) * head_dim) for w in widths)}"
        key = f"--widths {options.widths}"
        raise refusal(key, message, f"{fitting}, or --head-dim", COMMAND_LINE)
    if options.steps < 2:
        message = "activations change from the second step on."
        raise refusal(f"--steps {options.steps}", message, "--steps 5", COMMAND_LINE)
    return [Size(width, depth) for width in widths for depth in depths]


def _numbers(text: str) -> list[int]:
    """The numbers above 0 in a list with commas, smallest first; [] for other words."""
    words = [word.strip() for word in text.split(",")]
    are_numbers = all(word.isdecimal() and int(word) for word in words)
    return sorted({int(word) for word in words}) if are_numbers else []


def _train_all(
    label: str, words: Sequence[str], sizes: Sequence[Size], options: argparse.Namespace
) -> list[Measured]:
    """Train at every size, and read the recorded activations."""
    import forge

    results = []
    for width, depth in sizes:
        run_dir = options.out / "runs" / f"{label}_{width}_{depth}"
        shape = [f"model.dim={width}", f"model.n_heads={width // options.head_dim}"]
        shape += [f"model.n_layers={depth}"] if options.depths else []
        shape += ["model.n_kv_heads=null", f"model.ffn_hidden_dim={4 * width}"]
        typed = [*SETUP, f"train.max_steps={options.steps}", RECORDER, *words, *shape]
        overrides = [*typed, f"run.dir={run_dir}"]
        forge.train(forge.compose(overrides, config_dirs=options.config_dir))
        rows = json.loads((run_dir / "activations.json").read_text())
        results.append(Measured(label, depth if options.depths else width, rows))
    return results


if __name__ == "__main__":
    sys.exit(main())
