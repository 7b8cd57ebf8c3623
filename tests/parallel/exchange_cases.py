"""Layouts of rings, and of experts that read gathered tokens, beside those of `parity_cases`."""

from __future__ import annotations

from parity_cases import cases

RING_CASES = cases("""
cp2 ring | cp=2 ring | | float64
cp2 ring, contiguous parts, kinds of layers | cp=2 ring cp_load_balance=false | kinds
cp2 ring, kinds of layers | cp=2 ring | kinds
cp4 ring | cp=4 ring
cp4 ring, kinds of layers | cp=4 ring | kinds
cp2 ring, gpt2 | cp=2 ring | gpt2
cp2 ring, gpt-oss | cp=2 ring | gpt-oss
cp2 ring, llama4 | cp=2 ring | llama4
cp2 ring, gemma2 | cp=2 ring | gemma2
cp2 ring, nanochat | cp=2 ring | nanochat
cp2 ring, full recompute | cp=2 ring recompute=full
cp2 ring, minimal recompute | cp=2 ring recompute=minimal
cp2 ring, compiled | cp=2 ring compiled
cp2 ring x fsdp2 | cp=2 ring dp_shard=2 | llama, clipped
cp2 ring x tp2 | cp=2 ring tp=2
pp2 x cp2 ring | pp2 cp=2 ring
mla: cp2 ring | cp=2 ring | mla
packed: cp2 ring, kinds of layers | cp=2 ring | packed kinds | float64
packed: cp4 ring | cp=4 ring | packed llama
packed: mla, cp2 ring | cp=2 ring | packed mla
packed: cp2 ring, gpt-oss | cp=2 ring | packed gpt-oss
lora: cp2 ring | cp=2 ring | lora
""")

REGATHERED_CASES = cases("""
fsdp2, gathered weights kept | dp_shard=2 reshard_after_forward=never
fsdp2, gathered weights kept over 4 micro-batches | dp_shard=2 batch=1 reshard=never
fsdp4, gathered again from 2 | dp_shard=4 batch=2 reshard=2 | llama, odd sizes | float64
fsdp4, gathered again from 2, compiled, two a step | dp_shard=4 batch=1 reshard=2 compiled
cp2 x fsdp2, gathered again from 2 | cp=2 dp_shard=2 reshard=2 recompute=full | llama, tied
""")

GATHERED_CASES = cases("""
moe: ep2, tokens gathered | ep=2 gathered | moe, clipped
moe: ep2, tokens gathered, rows in even shares | ep=2 gathered ep_rows_factor=1.9 | moe
moe: ep2, tokens gathered, deepseek | ep=2 gathered | moe, deepseek
moe: ep2, tokens gathered, capacity | ep=2 gathered | moe, capacity
moe: ep2, tokens gathered, micro-batch | ep=2 gathered batch=4 | moe, micro-batch
moe: ep2, tokens gathered, beside | ep=2 gathered | moe, beside
moe: ep2, tokens gathered, gpt-oss | ep=2 gathered | moe, gpt-oss
moe: ep2, tokens gathered, full recompute | ep=2 gathered recompute=full | moe
moe: ep2, tokens gathered, selective recompute | ep=2 gathered recompute=selective | moe
moe: ep2, tokens gathered, compiled | ep=2 gathered compiled | moe
moe: ep2, tokens gathered, gradients scaled | ep=2 gathered | moe, gradients scaled
moe: ep2, tokens gathered, one kernel | ep=2 gathered model.moe.kernel=auto | moe
moe: ep2, tokens gathered, one kernel, biases | ep=2 gathered model.moe.kernel=auto | moe, gpt-oss
moe: ep2, tokens gathered, one kernel, lora | ep=2 gathered model.moe.kernel=auto | lora, moe
moe: ep2, tokens gathered, one kernel, dora | ep=2 gathered model.moe.kernel=auto | dora, moe
moe: ep2 x tp2, tokens gathered | ep=2 tp=2 gathered | moe, clipped | float64
moe: ep2 x fsdp2, tokens gathered | ep=2 dp_shard=2 batch=2 gathered | moe, 8 experts
moe: ep2 x cp2, tokens gathered | ep=2 cp=2 gathered | moe
moe: ep4, tokens gathered | ep=4 batch=2 gathered | moe, 8 experts
moe: pp2 x ep2, tokens gathered | pp2 ep=2 batch=4 gathered | moe
moe: lora, ep2, tokens gathered | ep=2 gathered | lora, moe
moe: dora, ep2 x tp2, tokens gathered | ep=2 tp=2 gathered | dora, moe
""")

