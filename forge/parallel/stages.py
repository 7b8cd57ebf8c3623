"""Which blocks a stage of a pipeline has, and which rank has which stages. Arithmetic only."""

from __future__ import annotations

from forge.config.model import Decoder
from forge.config.parallel import V_SCHEDULE


def owner(stage: int, pp: int, schedule: str) -> int:
    """The pipeline rank that has a stage: stages loop over the ranks; under zbv they go there and back (arXiv:2401.10241, section 6)."""
    lap, rank = divmod(stage, pp)
    return pp - 1 - rank if schedule == V_SCHEDULE and lap % 2 else rank


def stages_of(rank: int, pp: int, per_rank: int, schedule: str) -> tuple[int, ...]:
    """The stages of a rank, in order."""
    return tuple(stage for stage in range(pp * per_rank) if owner(stage, pp, schedule) == rank)


def cut_by_cost(section: Decoder, num_stages: int, seq_len: int) -> list[int]:
    """How many blocks each stage has, the first to the last, so that the costliest stage costs as little as can be.

    Each has at least one. Blocks cost the same; the last stage computes the output head too, and looking up embeddings is free. Of
    cuts that are equally good the most even one is taken, and what then is left over goes to later stages, which under 1F1B keep
    the activations of fewer micro-batches.
    """
    n_layers = section.n_layers
    assert 1 <= num_stages <= n_layers, (num_stages, n_layers)
    if num_stages == 1:
        return [n_layers]
    head = 6 * section.vocab_size * section.dim
    block = (section.flops_per_token(seq_len) - head) // n_layers
    others = num_stages - 1

    def costs(last: int) -> tuple[int, int]:
        """The costliest stage, and how far the stages are from equal, for a number of blocks of the last one."""
        each, more = divmod(n_layers - last, others)
        stages = [*[each * block] * (others - more), *[(each + 1) * block] * more, last * block + head]
        return max(stages), sum(cost * cost for cost in stages)

    last = min(range(1, n_layers - others + 1), key=costs)
    each, more = divmod(n_layers - last, others)
    return [each] * (others - more) + [each + 1] * more + [last]
