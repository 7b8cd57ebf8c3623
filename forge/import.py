"""`python -m forge.import FOLDER OUT`: a run of the weights in a folder of Hugging Face, in a model
of its hub, in a GGUF file, or in a checkpoint of nanochat.

Examples:
    python -m forge.import my/folder runs/mine
    python -m forge.import openai-community/gpt2 runs/gpt2
    python -m forge.import my/model.gguf runs/mine
    python -m forge.import my/folder --diagnose
    python -m forge.import base_checkpoints/d12 runs/d12 tokenizer=file tokenizer.path=vocab.json
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from forge import cli
from forge.compose.trust import in_project
from forge.config.problems import COMMAND_LINE, ConfigError, quoted, refusal
from forge.families import folder as folders
from forge.families import nanochat
from forge.families.diagnose import diagnosis
from forge.families.download import fetch_model, is_id
from forge.families.shards import FolderError
from forge.gguf.reader import is_gguf

DESCRIPTION = "Make a run of the weights, the tokenizer and the chat template of a folder."
LONGEST = 1024


def main(argv: Sequence[str] | None = None) -> int:
    """Make the run directory OUT with a single checkpoint, step_0; 2 for a refused import."""
    arguments = cli.parser("forge.import FOLDER OUT", DESCRIPTION)
    revision = "branch, tag or commit of a model on the hub (default main)"
    arguments.add_argument("--revision", default="main", help=revision)
    unknown = "say which keys and tensors of FOLDER forge knows, and what is missing; no run"
    arguments.add_argument("--diagnose", action="store_true", help=unknown)
    options = cli.parse(arguments, argv)
    if options.help:
        return cli.help("forge.import FOLDER OUT", arguments, options)

    def verb() -> int:
        typed = [word for word in options.overrides if "=" in word or word.startswith("~")]
        positional = [word for word in options.overrides if word not in typed]
        if options.diagnose and len(positional) == 1 and not typed:
            return _diagnose(positional[0], options.revision)
        if options.diagnose:
            message = "--diagnose takes a folder, or the id of a model, and nothing else."
            hint = "python -m forge.import my/folder --diagnose"
            raise refusal("--diagnose", message, hint, COMMAND_LINE)
        if len(positional) != 2:
            message = "it takes a folder, or the id of a model, and the run directory to make."
            hint = "python -m forge.import my/folder runs/mine"
            raise refusal("FOLDER OUT", message, hint, COMMAND_LINE)
        try:
            print(_import(positional[0], cli.local_path("RUN", positional[1]), typed, options))
        except FolderError as error:
            raise refusal(positional[0], error.what, error.fix, COMMAND_LINE) from None
        except (ValueError, OSError) as error:
            if isinstance(error, ConfigError):
                raise
            print(cli.printable(str(error)), file=sys.stderr)
            return cli.REFUSED
        return 0

    return cli.refuse(verb)


def _diagnose(place: str, revision: str) -> int:
    try:
        lines = diagnosis(_folder(place, revision))
    except FolderError as error:
        raise refusal(place, error.what, error.fix, COMMAND_LINE) from None
    for line in lines:
        print(cli.printable(line))
    return 0


def _import(place: str, out: Path, typed: Sequence[str], options) -> str:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        message = f"{out} exists, and a run is made in a new directory."
        raise refusal("OUT", message, "another OUT", COMMAND_LINE)
    checkpoint = nanochat.read_checkpoint(Path(place).expanduser())
    if checkpoint is not None:
        return _import_nanochat(checkpoint, out, typed, options)
    folder = _folder(place, options.revision)
    if is_gguf(folder):
        folder = _plain_folder(folder, out)
    longest = folders.read_folder(folder).section.max_seq_len
    model = ["model=hf", f"model.path={quoted(str(folder))}"]
    overrides = _overrides(model, longest, typed, out)
    resolution = cli.resolved(in_project(overrides), options.config_dir)[1]
    from forge.build import build
    from forge.rundir import directory
    from forge.training.checkpoints.hf_folders import import_folder

    section = resolution.config.tokenizer
    tokenizer = build(section, path="tokenizer", trust=resolution.config.run.trust, text=None)
    run_dir, config = directory.create(resolution, overrides=overrides)
    path = import_folder(
        folder, config, tokenizer, run_dir / config.checkpoint.dir, directory.run_id(run_dir)
    )
    return f"{path}: {folders.read_folder(folder).family.architecture} from {folder}"


def _overrides(model: Sequence[str], longest: int, typed: Sequence[str], out: Path) -> list[str]:
    return [
        *model,
        f"train.seq_len={min(longest, LONGEST)}",
        "parallel=single",
        "run.num_processes=1",
        "eval.enabled=false",
        *typed,
        f"run.dir={quoted(str(out.absolute()))}",
    ]


def _import_nanochat(
    checkpoint: nanochat.Checkpoint, out: Path, typed: Sequence[str], options
) -> str:
    """Make a run of a checkpoint of nanochat, whose folder has no tokenizer."""
    if not any(word.startswith("tokenizer") for word in typed):
        message = "the checkpoint of nanochat has no tokenizer beside it."
        hint = "say which: tokenizer=file tokenizer.path=tokenizer.json"
        raise refusal(str(checkpoint.weights), message, hint, COMMAND_LINE)
    longest = int(checkpoint.config["sequence_len"])
    overrides = _overrides(checkpoint.overrides(), longest, typed, out)
    resolution = cli.resolved(in_project(overrides), options.config_dir)[1]
    from forge.build import build
    from forge.rundir import directory
    from forge.training.checkpoints.nanochat_folders import import_checkpoint

    section, trust = resolution.config.tokenizer, resolution.config.run.trust
    tokenizer = build(section, path="tokenizer", trust=trust, text=None)
    run_dir, config = directory.create(resolution, overrides=overrides)
    folder = run_dir / config.checkpoint.dir
    path = import_checkpoint(checkpoint, config, tokenizer, folder, directory.run_id(run_dir))
    return f"{path}: nanochat from {checkpoint.weights}"


def run_of_folder(folder: Path, out: Path) -> None:
    """Make a run of a folder, for its evaluation. Raises ValueError, also for a folder without a
    tokenizer, before its weights are read.
    """
    options = argparse.Namespace(revision="main", config_dir=[])
    try:
        _import(str(folder), out, [], options)
    except FolderError as error:
        raise refusal(str(folder), error.what, error.fix, COMMAND_LINE) from None


def _plain_folder(file: Path, out: Path) -> Path:
    """The plain folder of a GGUF file, written beside the run that is made of it."""
    from forge.gguf.folder import write_folder

    folder = out.absolute().with_name(f"{out.name}-hf")
    if folder.exists():
        message = f"{folder} exists, and the plain folder of {file.name} is written there."
        raise refusal("OUT", message, "another OUT, or import that folder", COMMAND_LINE)
    try:
        write_folder(file, folder)
    except BaseException:  # half a folder is none
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _folder(place: str, revision: str) -> Path:
    """A local folder as an absolute path, or the folder of a model id, fetched once."""
    if not is_id(place):
        return Path(place).expanduser().absolute()
    folder, fault = fetch_model(place, revision)
    if fault:
        message = f"there is no folder {place}, and as the id of a model: {fault}."
        raise refusal(place, message, "check it, or give a folder on this machine", COMMAND_LINE)
    return Path(folder)


if __name__ == "__main__":
    sys.exit(main())
