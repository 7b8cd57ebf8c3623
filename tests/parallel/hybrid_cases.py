"""Layouts of hybrid models, and of modules for further tokens, beside those of `parity_cases`."""

from __future__ import annotations

from parity_cases import cases

HYBRID_CASES = cases("""
delta nets: one device, full recompute | recompute=full | delta
delta nets: one device, selective recompute | recompute=selective | delta
delta nets: one device, compiled | compiled | delta
delta nets: fsdp2 | dp_shard=2 | delta, clipped
delta nets: tp2 | tp=2 | delta, clipped | float64
delta nets: tp2 without sequence parallel | tp=2 no_sp | delta
delta nets: tp4 with 2 key heads | tp=4 | delta
delta nets: tp2 x fsdp2 | tp=2 dp_shard=2 | delta, clipped
delta nets: pp2 | pp2 | delta
delta nets: cp2 | cp=2 | delta, in runs | float64
delta nets: cp2, contiguous parts | cp=2 cp_load_balance=false | delta, in runs
delta nets: cp2 ring | cp=2 ring | delta, in runs
delta nets: cp2 ulysses | cp=2 ulysses | delta, in runs
delta nets: cp2 x tp2 | cp=2 tp=2 | delta, in runs, clipped
delta nets: cp2 x tp2 without sequence parallel | cp=2 tp=2 no_sp | delta, in runs
delta nets: cp2 x fsdp2, full recompute | cp=2 dp_shard=2 recompute=full | delta, in runs
delta nets: cp2, selective recompute | cp=2 recompute=selective | delta, in runs
delta nets: cp2, compiled | cp=2 compiled | delta, in runs
delta nets: pp2 x cp2 | pp2 cp=2 | delta, in runs
packed: delta nets, cp2 | cp=2 | packed delta, in runs
packed: delta nets, cp2 x tp2 | cp=2 tp=2 | packed delta, in runs
delta nets: tp2, compiled | tp=2 compiled | delta
packed: delta nets, fsdp2, compiled | dp_shard=2 compiled | packed delta
packed: delta nets, tp2 | tp=2 | packed delta
packed: delta nets, pp2 | pp2 | packed delta | float64
mamba: one device, selective recompute | recompute=selective | mamba
mamba: one device, compiled | compiled | mamba
mamba: fsdp2 | dp_shard=2 | mamba
mamba: tp2 | tp=2 | mamba | float64
mamba: tp4 with 2 groups | tp=4 | mamba
mamba: pp2 | pp2 | mamba
mamba: cp2 | cp=2 | mamba | float64
mamba: cp4 | cp=4 cp_load_balance=false | mamba
mamba: cp2 x tp2 | cp=2 tp=2 | mamba
mamba: cp2, compiled, full recompute | cp=2 compiled recompute=full | mamba
packed: mamba, cp2 | cp=2 | packed mamba
short convolutions: one device, compiled | compiled | short convolutions
short convolutions: fsdp2 | dp_shard=2 | short convolutions
short convolutions: tp2 | tp=2 | short convolutions | float64
short convolutions: pp2 | pp2 | short convolutions
short convolutions: cp2 | cp=2 | short convolutions
packed: short convolutions, cp2 | cp=2 | packed short convolutions
one branch a block: one device, compiled | compiled | one branch
one branch a block: one device, selective recompute | recompute=selective | one branch
one branch a block: fsdp2 | dp_shard=2 | one branch
one branch a block: tp2 | tp=2 | one branch | float64
one branch a block: pp2 | pp2 | one branch
one branch a block: cp2 | cp=2 | one branch
indexer: one device, full recompute | recompute=full | indexer
indexer: one device, selective recompute | recompute=selective | indexer, warm-up
indexer: one device, compiled | compiled | indexer
indexer: fsdp2 | dp_shard=2 | indexer | float64
indexer: fsdp2, warm-up | dp_shard=2 | indexer, warm-up
indexer: tp2 | tp=2 | indexer | float64
indexer: tp2, warm-up | tp=2 | indexer, warm-up | float64
indexer: tp2 without sequence parallel | tp=2 no_sp | indexer
indexer: tp4 | tp=4 | indexer
indexer: tp2 x fsdp2 | tp=2 dp_shard=2 | indexer, clipped
indexer: pp2 | pp2 | indexer
indexer: tp2, mtp | tp=2 | indexer, mtp
shared indexer: one device, compiled | compiled | shared indexer
shared indexer: one device, full recompute | recompute=full | shared indexer
shared indexer: one device, selective recompute | recompute=selective | shared indexer
shared indexer: fsdp2 | dp_shard=2 | shared indexer | float64
shared indexer: fsdp2, full recompute | dp_shard=2 recompute=full | shared indexer
shared indexer: tp2 | tp=2 | shared indexer | float64
shared indexer: tp2 without sequence parallel | tp=2 no_sp | shared indexer
shared indexer: tp2 x fsdp2 | tp=2 dp_shard=2 | shared indexer
shared indexer: tp2, mtp | tp=2 | shared indexer, mtp
moba: one device, compiled | compiled | moba
moba: fsdp2 | dp_shard=2 | moba | float64
moba: tp2 | tp=2 | moba | float64
moba: tp4 | tp=4 | moba
moba: pp2 | pp2 | moba
moba: cp2 all_gather | cp=2 | moba | float64
moba: cp2 ulysses | cp=2 ulysses | moba
moba: cp2 x tp2 | cp=2 tp=2 | moba
moba: fsdp2, full recompute | dp_shard=2 recompute=full | moba
streams: one device, compiled | compiled | streams
streams: fsdp2 | dp_shard=2 | streams, clipped | float64
streams: tp2 | tp=2 | streams, clipped | float64
streams: tp2 without sequence parallel | tp=2 no_sp | streams
streams: pp2 | pp2 | streams | float64
streams: pp2 x tp2 | pp2 tp=2 | streams
streams: cp2 all_gather | cp=2 | streams
streams: cp2 ulysses | cp=2 ulysses | streams
streams: fsdp2, full recompute | dp_shard=2 recompute=full | streams
memory: one device, compiled | compiled | memory
memory: fsdp2 | dp_shard=2 | memory, streams | float64
memory: tp2 | tp=2 | memory, streams | float64
memory: tp2 without sequence parallel | tp=2 no_sp | memory
memory: tp2 x fsdp2 | tp=2 dp_shard=2 | memory
memory: fsdp2, full recompute | dp_shard=2 recompute=full | memory
shared keys: one device, compiled | compiled | gemma4, small
shared keys: one device, full recompute | recompute=full | gemma4, small
shared keys: one device, selective recompute | recompute=selective | gemma4, small
shared keys: fsdp2 | dp_shard=2 | gemma4, small, clipped | float64
shared keys: fsdp2, full recompute | dp_shard=2 recompute=full | gemma4, small
shared keys: tp2 | tp=2 | gemma4, small, clipped | float64
shared keys: tp2 without sequence parallel | tp=2 no_sp | gemma4, small
shared keys: tp4 with 2 heads of keys | tp=4 | gemma4, small
shared keys: tp2 x fsdp2 | tp=2 dp_shard=2 | gemma4, small
shared keys: cp2 all_gather | cp=2 | gemma4, small | float64
shared keys: cp2 ulysses | cp=2 ulysses | gemma4, small
shared keys: cp2 x tp2 | cp=2 tp=2 | gemma4, small
mtp: one device, compiled | compiled | mtp
mtp: fsdp2 | dp_shard=2 | mtp | float64
mtp: fsdp2, tied, chunked | dp_shard=2 chunked | mtp, tied
mtp: tp2 | tp=2 | mtp | float64
mtp: tp2 without sequence parallel | tp=2 no_sp | mtp
mtp: tp2 x fsdp2 | tp=2 dp_shard=2 | mtp, tied
packed: moba, tp2 | tp=2 | packed moba
packed: moba, cp2 all_gather | cp=2 | packed moba
packed: moba, cp2 ulysses | cp=2 ulysses | packed moba
packed: streams, tp2 | tp=2 | packed streams
packed: memory, tp2 | tp=2 | packed memory
packed: memory, fsdp2 | dp_shard=2 | packed memory
packed: shared keys, tp2 | tp=2 | packed gemma4, small
packed: shared keys, cp2 all_gather | cp=2 | packed gemma4, small
packed: mtp, tp2 | tp=2 | packed mtp
packed: indexer, fsdp2 | dp_shard=2 | packed indexer
packed: indexer, tp2 | tp=2 | packed indexer, warm-up
packed: shared indexer, tp2 | tp=2 | packed shared indexer
packed: mamba, tp2 | tp=2 | packed mamba
packed: short convolutions, tp2 | tp=2 | packed short convolutions
""")
