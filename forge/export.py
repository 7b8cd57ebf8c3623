"""`python -m forge.export RUN FILE`: the weights of a run as safetensors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from forge.rundir import checkpoints


def main(argv: Sequence[str] | None = None) -> int:
    """Write the weights in checkpoint.export_dtype; exit 2 for a run that has no checkpoint."""
    parser = argparse.ArgumentParser(
        prog="python -m forge.export",
        description="Write the weights of a run as one safetensors file.",
    )
    parser.add_argument("run", type=Path, help="a run directory, or one of its step_N checkpoints")
    parser.add_argument(
        "--best",
        action="store_true",
        help="the best checkpoint by the run's eval.metric, instead of the newest",
    )
    parser.add_argument("file", type=Path, help="the .safetensors file to write")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="number format (default: the run's checkpoint.export_dtype)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the file where there is one"
    )
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="PREFIX",
        help="also build the model from modules like mypkg.",
    )
    options = parser.parse_args(argv)
    try:
        print(_export(options))
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _export(options: argparse.Namespace) -> str:
    if options.file.exists() and not options.overwrite:
        raise ValueError(f"{options.file} exists; give another name, or --overwrite")
    path = options.run / checkpoints.BEST if options.best else options.run
    checkpoints.find(path)  # refused before torch is imported, which takes seconds
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    from forge.training.restore import load_run

    trained = load_run(path, trust=options.trust, fp32=True)
    name = options.dtype or trained.config.checkpoint.export_dtype
    dtype = getattr(torch, name)
    tensors = {
        key: value.detach().to("cpu", dtype).contiguous()
        for key, value in trained.model.state_dict().items()
    }
    scratch = options.file.with_name(f".{options.file.name}.partial")
    options.file.parent.mkdir(parents=True, exist_ok=True)
    try:
        save_file(tensors, scratch, metadata={"format": "pt", "step": str(trained.step)})
    except SafetensorError as error:
        raise OSError(f"{options.file} cannot be written: {error}") from error
    scratch.replace(options.file)
    return f"{options.file}: {len(tensors)} tensors of step {trained.step} in {name}"


if __name__ == "__main__":
    sys.exit(main())
