"""The worker: exit codes, and errors that are said once."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge import worker
from forge.training import assemble as assembling
from forge.training.signals import Signals


@pytest.fixture
def failing(
    new_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[[BaseException], Path]:
    """A run whose second update raises."""

    def make(error: BaseException) -> Path:
        class Failing(Signals):
            def on_step_end(self, loop: Any, output: Any) -> None:
                if loop.state.step == 2:
                    raise error

        monkeypatch.setattr(assembling, "Signals", Failing)
        return new_run()

    return make


def test_a_mistake_of_the_user_is_said_without_a_traceback(
    failing: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = failing(ValueError("data.path=x: line 3 is no JSON"))
    assert worker.main([str(path)]) == 2
    place = (
        f"(the traceback is in {path}/error.json; the run goes on with: "
        f"python -m forge.resume {path})"
    )
    assert capsys.readouterr().err == f"\ndata.path=x: line 3 is no JSON\n{place}\n"
    error = json.loads((path / "error.json").read_text())
    assert (error["type"], error["message"], error["rank"]) == (
        "ValueError",
        "data.path=x: line 3 is no JSON",
        0,
    )
    assert "in on_step_end" in error["traceback"]
    assert not (path / "result.json").exists()


@pytest.mark.parametrize("error", [KeyError("wk"), ValueError("not enough values to unpack")])
def test_what_fails_before_the_first_step_is_no_run_to_go_on_with(
    new_run: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
) -> None:
    """Its traceback is worth keeping, as an error that is not forge's own."""

    class Failing(Signals):
        def on_start(self, loop: Any) -> None:
            raise error

    monkeypatch.setattr(assembling, "Signals", Failing)
    path = new_run()
    for again in ("", f"; the run goes on with: python -m forge.resume {path}"):
        worker.main([str(path)])
        assert capsys.readouterr().err.endswith(
            f"\n(the traceback is in {path}/error.json{again})\n"
        )
        assert json.loads((path / "error.json").read_text())["refused"] is False


def test_an_unexpected_error_shows_its_traceback_once(
    failing: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = failing(KeyError("wk"))
    assert worker.main([str(path)]) == 1
    shown = capsys.readouterr().err
    assert shown.count("Traceback (most recent call last)") == shown.count("KeyError: 'wk'") == 1
    assert "in on_step_end" in shown
    assert shown.startswith(json.loads((path / "error.json").read_text())["traceback"])
    assert shown.splitlines()[-2].startswith("the run failed: KeyError")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no memory"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:115] . DefaultCPUAllocator: can't "
            "allocate memory: you tried to allocate 9 bytes."
        ),
        type("OutOfMemoryError", (RuntimeError,), {})(
            "CUDA out of memory. Tried to allocate 2.00 GiB."
        ),
    ],
    ids=["python", "cpu", "cuda"],
)
def test_out_of_memory_says_what_to_lower(
    failing: Callable[..., Path], capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    assert worker.main([str(failing(error))]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(
        "\nout of memory: lower train.batch_size (train.global_batch_size keeps "
        "the batch of a step), train.seq_len or the model; "
        "train.activation_checkpointing=full and "
        "objective.loss_fn=chunked_cross_entropy need less memory too.\n"
    )
    assert str(error) in shown
    assert "Traceback" not in shown


def test_a_directory_without_a_config_is_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert worker.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"{tmp_path} is no run directory: it has no config.yaml\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=lambda n: n.name)
def test_a_signal_within_this_process(
    new_run: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:
    """The step is finished and saved, handlers are put back, twice within a second is once."""
    build = assembling.Logger.on_step_end

    def signalled(self: Any, loop: Any, output: Any) -> None:
        build(self, loop, output)
        if loop.state.step == 2:
            signal.raise_signal(number)
            signal.raise_signal(number)

    monkeypatch.setattr(assembling.Logger, "on_step_end", signalled)
    before = {
        n: signal.getsignal(n)
        for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
    }
    path = new_run(
        "train.max_steps=50",
        "eval.enabled=true",
        "eval.interval=40",
        "eval.steps=1",
        "eval.sample_prompts=[a]",
    )
    assert worker.main([str(path)]) == 128 + number
    assert {n: signal.getsignal(n) for n in before} == before
    result = json.loads((path / "result.json").read_text())
    assert (result["status"], result["reason"], result["step"]) == ("stopped", number.name, 3)
    assert set(result["metrics"]) == {
        "train/loss",
        "train/grad_norm",
        "lr",
        "tokens",
        "skipped_steps",
        "tokens_per_second",
    }
    assert [p.name for p in (path / "checkpoints").iterdir()] == ["step_3"]
    assert not (path / "samples.jsonl").exists()
    assert capfd.readouterr().err.count(number.name) == 1
