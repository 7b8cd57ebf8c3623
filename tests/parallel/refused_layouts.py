"""The layouts that no run can have, each with the rule that says why."""

from __future__ import annotations

from dataclasses import dataclass

from parity_cases import layout_of


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A layout that cannot hold, and the rule that says why."""

    name: str
    layout: str
    rule: str
    model: str


def refused(table: str) -> list[Refused]:
    """Of lines `name | layout | rule | model`."""
    found = []
    for line in table.strip().splitlines():
        name, layout, rule, model, *_ = [*map(str.strip, line.split("|")), ""]
        case = Refused(
            name=name, layout=layout_of(layout), rule=f"parallel.{rule}", model=model or "llama"
        )
        found.append(case)
    return found


REFUSED = refused("""
tp2 of three heads | tp=2 | tp_divides | llama, odd sizes
tp4 with 6 heads of keys | tp=4 model.dim=48 model.n_heads=12 model.n_kv_heads=6 | tp_divides
tp2 of an odd feed-forward width | tp=2 model.ffn_hidden_dim=53 | tp_divides
tp2 without loss parallel, chunked | tp=2 loss_parallel=false chunked | tp_loss
cp2 of 15 tokens | cp=2 train.seq_len=15 | seq_len
cp4 ulysses of 2 heads of keys | cp=4 ulysses | ulysses_heads
pp4 of three blocks | pp=4 | pp_layers
pp2 1f1b, fewer micro-batches than stages | pp2 pp_microbatches=1 | pp_microbatches
pp2 x fsdp2, weights freed | pp2 dp_shard=2 reshard_after_forward=always | pp_once
fsdp4, gathered again from 3 | dp_shard=4 reshard_after_forward=3 | reshard_after_forward
tp2 x fsdp4, gathered again from 2 | tp=2 dp_shard=4 reshard_after_forward=2 | reshard_after_forward
fsdp2 in symmetric memory, on CPUs | dp_shard=2 symmetric_memory=true | symmetric_memory
pp2 tied, zbv_zero_bubble | pp2 schedule=zbv_zero_bubble | pp_tied | llama, tied, 5 blocks
pp2 zbv_zero_bubble, compiled | pp2 zbv compiled | pp_zero_bubble | llama, 5 blocks
fsdp2 x ep2 | dp_shard=2 ep=2 | ep_needs_moe
cp2 of modules for further tokens | cp=2 | mtp | mtp
pp2 of modules for further tokens | pp2 | mtp | mtp
cp4 of delta nets, runs of two tokens | cp=4 | cp_recurrent | delta
cp2 of an indexer | cp=2 | cp_indexer | indexer
cp2 of memories of n-grams | cp=2 | engram | memory
pp2 of memories of n-grams | pp2 | engram | memory
pp2 of shared keys | pp2 | one_pass | gemma4, small
pp2 of shared indexers | pp2 | one_pass | shared indexer
""")
