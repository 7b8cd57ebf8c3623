"""Objectives on preferences equal TRL's: loss and gradients, of the same weights and batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from forge.adapters.adapter import adapters_off
from forge.build import build
from forge.compose import composition
from forge.config.adapters.adapter import is_added
from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.objectives.preference import CPO, DPO, KTO, ORPO, Preference, SimPO
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.parallel.ranks import Ranks
from forge.training.models import build_model
from forge.training.step import look_ahead

pytestmark = pytest.mark.nightly

BETA, VOCAB, DIM, HEADS, LAYERS, FFN = 0.3, 64, 32, 4, 2, 48
WORDS = "abcdefghijklmnopqrstuvwxyz0123456789 ?!.,"
# (forge's section, TRL's trainer, its options). TRL's mean of cross-entropy is over the tokens of
# all pairs and that of ORPO counts the prompt: pairs have no prompt's tokens to count there.
CASES: dict[str, tuple[Preference, str, dict[str, Any]]] = {
    "dpo": (DPO(beta=BETA), "dpo", {"loss_type": "sigmoid"}),
    "hinge": (DPO(beta=BETA, loss_fn="hinge"), "dpo", {"loss_type": "hinge"}),
    "ipo": (DPO(beta=BETA, loss_fn="ipo"), "dpo", {"loss_type": "ipo"}),
    "orpo": (ORPO(lambda_weight=BETA), "orpo", {}),
    "simpo": (
        SimPO(beta=BETA, gamma=0.5, label_smoothing=0.1),
        "cpo",
        {"loss_type": "simpo", "simpo_gamma": 0.5, "cpo_alpha": 0.0, "label_smoothing": 0.1},
    ),
    "cpo": (CPO(beta=BETA, nll_weight=0.7), "cpo", {"cpo_alpha": 0.7}),
    "cpo, hinge": (
        CPO(beta=BETA, loss_fn="hinge", nll_weight=0.0),
        "cpo",
        {"loss_type": "hinge", "cpo_alpha": 0.0},
    ),
}


def rows() -> list[dict[str, str]]:
    """Of equal lengths, so that a mean over tokens is one over pairs."""
    draw = torch.Generator().manual_seed(3)

    def text(length: int) -> str:
        return "".join(WORDS[i] for i in torch.randint(26, (length,), generator=draw))

    return [{"prompt": text(5), "chosen": text(7), "rejected": text(4)} for _ in range(4)]


def labelled() -> list[dict[str, Any]]:
    """Of several lengths."""
    draw = torch.Generator().manual_seed(4)

    def text(length: int) -> str:
        return "".join(WORDS[i] for i in torch.randint(26, (length,), generator=draw))

    likes = [True, False, False, True]
    return [
        {"prompt": text(4 + n), "completion": text(9 - 2 * n), "label": liked}
        for n, liked in enumerate(likes)
    ]


def peers(seed: int) -> tuple[Decoder, Any]:
    """The same weights here and in transformers."""
    section = DecoderConfig(
        dim=DIM,
        n_layers=LAYERS,
        n_heads=HEADS,
        ffn_hidden_dim=FFN,
        vocab_size=VOCAB,
        max_seq_len=64,
    )
    ours = Decoder(section)
    init_weights(ours, seed)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.mul_(4)
    return ours, peer_of(ours)


def peer_of(ours: Any) -> Any:
    """transformers' model with its weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=DIM,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    theirs, weights = LlamaForCausalLM(shape), dict(ours.named_parameters())
    with torch.no_grad():
        for name, own in llama_tensors(theirs, lambda parameter: parameter).items():
            own.copy_(weights[name])
    return theirs


def llama_tensors(peer: Any, pick: Callable[[Any], torch.Tensor]) -> dict[str, torch.Tensor]:
    """A peer's weights or gradients under forge's names."""
    names = {f"self_attn.{each}_proj": f"attention.w{each}" for each in "qkvo"}
    names |= {f"mlp.{each}_proj": f"feed_forward.w_{each}" for each in ("gate", "up", "down")}
    names |= {"input_layernorm": "attention_norm", "post_attention_layernorm": "feed_forward_norm"}
    found = {"embedding": peer.model.embed_tokens, "norm": peer.model.norm, "output": peer.lm_head}
    for number, layer in enumerate(peer.model.layers):
        found |= {f"blocks.{number}.{ours}": layer.get_submodule(n) for n, ours in names.items()}
    return {f"{name}.weight": pick(module.weight) for name, module in found.items()}


