"""Tokens and masks of conversations equal those of transformers, on templates of real models."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Raw
from tokenizers import decoders, models, pre_tokenizers

from forge.data.tokenizers.render import prompt_ids, render_conversation, turn_ends
from forge.data.tokenizers.tokenizer import Tokenizer

SPECIAL = [
    "<s>",
    "</s>",
    "<bos>",
    "<|endoftext|>",
    "<|begin_of_text|>",
    "<|im_start|>",
    "<|im_end|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
]
LETTERS = " is what 2+2 it four Ünïcödé 🙂 User assistant"
MISTRAL = """\
{{ bos_token }}{% for message in messages %}\
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}BEGIN{{ message['content'] + eos_token }}END\
{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}\
{% endfor %}"""
CHATML = """\
{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}\
{% if message['role'] == 'assistant' %}BEGIN{{ message['content'] + '<|im_end|>' + '\n' }}END\
{% else %}{{ message['content'] + '<|im_end|>' + '\n' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""As these models ship them, but for BEGIN and END: tags of generation, or nothing."""
SAID = [
    {"role": "user", "content": "what is 2+2?"},
    {"role": "assistant", "content": "It is four 🙂"},
    {"role": "user", "content": " Ünïcödé?  "},
    {"role": "assistant", "content": "Yes:\n\n* é\n* 🙂 it"},
]
SYSTEM = {"role": "system", "content": "Be kind."}


def shipped(name: str, *, marked: bool) -> str:
    """A template of a model; marked: with what TRL adds to train on it."""
    texts = {"mistral": MISTRAL, "chatml": CHATML}
    if name in texts:
        tags = ("{% generation %}", "{% endgeneration %}") if marked else ("", "")
        return texts[name].replace("BEGIN", tags[0]).replace("END", tags[1])
    (trl,) = importlib.util.find_spec("trl").submodule_search_locations  # type: ignore
    end = "_training" if marked else ""
    return (Path(trl) / "chat_templates" / f"{name}{end}.jinja").read_text()


@pytest.fixture(scope="module")
def raw() -> Raw:
    """A byte-level BPE with some merges, so that tokens reach over the borders of turns."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: number for number, letter in enumerate(letters)}
    merges = [("i", "s"), ("Ċ", "Ċ"), (":", "Ċ"), ("Ġ", "i"), ("?", "Ġ"), ("f", "o"), ("o", "u")]
    for a, b in merges:
        vocab[a + b] = len(vocab)
    made = Raw(models.BPE(vocab=vocab, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    made.add_tokens(["<think>", "</think>"])
    return made


BORDERS = {
    "mistral": ("<s>", "</s>"),
    "gemma": ("<bos>", "<|endoftext|>"),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>"),
    "chatml": (None, "<|im_end|>"),
    "qwen3": (None, "<|im_end|>"),
}


def ours(raw: Raw, name: str, said: Any, template: str, **how: Any) -> tuple[list, list]:
    bos, eos = BORDERS[name]
    copy = Raw.from_str(raw.to_str())
    tokenizer = Tokenizer(copy, eos_token=eos, bos_token=bos)
    found = render_conversation(said, tokenizer, template=template, **how)
    return found.tokens.tolist(), found.counted.astype(int).tolist()


def spelled(raw: Raw, ids: list[int], counted: list[int]) -> list[str]:
    edges = np.flatnonzero(np.diff([0, *counted, 0])).reshape(-1, 2).tolist()
    return [raw.decode(ids[a:b], skip_special_tokens=False) for a, b in edges]


@pytest.mark.parametrize("marked", [True, False], ids=["by_tags", "by_prefix"])
@pytest.mark.parametrize("name", BORDERS)
def test_what_the_assistant_says_in_five_templates(raw: Raw, name: str, marked: bool) -> None:
    """By hand; Qwen3's own drops what it thought in earlier turns, so that only its last is known
    by what comes before it.
    """
    by_last = name == "qwen3" and not marked
    train_on = "last_response" if by_last else "responses"
    ids, counted = ours(raw, name, SAID, shipped(name, marked=marked), train_on=train_on)
    begin, end = {
        "mistral": ("", "</s>"),
        "gemma": ("", "<end_of_turn>\n"),
        "llama3": ("", "<|eot_id|>"),
        "chatml": ("", "<|im_end|>\n"),
        "qwen3": ("<think>\n\n</think>\n\n", "<|im_end|>\n"),
    }[name]
    wanted = [f"{begin}{turn['content']}{end}" for turn in SAID[1::2]]
    assert spelled(raw, ids, counted) == (wanted[-1:] if by_last else wanted)


@pytest.mark.nightly
@pytest.mark.parametrize("system", [False, True], ids=["plain", "system"])
@pytest.mark.parametrize("name", BORDERS)
def test_transformers_masks_the_same(raw: Raw, name: str, system: bool) -> None:
    from transformers import PreTrainedTokenizerFast

    said = [SYSTEM, *SAID] if system else SAID
    bos, eos = BORDERS[name]
    theirs = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token=bos, eos_token=eos)
    template = shipped(name, marked=True)
    if system and name in ("mistral", "gemma"):
        with pytest.raises(ValueError, match=r"it refuses \((Only user|System role)"):
            ours(raw, name, said, template)
        return
    found: Any = theirs.apply_chat_template(
        said, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
    )
    ids, counted = ours(raw, name, said, template)
    assert ids == found["input_ids"]
    assert counted == found["assistant_masks"]
    assert 0 < sum(counted) < len(counted)
    asked, how = said[:-1], {"chat_template": template, "add_generation_prompt": True}
    prompt: Any = theirs.apply_chat_template(asked, **how, return_dict=True)
    tokenizer = Tokenizer(Raw.from_str(raw.to_str()), eos_token=eos, bos_token=bos)
    tokenizer.stated["chat_template"] = template
    assert prompt_ids(asked, tokenizer) == prompt["input_ids"]
    (end,) = turn_ends(tokenizer)
    assert end in ("</s>", "<end_of_turn>", "<|eot_id|>", "<|im_end|>")
