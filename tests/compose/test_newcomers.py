"""What who comes from another framework types first."""

from __future__ import annotations

import functools
import re

import pytest
from helpers.refusing import only, problems

from forge.compose.aliases import ALIASES, BY_VALUE, HINTS
from forge.compose.composition import compose
from forge.compose.hydra_adapter import CONF
from forge.compose.seed_keys import seed_rows
from forge.compose.unknown import Keys
from forge.config import schemas
from forge.config.problems import Problem

CHAT = ["data=chat", f"data.path={__file__}", "objective=sft"]
KEYS = {key for key, *_ in schemas.walk_options()}
SAMPLE = {
    "objective": "pretrain",
    "adapter": "lora",
    "train.compile_backend": "eager",
    "data.val_fraction": "0.1",
    "adapter=lora": "true",
    "adapter=lora adapter.dora=": "true",
    "adapter=lora adapter.rank_stabilized=": "true",
    "data.pin_memory": "true",
    "run.deterministic": "true",
    "eval.at_start": "true",
    "eval.metric": "loss",
    "parallel.ep": "1",
    "train.max_tokens": "1000000",
    "scheduler": "cosine",
    "optimizer": "lion",
    "adapter=lora adapter.dropout=": "0.1",
    "adapter=lora adapter.target_modules=": "[wq,wv]",
    "optimizer=adamw optimizer.eps=": "1e-7",
    "model": "small",
    "model.dim": "64",
    "data=text data.path=": __file__,
    "precision.mixed_precision": "fp32",
    "train.global_batch_tokens": "1024",
    "data=hf data.hf_dataset_name=": "my/data",
    "parallel.cpu_offload": "true",
    "adapter=lora adapter.modules_to_save=": "[norm]",
    "adapter=qlora adapter.double_quantization=": "true",
    "scaling=depth scaling.target_flops=": "1e17",
}


def test_what_newcomers_type_is_answered_with_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")  # no login is needed
    typed = {word: SAMPLE.get(ours, "2") for word, ours in ALIASES.items()}
    assert len({*typed, *HINTS}) <= 250, "the words that many type; the rest is in options.md"
    composition = compose([])
    keys = Keys(composition.tree, composition.library)
    for word, value in typed.items():
        unknown = keys.unknown(word, value)
        assert unknown is not None, word
        words = unknown[1].partition("did you mean ")[2].partition("?")[0].split()
        assert words, word
        assert faults(*words) == [], word


@functools.cache
def faults(*words: str) -> list[Problem]:
    """What is refused of them."""
    found = problems(words, gpus=2, apple="run.device=mps" in words, as_point=True)
    return [problem for problem in found if not problem.warning]


