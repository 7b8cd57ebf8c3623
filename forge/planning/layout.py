"""Division of a batch over ranks, micro-batches and the parts for a pipeline."""

from __future__ import annotations

from forge.config.parallel import LOOPED_SCHEDULES
from forge.config.root import Config


def data_ranks(config: Config) -> int:
    """Number of ranks with their own data: dp_replicate * dp_shard * ep, of all replica groups."""
    parallel, groups = config.parallel, config.fault_tolerance.groups
    return groups * max(parallel.dp_shard, 1) * parallel.dp_replicate * parallel.ep


def sequences_of_rank(config: Config) -> int:
    """Samples read by a rank in one step."""
    return config.train.batch_size * config.train.grad_accum_steps


def rows_of_rank(config: Config) -> int:
    """Rows computed by a rank's model in one step: several a sample for some objectives."""
    return sequences_of_rank(config) * config.objective.rows


def legal_microbatches(sequences: int, pp: int, schedule: str) -> list[int]:
    """Legal numbers of equal parts of a rank's sequences in a pipeline, the fewest first. torch's
    1F1B needs a part for each stage; its looping schedules need even rounds of about pp parts.
    """

    def legal(parts: int) -> bool:
        if sequences % parts:
            return False
        if schedule == "1f1b":
            return parts >= pp
        return schedule not in LOOPED_SCHEDULES or parts % max(1, parts // pp) == 0

    small = [part for part in range(1, int(sequences**0.5) + 1) if sequences % part == 0]
    return sorted(filter(legal, {*small, *(sequences // part for part in small)}))


def best_microbatches(sequences: int, grad_accum_steps: int, pp: int, schedule: str) -> int:
    """The fewest legal parts to keep a pipeline two thirds busy, 2 * pp, else the most; a part is
    at most a micro-batch. With m parts 1F1B idles (pp - 1) / (m + pp - 1) (arXiv:2104.04473, 2.2).
    """
    legal = legal_microbatches(sequences, pp, schedule)
    legal = [parts for parts in legal if parts % grad_accum_steps == 0] or legal or [sequences]
    return next((parts for parts in legal if parts >= 2 * pp), legal[-1])
