"""Runs on packed documents count the tokens of text, not the places after it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_helpers import logged, read

from forge import worker
from forge.data.batches.order import SampleOrder
from forge.data.batches.packing import plan_samples

SEQ, SIZE, STEPS = 16, 4, 6  # of the small model's runs


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """Short documents, one to a sequence, most of which is empty."""
    texts = ["the sea " * (n % 5 + 1) for n in range(200)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    packing = "data.pack_sequences=true data.packing=first_fit data.max_segments_per_seq=1"
    return f"data=text data.path={path} {packing} metrics.log_interval=2 metrics.peak_tflops=0.001"


def expected(loop) -> list[int]:
    """Tokens after each step, counted from the plan and the order."""
    prepared = loop.session.prepared
    store, end = prepared.train.stores[""], prepared.tokenizer.eos_id
    made = plan_samples(store, end_of_text=end, seq_len=SEQ, policy="first_fit", max_segments=1)
    order, found = SampleOrder(len(made), seed=loop.config.seed), [0]
    for sample in range(STEPS * SIZE):
        pieces = made.pieces_of(order.window(sample))
        window = sum(stop - start for start, stop in pieces)
        found.append(found[-1] + window - 1)
    return found[SIZE::SIZE]


def test_tokens_and_their_rate_are_of_text(rows, assembled) -> None:
    loop = assembled(rows)
    loop.run()
    of_steps = expected(loop)
    assert of_steps[-1] < 0.7 * STEPS * SIZE * SEQ
    assert logged(loop.run_dir, "tokens") == {n: of_steps[n - 1] for n in (2, 4, 6)}
    names = ("tokens_per_second", "step_seconds", "mfu")
    rate, seconds, mfu = (logged(loop.run_dir, n, file="performance.jsonl") for n in names)
    before, flops = 0, loop.config.model.flops_per_token(SEQ)
    for step in (2, 4, 6):
        tokens = of_steps[step - 1] - before
        assert rate[step] == pytest.approx(tokens / (2 * seconds[step]))
        assert mfu[step] == pytest.approx(rate[step] * flops / 1e9)
        before = of_steps[step - 1]


@pytest.mark.nightly
def test_the_count_goes_on_where_it_was(rows, trained) -> None:
    whole = trained(rows, "checkpoint.interval=2")
    other = trained(rows, "checkpoint.interval=2")
    (other / "checkpoints" / "step_6").rename(other / "gone")
    (other / "result.json").unlink()
    assert worker.main([str(other)]) == 0
    assert logged(other, "tokens") == logged(whole, "tokens")
    assert read(other / "result.json")["tokens"] == logged(whole, "tokens")[6]


def test_tokens_of_a_source_follow_how_full_its_sequences_are(rows, trained, text_file) -> None:
    """Exactly so where all are alike, as those of one source here, and full, as of the other."""
    path = rows.split()[1].removeprefix("data.path=")
    few = Path(path).with_name("few.jsonl")
    few.write_text("".join(f'{{"text": "the sea of {n} ships"}}\n' for n in range(8)))
    mix = f"data=mix '+data.sources.few={{path:{few}}}'"
    mix += f" '+data.sources.sea={{path:{text_file}}}' data.val_fraction=0.0 eval.enabled=false"
    run = trained(mix, *rows.split()[2:], "train.max_steps=8")
    found = {name: logged(run, f"data/{name}/tokens")[8] for name in ("few", "sea")}
    assert sum(found.values()) == logged(run, "tokens")[8] < 8 * SIZE * SEQ
    assert found["sea"] == (1 - logged(run, "data/few/share")[8]) * 8 * SIZE * SEQ


@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["best_fit_crop", "best_fit_pad data.too_long=truncate"])
def test_rows_of_a_buffer_go_on_where_they_were(rows, trained, policy: str) -> None:
    """Losses to the last digit, with the padding of best_fit_pad in the middle."""
    path = rows.split()[1]
    packing = f"data.packing={policy} data.packing_buffer=9 tokenizer.add_bos=true"
    options = (
        "data=text",
        path,
        *packing.split(),
        "checkpoint.interval=2",
        "metrics.log_interval=1",
    )
    whole, other = trained(*options), trained(*options)
    (other / "checkpoints" / "step_6").rename(other / "gone")
    (other / "result.json").unlink()
    assert worker.main([str(other)]) == 0
    losses = logged(whole, "train/loss")
    assert len(losses) == STEPS
    assert logged(other, "train/loss") == losses
