"""A folder as transformers writes it, of the model that SMALL of `refusing` is, and wrong ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from forge.families import folder as folders
from forge.families.table import shapes

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def write_folder(place: Path, **keys: Any) -> None:
    """Its config.json, with these keys besides, and weights of zeros; inside of it `unknown`, of
    another model_type.
    """
    for folder, content in (place, LLAMA | keys), (place / "unknown", {"model_type": "t5"}):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(content))
    found = folders.read_folder(place)
    zeros = {
        name: np.zeros(shape, dtype=np.float16)
        for name, shape in shapes(found.family.rows(found.section)).items()
    }
    save_file(zeros, place / "model.safetensors")
