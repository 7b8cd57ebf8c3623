"""Runs as a person starts them: processes, signals, errors on the terminal, and the verbs that read
a run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from forge import export, generate
from forge.training.restore import load_run

SMALL = [
    "tokenizer.vocab_size=300",
    "model.vocab_size=300",
    "model.dim=32",
    "model.n_layers=2",
    "model.n_heads=2",
    "model.ffn_hidden_dim=64",
    "model.max_seq_len=64",
    "train.seq_len=16",
    "train.batch_size=4",
    "scheduler.warmup_steps=2",
    "optimizer.lr=0.01",
    "metrics.log_interval=1",
    "eval.steps=2",
    "eval.sample_prompts=[ship]",
    "eval.sample_tokens=8",
    "run.device=cpu",
    "run.num_threads=1",
]
HANGING_SAVE = (
    "import sys, time; from forge import worker; from forge.training.checkpoint import Checkpointer as C; \
C.save = lambda *a, **k: time.sleep(60); sys.exit(worker.main(sys.argv[1:]))"
)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw, words = (
        random.Random(0),
        ["the", "sea", "ship", "whale", "white", "captain", "said", "and"],
    )
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("".join(f"{i} {' '.join(draw.choices(words, k=8))}\n" for i in range(300)))
    return path


@pytest.fixture
def command(corpus: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """forge.train of a small model into tmp_path/run."""
    place = ["data=text", f"data.path={corpus}", f"run.dir={tmp_path / 'run'}"]
    return lambda *overrides: [sys.executable, "-m", "forge.train", *place, *SMALL, *overrides]


@pytest.fixture(scope="session")
def trained(
    corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> subprocess.CompletedProcess[str]:
    """A finished run by the command line; its directory is in `args`."""
    path = tmp_path_factory.mktemp("trained") / "run"
    overrides = [
        "data=text",
        f"data.path={corpus}",
        f"run.dir={path}",
        *SMALL,
        "train.max_steps=8",
        "eval.interval=4",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "forge.train", *overrides],
        capture_output=True,
        text=True,
        timeout=60,
    )
    done.args = path
    return done


def result(path: Path) -> dict[str, object]:
    return json.loads((path / "result.json").read_text())


def checkpoints(path: Path) -> list[str]:
    return sorted(p.name for p in (path / "checkpoints").iterdir())


def test_a_run_shows_what_it_does_and_ends_with_a_summary(
    trained: subprocess.CompletedProcess[str],
) -> None:
    path: Path = trained.args  # type: ignore[assignment]
    assert (trained.returncode, trained.stderr) == (0, "")
    found = result(path)
    assert (found["status"], found["reason"], found["step"], found["tokens"]) == (
        "finished",
        "end",
        8,
        8 * 4 * 16,
    )
    assert checkpoints(path) == ["step_8"]
    assert f"run directory: {path}" in trained.stdout
    assert "all steps done, after 8 steps and 512 tokens" in trained.stdout
    assert f"python -m forge.generate {path} --prompt" in trained.stdout
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "eval/loss" in line] == [4, 8]
    assert found["metrics"]["eval/loss"] == lines[-1]["eval/loss"]  # type: ignore[index]
    samples = [json.loads(line) for line in (path / "samples.jsonl").read_text().splitlines()]
    assert [(sample["step"], sample["prompt"]) for sample in samples] == [(8, "ship")]
    assert f"--- sample at step 8 ---\nship{samples[0]['text']}\n---" in trained.stdout


def test_inline_and_in_a_process_of_its_own_are_the_same_run(
    trained: subprocess.CompletedProcess[str], command: Callable[..., list[str]]
) -> None:
    from forge import train

    path: Path = trained.args  # type: ignore[assignment]
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    inline = command("train.max_steps=8", "eval.interval=4", "run.inline=true")
    assert sys.modules["forge.train"].main(inline[3:]) == 0
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    ours, theirs = (
        load_run(place).model.state_dict() for place in (Path(inline[5].partition("=")[2]), path)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert callable(train)


@pytest.fixture
def running(
    command: Callable[..., list[str]], tmp_path: Path
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A run without end that has made its first steps, in a process group of its own.

    code: Python in place of forge.train, which is given the overrides, or the run directory where
    it is a worker. in_background: as the shell of a script has a command, with SIGINT ignored.
    """
    started: list[subprocess.Popen[str]] = []

    def start(
        *overrides: str, code: str = "", in_background: bool = False
    ) -> subprocess.Popen[str]:
        endless = command(
            "train.max_steps=1000000",
            "eval.interval=1000000",
            "checkpoint.interval=1000000",
            *overrides,
        )
        if code == FROM_PYTHON:
            endless = [sys.executable, "-c", code, *endless[3:]]
        elif code:
            made = subprocess.run(
                [sys.executable, "-c", MAKE_ONLY, *endless[3:]],
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            endless = [sys.executable, "-c", code, made.stdout.strip()]
        before = signal.signal(
            signal.SIGINT, signal.SIG_IGN if in_background else signal.default_int_handler
        )
        process = subprocess.Popen(
            endless,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        signal.signal(signal.SIGINT, before)
        started.append(process)
        metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 60
        while not (metrics.exists() and metrics.read_text().count("\n") > 2):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


MAKE_ONLY = "import sys; from forge.config import cli; from forge.launch import directory; \
c, r = cli.resolved(sys.argv[1:]); print(directory.create(r, overrides=c.overrides)[0])"
FROM_PYTHON = "import sys, forge; found = forge.train(forge.compose(sys.argv[1:])); \
print(found.status, found.reason, found.step)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "to_group", "options"),
    [
        (signal.SIGTERM, False, []),
        (signal.SIGTERM, True, ["data.num_workers=2"]),
        (signal.SIGINT, True, ["data.num_workers=2"]),
    ],
    ids=["SIGTERM_to_the_parent", "SIGTERM_to_the_group", "Ctrl-C"],
)
def test_a_signal_saves_and_ends(
    running: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    number: int,
    to_group: bool,
    options: list[str],
) -> None:
    process, path = running(*options), tmp_path / "run"
    os.killpg(process.pid, number) if to_group else process.send_signal(number)
    out, err = process.communicate(timeout=30)
    name = signal.Signals(number).name
    assert process.returncode == 128 + number, err
    assert err.strip() == f"{name}: finishing this step, then saving; once more ends at once"
    found = result(path)
    assert (found["status"], found["reason"]) == ("stopped", name)
    assert checkpoints(path) == [f"step_{found['step']}"]
    assert not [
        line for line in (path / "metrics.jsonl").read_text().splitlines() if "eval/" in line
    ]  # nothing but the save
    assert f"{name}, after {found['step']} steps" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("", []),
        ("", ["run.inline=true"]),
        ("", ["parallel=fsdp", "run.num_processes=2"]),
        (FROM_PYTHON, []),
    ],
    ids=["one_rank", "inline", "two_ranks", "from_Python"],
)
def test_an_interrupt_of_the_command_alone(
    running: Callable[..., subprocess.Popen[str]], tmp_path: Path, code: str, options: list[str]
) -> None:
    """As `kill -INT` sends it, to a command that a script has started in the background."""
    process, path = running(*options, code=code, in_background=True), tmp_path / "run"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == (0 if code else 130), err
    assert err.strip() == "SIGINT: finishing this step, then saving; once more ends at once"
    found = result(path)
    assert (found["status"], found["reason"]) == ("stopped", "SIGINT")
    assert checkpoints(path) == [f"step_{found['step']}"]
    assert not code or out.endswith(f"stopped SIGINT {found['step']}\n")


