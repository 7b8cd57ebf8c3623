"""Quantised folders: the values that their codes stand for, on any layout, and wrong folders."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers
from encoded_matrices import Tensors, bitsandbytes_blocks, fp8_blocks
from helpers.ranks import on_ranks
from helpers.refusing import problems
from quantised_folders import (
    CASES,
    FP8,
    SIZES,
    write_mxfp4,
    write_plain,
    write_quantised,
)
from safetensors.torch import load_file, save_file
from transformers.utils.quantization_config import Mxfp4Config

import forge
from forge.adapters.formats import pack_weight
from forge.families import folder as folders
from forge.families.formats.coded import Coded
from forge.hf.read import load_folder, read_part
from forge.models.decoder import Decoder
from forge.parallel.gather import gather_on_main
from forge.parallel.mesh import make_mesh
from forge.parallel.ranks import Ranks
from forge.training.checkpoints.restore import load_weights
from forge.training.models import build_model

GPT_OSS: dict[str, Any] = SIZES | {"head_dim": 16, "num_local_experts": 4, "sliding_window": 8}
GPT_OSS |= {"num_experts_per_tok": 2, "layer_types": ["sliding_attention", "full_attention"]}


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_plain(tmp_path_factory.mktemp("quantised") / "plain")


@pytest.fixture(scope="session")
def mxfp4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("mxfp4")
    return write_mxfp4(
        write_plain(place / "plain", transformers.GptOssConfig(**GPT_OSS)), place / "model"
    )


def weights(folder: Path) -> Tensors:
    """The weights of a model read from a folder."""
    section = folders.read_folder(folder).section
    model = Decoder(section)
    load_folder(folder, section, model.state_dict())
    return model.state_dict()


def check_equal(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(found[name], values), name


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_the_reference_bit_for_bit(
    case: str, plain: Path, tmp_path: Path
) -> None:
    folder = write_quantised(plain, tmp_path / "model", *CASES[case])
    found, expected = weights(folder), weights(tmp_path / "model-values")
    check_equal(found, expected)
    original = weights(plain)
    off = [float((found[n] - original[n]).norm() / original[n].norm()) for n in original]
    assert 0 < max(off) < 0.2  # quantised it is, and nothing else
    read = folders.read_folder(folder)
    coded = [x for x in folders.stored_rows(read, read.section)[1].values() if isinstance(x, Coded)]
    assert len(coded) == 14
    for stored in coded[:7]:  # any rows of any matrix are those of the whole
        every_column = torch.arange(stored.shape[1])
        whole = read_part(stored, [torch.arange(stored.shape[0]), every_column])
        for first, last in ((0, 1), (13, 30), (stored.shape[0] - 3, stored.shape[0])):
            part = read_part(stored, [torch.arange(first, last), every_column])
            assert torch.equal(part, whole[first:last])


def decoded_by_transformers(folder: Path, place: Path, **options: Any) -> Path:
    """The plain folder that transformers makes of a quantised one."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
    if getattr(model, "is_loaded_in_4bit", False):
        model = model.dequantize()
    model.save_pretrained(place)
    content = json.loads((place / "config.json").read_text())
    assert not content.pop("quantization_config", None)
    return place


def test_fp8_is_read_as_transformers_decodes_it(plain: Path, tmp_path: Path) -> None:
    blocks = FP8 | {"weight_block_size": [32, 32]}
    folder = write_quantised(plain, tmp_path / "model", fp8_blocks(32, 32), blocks)
    chosen = transformers.FineGrainedFP8Config(dequantize=True, weight_block_size=(32, 32))
    options = {"quantization_config": chosen, "dtype": torch.float32}
    theirs = decoded_by_transformers(folder, tmp_path / "theirs", **options)
    check_equal(weights(folder), weights(theirs))


def test_a_folder_by_bitsandbytes_in_transformers(plain: Path, tmp_path: Path) -> None:
    chosen = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    )
    sizes: dict[str, Any] = SIZES | {"intermediate_size": 128}  # whole blocks in every row
    unquantised = write_plain(tmp_path / "plain", transformers.LlamaConfig(**sizes))
    options: dict[str, Any] = {"quantization_config": chosen, "dtype": torch.float32}
    model = transformers.AutoModelForCausalLM.from_pretrained(unquantised, **options)
    model.save_pretrained(tmp_path / "model")
    theirs = decoded_by_transformers(tmp_path / "model", tmp_path / "theirs", dtype=torch.float32)
    check_equal(weights(tmp_path / "model"), weights(theirs))


OF_PACKAGE = [name for name in CASES if name.startswith("compressed") and "index" not in name]
"""Cases that compressed-tensors decodes itself; it leaves an index of groups to the kernels."""


