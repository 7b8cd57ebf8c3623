"""The models that layouts are tried on, of tiny sizes."""

from __future__ import annotations

from types import SimpleNamespace

TOKENIZER = SimpleNamespace(eos_id=7)
"""What is asked of the tokenizer of drawn tokens."""

# Uneven where it can be: 301 rows of vocabulary, a width that is no power of two, three blocks,
# fewer heads of keys than of queries.
SIZES = (
    "tokenizer.vocab_size=300 model.vocab_size=301 model.max_seq_len=24 model.dim=40 "
    "model.n_layers=3 model.n_heads=4 model.n_kv_heads=2 model.ffn_hidden_dim=52 "
    "model.tie_embeddings=false model.init_std=0.2 train.seq_len=16 train.batch_size=4 "
    "train.global_batch_size=8 train.grad_clip_norm=0 precision=fp32 run.device=cpu"
)
SMALL = SIZES.split()

BLOCKS_5, TIED, CLIPPED = (
    "model.n_layers=5",
    "model.tie_embeddings=true",
    "train.grad_clip_norm=0.1",
)
GPT2 = (
    "model.position=learned model.norm_type=layernorm model.activation=gelu model.gated_mlp=false "
    f"model.bias=true model.qk_norm=false {TIED}"
)
# Two layers of four: narrower heads, a window shorter than a rank's part of a sequence.
KINDS = (
    "model.kinds={a:{sliding_window_size:3,head_dim:6,n_kv_heads:4,rope_theta:100}} "
    "model.layers=[a,default] model.n_layers=4"
)
# Six experts do not divide by four ranks.
MOE = (
    "num_experts=6 top_k=2 ffn_hidden_dim=20 shared_experts=1 kernel=loop bias_update_rate=0.01 "
    "aux_loss_weight=0.05 sequence_aux_loss_weight=0.02 z_loss_weight=0.01"
)
EIGHT, CAPACITY, SCOPE = "num_experts=8", "capacity_factor=1.0 gradient_scale=true", "micro_batch"
MICRO_BATCH = f"balance_scope={SCOPE} train.batch_size=8"
DEEPSEEK = (
    "router=sigmoid_topk n_routing_groups=2 routed_scaling_factor=1.5 first_num_dense_layers=1 "
    "shared_experts=2"
)
GPT_OSS = (
    "model.activation=quick_gelu model.gated_mlp=true model.mlp_activations_limit=0.3 "
    "model.mlp_up_offset=1 router_bias=true expert_bias=true"
)
BESIDE = (
    "router=sigmoid_topk norm_topk_prob=false score_on_input=true shared_hidden_dim=12 "
    "shared_expert_gate=true beside_dense=true model.mlp_bias=true"
)
MLA = (
    "+mixer@model.mixer=mla model.mixer.q_lora_rank=12 model.mixer.kv_lora_rank=14 "
    "model.mixer.qk_nope_head_dim=10 model.mixer.qk_rope_head_dim=6 model.mixer.v_head_dim=8 "
    "model.mixer.mla_naive_kvcache=false model.n_kv_heads=null model.rope_type=yarn "
    "model.rope_factor=4 model.original_max_position_embeddings=8"
)
# Two key heads for four of values, and a chunk that divides no sequence. With a small epsilon the
# norm of a narrow head that gives almost nothing is a sign function, of which rounding decides.
DELTA = (
    "model.kinds={delta:{mixer:{schema:gated_delta_net,gdn_num_key_heads:2,gdn_num_value_heads:4,"
    "gdn_key_head_dim:6,gdn_value_head_dim:10,gdn_chunk_size:5},norm_eps:0.1}} "
    "model.layers=[delta,default]"
)
# Two groups for four heads, and a chunk that divides no sequence.
MAMBA = (
    "model.kinds={mamba:{mixer:{schema:mamba2,ssm_num_heads:4,ssm_head_dim:6,ssm_state_size:10,"
    "ssm_n_groups:2,ssm_chunk_size:5,ssm_proj_bias:true},norm_eps:0.1}} "
    "model.layers=[mamba,default]"
)
ALONE = (
    "model.kinds={mamba:{mixer:{schema:mamba2,ssm_num_heads:4,ssm_head_dim:6,ssm_state_size:10,"
    "ssm_n_groups:2,ssm_chunk_size:5},norm_eps:0.1,feed_forward:{schema:none}},"
    "attend:{feed_forward:{schema:none}},mlp:{mixer:{schema:none}}} "
    "model.layers=[mamba,mlp,attend,mlp] model.n_layers=4"
)
INDEXED = (
    "model.mixer.use_indexer=true model.mixer.indexer_head_dim=16 model.mixer.indexer_n_heads=5 "
    "model.mixer.indexer_topk=7 model.mixer.indexer_loss_scaling_factor=0.7"
)
SPARSE = "model.mixer.indexer_sparse_training=true"
READERS = (
    "model.kinds={reader:{mixer:{schema:mla,q_lora_rank:12,kv_lora_rank:14,qk_nope_head_dim:10,"
    "qk_rope_head_dim:6,v_head_dim:8,mla_naive_kvcache:false,use_indexer:true,indexer_shared:true,"
    "indexer_topk:7,indexer_sparse_training:true}}} model.layers=[default,reader] model.n_layers=4"
)
# Blocks that no part of a sequence divides into, in one of two kinds of layers.
MOBA = (
    "model.kinds={blocks:{moba:true,moba_chunk_size:3,moba_topk:2}} "
    "model.layers=[blocks,blocks,default]"
)
# A norm with a small epsilon takes no notice of how much of equal streams a layer reads: the
# gradient of that is a sum of rounding errors.
STREAMS = "model.mhc_expansion_rate=3 model.sinkhorn_iterations=4 model.norm_eps=0.1"
# In float64 alone: on one device too the gradient of a decay in float32 is 2e-5 from that in
# float64, and runs of tokens round in another order.
IN_RUNS = ("delta, in runs", "delta, in runs, clipped", "packed delta, in runs")
# In float64 alone: the root of a product near 0 multiplies rounding errors without a bound, and so
# does the norm of keys read by several layers, whose gradient of a weight cancels to 1 in 10,000.
FLOAT64_ALONE = (
    *("memory", "memory, streams", "memory, moe", "packed memory"),
    *("streams", "streams, clipped", "streams, moe", "packed streams"),
    *("gemma4, small", "gemma4, small, clipped", "packed gemma4, small"),
    *IN_RUNS,
)
MEMORY = (
    "model.engram_layers=[0,2] model.engram_vocab_bases=[30,50] model.engram_num_heads=2 "
    "model.engram_head_dim=10 model.engram_kernel_size=3"
)
# Inputs of single layers, keys of earlier layers in two kinds, wider feed-forward layers.
GEMMA4 = (
    "model.kinds={w:{sliding_window_size:3,head_dim:6,n_kv_heads:4},sw:{sliding_window_size:3,"
    "head_dim:6,n_kv_heads:4,mixer:{schema:shared_attention},ffn_hidden_dim:60},"
    "s:{mixer:{schema:shared_attention},ffn_hidden_dim:60}} model.layers=[w,default,sw,s] "
    "model.n_layers=4 model.per_layer_input_width=6 model.layer_scalar=true model.qk_norm=true "
    "model.v_norm=true model.norm_placement=both"
)
BRANCHES = (
    "beside_dense=true branch_norms=true router_norm=true per_expert_scale=true "
    "model.norm_placement=both model.layer_scalar=true"
)
FURTHER = "model.mtp_num_layers=2 objective.mtp_loss_scaling_factor=0.3"
CONV = "model.kinds={conv:{mixer:{schema:short_conv,conv_bias:true}}} model.layers=[conv,default]"

