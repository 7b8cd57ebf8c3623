"""Names of evaluated texts, and the `data` section of each set of `eval.sets`."""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.data.mixture import sources_of
from forge.config.data.reading import held_out_section
from forge.config.data.text import Data
from forge.config.root import Config


def data_of(config: Config, name: str) -> Data:
    """The section of a set, held out in full."""
    return held_out_section(config.data, config.eval.sets[name], f"eval.sets.{name}")


def metric_names(config: Config) -> Iterator[str]:
    """Yield the metrics of an evaluation: METRIC of the validation split, and NAME/METRIC of each
    set and of each source's validation split.
    """
    validated = ("", *sources_of(config.data)) if config.data.validates else ()
    for name in (*validated, *config.eval.sets):
        yield from (f"{name}/{metric}".lstrip("/") for metric in config.objective.metrics)