@pytest.mark.parametrize("case", OF_PACKAGE)
def test_the_reference_is_that_of_the_package(case: str) -> None:
    compressors = pytest.importorskip("compressed_tensors.compressors")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    encode, config = CASES[case]
    encoded = encode(torch.randn(32, 64, generator=torch.Generator().manual_seed(0)))
    (group,) = config["config_groups"].values()
    scheme = quantization.QuantizationScheme(**group)
    stored = {name.removeprefix("."): values for name, values in encoded.stored.items()}
    scale = stored["weight_scale"]
    if scale.dtype == torch.bfloat16:  # the package decodes in the format of the scales
        stored["weight_scale"] = scale.float()
    compressor = compressors.BaseCompressor.load_from_registry(config["format"])
    found = compressor.decompress(stored, scheme=scheme)["weight"]
    assert torch.equal(found, encoded.values.to(found.dtype))  # of FP4 in bf16


def test_mxfp4_is_read_as_transformers_decodes_it(mxfp4: Path, tmp_path: Path) -> None:
    chosen = Mxfp4Config(dequantize=True)
    options = {"quantization_config": chosen, "dtype": torch.bfloat16}
    theirs = decoded_by_transformers(mxfp4, tmp_path / "theirs", **options)
    check_equal(weights(mxfp4), weights(theirs))
    section = folders.read_folder(mxfp4).section
    ours = Decoder(section)
    load_folder(mxfp4, section, ours.state_dict())
    peer = transformers.AutoModelForCausalLM.from_pretrained(theirs, dtype=torch.float32).eval()
    tokens = torch.arange(48)[None] * 7 % 260
    with torch.no_grad():
        expected = peer(tokens).logits
        assert float((ours.eval()(tokens) - expected).abs().max()) < 1e-5


def test_qlora_of_nf4_keeps_the_codes_of_bitsandbytes() -> None:
    weight = torch.randn(96, 128, generator=torch.Generator().manual_seed(0)) * 0.02
    encoded = bitsandbytes_blocks("nf4", False)(weight)
    packed = pack_weight(encoded.values, "nf4")
    assert torch.equal(packed["codes"].flatten(), encoded.stored[".weight"].flatten())
    assert torch.equal(packed["scales"].flatten(), encoded.stored[".weight.absmax"])


COMMON = "tokenizer=bytes data=synthetic train.seq_len=32 optimizer=adamw run.device=cpu"
LAYOUTS = [
    ("gptq_v2_desc_act", "parallel.dp_shard=2 parallel.tp=2"),
    pytest.param("bnb_nf4_double", "parallel.dp_shard=2 parallel.tp=2", marks=pytest.mark.nightly),
    pytest.param("fp8_ragged_blocks", "parallel.pp=2 parallel.tp=2", marks=pytest.mark.nightly),
    ("mxfp4", "parallel.ep=2 parallel.tp=2"),
]


@pytest.mark.parametrize(("case", "layout"), LAYOUTS)
def test_ranks_read_their_rows(
    case: str, layout: str, plain: Path, mxfp4: Path, tmp_path: Path
) -> None:
    folder = mxfp4
    if case != "mxfp4":
        folder = write_quantised(plain, tmp_path / "model", *CASES[case])
    expected = weights(folder)
    words = f"model=hf model.path={folder} {COMMON} {layout}"
    config = forge.compose(words.split()).validate(world_size=4).config

    def work(_: int) -> None:
        host, mesh = dist.new_group(), make_mesh(config.parallel, "cpu")
        ranks = Ranks(rank=dist.get_rank(), size=4, mesh=mesh, host=host)  # type: ignore[arg-type]
        model = build_model(config, torch.device("cpu"), ranks)
        load_weights(folder, model=model, section=config.model)
        found = gather_on_main(model.state_dict().items(), ranks)
        assert found.differing == []
        if ranks.main:
            check_equal({k: v for k, v in found.tensors.items() if v is not None}, expected)

    on_ranks(4, work)


