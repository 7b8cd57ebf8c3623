"""Tokens that are added to the tokenizer of a folder, beside transformers' and PEFT's own."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.ranks import on_ranks
from llama_folder import write_llama

import forge
from forge import export, generate, resume, train
from forge.parallel.gather import gather_on_main
from forge.parallel.mesh import make_mesh
from forge.parallel.ranks import Ranks
from forge.training.checkpoints.restore import load_weights
from forge.training.models import build_model

ORDINARY, SPECIAL = ["<think>", "</think>"], ["<|tool|>", "[SEP]"]
ADD = ["tokenizer.add_tokens=[<think>,</think>]", "tokenizer.add_special_tokens=[<|tool|>,[SEP]]"]
TEXT = "The sea is <think>calm</think> today. "
KNOWN = 257
"""Ids of the tokenizer of the folder."""


def words(folder: Path, run: Path, *more: str) -> list[str]:
    text = run.with_suffix(".txt")
    text.write_text(TEXT * 40)
    typed = ["model=hf", f"model.path={folder}", f"run.dir={run}", "data=text", f"data.path={text}"]
    typed += ["train.seq_len=16", "train.max_steps=2", "run.device=cpu", "precision=fp32"]
    typed += ["eval.enabled=false", "data.val_fraction=0", "optimizer=adamw", *ADD]
    return [*typed, "optimizer.weight_decay=0", *more]


def exported(run: Path, out: Path, *more: str) -> Path:
    assert export.main([str(run), str(out), *more]) == 0
    return out


def imported(folder: Path, run: Path) -> Path:
    assert importlib.import_module("forge.import").main([str(folder), str(run)]) == 0
    return run


def means(values: torch.Tensor) -> torch.Tensor:
    return values[:KNOWN].mean(0).expand(len(ORDINARY + SPECIAL), -1)


@pytest.mark.ci("257")
@pytest.mark.parametrize("rows", [KNOWN, 300])
def test_ids_and_rows_are_those_of_transformers(
    rows: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rows that the folder lacks are added, and those that it has to spare are new too."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, run = write_llama(tmp_path / "in", vocab_size=rows), tmp_path / "run"
    assert train.main(words(folder, run, "optimizer.lr=1e-30")) == 0
    said = " ".join(capfd.readouterr().out.split())
    names = "model.embed_tokens.weight, lm_head.weight"
    assert f"; 4 new rows of {names}, each the mean of those before" in said

    tokenizer = AutoTokenizer.from_pretrained(folder)
    base: Any = AutoModelForCausalLM.from_pretrained(folder)
    stored = {name: values.clone() for name, values in base.state_dict().items()}
    assert tokenizer.add_tokens(ORDINARY) == 2
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    if len(tokenizer) > rows:
        base.resize_token_embeddings(len(tokenizer))
    ours = forge.load(run)
    assert ours.tokenizer.encode(TEXT) == tokenizer(TEXT, add_special_tokens=False).input_ids
    state = ours.model.state_dict()
    assert state["embedding.weight"].shape == base.get_input_embeddings().weight.shape
    for name, theirs in (("embedding", "model.embed_tokens"), ("output", "lm_head")):
        table, known = state[f"{name}.weight"], stored[f"{theirs}.weight"]
        torch.testing.assert_close(table[:KNOWN], known[:KNOWN], rtol=0, atol=0)
        torch.testing.assert_close(table[KNOWN : KNOWN + 4], means(known), rtol=0, atol=1e-7)
        torch.testing.assert_close(table[KNOWN + 4 :], known[KNOWN + 4 :], rtol=0, atol=0)

    out = exported(run, tmp_path / "out", "--format", "hf")
    again = AutoTokenizer.from_pretrained(out)
    text = f"{TEXT}{''.join(SPECIAL)}"
    ids = again(text, add_special_tokens=False).input_ids
    assert ids == tokenizer(text, add_special_tokens=False).input_ids
    assert ids[-2:] == [KNOWN + 2, KNOWN + 3]
    assert again.decode(ids, skip_special_tokens=True) == TEXT
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.config.vocab_size == max(rows, KNOWN + 4)
    tokens = torch.tensor([ids[-12:]])
    torch.testing.assert_close(model(tokens).logits, ours.model(tokens), rtol=0, atol=1e-5)


BOTH = "adapter.modules_to_save=[embedding.weight,output.weight]"
ADAPTERS = {
    "frozen": (False, ()),
    "trained": (False, (BOTH,)),
    "beside the embedding": (False, ("adapter.target_modules=[auto,embedding]",)),
    "frozen, tied": (True, ()),
    "trained, tied": (True, ("adapter.modules_to_save=[embedding.weight]",)),
}
AT_NIGHT = ("trained", "beside the embedding", "frozen, tied")


@pytest.mark.parametrize(
    "case",
    [pytest.param(n, marks=[pytest.mark.nightly] if n in AT_NIGHT else []) for n in ADAPTERS],
)
def test_peft_has_the_logits_of_adapters_with_added_tokens(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tied, options = ADAPTERS[case]
    folder = write_llama(tmp_path / "in", vocab_size=KNOWN, tie_word_embeddings=tied)
    run = tmp_path / "run"
    more = ("adapter=lora", "adapter.rank=4", "adapter.dropout=0", "optimizer.lr=0.03", *options)
    assert train.main(words(folder, run, *more)) == 0
    warned = " ".join("".join(capfd.readouterr()).split())
    frozen = "embedding.weight" if tied else "embedding.weight, output.weight"
    advice = f"stay the mean of the others in {frozen}."
    assert (advice in warned) is not bool(options)
    out = exported(run, tmp_path / "out", "--format", "peft")
    assert "base.resize_token_embeddings(261)" in (out / "README.md").read_text()
    base: Any = AutoModelForCausalLM.from_pretrained(folder)
    base.resize_token_embeddings(KNOWN + 4)
    theirs = PeftModel.from_pretrained(base, str(out)).eval()
    ids = AutoTokenizer.from_pretrained(out)(f"{TEXT}<|tool|>", add_special_tokens=False).input_ids
    tokens = torch.tensor([ids[-20:]])
    ours = forge.load(run).model
    torch.testing.assert_close(theirs(tokens).logits, ours(tokens), rtol=0, atol=1e-5)


@pytest.mark.nightly
def test_vectors_of_ia3_leave_new_rows_to_a_merged_folder(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM

    folder, run = write_llama(tmp_path / "in", vocab_size=KNOWN), tmp_path / "run"
    assert train.main(words(folder, run, "adapter=ia3", "optimizer.lr=0.1")) == 0
    capfd.readouterr()
    assert export.main([str(run), str(tmp_path / "peft"), "--format", "peft"]) == 2
    refused = "a folder of IA3 has no place for the rows of added tokens"
    assert f"{refused}; --format hf --merge writes all weights" in capfd.readouterr().err
    assert not (tmp_path / "peft").exists()
    out = exported(run, tmp_path / "out", "--format", "hf", "--merge")
    tokens = torch.tensor([[1, 2, KNOWN, KNOWN + 3, 5]])
    theirs = AutoModelForCausalLM.from_pretrained(out).eval()
    torch.testing.assert_close(
        theirs(tokens).logits, forge.load(run).model(tokens), rtol=0, atol=1e-5
    )


def test_a_run_begins_with_another_and_goes_on_with_its_tokens(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Adapters beside a run whose tables grow each time it is read; other tokens are refused."""
    folder, run = write_llama(tmp_path / "in", vocab_size=KNOWN), tmp_path / "run"
    base = imported(folder, tmp_path / "base")
    more = [f"checkpoint.init_from={base}", "tokenizer.path=''", "adapter=lora", "adapter.rank=2"]
    assert train.main(words(folder, run, *more)) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "; 4 new rows of embedding.weight, output.weight, each the mean of those before" in said
    assert resume.main([str(run), "train.max_steps=3"]) == 0
    ours, before = forge.load(run), forge.load(base).model.state_dict()
    assert (ours.step, ours.tokenizer.encode("<think>")) == (3, [KNOWN])
    for name in ("embedding.weight", "output.weight"):
        grown = torch.cat([before[name], means(before[name])])
        torch.testing.assert_close(ours.model.state_dict()[name], grown, rtol=0, atol=1e-7)
    capfd.readouterr()
    assert generate.main([str(run), "--prompt", "<think>a", "--tokens", "2"]) == 0
    assert "<think>a" in capfd.readouterr().out
    assert resume.main([str(run), "tokenizer.add_tokens=[<think>]"]) == 2
    assert "tokenizer.add_tokens" in capfd.readouterr().err


