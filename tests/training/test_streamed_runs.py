"""Runs on text that is read while it trains: on other ranks, killed, and on files that break."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
from helpers.going_on_helpers import take
from helpers.tiny import TINY
from run_helpers import assert_bit_equal, logged, meta, step_of, stored

from forge import worker
from forge.data.batches.mixture import Mixture
from forge.data.batches.streams import Streamed
from forge.launch.local.processes import free_port
from forge.rundir import saved_config
from forge.training.data import how_streamed

SMALL = [
    "tokenizer=bytes",
    *(option for option in TINY if "vocab_size" not in option),
    "scheduler=constant",
    "checkpoint.interval=2",
    "checkpoint.keep_last_n=0",
    "data.stream_parts=6",
    "data.shuffle_buffer=5",
    "data.val_from_first=40",
]
WORDS = ["the", "a", "of", "sea", "ship", "whale", "white", "captain"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 documents in three Parquet files, in row groups of 20; a step reads some 6."""
    made, draw = tmp_path_factory.mktemp("parquet"), random.Random(0)
    for number in range(3):
        texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 5))) for _ in range(80)]
        pandas.DataFrame({"text": texts}).to_parquet(made / f"{number}.parquet", row_group_size=20)
    return made


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 conversations in six files; some are longer than a row."""
    made, draw = tmp_path_factory.mktemp("chats"), random.Random(0)
    for number in range(6):
        rows = []
        for _ in range(20):
            asked, said = (" ".join(draw.choices(WORDS, k=draw.randint(1, n))) for n in (3, 15))
            turns = [("user", asked), ("assistant", said)]
            messages = [{"role": role, "content": content} for role, content in turns]
            rows.append(json.dumps({"messages": messages}))
        (made / f"{number}.jsonl").write_text("\n".join(rows))
    return made


CHATS = [
    "objective=sft",
    "data.hf_streaming=true",
    "data.packing=next_fit",
    "train.seq_len=64",
    "model.max_seq_len=64",
]


def begin(run_dir: Path, data: Path, *more: str, kind: str = "parquet") -> Path:
    common = [f"data={kind}", f"data.path={data}", f"run.dir={run_dir}", *SMALL]
    return take(*common, *more)[0]


def train(run_dir: Path, data: Path, *more: str, ranks: int = 1, kind: str = "parquet") -> Path:
    """On ranks of their own, to the end: what is forked here has threads of the test process."""
    path = begin(run_dir, data, *more, kind=kind)
    where = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-m", "forge.worker", str(path)]
    own = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks))
    processes = [subprocess.Popen(command, env=os.environ | where | one) for one in own]
    try:
        codes = [process.wait(90) for process in processes]
    finally:
        for process in processes:
            process.kill()
    error = path / "error.json"
    assert codes == [0] * ranks, (codes, error.exists() and error.read_text())
    return path


@pytest.mark.nightly
def test_a_run_on_two_ranks_goes_on_on_one(folder: Path, tmp_path: Path) -> None:
    """A checkpoint says the same of the place in the text, whatever ranks and loader processes
    were, and the losses are those of one rank.
    """
    batch = "train.global_batch_size=8"
    whole = train(tmp_path / "one", folder, batch, "train.batch_size=8", "train.max_steps=40")
    two = ["parallel.dp_shard=2", "train.batch_size=4", "train.max_steps=20", "data.num_workers=1"]
    other = train(tmp_path / "two", folder, batch, *two, ranks=2)
    place = meta(step_of(other, 20))["loader"]
    assert place == meta(step_of(whole, 20))["loader"]
    assert place["samples"] == 160
    assert len(place["streams"][""]) == 6
    train(other, folder, batch, "train.batch_size=4", "train.max_steps=40")
    assert meta(step_of(other, 40))["loader"] == meta(step_of(whole, 40))["loader"]
    positions = meta(step_of(other, 40))["loader"]["streams"][""].values()
    assert any(int(one.split()[0]) > 0 for one in positions)  # in the next epoch by then
    assert logged(other, "train/loss") == pytest.approx(logged(whole, "train/loss"), rel=1e-5)


def test_it_is_said_what_is_read_by_several_processes(folder: Path, tmp_path: Path) -> None:
    stream = {"source": "books", "fingerprint": "", "read": None, "shuffle_buffer": 1}
    text: Any = Streamed(**stream, parts=((0,), (1,), (2,), (3,)), tokenizer=None)  # type: ignore
    config = saved_config.load_own(begin(tmp_path / "run", folder, "train.batch_size=2"))
    read = "data: books is read while training, in 4 parts"
    assert how_streamed(config, text, 1) == [read]
    assert how_streamed(config, text, 2) == [read]
    often = f"{read}, some by several processes; a multiple of 6 would be read once"
    assert how_streamed(config, text, 3) == [often]
    config = replace(config, data=replace(config.data, num_workers=2))
    often = f"{read}, some by several processes; a multiple of 8 would be read once"
    assert how_streamed(config, text, 2) == [often]
    assert how_streamed(config, Mixture(stores={"a": text, "b": text}), 2) == 2 * [
        f"{read}, each by up to 4 processes, as of any mixture"
    ]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "chat"])
def test_a_run_that_is_killed_ends_with_the_same_bits(
    folder: Path, chats: Path, tmp_path: Path, kind: str
) -> None:
    """Of the whole group, in the middle of training; with loader processes."""
    corpus, more = (folder, []) if kind == "parquet" else (chats, CHATS)
    common = [f"data={kind}", f"data.path={corpus}", *SMALL, *more]
    common += ["train.max_steps=40", "data.num_workers=2", "checkpoint.interval=5"]
    whole = train(tmp_path / "whole", corpus, *common[2:], kind=kind)
    place = tmp_path / "killed"
    command = [sys.executable, "-m", "forge.train", *common, f"run.dir={place}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    end = time.monotonic() + 60
    while not step_of(place, 5).exists() and time.monotonic() < end:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (place / "result.json").exists()
    again = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert again.returncode == 0, again.stderr
    assert "where it stopped in the data" in again.stdout + again.stderr
    assert_bit_equal(stored(step_of(place, 40)), stored(step_of(whole, 40)))
    assert logged(place, "train/loss") == logged(whole, "train/loss")
    assert meta(step_of(place, 40))["loader"] == meta(step_of(whole, 40))["loader"]


@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["none", "next_fit"])
def test_the_losses_on_conversations_are_those_of_prepared_ones(
    chats: Path, tmp_path: Path, policy: str
) -> None:
    """Without shuffling, on two ranks too; in a second epoch too."""
    common = [*CHATS, f"data.packing={policy}", "data.shuffle=false", "data.val_fraction=0"]
    common += ["data.stream_parts=1", "train.global_batch_size=8", "train.max_steps=30"]

    def losses(name: str, *more: str, ranks: int = 1) -> dict[int, float]:
        path = train(tmp_path / name, chats, *common, *more, ranks=ranks, kind="chat")
        return logged(path, "train/loss")

    prepared = losses("prepared", "data.hf_streaming=false")
    assert losses("streamed") == prepared
    two = losses("two", "parallel.dp_shard=2", ranks=2)
    assert two == pytest.approx(prepared, rel=1e-5)


@pytest.mark.nightly
def test_a_mixture_with_a_stream_goes_on_where_it_was(
    folder: Path, text_file: Path, tmp_path: Path
) -> None:
    """Both sources are read, evaluated and logged; a run that stops and continues has the bits of
    one that does not.
    """
    stream = f"+data.sources.web={{data:hf,hf_streaming:true,path:{folder},val_from_first:40}}"
    mine = f"+data.sources.mine={{path:{text_file},weight:2}}"
    common = [*(one for one in SMALL if not one.startswith("data.")), "data=mix", stream, mine]
    common += ["eval.enabled=true", "eval.interval=10", "eval.steps=1"]

    def run(name: str, steps: int) -> Path:
        path = take(*common, f"run.dir={tmp_path / name}", f"train.max_steps={steps}")[0]
        assert worker.main([str(path)]) == 0
        return path

    whole, other = run("whole", 20), run("other", 10)
    assert list(meta(step_of(other, 10))["loader"]["streams"]) == ["web"]
    run("other", 20)
    assert_bit_equal(stored(step_of(other, 20)), stored(step_of(whole, 20)))
    assert meta(step_of(other, 20))["loader"] == meta(step_of(whole, 20))["loader"]
    assert 0.2 < logged(whole, "data/web/share")[20] < 0.5
    assert logged(other, "eval/web/loss") == logged(whole, "eval/web/loss")


def broken(folder: Path, capfd: pytest.CaptureFixture[str], *more: str) -> str:
    """What is said of a run whose text breaks while it trains."""
    path = begin(folder / "run", folder / "corpus", "train.max_steps=40", *more)
    assert worker.main([str(path)]) == 2
    said = capfd.readouterr().err.replace(str(folder), "DIR")
    assert "DataLoader worker" not in said
    return said.partition("\n(the traceback")[0].strip()


@pytest.mark.ci("1")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_is_not_complete_is_named_and_the_checkpoint_is_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], workers: int
) -> None:
    """It is found in the middle of training, which continues once the file is mended."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    lines = [json.dumps({"text": f"the ship number {n} was white"}) for n in range(120)]
    (corpus / "a.jsonl").write_text("\n".join(lines[:60]))
    bad, whole = corpus / "b.jsonl", "\n".join(lines[60:])
    bad.write_text(whole[:-20] + 20 * "#")
    options = ["data.stream_parts=1", "data.shuffle_buffer=1", f"data.num_workers={workers}"]
    said = broken(tmp_path, capfd, *options)
    assert "data: cannot read DIR/corpus/b.jsonl after row 0 (" in said
    assert said.endswith("Check that it is complete.")
    run = tmp_path / "run"
    step = max(int(path.name[5:]) for path in (run / "checkpoints").glob("step_*"))
    assert step >= 10
    assert meta(step_of(run, step))["loader"]["samples"] == 4 * step
    bad.write_text(whole)
    assert worker.main([str(run)]) == 0
    assert max(logged(run, "train/loss")) == 40
    again = train(tmp_path / "again", corpus, "train.max_steps=40", *options)
    assert logged(run, "train/loss") == logged(again, "train/loss")