def trainer(kind: str, options: dict[str, Any], model: Any, reference: Any, folder: Path) -> Any:
    from datasets import Dataset
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {"<pad>": 0, "</s>": 1} | {letter: 2 + n for n, letter in enumerate(WORDS)}
    raw = Tokenizer(models.WordLevel(vocab, unk_token="</s>"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="</s>", padding_side="right"
    )
    how = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "beta": BETA,
    }
    how |= {"per_device_train_batch_size": 4, "gradient_checkpointing": False, "max_length": 32}
    given: dict[str, Any] = {"model": model}
    given["train_dataset"] = Dataset.from_list(labelled() if kind == "kto" else rows())
    given["processing_class"] = tokenizer
    if kind == "dpo":
        from trl import DPOConfig as Config
        from trl import DPOTrainer as Trainer

        given["ref_model"] = reference
    elif kind == "kto":
        from trl import KTOConfig as Config
        from trl import KTOTrainer as Trainer

        given["ref_model"] = reference
    elif kind == "orpo":
        from trl.experimental.orpo import ORPOConfig as Config
        from trl.experimental.orpo import ORPOTrainer as Trainer
    else:
        from trl.experimental.cpo import CPOConfig as Config
        from trl.experimental.cpo import CPOTrainer as Trainer
    return Trainer(args=Config(**how, **options), **given)


def sides(batch: dict[str, Any]) -> Iterator[tuple[list[int], list[bool]]]:
    """Ids of each response after its prompt, chosen and rejected ones in turn, and which of them
    are of the response.
    """
    if "completion_mask" in batch:
        half = len(batch["input_ids"]) // 2
        for row in (side * half + pair for pair in range(half) for side in (0, 1)):
            there = int(batch["attention_mask"][row].sum())
            mask = batch["completion_mask"][row, :there]
            yield batch["input_ids"][row, :there].tolist(), mask.bool().tolist()
        return
    for pair in range(len(batch["chosen_input_ids"])):
        for side in ("chosen", "rejected"):
            ids, labels = (batch[f"{side}_{name}"][pair] for name in ("input_ids", "labels"))
            there = int(batch[f"{side}_attention_mask"][pair].sum())
            yield ids[:there].tolist(), (labels[:there] != -100).tolist()


def collated(batch: dict[str, Any], *, of_prompts: bool) -> dict[str, torch.Tensor]:
    """As forge has it. of_prompts: whether a prompt's tokens count too."""
    found = list(sides(batch))
    tokens = torch.zeros(len(found), 32, dtype=torch.int64)
    targets = torch.full_like(tokens, -100)
    for row, (ids, counted) in enumerate(found):
        tokens[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        kept = [i if c or of_prompts else -100 for i, c in zip(ids[1:], counted[1:], strict=True)]
        targets[row, : len(ids) - 1] = torch.tensor(kept)
    return {"tokens": tokens, "targets": targets}


@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_equal_those_of_trl(name: str, tmp_path: Path) -> None:
    section, kind, options = CASES[name]
    (ours, theirs), (reference, their_reference) = peers(0), peers(1)
    made = trainer(kind, options, theirs, their_reference, tmp_path)
    made.model.train()
    batch = next(iter(made.get_train_dataloader()))
    wanted = made.compute_loss(made.model, batch)
    wanted.backward()
    data = collated(batch, of_prompts=False)
    objective: Any = build(section, path="objective")
    if kind == "dpo":
        objective.section.reference = "copy"
        objective.models["reference"] = reference.requires_grad_(False)
    total = objective(ours, data).total / 4
    if kind == "orpo":  # whose cross-entropy is of the prompt too
        logits = ours(data["tokens"][0::2])
        whole = collated(batch, of_prompts=True)["targets"][0::2]
        nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), whole.flatten())
        own = objective.evaluate(ours, data)["nll"] / 4
        total = total + nll - own_nll(objective, ours, data)
        assert own > 0
    total.backward()
    assert total.item() == pytest.approx(wanted.item(), rel=1e-5)
    gradients_are_equal(ours, made.model)


def gradients_are_equal(ours: Decoder, theirs: Any) -> None:
    grads = dict(ours.named_parameters())
    for key, their in llama_tensors(theirs, lambda parameter: parameter.grad).items():
        own = grads[key].grad
        assert own is not None
        torch.testing.assert_close(own, their, rtol=1e-5, atol=1e-5 * float(their.abs().max()))