Change = Callable[[dict[str, Any], Tensors], Any]
"""Changes the quantization_config and the tensors of a folder."""
Q = "model.layers.0.self_attn.q_proj"
WRONG: dict[str, tuple[str, Change, str]] = {
    "an unknown method": (
        "awq",
        lambda config, _: config.update(quant_method="hqq"),
        "{folder}/config.json: quantization_config: quant_method='hqq' is none of awq, bits",
    ),
    "an unknown version": (
        "awq",
        lambda config, _: config.update(version="gemv"),
        "{folder}/config.json: quantization_config: AWQ with version='gemv'; gemm is read.",
    ),
    "3 bits": (
        "gptq_v1",
        lambda config, _: config.update(bits=3),
        "{folder}/config.json: quantization_config: GPTQ with bits=3; 2, 4 and 8 are read.",
    ),
    "a sparse layout": (
        "compressed_int4",
        lambda config, _: config.update(format="marlin-24"),
        "{folder}/config.json: quantization_config: compressed-tensors with format='marlin-24';",
    ),
    "no sizes": (
        "gptq_v1",
        lambda config, _: config.pop("bits"),
        "{folder}/config.json: quantization_config: quant_method='gptq' has options that cannot",
    ),
    "no scale in FP8": (
        "fp8_blocks",
        lambda _, tensors: tensors.pop(f"{Q}.weight_scale_inv"),
        "{folder}, in FP8 in blocks of 32 x 32: " + Q + ".weight_scale_inv is missing.",
    ),
    "a scale of another shape": (
        "fp8_blocks",
        lambda _, tensors: tensors.update({f"{Q}.weight_scale_inv": torch.ones(3, 2)}),
        "{folder}, in FP8 in blocks of 32 x 32: scales of " + Q + ".weight have the shape",
    ),
    "no zeros": (
        "awq",
        lambda _, tensors: tensors.pop(f"{Q}.qzeros"),
        "{folder}, in AWQ in 4 bits: " + Q + ".qzeros is missing.",
    ),
    "no index of groups": (
        "gptq_v2_desc_act",
        lambda _, tensors: tensors.pop(f"{Q}.g_idx"),
        "{folder}, in GPTQ in 4 bits: " + Q + ".g_idx is missing.",
    ),
    "a group that is none": (
        "gptq_v2_desc_act",
        lambda _, tensors: tensors[f"{Q}.g_idx"].fill_(7),
        "{folder}, in GPTQ in 4 bits: " + Q + ".g_idx names groups outside of 0 to 1.",
    ),
    "no largest values": (
        "bnb_nf4_double",
        lambda _, tensors: tensors.pop(f"{Q}.weight.nested_absmax"),
        "{folder}, in bitsandbytes in 4 bits: " + Q + ".weight.nested_absmax is missing.",
    ),
    "no state": (
        "bnb_nf4",
        lambda _, tensors: tensors.pop(f"{Q}.weight.quant_state.bitsandbytes__nf4"),
        "{folder}, in bitsandbytes in 4 bits: " + Q + ".weight.quant_state.bitsandbytes__nf4 is",
    ),
    "no scale of integers": (
        "compressed_int4",
        lambda _, tensors: tensors.pop(f"{Q}.weight_scale"),
        "{folder}, in compressed-tensors, int in 4 bits: " + Q + ".weight_scale is missing.",
    ),
    "no shape of integers": (
        "compressed_int4",
        lambda _, tensors: tensors.pop(f"{Q}.weight_shape"),
        "{folder}, in compressed-tensors, int in 4 bits: " + Q + ".weight_shape is missing.",
    ),
    "no codes": (
        "gptq_v1",
        lambda _, tensors: tensors.pop(f"{Q}.qweight"),
        "{folder}, in GPTQ in 4 bits: " + Q + ".qweight is missing.",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_message_for_a_wrong_folder(name: str, plain: Path, tmp_path: Path) -> None:
    case, change, message = WRONG[name]
    folder = write_quantised(plain, tmp_path / "model", *CASES[case])
    content = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    change(content["quantization_config"], tensors)
    (folder / "config.json").write_text(json.dumps(content))
    save_file(tensors, folder / "model.safetensors")
    typed = ["model=hf", f"model.path={folder}", "tokenizer=bytes", "train.seq_len=32"]
    found = problems([*typed, "run.device=cpu", "parallel=single"])
    assert len(found) == 1, found
    assert found[0].what.startswith(message.format(folder=folder)), found[0].what
    assert found[0].where


def test_import_refuses_a_scale_or_a_shard_that_is_missing(
    plain: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = write_quantised(plain, tmp_path / "model", *CASES["fp8_blocks"])
    tensors = load_file(folder / "model.safetensors")
    whole = dict.fromkeys(tensors, "model.safetensors")
    index = folder / "model.safetensors.index.json"
    main = importlib.import_module("forge.import").main
    words = [str(folder), str(tmp_path / "run"), "tokenizer=bytes"]
    index.write_text(json.dumps({"weight_map": whole | {"x": "model-2.safetensors"}}))
    assert main(words) == 2
    assert "1 of 2 shards are missing, such as model-2.safetensors" in capfd.readouterr().err
    index.unlink()
    del tensors[f"{Q}.weight_scale_inv"]
    save_file(tensors, folder / "model.safetensors")
    assert main(words) == 2
    said = capfd.readouterr().err
    assert said.count("is missing") == 1
    assert f"{Q}.weight_scale_inv is missing" in said
    assert not (tmp_path / "run").exists()
