"""What is exported of a chat model ends its answers by itself, in other programs too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from llama_folder import write_llama
from tokenizers import decoders, models, pre_tokenizers

import forge
from forge import export, train
from forge.config.tokenizers.chat_template import CHATML
from forge.data.tokenizers.byte_text import visible_bytes
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.training.checkpoints.hf_folders import generation_of

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>", "<|eom|>"]
EOS, START, TURN, PAD, OTHER = range(256, 261)
DRAWN = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}


def tokenizer_of(**stated: Any) -> Tokenizer:
    vocab = {letter: byte for byte, letter in enumerate(visible_bytes())}
    raw = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(SPECIAL)
    return Tokenizer(raw, eos_token=SPECIAL[0], stated=stated)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder whose answers end with another token than its tokenizer's texts."""
    folder = write_llama(tmp_path / "source", vocab_size=264, num_hidden_layers=2, eos_token_id=EOS)
    tokenizer_of(pad_token="<|pad|>").save(folder)
    (folder / "chat_template.jinja").write_text(CHATML)
    stated = {"eos_token_id": [EOS, OTHER], "pad_token_id": PAD, "bos_token_id": None, **DRAWN}
    (folder / "generation_config.json").write_text(json.dumps(stated))
    return folder


def test_an_exported_chat_model_stops_by_itself(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained on an answer, which `generate` of transformers then ends, as the folder says."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    monkeypatch.chdir(tmp_path)
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    Path("chat.jsonl").write_text((json.dumps({"messages": said}) + "\n") * 16)
    words = f"model=hf model.path={source} data=chat data.path=chat.jsonl objective=sft"
    words += " optimizer=adamw optimizer.lr=0.01 train.batch_size=4 train.seq_len=64 run.dir=run"
    words += " train.max_steps=30 eval.enabled=false parallel=single run.num_processes=1"
    words += " run.device=cpu metrics.enable_console=false data.val_fraction=0"
    assert train.main(words.split()) == 0
    assert export.main(["run", "out", "--format", "hf"]) == 0
    content = json.loads(Path("out/generation_config.json").read_text())
    assert content == {
        "eos_token_id": [EOS, OTHER, TURN],
        "pad_token_id": PAD,
        "bos_token_id": None,
        **DRAWN,
    }
    assert "generation_config" not in json.loads(Path("out/tokenizer_config.json").read_text())
    model, reader = (kind.from_pretrained("out") for kind in (AutoModelForCausalLM, AutoTokenizer))
    # what vLLM stops at: the ids of generation_config.json, and the tokenizer's own
    stops = {*GenerationConfig.from_pretrained("out").eos_token_id, reader.eos_token_id}
    assert stops == {EOS, OTHER, TURN}
    prompt = reader.apply_chat_template(
        said[:1], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    text = model.generate(**prompt, do_sample=False, max_new_tokens=40)[0]
    assert reader.decode(text[prompt["input_ids"].shape[1] :]) == "hello<|im_end|>"
    loaded = forge.load("run")
    assert loaded.chat("hi", temperature=0, max_new_tokens=40) == "hello"
    # a run that resumes from this one keeps what the folder says
    assert loaded.tokenizer.stated["generation_config"]["eos_token_id"] == [EOS, OTHER]


@pytest.mark.parametrize(
    ("stated", "begun", "expected"),
    [
        ({}, False, {"eos_token_id": EOS}),
        ({"chat_template": CHATML}, False, {"eos_token_id": [EOS, TURN]}),
        ({"pad_token": {"content": "<|pad|>"}}, True, {"eos_token_id": EOS, "pad_token_id": PAD}),
        (
            {"generation_config": {"eos_token_id": OTHER, "pad_token_id": PAD, **DRAWN}},
            True,
            {"eos_token_id": [OTHER, EOS], "pad_token_id": PAD, **DRAWN},
        ),
        (
            {"generation_config": {"eos_token_id": [OTHER, 999], **DRAWN}},
            False,
            {"eos_token_id": [OTHER, EOS]},
        ),
    ],
    ids=["alone", "a template", "a pad token", "of a folder", "a tokenizer of a folder alone"],
)
def test_what_ends_a_text(stated, begun, expected) -> None:
    assert generation_of(tokenizer_of(**stated), begun=begun) == {"bos_token_id": None, **expected}


def test_a_folder_without_generation_config_has_the_ends_of_its_config(tmp_path: Path) -> None:
    from forge.config.tokenizers.tokenizer_stated import stated_beside

    folder = write_llama(tmp_path / "in", vocab_size=264, eos_token_id=[EOS, OTHER])
    (folder / "generation_config.json").unlink()
    stated = stated_beside(folder / "tokenizer.json")["generation_config"]
    assert stated == {"eos_token_id": [EOS, OTHER]}
