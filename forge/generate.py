"""`python -m forge.generate RUN --prompt TEXT`: let a trained model continue a text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from forge.rundir import checkpoints


def main(argv: Sequence[str] | None = None) -> int:
    """Print the prompt with its continuation; exit 2 for a run that has no checkpoint, or a broken
    one.
    """
    parser = argparse.ArgumentParser(
        prog="python -m forge.generate",
        description="Continue a text with the newest checkpoint of a run.",
    )
    parser.add_argument("run", type=Path, help="a run directory, or one of its step_N checkpoints")
    parser.add_argument(
        "--best",
        action="store_true",
        help="the best checkpoint by the run's eval.metric, instead of the newest",
    )
    parser.add_argument(
        "--prompt",
        action="append",
        help="text to continue; more than one may be given (default: a new document)",
    )
    parser.add_argument(
        "--tokens", type=int, default=128, help="tokens to add at most (default 128)"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        help="0 = always the likeliest token (default 0.8)",
    )
    parser.add_argument(
        "--top-k", type=int, default=50, help="among the k likeliest; 0 = all (default 50)"
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        help="among the likeliest that reach this probability (default 1)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="the same seed writes the same text (default 0)"
    )
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="PREFIX",
        help="also build the model from modules like mypkg.",
    )
    options = parser.parse_args(argv)
    try:
        _generate(options)
    except (ValueError, FloatingPointError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _generate(options: argparse.Namespace) -> None:
    path = options.run / checkpoints.BEST if options.best else options.run
    checkpoints.find(path)  # refused before torch is imported, which takes seconds
    from forge.training.restore import load_run
    from forge.training.samples import continue_text

    trained = load_run(path, trust=options.trust)
    sampling = {
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "seed": options.seed,
    }
    for prompt in options.prompt or [""]:
        print(
            prompt
            + continue_text(
                trained.model,
                trained.tokenizer,
                prompt,
                trained.device,
                tokens=options.tokens,
                **sampling,
            )
        )


if __name__ == "__main__":
    sys.exit(main())
