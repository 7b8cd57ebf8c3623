"""Runs whose rows grow in length: their losses, counts, speed and continuations."""

from __future__ import annotations

import pytest
import torch
from run_helpers import assert_bit_equal, built, logged, step_of, stored

from forge.planning.flops import flops_in_all, flops_per_token
from forge.rundir.files import read_rows

RUN = "train.max_steps=9 train.batch_size=2 train.grad_accum_steps=2 checkpoint.interval=1 "
RUN += "checkpoint.keep_last_n=0"
STAGES = "train.seq_len_stages=[4,8] train.seq_len_until=[3,0.67]"
EVALUATE = "eval.enabled=true eval.interval=3 eval.steps=3 eval.sample_tokens=0"


def test_first_steps_are_those_of_a_run_with_short_sequences(trained):
    """In the order of the text, four windows of 16 tokens are sixteen of 4."""
    in_order = "data.shuffle=false"
    staged = trained(RUN, STAGES, in_order)
    short = trained(
        "train.max_steps=9 train.batch_size=8 train.grad_accum_steps=2 train.seq_len=4 " + in_order
    )
    ours, theirs = logged(staged, "train/loss"), logged(short, "train/loss")
    assert [ours[step] for step in (1, 2, 3)] == [theirs[step] for step in (1, 2, 3)]
    assert ours[4] != theirs[4]
    assert logged(staged, "lr") == logged(short, "lr"), "the horizon does not know of rows"
    assert logged(staged, "tokens") == logged(short, "tokens")
    assert logged(staged, "tokens")[9] == 9 * 4 * 16


def test_evaluations_have_the_full_length(trained):
    staged, plain = trained(RUN, STAGES, EVALUATE), trained(RUN, EVALUATE)
    assert logged(staged, "eval/loss").keys() == {3, 6, 9}
    run = built(step_of(staged, 3).parents[1])
    assert run.config.train.seq_len == 16
    assert logged(staged, "eval/loss") != logged(plain, "eval/loss")
    # with weights that do not move both runs evaluate the same sequences
    still = "optimizer.lr=1e-30 optimizer.weight_decay=0"
    losses = [logged(trained(RUN, EVALUATE, still, s), "eval/loss") for s in (STAGES, "seed=42")]
    assert losses[0] == losses[1]


@pytest.mark.ci("3")
@pytest.mark.parametrize("step", [2, 3, 4])
def test_a_run_goes_on_around_an_edge(step: int, trained):
    options = f"{RUN} {STAGES} model.dropout=0.1 data.pack_sequences=true"
    whole = trained(options)
    resumed = trained(options, f"checkpoint.resume_from={step_of(whole, step)}")
    assert_bit_equal(stored(step_of(resumed, 9)), stored(step_of(whole, 9)))
    rows = [row for row in read_rows(whole / "metrics.jsonl") if row["step"] > step]
    assert list(read_rows(resumed / "metrics.jsonl")) == rows


def test_mfu_counts_the_attention_of_the_rows_read(assembled):
    loop = assembled(RUN, STAGES, "metrics.peak_tflops=0.001")
    loop.run()
    config, path = loop.config, loop.run_dir
    rates = logged(path, "tokens_per_second", file="performance.jsonl")
    mfu = logged(path, "mfu", file="performance.jsonl")
    for step, length in ((1, 4), (3, 4), (4, 8), (6, 8), (7, 16), (9, 16)):
        per_token = config.model.flops_per_token(length)
        assert mfu[step] == pytest.approx(rates[step] * per_token / 1e9, rel=1e-9)
    by_hand = sum(64 * n * config.model.flops_per_token(k) for n, k in ((3, 4), (3, 8), (3, 16)))
    assert flops_in_all(config) == by_hand
    assert flops_per_token(config) == config.model.flops_per_token(16)


def test_documents_of_a_batch_are_cut_with_its_rows(assembled):
    loop = assembled(RUN, STAGES, "data.pack_sequences=true")
    batch = next(loop.loader).batches[0]
    assert batch["tokens"].shape == (8, 4)
    assert batch["documents"].shape == (8, 4)
    assert not batch["documents"][:, 0].any()
    assert batch["tokens"].dtype == torch.int64
