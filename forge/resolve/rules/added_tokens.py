"""Rules on tokens added to a tokenizer, and on their rows of the vocabulary."""

from __future__ import annotations

from forge.config.adapters.adapter import LoRA
from forge.config.checkpoint import Checkpoint
from forge.config.model.decoder import Decoder
from forge.config.model.tensors import EMBEDDING, HEAD
from forge.config.problems import literal, shown, typed_override
from forge.config.rule import Findings, rule
from forge.config.tokenizers.ranked_bpe import RankedBPE
from forge.config.tokenizers.tokenizer import (
    ADDED,
    BPE,
    END_OF_TEXT,
    Bytes,
    Tokenizer,
    already_there,
)
from forge.config.tokenizers.tokenizer_files import Existing
from forge.families.folder import is_folder

KEYS = tuple(f"tokenizer.{name}" for name in ADDED)
ORDINARY = KEYS[0]


@rule(ORDINARY, *KEYS, "tokenizer.path")
def added_tokens(tokenizer: Tokenizer) -> Findings:
    """A token that is added has a spelling, is named once, and is none that is there."""
    if tokenizer.added and not isinstance(tokenizer, Existing | BPE | Bytes):
        message = f"{type(tokenizer).__name__} is a tokenizer of your own, to which none are added."
        yield _key(tokenizer), message, f"{_key(tokenizer)}=[]"
        return
    existing_ids, seen = _known(tokenizer), set[str]()
    for key in KEYS:
        tokens = getattr(tokenizer, key.partition(".")[2])
        usable = [
            token for token in dict.fromkeys(tokens) if token not in {"", *existing_ids, *seen}
        ]
        hint = typed_override(key, literal(usable))
        for token in tokens:
            if not token:
                yield key, "it names a token that is empty.", hint
            elif token in existing_ids:
                yield key, already_there(token, existing_ids[token]), hint
            elif token in seen:
                yield key, f"it names {token} twice.", hint
            seen.add(token)


def _key(tokenizer: Tokenizer) -> str:
    return KEYS[0] if tokenizer.add_tokens else KEYS[1]


def _known(tokenizer: Tokenizer) -> dict[str, int]:
    """Tokens of the tokenizer before any is added, with their ids, as far as known now."""
    if isinstance(tokenizer, Existing):
        facts = tokenizer.read()
        return {} if isinstance(facts, str) else dict(facts.tokens)
    if isinstance(tokenizer, RankedBPE):
        return tokenizer.special_ids
    ids = {END_OF_TEXT: 256 if isinstance(tokenizer, Bytes) else 0}
    if tokenizer.add_bos and tokenizer.begin != END_OF_TEXT:
        ids[tokenizer.begin] = ids[END_OF_TEXT] + 1
    return ids


@rule(
    "tokenizer.added_to_base",
    *KEYS,
    "checkpoint.init_from",
    "checkpoint.init_optimizer",
)
def added_to_base(tokenizer: Tokenizer, checkpoint: Checkpoint) -> Findings:
    """Tokens are added to the tokenizer that the weights of checkpoint.init_from go with, and not
    to the state of their optimizer.
    """
    start = checkpoint.init_from
    if start is None or not tokenizer.added:
        return
    if isinstance(tokenizer, BPE) or (isinstance(tokenizer, Bytes) and not is_folder(start)):
        message = f"{start} was trained with a tokenizer, and this one is made for the run."
        yield _key(tokenizer), message, "tokenizer=file, which is that of checkpoint.init_from"
    if checkpoint.init_optimizer:
        message = f"the state of the optimizer in {start} has no rows for new tokens."
        yield "checkpoint.init_optimizer", message, "checkpoint.init_optimizer=false"


@rule("model.new_rows", "model.new_rows", "model.vocab_size", "checkpoint.init_from")
def new_rows_exist(model: Decoder, checkpoint: Checkpoint) -> Findings:
    """model.new_rows are some of the rows of weights that the run begins with, but for the first
    ones.
    """
    first, end = model.new_rows
    if not end:
        return
    if not 0 < first < end <= model.vocab_size:
        message = (
            f"[{first},{end}] is no range within the {model.vocab_size} rows, after the first."
        )
        yield (
            "model.new_rows",
            message,
            f"model.new_rows=[{model.vocab_size - 1},{model.vocab_size}]",
        )
    elif checkpoint.init_from is None:
        message = "there are no weights that it begins with, so that all rows are new."
        yield "model.new_rows", message, "model.new_rows=[0,0]"


@rule("adapter.new_rows", "model", "adapter", *KEYS, warning=True)
def frozen_rows(model: Decoder, tokenizer: Tokenizer, adapter: LoRA) -> Findings:
    """The rows of tokens that are added are trained beside adapters too."""
    if not model.new_rows[1]:
        return
    tables = [tensor for tensor in model.tensors() if tensor.role in (EMBEDDING, HEAD)]
    frozen = [
        tensor.name for tensor in tables if not (adapter.trains(tensor) or adapter.rank_of(tensor))
    ]
    if frozen:
        tokens = shown(tokenizer.added) if tokenizer.added else f"in {shown(model.new_rows)}"
        message = f"the rows of {tokens} stay the mean of the others in {', '.join(frozen)}."
        saved = [*adapter.modules_to_save, *frozen]
        yield "adapter.modules_to_save", message, f"adapter.modules_to_save={shown(saved)}"
