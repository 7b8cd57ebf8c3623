"""`python -m forge.scaling SWEEP [budget=FLOPS]`: the law of loss over parameters and tokens of a
sweep, beside Chinchilla's approaches; the largest run predicted, and the best use of a budget.

Examples:
    python -m forge.scaling sweeps/isoflop_demo
    python -m forge.scaling sweeps/isoflop_demo budget=1e13,1e14 --compute counted
    python -m forge.scaling sweeps/isoflop_demo --json
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from forge import cli
from forge.config.problems import COMMAND_LINE, refusal
from forge.launch.sweep.directory import POINTS
from forge.rundir import untrusted
from forge.rundir.directory import short

ABOUT = """Fit loss = E + A / N^alpha + B / D^beta to the finished runs of a sweep, N parameters and
D tokens, with intervals over runs; Chinchilla's approaches 1 to 3 beside it; the largest run left
out and predicted from the others; and the best N and D for a budget of FLOPs, marked where it is
an extrapolation. Runs that failed, diverged or stopped early are named and left out. Prints tables,
and writes SWEEP/scaling/index.html."""
BUDGET = "budget="
STDOUT = Path("-")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables and write the page; 2 for a ladder that no law can be fitted to."""
    parser = cli.Parser("forge.scaling", ABOUT)
    add = parser.add_argument
    sources = "the directory of a sweep, or those of runs; budget=1e20: FLOPs to be used best"
    add("words", nargs="+", metavar="SWEEP | RUN | budget=FLOPS", help=sources)
    add("--metric", metavar="NAME", help="the loss to fit; default: run.objective of the runs")
    count = "parameters of the law: all, or those without tables of tokens, positions and the head"
    add("--params", choices=("all", "without_embeddings"), default="all", help=count)
    compute = "FLOPs: 6 * parameters * tokens, or counted for each token with attention"
    add("--compute", choices=("6nd", "counted"), default="6nd", help=compute)
    kind = "the law to fit; default: over compute alone where size and tokens grow along one line"
    add("--law", choices=("size_and_tokens", "compute"), help=kind)
    add("--draws", type=int, default=999, metavar="N", help="of the bootstrap; default: 999")
    trust = "read runs whose model is of this package of yours, named with a dot at its end"
    add("--trust", action="append", default=[], metavar="PREFIX", help=trust)
    add("--json", action="store_true", help="print all numbers as JSON, and write no page")
    add("--html", type=Path, metavar="FILE", help="the page in this place; - prints it")
    add("--markdown", type=Path, metavar="FILE", help="the tables as Markdown; - prints them")
    options = cli.parse(parser, argv)
    if options.draws < 100:
        parser.error("--draws takes 100 or more: an interval is of its outer fortieths")
    return cli.refuse(lambda: _main(options))


def _main(options: argparse.Namespace) -> int:
    from forge.report import rendering
    from forge.scaling import content, tables
    from forge.scaling.approaches import approaches
    from forge.scaling.page import scaling_page
    from forge.scaling.reading import read_ladder
    from forge.scaling.study import Choice, study

    places = [cli.local_path("SWEEP", w) for w in options.words if not w.startswith(BUDGET)]
    budgets = [flops for word in options.words for flops in _budgets(word)]
    if not places:
        hint = "python -m forge.scaling sweeps/isoflop_demo budget=1e20"
        raise refusal("SWEEP", "no sweep is named.", hint, COMMAND_LINE)
    ladder = read_ladder(places, metric=options.metric, trust=options.trust)
    kinds = {"count": options.params, "compute": options.compute, "law": options.law}
    choice = Choice(**kinds, repeats=options.draws)
    try:
        made = study(ladder, choice, budgets)
    except ValueError:
        for entry in ladder.left_out:
            print(cli.printable(f"left out: {entry.name}: {entry.why}"), file=sys.stderr)
        raise
    compared = approaches(made)
    if options.json:
        print(cli.printable(json.dumps(content.content(made, compared), indent=1)))
        return 0
    title, lines = f"scaling of {ladder.source.name}", tables.headline(made)
    given = tables.tables(made, compared)
    files = _files(options, ladder.source.path)
    prints = STDOUT in files.values()
    if not prints:
        rendering.print_tables(title, lines, given)
    for kind, path in files.items():
        page = scaling_page(made, compared) if kind == "--html" else None
        _write(page or rendering.markdown_text(title, lines, given), kind, path)
    if written := [short(path) for path in files.values() if path != STDOUT]:
        print(f"written: {', '.join(written)}", file=sys.stderr if prints else sys.stdout)
    return 0


def _files(options: argparse.Namespace, sweep: Path | None) -> dict[str, Path]:
    """The files to write, by flag: the named ones, else the page of a sweep."""
    named = {"--html": options.html, "--markdown": options.markdown}
    files = {flag: path for flag, path in named.items() if path is not None}
    if not files and sweep is not None:
        untrusted.check_links(sweep, apart=(POINTS,))
        files["--html"] = sweep / "scaling" / "index.html"
    return files


def _write(text: str, flag: str, path: Path) -> None:
    if path == STDOUT:
        sys.stdout.write(text)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"it cannot be written: {error.strerror or error}."
        raise refusal(str(path), message, f"{flag} FILE elsewhere") from None


def _budgets(word: str) -> list[float]:
    """The FLOPs of a word budget=1e20,1e21; [] for another word. Raises ConfigError."""
    if not word.startswith(BUDGET):
        return []
    values = []
    for text in word.removeprefix(BUDGET).split(","):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            message = f"{text or 'nothing'} is no number of FLOPs above 0."
            raise refusal(word, message, f"{BUDGET}1e20", COMMAND_LINE)
        values.append(value)
    return values


if __name__ == "__main__":
    sys.exit(main())
