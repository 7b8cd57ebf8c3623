"""`python -m forge.import`, `forge.export --format hf` and a run that begins with a folder."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch
from llama_folder import TEMPLATE, write_llama

import forge
from forge import export, generate, train
from forge.data.tokenizers import tokenizer as tokenizers
from forge.families.shards import stored_tensors
from forge.rundir import saved_config

Capture = pytest.CaptureFixture[str]
main = importlib.import_module("forge.import").main
TEXT = "The sea is calm. " * 6


def content(folder: Path) -> dict[str, tuple[str, bytes]]:
    """The format and the bytes of each tensor."""
    found = {}
    for name, one in stored_tensors(folder).items():
        with one.file.open("rb") as file:
            file.seek(one.start)
            found[name] = (one.dtype, file.read(one.nbytes))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_folder_comes_out_as_it_went_in(dtype, tmp_path: Path, capsys: Capture) -> None:
    """Weights to the bit, in their format; tokenizer and chat template; as transformers reads."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = write_llama(tmp_path / "in", dtype)
    run, out = tmp_path / "run", tmp_path / "out"
    assert main([str(folder), str(run)]) == 0
    assert str(run / "checkpoints" / "step_0") in capsys.readouterr().out
    assert export.main([str(run), str(out), "--format", "hf", "--shard-size", "70KB"]) == 0
    assert len([*out.glob("model-*-of-*.safetensors")]) > 1
    assert content(out) == content(folder)
    theirs, again = (AutoModelForCausalLM.from_pretrained(p, dtype="auto") for p in (folder, out))
    assert again.dtype == dtype
    assert again.config.to_diff_dict() == theirs.config.to_diff_dict()
    read = AutoTokenizer.from_pretrained(out)
    assert read.chat_template == TEMPLATE
    assert read("the sea").input_ids == AutoTokenizer.from_pretrained(folder)("the sea").input_ids
    assert "LlamaForCausalLM" in (out / "README.md").read_text()
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == 256


def test_an_imported_run_writes_what_transformers_writes(
    llama: Path, tmp_path: Path, capsys: Capture
) -> None:
    from transformers import AutoModelForCausalLM

    assert main([str(llama), str(tmp_path / "run")]) == 0
    capsys.readouterr()
    words = [str(tmp_path / "run"), "--prompt", "the sea", "--tokens", "12", "--temperature", "0"]
    assert generate.main(words) == 0
    text = capsys.readouterr().out
    loaded = forge.load(tmp_path / "run")
    ids = loaded.tokenizer.encode("the sea")
    theirs = AutoModelForCausalLM.from_pretrained(llama)
    with torch.no_grad():
        for _ in range(12):
            ids.append(int(theirs(torch.tensor([ids])).logits[0, -1].argmax()))
    assert text == loaded.tokenizer.decode(ids) + "\n"


def test_a_run_on_two_ranks_begins_with_a_folder_and_its_export_scores_as_forge_does(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text("".join(f"{n}: {TEXT}\n\n" for n in range(300)))
    words = f"model=hf model.path={llama} data=text data.path=my.txt parallel=fsdp"
    words += " run.num_processes=2 run.dir=run run.device=cpu train.seq_len=32 train.max_steps=3"
    words += " eval.enabled=false metrics.enable_console=false"
    assert train.main(words.split()) == 0
    config = saved_config.read_plain(Path("run"))
    assert config["checkpoint"]["init_from"] == str(llama)
    assert export.main(["run", "out", "--format", "hf"]) == 0
    ours = forge.load("run")
    assert content(Path("out")) != content(llama)
    tokens = torch.tensor([[*ours.tokenizer.encode(TEXT[:30]), ours.tokenizer.eos_id]])
    theirs = AutoModelForCausalLM.from_pretrained("out")
    with torch.no_grad():
        loss = float(theirs(tokens, labels=tokens).loss)
    assert abs(ours.evaluate([TEXT[:30]])["loss"] - loss) < 1e-5


def test_a_sharded_checkpoint_is_exported_tensor_by_tensor(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest tensor, and what it is made of, is the most that is in memory at once."""
    from forge.training.checkpoints.merging import Merged

    assert main([str(llama), str(tmp_path / "run")]) == 0
    held: list[int] = []
    read = Merged.own
    monkeypatch.setattr(
        Merged, "own", lambda *words: held.append(read(*words).numel()) or read(*words)
    )
    assert export.main([str(tmp_path / "run"), str(tmp_path / "out"), "--format", "hf"]) == 0
    assert max(held) == 260 * 32
    assert len(held) == len(stored_tensors(llama))


def test_what_no_family_can_say_is_refused_with_its_options(
    tiny_run: Path, tmp_path: Path, capsys: Capture
) -> None:
    """And a family that is named says what it lacks."""
    step = tiny_run / "checkpoints" / "step_6"
    file, meta = step / "config.yaml", step / "meta.json"
    text = file.read_text()
    # Granite's multiplier and Gemma 2's cap: no class has both.
    for option, default in (
        ("residual_multiplier: 0.5", 1.0),
        ("final_logits_soft_cap: 30.0", 0.0),
    ):
        name = option.partition(":")[0]
        assert f"{name}: {default}" in text
        text = text.replace(f"{name}: {default}", option)
    file.write_text(text)
    about = json.loads(meta.read_text())
    about["files"]["config.yaml"] = file.stat().st_size
    del about["checksum"], about["sha256"]  # as a checkpoint of before them
    meta.write_text(json.dumps(about))
    out = str(tmp_path / "out")
    assert export.main([str(step), out, "--format", "hf"]) == 2
    said = capsys.readouterr().err
    assert "no family of Hugging Face can say this model; the nearest is " in said
    assert "model.residual_multiplier=0.5" in said or "model.final_logits_soft_cap=30.0" in said
    assert export.main([str(step), out, "--format", "hf", "--family", "gpt2"]) == 2
    assert "--family gpt2, which cannot say" in capsys.readouterr().err
    assert export.main([str(step), out, "--format", "hf", "--family", "t5"]) == 2
    assert "--family t5: there is no such family, but llama" in capsys.readouterr().err
    assert not Path(out).exists()


def test_a_model_that_is_not_there_is_one_clear_error(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge.families.download.reachable", lambda: False)
    monkeypatch.chdir(tmp_path)
    assert main(["nobody/nothing", "run"]) == 2
    said = capsys.readouterr().err
    assert "it is not in the cache of Hugging Face, and the hub cannot be reached" in said
    assert said.startswith("1 problem")
    assert not Path("run").exists()
    assert main(["absent", "run"]) == 2
    assert f"there is no folder {tmp_path / 'absent'}" in capsys.readouterr().err


def test_an_imported_tokenizer_begins_texts_as_its_folder_does(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "in")
    own = tokenizers.Bytes(add_bos=True)
    tokenizers.byte_ids(own, text=None).save(folder)
    assert main([str(folder), str(tmp_path / "run")]) == 0
    assert forge.load(tmp_path / "run").tokenizer.add_bos
