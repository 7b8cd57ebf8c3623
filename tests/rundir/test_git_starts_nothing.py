"""git of a folder that somebody handed over starts none of the programs that the folder names."""

from __future__ import annotations

import os
import subprocess

import pytest

from forge.compose import project, trust
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


def test_git_is_not_run_in_a_project_before_it_is_trusted(tmp_path, monkeypatch):
    """Nor where a folder below its root is typed in, nor once it has become somebody else's."""
    calls, programs = tmp_path / "calls", tmp_path / "programs"
    folder = tmp_path / "theirs" / "below"
    for made in (programs, folder):
        made.mkdir(parents=True)
    (programs / "git").write_text(f'#!/bin/sh\necho "$@" >> {calls}\necho 1234\n')
    (programs / "git").chmod(0o755)
    (folder.parent / "forge.yaml").write_text("trust: [theirs.]\n")
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(folder)

    def asked() -> bool:
        calls.write_text("")
        made = provenance.collect()
        assert made.facts["git_revision"] == "1234"  # of forge itself
        assert f"-C {provenance.OURS} " in calls.read_text()
        assert made.facts["cwd_git_revision"] == ("1234" if trusted else None)
        return f"-C {folder}" in calls.read_text()

    trusted = False
    assert not asked()
    found = project.find_project()
    assert found is not None
    trust.remember(found)
    trusted = True
    assert asked()
    registry = tmp_path / "config" / "forge" / "trusted.json"
    registry.write_text(registry.read_text().replace(str(os.getuid()), "4711"))
    trusted = False
    assert not asked()
