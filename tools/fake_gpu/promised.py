"""What forge promises of a run: memory, FLOPs and collectives; without torch."""

from __future__ import annotations

from typing import Any

from fake_gpu.cases import Case

STEPS = 3
COMMON = (
    "run.device=cuda eval=off tokenizer=bytes metrics.enable_console=false "
    f"metrics.log_interval=100 train.max_steps={STEPS} "
    "metrics.monitor_step_time_deviation=false"
)
"""Nothing by the clock: comparing the ranks' pace launches a kernel more in some steps."""


def resolved(words: list[str]) -> Any:
    """The resolution of a command line, with the common words after what it leaves open."""
    from forge import cli

    names = {word.partition("=")[0] for word in words}
    defaults = [*COMMON.split(), "data=synthetic", "checkpoint=off"]
    return cli.resolved([word for word in defaults if word.partition("=")[0] not in names] + words)[
        1
    ]


def promised(case: Case) -> dict[str, Any]:
    """The promises of a case, for a machine that is not here."""
    planned = [f"plan.device={case.device}", f"plan.world_size={case.ranks}"]
    return expected(resolved([*case.words.split(), *planned]).config)


def expected(config: Any) -> dict[str, Any]:
    """What forge promises of the config: memory, FLOPs and collectives."""
    from forge.planning.activations import flops_again
    from forge.planning.flops import flops_per_token
    from forge.planning.memory import memory_of_ends
    from forge.planning.traffic import Rank

    train, estimate = config.train, memory_of_ends(config)[0]  # rank 0 has the first stage
    model = config.decoder
    attention = sum(
        number * layer.mixer.flops(layer, train.seq_len)
        for kind, number in model.kinds_in().items()
        for layer in [model.of_kind(kind.name)]
    )
    sent: dict[str, list[float]] = {}
    for each in Rank(config, model, 0).sent():
        calls, size = sent.get(each.kind, (0, 0))
        sent[each.kind] = [calls + each.calls, size + each.bytes]
    rows = train.batch_size * train.grad_accum_steps * config.objective.rows
    return {
        "parts": dict(estimate.parts),
        "moment": estimate.moment,
        "memory": {"allocated": estimate.allocated, "reserved": estimate.reserved},
        "flops_per_token": flops_per_token(config),
        "attention_flops_per_token": attention,
        "flops_again": flops_again(config),
        "tokens": rows * train.seq_len / config.parallel.cp / config.parallel.tp,
        "collectives": sent,
    }
