"""The presets of conf/parallel that a number of ranks and a model can have."""

from __future__ import annotations

import copy
from dataclasses import replace
from math import prod
from pathlib import Path

import yaml

from forge.config.derive_auto import broken, laid_out
from forge.config.parallel import AXES
from forge.config.paths import CONF
from forge.config.root import Config
from forge.config.world import World


def fitting_presets(config: Config, world: World, ranks: int) -> str:
    """As a user types them, 'parallel=ddp, parallel=fsdp'; empty when there are none."""
    fresh = copy.copy(config)
    # What was worked out for the layout that does not fit is worked out again.
    fresh.parallel = replace(
        config.parallel,
        reshard_after_forward="auto",
        pp_stages_per_rank=None,
        pp_microbatches=None,
        pp_layers=[],
    )
    fitting = []
    for file in sorted(Path(CONF, "parallel").glob("*.yaml")):
        degrees = dict.fromkeys(AXES, 1) | {
            key: value
            for key, value in yaml.safe_load(file.read_text("utf-8")).items()
            if key in AXES
        }
        others = prod(degree for axis, degree in degrees.items() if axis != "dp_shard")
        if degrees["dp_shard"] == -1 and ranks % others == 0:
            degrees["dp_shard"] = ranks // others
        if others * degrees["dp_shard"] == ranks and not broken(
            laid_out(fresh, degrees, world), world
        ):
            fitting.append(f"parallel={file.stem}")
    return ", ".join(fitting)
