"""The layout of a run on fewer ranks, or on all of them again: same global batch, same samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forge.cli import resolved
from forge.compose.portable import portable
from forge.config.problems import ConfigError, refusal
from forge.config.root import Config
from forge.config.run import elastic_bounds
from forge.resolve.resolve import Resolution
from forge.rundir import directory

LAID = ("run.num_processes", "parallel.dp_replicate", "parallel.dp_shard")
BATCH = ("train.batch_size", "train.global_batch_size")


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """A run that may go on with other numbers of ranks. overrides: as composed at first."""

    run_dir: Path
    resolution: Resolution
    overrides: Sequence[str]
    config_dirs: Sequence[str] = ()

    @property
    def ranks(self) -> int:
        return self.resolution.world.size

    @property
    def least(self) -> int:
        return elastic_bounds(self.resolution.config.run.elastic)[0]

    def lay_out(self, most: int) -> int:
        """Put the config for at most so many ranks in force, and return their number.

        Raises ConfigError where no number of ranks fits.
        """
        config = self.resolution.config
        error: ConfigError | None = None
        for ranks in range(most, self.least - 1, -1):
            words = layout_words(config, ranks)
            if words is None:
                continue
            keys = {word.partition("=")[0] for word in words}
            others = [word for word in self.overrides if word.partition("=")[0] not in keys]
            overrides = [*others, *words] if ranks != self.ranks else list(self.overrides)
            place = [] if config.run.dir else [f"run.dir={self.run_dir}"]
            try:
                composition, resolution = resolved([*overrides, *place], self.config_dirs)
                kept = portable(composition.overrides, self.config_dirs, resolution.config)
                directory.go_on(self.run_dir, resolution, overrides=kept)
            except ConfigError as fault:
                error = error or fault
                continue
            return ranks
        size = config.train.global_batch_size
        message = f"no layout of {self.least} to {most} ranks shares {size} sequences a step evenly"
        hint = "fewer ranks in parallel.tp, pp, cp and ep, or another train.global_batch_size"
        raise error or refusal("run.elastic", f"{message}.", hint)


def layout_words(config: Config, ranks: int) -> list[str] | None:
    """The overrides of a layout over so many ranks with the same global batch; None if none is.

    The degrees of tp, pp, cp and ep stay. Replicas stay where they divide the ranks left for data.
    """
    parallel, train = config.parallel, config.train
    fixed = parallel.tp * parallel.pp * parallel.cp * parallel.ep
    data, rest = divmod(ranks, fixed)
    size = train.global_batch_size or 0
    sequences, left_over = divmod(size, max(data * parallel.ep, 1))
    if rest or left_over or not sequences:
        return None
    replicas = parallel.dp_replicate if data % parallel.dp_replicate == 0 else 1
    if parallel.dp_shard == 1:
        replicas = data
    most = min(train.batch_size, sequences)
    micro = next(rows for rows in range(most, 0, -1) if sequences % rows == 0)
    values = (ranks, replicas, data // replicas, micro, size)
    words = [f"{key}={value}" for key, value in zip((*LAID, *BATCH), values, strict=True)]
    if parallel.layout == "auto":  # the degrees chosen for all ranks
        words += [f"parallel.{axis}={getattr(parallel, axis)}" for axis in ("tp", "pp", "cp", "ep")]
    return words
