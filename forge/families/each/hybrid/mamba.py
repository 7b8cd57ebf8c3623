"""Mamba-2 layers in the files of hybrid families: their keys and their tensors."""

from __future__ import annotations

from typing import Any

from forge.config.model.decoder import Decoder
from forge.config.model.mixers.mamba2 import Mamba2
from forge.families.each.qwen3_next import of_heads
from forge.families.keys import Keys
from forge.families.patterns import FULL, LINEAR
from forge.families.table import FolderTensor, Table

FORMER = {"mamba": LINEAR, "attention": FULL}
"""Types of layers in files of before transformers 5, and their names since."""
INFINITE = {"__float__": "Infinity"}
KEYS = {
    "ssm_num_heads": "mamba_n_heads",
    "ssm_state_size": "mamba_d_state",
    "ssm_n_groups": "mamba_n_groups",
    "ssm_conv_kernel_dim": "mamba_d_conv",
    "ssm_conv_bias": "mamba_conv_bias",
    "ssm_proj_bias": "mamba_proj_bias",
    "ssm_chunk_size": "mamba_chunk_size",
}
ABSENT: dict[str, Any] = {"mamba_n_heads": 128, "mamba_d_state": 256, "mamba_n_groups": 1}
ABSENT |= {"mamba_d_conv": 4, "mamba_conv_bias": True, "mamba_proj_bias": False}
ABSENT |= {"mamba_expand": 2, "mamba_chunk_size": 256}


def mamba_table(mixer: Mamba2, place: str) -> Table:
    """Return the table of a Mamba-2 layer. place: the prefix of its stored tensors."""
    inner, state = mixer.inner_width, mixer.state_width
    table: Table = {
        "attention.a_log": f"{place}A_log",
        "attention.d": f"{place}D",
        "attention.dt_bias": f"{place}dt_bias",
        "attention.norm.weight": f"{place}norm.weight",
        "attention.wo.weight": f"{place}out_proj.weight",
        "attention.wo.bias": f"{place}out_proj.bias",
    }
    widths = (inner, inner, state, state, mixer.ssm_num_heads)
    for number, name in enumerate(("z", "x", "b", "c", "dt")):
        rows = of_heads(1, widths, number)
        for kind in ("weight", "bias"):
            stored = FolderTensor(name=f"{place}in_proj.{kind}", rows=rows)
            table[f"attention.w{name}.{kind}"] = stored
    for number, name in enumerate("xbc"):
        rows = of_heads(1, (inner, state, state), number)
        stored = FolderTensor(name=f"{place}conv1d.weight", rows=rows, singleton=1)
        table[f"attention.conv_{name}"] = stored
        table[f"attention.conv_{name}_bias"] = FolderTensor(name=f"{place}conv1d.bias", rows=rows)
    return table


def mixers_of(section: Decoder) -> list[Mamba2]:
    """Return the Mamba-2 layers of a model. Raises ValueError for a model without."""
    layers = [section.of_kind(section.kind_of(n).name) for n in range(section.n_layers)]
    mixers = [layer.mixer for layer in layers if isinstance(layer.mixer, Mamba2)]
    if not mixers:
        raise ValueError("model.layers without a Mamba-2 layer")
    return mixers


def hybrid_types(keys: Keys, n_layers: int | None) -> list[str]:
    """Return the types of the layers, in the words of transformers 5."""
    stated = keys.take("layers_block_type", "layer_types", default=[LINEAR] * (n_layers or 0))
    types = [FORMER.get(str(name), str(name)) for name in stated]
    if n_layers is not None and len(types) != n_layers:
        keys.faults.append(f"layer_types has {len(types)} entries for {n_layers} layers")
    if unknown := sorted({*types} - {LINEAR, FULL}):
        keys.faults.append(f"layer_types has {unknown[0]!r}")
    return types


def read_mamba(keys: Keys, dim: int | None) -> dict[str, Any]:
    """Read a Mamba-2 layer of Granite 4 or Bamba. dim: width of the residual stream."""
    mixer: dict[str, Any] = {"schema": "mamba2"}
    mixer |= {option: keys.take(key) for option, key in KEYS.items()}
    inner = keys.number("mamba_expand") * (dim or 0)
    width = keys.take("mamba_d_head", default="auto")
    mixer["ssm_head_dim"] = inner // mixer["ssm_num_heads"] if width == "auto" else width
    if mixer["ssm_head_dim"] * mixer["ssm_num_heads"] != inner:
        keys.faults.append("mamba_n_heads * mamba_d_head is not mamba_expand * hidden_size")
    return mixer | read_limit(keys)


def read_limit(keys: Keys) -> dict[str, Any]:
    """Read the bounds of steps; infinity is none."""
    low, high = keys.take("time_step_limit", default=(0.0, INFINITE))
    endless = high in (INFINITE, float("inf"), "Infinity")
    return {"ssm_time_step_min": low, "ssm_time_step_max": None if endless else high}


def write_mamba(mixer: Mamba2, dim: int) -> dict[str, Any]:
    """Return the keys read by `read_mamba`.

    Raises ValueError for a width that is no multiple of the stream's.
    """
    if mixer.inner_width % dim:
        raise ValueError(f"model.mixer.ssm_head_dim={mixer.ssm_head_dim}")
    config = {key: getattr(mixer, option) for option, key in KEYS.items()}
    config |= {"mamba_expand": mixer.inner_width // dim, "mamba_d_head": mixer.ssm_head_dim}
    bound = INFINITE if mixer.ssm_time_step_max is None else mixer.ssm_time_step_max
    return config | {"time_step_limit": [mixer.ssm_time_step_min, bound]}


def written_types(section: Decoder) -> list[str]:
    """Return the type of each layer."""
    layers = (section.of_kind(section.kind_of(n).name) for n in range(section.n_layers))
    return [LINEAR if isinstance(layer.mixer, Mamba2) else FULL for layer in layers]
