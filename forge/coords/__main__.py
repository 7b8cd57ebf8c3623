"""`python -m forge.coords [overrides]`: a coordinate check: trains a few steps at several widths,
and writes a page with the sizes of activations by width, beside those without scaling.

Examples:
    python -m forge.coords scaling=mup optimizer=adamw
    python -m forge.coords scaling=completep optimizer=adamw --widths 64,128,256,512 --steps 6
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from forge import cli
from forge.config.problems import COMMAND_LINE, refusal
from forge.coords.page import Measured, markdown, page

DESCRIPTION = (
    "Train a few steps on one batch at several widths, under the scaling of the overrides and "
    "without, and write a page: sizes of activations by width. Flat lines mean that rates found at "
    "one width hold at another."
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
    add("--head-dim", type=int, default=16, help="width of a head, at every width")
    add("--steps", type=int, default=5, help="updates at each width")
    add("--out", type=Path, default=Path("coords"), help="folder of the page and of the runs")
    options = cli.parse(arguments, argv)
    if options.help:
        return cli.help("forge.coords", arguments, options)
    return cli.refuse(lambda: _check(options))


def _check(options: argparse.Namespace) -> int:
    cli.enter(options)
    widths = _widths(options)
    chosen = [word for word in options.overrides if word.startswith("scaling=")]
    if not chosen or chosen[-1] == "scaling=none":
        message = "a coordinate check is of a scaling."
        raise refusal("scaling", message, "scaling=mup or scaling=completep", COMMAND_LINE)
    others = [word for word in options.overrides if not word.startswith("scaling")]
    label = chosen[-1].partition("=")[2]
    base = [f"scaling.base_dim={widths[0]}", *_scaling_words(options.overrides)]
    measured = [
        *_train_all("standard", others, widths, options),
        *_train_all(label, [*others, chosen[-1], *base], widths, options),
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    text = markdown(measured, options.steps)
    (options.out / "coords.md").write_text(text, encoding="utf-8")
    file = options.out / "coords.html"
    file.write_text(page(measured, options.steps, " ".join(sys.argv[1:])), encoding="utf-8")
    print(f"{text}\n{file}")
    return 0


def _scaling_words(overrides: Sequence[str]) -> list[str]:
    return [word for word in overrides if word.startswith("scaling.")]


def _widths(options: argparse.Namespace) -> list[int]:
    """The widths, smallest first. Raises ConfigError."""
    try:
        widths = sorted({int(word) for word in options.widths.split(",")})
    except ValueError:
        widths = []
    key, head_dim = f"--widths {options.widths}", max(options.head_dim, 1)
    if len(widths) < 2 or widths[0] < 1:
        message = "sizes by width need two widths or more."
        raise refusal(key, message, "--widths 64,128,256", COMMAND_LINE)
    if uneven := [width for width in widths if width % head_dim]:
        message = f"heads {head_dim} wide do not divide a width of {uneven[0]}."
        fitting = f"--widths {','.join(str(-(-w // head_dim) * head_dim) for w in widths)}"
        raise refusal(key, message, f"{fitting}, or --head-dim", COMMAND_LINE)
    if options.steps < 2:
        message = "activations change from the second step on."
        raise refusal(f"--steps {options.steps}", message, "--steps 5", COMMAND_LINE)
    return widths


def _train_all(
    label: str, words: Sequence[str], widths: Sequence[int], options: argparse.Namespace
) -> list[Measured]:
    """Train at every width, and read the recorded sizes."""
    import forge

    results = []
    for width in widths:
        run_dir = options.out / "runs" / f"{label}_{width}"
        shape = [f"model.dim={width}", f"model.n_heads={width // options.head_dim}"]
        shape += ["model.n_kv_heads=null", f"model.ffn_hidden_dim={4 * width}"]
        typed = [*SETUP, f"train.max_steps={options.steps}", RECORDER, *words, *shape]
        overrides = [*typed, f"run.dir={run_dir}"]
        forge.train(forge.compose(overrides, config_dirs=options.config_dir))
        rows = json.loads((run_dir / "activations.json").read_text())
        results.append(Measured(label, width, rows))
    return results


if __name__ == "__main__":
    sys.exit(main())
