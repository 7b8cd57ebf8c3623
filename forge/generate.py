"""`python -m forge.generate RUN --prompt TEXT`: let a trained model continue a text.

Examples:
    python -m forge.generate runs/mine --prompt 'def ' --tokens 100 --temperature 0.8
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from forge import cli
from forge.compose.trust import for_run
from forge.rundir import checkpoints


def main(argv: Sequence[str] | None = None) -> int:
    """Print the prompts with their continuations; exit 2 for a run without a usable checkpoint."""
    parser = reader("forge.generate", "Continue a text with the newest checkpoint of a run.")
    add = parser.add_argument
    add("--prompt", action="append", help="text to continue, or several (default: a new document)")
    add("--tokens", type=int, default=128, help="tokens to add at most (default 128)")
    heat = "0 = always the likeliest token (default 0.8)"
    add("--temperature", type=float, default=0.8, help=heat)
    add("--top-k", type=int, default=50, help="among the k likeliest; 0 = all (default 50)")
    most = "among the likeliest that reach this probability (default 1)"
    add("--top-p", type=float, default=1.0, help=most)
    add("--seed", type=int, default=0, help="the same seed writes the same text (default 0)")
    try:
        _generate(parser.parse_args(argv))
    except (ValueError, FloatingPointError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def reader(prog: str, description: str) -> cli.Parser:
    """The arguments of a verb that loads the weights of a run."""
    parser = cli.Parser(prog, description)
    parser.add_argument("run", type=Path, help="a run directory, or one of its step_N checkpoints")
    best = "the best checkpoint by the run's eval.metric, instead of the newest"
    parser.add_argument("--best", action="store_true", help=best)
    trust = "also build the model from modules like mypkg."
    parser.add_argument("--trust", action="append", default=[], metavar="PREFIX", help=trust)
    return parser


def checkpoint_path(options: argparse.Namespace) -> Path:
    """What was asked for; without a usable checkpoint refused before torch is imported, which takes
    seconds.
    """
    path = options.run / checkpoints.BEST if options.best else options.run
    checkpoints.find(path)
    return path


def _generate(options: argparse.Namespace) -> None:
    path = checkpoint_path(options)
    from forge.training.restore import load_run
    from forge.training.samples import continue_text

    trained = load_run(path, trust=for_run(path, options.trust))
    sampling = {name: getattr(options, name) for name in ("tokens", "temperature", "top_k")}
    sampling |= {"top_p": options.top_p, "seed": options.seed}
    for prompt in options.prompt or [""]:
        text = continue_text(trained.model, trained.tokenizer, prompt, trained.device, **sampling)
        print(prompt + text)


if __name__ == "__main__":
    sys.exit(main())
