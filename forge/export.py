"""`python -m forge.export RUN PLACE`: the weights of a run as safetensors, or as a folder of
Hugging Face or of nanochat; its adapters as a folder of PEFT.

Examples:
    python -m forge.export runs/mine mine.safetensors --dtype bfloat16
    python -m forge.export runs/mine my-model --format hf
    python -m forge.export runs/adapters my-adapters --format peft
    python -m forge.export runs/adapters my-model --format hf --merge
    python -m forge.export runs/mine my-model --format hf --push me/my-model
    python -m forge.export runs/mine my-model-fp8 --format hf --quantize fp8
    python -m forge.export runs/d12 base_checkpoints/d12 --format nanochat
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from forge.compose.trust import for_run
from forge.config.eval import EMA, TRAINED
from forge.config.model.decoder import Decoder
from forge.config.numbers import read_amount
from forge.config.root import Config
from forge.generate import checkpoint_path, reader
from forge.rundir import checkpoints
from forge.rundir.files import replacing

QUANTIZED = ("fp8", "int8", "nvfp4", "int4")
FORMATS = ("safetensors", "hf", "peft", "nanochat")
UNITS = {"kb": 1e3, "mb": 1e6, "gb": 1e9}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the weights of a run; exit 2 without a usable checkpoint, or for a model outside of
    every family of Hugging Face.
    """
    description = (
        "Write the weights of a run as one safetensors file, or as a folder of Hugging Face."
    )
    parser = reader("forge.export", description)
    add = parser.add_argument
    add("place", type=Path, help="the .safetensors file to write; with --format hf the folder")
    formats = (
        "one file with forge's names, a folder for transformers and vLLM, for PEFT or nanochat"
    )
    add("--format", choices=FORMATS, default="safetensors", help=formats)
    add("--merge", action="store_true", help="add adapters to the weights that they stand beside")
    dtype = "number format (default: the run's checkpoint.export_dtype)"
    add("--dtype", choices=("float32", "bfloat16", "float16"), help=dtype)
    add(
        "--family",
        help="with hf, peft: a model_type such as llama (default: the first that fits)",
    )
    add("--shard-size", default="5GB", help="with hf: bytes of a file at most (default 5GB)")
    few = "with hf: matrices in few bits (int4: compressed-tensors, else torchao); needs no data"
    add("--quantize", choices=QUANTIZED, help=few)
    pushed = "with hf, peft: put the folder on the hub too, as this id; a new model is private"
    add("--push", metavar="ORG/NAME", help=pushed)
    add("--public", action="store_true", help="with --push: a new model is seen by all")
    add("--overwrite", action="store_true", help="replace what is there")
    try:
        print(_export(parser.parse_args(argv)))
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _export(options: argparse.Namespace) -> str:
    out: Path = options.place
    is_folder = options.format != "safetensors"
    if out.exists() and not options.overwrite:
        raise ValueError(f"{out} exists; give another name, or --overwrite")
    if out.exists() and out.is_dir() != is_folder:
        raise ValueError(f"{out} is {'no' if is_folder else 'a'} folder; give another name")
    if options.format in ("safetensors", "nanochat") and options.family:
        raise ValueError(f"--family {options.family}: it is of --format hf and peft")
    if options.push and options.format in ("safetensors", "nanochat"):
        raise ValueError(f"--push {options.push}: it is of --format hf and peft")
    if options.public and not options.push:
        raise ValueError("--public: it is of --push ORG/NAME")
    if options.ema and options.format not in ("hf", "safetensors"):
        hint = f"python -m forge.merge {options.run} OUT ema=true makes a run of it first"
        raise ValueError(f"--ema: it is of --format hf and safetensors; {hint}")
    if options.quantize and options.format != "hf":
        raise ValueError(f"--quantize {options.quantize}: it is of --format hf")
    if options.merge and options.format == "peft":
        raise ValueError("--merge: PEFT keeps adapters apart; --format hf, or leave it out")
    path = checkpoint_path(options)
    return checkpoints.read_checkpoint(path, partial(_folder if is_folder else _file, options))


