"""Seconds of a step: against closed forms of it, and beside figures that others published."""

from __future__ import annotations

from dataclasses import replace
from math import log2

import published
import pytest
from published_figures import FIGURES, TITAN

from forge.compose import composition
from forge.config.devices import DEVICES
from forge.config.root import Config
from forge.planning import calibration as known
from forge.planning.compute import busy, product
from forge.planning.time import StepTime, bubble, planned_time
from forge.planning.world import CPU_BUILD, Devices
from forge.resolve.resolve import worked_out

LAPTOP = Devices(gpus=0, source=CPU_BUILD, torch=(2, 13))
H200 = "plan.device=h200 run.device=cuda precision=bf16 train=long tokenizer=bytes parallel=fsdp"
LLAMA = "model=llama3_8b train.seq_len=4096 train.batch_size=2 optimizer=adamw"


def config_of(*words: str) -> Config:
    return worked_out(composition.config([*H200.split(), *LLAMA.split(), *words]), devices=LAPTOP)[
        0
    ]


def time_of(*words: str) -> StepTime:
    found = planned_time(config_of(*words))
    assert found is not None
    return found


def test_the_largest_products_reach_what_was_measured_and_thin_ones_their_bytes() -> None:
    h200 = DEVICES["h200"]
    flops = 2 * 8192**3 / product(h200, 8192, 8192, 8192, 1, "bf16", 2)
    assert flops == pytest.approx(0.75 * 989.4e12)
    read = 2 * (8192 * 8192 + 2 * 8192) / (known.STREAM * 4.8e12)
    assert product(h200, 1, 8192, 8192, 1, "bf16", 2) == pytest.approx(read)
    waves = busy(h200, 128 * 133, 256, 8192) / busy(h200, 128 * 132, 256, 8192)
    assert waves < 0.8  # the 133rd tile takes a wave of its own, or sums are split


def test_parts_of_one_device_are_their_closed_forms() -> None:
    time, config = time_of("plan.world_size=1"), config_of("plan.world_size=1")
    tokens, model = 2 * 4096, config.model
    assert time.tokens == tokens
    assert time.flops == model.flops_per_token(4096)
    matrices = 6 * tokens * 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    reached = matrices / time.parts["products"] / 989.4e12
    assert 0.70 < reached < 0.80
    scores = 32 * 6 * 4096 * 4096 * tokens * (1 / 3 + 2 / 3 * 1.25)  # half of what PaLM counts
    rate = known.ATTENTION["cudnn"] * 0.75 * 989.4e12
    assert time.parts["attention"] == pytest.approx(scores / rate)
    state = 16 * model.num_params_estimate  # weights, gradients and two moments in fp32
    assert time.parts["optimizer"] == pytest.approx(2 * state / (known.STREAM * 4.8e12))
    assert not {"fsdp", "tp", "bubble", "stragglers"} & set(time.parts)
    assert time.mfu == pytest.approx(time.flops * tokens / time.seconds / 989.4e12)


def test_frozen_weights_have_no_product_for_their_gradient() -> None:
    words = ["plan.world_size=1", "optimizer=adamw"]
    whole, part = time_of(*words), time_of(*words, "optimizer.trainable_parameters=[norm]")
    assert part.parts["products"] / whole.parts["products"] == pytest.approx(2 / 3, rel=0.01)


def test_recomputation_repeats_the_forward_pass() -> None:
    none, full = (
        time_of("plan.world_size=1", f"train.activation_checkpointing={mode}")
        for mode in ("none", "full")
    )
    forward = (none.parts["products"]) / 3 + none.parts["attention"] / (1 + 2 * 1.25)
    read = 1 - 4096 * 14336 / (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 4096 * 4096)
    again = read * forward + 0.4 * none.parts["elementwise"]  # not what nothing in a block reads
    assert full.parts["recomputed"] == pytest.approx(again, rel=0.03)
    selective = time_of("plan.world_size=1", "train.activation_checkpointing=selective")
    assert selective.parts["recomputed"] == pytest.approx(0.4 * none.parts["elementwise"])
    half = time_of(
        "plan.world_size=1", "train.activation_checkpointing=full", "train.recompute_every=2"
    )
    assert half.parts["recomputed"] == pytest.approx(full.parts["recomputed"] / 2)


