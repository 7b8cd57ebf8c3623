"""Files that were made to break their reader: each ends in a refusal that names it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forge import checkpoints
from forge.data.text.reading import BadFile, refuse_unreadable
from forge.data.tokens.token_files import token_file
from forge.families import folder
from forge.families.shards import FolderError
from forge.rundir.checkpoints import FORMAT, Saved, best_of, newest_usable


@pytest.mark.parametrize("header", ["{'descr': (", "{" * 300, "(" * 3000, "1 +"])
def test_a_numpy_header_that_is_no_python_is_refused(header: str, tmp_path: Path) -> None:
    text = header.encode() + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npy has a broken NumPy header"):
        token_file(tmp_path / "a.npy")


def test_a_deep_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / folder.CONFIG).write_text('{"a":' + "[" * 200_000)
    with pytest.raises(FolderError, match="nested too deep"):
        folder.read_folder(tmp_path)


ODD = {
    "files": [[], {"a": "b"}],
    "metrics": [3, {"loss": "low"}],
    "time": [[1]],
    "reason": [{}],
    "best_by": [[1]],
    "step": ["six"],
    "train": ["x"],
    "data": [[]],
}


@pytest.mark.parametrize("key", ODD)
def test_a_checkpoint_of_odd_types_is_passed_over(key: str, tmp_path: Path) -> None:
    step = tmp_path / "step_3"
    step.mkdir()
    for value in ODD[key]:
        (step / "meta.json").write_text(json.dumps({"format": FORMAT, key: value}))
        assert newest_usable(tmp_path)[1][0][1] == "its meta.json cannot be read"
        assert best_of([Saved(step)]) is None
        row = checkpoints._row(Saved(step), "mine", best=False, verify=False)
        assert "cannot be read" in checkpoints.checkpoint_table(tmp_path, [row])


def test_what_does_not_fit_in_the_memory_is_named() -> None:
    with (
        pytest.raises(BadFile, match=r"bomb\.gz does not fit in the memory"),
        refuse_unreadable("bomb.gz"),
    ):
        raise MemoryError
