"""Every YAML file in conf/: it composes, resolves, explains itself, and is as large as it says."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.folders import write_folder
from helpers.refusing import COMPOSER, resolved
from omegaconf import OmegaConf

from forge.compose.engine import Library
from forge.compose.hydra_adapter import CONF
from forge.config import schemas
from forge.config.devices import DEVICES
from forge.config.field import thaw_value
from forge.config.model.decoder import Decoder
from forge.config.replicas.fault_tolerance import FaultTolerance
from forge.config.rule import get
from forge.optim import schedules
from forge.resolve.auto import USABLE, memory_needed

EMULATED = ("quantization/fp8", "quantization/mxfp8", "quantization/int8")
FP8_RUNS = ("one_h200_fp8", "one_h100_fp8", "8gpu_fp8")
EMULATED = (*EMULATED, *(f"experiment/llama3_8b_{name}" for name in FP8_RUNS))
FILES = sorted(
    path.relative_to(CONF).with_suffix("").as_posix()
    for path in CONF.rglob("*.yaml")
    if path.parent != CONF
)
PARAMETERS = {
    "gpt2": 124_439_808,
    "smollm3_3b": 3_075_098_624,
    "phi4_14b": 14_659_507_200,
    "olmoe_7b_a1b": 6_919_161_856,
    "llama7b": 6_738_415_616,
    "llama13b": 13_015_864_320,
    "llama70b": 68_976_648_192,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "deepseek2_16b": 15_706_484_224,
    "deepseek3_671b": 671_026_404_352,
    "deepseek3_2_671b": 671_877_929_216,
    "kimi_k2": 1_026_408_209_408,
    "deepseek2_236b": 235_741_434_880,
    "gemma_2b": 2_506_172_416,
    "gemma_7b": 8_537_680_896,
    "gemma2_2b": 2_614_341_888,
    "gemma2_9b": 9_241_705_984,
    "gemma2_27b": 27_227_128_320,
    "gemma3_1b": 999_885_952,
    "gpt_oss_20b": 20_914_757_184,
    "gpt_oss_120b": 116_829_156_672,
    "llama3_405b": 405_853_388_800,
    "llama3_1_405b": 405_853_388_800,
    "llama3_2_1b": 1_235_814_400,
    "llama3_2_3b": 3_212_749_824,
    "mistral_7b": 7_241_732_096,
    "olmo2_7b": 7_298_617_344,
    "olmo2_13b": 13_716_198_400,
    "qwen2_5_0_5b": 494_032_768,
    "qwen2_5_7b": 7_615_616_512,
    "qwen2_5_72b": 72_706_203_648,
    "qwen3_0_6b": 596_049_920,
    "qwen3_8b": 8_190_735_360,
    "qwen3_32b": 32_762_123_264,
    "qwen3_30b_a3b": 30_532_122_624,
    "qwen3_next_80b_a3b": 79_674_391_296,
    "qwen3_235b_a22b": 235_093_634_560,
    "qwen3_480b_a35b": 480_154_875_392,
    "smollm2_135m": 134_515_008,
    "smollm2_1_7b": 1_711_376_384,
    "gemma4_31b": 30_697_345_280,
    "gemma4_26b_a4b": 25_233_141_760,
    "gemma4_e4b": 7_463_013_376,
    "gemma4_e2b": 4_628_569_344,
    "glm5_744b": 743_911_199_232,
    "glm5_2_744b": 743_377_000_704,
    "gemma4_12b": 11_907_350_272,
    "nemotron_h_47b": 46_791_554_816,
    "lfm2_350m": 354_483_968,
    "lfm2_700m": 742_489_344,
    "lfm2_1_2b": 1_170_340_608,
    "lfm2_2_6b": 2_569_272_320,
    "granite4_h_micro": 3_191_396_096,
    "granite4_h_tiny": 6_939_037_248,
    "nemotron_h_8b": 8_100_852_736,
    "bamba_9b": 9_780_235_392,
    "qwen3_5_397b_a17b": 396_346_350_336,
}
ENTRIES = {"task": "eval.tasks.mine", "reward": "rewards.mine", "environment": "environment"}
OF_ROLLOUTS = (
    "tokenizer=bytes",
    "train.batch_size=8",
    "train.seq_len=256",
    "model.max_seq_len=256",
    "+reward@rewards.exact=exact",
)
PLANNED = ("plan.device=h200", "plan.world_size=8")
CHATS = ("alpaca", "sharegpt", "chat")
AXES = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")


def needs(file: str, folder: Path) -> list[str]:
    """What a file asks of the user: its further overrides."""
    (folder / "my.txt").write_text("some text")
    write_folder(folder)
    vocab = {"model": {"vocab": {"a": 0, "</s>": 1}}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(vocab))
    (folder / "base" / "tokenizer").mkdir(parents=True)
    (folder / "base" / "tokenizer" / "tokenizer.json").write_text(json.dumps(vocab))
    (folder / "pieces.model").write_bytes(b"\n\x05\n\x03<s>\n\x06\n\x04</s>")
    ranks = (f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
    (folder / "ranks.tiktoken").write_text("".join(ranks))
    if file in ("launch/kubernetes", "launch/skypilot"):
        stored = ["+launch.mounts={/data: claim}", "run.root=/data/runs"]
        return stored + ["launch.image=me/forge"] * (file == "launch/kubernetes")
    if file.startswith("parallel/ep"):
        return ["model=moe_tiny"]
    if file.startswith("recipe/") or file == "train/llm":
        return ["model=llama3_8b", "parallel=fsdp", "plan.device=h200", "plan.world_size=8"]
    if file in EMULATED:
        return ["quantization.emulate=true"]
    return {
        "data/text": [f"data.path={folder / 'my.txt'}"],
        "data/climbmix": [f"data.path={folder / '*.txt'}"],
        "data/pairs": [f"data.path={folder / 'my.txt'}"],
        **{f"data/{kind}": [f"data.path={folder / 'my.txt'}"] for kind in CHATS},
        "data/formatted": [
            f"data.path={folder / 'my.txt'}",
            "+data.formatting_func._target_=mypkg.messages",
            "run.trust=[mypkg.]",
        ],
        "data/chat_preference": [f"data.path={folder / 'my.txt'}", "objective=dpo"],
        "data/preference_demo": ["objective=dpo"],
        "experiment/gsm8k_grpo": [f"model.path={folder}", f"data.path={folder / 'my.txt'}"],
        "experiment/wsd_horizons": ["checkpoint.branch_of=null"],
        "experiment/dpo_demo": [f"tokenizer.path={folder / 'tokenizer.json'}"],
        "experiment/zephyr_dpo_8gpu": ["plan.device=h100", "plan.world_size=8"],
        "experiment/llama3_8b_8gpu": ["plan.device=h100", "plan.world_size=8"],
        "experiment/llama3_8b_8gpu_fp8": ["plan.device=h100", "plan.world_size=8"],
        "data/preference": [f"data.path={folder / 'my.txt'}", "objective=dpo"],
        "objective/kto": ["data=labelled", f"data.path={folder / 'my.txt'}"],
        **{
            f"data/{kind}": [f"data.path={folder / 'my.txt'}", "objective=kto"]
            for kind in ("labelled", "chat_labelled")
        },
        **{
            f"objective/{name}": ["data=preference", f"data.path={folder / 'my.txt'}"]
            for name in ("dpo", "orpo", "simpo", "cpo", "reward_model")
        },
        "fault_tolerance/torchft": ["fault_tolerance.lighthouse=http://localhost:29510"],
        "data/hf": [f"data.path={folder / 'my.txt'}"],
        "data/parquet": [f"data.path={folder / 'my.txt'}", "tokenizer=bytes"],
        "data/shards": [f"data.path={folder}", "data.file_pattern=*.txt", "tokenizer=bytes"],
        "data/synthetic": ["tokenizer=bytes"],
        "model/hf": [f"model.path={folder}", "train.seq_len=32"],
        "mixer/shared_attention": [
            "+model.kinds.first.mixer={schema: attention}",
            "model.layers=[first,default]",
        ],
        "data/mix": [f"+data.sources.mine.path={folder / 'my.txt'}"],
        "tokenizer/file": [f"tokenizer.path={folder / 'tokenizer.json'}"],
        "tokenizer/hf": ["tokenizer.name=my/model"],
        "tracker/wandb": ["metrics.wandb_mode=offline"],
        "tokenizer/sentencepiece": [f"tokenizer.path={folder / 'pieces.model'}"],
        "tokenizer/tiktoken": [f"tokenizer.path={folder / 'ranks.tiktoken'}"],
        "objective/distill": [f"objective.teacher={folder / 'base'}"],
        "objective/gkd": [
            f"objective.teacher={folder / 'base'}",
            "data=pairs",
            f"data.path={folder / 'my.txt'}",
            "data.packing=none",
        ],
        "experiment/distill_demo": [f"objective.teacher={folder / 'base'}"],
        **{
            f"experiment/nanochat_{depth}": [f"data.path={folder / '*.txt'}", *PLANNED]
            for depth in ("d12", "d20", "d24")
        },
        **{
            f"experiment/nanochat_{depth}/sft": [
                f"data.path={folder / 'my.txt'}",
                f"checkpoint.init_from={folder / 'base'}",
                "tokenizer.bos_token=a",
                *PLANNED,
            ]
            for depth in ("d12", "d20", "d24")
        },
        "experiment/nanochat_d4_cpu/sft": [
            f"checkpoint.init_from={folder / 'base'}",
            "tokenizer.bos_token=a",
        ],
        "experiment/sft_demo": [f"checkpoint.init_from={folder / 'base'}"],
        "experiment/lora_demo": [f"checkpoint.init_from={folder / 'base'}"],
        **{
            f"experiment/{name}": [
                f"model.path={folder}",
                f"data.path={folder / 'my.txt'}",
                "train.seq_len=32",
            ]
            for name in ("sft_full", "sft_lora", "sft_qlora", "dpo_lora")
        },
        **{
            f"objective/{name}": ["data=sums_demo", *OF_ROLLOUTS]
            for name in ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce", "ppo")
        },
        "data/prompts": [f"data.path={folder / 'my.txt'}", "objective=grpo", *OF_ROLLOUTS],
        "data/sums_demo": ["objective=grpo", *OF_ROLLOUTS],
        "eval/rollouts": [
            "objective=grpo",
            "data=sums_demo",
            "data.val_fraction=0.2",
            *OF_ROLLOUTS,
        ],
        "rollout/openai": ["objective=grpo", "data=sums_demo", *OF_ROLLOUTS],
        "rollout/local": ["objective=grpo", "data=sums_demo", *OF_ROLLOUTS],
        "train/sft": ["model.max_seq_len=1024"],
        "train/long": ["model.max_seq_len=2048"],
    }.get(file, [])


@pytest.mark.parametrize("file", FILES)
def test_every_file_composes_and_resolves_to_its_values_and_says_what_it_is_for(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kept = str(tmp_path / "tokenizer.json")
    monkeypatch.setattr("forge.config.data.hub.fetch_tokenizer", lambda name, revision: (kept, ""))
    monkeypatch.setattr(FaultTolerance, "has_torchft", staticmethod(lambda: True))
    group, _, option = file.partition("/")
    choice = f"+{group}@model.{group}" if group in schemas.INNER else group
    choice = f"+{group}" if group == "tracker" else choice
    if group in ENTRIES:  # composed alone: what it reads is the user's, or of an extra
        _, config = COMPOSER([f"+{group}@{ENTRIES[group]}={option}"])
    else:
        config = resolved([f"{choice}={option}", *needs(file, tmp_path)], as_point=True).config
    content = OmegaConf.to_container(OmegaConf.load(CONF / f"{file}.yaml"))
    assert isinstance(content, dict)
    content.pop("defaults", None)
    above = "" if group in ("experiment", "debug", "recipe") else f"{group}."
    above = f"{ENTRIES[group]}." if group in ENTRIES else above
    if group == "tracker":
        (above,) = re.findall(r"@package (\S+)", (CONF / f"{file}.yaml").read_text())
        above += "."
    for key, value in flatten(content, above):
        if value not in (None, "auto", -1) and not str(value).startswith("runs/"):  # no run here
            assert contains(thaw_value(get(config, key)), value), key
    lines = (CONF / f"{file}.yaml").read_text().splitlines()
    assert lines[0].startswith("#")
    assert any(line.startswith("# ") and "@package" not in line for line in lines)


def contains(resolved: Any, stated: Any) -> bool:
    """Whether a value is the one stated; of a dict, whether it has the stated entries."""
    if isinstance(stated, dict) and isinstance(resolved, dict):
        return all(contains(resolved.get(name), value) for name, value in stated.items())
    return resolved == stated


def flatten(content: dict, prefix: str):
    for name, value in content.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and schemas.declared_type(key) is None:
            yield from flatten(value, f"{key}.")
        else:
            yield key, value


def test_every_group_is_in_the_primary_config_and_every_folder_is_a_group():
    assert set(Library().groups()) == {path.name for path in CONF.iterdir() if path.is_dir()}
    apart = {"experiment", "debug", "recipe", "tracker", *ENTRIES, *schemas.INNER}
    assert set(schemas.sections()) == set(Library().groups()) - apart
    text = (CONF / "config.yaml").read_text()
    entries = [line for line in text.splitlines() if line.startswith("  - ")]
    assert len(entries) == len(yaml.safe_load(text)["defaults"])
    assert [line for line in entries if not re.search(r" # \w", line)] == []


@pytest.mark.parametrize("file", [f for f in FILES if f.startswith("model/") and f != "model/hf"])
def test_a_model_is_as_large_as_published_and_as_its_comment_says(file: str):
    preset = file.partition("/")[2]
    model = resolved([f"model={preset}"], as_point=True).config.model
    assert isinstance(model, Decoder)
    built = model.num_params_estimate
    assert built == PARAMETERS.get(preset, built)
    comment = (CONF / f"{file}.yaml").read_text().splitlines()[0]
    counts = re.findall(r"([\d,]{6,}) parameters|\b([\d.]+)M parameters", comment)
    for exact, millions in counts:
        if exact:
            assert int(exact.replace(",", "")) == built
        else:
            assert f"{built / 1e6:.{len(millions.partition('.')[2])}f}" == millions
    assert counts or preset == "tiny"
    for exact in re.findall(r"([\d,]{6,}) of them active", comment):
        assert int(exact.replace(",", "")) == model.num_active_params


@pytest.mark.parametrize(
    ("name", "device"), [("llama3_8b_lora_one_gpu", "h100"), ("llama3_8b_qlora_24gb", "rtx4090")]
)
def test_adapters_beside_llama_3_8b_fit_the_gpu_that_they_are_for(name: str, device: str):
    planned = [f"plan.device={device}", "plan.world_size=1", "data=synthetic", "tokenizer=bytes"]
    needed = memory_needed(resolved([f"experiment={name}", *planned]).config)
    assert 0.4 < needed / DEVICES[device].memory < USABLE


@pytest.mark.parametrize(
    ("name", "ranks", "gathers_in_fp8"),
    [
        ("llama3_8b_one_h100_fp8", 1, False),
        ("llama3_8b_8gpu", 8, False),
        ("llama3_8b_8gpu_fp8", 8, True),
    ],
)
def test_runs_of_llama_3_8b_fit_80_gb(name: str, ranks: int, gathers_in_fp8: bool):
    planned = ["plan.device=h100", f"plan.world_size={ranks}", "data=synthetic"]
    config = resolved([f"experiment={name}", *planned, "tokenizer=bytes"]).config
    assert 0.4 < memory_needed(config) / DEVICES["h100"].memory < USABLE
    assert config.parallel.dp_shard == ranks
    assert config.quantization.gathers_in_fp8 is gathers_in_fp8


@pytest.mark.parametrize("file", [f for f in FILES if f.startswith("parallel/")])
def test_a_layout_says_all_degrees_and_its_name_says_which(file: str):
    degrees, name = yaml.safe_load((CONF / f"{file}.yaml").read_text()), file.partition("/")[2]
    assert tuple(degrees)[-6:] == AXES
    named: dict[str, int] = dict.fromkeys(AXES, 1)
    named |= {"dp_shard": -1} if name in ("auto", "fsdp", "hsdp", "zero1") else {}
    named |= {"dp_replicate": 2} if name in ("ddp", "hsdp") else {}
    if name != "zero1" and (numbered := re.fullmatch("([a-z]+)([0-9]+)", name)):
        named[numbered[1]] = int(numbered[2])
    assert {axis: degrees[axis] for axis in AXES} == named


@pytest.mark.parametrize("name", sorted(schemas.SCHEMAS["scheduler"]))
@pytest.mark.parametrize("steps", [20, 300])
def test_a_short_run_reaches_its_peak_without_a_warning(name: str, steps: int):
    found = resolved([f"scheduler={name}", f"train.max_steps={steps}"], as_point=True)
    factor = getattr(schedules, name)(found.config.scheduler)
    assert found.warnings == ()
    assert max(map(factor, range(steps))) == 1


def test_an_experiment_wins_over_the_groups_and_the_command_line_over_both():
    for typed, shape in ((), "sqrt"), (("scheduler.wsd_decay_type=linear",), "linear"):
        config = resolved(["experiment=wsd", *typed]).config
        assert get(config, "scheduler.wsd_decay_type") == shape
    fast = resolved(["debug=fast", "train=long", "model.max_seq_len=2048"]).config
    assert fast.train.max_steps == 3
