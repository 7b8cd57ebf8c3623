"""Blocks of each stage of a pipeline, and stages of each rank. Arithmetic only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import itemgetter

from forge.config.model.decoder import Decoder
from forge.config.parallel import V_SCHEDULE
from forge.config.root import Config


def owner(stage: int, pp: int, schedule: str) -> int:
    """The pipeline rank of a stage; zbv runs up and back down (arXiv:2401.10241, section 6)."""
    lap, rank = divmod(stage, pp)
    return pp - 1 - rank if schedule == V_SCHEDULE and lap % 2 else rank


def stages_of(rank: int, pp: int, per_rank: int, schedule: str) -> tuple[int, ...]:
    return tuple(stage for stage in range(pp * per_rank) if owner(stage, pp, schedule) == rank)


def blocks_by_stage(config: Config, model: Decoder) -> list[int]:
    """Numbers of blocks of each stage of a resolved config."""
    parallel = config.parallel
    stages = parallel.pp * (parallel.pp_stages_per_rank or 1)
    return list(parallel.pp_layers) or cut_by_cost(model, stages, config.train.seq_len)


def cut_by_cost(section: Decoder, num_stages: int, seq_len: int) -> list[int]:
    """Numbers of blocks of each stage, with the least cost of the costliest stage.

    The last stage computes the output head too; looking up embeddings is free. Among equal costs
    the most even cut wins, then the cut with more blocks in later stages: under 1F1B later stages
    keep the activations of fewer micro-batches.
    """
    n_layers = section.n_layers
    assert 1 <= num_stages <= n_layers, (num_stages, n_layers)
    flops = {kind: section.kind_flops_per_token(kind, seq_len) for kind in section.kinds_in()}
    blocks = [flops[section.kind_of(layer)] for layer in range(n_layers)]
    blocks[-1] += section.head_flops_per_token()
    return list(_cut((0, *accumulate(blocks)), num_stages))


@lru_cache(maxsize=256)
def _cut(before: tuple[int, ...], num_stages: int) -> tuple[int, ...]:
    """Cut blocks into stages; cached, since a plan asks for the same cut many times.

    before: the cost of all blocks before each.
    """
    blocks = [end - start for start, end in pairwise(before)]
    limit = before[-1] // num_stages + max(blocks)  # filled one after another, stages need no more
    costliest, _ = _best(before, num_stages, max, limit)
    _, layers = _best(before, num_stages, lambda stage, tail: stage**2 + tail, costliest)
    return tuple(layers)


def _best(
    before: Sequence[int], num_stages: int, total: Callable[[int, int], int], limit: int
) -> tuple[int, list[int]]:
    """The least total of a cut into stages of at most `limit` each, and the cut.

    before: the cost of all blocks before each. total: combines the first stage's cost with the
    total of later stages.
    """
    n_layers = len(before) - 1
    # By first block: the best cut of all blocks from there on, into as many stages as were added.
    best_cuts: dict[int, tuple[int, list[int]]] = {n_layers: (0, [])}

    def options(start: int) -> Iterator[tuple[int, list[int]]]:
        for end in range(start + 1, n_layers + 1):
            if before[end] - before[start] > limit:
                return
            if end in best_cuts:
                tail, layers = best_cuts[end]
                yield total(before[end] - before[start], tail), [end - start, *layers]

    for _ in range(num_stages):
        choices = {start: list(options(start)) for start in range(n_layers)}
        best_cuts = {start: min(cuts, key=itemgetter(0)) for start, cuts in choices.items() if cuts}
    return best_cuts[0]
