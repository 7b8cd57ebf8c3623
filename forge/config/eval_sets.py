"""The names of what is evaluated, and the `data` section of each set of `eval.sets`."""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.data import Data
from forge.config.mixture import sources_of
from forge.config.reading import read_as
from forge.config.root import Config

WHOLE = 1.0  # the share of a set that is held out of training


def data_of(config: Config, name: str) -> Data:
    """The section of a set, all of which is held out."""
    return read_as(config.data, config.eval.sets[name], val_fraction=WHOLE)


def metric_names(config: Config) -> Iterator[str]:
    """What an evaluation reports: metrics of the validation split, and those of a set or of the
    validation split of a source as NAME/METRIC.
    """
    for name in ("", *sources_of(config.data), *config.eval.sets):
        yield from (f"{name}/{metric}".lstrip("/") for metric in config.objective.metrics)