@pytest.mark.slow
def test_a_second_signal_ends_at_once(
    running: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = running(code=HANGING_SAVE)
    process.send_signal(signal.SIGTERM)
    time.sleep(1.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=5)
    assert process.returncode == 130
    assert not (tmp_path / "run" / "result.json").exists()


@pytest.mark.slow
def test_a_stop_that_takes_too_long_is_ended(running: Callable[..., subprocess.Popen[str]]) -> None:
    process = running("train.shutdown_timeout_sec=0.5", code=HANGING_SAVE)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 143
    assert 0.4 < time.monotonic() - began < 5
    assert "the stop took longer than train.shutdown_timeout_sec=0.5" in err


@pytest.mark.parametrize(
    "more",
    [[], ["run.num_processes=2", "parallel=fsdp"], ["run.inline=true"]],
    ids=["alone", "two", "inline"],
)
def test_a_mistake_in_the_data_is_said_once_and_leaves_nothing(
    command: Callable[..., list[str]], tmp_path: Path, more: list[str]
) -> None:
    """Neither a run directory, nor the folders above it, nor advice to go on with what is not
    there.
    """
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "fine"}\nnot json\n')
    done = subprocess.run(
        command(f"data.path={bad}", f"run.dir={tmp_path}/new/run", *more),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (
        2,
        f"run directory: {tmp_path}/new/run\ndata: read the corpus\n",
    )
    what = f"data.path: {bad} line 2 is not JSON (Expecting value at column 1). Every line must be one JSON object."
    assert (
        done.stderr == f"\n{what}\n(nothing was trained, and the run directory is removed again)\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl"]


def test_what_was_there_before_a_refused_run_stays(
    command: Callable[..., list[str]], tmp_path: Path
) -> None:
    """A folder of the user's with a hidden file, and a run that goes on when its text has become
    bad.
    """
    text = tmp_path / "mine.txt"
    text.write_text("".join(f"{i} the sea and the ship\n" for i in range(200)))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".mine").touch()
    train = command(f"data.path={text}", "train.max_steps=2", "eval.enabled=false")
    good, bad = text.read_bytes(), b"\xff"
    text.write_bytes(bad)
    assert subprocess.run(train, capture_output=True, timeout=60).returncode == 2
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".mine"]
    text.write_bytes(good)
    assert subprocess.run(train, capture_output=True, timeout=60).returncode == 0
    text.write_bytes(bad)
    done = subprocess.run([*train, "train.max_steps=4"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    place = f"(the traceback is in {tmp_path}/run/error.json; the run goes on with: python -m forge.resume {tmp_path}/run)"
    assert done.stderr.splitlines()[-1] == place
    assert (tmp_path / "run" / "checkpoints" / "step_2").is_dir()


def test_generate_and_export_refuse_a_run_without_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb, more in ((generate, []), (export, [str(tmp_path / "weights.safetensors")])):
        assert verb.main([str(tmp_path), *more]) == 2
        assert capsys.readouterr() == (
            "",
            f"{tmp_path}: there is no complete checkpoint; give a step_N directory, or a run that has one\n",
        )
        assert verb.main([str(tmp_path / "nothing"), *more]) == 2
        assert "there is no such directory" in capsys.readouterr().err


def test_generate_continues_a_text_the_same_way_for_a_seed(
    trained: subprocess.CompletedProcess[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def text(*options: str) -> str:
        assert generate.main([str(trained.args), "--tokens", "12", *options]) == 0
        return capsys.readouterr().out

    first = text("--prompt", "the sea", "--seed", "3")
    assert first.startswith("the sea")
    assert len(first) > len("the sea\n")
    assert text("--prompt", "the sea", "--seed", "3") == first
    assert len({text("--prompt", "the sea", "--seed", str(seed)) for seed in range(3)}) > 1
    greedy = text("--prompt", "the sea", "--temperature", "0")
    assert text("--prompt", "the sea", "--temperature", "0", "--seed", "9") == greedy
    assert text("--prompt", "the sea", "--top-k", "1") == greedy
    assert text("--prompt", "the sea", "--top-p", "1e-9") == greedy
    assert text("--prompt", "ship", "--prompt", "the sea", "--temperature", "0").endswith(greedy)
    assert text()  # a new document


def test_greedy_text_is_that_of_the_likeliest_tokens(
    trained: subprocess.CompletedProcess[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = load_run(Path(trained.args))  # type: ignore[arg-type]
    tokens = run.tokenizer.encode("the sea")
    for _ in range(6):
        with torch.no_grad():
            tokens.append(int(run.model(torch.tensor([tokens]))[0, -1].argmax()))
    assert (
        generate.main(
            [str(trained.args), "--tokens", "6", "--temperature", "0", "--prompt", "the sea"]
        )
        == 0
    )
    assert capsys.readouterr().out == run.tokenizer.decode(tokens) + "\n"


def test_a_run_of_a_gpu_is_read_on_a_machine_without_one(
    trained: subprocess.CompletedProcess[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    import yaml

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    shutil.copytree(Path(trained.args) / "checkpoints" / "step_8", tmp_path / "step_8")  # type: ignore[arg-type]
    config = tmp_path / "step_8" / "config.yaml"
    plain = yaml.safe_load(config.read_text())
    plain["run"]["device"], plain["precision"]["mixed_precision"] = "cuda", "bf16"
    config.write_text(yaml.safe_dump(plain))
    meta = json.loads((tmp_path / "step_8" / "meta.json").read_text())
    meta["files"]["config.yaml"] = config.stat().st_size
    (tmp_path / "step_8" / "meta.json").write_text(json.dumps(meta))
    run = load_run(tmp_path / "step_8")
    assert run.device.type == "cpu"
    assert run.model(torch.zeros(1, 4, dtype=torch.int64)).dtype == torch.float32


def test_export_writes_the_weights_of_the_checkpoint(
    trained: subprocess.CompletedProcess[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = load_run(Path(trained.args)).model.state_dict()  # type: ignore[arg-type]
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        file = tmp_path / f"{name}.safetensors"
        assert export.main([str(trained.args), str(file), "--dtype", name]) == 0
        assert capsys.readouterr().out == f"{file}: {len(weights)} tensors of step 8 in {name}\n"
        written = load_file(file)
        assert written.keys() == weights.keys()
        assert all(
            torch.equal(written[key], value.to(dtype)) and written[key].dtype == dtype
            for key, value in weights.items()
        )
    assert (
        export.main([str(trained.args), str(tmp_path / "default.safetensors")]) == 0
    )  # checkpoint.export_dtype
    assert {tensor.dtype for tensor in load_file(tmp_path / "default.safetensors").values()} == {
        torch.bfloat16
    }
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "bfloat16.safetensors",
        "default.safetensors",
        "float32.safetensors",
    ]


def test_export_makes_the_folder_or_says_why_not(
    trained: subprocess.CompletedProcess[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert export.main([str(trained.args), str(tmp_path / "a" / "b" / "weights.safetensors")]) == 0
    assert (tmp_path / "a" / "b" / "weights.safetensors").is_file()
    (tmp_path / "file").touch()
    assert export.main([str(trained.args), str(tmp_path / "file" / "weights.safetensors")]) == 2
    assert f"{tmp_path / 'file'}" in capsys.readouterr().err

    def full(*_: object, **__: object) -> None:
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    assert export.main([str(trained.args), str(tmp_path / "weights.safetensors")]) == 2
    assert (
        "weights.safetensors cannot be written: No space left on device" in capsys.readouterr().err
    )
