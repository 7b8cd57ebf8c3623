"""`train.activation_checkpointing=auto`: choose the tensors blocks keep by the memory."""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.model.decoder import Decoder
from forge.config.numbers import byte_size
from forge.config.optimizers.base import GROUPED
from forge.config.problems import Problem
from forge.config.recompute import AUTO, NAMES
from forge.config.root import Config
from forge.config.rule import Derived, derivation
from forge.config.train import Train
from forge.planning.activations import Activations, Stage
from forge.planning.recompute import choose_recompute
from forge.planning.world import World
from forge.resolve.auto import USABLE, device_memory

POLICY, TABLE = "train.activation_checkpointing", "train.recompute"
GIB = 1 << 30


@derivation(
    POLICY,
    "parallel.reshard_after_forward",
    "parallel.reduce_gradients",
    "train.batch_size",
    "train.seq_len",
    *GROUPED,
    "adapter",
    writes=(
        POLICY,
        "train.recompute_layers",
        f"{TABLE}.layers",
        f"{TABLE}.decoder_layer_input",
        *(f"{TABLE}.{name}" for name in NAMES),
    ),
)
def recompute(
    config: Config, train: Train, model: Decoder, world: World
) -> Iterator[Derived | Problem]:
    """With train.activation_checkpointing=auto the cheapest that fits a device, or with auto:GB so
    many GiB of it, by the estimate.
    """
    name, _, number = train.activation_checkpointing.partition(":")
    if name != AUTO:
        return
    memory = float(number) * GIB if number else (device_memory(world) or 0) * USABLE
    stage = Stage(layers=range(model.n_layers), first=True, last=True)
    if not memory or Activations(config, model).held(stage) is None:
        message = "how much memory a device has, or what the layers keep, is not known."
        hint = f"{POLICY}=auto:40, with the GiB of a device" if not memory else f"{POLICY}=full"
        yield Problem(f"{POLICY}={AUTO}", message, hint, rule=POLICY)
        yield Derived(POLICY, "full", "auto is not known")
        return
    choice = choose_recompute(config, model, memory)
    flops = model.flops_per_token(train.seq_len)
    why = f"{byte_size(choice.needed)} of {byte_size(round(memory))} that are to be used"
    if choice.needed > memory:
        why += ", which is the least that it can need"
    why += f"; {choice.again / flops:.1%} more FLOPs"
    yield Derived(POLICY, choice.policy, why)
    for key, storage in choice.table.given().items():
        if getattr(train.recompute, key) != storage:
            worth = choice.order.get(key)
            spared = f"spares {worth:,.0f} FLOPs a byte" if worth else "nothing else fits"
            yield Derived(f"{TABLE}.{key}", storage, spared)
    if dict(choice.table.layers) != dict(train.recompute.layers):
        yield Derived(f"{TABLE}.layers", dict(choice.table.layers), "what fits; the others in all")
    if choice.blocks is not None:
        why = f"the other {model.n_layers - choice.blocks} blocks fit as they are"
        yield Derived("train.recompute_layers", choice.blocks, why)
