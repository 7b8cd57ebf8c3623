"""Multi-token prediction: transformers' modules, a loss by a plain loop, folders in and out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from tiny_families import CASES, peer
from torch import Tensor
from transformers.modeling_layers import MtpLayer, MtpModel

from forge.config.model.mixers.mla import MLA as MLASection
from forge.config.objectives.base import Pretrain as PretrainSection
from forge.data import IGNORE_INDEX
from forge.families import folder as folders
from forge.hf.read import load_folder
from forge.hf.write import write_weights
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.models.predicting.speculate import speculate
from forge.models.sampling import generate
from forge.objectives.pretrain import Pretrain

LAYERS, SEQ, VOCAB = 3, 20, 260
FAMILIES = ("deepseek 3", "glm 4.5")
MODULES = ("enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight")


def published(case: str, place: Path) -> Path:
    """A folder of a family with a module for a further token, under its published names.

    Its block is the last of a model with one layer more.
    """
    model = peer(case)
    assert model.config.num_hidden_layers == LAYERS + 1
    model.save_pretrained(place)
    (file,) = place.glob("*.safetensors")
    tensors, drawn = load_file(file), torch.Generator().manual_seed(5)
    width = model.config.hidden_size
    for name in MODULES:
        shape = (width, 2 * width) if "proj" in name else (width,)
        values = 0.15 * torch.randn(shape, generator=drawn)
        tensors[f"model.layers.{LAYERS}.{name}"] = values if "proj" in name else 1 + values
    for copy, own in (("embed_tokens", "model.embed_tokens"), ("shared_head.head", "lm_head")):
        tensors[f"model.layers.{LAYERS}.{copy}.weight"] = tensors[f"{own}.weight"].clone()
    save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((place / "config.json").read_text())
    config |= {"num_hidden_layers": LAYERS, "num_nextn_predict_layers": 1}
    config.pop("num_mtp_layers", None)
    (place / "config.json").write_text(json.dumps(config))
    return place


def imported(place: Path) -> Decoder:
    section = folders.read_folder(place).section
    model = Decoder(section)
    load_folder(place, section, model.state_dict())
    return model.eval()


@pytest.mark.parametrize("case", FAMILIES)
def test_a_module_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    """Hidden states of an imported folder, and the folder that is written again, to the bit."""
    place = published(case, tmp_path / "theirs")
    ours = imported(place)
    assert ours.section.mtp_num_layers == 1
    main = transformers.AutoModelForCausalLM.from_pretrained(place, attn_implementation="eager")
    # The numbers of the layers of published sizes stand there.
    main._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{LAYERS}.*"]
    theirs: Any = MtpModel.from_pretrained(main.eval()).eval()
    tokens = torch.randint(VOCAB, (2, SEQ), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        states = main.model(tokens).last_hidden_state
        positions = torch.arange(SEQ - 1)[None]
        cache = transformers.DynamicCache(config=main.config)
        expected = theirs.forward_layer(
            0, states[:, :-1], positions, cache, input_ids=tokens[:, 1:]
        )
        first, further = (state.detach() for state in ours.hidden_ahead(tokens))
    torch.testing.assert_close(first, states, rtol=1e-4, atol=2e-5)
    assert expected.std() > 0.3
    torch.testing.assert_close(further[:, :-1], expected, rtol=1e-4, atol=2e-5)
    folder = folders.read_folder(place)
    assert not folder.family.unsaid(folder.section)
    assert folder.family.content(folder.section)["num_nextn_predict_layers"] == 1
    out = tmp_path / "again"
    out.mkdir()
    rows, own = folder.family.rows(folder.section), ours.state_dict()
    write_weights(out, rows, own.__getitem__, dtype=torch.float32, shard_bytes=10**9)
    before, after = (load_file(next(one.glob("*.safetensors"))) for one in (place, out))
    copies = {name for name in before if name.endswith(("shared_head.head.weight",))}
    copies.add(f"model.layers.{LAYERS}.embed_tokens.weight")
    assert before.keys() - after.keys() == copies
    assert all(torch.equal(after[name], before[name]) for name in after)


@pytest.mark.parametrize("case", ["qwen3-next", "qwen3.5 moe"])
def test_a_module_beside_the_model_is_the_layer_of_transformers(case: str, tmp_path: Path) -> None:
    """Qwen's, whose block is a layer of full attention with experts."""
    main = peer(case)
    main.save_pretrained(tmp_path / "theirs")
    full = main.config.layer_types.index("full_attention")
    layer, drawn = main.model.layers[full], torch.Generator().manual_seed(6)
    module = MtpLayer(main.config, type(layer), type(main.model.norm), full).float().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=drawn))
    (file,) = (tmp_path / "theirs").glob("*.safetensors")
    layer.load_state_dict(module.mtp_block.state_dict())
    main.save_pretrained(tmp_path / "block")  # the block under its published names
    saved = load_file(next((tmp_path / "block").glob("*.safetensors")))
    place, tensors = f"model.layers.{full}.", load_file(file)
    block = {n.removeprefix(place): x for n, x in saved.items() if n.startswith(place)}
    tensors |= {f"mtp.layers.0.{name}": x for name, x in block.items()}
    names = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc"}
    for name, published_name in (names | {"post_norm": "norm"}).items():
        tensors[f"mtp.{published_name}.weight"] = getattr(module, name).weight.detach().clone()
    save_file(tensors, file, metadata={"format": "pt"})
    ours, main = imported(tmp_path / "theirs").eval(), peer(case)
    assert ours.section.mtp_num_layers == 1
    tokens = torch.randint(VOCAB, (2, SEQ), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        states = main.model(tokens).last_hidden_state
        positions = torch.arange(SEQ - 1)[None]
        at = {"position_embeddings": main.model.rotary_emb(states[:, :-1], positions)}
        unseen = torch.full((SEQ - 1, SEQ - 1), -torch.inf).triu(1)
        at |= {"attention_mask": unseen[None, None], "position_ids": positions, "cache": None}
        embedded = main.get_input_embeddings()(tokens[:, 1:])
        expected = module(embedded, states[:, :-1], **at)
        first, further = (state.detach() for state in ours.hidden_ahead(tokens))
    torch.testing.assert_close(first, states, rtol=1e-4, atol=5e-5)
    assert expected.std() > 0.1
    torch.testing.assert_close(further[:, :-1], expected, rtol=1e-4, atol=5e-5)
    folder, out = folders.read_folder(tmp_path / "theirs"), tmp_path / "again"
    assert not folder.family.unsaid(folder.section)
    assert folder.family.content(folder.section)["mtp_num_hidden_layers"] == 1
    out.mkdir()
    rows, state = folder.family.rows(folder.section), ours.state_dict()
    write_weights(out, rows, state.__getitem__, dtype=torch.float32, shard_bytes=10**9)
    after = load_file(next(out.glob("*.safetensors")))
    assert after.keys() == tensors.keys()
    assert all(torch.equal(after[name], tensors[name]) for name in after)


def test_a_folder_whose_modules_were_not_saved_has_none(tmp_path: Path) -> None:
    """transformers states a module, and leaves it out of the weights."""
    config = CASES["glm 4.5"]()
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    stated = json.loads((tmp_path / "config.json").read_text())
    assert {"num_mtp_layers", "num_nextn_predict_layers"} & stated.keys()
    assert folders.read_folder(tmp_path).section.mtp_num_layers == 0


def batch(documents: bool) -> dict[str, Tensor]:
    drawn = torch.Generator().manual_seed(2)
    rows = torch.randint(61, (3, 19), generator=drawn)
    targets = rows[:, 1:].clone()
    targets[torch.rand(targets.shape, generator=drawn) < 0.2] = IGNORE_INDEX
    made = {"tokens": rows[:, :-1], "targets": targets}
    if documents:
        numbers = (torch.rand(targets.shape, generator=drawn) < 0.2).cumsum(1)
        targets[:, :-1][numbers[:, 1:] != numbers[:, :-1]] = IGNORE_INDEX
        made["documents"] = numbers.int()
    return made


@pytest.mark.parametrize("documents", [False, True], ids=["one document", "documents"])
@pytest.mark.parametrize("loss_fn", ["cross_entropy", "chunked_cross_entropy"])
def test_the_loss_is_that_of_a_loop(small_decoder, documents: bool, loss_fn: str) -> None:
    """Over modules, rows and positions; and the modules move the embedding's gradient."""
    model = small_decoder(mtp_num_layers=2, tie_embeddings=False).double()
    section = PretrainSection(loss_fn=loss_fn, mtp_loss_scaling_factor=0.3)
    data = batch(documents)
    losses = Pretrain(section)(model, data)
    numbers = data.get("documents", torch.zeros_like(data["tokens"]))
    beside = {"documents": data["documents"]} if documents else {}
    states = model.hidden_ahead(data["tokens"], **beside)
    sums = []
    for depth, state in enumerate(states):
        logits, total = model.logits(state), 0.0
        for row, place in [(r, p) for r in range(3) for p in range(18 - depth)]:
            target = data["targets"][row, place + depth]
            alone = len(set(numbers[row, place : place + depth + 1].tolist())) == 1
            if target != IGNORE_INDEX and alone:
                total += F.cross_entropy(logits[row, place], target).item()
        sums.append(total)
    assert min(sums) > 10
    expected = sums[0] + 0.3 / 2 * (sums[1] + sums[2])
    rel = 1e-5 if loss_fn == "chunked_cross_entropy" else 1e-10
    assert float(losses.total) == pytest.approx(expected, rel=rel)
    further = [float(losses.sums[f"mtp_loss_{depth}"]) for depth in (1, 2)]
    assert further == pytest.approx(sums[1:], rel=rel)
    losses.total.backward()
    assert all(p.grad is not None and p.grad.norm() > 0 for p in model.parameters())
    table = model.embedding.weight
    (alone,) = torch.autograd.grad(model.logits(model.hidden(data["tokens"])).sum(), table)
    assert alone.shape == table.grad.shape


def test_a_document_reads_none_before_it(small_decoder) -> None:
    """States of a document in a row are those of it alone; without modules nothing changes."""
    model = small_decoder(mtp_num_layers=2).double()
    tokens = torch.randint(61, (2, 20), generator=torch.Generator().manual_seed(3))
    numbers = torch.arange(20).ge(7).int().expand(2, 20)
    together = model.hidden_ahead(tokens, documents=numbers)
    for part, begin in ((tokens[:, :7], 0), (tokens[:, 7:], 7)):
        for depth, alone in enumerate(model.hidden_ahead(part)):
            end = part.shape[1] - depth  # after it the token between is of another document
            shared = together[depth][:, begin : begin + end]
            torch.testing.assert_close(shared, alone[:, :end], rtol=1e-10, atol=1e-12)
    plain = small_decoder().double()
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if k[:4] != "mtp."})
    assert torch.equal(plain.hidden(tokens), model.hidden(tokens))


