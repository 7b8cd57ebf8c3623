"""GGUF files: folders made of them against what transformers reads from the same files."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Kind

import forge
from forge.families.shards import FolderError
from forge.gguf.folder import write_folder
from forge.gguf.reader import is_gguf

VOCAB, TEXT = 320, "Hello  world 123\n\tnaïve café 日本"
SIZES: Any = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def of(config: Any, **options: Any) -> Any:
    """A config of transformers: the sizes above with further options."""
    return config(**SIZES, **options)


MODELS: dict[str, tuple[str, Any]] = {
    "llama": ("llama", transformers.LlamaConfig(**SIZES)),
    "llama3": ("llama", of(transformers.LlamaConfig, rope_scaling=LLAMA3)),
    "tied": ("llama", transformers.LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "qwen2": ("qwen2", transformers.Qwen2Config(**SIZES)),
    "qwen3": ("qwen3", of(transformers.Qwen3Config, head_dim=32)),
    "qwen3moe": (
        "qwen3moe",
        transformers.Qwen3MoeConfig(
            **SIZES, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
            norm_topk_prob=True,
        ),
    ),
    "gemma2": (
        "gemma2",
        transformers.Gemma2Config(
            **SIZES, head_dim=16, sliding_window=8, query_pre_attn_scalar=16,
        ),
    ),
    "gemma3": (
        "gemma3",
        transformers.Gemma3TextConfig(
            **SIZES | {"num_hidden_layers": 6}, head_dim=16, sliding_window=8,
            query_pre_attn_scalar=16,
        ),
    ),
    "phi3": ("phi3", transformers.Phi3Config(**SIZES, sliding_window=8, pad_token_id=None)),
    "olmo2": ("olmo2", transformers.Olmo2Config(**SIZES)),
}  # fmt: skip


def made(
    path: Path, name: str, kind: Kind = Kind.F32, changes: dict[str, int] | None = None
) -> torch.nn.Module:
    """Write a random model as llama.cpp's converter does; return the model of transformers."""
    architecture, config = MODELS[name]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    for values in model.parameters():
        torch.nn.init.normal_(values, std=0.2)
    writer = gguf.GGUFWriter(path, architecture)
    facts = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
    }
    if architecture == "qwen3moe":
        facts |= {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
    if architecture in ("qwen3", "qwen3moe", "gemma2", "gemma3"):
        facts |= {
            "attention.key_length": config.head_dim,
            "attention.value_length": config.head_dim,
        }
    if architecture in ("gemma2", "gemma3", "phi3"):
        facts["attention.sliding_window"] = config.sliding_window
    if architecture == "phi3":
        facts["rope.scaling.original_context_length"] = config.max_position_embeddings
        facts["rope.dimension_count"] = 16
    if architecture == "gemma2":
        writer.add_float32("gemma2.attn_logit_softcapping", config.attn_logit_softcapping)
        writer.add_float32("gemma2.final_logit_softcapping", config.final_logit_softcapping)
    for key, value in (facts | (changes or {})).items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", config.rms_norm_eps)
    turns = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_float32(f"{architecture}.rope.freq_base", turns["rope_theta"])
    tokenizer(writer)
    stored = gguf.get_tensor_name_map(
        {n: a for a, n in gguf.MODEL_ARCH_NAMES.items()}[architecture], config.num_hidden_layers
    )
    experts: dict[str, list[np.ndarray]] = {}
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if ".mlp.experts." in key:
            place = key.replace("experts.gate_up_proj", "experts")
            if key.endswith("gate_up_proj"):
                gate, up = np.split(values, 2, axis=1)
                experts[place.replace("experts", "experts.gate_proj.weight")] = list(gate)
                experts[place.replace("experts", "experts.up_proj.weight")] = list(up)
            else:
                experts[f"{key}.weight"] = list(values)
            continue
        put(writer, stored, key, values, architecture, config, kind)
    for key, parts in experts.items():
        put(writer, stored, key, np.stack(parts), architecture, config, kind)
    if name == "llama3":
        factors = (
            1 / transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0]
        )
        plain = 10000.0 ** (torch.arange(0, 16, 2) / 16)
        writer.add_tensor("rope_freqs.weight", (factors / plain).float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def put(writer, stored, key, values, architecture, config, kind) -> None:
    name = stored.get_name(key, try_suffixes=(".weight", ".bias"))
    assert name is not None, key
    if architecture == "llama" and (".attn_q." in name or ".attn_k." in name):
        q = ".attn_q." in name
        heads = config.num_attention_heads if q else config.num_key_value_heads
        halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
        values = halves.swapaxes(1, 2).reshape(values.shape)
    if architecture in ("gemma2", "gemma3") and name.endswith("norm.weight"):
        values = values + 1
    fits = values.ndim > 1 and values.shape[-1] % 32 == 0 and "gate_inp" not in name
    chosen = kind if fits else Kind.F32
    content = values if chosen == Kind.F32 else gguf.quants.quantize(values, chosen)
    raw = None if chosen in (Kind.F32, Kind.F16) else chosen
    writer.add_tensor(name, np.ascontiguousarray(content), raw_dtype=raw)


def tokenizer(writer: gguf.GGUFWriter) -> None:
    """A byte-level tokenizer with a few merges, and two special tokens."""
    symbols = list(tokenizers_bytes().values())
    merges = [("H", "e"), ("l", "l"), ("He", "ll"), ("o", "Ġ"), ("Ġ", "w"), ("1", "2")]
    tokens = symbols + ["".join(pair) for pair in merges] + ["<s>", "</s>"]
    tokens += [f"<unused{n}>" for n in range(VOCAB - len(tokens))]
    kinds = [1] * (len(symbols) + len(merges)) + [3, 3]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds + [5] * (VOCAB - len(kinds)))
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(tokens.index("<s>"))
    writer.add_eos_token_id(tokens.index("</s>"))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)


