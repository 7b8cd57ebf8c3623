"""`train.activation_checkpointing=auto`: the cheapest that fits, against all that there is."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from helpers.refusing import problems, resolved

from forge.config.recompute import DEVICE, Recompute
from forge.planning.activations import Activations, flops_again
from forge.planning.memory import memory_of
from forge.planning.recompute import OF_ATTENTION

SHAPE = ["model.dim=64", "model.n_layers=4", "model.n_heads=4", "model.n_kv_heads=2"]
SHAPE += ["model.ffn_hidden_dim=160", "model.vocab_size=300", "tokenizer.vocab_size=300"]
SHAPE += ["model.max_seq_len=512", "train.seq_len=512", "train.batch_size=4", "optimizer=adamw"]
SHAPE += ["run.device=cpu", "precision=fp32", "model.tie_embeddings=false"]
GIB = 1 << 30
MODE = "train.activation_checkpointing"


def needed(config: Any, table: Recompute | None = None, name: str = "custom") -> int:
    train = replace(config.train, activation_checkpointing=name, recompute=table or Recompute())
    return memory_of(replace(config, train=train)).reserved


@pytest.mark.ci("parallel.tp=2")
@pytest.mark.parametrize("layout", ["", "parallel.tp=2", "parallel.pp=2 model.n_layers=4"])
def test_no_set_of_names_that_fits_is_cheaper_by_more_than_a_tensor_of_a_block(layout: str) -> None:
    base = [*SHAPE, *layout.split()]
    plain: Any = resolved([*base, f"{MODE}=full"]).config
    least, most = needed(plain, name="full"), needed(plain, name="none")
    block = Activations(plain, plain.model).block(plain.model.kind_of(0))
    assert block is not None
    names = block.keepable()
    largest = max(one.flops for one in names.values()) * OF_ATTENTION

    def again(table: Recompute) -> float:
        """FLOPs, those of attention as long as they take."""
        kept = [name for name in names if getattr(table, name) == DEVICE]
        weight = {name: OF_ATTENTION if name == "context" else 1.0 for name in names}
        spared = (table.layers.get(name, 4) * names[name].flops * weight[name] for name in kept)
        return -sum(spared)

    tables = [
        Recompute(**dict[str, Any].fromkeys(chosen, DEVICE))
        for number in range(len(names) + 1)
        for chosen in combinations(names, number)
    ]
    sizes = [needed(plain, table, "custom" if table.given() else "full") for table in tables]
    for share in (0.1, 0.35, 0.6):
        budget = least + share * (most - least)
        config: Any = resolved([*base, f"{MODE}=auto:{budget / GIB:.9f}"]).config
        assert memory_of(config).reserved <= budget
        fitting = [again(t) for t, size in zip(tables, sizes, strict=True) if size <= budget]
        assert again(config.train.recompute) <= min(fitting) + largest
    assert resolved([*base, f"{MODE}=auto:{most / GIB + 1e-6:.9f}"]).config.train.policy.name == (
        "none"
    )


def test_where_nothing_fits_what_enters_blocks_goes_to_the_host() -> None:
    config: Any = resolved([*SHAPE, f"{MODE}=auto:0.000001"]).config
    assert config.train.policy.places == {"decoder_layer_input": "offload"}


def test_what_is_given_stays_and_the_rest_is_chosen() -> None:
    given = "train.recompute.decoder_layer_input=offload"
    plain: Any = resolved([*SHAPE, f"{MODE}=full"]).config
    found = resolved([*SHAPE, given, f"{MODE}=auto:{needed(plain, name='full') / GIB:.9f}"])
    assert found.config.train.recompute.decoder_layer_input == "offload"
    assert found.config.train.policy.by_name
    why = next(d.why for d in found.derived if d.key == MODE)
    share = flops_again(found.config) / found.config.model.flops_per_token(512)  # type: ignore
    assert f"{share:.1%} more FLOPs" in why


def test_memory_that_is_not_known_is_said() -> None:
    words = [*SHAPE, "run.device=cuda", "run.num_processes=1", f"{MODE}=auto"]
    (found,) = [p for p in problems(words, gpus=1) if p.option == MODE]
    assert found.what == "how much memory a device has, or what the layers keep, is not known."
    assert found.fix == f"{MODE}=auto:40, with the GiB of a device"
