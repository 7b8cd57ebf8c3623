"""What run.device=mps needs, on a CPU that does as an Apple GPU would: no float64 and nothing that
torch has no Metal kernel for. It is no run on Apple silicon.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torchgen
import yaml
from helpers.tiny import TINY
from run_helpers import logged
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import forge
from forge import cli, worker
from forge.config.optimizers.schedule_free import ScheduleFreeAdamW as Section
from forge.models import mla, sdpa
from forge.models.sdpa import causal_attention, written_out
from forge.optim.schedule_free import ScheduleFreeAdamW
from forge.resolve.resolve import resolve
from forge.rundir import directory
from forge.tensors import wide
from forge.training import loaded, process
from forge.training.callbacks import metrics
from forge.training.loop import Clock

DEFAULT = "model.n_layers=2 eval.enabled=true eval.interval=3 eval.steps=2 eval.sample_tokens=4"
SAVED = "checkpoint.interval=3 checkpoint.async_mode=async train.grad_clip_norm=0.5"
KINDS = {
    "default": "",
    "adamw": "optimizer=adamw optimizer.lr=0.001 train.skip_step_on_spikes=true",
    "schedule_free": "optimizer=schedule_free_adamw optimizer.lr=0.001",
    "gqa_windows": "model.n_heads=4 model.n_kv_heads=2 model.sliding_window_size=8",
    "documents": "data.pack_sequences=true",
    "moe": "model.moe.num_experts=4 model.moe.top_k=2 model.moe.gradient_scale=true",
}
ON_EVERY_DEVICE = {"CompositeExplicitAutograd", "CompositeImplicitAutograd"}


def metal() -> set[str]:
    """The operations that torch's own table of kernels has for MPS, or for every device."""
    table = Path(torchgen.__path__[0]) / "packaged/ATen/native/native_functions.yaml"
    entries = yaml.load(table.read_text(), Loader=yaml.CSafeLoader)
    keys: dict[str, set[str]] = {}
    delegates: dict[str, str] = {}
    for entry in entries:
        name = entry["func"].partition("(")[0]
        listed = entry.get("dispatch", {"CompositeImplicitAutograd": ""})
        keys[name] = {key.strip() for each in listed for key in each.split(",")}
        delegates[name] = entry.get("structured_delegate", name)
    there = {"MPS", "CompositeExplicitAutogradNonFunctional", *ON_EVERY_DEVICE}
    return {name for name in keys if (keys[name] | keys[delegates[name]]) & there}


