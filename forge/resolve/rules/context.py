"""Rules on what cuts sequences: context and sequence parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.model import Decoder
from forge.config.root import Config
from forge.plan.world import World
from forge.resolve.rule import Finding, rule

ANY_CAUSAL = ("auto", "flash")


@rule(
    "parallel.seq_len",
    reads=(
        "parallel.tp",
        "parallel.cp",
        "parallel.cp_method",
        "parallel.sequence_parallel",
        "train.seq_len",
    ),
)
def seq_len(config: Config, world: World) -> Iterator[Finding]:
    """train.seq_len must be divisible by cp, twice that when balanced, times tp with
    sequence_parallel.
    """
    parallel, seq = config.parallel, config.train.seq_len
    factors = [("parallel.cp", parallel.cp)] if parallel.cp > 1 else []
    if parallel.cp > 1 and parallel.cp_method == "all_gather" and parallel.cp_load_balance:
        factors.insert(0, ("2 for parallel.cp_load_balance", 2))
    if parallel.tp > 1 and parallel.sequence_parallel:
        factors.append(("parallel.tp", parallel.tp))
    parts = 1
    for _, factor in factors:
        parts *= factor
    if seq % parts:
        arithmetic = " * ".join(name for name, _ in factors)
        what = f"train.seq_len ({seq}) must be divisible by {arithmetic} ({parts})."
        yield f"train.seq_len={seq}", what, f"train.seq_len={seq // parts * parts or parts}"


@rule(
    "parallel.ulysses_heads",
    reads=("parallel.tp", "parallel.cp", "parallel.cp_method", "model.n_heads", "model.n_kv_heads"),
)
def ulysses_heads(config: Config, world: World) -> Iterator[Finding]:
    """parallel.cp_method=ulysses gives each rank some of its tp rank's heads, key/value heads too:
    cp must divide both.
    """
    model, parallel = config.model, config.parallel
    if (
        not isinstance(model, Decoder)
        or parallel.cp == 1
        or parallel.cp_method != "ulysses"
        or model.n_heads % parallel.tp
    ):
        return
    heads, kv_heads = model.n_heads // parallel.tp, max(model.kv_heads // parallel.tp, 1)
    if heads % parallel.cp or kv_heads % parallel.cp:
        what = f"of {heads} heads and {kv_heads} key/value heads a tp rank has, parallel.cp ({parallel.cp}) must divide both."
        yield f"parallel.cp={parallel.cp}", what, "parallel.cp_method=all_gather"


@rule(
    "parallel.cp_kernel",
    reads=("parallel.cp", "parallel.cp_method", "model.sdpa_backend"),
    warning=True,
)
def cp_kernel(config: Config, world: World) -> Iterator[Finding]:
    """With parallel.cp_method=all_gather, queries that start inside a sequence choose their kernel
    themselves.
    """
    model, parallel = config.model, config.parallel
    if (
        isinstance(model, Decoder)
        and parallel.cp > 1
        and parallel.cp_method == "all_gather"
        and model.sdpa_backend not in ANY_CAUSAL
    ):
        what = f"model.sdpa_backend={model.sdpa_backend} holds for the first part of a sequence only; behind it torch chooses the kernel."
        yield f"model.sdpa_backend={model.sdpa_backend}", what, "model.sdpa_backend=auto"
