"""The layout of a run on fewer ranks, or on all of them again: same global batch, same samples.

forge's own launcher chooses the number of ranks of a restart (`Elastic`); torchrun and Slurm hand
a number over, and the layout follows (`words_for_ranks`, `fit_run`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from forge.cli import resolved
from forge.compose.composition import compose
from forge.compose.portable import portable
from forge.config.problems import ConfigError, quoted, refusal
from forge.config.root import Config
from forge.config.run import elastic_bounds
from forge.planning.launcher_environment import launcher_environment
from forge.planning.world import ranks_of
from forge.resolve.resolve import Resolution
from forge.rundir import directory, saved_config, versions
from forge.rundir.saved_config import CONFIG, is_run

LAID = ("run.num_processes", "parallel.dp_replicate", "parallel.dp_shard")
SHARES = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Variable of torchrun: with 1 each round of ranks has a store to itself."""
FIXED = ("tp", "pp", "cp", "ep")
BATCH = ("train.batch_size", "train.global_batch_size")


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """A run that may continue with other numbers of ranks. overrides: as composed at first."""

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
                directory.continue_run(self.run_dir, resolution, overrides=kept)
            except ConfigError as fault:
                error = error or fault
                continue
            return ranks
        size = config.train.global_batch_size
        message = f"no layout of {self.least} to {most} ranks shares {size} sequences a step evenly"
        hint = "fewer ranks in parallel.tp, pp, cp and ep, or another train.global_batch_size"
        raise error or refusal("run.elastic", f"{message}.", hint)


def words_for_ranks(overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> list[str]:
    """Overrides with the layout for the ranks started by torchrun or srun, where run.elastic lets
    the run in run.dir continue with another number of ranks.

    Raises ConfigError where no layout over these ranks has the same global batch.
    """
    words, environment = list(overrides), launcher_environment()
    if environment is None:
        return words
    composition = compose(words, config_dirs=config_dirs)
    if composition.problems:
        return words  # resolving reports the problems
    config = composition.typed()
    if config.run.elastic and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        message = (
            "torchrun keeps one store, where ranks that come later read what earlier ones left."
        )
        hint = f"export {SHARES}=1 before torchrun, with --rdzv-backend=c10d, on every host"
        raise refusal("run.elastic", message, hint)
    place = Path(config.run.dir or "")
    if not (config.run.elastic and config.run.dir and is_run(place)):
        return words
    typed = {word.partition("=")[0] for word in overrides}
    size, tokens = config.train.global_batch_size, config.train.global_batch_tokens
    if "train.global_batch_size" not in typed:
        typed_tokens = tokens if "train.global_batch_tokens" in typed else None
        size = typed_tokens // config.train.seq_len if typed_tokens else None
    return _laid_out(words, place, environment.size, config.run.trust, size)


def fit_run(run_dir: Path, ranks: int, trust: Sequence[str] = ()) -> None:
    """Put the layout over so many ranks in force. Raises ConfigError, also without run.elastic."""
    laid_out = _laid_out(_in_force(run_dir), run_dir, ranks, trust)
    words = [word for word in laid_out if word.partition("=")[0] != "run.dir"]
    composition, resolution = resolved([*words, f"run.dir={quoted(str(run_dir))}"])
    overrides = portable(composition.overrides, (), resolution.config)
    directory.continue_run(run_dir, resolution, overrides=overrides)


def _in_force(run_dir: Path) -> list[str]:
    number = versions.number_in_force(run_dir)
    return [str(word) for word in versions.read_config_part(run_dir, "overrides", number)]


def _laid_out(
    overrides: Sequence[str],
    run_dir: Path,
    ranks: int,
    trust: Sequence[str],
    size: int | None = None,
) -> list[str]:
    """Overrides with the words of the layout over so many ranks; degrees and micro-batch are those
    that the run began with. size: of the global batch; None = the run's.
    """
    first = saved_config.load_config(run_dir / CONFIG, trust=trust)
    newest = saved_config.load_config(saved_config.newest(run_dir), trust=trust)
    size = size or newest.train.global_batch_size
    first = replace(first, train=replace(first.train, global_batch_size=size))
    words = layout_words(first, ranks)
    if words is None:
        fixed = prod(getattr(first.parallel, axis) for axis in FIXED)
        message = f"no layout of {ranks_of(ranks)} shares {size} sequences a step evenly"
        message += f", with {fixed} ranks for tp, pp, cp and ep" if fixed > 1 else ""
        hint = "a number of ranks that divides it, or another train.global_batch_size"
        raise refusal("run.elastic", f"{message}.", hint)
    keys = {word.partition("=")[0] for word in words}
    return [*(word for word in overrides if word.partition("=")[0] not in keys), *words]


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
    words.append("parallel.layout=given")
    if parallel.layout == "auto":  # the degrees chosen for all ranks
        words += [f"parallel.{axis}={getattr(parallel, axis)}" for axis in FIXED]
    return words
