"""Rules on recomputation: tensors that blocks keep for the backward pass."""

from __future__ import annotations

from forge.config.model.decoder import Decoder
from forge.config.parallel import Parallel
from forge.config.problems import closest
from forge.config.recompute import CUSTOM, DEVICE, GROUPS, INPUT, NAMES, OFFLOAD, REMAT
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.config.train import Train
from forge.planning.activations import Activations

POLICY, TABLE = "train.activation_checkpointing", "train.recompute"


@rule("train.recompute", POLICY, TABLE, "model.mixer", "model.kinds", "model.moe.num_experts")
def known_tensors(config: Config, train: Train, model: Decoder) -> Findings:
    """train.recompute names tensors that the layers of the model have."""
    if train.activation_checkpointing != CUSTOM:
        return
    blocks = [Activations(config, model).block(kind) for kind in model.kinds_in()]
    if any(block is None for block in blocks):  # the tensors of some block are not known
        return
    has = [name for name in NAMES if any(name in block.named for block in blocks if block)]
    option_names = [name for name in train.recompute.given() if name != INPUT]
    for name in option_names:
        if not set(GROUPS.get(name, (name,))) & set(has):
            near = closest(name, has) or has[:1]
            hint = f"{TABLE}.{name}=remat {TABLE}.{near[0]}={getattr(train.recompute, name)}"
            message = f"no layer has {name}; there are {', '.join(has)}."
            yield f"{TABLE}.{name}", message, hint
    for name in train.recompute.layers:
        if name not in train.policy.places:
            saved = ", ".join(
                tensor_name for tensor_name in train.policy.places if tensor_name in has
            )
            message = f"{name} is kept in no block; kept by name: {saved or 'nothing'}."
            hint = f"{TABLE}.{name}=device" if name in has else "leave it out there"
            yield f"{TABLE}.layers", message, hint


@rule("train.recompute_custom", POLICY, TABLE)
def custom(train: Train) -> Findings:
    """With train.activation_checkpointing=custom something besides the input of blocks is kept, or
    that in host memory.
    """
    if train.activation_checkpointing == CUSTOM and not train.policy.places:
        yield POLICY, f"{POLICY}=full, or {TABLE}.out_proj=device"


@rule("train.recompute_input", f"{TABLE}.{INPUT}", POLICY, "parallel.ep")
def block_input(train: Train, parallel: Parallel) -> Findings:
    """What enters a block is kept, since it runs again from there; with parallel.ep > 1 and other
    names on the device.
    """
    if train.activation_checkpointing != CUSTOM:
        return
    storage, key = train.recompute.decoder_layer_input, f"{TABLE}.{INPUT}"
    other_names = set(train.policy.places) - {INPUT}
    if storage == REMAT or (storage == OFFLOAD and parallel.ep > 1 and other_names):
        yield key, f"{key}={DEVICE}"


@rule("train.recompute_twice", TABLE, POLICY)
def one_place(train: Train) -> Findings:
    """attention_out and context are one tensor, and so have one place."""
    table = train.recompute
    storages = {table.context, table.attention_out} - {REMAT}
    if train.activation_checkpointing == CUSTOM and len(storages) > 1:
        yield f"{TABLE}.attention_out", f"{TABLE}.attention_out={REMAT}"


@rule("train.recompute_compiled", TABLE, POLICY, "train.compile_model")
def compiled(train: Train) -> Findings:
    """A compiled block keeps all its named tensors on the device, or all in host memory: what it
    keeps has no names any more.
    """
    storages = {name: storage for name, storage in train.policy.places.items() if name in NAMES}
    if train.activation_checkpointing != CUSTOM or not train.compile_model:
        return
    if len(set(storages.values())) > 1:
        on_device = [name for name, storage in storages.items() if storage == DEVICE]
        message = f"{', '.join(on_device)} on the device, and others in host memory."
        yield TABLE, message, "train.compile_model=false"


@rule("train.recompute_layers", "train.recompute_layers", "train.recompute_every", "model.n_layers")
def counted_once(train: Train, model: Decoder) -> Findings:
    """train.recompute_layers is at most model.n_layers, and train.recompute_every then 1."""
    number, key = train.recompute_layers, "train.recompute_layers"
    if number is not None and train.recompute_every > 1:
        message = f"{key} and train.recompute_every both say how many blocks are recomputed."
        yield key, message, "train.recompute_every=1"
    elif number is not None and number > model.n_layers:
        yield key, f"{key}={model.n_layers}"