def test_fp8_is_of_the_matrices_that_it_takes() -> None:
    """Those of blocks, not the head; without their gradients under rowwise_with_gw_hp."""
    plain, fp8 = (time_of("plan.world_size=1", f"quantization={q}") for q in ("none", "fp8"))
    assert fp8.parts["head and loss"] == plain.parts["head and loss"]
    faster = plain.parts["products"] / fp8.parts["products"]
    assert faster == pytest.approx(2 * known.FP8_REACHED, rel=0.02)
    exact = time_of(
        "plan.world_size=1", "quantization=fp8", "quantization.recipe=rowwise_with_gw_hp"
    )
    third = plain.parts["products"] / 3
    assert exact.parts["products"] == pytest.approx(third + 2 / 3 * fp8.parts["products"], rel=0.03)


def test_what_products_cannot_hide_is_exposed() -> None:
    """FSDP over a slow network: gathers for each pass and the reduction, less the products."""
    fast, slow = (
        time_of("plan.world_size=16", f"plan.network_gbits={gbits}") for gbits in (4000, 4)
    )
    assert fast.parts["fsdp"] < 0.2 * fast.seconds
    sent = 15 / 16 * 8.03e9 * (2 * 2 + 4)  # bytes of weights twice, of gradients once
    assert sum(slow.links.values()) == pytest.approx(sent, rel=0.1)  # a table is gathered once
    over_network = sent / (known.REACHED["network"] * 8 * 0.5e9)
    assert slow.parts["fsdp"] + slow.hidden == pytest.approx(over_network, rel=0.25)
    assert slow.parts["products"] == fast.parts["products"]


@pytest.mark.parametrize("method", ["all_to_all", "all_gather"])
def test_parts_of_experts_rows_are_exposed_at_their_ends(method) -> None:
    """Half of both ways with two parts, a quarter with four, and the contention of the rest;
    beside are the waits of the host, latency, and what is sent whole.
    """
    words = "model=mixtral_8x7b plan.world_size=8 parallel.ep=8 parallel.dp_shard=1"
    words += f" train.seq_len=8192 parallel.ep_method={method}"
    whole, *cut = (
        time_of(*words.split(), f"parallel.ep_overlap_degree={parts}") for parts in (1, 2, 4)
    )
    for parts, time in zip((2, 4), cut, strict=True):
        hidden = whole.parts["ep"] * (1 - 1 / parts)
        exposed = whole.parts["ep"] / parts + known.CONTENTION * hidden
        assert time.parts["ep"] == pytest.approx(exposed, rel=0.1)
        assert time.hidden - whole.hidden == pytest.approx(hidden, rel=0.1)
        assert time.links == whole.links
        assert time.parts["products"] >= whole.parts["products"]


def test_a_pipeline_waits_for_its_ends() -> None:
    words = "plan.world_size=8 parallel.pp=4 train.batch_size=8 parallel.pp_microbatches=8"
    one = time_of(*words.split())
    two = time_of(*words.split(), "parallel.pp_schedule=interleaved_1f1b")
    busy_time = sum(one.parts[name] for name in ("products", "attention", "elementwise"))
    busy_time += one.parts.get("head and loss", 0) + one.parts["pp"]
    assert one.parts["bubble"] == pytest.approx(3 / 8 * busy_time, rel=0.01)
    assert two.parts["bubble"] == pytest.approx(one.parts["bubble"] / 2, rel=0.2)
    zero = replace(config_of(*words.split()).parallel, pp_schedule="zbv_zero_bubble")
    assert bubble(zero, 8) == 0


def test_every_doubling_of_nodes_adds_stragglers() -> None:
    time = time_of("plan.world_size=64")
    others = time.seconds - time.parts["stragglers"]
    assert time.parts["stragglers"] == pytest.approx(known.STRAGGLERS * log2(8) * others)


def test_figures_of_torchtitan() -> None:
    """Of 8B: in the right order, within a fifth; the rest in `test_published_figures`."""
    eight = [
        one for one in FIGURES if one.set == TITAN and one.model == "8B" and "cp=" not in one.words
    ]
    rows = [published.compared(figure) for figure in eight]
    right, pairs = published.in_order(rows, same_model=True)
    assert right == pairs == 21
    assert all(abs(row.error) < 0.2 for row in rows)


@pytest.mark.nightly
def test_published_figures() -> None:
    """Four of five pairs of each set are in the right order; the page says so."""
    rows = [published.compared(figure) for figure in FIGURES]
    for name in {row.figure.set for row in rows}:
        of_set = [row for row in rows if row.figure.set == name]
        for same_model in (False, True):
            right, pairs = published.in_order(of_set, same_model=same_model)
            assert right >= 0.8 * pairs
    page = published.RESULTS.read_text()
    assert "\n".join(published.report(rows)).strip() == page.strip()