@pytest.mark.parametrize("source", ["folder", "run", "file"])
def test_every_rank_has_its_part_of_the_new_rows(source: str, tmp_path: Path) -> None:
    """Of a table whose rows no number of ranks divides, cut by tp and by FSDP."""
    place = folder = write_llama(tmp_path / "in", vocab_size=KNOWN)
    if source != "folder":
        imported(folder, tmp_path / "run")
        place = tmp_path / "run" / "checkpoints" / "step_0"
    if source == "file":
        place = exported(tmp_path / "run", tmp_path / "weights.safetensors")
    typed = [f"checkpoint.init_from={place}", "parallel.dp_shard=2", "parallel.tp=2", *ADD]
    typed += ["model=hf", f"model.path={folder}", "data=synthetic", "train.seq_len=32"]
    composed = forge.compose([*typed, "run.device=cpu", "optimizer=adamw"])
    config = composed.validate(world_size=4).config

    def work(_: int) -> None:
        host: Any = dist.new_group()
        mesh = make_mesh(config.parallel, "cpu")
        ranks = Ranks(rank=dist.get_rank(), size=4, mesh=mesh, host=host)
        model = build_model(config, torch.device("cpu"), ranks)
        load_weights(place, model=model, section=config.model, group=host)
        found = gather_on_main(model.state_dict().items(), ranks)
        assert found.differing == []
        if ranks.main:
            for name in ("embedding.weight", "output.weight"):
                values = found.tensors[name]
                assert values is not None
                assert values.shape[0] == KNOWN + 4
                torch.testing.assert_close(values[KNOWN:], means(values), rtol=0, atol=1e-7)

    on_ranks(4, work)
