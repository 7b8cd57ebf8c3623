"""The names of what is evaluated, and the `data` section of each set of `eval.sets`."""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.data.mixture import sources_of
from forge.config.data.reading import read_whole
from forge.config.data.text import Data
from forge.config.root import Config


def data_of(config: Config, name: str) -> Data:
    """The section of a set, all of which is held out."""
    return read_whole(config.data, config.eval.sets[name], f"eval.sets.{name}")


def metric_names(config: Config) -> Iterator[str]:
    """What an evaluation reports: metrics of the validation split, and those of a set or of the
    validation split of a source as NAME/METRIC.
    """
    own = ("", *sources_of(config.data)) if config.data.validates else ()
    for name in (*own, *config.eval.sets):
        yield from (f"{name}/{metric}".lstrip("/") for metric in config.objective.metrics)
