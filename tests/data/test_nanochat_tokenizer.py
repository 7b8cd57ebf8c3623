"""tokenizer=nanochat: its vocabulary against a plain trainer and tiktoken, its chats against ids
and masks written out, and bytes of its tokens.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import regex
import tiktoken
import yaml
from data_helpers import make_prose

from forge.compose.hydra_adapter import CONF
from forge.config.data.text import HeldOut, Text
from forge.config.tokenizers.chat_template import NAMED
from forge.config.tokenizers.ranked_bpe import RankedBPE
from forge.data.text.conversation import Conversation
from forge.data.text.corpus import text_files
from forge.data.text.messages import messages_of
from forge.data.text.split import RandomText, TrainingText, split_corpus
from forge.data.tokenizers.ranked_bpe import train_ranks
from forge.data.tokenizers.render import Render, render_conversation
from forge.data.tokenizers.tokenizer import Tokenizer

PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
SPECIAL = [
    f"<|{name}|>"
    for name in (
        "bos",
        *("user_start", "user_end", "assistant_start", "assistant_end"),
        *("python_start", "python_end", "output_start", "output_end"),
    )
]


def preset(**options: Any) -> RankedBPE:
    content = yaml.safe_load((CONF / "tokenizer" / "nanochat.yaml").read_text())
    content.pop("defaults")
    return RankedBPE(**(content | options))


def texts() -> list[str]:
    draw = random.Random(0)
    pool = "ab don't WE'LL 12345 \n\r\t é’漢Ⅷ٣😀.,!? x"
    mixed = ["".join(draw.choices(pool, k=draw.choice([3, 40, 300]))) for _ in range(60)]
    return [make_prose(6, seed) for seed in range(40)] + mixed


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for number, text in enumerate(texts()):
        (folder / f"{number:03d}.txt").write_bytes(text.encode())
    return folder


def training(folder: Path) -> TrainingText:
    return TrainingText(splits=(split_corpus(text_files(Text(path=str(folder))), HeldOut()),))


@pytest.fixture(scope="module")
def tokenizer(corpus: Path) -> Tokenizer:
    return train_ranks(preset(vocab_size=700), text=training(corpus))


def spellings(tokenizer: Tokenizer) -> list[bytes]:
    """The bytes of each entry that is no special token, by id, as the library spells them."""
    vocab = {number: entry for entry, number in tokenizer._raw.get_vocab().items()}
    known = {letter: byte for byte, letter in enumerate(_letters())}
    size = tokenizer.vocab_size - len(SPECIAL)
    return [bytes(known[letter] for letter in vocab[number]) for number in range(size)]


def _letters() -> list[str]:
    """The letter that stands for each byte in byte-level vocabularies, by GPT-2's construction."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def merged_by_hand(documents: list[str], number: int) -> list[bytes]:
    """The first merges of a BPE: the most frequent pair of neighbours each time; of several the
    one of lowest entries, in the library's order of the alphabet.
    """
    order = {
        byte: place for place, byte in enumerate(sorted(range(256), key=_letters().__getitem__))
    }
    words = Counter(word for text in documents for word in regex.findall(PATTERN, text))
    split = {word: tuple(order[byte] for byte in word.encode()) for word in words}
    spelled = {place: bytes([byte]) for byte, place in order.items()}
    made = []
    for entry in range(256, 256 + number):
        pairs: Counter[tuple[int, int]] = Counter()
        for word, parts in split.items():
            for pair in pairwise(parts):
                pairs[pair] += words[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        spelled[entry] = spelled[best[0]] + spelled[best[1]]
        made.append(spelled[entry])
        for word, parts in split.items():
            if best[0] in parts:
                split[word] = _joined(parts, best, entry)
    return made


def _joined(parts: tuple[int, ...], pair: tuple[int, int], entry: int) -> tuple[int, ...]:
    made, place = [], 0
    while place < len(parts):
        if parts[place : place + 2] == pair:
            made.append(entry)
            place += 2
        else:
            made.append(parts[place])
            place += 1
    return tuple(made)


def test_the_vocabulary_is_bytes_then_merges_then_special_tokens(
    corpus: Path, tokenizer: Tokenizer
) -> None:
    entries = spellings(tokenizer)
    assert entries[:256] == [bytes([byte]) for byte in range(256)]
    assert tokenizer.vocab_size == 700
    ids = tokenizer.encode_marked(["".join(SPECIAL)])[0][0]
    assert ids == list(range(691, 700))
    documents = [path.read_bytes().decode() for path in sorted(corpus.iterdir())]
    assert entries[256 : 256 + 150] == merged_by_hand(documents, 150)


def test_ids_are_those_of_tiktoken(corpus: Path, tokenizer: Tokenizer) -> None:
    """With the pattern as nanochat writes it; also by the faster encoder of forge.prepare."""
    ranks = {entry: rank for rank, entry in enumerate(spellings(tokenizer))}
    special = {token: 691 + number for number, token in enumerate(SPECIAL)}
    other = tiktoken.Encoding(
        name="theirs", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special
    )
    draw = random.Random(3)
    pool = "The ship's 1234567 WE'LL don'T \n\n \r\n\t<|bos|> éſ’漢Ⅷ٣😀\u00a0\u2003.,!?()"
    found = texts() + ["".join(draw.choices(pool, k=draw.randint(0, 60))) for _ in range(3000)]
    expected = [other.encode_ordinary(text) for text in found]
    assert tokenizer.encode_batch(found) == expected
    words = tokenizer.remember_words()
    assert words is not None
    assert [ids.tolist() for ids in words.encode_batch(found)] == expected
    document = tokenizer.document(expected[0])
    assert document.tolist() == [special["<|bos|>"], *expected[0]]
    assert tokenizer.end_id == tokenizer.begin_id == special["<|bos|>"]


def test_bytes_of_tokens(tokenizer: Tokenizer) -> None:
    expected = [*map(len, spellings(tokenizer)), *([0] * len(SPECIAL))]
    assert tokenizer.token_bytes().tolist() == expected


def test_long_documents_give_their_beginning_alone(tmp_path: Path) -> None:
    """Whatever pieces they are read in; no more than train_bytes in all."""
    for name, letter in (("a", "x"), ("b", "y"), ("c", "z")):
        (tmp_path / f"{name}.txt").write_text(f"{letter * 60}\n" * 300)
    text = training(tmp_path)
    learnt = "".join(text.sample(1 << 30, 10_000))
    assert learnt == "".join((f"{letter * 60}\n" * 300)[:10_000] for letter in "xyz")
    assert len("".join(text.sample(9_000, 10_000))) <= 9_000


def test_random_tokens_have_as_many_ids() -> None:
    made = train_ranks(preset(vocab_size=400), text=RandomText())
    assert made.vocab_size == 400
    assert made.encode_marked(["<|output_end|>"])[0][0] == [399]


def test_what_is_saved_is_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.encode("we'll 123") == tokenizer.encode("we'll 123")
    assert again.stated["chat_template"] == preset().template


CONVERSATION = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "How many seas? <|user_end|>"},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "Let me count. "},
            {"type": "python", "text": "3 + 4"},
            {"type": "python_output", "text": "7"},
            {"type": "text", "text": " There are 7."},
        ],
    },
    {"role": "user", "content": "Thanks"},
    {"role": "assistant", "content": "You're welcome!"},
]