# A rank that is odd, and by name another one.
LORA = "adapter=lora adapter.rank=3 adapter.alpha=6 adapter.dropout=0"
DORA = f"{LORA} adapter.dora=true adapter.target_modules=[all,head] adapter.ranks={{wo:5}}"
LORA_OF_ALL = f"{LORA} adapter.target_modules=[all,head,embedding]"
FROZEN = "optimizer.freeze_parameters=[embedding,w_up,blocks.0.attention]"
# Rows that two ranks cut into whole blocks of 64 weights.
WIDE = "model.dim=128 model.ffn_hidden_dim=256 model.n_layers=2"
QLORA = (
    f"{WIDE} adapter=qlora adapter.rank=3 adapter.dropout=0 "
    "adapter.target_modules=[all,head,embedding]"
)
SFT = (
    "objective=sft objective.weighting=example objective.neftune_alpha=5 "
    "objective.label_smoothing=0.1 model.dropout=0.1 data.pack_sequences=true"
)

# Windows shorter than a rank's part of a sequence; tables of values in the first and last block.
NANOCHAT = (
    "model.window_pattern=SSL model.short_window=3 model.value_embeddings=true "
    "model.residual_scalars=true model.x0_scalars=true model.smear=true model.backout=true "
    "model.norm_with_scale=false model.norm_eps=null model.embedding_norm=true model.qk_norm=true "
    "model.qk_norm_with_scale=false model.qk_norm_after_rope=true model.qk_scale=1.2 "
    "model.activation=relu2 model.gated_mlp=false model.final_logits_soft_cap=15"
)
SMEARED = "model.smear=true model.residual_scalars=true model.embedding_norm=true"

