"""What a run sets for its process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import forge
from forge.config.root import Config
from forge.resolve.resolve import resolve
from forge.training.assemble import Parts
from forge.training.process import check_dtypes, loss_scaler, set_up


@pytest.fixture(autouse=True)
def no_cublas_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run adds to the environment is taken out again."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "x")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")


def config(*overrides: str) -> Config:
    return resolve(forge.compose(["run.device=cpu", *overrides])).config


def test_deterministic_is_set_and_taken_back() -> None:
    set_up(config("run.deterministic=true"))
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    set_up(config())
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_matmul_precision(precision: str) -> None:
    set_up(config("precision=fp32", f"precision.matmul_precision={precision}"))
    assert torch.get_float32_matmul_precision() == precision
    set_up(config("precision=bf16", f"precision.matmul_precision={precision}"))
    assert torch.get_float32_matmul_precision() == "highest"


def test_cuda_without_a_gpu_is_said_with_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    chosen = config()
    chosen.thaw()
    chosen.run.device = "cuda"
    with pytest.raises(
        ValueError, match=r"run\.device=cuda: this build of torch finds no usable GPU"
    ):
        set_up(chosen)


@pytest.mark.parametrize(("name", "scales"), [("fp32", False), ("bf16", False), ("fp16", True)])
def test_loss_scaling(name: str, scales: bool) -> None:
    scaler = loss_scaler(
        config(f"precision={name}", "precision.init_loss_scale=8").precision, torch.device("cpu")
    )
    assert scaler.is_enabled() is scales
    assert scaler.get_scale() == (8.0 if scales else 1.0)


def test_a_weight_that_is_not_fp32_is_refused_by_its_name(assembled: Callable[..., Parts]) -> None:
    model = assembled().model
    check_dtypes(model)
    model.blocks["1"].feed_forward.w_up.to(torch.bfloat16)
    with pytest.raises(TypeError) as raised:
        check_dtypes(model)
    assert str(raised.value).endswith(
        "these are not: blocks.1.feed_forward.w_up.weight (torch.bfloat16)"
    )