def test_parameters_and_flops_are_those_of_the_modules(small_section) -> None:
    plain, more = (small_section(mtp_num_layers=n, tie_embeddings=False) for n in (0, 2))
    model = Decoder(more)
    assert [(n, tuple(p.shape)) for n, p in model.named_parameters()] == [
        (spec.name, spec.shape) for spec in more.tensors()
    ]
    block = plain.block_flops_per_token(plain.n_layers - 1, 16)
    one = block + 12 * plain.dim**2 + 6 * plain.vocab_size * plain.dim
    assert more.flops_per_token(16) - plain.flops_per_token(16) == 2 * one


def trained_on_a_period(model: Decoder, steps: int = 80) -> None:
    """Learn to continue 0 1 2 ... 6 0 1 ..."""
    text = torch.arange(48) % 7
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    objective = Pretrain(PretrainSection(mtp_loss_scaling_factor=1.0))
    for step in range(steps):
        rows = torch.stack([text[begin : begin + 21] for begin in (step % 7, (step + 3) % 7)])
        losses = objective(model, {"tokens": rows[:, :-1], "targets": rows[:, 1:]})
        optimizer.zero_grad()
        losses.total.backward()
        optimizer.step()


MLA = {"kv_lora_rank": 20, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8, "v_head_dim": 6}


