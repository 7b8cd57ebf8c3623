"""Tiny folders with quantised weights, and plain folders of the values of their codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from encoded_matrices import (
    Encode,
    Tensors,
    awq,
    bitsandbytes_blocks,
    bitsandbytes_rows,
    compressed,
    fp8_blocks,
    fp8_rows,
    fp8_tensor,
    gptq,
    int8_rows,
    microscaled,
    nearest,
    nvfp4,
)
from safetensors.torch import load_file, save_file

SIZES: dict[str, Any] = {"vocab_size": 260, "hidden_size": 64, "intermediate_size": 96}
SIZES |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"max_position_embeddings": 64}


def write_plain(place: Path, config: Any = None) -> Path:
    """A folder of a tiny model, in fp32."""
    import transformers

    config = config or transformers.LlamaConfig(**SIZES)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.data += torch.linspace(-0.1, 0.1, len(parameter))
    model.save_pretrained(place)
    return place


def is_quantised(name: str) -> bool:
    """Whether publishers quantise a tensor: the matrices of blocks."""
    return name.endswith("_proj.weight")


def write_quantised(plain: Path, place: Path, encode: Encode, config: dict[str, Any]) -> Path:
    """The folder of a plain one with its matrices encoded; beside it a plain folder of the values
    that its codes stand for, `place`-values.
    """
    content = json.loads((plain / "config.json").read_text())
    stored, values = Tensors(), Tensors()
    for name, weight in load_file(plain / "model.safetensors").items():
        if not is_quantised(name):
            stored[name] = values[name] = weight
            continue
        encoded = encode(weight)
        stem = name.removesuffix(".weight")
        stored |= {f"{stem}{suffix}": x.contiguous() for suffix, x in encoded.stored.items()}
        values[name] = encoded.values.contiguous()
    write(place, content | {"quantization_config": config}, stored)
    write(place.with_name(f"{place.name}-values"), content, values)
    return place


def write(place: Path, content: dict[str, Any], tensors: Tensors) -> None:
    place.mkdir()
    (place / "config.json").write_text(json.dumps(content))
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})


def write_mxfp4(plain: Path, place: Path) -> Path:
    """A folder of gpt-oss with its experts in MXFP4 and all else in bf16, as it is published."""
    content, stored = json.loads((plain / "config.json").read_text()), Tensors()
    for name, weight in load_file(plain / "model.safetensors").items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stored[name] = weight.bfloat16()
            continue
        experts, inputs, outputs = weight.shape
        blocks = weight.swapaxes(1, 2).reshape(experts, outputs, inputs // 32, 32)
        powers = (blocks.abs().amax(-1) / 6).log2().ceil()
        codes = nearest(blocks / powers.exp2()[..., None])
        stored[f"{name}_blocks"] = codes[..., ::2] | codes[..., 1::2] << 4
        stored[f"{name}_scales"] = (powers + 127).to(torch.uint8)
    config = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    write(place, content | {"dtype": "bfloat16", "quantization_config": config}, stored)
    return place


def of_groups(layout: str, bits: int, kind: str, **more: Any) -> dict[str, Any]:
    """The quantization_config of compressed-tensors."""
    weights = {"num_bits": bits, "type": kind, "symmetric": True, "dynamic": False} | more
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    config = {"quant_method": "compressed-tensors", "format": layout, "ignore": ["lm_head"]}
    return config | {"config_groups": {"group_0": group}, "quantization_status": "compressed"}


FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
BLOCKS = FP8 | {"weight_block_size": [32, 32]}
RAGGED = FP8 | {"weight_block_size": [40, 48]}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True}
GPTQ = {"quant_method": "gptq", "sym": False}
PACK = "pack-quantized"
FOUR = of_groups(PACK, 4, "int", group_size=32, strategy="group")
ASYMMETRIC = of_groups(PACK, 4, "int", group_size=32, strategy="group", symmetric=False)
CASES: dict[str, tuple[Encode, dict[str, Any]]] = {
    "fp8_blocks": (fp8_blocks(32, 32), BLOCKS),
    "fp8_ragged_blocks": (fp8_blocks(40, 48), RAGGED),
    "fp8_e8m0": (fp8_blocks(32, 32, torch.float8_e8m0fnu), BLOCKS),
    "fp8_tensor": (fp8_tensor, FP8),
    "fbgemm_fp8": (fp8_rows, {"quant_method": "fbgemm_fp8"}),
    "bnb_nf4": (bitsandbytes_blocks("nf4", False), BNB),
    "bnb_nf4_double": (bitsandbytes_blocks("nf4", True), BNB),
    "bnb_fp4": (bitsandbytes_blocks("fp4", False), BNB),
    "bnb_int8": (bitsandbytes_rows, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "gptq_v1": (gptq(4, 32, True, False), GPTQ | {"bits": 4, "group_size": 32}),
    "gptq_v2_desc_act": (
        gptq(4, 32, False, True),
        GPTQ | {"bits": 4, "group_size": 32, "desc_act": True, "checkpoint_format": "gptq_v2"},
    ),
    "gptq_8_bits": (gptq(8, 16, True, False), GPTQ | {"bits": 8, "group_size": 16}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}),
    "compressed_int4": (compressed(4, 32, False), FOUR),
    "compressed_int4_zeros": (compressed(4, 32, True), ASYMMETRIC),
    "compressed_int4_index": (compressed(4, 32, False, shuffled=True), FOUR),
    "compressed_int8_packed": (
        compressed(8, 1 << 20, False),
        of_groups(PACK, 8, "int", strategy="channel"),
    ),
    "compressed_int8": (int8_rows, of_groups("int-quantized", 8, "int", strategy="channel")),
    "compressed_fp8": (fp8_rows, of_groups("float-quantized", 8, "float", strategy="channel")),
    "compressed_nvfp4": (
        nvfp4,
        of_groups(
            "nvfp4-pack-quantized",
            4,
            "float",
            strategy="tensor_group",
            group_size=16,
        ),
    ),
    "compressed_mxfp4": (
        microscaled(4),
        of_groups("mxfp4-pack-quantized", 4, "float", strategy="group", group_size=32),
    ),
    "compressed_mxfp8": (
        microscaled(8),
        of_groups("mxfp8-quantized", 8, "float", strategy="group", group_size=32),
    ),
}
"""By name, the encoder of a matrix and the quantization_config."""
