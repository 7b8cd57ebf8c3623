"""The layouts that must equal one device, each with a model of `parity_models`."""

from __future__ import annotations

from dataclasses import dataclass

SHORT = {
    "pp2": "parallel.pp=2 train.batch_size=8 parallel.pp_microbatches=4",
    "chunked": "objective.loss_fn=chunked_cross_entropy objective.ce_chunk_size=5",
    "compiled": "train.compile_model=true train.compile_backend=aot_eager",
    "no_sp": "parallel.sequence_parallel=false",
    "ulysses": "parallel.cp_method=ulysses",
    "ring": "parallel.cp_method=ring",
    "gathered": "parallel.ep_method=all_gather",
    "overlap": "parallel.ep_overlap_degree=2",
    "offload": "parallel.cpu_offload=true",
    "ddp": "parallel=ddp",
    "zero1": "parallel=zero1",
    "zbv": "parallel.pp_schedule=zbv_zero_bubble",
    "fused": "model.fused_qkv=true model.fused_gate_up=true",
    "hsdp": "parallel.dp_shard=2 parallel.dp_replicate=2",
}
OPTIONS = {
    "batch": "train.batch_size",
    "recompute": "train.activation_checkpointing",
    "every": "train.recompute_every",
    "reshard": "parallel.reshard_after_forward",
    "schedule": "parallel.pp_schedule",
}


