"""`python -m forge.export RUN FILE`: the weights of a run as safetensors.

Examples:
    python -m forge.export runs/mine mine.safetensors --dtype bfloat16
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from forge.compose.trust import for_run
from forge.generate import checkpoint_path, reader
from forge.rundir.files import replacing


def main(argv: Sequence[str] | None = None) -> int:
    """Write the weights of a run; exit 2 for one without a usable checkpoint."""
    parser = reader("forge.export", "Write the weights of a run as one safetensors file.")
    add = parser.add_argument
    add("file", type=Path, help="the .safetensors file to write")
    dtype = "number format (default: the run's checkpoint.export_dtype)"
    add("--dtype", choices=("float32", "bfloat16"), help=dtype)
    add("--overwrite", action="store_true", help="replace the file where there is one")
    try:
        print(_export(parser.parse_args(argv)))
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _export(options: argparse.Namespace) -> str:
    file: Path = options.file
    if file.exists() and not options.overwrite:
        raise ValueError(f"{file} exists; give another name, or --overwrite")
    path = checkpoint_path(options)
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    from forge.training.restore import load_run

    trained = load_run(path, trust=for_run(path, options.trust), fp32=True)
    name = options.dtype or trained.config.checkpoint.export_dtype
    dtype = getattr(torch, name)
    tensors = {
        key: value.detach().to("cpu", dtype).contiguous()
        for key, value in trained.model.state_dict().items()
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(file) as scratch:
            save_file(tensors, scratch, metadata={"format": "pt", "step": str(trained.step)})
    except SafetensorError as error:
        raise OSError(f"{file} cannot be written: {error}") from error
    return f"{file}: {len(tensors)} tensors of step {trained.step} in {name}"


if __name__ == "__main__":
    sys.exit(main())
