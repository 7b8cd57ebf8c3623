"""Adapters as folders of PEFT, out of runs and into them; and merged."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from llama_folder import write_llama
from peft_runs import SIZES, TOKENS, logits, trained
from safetensors.torch import load_file

import forge
from forge import export, train
from forge.config.adapters.adapter import is_added


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("peft") / "llama", **SIZES)


def test_adapters_go_out_and_in_again_and_are_merged(wide: Path, tmp_path: Path, capsys) -> None:
    """Names and sums by hand; beside a base in 4 bits, which is merged as products have it."""
    from transformers import AutoModelForCausalLM

    run, out = tmp_path / "run", tmp_path / "adapters"
    trained(wide, run, "adapter=qlora", "adapter.rank=2", "adapter.target_modules=[wq,w_down]")
    assert export.main([str(run), str(out), "--format", "peft"]) == 0
    said = "they were trained beside their base in nf4, and beside the plain base are another model"
    assert said in capsys.readouterr().out
    card = (out / "README.md").read_text()
    assert said.removeprefix("they ") in card
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    compile(code, "README.md", "exec")
    quantised = {"load_in_4bit=True", 'bnb_4bit_quant_type="nf4"', f'from_pretrained("{wide}", '}
    assert all(part in code for part in quantised), code
    config = json.loads((out / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["use_dora"]) == (2, 32.0, False)
    assert config["target_modules"] == ["down_proj", "q_proj"]
    stored = load_file(out / "adapter_model.safetensors")
    name = "base_model.model.model.layers.1.mlp.down_proj.lora_"
    assert stored[f"{name}A.weight"].shape == (2, 128)
    model: Any = forge.load(run).model
    own = model.get_submodule("blocks.1.feed_forward.w_down")
    assert torch.equal(stored[f"{name}B.weight"], own.lora_b)

    assert export.main([str(run), str(tmp_path / "merged.safetensors")]) == 2
    assert "--merge adds them, --format peft writes them apart" in capsys.readouterr().err
    assert export.main([str(run), str(tmp_path / "merged.safetensors"), "--merge"]) == 0
    merged = load_file(tmp_path / "merged.safetensors")
    expected = own.weight + 16 * stored[f"{name}B.weight"] @ stored[f"{name}A.weight"]
    assert torch.allclose(merged["blocks.1.feed_forward.w_down.weight"], expected, atol=1e-6)
    assert not any(is_added(key) for key in merged)

    whole = tmp_path / "whole"
    assert export.main([str(run), str(whole), "--format", "hf", "--merge"]) == 0
    as_trained = AutoModelForCausalLM.from_pretrained(whole).eval()
    assert torch.allclose(as_trained(TOKENS).logits, logits(run), atol=1e-5)

    again = tmp_path / "again"
    same = ("adapter=qlora", "adapter.rank=2", "adapter.target_modules=[wq,w_down]")
    trained(wide, again, *same, f"checkpoint.init_from={out}", "optimizer.lr=1e-30")
    assert torch.allclose(logits(again), logits(run), atol=1e-6)


CASES = {
    "lora": (
        "wide",
        "adapter.target_modules=[auto,head,embedding]",
        "adapter.dropout=0",
        "adapter.ranks={wk:3}",
    ),
    "rslora": ("wide", "adapter.rank_stabilized=true", "adapter.modules_to_save=[norm]"),
    "dora": ("wide", "adapter.dora=true"),
    "gpt2": ("gpt2", "adapter.ranks={wv:0,wk:3}"),
}


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
def test_transformers_and_peft_read_them_with_equal_logits(
    case: str, wide: Path, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    kind, *options = CASES[case]
    folder = wide if kind == "wide" else write_gpt2(tmp_path / "gpt2")
    run, out, whole = tmp_path / "run", tmp_path / "out", tmp_path / "whole"
    trained(folder, run, "adapter=lora", "adapter.rank=4", *options)
    ours, base = logits(run), AutoModelForCausalLM.from_pretrained(folder)
    assert not torch.allclose(base(TOKENS).logits, ours, atol=1e-2)
    assert export.main([str(run), str(out), "--format", "peft"]) == 0
    theirs = PeftModel.from_pretrained(base, str(out))
    assert torch.allclose(theirs.eval()(TOKENS).logits, ours, atol=1e-5)
    assert export.main([str(run), str(whole), "--format", "hf", "--merge"]) == 0
    merged = AutoModelForCausalLM.from_pretrained(whole)
    assert torch.allclose(merged.eval()(TOKENS).logits, ours, atol=1e-5)


@pytest.mark.nightly
def test_the_demo_of_adapters_is_read_beside_its_exported_base(tmp_path: Path) -> None:
    """Tied tables, norms of queries and keys, and a base that is a run."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base, run, small = tmp_path / "base", tmp_path / "lora", ["run.device=cpu", "precision=fp32"]
    small += ["eval.enabled=false", "eval.at_start=false", f"data.cache_dir={tmp_path / 'cache'}"]
    assert train.main([*small, f"run.dir={base}", "train.max_steps=20"]) == 0
    words = ["experiment=lora_demo", f"checkpoint.init_from={base}", "train.max_steps=20"]
    assert train.main([*small, *words, f"run.dir={run}"]) == 0
    ours, theirs = logits(run), {}
    for name, *how in (
        ("base", str(base), "--format", "hf"),
        ("adapters", str(run), "--format", "peft"),
        ("merged", str(run), "--format", "hf", "--merge"),
    ):
        theirs[name] = str(tmp_path / f"their-{name}")
        assert export.main([how[0], theirs[name], *how[1:]]) == 0
    model = AutoModelForCausalLM.from_pretrained(theirs["base"])
    assert not torch.allclose(model(TOKENS).logits, ours, atol=1e-2)
    adapted = PeftModel.from_pretrained(model, theirs["adapters"])
    assert torch.allclose(adapted.eval()(TOKENS).logits, ours, atol=1e-5)
    merged = AutoModelForCausalLM.from_pretrained(theirs["merged"])
    assert torch.allclose(merged.eval()(TOKENS).logits, ours, atol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("dora", [False, True])
def test_what_peft_saved_is_read_with_equal_logits(dora: bool, wide: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(wide)
    config = LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "up_proj"], use_dora=dora)
    theirs: Any = get_peft_model(base, config)
    for name, values in theirs.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(values, std=0.3)
    theirs.save_pretrained(tmp_path / "theirs")
    options = ["adapter=lora", "adapter.rank=4", "adapter.alpha=6", "optimizer.lr=1e-30"]
    options += ["adapter.target_modules=[wq,w_up]", f"adapter.dora={str(dora).lower()}"]
    run = tmp_path / "run"
    trained(wide, run, *options, f"checkpoint.init_from={tmp_path / 'theirs'}")
    assert torch.allclose(logits(run), theirs.eval()(TOKENS).logits, atol=1e-5)