class AppleGPU(TorchDispatchMode):
    """Fails on what an Apple GPU does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.known, self.seen = metal(), set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        name += f".{func._schema.overload_name}" if func._schema.overload_name else ""
        self.seen.add(name)
        assert func.namespace != "aten" or name in self.known, f"{name} is not there on MPS"
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float64:
                # The first window of spikes and the numbers that texts are drawn by are made on the
                # host, and come to the device in fp32.
                on_host = ("full", "rand.generator", "_to_copy")
                assert name in on_host, f"{name} of float64 tensors"
        return result


@pytest.fixture
def apple(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AppleGPU]:
    """From the call on, a CPU does as an Apple GPU."""

    def begin() -> AppleGPU:
        monkeypatch.setattr(wide, "WITHOUT_FLOAT64", ("cpu", "mps"))
        monkeypatch.setattr(sdpa, "WRITTEN_OUT", ("cpu", "mps"))
        monkeypatch.setattr(mla, "WRITTEN_OUT", ("cpu", "mps"))
        return AppleGPU()

    return begin


@pytest.mark.ci("default")
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_takes_what_is_there_and_learns_the_same(
    kind: str, tmp_path: Path, text_file: Path, apple: Callable[[], AppleGPU]
) -> None:
    """Trained, evaluated, saved, gone on with from the middle, sampled from: as a run without."""
    words = f"{DEFAULT} {SAVED} {KINDS[kind]} data=text data.path={text_file} run.inline=true"

    def new(name: str) -> Path:
        resolution = cli.resolved([*TINY, *words.split(), f"run.dir={tmp_path / name}"])[1]
        return directory.create(resolution, overrides=[])[0]

    usual, path = new("usual"), new("apple")
    assert worker.main([str(usual)]) == 0
    with apple() as device:
        assert worker.main([str(path)]) == 0
        for name in ("result.json", "checkpoints/step_6"):
            (path / name).rename(path / f"{Path(name).name}.before")
        assert worker.main([str(path)]) == 0
        written = forge.load(path).generate("the sea", max_new_tokens=8)
    for key in ("train/loss", "train/grad_norm", "eval/loss"):
        ours, theirs = logged(path, key), logged(usual, key)
        assert ours.keys() == theirs.keys()
        assert list(ours.values()) == pytest.approx(list(theirs.values()), rel=1e-5)
    assert written == forge.load(usual).generate("the sea", max_new_tokens=8)
    assert {"_safe_softmax", "_softmax"} & device.seen
    assert "searchsorted.Tensor" in device.seen


@pytest.mark.parametrize("case", ["causal", "past", "window", "documents", "narrow", "all"])
def test_attention_that_is_written_out_is_that_of_torch(case, monkeypatch) -> None:
    """With its gradients, in float64, of queries and keys that are views."""
    torch.manual_seed(0)
    n, width = (3 if case == "past" else 7), (4 if case == "narrow" else 8)
    q = torch.randn(2, n, 4, 8, dtype=torch.float64, requires_grad=True)
    k = torch.randn(2, 7, 2, 8, dtype=torch.float64, requires_grad=True)
    v = torch.randn(2, 7, 2, width, dtype=torch.float64, requires_grad=True)
    how = {"window": 3 if case == "window" else 0, "scale": 0.3, "seen": None}
    if case == "documents":
        seen = torch.ones(7, 7, dtype=torch.bool).tril()
        seen[4:, :4] = False
        how["seen"] = torch.zeros(2, 1, 7, 7, dtype=torch.float64).masked_fill(~seen, -math.inf)

    def found(*, written: bool) -> list[torch.Tensor]:
        monkeypatch.setattr(sdpa, "WRITTEN_OUT", ("cpu",) if written else ())
        views = [x.transpose(1, 2) for x in (q, k, v)]
        if case != "all":
            out = causal_attention(*views, "auto", **how)
        elif written:
            out = written_out(*views)
        else:
            out = torch.nn.functional.scaled_dot_product_attention(*views, enable_gqa=True)
        return [out, *torch.autograd.grad(out.square().sum(), (q, k, v))]

    for ours, theirs in zip(found(written=True), found(written=False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_kernel_by_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.sdpa_backend='flash': on an Apple GPU attention"):
        sdpa.check_backend("flash", "mps", torch.float32)


def test_a_sum_in_float64_goes_on_in_float32(apple) -> None:
    weight = torch.nn.Parameter(torch.ones(2))

    def stepped() -> ScheduleFreeAdamW:
        optimizer = ScheduleFreeAdamW([{"params": [weight]}], Section(lr=0.1, weight_decay=0.0))
        weight.grad = torch.ones(2)
        optimizer.step()
        return optimizer

    before = stepped()
    apple()
    after = stepped()
    after.load_state_dict(before.state_dict())
    assert before.state[weight]["weight_sum"].dtype == torch.float64
    assert after.state[weight]["weight_sum"].dtype == torch.float32
    assert float(after.state[weight]["weight_sum"]) == pytest.approx(
        float(before.state[weight]["weight_sum"])
    )


def test_the_device_is_there_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve(forge.compose(["run.device=cpu"])).config
    config.thaw()
    config.run.device = "mps"
    with pytest.raises(ValueError, match=r"run\.device=mps: this build of torch finds no usable"):
        process.set_up(config)
    with pytest.raises(ValueError, match=r"device='mps': torch finds no such Apple GPU"):
        loaded.chosen_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert process.set_up(config) == loaded.chosen_device("mps:0") == torch.device("mps", 0)
    assert process.loss_scaler(config.precision, torch.device("mps")).is_enabled() is False


def test_a_run_of_an_apple_gpu_is_loaded_where_there_is_none(tiny_run: Path) -> None:
    for file in tiny_run.rglob("config.yaml"):
        text = file.read_text()
        assert "device: cpu" in text
        file.write_text(text.replace("device: cpu", "device: mps"))
    for file in tiny_run.rglob("meta.json"):  # as a checkpoint of before its hashes
        about = json.loads(file.read_text())
        del about["checksum"], about["sha256"]
        file.write_text(json.dumps(about))
    assert forge.load(tiny_run).device.type == "cpu"


def test_what_is_timed_and_measured_is_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append(True))
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 1 << 30)
    with Clock(torch.device("mps", 0)).paused():
        assert waited == [True]
    assert metrics.peak_memory(torch.device("mps", 0)) == 1 << 30