@pytest.mark.parametrize(
    ("word", "value", "ours"),
    [(word, value, ours) for word, by in BY_VALUE.items() for value, ours in by.items()],
)
def test_a_value_of_theirs_is_answered_with_what_composes(
    word: str, value: str, ours: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    chosen = CHAT if ours.startswith("data.train_on") else []
    assert only([*chosen, f"{word}={value}"], as_point=True).fix == f"did you mean {ours}?"
    if " data=" in ours:
        chosen = [f"data.path={__file__}", "tokenizer=bytes"]
    assert faults(*chosen, *ours.split()) == []


def test_hints_name_what_exists() -> None:
    mentioned = re.compile(r"(?<![\w.])((?:[a-z]\w*\.)+\w+|[a-z]\w*(?==[a-z]))(?:=([a-z]\w*))?")
    for word, hint in HINTS.items():
        for key, choice in mentioned.findall(re.sub(r"forge\.\w+", "", hint)):
            file = CONF / key / f"{choice}.yaml"
            assert key in KEYS or file.is_file(), (word, key)


def test_every_key_of_the_seeds_is_answered_with_what_exists() -> None:
    """Each is answered by its own row, or by a word that many tools share."""
    composition = compose([])
    keys = Keys(composition.tree, composition.library)
    groups = set(schemas.sections())
    for key, (ours, _) in seed_rows().items():
        group, _, choice = ours.partition("=")
        assert ours in KEYS | groups or (CONF / group / f"{choice}.yaml").is_file(), key
        unknown = keys.unknown(key, "2")
        if unknown is not None and key not in ALIASES and key.rpartition(".")[2] not in ALIASES:
            assert ours in unknown[1] or key.rpartition(".")[2] in HINTS, (key, unknown)


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("optimizer.name=adamw", "optimizer=adamw"),
        ("logger=wandb", "metrics.enable_wandb=true"),
        ("report_to=tensorboard", "metrics.enable_tensorboard=true"),
        ("ckpt_path=last.pt", "python -m forge.resume"),
        ("trainer.devices=2", "run.num_processes=2"),
        ("trainer.max_epochs=2", "train.max_epochs=2"),
        ("depth=20", "scaling=depth scaling.depth=20"),
        ("--depth=20", "scaling=depth scaling.depth=20"),
        ("--device-batch-size=4", "train.batch_size=4"),
        ("per_device_batch_size=4", "train.batch_size=4"),
        ("lora.rank=8", "adapter=lora adapter.rank=8"),
        ("lora_r=8", "adapter=lora adapter.rank=8"),
        ("lora_alpha=16", "adapter=lora adapter.alpha=16"),
        ("target_modules=[wq]", "adapter=lora adapter.target_modules=[wq]"),
        ("max_tokens=1000", "train.max_tokens=1000"),
        ("--num-tokens=1000", "train.max_tokens=1000"),
        ("trainer.max_tokens=1000", "train.max_tokens=1000"),
        ("train_tokens=1000", "train.max_tokens=1000"),
        ("tokens_per_param=20", "train.tokens_per_parameter=20"),
        ("learning_rate=1e-3", "optimizer.lr=1e-3"),
        ("max_length=512", "train.seq_len=512"),
        ("num_train_epochs=3", "train.max_epochs=3"),
        ("logging_steps=5", "metrics.log_interval=5"),
        ("train_on_inputs=false", "data.train_on=responses"),
        ("beta=0.1", "objective.beta=0.1, with objective=dpo"),
        ("optimizer.beta=0.9", "its options: lr"),
        ("optim=paged_adamw_8bit", "did you mean optimizer=adamw_low_bit?"),
        ("optimizer=adamw_torch", "did you mean optimizer=adamw_finetune?"),
        ("model_name_or_path=org/name", "did you mean model=hf model.path=org/name?"),
        ("model_name_or_path=small", "did you mean model=small?"),
        ("modules_to_save=[lm_head]", "adapter=lora adapter.modules_to_save=[output]"),
        ("lora_alpha=32", "adapter=lora adapter.alpha=32"),
        ("adapter.r=8", "adapter=lora adapter.rank=8"),
        ("assistant_only_loss=true", "data.train_on=responses"),
        ("packing=true", "data.packing"),
        ("packing=false", "data.pack_sequences=true data.packing=none"),
        ("cutoff_len=1024", "train.seq_len=1024"),
        ("finetuning_type=lora", "did you mean adapter=lora?"),
        ("finetuning_type=full", "did you mean adapter=none?"),
        ("stage=sft", "did you mean objective=sft?"),
        ("stage=pt", "did you mean objective=pretrain?"),
        ("lora_target=q_proj", "adapter=lora adapter.target_modules=[wq]"),
        ("lora_target=all", "did you mean adapter=lora?"),
        ("load_in_8bit=true", "adapter=qlora adapter.base_format=int8"),
        ("per_device_train_batch_size=4", "train.batch_size=4"),
        ("gradient_accumulation_steps=4", "train.grad_accum_steps=4"),
        ("lr_scheduler_type=cosine", "scheduler=cosine"),
        ("pref_beta=0.1", "objective.beta=0.1, with objective=dpo"),
        ("neftune_noise_alpha=5", "objective.neftune_alpha=5, with objective=sft"),
        ("lora_attn_modules=['q_proj','output_proj']", "adapter.target_modules=[wq,wo]"),
        ("base_emb_dim=64", "did you mean model.dim=64?"),
        ("ici_tensor_parallelism=2", "did you mean parallel.tp=2?"),
        ("distributed.tp=2", "did you mean parallel.tp=2?"),
        ("prometheus_port=9000", "it is a choice of tracker here, like +tracker=prometheus"),
        ("hf_path=my/data", "it is data.hf_dataset_name here; choose data=hf"),
    ],
)
def test_a_key_of_another_tool_gets_ours_with_its_value(typed: str, suggested: str) -> None:
    assert suggested in only([typed], as_point=True).fix


def test_an_adapter_that_was_chosen_stays() -> None:
    fix = only(["adapter=qlora", "lora_r=8"], as_point=True).fix
    assert fix == "did you mean adapter.rank=8?"
