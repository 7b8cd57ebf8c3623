"""Which projects this user trusts on this machine: asked once, and kept in trusted.json."""

from __future__ import annotations

import functools
import os
import pwd
import shlex
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from forge.compose import project
from forge.compose.project import Project
from forge.config.problems import ConfigError, quoted, refusal
from forge.rundir.files import write_json
from forge.rundir.saved_config import newest, stored_trust
from forge.rundir.trusted import known, owners, registry
from forge.rundir.untrusted import TRUST


def entered(start: Path | None = None) -> Project | None:
    """The trusted project around a directory, by default the working directory, with its modules
    importable. Raises ConfigError.
    """
    current = project.find_project(start)
    return use(current) if current else None


def in_project(typed: Sequence[str]) -> list[str]:
    """The overrides of a command: the surrounding project's, then the typed overrides. Raises
    ConfigError.
    """
    current = entered()
    return current.words(typed) if current else list(typed)


def where_trusted(typed: Sequence[str]) -> list[str]:
    """The overrides of a command for display only: a project without trust is reported on stderr,
    and the typed overrides stand alone.
    """
    try:
        current = project.find_project()
        if current is None or is_trusted(current):
            return use(current).words(typed) if current else list(typed)
        reason = f"the project in {current.root} is not yet trusted on this machine"
    except ConfigError as error:
        reason = str(error)
    print(f"without the groups of the project: {reason}", file=sys.stderr)
    return list(typed)


def use(project: Project) -> Project:
    """Enter a project once trusted, and name the project on stderr."""
    if not is_trusted(project):
        _ask_for_trust(project)
    _say(project.name, project.file)
    project.enter()
    return project


def for_run(run: Path, given: Sequence[str]) -> list[str]:
    """The trusted prefixes for the model of a run, or of a checkpoint: `given`, else the prefixes
    stored in the run, where a trusted project allows all of the stored prefixes: the project around
    the run, or around the working directory. Raises ConfigError.
    """
    try:
        stored = () if given else stored_trust(newest(run))
    except (OSError, ValueError, KeyError, TypeError):
        return list(given)  # the reader of the run reports the fault
    word = f"{TRUST}=[{','.join(map(quoted, stored))}]"
    allowed = project.allowing([word], (run, Path.cwd())) if stored else None
    if allowed is None:
        return list(given)
    use(allowed)
    return list(stored)


@functools.cache
def _say(name: str, file: Path) -> None:
    print(f"project: {name} ({file})", file=sys.stderr)


def is_trusted(project: Project) -> bool:
    """Whether the user has allowed all imports and folders of a project, and the owners of the
    project are unchanged.
    """
    entry = known().get(str(project.root))
    if not isinstance(entry, dict) or entry.get("owners") != owners(project.file):
        return False
    return all(set(entry.get(key, ())).issuperset(now) for key, now in _allows(project).items())


def remember(project: Project) -> None:
    """Trust a project in its present form. Raises ConfigError for an unwritable registry."""
    entry = {**_allows(project), "owners": owners(project.file)}
    file = registry()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(file, {**known(), str(project.root): entry})
    except OSError as error:
        message = (
            f"{file}, which keeps what you trust, cannot be written: {error.strerror or error}."
        )
        raise refusal(str(file), message, "XDG_CONFIG_HOME=DIR") from None


def _ask_for_trust(project: Project) -> None:
    """Ask the user to trust a project, and store the answer. Raises ConfigError for any answer but
    yes, and without a terminal.
    """
    message = f"the project in {project.root} is not yet trusted on this machine."
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        command = shlex.join(["python", "-m", "forge.new", "--trust", str(project.root)])
        lets = "; it ".join(described(project))
        raise _refusal(project, f"{message} It {lets}.", f"if you trust it: {command}")
    lines = [message, *(f"  it {line}" for line in described(project)), "Do you trust it? [y/N] "]
    print("\n".join(lines), end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise _refusal(project, message, "answer y, or type the command outside of it")
    remember(project)


def described(project: Project) -> list[str]:
    """The effects of trusting a project, and the other users able to change the project."""
    packages = [entry for entry in project.searchpath if "://" in entry]
    folders = [entry for entry in project.searchpath if "://" not in entry]
    modules = [*project.trust, *(entry.partition("://")[2] for entry in packages)]
    effects = [f"lets {', '.join(modules)} be imported and run"] if modules else []
    effects += [f"adds the groups in {', '.join(folders)}"] if folders else []
    effects += (
        [f"begins each command with {shlex.join(project.defaults)}"] if project.defaults else []
    )
    return [*(effects or ["says nothing yet"]), *_others(project)]


def _others(project: Project) -> list[str]:
    """The other users able to write in a project."""
    risks = []
    for path in (project.root, project.file):
        facts = path.stat()
        if facts.st_uid not in (0, os.getuid()):
            risks.append(f"belongs to {_name(facts.st_uid)}: {path}")
        if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            risks.append(f"may be written by others: {path}")
    return risks


def _name(user: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    return f"user {user}"


def _allows(project: Project) -> dict[str, list[str]]:
    """The permissions of a project; the user is asked again for further permissions."""
    return {
        "trust": list(map(str, project.trust)),
        "searchpath": list(map(str, project.searchpath)),
    }


def _refusal(project: Project, what: str, fix: str) -> ConfigError:
    return refusal(project.name, what, fix, str(project.file))
