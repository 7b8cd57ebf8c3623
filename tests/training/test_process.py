"""What a run sets for its process, and conf/debug, which turns most of it."""

from __future__ import annotations

import gc
import os

import pytest
import torch
from run_helpers import logged

import forge
from forge import worker
from forge.config.root import Config
from forge.objectives import pretrain
from forge.resolve.resolve import resolve
from forge.training.process import (
    RECORDED_TO,
    RECORDER,
    check_dtypes,
    loss_scaler,
    record_collectives,
    set_up,
)


@pytest.fixture(autouse=True)
def no_cublas_setting(monkeypatch):
    """What a run adds to the environment is taken out again."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "x")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")


def config(*overrides: str) -> Config:
    return resolve(forge.compose(["run.device=cpu", *overrides])).config


def test_deterministic_is_set_and_taken_back():
    set_up(config("run.deterministic=true"))
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    set_up(config())
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_matmul_precision(precision):
    for name, expected in (("fp32", precision), ("bf16", "highest")):
        set_up(config(f"precision={name}", f"precision.matmul_precision={precision}"))
        assert torch.get_float32_matmul_precision() == expected


def test_cuda_without_a_gpu_is_said_with_the_key(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    chosen = config()
    chosen.thaw()
    chosen.run.device = "cuda"
    with pytest.raises(ValueError, match=r"run\.device=cuda: this build of torch finds no usable"):
        set_up(chosen)


@pytest.mark.parametrize("said", [None, "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_segments_of_a_gpu_s_memory_grow_unless_the_environment_says_how(monkeypatch, said):
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    if said:
        monkeypatch.setenv(said, "max_split_size_mb:256")
    found, known = [], torch._C._accelerator_setAllocatorSettings
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", found.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    chosen = config()
    chosen.thaw()
    chosen.run.device = "cuda"
    assert set_up(chosen) == torch.device("cuda", 0)
    assert found == ([] if said else ["expandable_segments:True"])
    for settings in found:
        known(settings)  # this version of torch knows it


def test_collectives_of_several_gpus_are_recorded(monkeypatch, tmp_path):
    names = [*RECORDER, *RECORDED_TO]
    for name in names:
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    gpu, folder = torch.device("cuda", 0), tmp_path / "collectives"
    record_collectives(folder, gpu)
    monkeypatch.setenv("WORLD_SIZE", "2")
    record_collectives(folder, torch.device("cpu"))
    assert not folder.exists()
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")
    record_collectives(folder, gpu)
    assert folder.is_dir()
    assert [os.environ[name] for name in names] == ["0", "1", *[str(folder / "rank_")] * 2]


def test_garbage_is_looked_for_at_the_same_steps_on_every_rank(assembled, monkeypatch):
    loop, looked = assembled("train.gc_interval=2 train.max_steps=5"), []
    step = loop._step

    def at_work(data):
        assert not gc.isenabled()
        step(data)

    monkeypatch.setattr(loop, "_step", at_work)
    collect = gc.collect
    monkeypatch.setattr(gc, "collect", lambda *young: looked.append((loop.state.step, *young)))
    loop.run()
    monkeypatch.setattr(gc, "collect", collect)
    assert looked == [(0,), (2, 1), (4, 1)]
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assembled("train.gc_interval=0 train.max_steps=1").run()


@pytest.mark.parametrize(("name", "scale"), [("fp32", None), ("bf16", None), ("fp16", 8.0)])
def test_loss_scaling(name, scale):
    section = config(f"precision={name}", "precision.init_loss_scale=8").precision
    scaler = loss_scaler(section, torch.device("cpu"))
    assert (scaler.is_enabled(), scaler.get_scale()) == (scale is not None, scale or 1.0)


def test_a_weight_that_is_not_fp32_is_refused_by_its_name(assembled):
    model = assembled().model
    check_dtypes(model)
    model.blocks["1"].feed_forward.w_up.to(torch.bfloat16)
    with pytest.raises(TypeError, match=r"are not: blocks.1.feed_forward.w_up.weight \(torch.bf"):
        check_dtypes(model)


@pytest.mark.nightly
def test_overfit_learns_one_batch_by_heart(trained):
    losses = logged(trained("debug=overfit train.max_steps=200 train.batch_size=2"), "train/loss")
    assert losses[10] > 3
    assert losses[200] < 0.1


def test_anomaly_names_the_operation_that_makes_a_nan(new_run, monkeypatch, capsys):
    real = pretrain.cross_entropy

    def with_a_nan(logits, targets, **options):
        return real(logits + (logits * 0).sqrt(), targets, **options)

    monkeypatch.setattr(pretrain, "cross_entropy", with_a_nan)
    with pytest.warns(UserWarning, match="Error detected in MulBackward0"):
        assert worker.main([str(new_run("debug=anomaly train.max_steps=1"))]) == 1
    assert "MulBackward0" in capsys.readouterr().err
