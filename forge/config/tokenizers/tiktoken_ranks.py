"""Files of tiktoken, with the pattern of words and the special tokens of the known ones.

The patterns are published by openai/tiktoken (tiktoken_ext/openai_public.py), Meta's Llama 3
(models/llama3/tokenizer.py), Qwen and karpathy/nanochat (nanochat/tokenizer.py).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forge.config.regular import open_regular

ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = "|".join(
    (
        rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}",
        rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}",
    )
)
NANOCHAT = "|".join(
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}",
        r" ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
NANOCHAT_TOKENS = (
    "<|bos|>",
    *(f"<|{part}_{end}|>" for part in ("user", "assistant") for end in ("start", "end")),
    *(f"<|{part}_{end}|>" for part in ("python", "output") for end in ("start", "end")),
)
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
END = "<|endoftext|>"


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """The rules of a known vocabulary. pattern: of words. special: tokens, by their distance after
    the last rank.
    """

    pattern: str
    special: Mapping[str, int]


def _llama3() -> dict[str, int]:
    first = "begin_of_text end_of_text reserved_special_token_0 reserved_special_token_1 "
    first += "reserved_special_token_2 reserved_special_token_3 start_header_id end_header_id "
    first += "reserved_special_token_4 eot_id"
    names = [*first.split(), *(f"reserved_special_token_{number}" for number in range(5, 251))]
    return {f"<|{name}|>": offset for offset, name in enumerate(names)}


ENCODINGS = {
    "gpt2": Encoding(
        pattern=r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        special={END: 0},
    ),
    "cl100k": Encoding(
        pattern=CL100K,
        special={
            END: 1,
            "<|fim_prefix|>": 2,
            "<|fim_middle|>": 3,
            "<|fim_suffix|>": 4,
            "<|endofprompt|>": 20,
        },
    ),
    "o200k": Encoding(
        pattern="|".join(
            (
                rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{ENDINGS}?",
                rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{ENDINGS}?",
                r"\p{N}{1,3}",
                r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
                SPACES,
            )
        ),
        special={END: 1, "<|endofprompt|>": 20},
    ),
    "llama3": Encoding(pattern=CL100K, special=_llama3()),
    "qwen": Encoding(
        pattern=CL100K.replace(r"\p{N}{1,3}", r"\p{N}"),
        special={END: 0, "<|im_start|>": 1, "<|im_end|>": 2},
    ),
    "nanochat": Encoding(
        pattern=NANOCHAT,
        special={token: number for number, token in enumerate(NANOCHAT_TOKENS)},
    ),
}


def read_ranks(path: Path) -> dict[bytes, int]:
    """Read tokens and their ranks. ValueError: no file of ranks."""
    ranks: dict[bytes, int] = {}
    with open_regular(path) as file:
        for number, line in enumerate(file, start=1):
            if not (line := line.strip()):
                continue
            try:
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
            except (ValueError, binascii.Error) as error:
                raise ValueError(f"line {number} is not a token in base64 and its rank") from error
    if len(set(ranks.values())) < len(ranks) or not ranks:
        raise ValueError("it has two tokens of one rank" if ranks else "it is empty")
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise ValueError(f"the byte {missing[0]} is no token of it, so not every text has tokens")
    return ranks


def pattern_of(pattern: str) -> str:
    """The regular expression of a pattern's name, or the pattern as given."""
    return ENCODINGS[pattern].pattern if pattern in ENCODINGS else pattern


def special_ids(
    ranks: Mapping[bytes, int], pattern: str, names: Sequence[str] | None
) -> dict[str, int]:
    """Ids of the special tokens: names in order after the last rank, or the pattern's tokens."""
    first = max(ranks.values()) + 1
    if names is not None:
        return {name: first + offset for offset, name in enumerate(names)}
    offsets = ENCODINGS[pattern if pattern in ENCODINGS else "gpt2"].special
    return {name: first + offset for name, offset in offsets.items()}
