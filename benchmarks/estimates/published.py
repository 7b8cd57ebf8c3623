"""The planner beside published figures: tokens a second and GPU, the median error, and how many
pairs of layouts it puts in the right order.

    python benchmarks/estimates/published.py --markdown benchmarks/results/published.md

Nothing runs: each figure is what `forge.planning.time` says of the published layout, with the
kernels and the recomputation that was published, as far as forge has them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import median

from published_figures import FIGURES, SOURCES, Figure

from forge.compose import composition
from forge.config.root import Config
from forge.planning.time import StepTime, planned_time
from forge.planning.world import CPU_BUILD, Devices
from forge.resolve.resolve import worked_out

RESULTS = Path(__file__).parents[1] / "results" / "published.md"
LAPTOP = Devices(gpus=0, source=CPU_BUILD, torch=(2, 13))
COMMON = (
    *("tokenizer.vocab_size=128256", "run.device=cuda", "precision=bf16", "train=long"),
    *("model.sdpa_backend=flash", "objective.loss_fn=cross_entropy", "optimizer=adamw"),
)


@dataclass(frozen=True)
class Compared:
    """A figure, and what is predicted in its unit."""

    figure: Figure
    predicted: float
    time: StepTime

    @property
    def error(self) -> float:
        return self.predicted / self.figure.published - 1


def compared(figure: Figure) -> Compared:
    """The prediction of a figure."""
    words = [*COMMON, *figure.overrides.split()]
    config, _ = worked_out(composition.config(words), devices=LAPTOP)  # some break a rule of forge
    time = planned_time(config)
    assert time is not None
    time = with_calls(time, figure.tp_calls)
    return Compared(figure, in_unit(figure, config, time), time)


def in_unit(figure: Figure, config: Config, time: StepTime) -> float:
    """The prediction in the unit of a figure. TFLOP/s count causal attention once."""
    if figure.unit != "TFLOP/s":
        return time.tokens_per_second
    model, seq_len = config.decoder, config.train.seq_len
    assert model is not None
    scores = sum(model.mixer.flops(model, seq_len) for _ in range(model.n_layers))
    return time.tokens_per_second * (time.flops - scores / 2) / 1e12


def with_calls(time: StepTime, factor: float) -> StepTime:
    """The time with `factor` times the collectives of tp, the bubble and stragglers with them."""
    more = (factor - 1) * time.parts.get("tp", 0.0)
    idle, stragglers = (time.parts.get(name, 0.0) for name in ("bubble", "stragglers"))
    busy_seconds = time.seconds - idle - stragglers
    parts = dict(time.parts) | {"tp": time.parts.get("tp", 0.0) + more}
    for name, of in (("bubble", idle), ("stragglers", stragglers)):
        if of:
            parts[name] = of * (1 + more / busy_seconds)
    return replace(time, parts=parts) if more else time


def in_order(rows: list[Compared], *, same_model: bool) -> tuple[int, int]:
    """Pairs that are in the right order, of all whose published figures differ."""
    pairs = [
        (a, b)
        for a, b in combinations(rows, 2)
        if a.figure.published != b.figure.published
        and (not same_model or a.figure.model == b.figure.model)
    ]
    right = sum(
        (a.predicted < b.predicted) == (a.figure.published < b.figure.published) for a, b in pairs
    )
    return right, len(pairs)


def report(rows: list[Compared]) -> Iterator[str]:
    """The page."""
    held_out = [row for row in rows if not row.figure.fitted]
    yield "# The planner beside published figures\n"
    script = "benchmarks/estimates/published.py"
    yield f"    python {script} --markdown benchmarks/results/published.md\n"
    errors = [abs(row.error) for row in held_out]
    within = sum(error < 0.2 for error in errors)
    fitted = len(rows) - len(held_out)
    yield (
        f"{len(rows)} figures; nothing was run for this page. {fitted} were used to fit constants"
        f" of the model (`fit`), {len(held_out)} were\nnot: of these the median error is"
        f" **{median(errors):.1%}**, and {within} are within 20 %.\n"
    )
    for name, several in (("one tp rank", False), ("tp", True)):
        errors = [row.error for row in held_out if ("tp=" in row.figure.words) == several]
        yield f"With {name} the median error is {median(errors):+.1%} ({len(errors)} figures)."
    yield (
        "\nKempnerForge's collectives of tp are counted as its trace has them, nearly twice those"
        " of forge: `published_figures.py`.\n[calibration.md](calibration.md) has the error with"
        " constants that were fitted without the project that is tested.\n"
    )
    yield "| set | figures | median error | pairs in order | of the same model |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    sets = list(dict.fromkeys(row.figure.set for row in rows))
    for name in sets:
        of_set = [row for row in rows if row.figure.set == name]
        error = median(abs(row.error) for row in of_set)
        cells = []
        for same in (False, True):
            right, pairs = in_order(of_set, same_model=same)
            cells.append(f"{right} of {pairs} ({right / pairs:.0%})" if pairs else "")
        yield f"| {name} | {len(of_set)} | {error:.1%} | {' | '.join(cells)} |"
    for name in sets:
        yield f"\n## {name}\n\n{SOURCES[name]}\n"
        yield "| what | GPUs | published | predicted | error | most of the time beside products | |"
        yield "| --- | ---: | ---: | ---: | ---: | --- | --- |"
        for row in rows:
            if row.figure.set == name:
                yield line(row)


def line(row: Compared) -> str:
    """A row of a table."""
    figure, parts = row.figure, dict(row.time.shares)
    parts.pop("products", None)
    most = sorted(parts, key=lambda part: -parts[part])[:3]
    text = ", ".join(f"{name} {parts[name]:.0%}" for name in most)
    unit = "" if figure.unit == "tokens/s" else f" {figure.unit}"
    return (
        f"| {figure.what} | {row.time.ranks:,} | {figure.published:,.0f}{unit} |"
        f" {row.predicted:,.0f}{unit} | {row.error:+.0%} | {text} |"
        f" {'fit' if figure.fitted else ''} |"
    )


def show_page(about: str | None, lines: Callable[[], Iterable[str]]) -> None:
    """Print a page, or write it into the file of --markdown."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    text = "\n".join(lines()) + "\n"
    if options.markdown:
        options.markdown.write_text(text)
    else:
        print(text)


def main() -> None:
    show_page(__doc__, lambda: report([compared(figure) for figure in FIGURES]))


if __name__ == "__main__":
    main()