def saved_by_peft(base: Path, place: Path, **options: Any) -> Any:
    """PEFT's model of random adapters, and of random modules and biases that it saves whole."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base)
    config = LoraConfig(r=4, lora_alpha=6, **({"target_modules": ["q_proj"]} | options))
    theirs: Any = get_peft_model(model, config)
    for name, values in theirs.named_parameters():
        if values.requires_grad and ("lora_A" not in name):
            torch.nn.init.normal_(values, std=0.3)
    theirs.save_pretrained(place)
    return theirs.eval()


@pytest.mark.nightly
def test_ranks_by_name_go_in_and_out(wide: Path, tmp_path: Path, capsys) -> None:
    """PEFT's rank_pattern is adapter.ranks, in its words or ours."""
    place, run, out = tmp_path / "theirs", tmp_path / "run", tmp_path / "out"
    pattern = {"model.layers.1.self_attn.v_proj": 3, "v_proj": 2}
    both = {"target_modules": ["q_proj", "v_proj"], "rank_pattern": pattern}
    model = saved_by_peft(wide, place, **both)
    options = ["adapter=lora", "adapter.rank=4", "adapter.alpha=6", "optimizer.lr=1e-30"]
    options += ["adapter.target_modules=[wq,wv]", f"checkpoint.init_from={place}"]
    config = forge.compose([*words_of(wide, run), *options])
    with pytest.raises(ValueError, match=r"adapters of ranks=.*and this is \{\}") as refused:
        config.validate()
    typed = re.search(r"'(adapter\.ranks=[^']*)'", str(refused.value))
    assert typed is not None, refused.value
    trained(wide, run, *options, typed[1])
    assert torch.allclose(logits(run), model(TOKENS).logits, atol=1e-5)
    assert export.main([str(run), str(out), "--format", "peft"]) == 0
    content = json.loads((out / "adapter_config.json").read_text())
    ranks = {f"model.layers.{n}.self_attn.v_proj": 2 for n in (0, 2)}
    assert content["rank_pattern"] == ranks | {"model.layers.1.self_attn.v_proj": 3}
    ours = "adapter.ranks={wv:2,blocks.1.*.wv:3}"
    forge.compose([*words_of(wide, run), *options, ours, "train.seq_len=16"]).validate()


