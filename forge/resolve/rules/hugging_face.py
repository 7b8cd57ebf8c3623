"""Rules on weights of a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

from forge.config.adapters.adapter import Adapter
from forge.config.checkpoint import Checkpoint
from forge.config.model.decoder import Decoder
from forge.config.model.hub_folder import FolderDecoder, grows
from forge.config.model.layer import Model
from forge.config.problems import listed, shown
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.config.tokenizers.tokenizer import BPE, Bytes
from forge.config.tokenizers.tokenizer_files import FILE_NAME
from forge.families import folder as folders
from forge.families.shards import FolderError
from forge.resolve.rules.run_directory import has_saved_since

INIT_FROM = "checkpoint.init_from"
READS = (INIT_FROM, "checkpoint.exclude_from_loading", "checkpoint.dir", "run.dir", "model")


@rule("model.path")
def path(model: FolderDecoder) -> Findings:
    """model=hf needs the folder of a model, whose config.json gives the other options."""
    if not model.path:
        yield "model.path", "model.path=my/folder, as save_pretrained of transformers writes it"


@rule("model.unread_keys", "model.path", "model.ignore_keys", warning=True)
def unread_keys(model: FolderDecoder) -> Findings:
    """Keys of config.json that say where a model is from, or are switched off, are not read."""
    try:
        names = [
            name for name in folders.read_folder(model.path).unread if name not in model.ignore_keys
        ]
    except FolderError:
        return  # another rule reports it
    if names:
        keys = ", ".join(names)
        message = f"its {folders.CONFIG} has {keys}, which changes nothing and is not read."
        yield (
            "model.path",
            message,
            f"model.ignore_keys=[{', '.join([*model.ignore_keys, *names])}]",
        )


@rule("checkpoint.folder", *READS)
def folder(config: Config, model: Model, checkpoint: Checkpoint) -> Findings:
    """The weights of a Hugging Face folder in checkpoint.init_from are whole, and fit the model."""
    start = _folder(config, checkpoint)
    if start is None:
        return
    decoder = config.decoder
    if decoder is None:
        message = f"{start} has the weights of a decoder, and the model is none."
        yield INIT_FROM, message, "checkpoint.init_from=null, or a decoder"
        return
    same_folder = isinstance(model, FolderDecoder) and Path(model.path) == start
    hint = "the options of its config.json" if same_folder else f"model=hf model.path={start}"
    hint += ", or checkpoint.exclude_from_loading"
    try:
        read = folders.read_folder(start)
        ignored = model.ignore_keys if isinstance(model, FolderDecoder) else ()
        if unknown := folders.unknown_keys(read, ignored):
            yield INIT_FROM, *unknown
            return
        faults = folders.weight_faults(read, decoder, checkpoint.exclude_from_loading)
        if faults:
            yield INIT_FROM, f"{start} does not fit this model: {listed(faults)}.", hint
    except FolderError as error:
        yield INIT_FROM, error.what, error.fix
    except ValueError as error:  # the family has no name for a tensor
        yield INIT_FROM, f"{start} does not fit this model: {error}.", hint


@rule("checkpoint.other_model", *READS, warning=True)
def other_model(config: Config, model: Decoder, checkpoint: Checkpoint) -> Findings:
    """A model with the weights of a Hugging Face folder computes what its config.json says."""
    start = _folder(config, checkpoint)
    if start is None:
        return
    try:
        folder_model = folders.read_folder(start)
        differences = folder_model.family.differences(model, folder_model.section)
    except FolderError:
        return  # the rule above reports it
    for difference in differences:
        if difference.key == "model.vocab_size" and (grows(model) or model.new_rows[1]):
            continue
        message = (
            f"{start / folders.CONFIG} says {shown(difference.other)}, "
            "for the weights that it is of."
        )
        yield difference.key, message, f"{difference.key}={shown(difference.other)}"


@rule("tokenizer.pretrained", *READS, "tokenizer", warning=True)
def other_tokenizer(config: Config, checkpoint: Checkpoint) -> Findings:
    """Pretrained weights know the ids of their own tokenizer alone."""
    start = _folder(config, checkpoint)
    if start is None or not isinstance(config.tokenizer, BPE | Bytes):
        return
    if (start / FILE_NAME).is_file():
        origin = "made of this text" if isinstance(config.tokenizer, BPE) else "of bytes"
        message = (
            f"the weights of {start} know the ids of its own tokenizer, and this is one {origin}."
        )
        yield "tokenizer", message, f"tokenizer=file tokenizer.path={start}"


@rule("checkpoint.few_bits", *READS, "adapter", warning=True)
def rounded_folder(config: Config, adapter: Adapter, checkpoint: Checkpoint) -> Findings:
    """A folder that was quantised after its training has the weights of a rounded model."""
    start = _folder(config, checkpoint)
    if start is None or adapter.active:
        return
    try:
        quantization = folders.read_folder(start).quantization
    except FolderError:
        return  # another rule reports it
    if quantization is not None and quantization.rounded:
        message = f"{start} is in {quantization.name}, and training begins with rounded weights."
        yield INIT_FROM, message, "the folder before quantisation, or adapter=qlora"


ALL_WEIGHTS, ADAPTERS = 2e-4, 2e-3
"""Largest usual learning rates to fine-tune pretrained weights, and adapters."""


@rule("optimizer.pretrained", *READS, "adapter", "optimizer.lr", warning=True)
def pretrained(config: Config, adapter: Adapter, checkpoint: Checkpoint) -> Findings:
    """Rates of pretraining undo what pretrained weights have learnt."""
    if _folder(config, checkpoint) is None:
        return
    rate = config.optimizer.lr
    most, usual = (ADAPTERS, "2e-4") if adapter.active else (ALL_WEIGHTS, "2e-5")
    if rate <= most:
        return
    message = (
        f"{rate:g} is a rate of pretraining, which undoes what pretrained weights have learnt."
    )
    hint = f"optimizer=adamw_finetune optimizer.lr={usual}"
    if config.data.marks_responses and not config.data.examples:
        hint = f"train=sft optimizer.lr={usual}, with two passes over the data and a cosine"
    yield "optimizer.lr", message, hint


def _folder(config: Config, checkpoint: Checkpoint) -> Path | None:
    """The Hugging Face folder a run begins with; None for other starts, or after its first save."""
    start = checkpoint.init_from
    if start is None or not folders.is_folder(start) or has_saved_since(config, "init_from"):
        return None
    return Path(start)