def tokenizers_bytes() -> dict[int, str]:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return bytes_to_unicode()


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(24)[None] * 7 % VOCAB).logits


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_has_the_logits_of_the_model_behind_a_file(name: str, tmp_path: Path) -> None:
    model = made(tmp_path / "model.gguf", name)
    write_folder(tmp_path / "model.gguf", tmp_path / "folder")
    ours = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder").eval()
    torch.testing.assert_close(logits(ours), logits(model), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_1, Kind.F16, Kind.BF16])
def test_quantised_weights_are_what_transformers_decodes(kind: Kind, tmp_path: Path) -> None:
    made(tmp_path / "model.gguf", "llama", kind)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", dtype=torch.float32
    )
    write_folder(tmp_path / "model.gguf", tmp_path / "folder")
    ours = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "folder", dtype=torch.float32
    )
    stored = json.loads((tmp_path / "folder/config.json").read_text())["dtype"]
    assert stored == {Kind.F16: "float16", Kind.BF16: "bfloat16"}.get(kind, "float32")
    for key, values in theirs.state_dict().items():
        assert torch.equal(values, ours.state_dict()[key]), key


def test_texts_have_the_ids_and_the_first_token_of_the_file(tmp_path: Path) -> None:
    made(tmp_path / "model.gguf", "llama")
    write_folder(tmp_path / "model.gguf", tmp_path / "folder")
    ours = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    ids = ours(TEXT).input_ids
    assert ids[0] == ours.convert_tokens_to_ids("<s>")
    assert ids[-1] == ours.convert_tokens_to_ids("</s>")
    assert (ids.count(ids[0]), ids.count(ids[-1])) == (1, 1)
    assert ours.decode(ids[1:-1]) == TEXT
    digits = ours.convert_ids_to_tokens(ours("12", add_special_tokens=False).input_ids)
    assert digits == ["1", "2"]  # SmolLM splits digits, so the merge of 1 and 2 is never used


def test_a_file_becomes_a_run_with_the_logits_of_the_model(tmp_path: Path, capsys: Any) -> None:
    model = made(tmp_path / "model.gguf", "llama")
    assert is_gguf(tmp_path / "model.gguf")
    main = importlib.import_module("forge.import").main
    assert main([str(tmp_path / "model.gguf"), str(tmp_path / "run")]) == 0
    assert "LlamaForCausalLM from" in capsys.readouterr().out
    assert (tmp_path / "run/checkpoints/step_0").is_dir()
    run = forge.load(tmp_path / "run")
    ids = torch.arange(24)[None] * 7 % VOCAB
    with torch.no_grad():
        ours = run.model(ids)
    torch.testing.assert_close(ours, logits(model), rtol=1e-5, atol=1e-5)
    assert main([str(tmp_path / "model.gguf"), str(tmp_path / "run")]) == 2


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "keys.gguf", "llama", changes={"attention.sliding_window": 8})
    with pytest.raises(FolderError, match=r"llama\.attention\.sliding_window is not known"):
        write_folder(tmp_path / "keys.gguf", tmp_path / "a")
    made(tmp_path / "layers.gguf", "llama", changes={"block_count": 1})
    with pytest.raises(FolderError, match=r"blk\.1\.attn_q\.weight has no use"):
        write_folder(tmp_path / "layers.gguf", tmp_path / "b")
    made(tmp_path / "more.gguf", "llama", changes={"block_count": 3})
    with pytest.raises(FolderError, match=r"model\.layers\.2\.\S+ is missing"):
        write_folder(tmp_path / "more.gguf", tmp_path / "c")
    (tmp_path / "torn.gguf").write_bytes((tmp_path / "keys.gguf").read_bytes()[:9000])
    with pytest.raises(FolderError, match=r"torn\.gguf cannot be read as GGUF"):
        write_folder(tmp_path / "torn.gguf", tmp_path / "d")
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(FolderError, match=r"'mamba', which is not read; a model of one that is"):
        write_folder(tmp_path / "other.gguf", tmp_path / "e")
