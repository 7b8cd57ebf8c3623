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
TARGETS = """
data.chat_demo.chat_demo data.sources.chat_demo.chat_demo
data.chats.alpaca data.sources.chats.alpaca
data.chats.chat data.sources.chats.chat
data.chats.formatted data.sources.chats.formatted
data.chats.sharegpt data.sources.chats.sharegpt
data.corpus.python_docs data.text.corpus.python_docs
data.corpus.python_source data.text.corpus.python_source
data.corpus.text_files data.text.corpus.text_files
data.hub.dataset data.sources.hub.dataset
data.labelled.chat_labelled data.sources.labelled.chat_labelled
data.labelled.labelled data.sources.labelled.labelled
data.mixed.mixed data.text.mixed.mixed
data.pairs.pairs data.sources.pairs.pairs
data.preferences.chat_preference data.sources.preferences.chat_preference
data.preferences.preference data.sources.preferences.preference
data.preferences.preference_demo data.sources.preferences.preference_demo
data.sentencepiece.sentencepiece data.tokenizers.sentencepiece.sentencepiece
data.tiktoken.tiktoken data.tokenizers.tiktoken.tiktoken
data.tokenizer.byte_ids data.tokenizers.tokenizer.byte_ids
data.tokenizer.load_file data.tokenizers.tokenizer.load_file
data.tokenizer.train_bpe data.tokenizers.tokenizer.train_bpe
data.tokens.shards data.tokens.tokens.shards
data.tokens.synthetic data.tokens.tokens.synthetic
optim.adam.adam_pax optim.adam.AdamPax
optim.adamw.adamw optim.adam.adamw
optim.lion.lion optim.lion.Lion
optim.low_bit.adamw_low_bit optim.low_bit.LowBitAdamW
optim.muon.muon optim.muon.Muon
optim.normuon.normuon optim.normuon.NorMuon
optim.schedule_free.schedule_free_adamw optim.schedule_free.ScheduleFreeAdamW
optim.sgd.sgd optim.sgd.SGD
training.bench.Bench training.callbacks.bench.Bench
training.evaluation.Evaluation training.callbacks.evaluation.Evaluation
training.profiling.Profiler training.callbacks.profiling.Profiler
training.samples.Samples training.callbacks.samples.Samples
training.stopping.EarlyStopping training.callbacks.stopping.EarlyStopping
"""
"""A line for each class or function that was moved: its path below forge as a `_target_` of before
names it, and the path of today."""
MOVED = {
    f"forge.{row[0]}": f"forge.{row[1]}" for row in map(str.split, TARGETS.strip().splitlines())
}


def current(plain: Any) -> Any:
    """Copy nested dicts and lists, with named schemas and today's paths of moved classes."""
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
