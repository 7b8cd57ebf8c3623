"""A run on several corpora: one tokenizer, shares, phases, evaluation of each, and a resume."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from run_helpers import assert_bit_equal, logged, read, step_of, stored

from forge import worker
from forge.data.batches.mixture import Mixture
from forge.rundir.files import read_rows

PHASES = "+data.phases.late={start_step:3,dataset_weights:{sea:0},lr_scale:0.25}"


@pytest.fixture
def mix(text_file: Path, tmp_path: Path) -> str:
    """A text, and pairs of which the responses count, with three times its weight."""
    rows = [
        {"prompt": f"{n} plus {n} ", "response": f"is {2 * n}, said the man"} for n in range(90)
    ]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    sea = f"+data.sources.sea={{path:{text_file}}}"
    sums = f"+data.sources.sums={{data:pairs,path:{tmp_path}/sums.jsonl,weight:3}}"
    return f"data=mix {sea} {sums} {PHASES} eval.enabled=true eval.interval=3 eval.steps=0"


def test_a_mixture_is_trained_on_by_weight_and_goes_on_where_it_was(mix, trained):
    """Logged shares equal a count of what was read; the rate is scaled; each source is evaluated,
    and both together; a run that stopped in a phase ends with the same bits.
    """
    whole = trained(mix, "checkpoint.interval=2")
    tokens = {name: logged(whole, f"data/{name}/tokens") for name in ("sea", "sums")}
    shares = logged(whole, "data/sums/share")
    assert {step: sum(of[step] for of in tokens.values()) for step in shares} == {
        step: 4 * 16 * step for step in range(1, 7)
    }
    assert shares[6] == pytest.approx(tokens["sums"][6] / (4 * 16 * 6))
    assert 0 < tokens["sea"][3] == tokens["sea"][6]  # of weight 0 from step 3 on
    assert logged(whole, "lr") == pytest.approx(
        {n: lr * (0.25 if n > 3 else 1) for n, lr in logged(trained(), "lr").items()}
    )
    for step, loss in logged(whole, "eval/loss").items():
        sea, sums = (logged(whole, f"eval/{name}/loss")[step] for name in tokens)
        assert min(sea, sums) < loss < max(sea, sums)
    assert set(read(whole / "data.json")["sources"]) == {"sea", "sums"}

    other = trained(mix, "train.max_steps=6 checkpoint.interval=2")
    for left in ("step_6", "best"):
        for path in [*(other / "checkpoints").glob(left)]:
            path.rename(other / f"gone_{left}")
    (other / "result.json").unlink()
    assert worker.main([str(other)]) == 0
    assert_bit_equal(stored(step_of(other, 6)), stored(step_of(whole, 6)))


@pytest.mark.parametrize("loss_fn", ["cross_entropy", "chunked_cross_entropy"])
def test_the_loss_of_each_source_is_that_of_its_rows(mix, trained, assembled, loss_fn):
    """Of the first step, whose weights are the initial ones, over the targets that count."""
    mix += " train.batch_size=8 train.global_batch_size=16"
    path = trained(mix, f"objective.loss_fn={loss_fn} train.max_steps=1 metrics.log_interval=1")
    loop = assembled(mix)
    batches = next(loop.loader).batches
    rows = torch.cat([batch["tokens"] for batch in batches])
    targets = torch.cat([batch["targets"] for batch in batches])
    sources = torch.tensor([loop.loader.order.find(n)[0] for n in range(len(rows))])
    for source, name in enumerate(("sea", "sums")):
        of = sources == source
        with torch.no_grad():
            logits = loop.model(rows[of]).flatten(0, 1)
            expected = torch.nn.functional.cross_entropy(logits, targets[of].flatten())
        assert logged(path, f"data/{name}/loss")[1] == pytest.approx(expected.item(), rel=1e-6)
    assert not any(key.startswith(("train/ce", "train/targets")) for key in keys(path))


def keys(path: Path) -> set[str]:
    return {key for row in read_rows(path / "metrics.jsonl") for key in row}


def test_sources_are_read_in_the_tokens_of_one_tokenizer(mix, assembled):
    """Made of the text of both; every row of a batch is from the source that the order names."""
    loop = assembled(mix)
    mixture = loop.session.prepared.train
    assert isinstance(mixture, Mixture)
    tokenizer = loop.session.tokenizer
    texts = [tokenizer.decode(store.read(0, 60).tolist()) for store in mixture.stores.values()]
    assert re.search("whale|sea|ship", texts[0])
    assert "plus" in texts[1]
    loader = loop.loader
    rows = np.concatenate([next(loader).batches[0]["tokens"].numpy() for _ in range(3)])
    stores = list(mixture.stores.values())
    for sample, row in enumerate(rows):
        source, window = loader.order.find(sample)
        assert (row == stores[source].read(16 * window, 16 * window + 16)).all()


def test_what_is_wrong_with_the_text_of_a_source_names_it(new_run, assembled, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"txt": "a"}')
    entry = f"+data.sources.bad={{path:{tmp_path}/bad.jsonl}}"
    with pytest.raises(ValueError, match=r"^data\.sources\.bad: data\.path: .*bad\.jsonl"):
        assembled("data=mix", "+data.sources.code={data:python}", entry)


@pytest.mark.nightly
def test_a_batch_that_grows_goes_on_where_it_was(trained):
    """2, 2, 4, 4, 6, 6 sequences; a run that stopped at step 3 ends with the same bits."""
    options = "train.rampup_start=2 train.rampup_samples=8 train.global_batch_size=6"
    options += " train.batch_size=2 checkpoint.interval=3 checkpoint.keep_last_n=3"
    whole, other = trained(options, "train.max_steps=6"), trained(options, "train.max_steps=6")
    sizes = [2, 2, 4, 6, 6, 6]
    assert logged(whole, "tokens") == {n: 16 * sum(sizes[:n]) for n in range(1, 7)}
    for path in (other / "checkpoints").glob("step_6"):
        path.rename(other / "gone")
    (other / "result.json").unlink()
    assert worker.main([str(other)]) == 0
    assert_bit_equal(stored(step_of(other, 6)), stored(step_of(whole, 6)))