def _file(options: argparse.Namespace, saved: checkpoints.Saved) -> str:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    from forge.training.checkpoints.hf_folders import export_dtype
    from forge.training.checkpoints.merging import Merged

    file: Path = options.place
    config = _config_of(options, saved)
    dtype = export_dtype(config, saved.path, options.dtype)
    weights = Merged(saved.path, config, EMA if options.ema else TRAINED)
    tensors = {name: weights[name].to(dtype).contiguous() for name in weights}
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(file) as scratch:
            save_file(tensors, scratch, metadata={"format": "pt", "step": str(saved.step)})
    except SafetensorError as error:
        raise OSError(f"{file} cannot be written: {error}") from error
    word = str(dtype).removeprefix("torch.")
    return f"{file}: {len(tensors)} tensors of step {saved.step} in {word}"


def _folder(options: argparse.Namespace, saved: checkpoints.Saved) -> str:
    """Write a folder beside `options.place`, and rename the complete folder into place."""
    try:
        size = int(read_amount(options.shard_size, UNITS))
    except ValueError as error:
        raise ValueError(f"--shard-size {options.shard_size}: it is {error}") from None
    from forge.hf.push import check_push, push
    from forge.training.checkpoints.hf_folders import export_folder
    from forge.training.checkpoints.peft_folders import export_peft

    config = _config_of(options, saved)
    out: Path = options.place
    if options.push:
        check_push(options.push)
    scratch = out.with_name(f".{out.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        common = {"family": options.family, "dtype": options.dtype}
        if options.format == "peft":
            text = export_peft(saved.path, config, scratch, **common)
        elif options.format == "nanochat":
            text = _nanochat(saved.path, config, scratch, options.dtype)
        else:
            common |= {"shard_bytes": size, "weights": EMA if options.ema else TRAINED}
            common["quantize"] = options.quantize
            text = export_folder(saved.path, config, scratch, **common)
        if out.exists():
            shutil.rmtree(out)
        scratch.rename(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    text = f"{out}: {text}"
    if options.push:
        text += f"\n{push(out, options.push, public=options.public)}"
    return text


def _nanochat(path: Path, config: Config, out: Path, dtype: str | None) -> str:
    from forge.compose import composition
    from forge.families.nanochat import OPTIONS
    from forge.training.checkpoints.nanochat_folders import export_checkpoint

    section = config.decoder
    if section is None:
        raise ValueError(f"--format nanochat: model._target_={config.model._target_} is another")
    sizes = [f"model.{option}={getattr(section, option)}" for option in OPTIONS.values()]
    sizes = [size.replace("=None", "=null") for size in sizes]
    composed = composition.config(["model=nanochat", "model.pad_vocab_to=1", *sizes])
    preset = composed.model
    assert isinstance(preset, Decoder)
    return export_checkpoint(path, config, preset, out, dtype=dtype)


def _config_of(options: argparse.Namespace, saved: checkpoints.Saved) -> Config:
    """The config of a checkpoint. Raises ValueError for adapters without a choice of their
    treatment, and for a choice without adapters.
    """
    from forge.training.checkpoints import restore

    path = options.run / checkpoints.BEST if options.best else options.run
    config = restore.read_checkpoint_config(saved.path, trust=for_run(path, options.trust))
    has, apart = config.adapter.active, options.format == "peft"
    if has and not (options.merge or apart):
        message = f"{path} has adapters beside weights that stay as they are"
        raise ValueError(f"{message}; --merge adds them, --format peft writes them apart")
    if not has and (options.merge or apart):
        flag = "--format peft" if apart else "--merge"
        raise ValueError(f"{flag}: {path} has no adapters; leave it out")
    return config


if __name__ == "__main__":
    sys.exit(main())
