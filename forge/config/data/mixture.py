"""Several corpora in one run: `data=mix`, its sources, and phases of their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forge.config.data.reading import WEIGHT, read_as, schema_of
from forge.config.data.text import Data, Streams
from forge.config.field import opt, section

ANNEALING = "annealing"
STREAMING = "hf_streaming"


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Weights of the sources, in their order, and a factor of the learning rate, from an
    update on.
    """

    start_step: int = 0
    weights: tuple[float, ...] = (1.0,)
    lr_scale: float = 1.0


@section
class Mix(Data):
    """Several corpora, of which each sample is drawn by weight."""

    schema_name = "mix"
    mixes = True
    _target_: str = "forge.data.text.mixed.mixed"
    sources: dict[str, Any] = opt(
        {}, "sources by name, each {path: my.txt, weight: 1.0} with options of data"
    )
    mix_temperature: float = opt(
        1.0, "share of a source is proportional to weight^(1/temperature); larger = more even", gt=0
    )
    phases: dict[str, Any] = opt(
        {},
        "weights from a step on, by name, each {start_step: 800, dataset_weights: {code: 0.9}, "
        "lr_scale: 1.0}; sources that are left out keep their weight",
    )
    anneal_start_step: int = opt(0, "short for one phase, from this step on; 0 = off", ge=0)
    anneal_weights: dict[str, Any] = opt({}, "weights of sources in that phase, by name")

    @property
    def tokenized(self) -> bool:
        """Whether a source is already tokens; all sources then need the same tokenizer."""
        entries = (entry for entry in self.sources.values() if isinstance(entry, Mapping))
        return any((schema := schema_of(self, entry)) and schema.tokenized for entry in entries)

    @property
    def streamed(self) -> bool:
        """Whether a source is streamed."""
        entries = [entry for entry in self.sources.values() if isinstance(entry, Mapping)]
        return any(
            source.get(STREAMING) and issubclass(schema_of(self, source) or Data, Streams)
            for source in entries
        )

    @property
    def marks_responses(self) -> bool:
        """Whether a source marks learnt tokens."""
        entries = (entry for entry in self.sources.values() if isinstance(entry, Mapping))
        return any(
            (schema := schema_of(self, entry)) and schema.marks_responses for entry in entries
        )

    def source_sections(self) -> dict[str, Data]:
        """The section of each source, with this section's values of options all data have."""
        held: dict[str, Any] = {"validation": {}, "val_fraction": self.held_out.share}
        return {
            name: read_as(self, entry, f"data.sources.{name}", **held)
            for name, entry in self.sources.items()
        }

    def schedule(self) -> tuple[Phase, ...]:
        """All phases, in order; the first starts at update 0."""
        base = {name: entry.get(WEIGHT, 1.0) for name, entry in self.sources.items()}
        phases = [(0, {}, 1.0)] if all(p["start_step"] for p in self.all_phases().values()) else []
        phases += [
            (phase["start_step"], phase.get("dataset_weights", {}), phase.get("lr_scale", 1.0))
            for phase in self.all_phases().values()
        ]
        return tuple(
            Phase(start_step=start, weights=self._shares({**base, **weights}), lr_scale=scale)
            for start, weights, scale in sorted(phases, key=lambda phase: phase[0])
        )

    def all_phases(self) -> dict[str, Any]:
        """Phases by name, with the annealing phase."""
        if not self.anneal_start_step:
            return dict(self.phases)
        annealing = {
            "start_step": self.anneal_start_step,
            "dataset_weights": self.anneal_weights,
        }
        return {**self.phases, ANNEALING: annealing}

    def _shares(self, weights: dict[str, float]) -> tuple[float, ...]:
        """Shares of all sources, by p_i = w_i^(1/T) / sum of all."""
        raised = [weights[name] ** (1 / self.mix_temperature) for name in self.sources]
        return tuple(weight / sum(raised) for weight in raised)


def sources_of(data: Data) -> tuple[str, ...]:
    """The names of sources, each with a validation split."""
    return tuple(data.sources) if isinstance(data, Mix) and data.held_out else ()