OVERLAPPED_CASES = cases("""
moe: ep2, in 2 parts | ep=2 overlap | moe, clipped | float64
moe: ep2, in 3 parts | ep=2 ep_overlap_degree=3 | moe, gradients scaled
moe: ep2, in 2 parts, deepseek | ep=2 overlap | moe, deepseek
moe: ep2, in 2 parts, capacity | ep=2 overlap | moe, capacity
moe: ep2, in 2 parts, capacity, micro-batch | ep=2 overlap batch=4 | moe, capacity, micro-batch
moe: ep2, in 2 parts, beside | ep=2 overlap | moe, beside
moe: ep2, in 2 parts, branches | ep=2 overlap | gemma4, moe
moe: ep2, in 2 parts, mtp | ep=2 overlap | mtp, moe
moe: ep2, in 2 parts, accumulation over 4 | ep=2 overlap batch=1 | moe
moe: ep2, in 2 parts, full recompute | ep=2 overlap recompute=full | moe
moe: ep2, in 2 parts, selective recompute | ep=2 overlap recompute=selective | moe, capacity
moe: ep2, in 2 parts, minimal in host memory | ep=2 overlap recompute=minimal_offloaded | moe
moe: ep2, in 2 parts, compiled | ep=2 overlap compiled | moe
moe: ep2, in 2 parts, compiled, selective | ep=2 overlap compiled recompute=selective | moe
moe: ep2, in 2 parts, one kernel | ep=2 overlap model.moe.kernel=auto | moe
moe: ep2, in 2 parts, gpt-oss | ep=2 overlap | moe, gpt-oss
moe: ep2, in 2 parts, cpu offload | ep=2 overlap offload | moe
moe: ep2 x tp2, in 2 parts | ep=2 tp=2 overlap | moe, clipped
moe: ep2 x tp2, in 2 parts, gpt-oss | ep=2 tp=2 overlap | moe, gpt-oss
moe: ep2 x fsdp2, in 2 parts | ep=2 dp_shard=2 batch=2 overlap | moe, clipped
moe: ep2 x cp2, in 2 parts, capacity | ep=2 cp=2 overlap | moe, capacity
moe: ep4, in 2 parts | ep=4 batch=2 overlap | moe, 8 experts
moe: pp2 x ep2, in 2 parts | pp2 ep=2 batch=4 overlap | moe
moe: pp2 x ep2, in 2 parts, zbv | pp2 ep=2 batch=4 overlap zbv | moe, 5 blocks
moe: lora, ep2, in 2 parts | ep=2 overlap | lora, moe
moe: lora, ep2 x tp2, in 2 parts | ep=2 tp=2 overlap | lora, moe
moe: dora, ep2 x tp2, in 2 parts | ep=2 tp=2 overlap | dora, moe
moe: ep2, gathered in 2 parts | ep=2 gathered overlap | moe, clipped | float64
moe: ep2, gathered in 2 parts, deepseek | ep=2 gathered overlap | moe, deepseek
moe: ep2, gathered in 3 parts, scaled | ep=2 gathered ep_overlap_degree=3 | moe, gradients scaled
moe: ep2, gathered in 2 parts, capacity | ep=2 gathered overlap | moe, capacity
moe: ep2, gathered in 2 parts, full recompute | ep=2 gathered overlap recompute=full | moe
moe: ep2, gathered in 2 parts, selective recompute | ep=2 gathered overlap recompute=selective | moe
moe: ep2, gathered in 2 parts, compiled | ep=2 gathered overlap compiled | moe
moe: ep2, gathered in 2 parts, kernel | ep=2 gathered overlap model.moe.kernel=auto | moe, gpt-oss
moe: ep2 x tp2, gathered in 2 parts | ep=2 tp=2 gathered overlap | moe
moe: ep2 x cp2, gathered in 2 parts | ep=2 cp=2 gathered overlap | moe
moe: pp2 x ep2, gathered in 2 parts | pp2 ep=2 batch=4 gathered overlap | moe
moe: lora, ep2 x tp2, gathered in 2 parts | ep=2 tp=2 gathered overlap | lora, moe
""")
