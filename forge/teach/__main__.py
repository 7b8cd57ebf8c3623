"""`python -m forge.teach OUT [overrides]`: the likeliest tokens of a teacher at each token of a
run's text, for objective.offline.

Examples:
    python -m forge.teach my/teacher objective.teacher=runs/large data.path=my.txt
    python -m forge.train objective=distill objective.offline=my/teacher data.path=my.txt
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from forge import cli
from forge.compose.trust import in_project
from forge.config.numbers import counted
from forge.config.problems import COMMAND_LINE, ConfigError, refusal

DESCRIPTION = (
    "The k likeliest tokens of a teacher at each token of a text, and the probability of the rest. "
    "Overrides are those of the run to come."
)
ALONE = ("objective=distill", "parallel=single", "run.num_processes=1", "eval.enabled=false")


def main(argv: Sequence[str] | None = None) -> int:
    """Make OUT, or continue with OUT, and print a summary; 2 for a refused request."""
    arguments = cli.parser("forge.teach OUT", DESCRIPTION)
    add = arguments.add_argument
    add("--k", type=int, default=32, metavar="N", help="tokens to keep of each (default 32)")
    formats = "of log-probabilities (default float16)"
    add("--format", choices=("float16", "float32"), default="float16", help=formats)
    options = cli.parse(arguments, argv)
    if options.help:
        return cli.help("forge.teach OUT", arguments, options)
    return cli.refuse(lambda: _verb(options))


def _verb(options: argparse.Namespace) -> int:
    places = [word for word in options.overrides if "=" not in word and word[0] not in "~+"]
    if len(places) != 1:
        message = f"one folder is made, and {counted(len(places), 'is', 'are')} named."
        hint = "python -m forge.teach my/teacher objective.teacher=runs/large"
        raise refusal("OUT", message, hint, COMMAND_LINE)
    if options.k < 1:
        raise refusal("--k", "at least one token is kept.", "--k 32", COMMAND_LINE)
    out = cli.local_path("OUT", places[0]).expanduser().absolute()
    overrides = [*ALONE, *(word for word in options.overrides if word != places[0])]
    config = cli.resolved(in_project(overrides), options.config_dir)[1].config
    if getattr(config.objective, "teacher", None) is None:
        message = "the teacher is named by objective.teacher."
        raise refusal("objective.teacher", message, "objective.teacher=runs/large", COMMAND_LINE)
    from forge.training.teaching import teach

    try:
        summary = teach(config, out, k=options.k, number_format=options.format)
    except ConfigError:  # printed by cli.refuse
        raise
    except ValueError as error:
        print(cli.printable(str(error)), file=sys.stderr)
        return cli.REFUSED
    print(_told(out, summary))
    return 0


def _told(out: Path, summary: dict) -> str:
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    tokens = sum(text["tokens"] for text in summary["texts"].values())
    return (
        f"{out}: {summary['k']} of {summary['vocabulary']:,} tokens at each of {tokens:,} tokens, "
        f"{size / 2**20:,.1f} MiB\n  train with it: objective=distill objective.offline={out}"
    )


if __name__ == "__main__":
    sys.exit(main())