@pytest.mark.parametrize("modules", [1, 2, 3])
@pytest.mark.parametrize("mixer", ["attention", "latents"])
def test_a_text_with_drafts_is_that_without(small_section, modules: int, mixer: str) -> None:
    """Of a model with random weights, whose drafts mostly fall, and of prompts of any length."""
    own = {} if mixer == "attention" else {"mixer": MLASection(**MLA, mla_naive_kvcache=False)}
    model = Decoder(small_section(mtp_num_layers=modules, max_seq_len=40, init_std=0.3, **own))
    init_weights(model, 4)
    model.double().eval()
    for length in (1, 2, 5):
        prompt = torch.randint(61, (1, length), generator=torch.Generator().manual_seed(length))
        expected = generate(model, prompt, 30, temperature=0.0)[0, length:].tolist()
        found = speculate(model, prompt[0].tolist(), 30, torch.device("cpu"))
        assert found.tokens == expected
        assert found.drafted > 0
        end = expected[8]
        shorter = speculate(model, prompt[0].tolist(), 30, torch.device("cpu"), ends={end})
        assert shorter.tokens == expected[: expected.index(end) + 1]


def test_drafts_of_a_learnt_text_are_all_accepted(small_section) -> None:
    """Two modules: three tokens a reading of the model."""
    model = Decoder(small_section(mtp_num_layers=2, max_seq_len=64, vocab_size=11))
    init_weights(model, 0)
    trained_on_a_period(model)
    model.eval()
    reads, read = [], model.hidden
    model.hidden = lambda *args, **options: reads.append(1) or read(*args, **options)
    found = speculate(model, [0, 1, 2, 3], 31, torch.device("cpu"))
    assert found.tokens == [n % 7 for n in range(4, 35)]
    assert found.accepted == found.drafted > 15
    assert len(reads) == 1 + 10


def test_a_model_that_cannot_forget_a_draft_is_refused(small_section) -> None:
    windows = Decoder(small_section(mtp_num_layers=1, sliding_window_size=4))
    with pytest.raises(ValueError, match="'default' see a window"):
        speculate(windows, [1], 3, torch.device("cpu"))
    with pytest.raises(ValueError, match="no modules for further tokens"):
        speculate(Decoder(small_section()), [1], 3, torch.device("cpu"))
