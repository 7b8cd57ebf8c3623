"""A study as plain data, for --json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from forge.scaling.approaches import Approach, parabolas
from forge.scaling.reading import COMPUTES, COUNTS
from forge.scaling.study import LAWS, Held, Study, variants
from forge.scaling_laws.bootstrap import Bounds


def content(study: Study, compared: Sequence[Approach]) -> dict[str, Any]:
    """Every number of a study; NaN and infinite ones as null."""
    ladder, choice = study.ladder, study.choice
    fields: dict[str, Any] = {
        "name": ladder.source.name,
        "metric": ladder.metric,
        "law": LAWS[study.kind],
        "params": choice.count,
        "compute": choice.compute,
        "constants": {name: asdict(bounds) for name, bounds in study.constants.items()},
        "deviation": study.powers.deviation[0],
        "runs": _runs(study),
        "left_out": [asdict(entry) for entry in ladder.left_out],
        "differs": ladder.differs,
        "held": [_held(held) for held in study.held],
        "why_not_held": study.why_not_held,
        "best": [{**asdict(best), "extrapolation": best.is_extrapolation} for best in study.best],
        "approaches": [_approach(approach) for approach in compared],
        "isoflop": [
            {"budget": p.budget, "best": p.best, "loss": p.loss, "why": p.why}
            for p in (parabolas(study) if study.is_of_size else ())
        ],
        "variants": _variants(study),
    }
    return _plain(fields)


def _runs(study: Study) -> list[dict[str, Any]]:
    return [
        {
            "run": rung.name,
            "path": str(rung.run.path),
            "parameters": rung.parameters,
            "without_embeddings": rung.matrices,
            "tokens": rung.tokens,
            **{kind: rung.compute(COUNTS[0], kind) for kind in COMPUTES},
            "loss": rung.loss,
            "fitted": fitted,
        }
        for rung, fitted in zip(study.ladder.rungs, study.fitted, strict=True)
    ]


def _variants(study: Study) -> list[dict[str, Any]]:
    return [
        {
            "params": count,
            "compute": compute,
            "coefficients": powers.coefficients[0],
            "exponents": powers.exponents[0],
            "a": a,
            "b": b,
        }
        for count, compute, powers, a, b in variants(study)
    ]


def _held(held: Held) -> dict[str, Any]:
    return {
        "name": held.name,
        "runs": [
            {"run": rung.name, "loss": rung.loss, "predicted": asdict(predicted)}
            for rung, predicted in zip(held.rungs, held.predicted, strict=True)
        ],
        "rest": held.rest,
        "factor": held.factor,
        "inside": held.inside,
    }


def _approach(approach: Approach) -> dict[str, Any]:
    fields = {"name": approach.name, "why": approach.why, "b": approach.b}
    fields["a"] = asdict(approach.a) if isinstance(approach.a, Bounds) else None
    return {**fields, "sizes": approach.sizes, "tokens": approach.tokens}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value
