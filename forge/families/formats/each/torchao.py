"""torchao: FP8 and integers in bytes, as `forge.export --quantize` and transformers store them.

Names: https://github.com/pytorch/ao, torchao/prototype/safetensors.
"""

from __future__ import annotations

from collections.abc import Mapping

from forge.families.formats.each.fp8 import scaled
from forge.families.formats.format import Format, grouped_parts, lacks_parts
from forge.families.shards import Stored

SUFFIXES = ("._weight_qdata", "._weight_scale", "._weight_zero_point", "._weight_per_tensor_scale")
CODES, SCALES, ZEROS, OF_ALL = SUFFIXES


class TorchAO(Format):
    """Float8Tensor, Int8Tensor and integers in bytes; NVFP4 has its scales in another order."""

    methods = ("torchao",)
    name = "torchao's format"

    def plain(self, files: Mapping[str, Stored], faults: list[str]) -> dict[str, Stored]:
        tensors: dict[str, Stored] = {}
        for stem, parts in grouped_parts(files, SUFFIXES, tensors, faults):
            if lacks_parts(stem, parts, (SCALES,), faults):
                continue
            codes, grid = parts[CODES], parts[SCALES].shape
            if codes.dtype not in ("F8_E4M3", "I8") or OF_ALL in parts:
                faults.append(f"{stem}{CODES} is in {codes.dtype}; FP8 and 8-bit integers are read")
                continue
            block = (1, 1)
            if len(grid) == len(codes.shape) and min(grid) > 0:
                block = tuple(-(-size // n) for size, n in zip(codes.shape, grid, strict=True))
            meanings = {"codes": CODES, "scales": SCALES, "zeros": ZEROS}
            named = {key: parts[suffix] for key, suffix in meanings.items() if suffix in parts}
            tensors[f"{stem}.weight"] = scaled(f"{stem}.weight", named, block, faults)
        return tensors