def written_out(tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """(id, whether it is learnt) of CONVERSATION, part by part as nanochat renders it."""
    ids = {token: 691 + number for number, token in enumerate(SPECIAL)}
    parts: list[tuple[str, int]] = [
        ("<|bos|>", 0),
        ("<|user_start|>", 0),
        ("Be kind.\n\nHow many seas? <|user_end|>", 0),
        ("<|user_end|>", 0),
        ("<|assistant_start|>", 0),
        ("Let me count. ", 1),
        ("<|python_start|>", 1),
        ("3 + 4", 1),
        ("<|python_end|>", 1),
        ("<|output_start|>", 0),
        ("7", 0),
        ("<|output_end|>", 0),
        (" There are 7.", 1),
        ("<|assistant_end|>", 1),
        ("<|user_start|>", 0),
        ("Thanks", 0),
        ("<|user_end|>", 0),
        ("<|assistant_start|>", 0),
        ("You're welcome!", 1),
        ("<|assistant_end|>", 1),
    ]
    made: list[tuple[int, int]] = []
    for text, learnt in parts:
        made += [
            (token, learnt) for token in ([ids[text]] if text in ids else tokenizer.encode(text))
        ]
    return made


def read(messages: list[dict[str, Any]]) -> Conversation:
    return messages_of(messages)


def test_a_conversation_is_written_as_nanochat_does(tokenizer: Tokenizer) -> None:
    """Parts by hand; a special token that a user spells stays text; the template is that of the
    tokenizer.
    """
    expected = written_out(tokenizer)
    (found,) = Render(template=None, train_on="responses")([read(CONVERSATION)], tokenizer)
    assert found.tokens.tolist() == [token for token, _ in expected]
    assert found.counted.astype(int).tolist() == [learnt for _, learnt in expected]
    (last,) = Render(template=None, train_on="last_response")([read(CONVERSATION)], tokenizer)
    where = np.flatnonzero(last.counted)
    assert tokenizer.decode(last.tokens[where].tolist()) == "You're welcome!<|assistant_end|>"


def test_turns_that_do_not_alternate_are_refused(tokenizer: Tokenizer) -> None:
    for messages in (CONVERSATION[2:], CONVERSATION[:2] + CONVERSATION[1:]):
        with pytest.raises(ValueError, match="turns of user and assistant alternate"):
            render_conversation(read(messages).messages, tokenizer, where="row 1")


def test_another_template_does_not_lose_code(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="drops 'parts' of the assistant"):
        render_conversation(read(CONVERSATION).messages, tokenizer, template=NAMED["chatml"])
