"""Of all that can be called in forge and torch, which is built where, without trust."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import types
from collections.abc import Iterator

import pytest
import torch

import forge
from forge.build import locate
from forge.config import schemas
from forge.config.problems import ConfigError

OPTIMIZERS = [schema()._target_ for schema in schemas.SCHEMAS["optimizer"].values()]  # type: ignore[attr-defined]
FORGE = {
    "model": {"forge.models.decoder.Decoder"},
    "tokenizer": {
        *(
            f"forge.data.tokenizers.tokenizer.{name}"
            for name in ("train_bpe", "load_file", "byte_ids")
        ),
        "forge.data.tokenizers.ranked_bpe.train_ranks",
        "forge.data.tokenizers.sentencepiece.sentencepiece",
        "forge.data.tokenizers.tiktoken.tiktoken",
    },
    "data": {
        *(
            f"forge.data.sources.chats.{name}"
            for name in ("alpaca", "sharegpt", "chat", "formatted")
        ),
        "forge.data.sources.chat_demo.chat_demo",
        "forge.data.text.corpus.python_docs",
        "forge.data.text.corpus.python_source",
        "forge.data.text.corpus.text_files",
        "forge.data.text.mixed.mixed",
        "forge.data.sources.pairs.pairs",
        *(f"forge.data.sources.preferences.{kind}" for kind in ("preference", "chat_preference")),
        "forge.data.sources.preferences.preference_demo",
        *(f"forge.data.sources.labelled.{kind}" for kind in ("labelled", "chat_labelled")),
        *(f"forge.data.sources.prompts.{kind}" for kind in ("prompts", "sums_demo")),
        "forge.data.sources.hub.dataset",
        "forge.data.tokens.tokens.shards",
        "forge.data.tokens.tokens.synthetic",
    },
    "adapter": {
        "forge.adapters.adapter.Adapter",
        "forge.adapters.ia3.IA3",
        "forge.adapters.lora.LoRA",
        "forge.adapters.qlora.QLoRA",
    },
    "objective": {
        "forge.objectives.pretrain.Pretrain",
        "forge.objectives.sft.SFT",
        *(
            f"forge.objectives.{name.lower()}.{name}"
            for name in ("DPO", "ORPO", "SimPO", "CPO", "KTO", "GRPO", "Distill")
        ),
        "forge.objectives.reward_model.RewardModel",
    },
    "optimizer": set(OPTIMIZERS),
    "scheduler": {
        f"forge.optim.schedules.{name}"
        for name in ("none", "constant", "cosine", "linear", "wsd", "rex")
    },
    "callbacks": {
        f"forge.training.callbacks.{file}.{name}"
        for file, names in {
            "bench": "Bench",
            "diloco": "OuterStep",
            "evaluation": "Evaluation",
            "garbage": "Garbage",
            "internals": "Internals",
            "metrics": "Logger",
            "norms": "Norms",
            "profiling": "Profiler",
            "progress": "StepSigns",
            "samples": "Samples",
            "saving": "Saving",
            "signals": "Signals",
            "sparsity": "Sparsity",
            "spikes": "Spikes",
            "stragglers": "Stragglers",
            "activations": "Activations",
            "every_step": "Agreement BadSteps",
            "reference_average": "ReferenceAverage",
            "remote_copies": "RemoteCopies",
            "rollout_tables": "RolloutTables",
            "stopping": "EarlyStopping HealthCheck StopVote TimeLimit",
            "tasks": "Tasks",
            "weight_average": "WeightAverage",
        }.items()
        for name in names.split()
    }
    | {"forge.training.callback.Callback", "forge.training.replicas.replicas.Replicas"},
    "techniques": set(),
    "trackers": {
        "forge.trackers.csv_file.CSVFile",
        "forge.trackers.mlflow.MLflow",
        "forge.trackers.prometheus.Prometheus",
    },
    "launch": set(),
}
TORCH = {
    "model": ("torch.nn.", torch.nn.Module),
    "optimizer": ("torch.optim.", torch.optim.Optimizer),
    "scheduler": ("torch.optim.lr_scheduler.", torch.optim.lr_scheduler.LRScheduler),
}


def callables(*packages: types.ModuleType) -> Iterator[str]:
    """The path of everything that can be called in the modules of these packages, whoever defined
    it.
    """
    for package in packages:
        prefix = f"{package.__name__}."
        found = pkgutil.walk_packages(package.__path__, prefix, lambda _: None)
        for name in [package.__name__, *(module.name for module in found)]:
            with contextlib.suppress(Exception):  # some of torch need what is not installed
                members = vars(importlib.import_module(name)).items()
                yield from (f"{name}.{key}" for key, value in members if callable(value))


def may_be_built(path: str, place: str) -> bool:
    with contextlib.suppress(ConfigError):
        locate(path, path=place)
        return True
    return False


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_of_all_that_can_be_called_in_forge_and_torch_only_components_are_built():
    paths = list(callables(forge, torch.optim, torch.nn))
    assert len(paths) > 5000
    for place, components in FORGE.items():
        package, base = TORCH.get(place, ("-", type(None)))
        built = {path for path in paths if may_be_built(path, place)}
        theirs = {path for path in built if path.startswith(package)}
        assert built - theirs == components
        for path in theirs:
            found = locate(path, path=place)
            assert issubclass(found, base)  # type: ignore[arg-type]
            assert found.__module__.startswith(package.rstrip("."))
    assert may_be_built("torch.optim.SGD", "optimizer")
    assert may_be_built("torch.nn.Linear", "model")
