"""Paths of modules that config files of earlier versions have in place of names of schemas.

Until the version that wrote names, `_type_` was the path of a section's class and `_target_` the
path of what the class describes. `current` reads both; nothing else knows of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TYPE, TARGET = "_type_", "_target_"
SCHEMAS = """
model.Decoder decoder models.decoder.Decoder
hf.section.FolderDecoder hf models.decoder.Decoder
tokenizer.BPE bpe data.tokenizer.train_bpe
tokenizer.Bytes bytes data.tokenizer.byte_ids
tokenizer_files.TokenizerFile file data.tokenizer.load_file
tokenizer_files.HubTokenizer hf data.tokenizer.load_file
tokenizer_files.SentencePiece sentencepiece data.sentencepiece.sentencepiece
tokenizer_files.Tiktoken tiktoken data.tiktoken.tiktoken
data.PythonSource python data.corpus.python_source
data.PythonDocs python_docs data.corpus.python_docs
data.Text text data.corpus.text_files
data.Pairs pairs data.pairs.pairs
data.Shards shards data.tokens.shards
preference.PreferencePairs preference data.preferences.preference
preference.Labelled labelled data.labelled.labelled
data.Synthetic synthetic data.tokens.synthetic
data.HuggingFace hf data.hub.dataset
chats.Alpaca alpaca data.chats.alpaca
chats.ShareGPT sharegpt data.chats.sharegpt
chats.Chat chat data.chats.chat
chats.Formatted formatted data.chats.formatted
preference.ChatPreference chat_preference data.preferences.chat_preference
preference.ChatLabelled chat_labelled data.labelled.chat_labelled
chats.ChatDemo chat_demo data.chat_demo.chat_demo
preference.PreferenceDemo preference_demo data.preferences.preference_demo
mixture.Mix mix data.mixed.mixed
objective.Pretrain pretrain objectives.pretrain.Pretrain
objective.SFT sft objectives.sft.SFT
preference.DPO dpo objectives.dpo.DPO
preference.KTO kto objectives.kto.KTO
preference.ORPO orpo objectives.orpo.ORPO
preference.SimPO simpo objectives.simpo.SimPO
preference.CPO cpo objectives.cpo.CPO
adapter.NoAdapter none adapters.adapter.Adapter
adapter.LoRA lora adapters.lora.LoRA
qlora.QLoRA qlora adapters.qlora.QLoRA
optimizer.AdamW adamw optim.adamw.adamw
optimizers.AdamPax adam_pax optim.adam.adam_pax
optimizers.AdamWLowBit adamw_low_bit optim.low_bit.adamw_low_bit
optimizer.Lion lion optim.lion.lion
optimizer.Muon muon optim.muon.muon
optimizer.NorMuon normuon optim.normuon.normuon
optimizers.SGD sgd optim.sgd.sgd
optimizers.ScheduleFreeAdamW schedule_free_adamw optim.schedule_free.schedule_free_adamw
scheduler.NoSchedule none optim.schedules.none
scheduler.Constant constant optim.schedules.constant
scheduler.Cosine cosine optim.schedules.cosine
scheduler.Linear linear optim.schedules.linear
scheduler.WSD wsd optim.schedules.wsd
scheduler.Rex rex optim.schedules.rex
quantization.NoQuantization none quantization.products.Products
quantization.FP8 fp8 quantization.fp8.FP8
quantization.MXFP8 mxfp8 quantization.mxfp8.MXFP8
quantization.Int8 int8 quantization.int8.Int8
quantization.QAT qat quantization.qat.QAT
quantization.Sparse sparse quantization.products.Products
launch.Local local
launch.Slurm slurm
launch.SubmititLocal submitit_local
sweeper.Basic basic
sweeper.Optuna optuna
mixers.attention.Attention attention models.attention.Attention
mixers.gated_delta_net.GatedDeltaNet gated_delta_net models.gated_delta_net.GatedDeltaNet
mixers.mla.MLA mla models.mla.MLA
feed_forwards.dense.Dense dense models.feed_forward.FeedForward
"""
"""A line for each class: its path below forge.config, the name of its schema, and the path below
forge of its default target, where it had one."""
_ROWS = {f"forge.config.{row[0]}": row[1:] for row in map(str.split, SCHEMAS.strip().splitlines())}
MOVED = {
    "forge.optim.adamw.adamw": "forge.optim.adam.adamw",
    "forge.optim.adam.adam_pax": "forge.optim.adam.AdamPax",
    "forge.optim.lion.lion": "forge.optim.lion.Lion",
    "forge.optim.muon.muon": "forge.optim.muon.Muon",
    "forge.optim.normuon.normuon": "forge.optim.normuon.NorMuon",
    "forge.optim.sgd.sgd": "forge.optim.sgd.SGD",
    "forge.optim.schedule_free.schedule_free_adamw": "forge.optim.schedule_free.ScheduleFreeAdamW",
    "forge.optim.low_bit.adamw_low_bit": "forge.optim.low_bit.LowBitAdamW",
}
"""The path that a class of forge has now, for the path that a `_target_` of a dict names."""


def current(plain: Any) -> Any:
    """A copy of nested dicts and lists in which schemas are named and moved classes have the path
    of today.
    """
    if isinstance(plain, list):
        return [current(value) for value in plain]
    if not isinstance(plain, Mapping):
        return plain
    copied = {key: current(value) for key, value in plain.items()}
    kind, target = copied.get(TYPE), copied.get(TARGET)
    if isinstance(target, str) and target in MOVED:
        copied[TARGET] = MOVED[target]
    if isinstance(kind, str) and kind in _ROWS:
        name, *default = _ROWS[kind]
        copied[TYPE] = name
        if isinstance(target, str) and target.removeprefix("forge.") in default:
            del copied[TARGET]
    return copied
