"""The worker: exit codes, and errors that are said once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist
from run_helpers import folders, read

from forge import worker
from forge.rundir.outcome import is_lost_peer
from forge.training import build_session as sessions
from forge.training.callbacks.metrics import Logger
from forge.training.callbacks.signals import Signals


@pytest.fixture
def failing(new_run, monkeypatch) -> Callable[..., Path]:
    """A run that raises after its second update, or before the first."""

    def make(error: BaseException, step: int = 2) -> Path:
        class Failing(Signals):
            def on_start(self, loop):
                if step == 0:
                    raise error

            def on_step_end(self, loop, output):
                if loop.state.step == step:
                    raise error

        monkeypatch.setattr(sessions, "Signals", Failing)
        return new_run()

    return make


def test_a_mistake_of_the_user_is_said_without_a_traceback(failing, capsys):
    said = "data.path=x: line 3 is no JSON"
    path = failing(ValueError(said))
    assert worker.main([str(path)]) == 2
    again = f"the run continues with: python -m forge.resume {path}"
    place = f"(the traceback is in {path}/error.json; {again})"
    assert capsys.readouterr().err == f"\n{said}\n{place}\n"
    error = read(path / "error.json")
    assert (error["type"], error["message"], error["rank"]) == ("ValueError", said, 0)
    assert "in on_step_end" in error["traceback"]
    assert not (path / "result.json").exists()


def test_a_rank_gives_signs_of_life_while_it_trains(new_run, monkeypatch):
    signs = []

    class Looking(Signals):
        def on_step_end(self, loop, output):
            signs.append({path.name for path in (loop.run_dir / "alive").iterdir()})

    monkeypatch.setattr(sessions, "Signals", Looking)
    path = new_run()
    assert worker.main([str(path)]) == 0
    assert signs
    assert all(names == {"rank_0", "step_0"} for names in signs)
    assert not (path / "alive").exists()


@pytest.mark.parametrize("error", [KeyError("wk"), ValueError("not enough values to unpack")])
def test_what_fails_before_the_first_step_is_no_run_to_go_on_with(failing, capsys, error):
    """Its traceback is worth keeping, as an error that is not forge's own."""
    path = failing(error, step=0)
    for again in ("", f"; the run continues with: python -m forge.resume {path}"):
        worker.main([str(path)])
        end = f"\n(the traceback is in {path}/error.json{again})\n"
        assert capsys.readouterr().err.endswith(end)
        assert read(path / "error.json")["refused"] is False


def test_a_record_of_starts_that_cannot_be_read_is_said(new_run, capsys):
    """Also where the words of a failure depend on it."""
    path = new_run()
    (path / "attempts.jsonl").mkdir()
    assert worker.main([str(path)]) == 2
    shown = capsys.readouterr().err
    assert f"{path}/attempts.jsonl" in shown
    assert "it cannot be read: Is a directory." in shown
    assert "Traceback" not in shown
    assert read(path / "error.json")["type"] == "ConfigError"


def test_an_unexpected_error_shows_its_traceback_once(failing, capsys):
    path = failing(KeyError("wk"))
    assert worker.main([str(path)]) == 1
    shown = capsys.readouterr().err
    assert shown.count("Traceback (most recent call last)") == shown.count("KeyError: 'wk'") == 1
    assert "in on_step_end" in shown
    assert shown.startswith(read(path / "error.json")["traceback"])
    assert shown.splitlines()[-2].startswith("the run failed: KeyError")


ON_CPU = "[enforce fail at alloc_cpu.cpp:115] . DefaultCPUAllocator: can't allocate memory: you"
ON_CUDA = type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate")


@pytest.mark.parametrize("error", [MemoryError("no memory"), RuntimeError(ON_CPU), ON_CUDA])
def test_out_of_memory_says_what_to_lower(failing, capsys, error):
    assert worker.main([str(failing(error))]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(
        "\nout of memory: lower train.batch_size (train.global_batch_size keeps "
        "the batch of a step), train.seq_len or the model; train.activation_checkpointing=full and "
        f"objective.loss_fn=chunked_cross_entropy need less memory too.\n{error}"
    )
    assert "Traceback" not in shown


GLOO = (
    "[/__w/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]"
)
LOST = [
    (RuntimeError(GLOO), True),
    (RuntimeError("NCCL communicator was aborted on rank 3."), True),
    (dist.DistNetworkError("Failed to recv, got 0 bytes"), True),
    (dist.DistStoreError("wait timeout after 2000ms"), True),
    (KeyError("wk"), False),
    (ConnectionRefusedError(111, "Connection refused"), False),
    (ConnectionError("no sign of life from rank 1 of 2"), False),
]


@pytest.mark.parametrize(("error", "lost"), LOST)
def test_which_errors_only_say_that_another_rank_is_gone(error, lost):
    around = ValueError("what a callback makes of it")
    around.__cause__ = error
    assert is_lost_peer(error) is is_lost_peer(around) is lost


def test_a_directory_without_a_config_is_no_run(tmp_path, capsys):
    assert worker.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"{tmp_path} is no run directory: it has no config.yaml\n"
    assert list(tmp_path.iterdir()) == []


def test_a_signal_within_this_process(new_run, monkeypatch, capfd):
    """The step is finished and saved, handlers are put back, twice within a second is once."""
    real = Logger.on_step_end

    def signalled(self, loop, output):
        real(self, loop, output)
        if loop.state.step == 2:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)

    def handlers():
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
        return [signal.getsignal(number) for number in numbers]

    monkeypatch.setattr(Logger, "on_step_end", signalled)
    evaluated = "eval.enabled=true eval.interval=40 eval.steps=1 eval.sample_prompts=[a]"
    before, path = handlers(), new_run("train.max_steps=50", evaluated)
    assert worker.main([str(path)]) == 143
    assert handlers() == before
    result = read(path / "result.json")
    assert (result["status"], result["reason"], result["step"]) == ("stopped", "SIGTERM", 3)
    names = "train/loss train/grad_norm lr tokens skipped_steps tokens_per_second"
    assert list(result["metrics"]) == names.split(), "no evaluation"
    assert folders(path) == ["step_3"]
    assert not (path / "samples.jsonl").exists()
    assert capfd.readouterr().err.count("SIGTERM") == 1
