"""Exchanges of context and expert parallelism: the time of a ring, and what `auto` chooses."""

from __future__ import annotations

import pytest

from forge.compose import composition
from forge.config.root import Config
from forge.planning import calibration as known
from forge.planning.links import group, seconds
from forge.planning.time import device_of, planned_time
from forge.planning.traffic import busiest_rank
from forge.planning.world import CPU_BUILD, Devices
from forge.resolve.resolve import worked_out

LAPTOP = Devices(gpus=0, source=CPU_BUILD, torch=(2, 13))
H200 = "plan.device=h200 run.device=cuda precision=bf16 train=long tokenizer=bytes parallel=fsdp"
ONE_EACH = "train.batch_size=1 train.global_batch_size=null"
LONG = "train.seq_len=32768 model.max_seq_len=32768 plan.network_gbits=50"


def config_of(words: str) -> Config:
    typed = f"{H200} {ONE_EACH} {words}".split()
    return worked_out(composition.config(typed), devices=LAPTOP)[0]


@pytest.mark.parametrize("gbits", [4000, 20])
def test_a_ring_goes_beside_attention_but_for_the_last_way_of_gradients(gbits: int) -> None:
    words = f"model=llama3_8b plan.world_size=16 parallel.cp=16 parallel.cp_method=ring {LONG}"
    config = config_of(f"{words} plan.network_gbits={gbits}")
    found = planned_time(config)
    assert found is not None
    (sent,) = [each for each in busiest_rank(config) if each.technique == "cp"]
    whole = seconds(sent, group(config.parallel, sent.axes, 8), device_of(config))
    home = whole * 4 / (2 + 2 + 4) / 15  # keys forward, keys backward, gradients in fp32
    covered = min(whole - home, found.parts["attention"] * 15 / 16)
    assert found.parts["cp"] == pytest.approx(whole - covered + known.CONTENTION * covered)
    assert (covered < whole - home) == (gbits == 20)


@pytest.mark.parametrize(
    ("words", "key", "chosen"),
    [
        (f"model=llama7b plan.world_size=16 parallel.cp=16 {LONG}", "cp_method", "ulysses"),
        (f"model=llama3_8b plan.world_size=16 parallel.cp=16 {LONG}", "cp_method", "all_gather"),
        ("model=qwen3_30b_a3b plan.world_size=8 parallel.ep=2", "ep_method", "all_gather"),
        ("model=qwen3_30b_a3b plan.world_size=8 parallel.ep=8", "ep_method", "all_to_all"),
    ],
)
def test_an_open_exchange_is_the_fastest(words: str, key: str, chosen: str) -> None:
    """Of all methods typed one by one: none is 5 % faster."""
    words = f"{words} train.activation_checkpointing=full"
    words += (
        " model.n_layers=4" * ("qwen" in words)
        + f" train.seq_len={4096 if 'qwen' in words else 32768}"
    )
    found = config_of(f"{words} parallel.{key}=auto")
    assert getattr(found.parallel, key) == chosen
    methods = {
        "cp_method": ("all_gather", "ulysses", "ring"),
        "ep_method": ("all_to_all", "all_gather"),
    }
    speeds = {}
    for method in methods[key]:
        time = planned_time(config_of(f"{words} parallel.{key}={method}"))
        assert time is not None
        speeds[method] = time.tokens_per_second
    assert 1.05 * speeds[chosen] >= max(speeds.values())
    before = methods[key][: methods[key].index(chosen)]
    assert all(1.05 * speeds[method] < max(speeds.values()) for method in before)


def test_without_a_device_to_plan_for_the_first_exchange_stays() -> None:
    words = (
        "model=tiny tokenizer=bytes parallel.cp=2 parallel.cp_method=auto parallel.ep_method=auto"
    )
    config = worked_out(composition.config(words.split()), devices=LAPTOP)[0]
    assert (config.parallel.cp_method, config.parallel.ep_method) == ("all_gather", "all_to_all")
