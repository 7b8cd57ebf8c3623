"""Folders with weights in few bits, beside what transformers makes of the plain folder itself."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from quantised_folders import SIZES, write_plain
from safetensors.torch import load_file

from forge.families import folder as folders
from forge.families.shards import FolderError
from forge.hf.read import load_folder
from forge.models.decoder import Decoder

SIDES: dict[str, Any] = SIZES | {"hidden_size": 64, "intermediate_size": 128}
TOKENS = torch.arange(24)[None] * 11 % 260


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("quantised_export")
    folder = write_plain(place / "plain", transformers.LlamaConfig(**SIDES))
    words = [str(folder), str(place / "run"), "tokenizer=bytes"]
    assert importlib.import_module("forge.import").main(words) == 0
    return place / "run"


def export(run: Path, out: Path, *flags: str) -> int:
    main = importlib.import_module("forge.export").main
    return main([str(run), str(out), "--format", "hf", "--dtype", "bfloat16", *flags])


def of_torchao(how: str) -> Any:
    """The same format as transformers' own choice."""
    from torchao.prototype.mx_formats import NVFP4WeightOnlyConfig
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig

    made = {"fp8": Float8WeightOnlyConfig, "int8": Int8WeightOnlyConfig}
    return transformers.TorchAoConfig(made.get(how, NVFP4WeightOnlyConfig)())


def forge_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights that forge reads from a folder."""
    section = folders.read_folder(folder).section
    model = Decoder(section)
    load_folder(folder, section, model.state_dict())
    return model.state_dict()


@pytest.mark.parametrize("how", ["fp8", "int8", "nvfp4"])
def test_transformers_reads_the_weights_that_it_would_have_made(
    how: str, run: Path, tmp_path: Path
) -> None:
    assert export(run, tmp_path / "plain") == 0
    assert export(run, tmp_path / "few", "--quantize", how, "--shard-size", "40KB") == 0
    assert len([*(tmp_path / "few").glob("*.safetensors")]) > 1
    read = transformers.AutoModelForCausalLM.from_pretrained
    found = read(tmp_path / "few", dtype=torch.bfloat16).eval()
    options: dict[str, Any] = {"quantization_config": of_torchao(how), "dtype": torch.bfloat16}
    expected = read(tmp_path / "plain", **options).eval()
    plain = read(tmp_path / "plain", dtype=torch.bfloat16).eval()
    layer = found.model.layers[1].mlp.down_proj.weight
    assert type(layer) is type(expected.model.layers[1].mlp.down_proj.weight)
    assert type(layer) is not type(plain.model.layers[1].mlp.down_proj.weight)
    with torch.no_grad():
        logits = [model(TOKENS).logits.float() for model in (found, expected, plain)]
    assert torch.equal(logits[0], logits[1])
    off = float((logits[0] - logits[2]).norm() / logits[2].norm())
    assert 1e-4 < off < 0.3
    if how == "nvfp4":  # its scales are in the order of the tensor cores
        with pytest.raises(FolderError, match="is in U8; FP8 and 8-bit integers are read"):
            forge_weights(tmp_path / "few")
    else:
        ours = forge_weights(tmp_path / "few")["blocks.1.feed_forward.w_down.weight"]
        assert torch.equal(ours.bfloat16(), layer.dequantize())
    size = {
        name: sum(f.stat().st_size for f in (tmp_path / name).glob("*.safetensors"))
        for name in ("plain", "few")
    }
    assert size["few"] < 0.8 * size["plain"]


def test_int4_is_packed_as_compressed_tensors_reads_it(run: Path, tmp_path: Path) -> None:
    assert export(run, tmp_path / "plain") == 0
    assert export(run, tmp_path / "few", "--quantize", "int4") == 0
    plain = load_file(tmp_path / "plain" / "model.safetensors")
    section = folders.read_folder(tmp_path / "few").section
    model = Decoder(section)
    load_folder(tmp_path / "few", section, model.state_dict())
    down = model.state_dict()["blocks.1.feed_forward.w_down.weight"]
    weight = plain["model.layers.1.mlp.down_proj.weight"].float()
    steps = (weight.view(64, -1, 32).abs().amax(-1) / 7.5).repeat_interleave(32, 1)
    assert float(((down - weight).abs() / steps).max()) < 0.54  # half a step, and bf16 of the step
    compressors = pytest.importorskip("compressed_tensors.compressors")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    stored = load_file(tmp_path / "few" / "model.safetensors")
    config = json.loads((tmp_path / "few" / "config.json").read_text())["quantization_config"]
    scheme = quantization.QuantizationScheme(**config["config_groups"]["group_0"])
    stem = "model.layers.1.mlp.down_proj."
    parts = {n.removeprefix(stem): x for n, x in stored.items() if n.startswith(stem)}
    parts["weight_scale"] = parts["weight_scale"].float()
    compressor = compressors.BaseCompressor.load_from_registry(config["format"])
    assert torch.equal(compressor.decompress(parts, scheme=scheme)["weight"], down)
    read = transformers.AutoModelForCausalLM.from_pretrained
    theirs = read(tmp_path / "few", dtype=torch.bfloat16).eval()
    with torch.no_grad():
        expected = theirs(TOKENS).logits.float()
        assert float((model.eval()(TOKENS) - expected).abs().max()) < 0.05


def test_one_message_where_it_cannot_be_written(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module("forge.export").main
    assert main([str(run), str(tmp_path / "x"), "--quantize", "fp8"]) == 2
    assert capsys.readouterr().err == "--quantize fp8: it is of --format hf\n"
    assert export(run, tmp_path / "x", "--quantize", "fp8", "--family", "gpt2") == 2
    assert "--family gpt2" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