def mismatched(batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    """As forge has it: of each example its own row and the one that TRL made of it for the KL."""
    tokens = torch.zeros(8, 32, dtype=torch.int64)
    targets = torch.full_like(tokens, -100)
    for side, prefix in enumerate(("", "KL_")):
        for row, ids in enumerate(batch[f"{prefix}input_ids"]):
            counted = batch[f"{prefix}completion_mask"][row].bool()
            place = 2 * row + side
            tokens[place, : len(ids) - 1] = ids[:-1]
            targets[place, : len(ids) - 1] = ids[1:].where(counted[1:], -100)
    liked = batch["label"].bool().repeat_interleave(2)
    return {"tokens": tokens, "targets": targets, "liked": liked}


@pytest.mark.parametrize("seeds", [(1, 0), (0, 1)], ids=["kl", "no kl"])
def test_kto_equals_that_of_trl(seeds: tuple[int, int], tmp_path: Path) -> None:
    """Of one batch, with the mismatched responses that TRL makes of it."""
    (ours, theirs), (reference, their_reference) = peers(seeds[0]), peers(seeds[1])
    weights = {"desirable_weight": 1.3, "undesirable_weight": 0.6}
    made = trainer("kto", weights, theirs, their_reference, tmp_path)
    made.model.train()
    batch = next(iter(made.get_train_dataloader()))
    wanted = made.compute_loss(made.model, batch)
    wanted.backward()
    objective: Any = build(KTO(beta=BETA, reference="copy", **weights), path="objective")
    objective.models["reference"] = reference.requires_grad_(False)
    (ready,) = look_ahead(ours, objective, [mismatched(batch)], Ranks()).batches
    total = objective(ours, ready).total / 4
    total.backward()
    assert total.item() == pytest.approx(wanted.item(), rel=1e-5)
    found = made._metrics["train"]["kl"][-1]
    assert float(ready["kl"][0]) == pytest.approx(found, rel=1e-4, abs=1e-6)
    assert (found > 0) == (seeds == (1, 0))
    gradients_are_equal(ours, made.model)


def own_nll(objective: Any, model: Decoder, data: dict[str, torch.Tensor]) -> torch.Tensor:
    from forge.objectives.preference import pair_responses

    return -pair_responses(model, data).chosen.per_token.mean()  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["dpo", "kto"])
def test_with_adapters_they_equal_trl_with_peft(kind: str, tmp_path: Path) -> None:
    """The reference is the base under the adapters on both sides, with no second model."""
    from peft import LoraConfig, get_peft_model

    data = {"dpo": "preference", "kto": "labelled"}[kind]
    words = f"""
        objective={kind} data={data} data.path={__file__} tokenizer=file
        tokenizer.path={tmp_path / "tokenizer.json"} adapter=lora adapter.rank=4 adapter.alpha=6
        adapter.dropout=0 adapter.target_modules=[wq,wk,wv,wo]
        model=tiny model.dim={DIM} model.n_layers={LAYERS}
        model.n_heads={HEADS} model.ffn_hidden_dim={FFN} model.vocab_size={VOCAB}
        model.max_seq_len=64 model.activation=silu model.tie_embeddings=false model.qk_norm=false
        run.device=cpu objective.beta={BETA} objective.reference=adapter train.seq_len=32
    """
    vocab = {"model": {"vocab": {"a": 0, "</s>": 1}}, "added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(vocab))
    config = composition.config(words.split()).validate().config
    ours: Any = build_model(config, torch.device("cpu"), Ranks(), torch.float32)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if is_added(name):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 5)
    names = ["q_proj", "k_proj", "v_proj", "o_proj"]
    how = LoraConfig(r=4, lora_alpha=6, target_modules=names, task_type="CAUSAL_LM")
    theirs: Any = get_peft_model(peer_of(ours), how)
    places = {}
    for name, _ in ours.named_parameters():
        if is_added(name):
            _, block, _, layer, which = name.split(".")
            where = f"base_model.model.model.layers.{block}.self_attn.{layer[1:]}_proj"
            side = {"lora_a": "lora_A", "lora_b": "lora_B"}[which]
            places[name] = getattr(theirs.get_submodule(where), side)["default"].weight
    assert len(places) == 2 * 4 * LAYERS
    # Its reference is the adapter that the model came with, which begins as nothing.
    made = trainer(kind, {}, theirs, None, tmp_path)
    for name, parameter in ours.named_parameters():
        if name in places:
            places[name].data.copy_(parameter.data)
    made.model.train()
    batch = next(iter(made.get_train_dataloader()))
    wanted = made.compute_loss(made.model, batch)
    wanted.backward()
    objective: Any = build(config.objective, path="objective")
    objective.without_adapter = adapters_off
    if kind == "kto":
        (ready,) = look_ahead(ours, objective, [mismatched(batch)], Ranks()).batches
    else:
        ready = collated(batch, of_prompts=False)
    total = objective(ours, ready).total / 4
    total.backward()
    assert total.item() == pytest.approx(wanted.item(), rel=1e-5)
    for name, parameter in ours.named_parameters():
        assert (parameter.grad is not None) == (name in places)
        if name in places:
            their = places[name].grad
            assert their.abs().max() > 0
            bound = 1e-5 * float(their.abs().max())
            torch.testing.assert_close(parameter.grad, their, rtol=1e-5, atol=bound)