SAVED = {
    "modules": (
        {},
        {"modules_to_save": ["lm_head", "model.norm"]},
        ["adapter.modules_to_save=[output,'^norm']"],
        "lm_head.weight",
    ),
    "biases": (
        {"attention_bias": True},
        {"bias": "lora_only"},
        ["adapter.bias=lora"],
        "q_proj.base_layer.bias",
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", SAVED)
def test_what_peft_saved_whole_is_read_or_refused_by_its_name(kind: str, tmp_path: Path) -> None:
    made, theirs, ours, name = SAVED[kind]
    base = write_llama(tmp_path / "base", **SIZES, **made)
    model = saved_by_peft(base, tmp_path / "theirs", **theirs)
    options = ["adapter=lora", "adapter.rank=4", "adapter.alpha=6", "optimizer.lr=1e-30"]
    options += ["adapter.target_modules=[wq]", f"checkpoint.init_from={tmp_path / 'theirs'}"]
    trained(base, tmp_path / "run", *options, *ours)
    assert torch.allclose(logits(tmp_path / "run"), model(TOKENS).logits, atol=1e-5)
    config = forge.compose([*words_of(base, tmp_path / "run"), *options])
    with pytest.raises(ValueError, match=name if kind == "modules" else "adapter.bias"):
        load_into_another(config, tmp_path / "theirs")


def words_of(base: Path, run: Path) -> list[str]:
    return ["model=hf", f"model.path={base}", "data=text", f"data.path={run.with_suffix('.txt')}"]


def load_into_another(config: Any, place: Path) -> None:
    """Into a model whose adapter trains matrices alone."""
    from forge.config.adapters.adapter import LoRA
    from forge.models.plain import make_model
    from forge.training.checkpoints.peft_folders import load_adapters

    adapter = LoRA(rank=4, alpha=6.0, target_modules=["wq"])
    load_adapters(place, make_model(config.model), config.model, adapter)


WRONG = {
    "alpha_pattern": ({"alpha_pattern": {"q_proj": 3}}, "alpha_pattern={'q_proj': 3}"),
    "pissa": ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
    "new": ({"use_new_lora": True}, "use_new_lora=True"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_keys_of_peft_that_forge_does_not_compute_are_refused(kind: str, tmp_path: Path) -> None:
    from forge.families import peft

    changed, said = WRONG[kind]
    content = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "init_lora_weights": True}
    (tmp_path / "adapter_config.json").write_text(json.dumps(content | changed))
    (tmp_path / "adapter_model.safetensors").touch()
    with pytest.raises(ValueError, match=re.escape(said)):
        peft.read_adapter_config(tmp_path)


def test_a_copy_of_a_table_that_is_the_head_too_is_not_read() -> None:
    """PEFT gives the embedding alone the values of modules_to_save; in the base both have them."""
    from forge.config.adapters.adapter import LoRA
    from forge.config.model.decoder import Decoder
    from forge.families.folder import family_of
    from forge.hf.peft import adapter_config, read_whole_parameters, saved_whole

    family = family_of("llama")
    assert family is not None
    tied = Decoder(dim=32, n_layers=1, n_heads=2, vocab_size=64, tie_embeddings=True)
    adapter = LoRA(modules_to_save=["embedding"])
    rows = family.rows(tied)
    ((_, name),) = saved_whole(rows, adapter, ["embedding.weight"])
    assert adapter_config(rows, adapter, ["embedding.weight"], None)["modules_to_save"] is None
    stored = {name: torch.zeros(64, 32)}
    assert read_whole_parameters(rows, adapter, stored, [])["embedding.weight"] is stored[name]
    with pytest.raises(ValueError, match="the head too, which PEFT leaves as it was"):
        read_whole_parameters(rows, adapter, stored, ["embed_tokens"])


def write_gpt2(place: Path) -> Path:
    from transformers import GPT2Config, GPT2LMHeadModel

    from forge.config.tokenizers.tokenizer import Bytes
    from forge.data.tokenizers.tokenizer import byte_ids

    torch.manual_seed(0)
    sizes = {"vocab_size": 260, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=256))
    model.save_pretrained(place)
    byte_ids(Bytes(), text=None).save(place)
    return place
