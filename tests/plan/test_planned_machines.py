"""`plan.device` and `plan.world_size`: what is checked for machines that are not here."""

from __future__ import annotations

import re

import pytest

import forge
from forge import bench, check, train
from forge.config.devices import DEVICES
from forge.config.root import Config
from forge.parity import __main__ as parity
from forge.planning.memory import memory_of
from forge.planning.time import planned_time
from forge.planning.world import CPU_BUILD, Devices
from forge.resolve.resolve import Resolution, resolve

LAPTOP = Devices(gpus=0, source=CPU_BUILD, torch=(2, 13))
REAL = "tokenizer.vocab_size=128256"


def resolution(*words: str) -> Resolution:
    config = forge.compose([REAL, *words])
    assert isinstance(config, Config)
    return resolve(config, devices=LAPTOP)


def test_a_cluster_is_planned_on_a_laptop() -> None:
    found = resolution("model=llama3_70b", "plan.device=h100", "plan.world_size=1024")
    world, config = found.world, found.config
    assert (world.size, world.source, world.device) == (1024, "plan.world_size", "cuda")
    assert world.planned
    assert world.devices.gpus == 8
    assert config.precision.mixed_precision == "bf16"
    why = next(step.why for step in found.derived if step.key == "parallel.layout")
    assert "of the 79.1 GiB of a device on 1,024 ranks" in why
    assert "tokens/s a GPU" in why
    parallel = config.parallel
    assert parallel.dp_replicate * parallel.dp_shard * parallel.tp * parallel.pp == 1024


@pytest.mark.parametrize("name", ["b200", "h100", "l40s"])
def test_the_fastest_that_fits_is_chosen(name: str) -> None:
    """Llama 3 8B with AdamW has 16 bytes a parameter: 120 GiB, which b200 holds on each; but an
    update of all of them takes longer than of an eighth.
    """
    words = ("model=llama3_8b", "optimizer=adamw", "plan.world_size=8", f"plan.device={name}")
    words += ("train.seq_len=2048", "train.batch_size=4", "train.activation_checkpointing=full")
    chosen = resolution(*words, "parallel=auto")
    why = next(step.why for step in chosen.derived if step.key == "parallel.layout")
    layouts = [{"dp_replicate": 8, "dp_shard": 1}, {"dp_shard": 8}, {"dp_shard": 4, "tp": 2}]
    layouts += [
        {"dp_shard": 1, "tp": 8},
        {"dp_shard": 4, "pp": 2},
        {"dp_shard": 1, "tp": 2, "pp": 4},
    ]
    rates = []
    for degrees in layouts:
        typed = [f"parallel.{axis}={degree}" for axis, degree in degrees.items()]
        config = resolution(*words, "parallel.layout=given", *typed).config
        fits = memory_of(config).reserved <= 0.95 * DEVICES[name].memory
        time = planned_time(config)
        assert time is not None
        rates.append(time.tokens_per_second if fits else 0.0)
    found = planned_time(chosen.config)
    assert found is not None
    assert found.tokens_per_second >= max(rates) / 1.05
    assert (rates[0] > 0) == (name == "b200")
    assert f"{found.tokens_per_second:,.0f} tokens/s a GPU" in why
    assert "slower: " in why


def test_ranks_of_a_plan() -> None:
    """Its number of ranks, else those of the run or the layout, else one machine."""
    of = [
        (["plan.world_size=16", "run.num_processes=4"], 16),
        (["run.num_processes=4"], 4),
        (["parallel=tp2", "parallel.dp_shard=3"], 6),
        (["plan.gpus_per_node=4"], 4),
    ]
    for words, size in of:
        assert resolution("model=llama3_8b", "plan.device=h200", *words).world.size == size


def test_jobs_of_a_partition_with_these_gpus() -> None:
    """The number of ranks is that of the job; memory and time are known then."""
    job = ("launch=slurm", "launch.nodes=2", "launch.gpus_per_node=8", "run.device=cuda")
    found = resolution("model=llama3_8b", "plan.device=h200", *job)
    world, time = found.world, planned_time(found.config, 8)
    assert time is not None
    assert time.ranks == 16
    assert time.links["network"] > 0
    assert (world.size, world.devices.memory) == (16, DEVICES["h200"].memory)


def test_nothing_starts_there(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan.device=h200", "plan.world_size=16"]
    said = "16 ranks on machines that are not here cannot be started"
    for verb, more in ((train, []), (bench, []), (parity, ["a=parallel=fsdp", "b=parallel=fsdp"])):
        assert verb.main([*words, *more]) == 2
        out, err = capsys.readouterr()
        assert said in err, (verb, out)
        assert "forge.check in place of this verb" in err
    assert train.main(["-m", "seed=1,2", *words]) == 0
    out, _ = capsys.readouterr()
    assert "2 points can run on 16 ranks (plan.device=h200); nothing was started there" in out
    assert re.search(r"the longest is expected to take [\d.]+ \w+, all of them [\d.]+", out)
    assert check.main(words) == 0
    out, _ = capsys.readouterr()
    assert "16 ranks on cuda, from plan.world_size (plan.device=h200)" in out
    assert re.search(r"a step +[\d.]+ s: [\d,]+ tokens/s a GPU, MFU", out)
    assert re.search(r"a GPU sends +[\d.]+ GB over NVLink, [\d.]+ GB over network", out)


@pytest.mark.parametrize(
    ("device", "least", "state"), [("h200", 13_000, 59.8), ("h100", 11_000, 45.1)]
)
def test_llama_3_8b_fits_one_gpu(device: str, least: float, state: float) -> None:
    """With 3 GiB to spare; 8 and 6 bytes of each parameter are there all the time."""
    words = f"plan.device={device}", "plan.world_size=1"
    config = resolution(f"experiment=llama3_8b_one_{device}", *words).config
    found = memory_of(config)
    assert found.reserved < DEVICES[device].memory - (3 << 30)
    assert sum(found.state.values()) / (1 << 30) == pytest.approx(state, abs=0.1)
    time = planned_time(config)
    assert time is not None
    assert time.tokens_per_second > least
