"""A folder that transformers wrote, with a tokenizer and a chat template."""

from __future__ import annotations

from pathlib import Path

import torch

from forge.config.tokenizers.tokenizer import Bytes
from forge.data.tokenizers.tokenizer import byte_ids

TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"


def write_llama(place: Path, dtype: torch.dtype = torch.float32, **options) -> Path:
    """A tiny Llama of the ids of bytes, in shards."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 260, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 3}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    sizes |= {"bos_token_id": None, "eos_token_id": 256}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**(sizes | options)))
    model.to(dtype).save_pretrained(place, max_shard_size="60KB")
    byte_ids(Bytes(), text=None).save(place)
    (place / "chat_template.jinja").write_text(TEMPLATE)
    return place
