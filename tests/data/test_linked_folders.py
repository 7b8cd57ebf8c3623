"""Links in data.path: what they lead to is read, and one that leads nowhere is named."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_helpers import build_section

from forge.config.data.text import Shards, Text
from forge.config.tokenizers.tokenizer import Bytes
from forge.data.preparing.cached import prepare_tokens
from forge.data.text.corpus import matching
from forge.resolve.rules.run import path_fault

GONE = "is a link to nowhere.txt, which is not there"


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A folder of links, to a file and to a folder with another file and a link of its own."""
    away, inner, folder = (tmp_path / name for name in ("away", "inner", "folder"))
    for each in (away, inner, folder):
        each.mkdir()
    (inner / "two.txt").write_text("two")
    (away / "one.txt").write_text("one")
    (away / "deeper").symlink_to(inner)
    (folder / "b").symlink_to(away)
    (folder / "a.txt").symlink_to("../away/one.txt")
    return folder


def test_a_folder_of_links_is_read_as_what_they_lead_to(linked):
    names = [str(path.relative_to(linked)) for path in matching(str(linked))]
    assert names == ["a.txt", "b/one.txt", "b/deeper/two.txt"]
    (linked.parent / "whole").symlink_to(linked)
    assert len(matching(str(linked.parent / "whole"))) == 3
    texts = build_section(Text(path=str(linked)), path="data").documents()
    assert ["".join(text) for text in texts] == ["one", "one", "two"]


def test_a_link_to_nothing_is_named(linked):
    lost = linked / "b" / "deeper" / "lost.txt"
    lost.symlink_to("nowhere.txt")
    for pattern in (linked, lost, linked / "b" / "**" / "*.txt"):
        with pytest.raises(ValueError, match=re.escape(f"lost.txt {GONE}")):
            matching(str(pattern))
    (linked / "too.txt").symlink_to("nowhere.txt")
    with pytest.raises(ValueError, match="2 of 5 files cannot be read") as refused:
        matching(str(linked))
    assert all(f"{name} {GONE}" in str(refused.value) for name in ("lost.txt", "too.txt"))
    what, _ = path_fault(str(lost)) or ("", "")
    assert what.startswith(f"{lost} {GONE}")


def test_a_link_back_is_named_and_not_followed_for_ever(linked):
    (linked.parent / "inner" / "back").symlink_to(linked)
    with pytest.raises(ValueError, match=r"deeper/back is a link to .*folder, a folder that it is"):
        matching(str(linked))


def test_a_shard_that_leads_nowhere_is_named(tmp_path):
    np.arange(200, dtype=np.uint16).tofile(tmp_path / "a.bin")
    (tmp_path / "b.bin").symlink_to(tmp_path / "a.bin")
    section: Any = Shards(path=str(tmp_path), dtype="uint16", val_fraction=0)
    text: Any = prepare_tokens(section, Bytes(), build=build_section).train
    assert len(text) == 400
    (tmp_path / "c.bin").symlink_to("nowhere.txt")
    with pytest.raises(ValueError, match=re.escape(f"c.bin {GONE}")):
        prepare_tokens(section, Bytes(), build=build_section)


def test_a_folder_that_may_not_be_read_is_named(linked, monkeypatch):
    """Not by its mode, since whoever runs the tests may read all."""
    scan, closed = os.scandir, str(linked.parent / "inner")

    def scandir(path="."):
        if os.path.realpath(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    assert len(matching(str(linked))) == 3
    monkeypatch.setattr(os, "scandir", scandir)
    said = re.escape(
        f"{linked / 'b' / 'deeper'} cannot be looked into: Permission denied. Allow it"
    )
    with pytest.raises(ValueError, match=said):
        matching(str(linked))
    with pytest.raises(ValueError, match=r"inner cannot be looked into: Permission denied\. Allow"):
        matching(str(linked.parent / "**" / "*.txt"))
    assert len(matching(str(linked / "*.txt"))) == 1