def layout_of(words: str) -> str:
    """Overrides. SHORT and OPTIONS abbreviate; other words without a dot are of `parallel`."""
    found = []
    for word in words.split():
        key, _, value = word.partition("=")
        full = OPTIONS.get(key, key if "." in key else f"parallel.{key}")
        found.append(SHORT.get(word) or f"{full}={value}")
    return " ".join(found)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A layout, as overrides of one side, and the model it is tried on.

    formats: that `make test` tries it in; `make nightly` tries all.
    """

    name: str
    layout: str
    model: str
    formats: tuple[str, ...]


def cases(table: str) -> list[Case]:
    """Of lines `name | layout | model | formats`; without a model it is llama."""
    found = []
    for line in table.strip().splitlines():
        name, layout, model, formats, *_ = [*map(str.strip, line.split("|")), "", ""]
        case = Case(
            name=name,
            layout=layout_of(layout),
            model=model or "llama",
            formats=tuple(formats.split()),
        )
        found.append(case)
    return found


CASES = cases("""
one device, one micro-batch | batch=8
one device, full recompute | recompute=full | | float64
one device, selective recompute of every second block | recompute=selective every=2
one device, chunked cross-entropy | chunked | llama, z-loss, clipped
one device, compiled | compiled | | float64
ddp2 | ddp | | float64
ddp2, gpt2 | ddp | gpt2
fsdp2 | dp_shard=2 | llama, odd sizes | float64
fsdp2, tied | dp_shard=2 | llama, tied
fsdp2, z-loss, clipped | dp_shard=2 | llama, z-loss, clipped
fsdp2, kinds of layers | dp_shard=2 | kinds
tp2, norms on both sides | tp=2 | gemma
tp2 without sequence parallel, norms on both sides | tp=2 no_sp | gemma
tp2, norms after | tp=2 | post-norms
pp2, kinds of layers | pp2 | kinds
cp2, kinds of layers | cp=2 | kinds
cp2 ulysses, kinds of layers | cp=2 ulysses | kinds
tp2, capped logits | tp=2 | capped logits
tp2, capped logits, chunked cross-entropy | tp=2 chunked | capped logits
cp2, capped logits | cp=2 | capped logits
pp2, capped logits | pp2 | capped logits
pp2, capped logits, chunked cross-entropy | pp2 chunked | capped logits
fsdp2, gpt-oss | dp_shard=2 | gpt-oss
tp2, gpt-oss | tp=2 | gpt-oss
cp2, gpt-oss | cp=2 | gpt-oss | float64
pp2, gpt-oss | pp2 | gpt-oss
cp2 ulysses, gpt-oss | cp=2 ulysses | gpt-oss
fsdp2, llama4 | dp_shard=2 | llama4
tp2, llama4 | tp=2 | llama4
cp2, llama4 | cp=2 | llama4
pp2, llama4 | pp2 | llama4
cp2 ulysses, llama4 | cp=2 ulysses | llama4
fsdp2, gemma2 | dp_shard=2 | gemma2
tp2, gemma2 | tp=2 | gemma2
cp2, gemma2 | cp=2 | gemma2
pp2, gemma2 | pp2 | gemma2
cp2 ulysses, gemma2 | cp=2 ulysses | gemma2
fsdp2, olmo2 | dp_shard=2 | olmo2
tp2, olmo2 | tp=2 | olmo2
cp2, olmo2 | cp=2 | olmo2
pp2, olmo2 | pp2 | olmo2
fsdp2, qwen3-next | dp_shard=2 | qwen3-next
tp2, qwen3-next | tp=2 | qwen3-next
cp2, qwen3-next | cp=2 | qwen3-next
pp2, qwen3-next | pp2 | qwen3-next
fsdp2, nanochat | dp_shard=2 | nanochat, clipped | float64
tp2, nanochat | tp=2 | nanochat, clipped
tp2 without sequence parallel, nanochat | tp=2 no_sp | nanochat
tp4, nanochat | tp=4 | nanochat
cp2, nanochat | cp=2 | nanochat
cp2 all_gather, contiguous parts, nanochat | cp=2 cp_load_balance=false | nanochat
cp2 ulysses, nanochat | cp=2 ulysses | nanochat
cp2 x tp2, nanochat | cp=2 tp=2 | nanochat | float64
tp2 x fsdp2, nanochat | tp=2 dp_shard=2 | nanochat, clipped
cp2 x fsdp2, nanochat | cp=2 dp_shard=2 | nanochat, clipped
pp2, smeared | pp2 | smeared | float64
fsdp2, full recompute, nanochat | dp_shard=2 recompute=full | nanochat
fsdp2, selective recompute, nanochat | dp_shard=2 recompute=selective | nanochat
fsdp2, minimal recompute in host, nanochat | dp_shard=2 recompute=minimal_offloaded | nanochat
fsdp2, compiled, nanochat | dp_shard=2 compiled | nanochat
tp2, compiled, full recompute, nanochat | tp=2 compiled recompute=full | nanochat
packed: cp2 all_gather, nanochat | cp=2 | packed nanochat
packed: tp2, nanochat | tp=2 | packed nanochat
packed: fsdp2, nanochat | dp_shard=2 | packed nanochat
fsdp2, gemma4 | dp_shard=2 | gemma4
tp2, gemma4 | tp=2 | gemma4
cp2, gemma4 | cp=2 | gemma4
pp2, gemma4 | pp2 | gemma4
tp4, olmo2 | tp=4 | olmo2
tp2 without sequence parallel, olmo2 | tp=2 no_sp | olmo2
tp4, gpt-oss | tp=4 | gpt-oss
cp2 x tp2, gpt-oss | cp=2 tp=2 | gpt-oss
pp2 x tp2, llama4 | pp2 tp=2 | llama4
fsdp2, gpt-oss, compiled | dp_shard=2 compiled | gpt-oss
fsdp2, gemma2, full recompute | dp_shard=2 recompute=full | gemma2
fsdp2, gemma2, selective recompute | dp_shard=2 recompute=selective | gemma2
fsdp2, llama4, compiled | dp_shard=2 compiled | llama4
packed: cp2 all_gather, gpt-oss | cp=2 | packed gpt-oss
packed: cp2 ulysses, gpt-oss | cp=2 ulysses | packed gpt-oss
packed: cp2 all_gather, llama4 | cp=2 | packed llama4
packed: tp2, llama4 | tp=2 | packed llama4
packed: pp2, llama4 | pp2 | packed llama4
fsdp2, chunked cross-entropy | dp_shard=2 chunked | llama, z-loss, clipped
fsdp2, accumulation over 4 | dp_shard=2 batch=1 | llama, odd sizes
fsdp2, each micro-batch reduced | dp_shard=2 batch=2 reduce_gradients=micro_batch
zero1 of 2 | zero1 dp_shard=2 batch=2 | llama, clipped
fsdp2, cpu offload | dp_shard=2 offload | llama, clipped | float64
fsdp2, full recompute | dp_shard=2 recompute=full
fsdp2, selective recompute | dp_shard=2 recompute=selective
fsdp2, minimal recompute in host memory | dp_shard=2 recompute=minimal_offloaded
fsdp2, recompute of every second block | dp_shard=2 recompute=full every=2
fsdp2, compiled | dp_shard=2 compiled | | float64
fsdp2, compiled, selective recompute | dp_shard=2 compiled recompute=selective
fsdp4 | dp_shard=4 batch=2 | llama, odd sizes
fsdp4, gpt2 | dp_shard=4 batch=2 | gpt2
hsdp 2x2 | hsdp batch=2 | llama, odd sizes | float64
hsdp 2x2, clipped, cpu offload | hsdp batch=2 offload | llama, clipped
tp2 | tp=2 | | float64 float32
tp2, tied, clipped | tp=2 | llama, tied, clipped
tp2, gpt2 | tp=2 | gpt2
tp2 without sequence parallel | tp=2 no_sp
tp2 without sequence parallel, gpt2 | tp=2 no_sp | gpt2
one device, joined products, minimal recompute | fused recompute=minimal
one device, joined products, compiled, selective recompute | fused compiled recompute=selective
fsdp2, joined products, compiled | fused dp_shard=2 compiled | qwen3-next
tp2, joined products | fused tp=2 | post-norms | float64
tp2, joined products, compiled, full recompute | fused tp=2 compiled recompute=full
tp4 with 2 heads of keys, joined products | fused tp=4 | gemma4
cp2, joined products | fused cp=2 | gpt-oss
pp2, joined products, minimal recompute in host memory | fused pp2 recompute=minimal_offloaded
tp2 without loss parallel | tp=2 loss_parallel=false | llama, z-loss, clipped
tp2, chunked cross-entropy | tp=2 chunked | llama, z-loss, clipped
tp2, full recompute | tp=2 recompute=full
tp2, selective recompute | tp=2 recompute=selective
tp2, minimal recompute | tp=2 recompute=minimal
tp2, compiled | tp=2 compiled
tp4 with 2 heads of keys | tp=4
tp4 with 2 heads of keys, without sequence parallel | tp=4 no_sp
tp2 x fsdp2 | tp=2 dp_shard=2 | llama, clipped | float64
tp2 x fsdp2, gpt2 | tp=2 dp_shard=2 | gpt2
tp2 x fsdp2, cpu offload | tp=2 dp_shard=2 offload | llama, clipped
tp2 x ddp2 | tp=2 dp_replicate=2 | llama, clipped
cp2 all_gather | cp=2
cp2 all_gather, gpt2 | cp=2 | gpt2
cp2 all_gather, contiguous parts | cp=2 cp_load_balance=false
cp2 ulysses | cp=2 ulysses | | float64
cp2 all_gather, full recompute | cp=2 recompute=full
cp2 all_gather, minimal recompute | cp=2 recompute=minimal
cp2 all_gather, compiled | cp=2 compiled
cp4 all_gather | cp=4
cp4 ulysses | cp=4 ulysses | llama, 4 heads of keys
cp2 x fsdp2 | cp=2 dp_shard=2 | llama, clipped
cp2 x tp2 | cp=2 tp=2 | | float64
cp2 ulysses x tp2 | cp=2 tp=2 ulysses | llama, 4 heads of keys
pp2 gpipe | pp2 schedule=gpipe
pp2 1f1b | pp2 schedule=1f1b
pp2 interleaved_1f1b | pp2 schedule=interleaved_1f1b | llama, 5 blocks | float64
pp2 interleaved_zero_bubble | pp2 schedule=interleaved_zero_bubble | llama, 5 blocks
pp2 zbv_zero_bubble | pp2 schedule=zbv_zero_bubble | llama, 5 blocks | float64
pp2 tied | pp2 | llama, tied
pp2 tied, interleaved_1f1b | pp2 schedule=interleaved_1f1b | llama, tied, 5 blocks
pp2, z-loss, clipped | pp2 | llama, z-loss, clipped
pp2, chunked cross-entropy | pp2 chunked | llama, z-loss, clipped
pp2, accumulation over 2 | pp=2
pp2, layers 1 + 2 | pp2 pp_layers=[1,2]
pp2, full recompute | pp2 recompute=full
pp2, minimal recompute in host memory | pp2 recompute=minimal_offloaded
pp2, compiled | pp2 compiled
pp2, gpt2 | pp2 | gpt2
pp2 x fsdp2 | pp2 dp_shard=2 batch=4 | llama, clipped | float64
pp2 x fsdp2, zbv_zero_bubble | pp2 dp_shard=2 batch=4 schedule=zbv_zero_bubble | llama, 5 blocks
pp2 x tp2 | pp2 tp=2 | llama, clipped | float64
pp2 x tp2, interleaved_1f1b, gpt2 | pp2 tp=2 schedule=interleaved_1f1b | gpt2, 5 blocks
pp2 x cp2 | pp2 cp=2
pp3 of 5 blocks | pp2 pp=3 | llama, 5 blocks
pp2 x ddp2 | pp2 dp_replicate=2 batch=4 | llama, clipped
cp2 x ddp2 | cp=2 dp_replicate=2 | llama, clipped
mla: fsdp2 | dp_shard=2 | mla, clipped
mla: tp2 | tp=2 | mla, clipped | float64
mla: tp2 without sequence parallel | tp=2 no_sp | mla
mla: tp4 | tp=4 | mla
mla: cp2 all_gather | cp=2 | mla
mla: cp2 ulysses | cp=2 ulysses | mla
mla: cp2 x tp2 | cp=2 tp=2 | mla
mla: pp2 | pp2 | mla
mla: fsdp2, selective recompute | dp_shard=2 recompute=selective | mla
mla: fsdp2, compiled | dp_shard=2 compiled | mla
dropout: fsdp2, selective recompute | dp_shard=2 batch=2 recompute=selective | dropout
dropout: cp2 x tp2 | cp=2 tp=2 | dropout, gpt2
dropout: tp2 without sequence parallel | tp=2 no_sp | dropout, gpt2
dropout: tp2, full recompute, compiled | tp=2 recompute=full compiled | dropout
dropout: pp2, full recompute | pp2 recompute=full | dropout
dropout: pp2, minimal recompute in host memory | pp2 recompute=minimal_offloaded | dropout
dropout: packed, cp2 | cp=2 | packed dropout
sft: fsdp2 | dp_shard=2 batch=2 | sft
sft: tp2, chunked cross-entropy | tp=2 chunked | sft
sft: pp2 | pp2 recompute=full | sft
sft: cp2 x tp2 | cp=2 tp=2 | sft
packed: one device, full recompute | recompute=full | packed kinds
packed: one device, compiled | compiled | packed kinds
packed: fsdp2 | dp_shard=2 | packed llama, clipped
packed: fsdp2, selective recompute | dp_shard=2 recompute=selective | packed kinds
packed: tp2 | tp=2 | packed kinds | float64
packed: tp2 without sequence parallel | tp=2 no_sp | packed kinds
packed: tp2, gpt2 | tp=2 | packed gpt2
packed: cp2 all_gather | cp=2 | packed kinds
packed: cp2 all_gather, contiguous parts | cp=2 cp_load_balance=false | packed llama
packed: cp2 all_gather, gpt2 | cp=2 | packed gpt2
packed: cp2 ulysses | cp=2 ulysses | packed kinds
packed: cp2 x tp2, gpt2 | cp=2 tp=2 | packed gpt2
packed: pp2 | pp2 | packed kinds
packed: pp2 zbv_zero_bubble | pp2 schedule=zbv_zero_bubble | packed llama, 5 blocks
packed: pp2 x cp2 | pp2 cp=2 | packed llama
packed: mla, cp2 all_gather | cp=2 | packed mla
packed: mla, cp2 ulysses | cp=2 ulysses | packed mla
packed: mla, tp2 | tp=2 | packed mla
""")

ADAPTER_CASES = cases("""
lora: fsdp2 | dp_shard=2 | lora, all
lora: tp2 | tp=2 | lora, all | float64
lora: tp2 x fsdp2 | tp=2 dp_shard=2 | lora, all
lora: tp2 without sequence parallel | tp=2 no_sp | lora
lora: hsdp 2x2 | hsdp batch=2 | lora, all
lora: fsdp2, cpu offload | dp_shard=2 offload | lora, all
lora: pp2 | pp2 | lora, all
ia3: tp2 x fsdp2 | tp=2 dp_shard=2 | ia3
ia3: pp2 | pp2 | ia3
lora: pp2, zbv_zero_bubble | pp2 schedule=zbv_zero_bubble | lora, 5 blocks
lora: pp2, tied | pp2 | lora, tied
lora: cp2 | cp=2 | lora
lora: fsdp2, chunked, full recompute | dp_shard=2 chunked recompute=full | lora, all
lora: fsdp2, compiled | dp_shard=2 compiled | lora
lora: fsdp2, selective recompute | dp_shard=2 recompute=selective | lora
lora: tp2, mla | tp=2 | lora, mla
lora: tp2, delta | tp=2 | lora, delta
lora: dropped, one device, one micro-batch | batch=8 | lora, dropped
lora: dropped, tp2 x fsdp2 | tp=2 dp_shard=2 | lora, dropped
lora: dropped, tp2 without sequence parallel | tp=2 no_sp | lora, mla, dropped
lora: dropped, pp2 | pp2 | lora, dropped
lora: dropped, cp2 | cp=2 | lora, dropped
lora: dropped, fsdp2, full recompute | dp_shard=2 recompute=full | lora, dropped
lora: dropped, fsdp2, compiled | dp_shard=2 compiled | lora, dropped
lora: dora, fsdp2 | dp_shard=2 | dora
lora: dora, tp2 | tp=2 | dora
lora: dora, tp2 x fsdp2 | tp=2 dp_shard=2 | dora
lora: dora, pp2 | pp2 | dora
a part: tp2 x fsdp2 | tp=2 dp_shard=2 | a part
a part: pp2, zbv_zero_bubble | pp2 schedule=zbv_zero_bubble | a part, 5 blocks
""")

MOE_CASES = cases("""
moe: one device, full recompute | recompute=full | moe
moe: one device, selective recompute | recompute=selective | moe
moe: one device, compiled | compiled | moe
moe: fsdp2 | dp_shard=2 | moe, clipped
moe: fsdp2, capacity | dp_shard=2 | moe, capacity
moe: fsdp2, micro-batch | dp_shard=2 batch=4 | moe, micro-batch
moe: fsdp4 | dp_shard=4 batch=2 | moe
moe: hsdp 2x2 | hsdp batch=2 | moe, clipped
moe: hsdp 2x2, capacity, micro-batch | hsdp batch=2 | moe, capacity, micro-batch
moe: tp2 | tp=2 | moe, clipped
moe: tp2, deepseek | tp=2 | moe, deepseek
moe: tp2 without sequence parallel | tp=2 no_sp | moe, capacity
moe: tp2, micro-batch | tp=2 | moe, micro-batch
moe: tp2 x fsdp2 | tp=2 dp_shard=2 | moe
moe: cp2 | cp=2 | moe
moe: cp2 ulysses, micro-batch | cp=2 ulysses | moe, micro-batch
moe: cp2, capacity | cp=2 | moe, capacity
moe: cp2, capacity, micro-batch | cp=2 | moe, capacity, micro-batch
moe: ep2 | ep=2 | moe, clipped
moe: ep2, one branch a block | ep=2 | one branch, moe
moe: tp2, one branch a block | tp=2 | one branch, moe
moe: ep2, indexer | ep=2 | indexer, moe
moe: ep2, shared indexer | ep=2 | shared indexer, moe
moe: one device, compiled, branches | compiled | gemma4, moe
moe: fsdp2, branches | dp_shard=2 | gemma4, moe | float64
moe: tp2, branches | tp=2 | gemma4, moe | float64
moe: ep2, branches | ep=2 | gemma4, moe | float64
moe: ep2 x tp2, branches | ep=2 tp=2 | gemma4, moe
moe: pp2, branches | pp2 | gemma4, moe
moe: ep2, streams | ep=2 | streams, moe
moe: ep2, memory | ep=2 | memory, moe
moe: ep2, mtp | ep=2 | mtp, moe
moe: tp2, mtp | tp=2 | mtp, moe
moe: ep2, deepseek | ep=2 | moe, deepseek
moe: ep2, capacity | ep=2 | moe, capacity
moe: ep2, micro-batch | ep=2 batch=4 | moe, micro-batch
moe: ep2, capacity, micro-batch | ep=2 batch=4 | moe, capacity, micro-batch
moe: ep2, accumulation over 4 | ep=2 batch=1 | moe
moe: ep2, cpu offload | ep=2 offload | moe
moe: ep2, full recompute | ep=2 recompute=full | moe
moe: ep2, selective recompute | ep=2 recompute=selective | moe, capacity
moe: ep2, minimal recompute in host memory | ep=2 recompute=minimal_offloaded | moe
moe: ep2, compiled | ep=2 compiled | moe
moe: ep2, compiled, selective recompute | ep=2 compiled recompute=selective | moe
moe: ep4 | ep=4 batch=2 | moe, 8 experts
moe: ep4, micro-batch | ep=4 batch=2 | moe, 8 experts, micro-batch
moe: ep2 x fsdp2 | ep=2 dp_shard=2 batch=2 | moe, clipped
moe: ep2 x fsdp2, 2 experts a rank | ep=2 dp_shard=2 batch=2 | moe, 8 experts
moe: ep2 x ddp2 | ep=2 dp_replicate=2 batch=2 | moe
moe: ep2 x tp2 | ep=2 tp=2 | moe, clipped | float64
moe: ep2 x tp2, capacity | ep=2 tp=2 | moe, capacity
moe: ep2 x cp2 | ep=2 cp=2 | moe
moe: ep2 x cp2, capacity, micro-batch | ep=2 cp=2 batch=4 | moe, capacity, micro-batch
moe: pp2 | pp2 | moe, clipped
moe: pp2, interleaved_zero_bubble | pp2 schedule=interleaved_zero_bubble | moe, 5 blocks
moe: pp2, zbv_zero_bubble | pp2 schedule=zbv_zero_bubble | moe, 5 blocks
moe: pp2 x fsdp2, micro-batch | pp2 dp_shard=2 batch=1 | moe, pairs
moe: pp2 x ep2 | pp2 ep=2 batch=4 | moe, clipped | float64
moe: pp2 x ep2, capacity | pp2 ep=2 batch=4 | moe, capacity
moe: ep2 x tp2, joined products | fused ep=2 tp=2 | moe
moe: gpt-oss, fsdp2 | dp_shard=2 | moe, gpt-oss
moe: gpt-oss, tp2 | tp=2 | moe, gpt-oss
moe: gpt-oss, tp2 without sequence parallel | tp=2 no_sp | moe, gpt-oss
moe: gpt-oss, ep2 | ep=2 | moe, gpt-oss
moe: gpt-oss, ep2, capacity | ep=2 | moe, gpt-oss, capacity
moe: gpt-oss, compiled | compiled | moe, gpt-oss
moe: gpt-oss, ep2, selective recompute | ep=2 recompute=selective | moe, gpt-oss
moe: gpt-oss, ep2 x tp2 | ep=2 tp=2 | moe, gpt-oss
moe: gpt-oss, pp2 | pp2 | moe, gpt-oss
moe: lora, fsdp2 | dp_shard=2 | lora, moe
moe: lora, tp2 | tp=2 | lora, moe
moe: lora, ep2 | ep=2 | lora, moe
moe: lora, ep2 x tp2 | ep=2 tp=2 | lora, moe
moe: lora, ep2, capacity | ep=2 | lora, moe, capacity
moe: lora, ep2, compiled | ep=2 compiled | lora, moe
moe: lora, ep2, full recompute | ep=2 recompute=full | lora, moe
moe: lora, pp2 x ep2 | pp2 ep=2 batch=4 | lora, moe
moe: dora, ep2 x tp2 | ep=2 tp=2 | dora, moe
moe: dora, pp2 x ep2 | pp2 ep=2 batch=4 | dora, moe
moe: a part, ep2 | ep=2 | a part, moe
moe: beside, fsdp2 | dp_shard=2 | moe, beside
moe: beside, fsdp2, compiled | dp_shard=2 compiled | moe, beside
moe: beside, tp2 | tp=2 | moe, beside
moe: beside, ep2 | ep=2 | moe, beside
moe: beside, ep2, selective recompute | ep=2 recompute=selective | moe, beside
moe: beside, ep2 x tp2 | ep=2 tp=2 | moe, beside
mla: ep2 | ep=2 | mla, moe
mla: ep2 x tp2 | ep=2 tp=2 | mla, moe
mla: ep2, selective recompute | ep=2 recompute=selective | mla, moe
sft: moe, ep2 | ep=2 | sft, moe
dropout: moe, ep2, selective recompute | ep=2 recompute=selective | dropout, moe
dropout: moe, ep2, full recompute | ep=2 recompute=full | dropout, moe
packed: moe, ep2 | ep=2 | packed moe
packed: moe, cp2 | cp=2 | packed moe
packed: moe, ep2 x tp2 | ep=2 tp=2 | packed moe
packed: moe, pp2 | pp2 | packed moe
""")
