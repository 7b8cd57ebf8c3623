"""forge.preview shows the rows that a run reads, and what of them the loss reads."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from forge import preview

TURNS = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Yes."}]


WRAPPED = ["data=pairs", "data.pack_sequences=false", "data.packing=concat_then_split"]
WRAPPED += ["data.too_long=split"]


def test_what_is_learnt_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = json.dumps({"messages": TURNS}) + "\n"
    (tmp_path / "a.jsonl").write_text(row + row.replace("Yes", "Maybe, or maybe not"))
    words = [f"data.path={tmp_path}/a.jsonl", f"data.cache_dir={tmp_path}", "data.val_fraction=0"]
    words += ["data=chat", "tokenizer=bytes", "debug=fast", "train.seq_len=60", "--rows", "2"]
    words += ["eval.enabled=false", "data.shuffle=false"]
    assert preview.main(words) == 0
    assert capsys.readouterr().out == (
        "row 1: 29 tokens, 6 of them learnt\n"
        "User: Hello?\nAssistant:⟦ Yes.<|endoftext|>⟧\n\n"
        "row 2: 45 tokens, 22 of them learnt\n"
        "User: Hello?\nAssistant:⟦ Maybe, or maybe not.<|endoftext|>⟧\n\n"
        "of 74 tokens 28 are learnt, 38%\n"
    )
    assert preview.main([*words, "--json", "data.train_on=all"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert bytes(first["tokens"][:-1]).decode() == "User: Hello?\nAssistant: Yes."
    assert first["learnt"] == [0, *[1] * 28], "nothing comes before the first"


def test_what_cannot_be_read_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"messages": []}\n')
    words = ["data=chat", f"data.path={tmp_path}/a.jsonl", f"data.cache_dir={tmp_path}"]
    assert preview.main([*words, "debug=fast", "tokenizer=bytes"]) == 2
    said = f"data.path: {tmp_path}/a.jsonl line 1: it has no list under 'messages' "
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "row", "said"),
    [
        (
            ["data=pairs"],
            {"prompt": "x" * 99, "response": "yes"},
            "data.too_long=truncate: nothing is left to train on: all 4 documents are longer than "
            "train.seq_len = 60, and what fits of them has no token to learn. Set train.seq_len "
            "larger.\n",
        ),
        (
            ["data=pairs", "data.too_long=drop"],
            {"prompt": "x", "response": "y" * 99},
            "data.too_long=drop: nothing is left to train on: all 4 documents are longer than "
            "train.seq_len = 60. Set train.seq_len larger, or data.too_long=truncate.\n",
        ),
        (
            [*WRAPPED, "tokenizer.add_eos=false", "tokenizer.add_bos=true"],
            {"prompt": "x" * 59, "response": ""},
            "data.path: none of its 3 sequences has a token to learn: all that is in them is "
            "masked. Give responses to learn; `python -m forge.preview` with the same options "
            "shows what is read.\n",
        ),
        (
            ["data=chat"],
            {"messages": [TURNS[0], TURNS[1] | {"weight": 0}]},
            " line 1 has no turn of the assistant to learn from, by what its messages say of "
            "themselves (train, training, weight, masked). Leave it out, or mend these fields.\n",
        ),
    ],
    ids=["too long", "dropped", "masked", "weights"],
)
def test_data_of_which_nothing_is_learnt_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], row: dict, said: str
) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(4)))
    words = [*words, f"data.path={tmp_path}/a.jsonl", f"data.cache_dir={tmp_path}/cache"]
    words += ["tokenizer=bytes", "debug=fast", "train.seq_len=60", "eval=off"]
    assert preview.main([*words, "data.val_fraction=0"]) == 2
    assert capsys.readouterr().err.endswith(said)


def test_pairs_are_whole_and_apart_by_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prompt stands in one row with its answer, of which the end alone is cut off; and all that
    is read is a pair.
    """
    pairs = [("q" * n + "?", "a" * (17 * n % 41 + 1)) for n in range(1, 30)]
    pairs.append(("r?", "b" * 99))
    lines = (json.dumps({"prompt": q, "response": a}) + "\n" for q, a in pairs)
    (tmp_path / "a.jsonl").write_text("".join(lines))
    words = ["data=pairs", f"data.path={tmp_path}/a.jsonl", f"data.cache_dir={tmp_path}/cache"]
    words += ["tokenizer=bytes", "debug=fast", "train.seq_len=72", "eval=off", "--json"]
    words += ["data.val_fraction=0", "data.shuffle=false"]
    assert preview.main([*words, "--rows", "1"]) == 0
    said = re.search(r"in (\d+) sequences", capsys.readouterr().err)
    assert said is not None
    assert preview.main([*words, "--rows", said[1]]) == 0
    read = []
    for line in capsys.readouterr().out.splitlines():
        row = json.loads(line)
        for number in sorted(set(row["documents"])):
            places = [n for n, one in enumerate(row["documents"]) if one == number]
            text = bytes(min(row["tokens"][n], 255) for n in places).decode("latin1")
            learnt = "".join(str(row["learnt"][n]) for n in places)
            prompt, _, answer = text.partition("?")
            assert learnt == "0" * (len(prompt) + 1) + "1" * len(answer)
            read.append((f"{prompt}?", answer.rstrip("ÿ")))
    wanted = [(q, a[:71]) for q, a in pairs]
    assert sorted(read) == sorted(wanted)
