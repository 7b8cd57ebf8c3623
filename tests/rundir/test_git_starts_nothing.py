"""git of a folder that somebody handed over starts none of the programs that the folder names."""

from __future__ import annotations

import subprocess

import pytest

from forge.rundir import provenance


@pytest.mark.parametrize(
    "setting",
    ["core.fsmonitor", "filter.mine.clean", "filter.mine.process", "core.hooksPath"],
)
def test_a_program_of_the_folder_is_not_started(tmp_path, monkeypatch, setting):
    def git(*words):
        author = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *author, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "a.txt").write_text("one\n")
    git("add", ".")
    git("commit", "-qm", "first")
    marker = tmp_path / "started"
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    program = hooks / "post-index-change"
    program.write_text(f"#!/bin/sh\ntouch {marker}\ncat\n")
    program.chmod(0o755)
    (tmp_path / ".gitattributes").write_text("*.txt filter=mine\n")
    git("config", setting, str(hooks if setting == "core.hooksPath" else program))
    (tmp_path / "a.txt").write_text("two\n")
    monkeypatch.chdir(tmp_path)
    assert "+two" in provenance.collect().diff
    assert not marker.exists()