PACKED = (
    *("llama", "llama, clipped", "llama, 5 blocks", "kinds", "gpt2", "mla", "delta", "moe"),
    "delta, in runs",
    *("indexer", "indexer, warm-up", "shared indexer"),
    *("mamba", "short convolutions", "mtp", "moba", "streams", "memory"),
    *("gemma4, small", "gpt-oss", "llama4", "dropout", "nanochat"),
)
"""Models that are also tried with documents that share sequences."""


def _moe(options: str) -> list[str]:
    """Words without a section are options of `model.moe`, but for choices of groups."""
    keys = [(word, word.partition("=")[0]) for word in options.split()]
    whole = {word for word, key in keys if "." in key or key in ("adapter", "objective")}
    return [word if word in whole else f"model.moe.{word}" for word, _ in keys]


MODELS = {
    "llama": "",
    "nanochat": NANOCHAT,
    "nanochat, clipped": f"{NANOCHAT} {CLIPPED}",
    "smeared": f"{SMEARED} model.window_pattern=SL model.short_window=3",
    "llama, odd sizes": "model.dim=42 model.n_heads=3 model.n_kv_heads=1 model.ffn_hidden_dim=53",
    "llama, 5 blocks": BLOCKS_5,
    "llama, tied": TIED,
    "llama, tied, 5 blocks": f"{TIED} {BLOCKS_5}",
    "llama, 4 heads of keys": "model.n_kv_heads=4",
    "gpt2": GPT2,
    "gpt2, 5 blocks": f"{GPT2} {BLOCKS_5}",
    "mla": MLA,
    "mla, clipped": f"{MLA} {CLIPPED}",
    "delta": DELTA,
    "delta, clipped": f"{DELTA} {CLIPPED}",
    "delta, in runs": DELTA,
    "delta, in runs, clipped": f"{DELTA} {CLIPPED}",
    "mamba": MAMBA,
    "short convolutions": CONV,
    "one branch": ALONE,
    "moba": MOBA,
    "streams": STREAMS,
    "streams, clipped": f"{STREAMS} {CLIPPED}",
    "streams, moe": f"{MOE} {STREAMS}",
    "memory": MEMORY,
    "memory, streams": f"{MEMORY} {STREAMS} {CLIPPED}",
    "memory, moe": f"{MOE} {MEMORY}",
    "gemma4, small": GEMMA4,
    "gemma4, small, clipped": f"{GEMMA4} {CLIPPED}",
    "gemma4, moe": f"{MOE} {BRANCHES}",
    "mtp": FURTHER,
    "mtp, tied": f"{FURTHER} {TIED}",
    "indexer": f"{MLA} {INDEXED} {SPARSE}",
    "indexer, clipped": f"{MLA} {INDEXED} {SPARSE} {CLIPPED}",
    "indexer, warm-up": f"{MLA} {INDEXED}",
    "indexer, mtp": f"{MLA} {INDEXED} {SPARSE} {FURTHER}",
    "indexer, moe": f"{MLA} {INDEXED} {SPARSE} {MOE} {DEEPSEEK}",
    "shared indexer": f"{MLA} {INDEXED} {SPARSE} {READERS} {CLIPPED}",
    "shared indexer, mtp": f"{MLA} {INDEXED} {SPARSE} {READERS} {FURTHER}",
    "shared indexer, moe": f"{MLA} {INDEXED} {SPARSE} {READERS} {MOE} {DEEPSEEK}",
    "mla, moe": f"{MLA} {MOE} {DEEPSEEK}",
    "llama, z-loss, clipped": f"objective.z_loss_weight=0.01 {CLIPPED}",
    "llama, clipped": CLIPPED,
    "kinds": KINDS,
    "gemma": f"{KINDS} model.norm_placement=both model.norm_unit_offset=true {TIED} "
    "model.embedding_multiplier=6.3 model.residual_multiplier=0.5 model.qk_norm=true",
    "gpt-oss": "model.kinds={a:{sliding_window_size:3,head_dim:6}} model.layers=[a,default] "
    "model.attention_sink=true model.bias=true model.rope_type=yarn model.rope_factor=4 "
    "model.original_max_position_embeddings=8 model.rope_attention_scaling=true",
    "llama4": "model.kinds={a:{position:none,chunk_attn_window_size:0,qk_norm:false}} "
    "model.layers=[default,a] model.chunk_attn_window_size=5 model.rope_interleave=true "
    "model.qk_norm=true model.qk_norm_with_scale=false model.qk_norm_after_rope=true "
    "model.temperature_tuning=true model.temperature_tuning_floor=3 "
    "model.temperature_tuning_scale=0.5",
    "gemma2": "model.kinds={a:{sliding_window_size:4}} model.layers=[a,default] "
    "model.attn_logits_soft_cap=1.5 model.query_scale=0.4 model.final_logits_soft_cap=3",
    "olmo2": "model.norm_placement=post model.qk_norm=true model.qk_norm_width=all",
    "qwen3-next": "model.attention_output_gate=true model.partial_rotary_factor=0.4 "
    "model.qk_norm=true model.norm_unit_offset=true model.v_norm=true",
    "gemma4": "model.share_kv_projections=true model.qk_norm=true model.v_norm=true "
    "model.v_norm_with_scale=false model.rope_type=proportional model.rope_factor=1 "
    "model.partial_rotary_factor=0.4 model.query_scale=0.3",
    "capped logits": "model.logits_multiplier=3.1 model.final_logits_soft_cap=2.0 "
    "model.position=sinusoidal objective.z_loss_weight=0.01",
    "dropout": "model.dropout=0.2",
    "dropout, gpt2": f"model.dropout=0.2 {GPT2}",
    "sft": SFT,
    "post-norms": "model.norm_placement=post model.q_bias=true model.v_bias=true model.o_bias=true",
    "llama, tied, clipped": f"{TIED} {CLIPPED}",
    "moe": MOE,
    "moe, clipped": f"{MOE} {CLIPPED}",
    "one branch, moe": f"{MOE} {ALONE}",
    "mtp, moe": f"{MOE} {FURTHER}",
    "lora": LORA,
    "ia3": "adapter=ia3 model.bias=true adapter.target_modules=[attention,w_down]",
    "lora, dropped": f"{LORA} adapter.dropout=0.3",
    "lora, mla, dropped": f"{MLA} {LORA} adapter.dropout=0.3",
    "lora, all": f"{LORA_OF_ALL} adapter.bias=all model.bias=true adapter.rank_stabilized=true",
    "lora, 5 blocks": f"{LORA} {BLOCKS_5}",
    "lora, tied": f"{LORA} {TIED} adapter.modules_to_save=[norm]",
    "dora": f"{DORA} model.bias=true",
    "lora, mla": f"{MLA} {LORA}",
    "lora, delta": f"{DELTA} {LORA}",
    "a part": FROZEN,
    "a part, 5 blocks": f"{FROZEN} {BLOCKS_5}",
    "a part, moe": f"{MOE} optimizer.freeze_parameters=[embedding,w_up,router,blocks.0]",
    "lora, moe": f"{MOE} {LORA_OF_ALL}",
    "dora, moe": f"{MOE} {DORA} adapter.target_modules=[all]",
    "lora, moe, capacity": f"{MOE} {CAPACITY} {LORA_OF_ALL}",
    "qlora": QLORA,
    "qlora, int8": f"{QLORA} adapter.base_format=int8",
    "qlora, one scale": f"{QLORA} adapter.double_quantization=false",
    "qlora, moe": f"{MOE} {QLORA} ffn_hidden_dim=128",
    "qlora, moe, capacity": f"{MOE} {CAPACITY} {QLORA} ffn_hidden_dim=128",
    "moe, 8 experts": f"{MOE} {EIGHT}",
    "moe, deepseek": f"{MOE} {DEEPSEEK}",
    "moe, gpt-oss": f"{MOE} {GPT_OSS}",
    "moe, gpt-oss, capacity": f"{MOE} {GPT_OSS} {CAPACITY}",
    "moe, beside": f"{MOE} {BESIDE}",
    "moe, 5 blocks": f"{MOE} {BLOCKS_5} frequency=2",
    "moe, gradients scaled": f"{MOE} gradient_scale=true",
    "moe, capacity": f"{MOE} {CAPACITY}",
    "moe, micro-batch": f"{MOE} {MICRO_BATCH}",
    "moe, 8 experts, micro-batch": f"{MOE} {EIGHT} {MICRO_BATCH}",
    "dropout, moe": f"model.dropout=0.2 {MOE}",
    "sft, moe": f"{SFT} {MOE}",
    "moe, pairs": f"{MOE} balance_scope={SCOPE} train.batch_size=2",
    "moe, capacity, micro-batch": f"{MOE} {CAPACITY} {MICRO_BATCH}",
}
MODELS |= {f"packed {name}": f"{MODELS[name]} data.pack_sequences=true" for name in PACKED}
MODELS = {name: _moe(options) for name, options in MODELS.items()}
"""Overrides of both sides."""


def overrides_of(model: str, layout: str = "") -> list[str]:
    """What one side is composed of; the last of several values of a key holds."""
    keyed = {text.partition("=")[0]: text for text in (*SMALL, *MODELS[model], *layout.split())}
    return list(keyed.values())
