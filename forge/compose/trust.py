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
    """The project that a directory is in, by default the working one, once it is trusted; its
    modules can then be imported. Raises ConfigError.
    """
    found = project.find(start)
    return use(found) if found else None


def in_project(typed: Sequence[str]) -> list[str]:
    """The overrides of a command: what the project says that it is typed in, then those typed.
    Raises ConfigError.
    """
    found = entered()
    return found.words(typed) if found else list(typed)


def where_trusted(typed: Sequence[str]) -> list[str]:
    """The same for a text that only shows what there is: where the project cannot be used yet, it
    is said, and what is typed stands alone.
    """
    try:
        found = project.find()
        if found is None or is_trusted(found):
            return use(found).words(typed) if found else list(typed)
        said = f"the project in {found.root} is not yet trusted on this machine"
    except ConfigError as error:
        said = str(error)
    print(f"without the groups of the project: {said}", file=sys.stderr)
    return list(typed)


def use(found: Project) -> Project:
    """The same of a project that was found; which one it is, is said on stderr."""
    if not is_trusted(found):
        ask(found)
    _say(found.name, found.file)
    found.enter()
    return found


def for_run(run: Path, given: Sequence[str]) -> list[str]:
    """The prefixes that the model of a run, or of a checkpoint, may be built from: those given,
    else what the run was made with, where the project that it lies in, or that this is typed in,
    is trusted with it. Raises ConfigError.
    """
    try:
        wanted = () if given else stored_trust(newest(run))
    except (OSError, ValueError, KeyError, TypeError):
        return list(given)  # who reads the run says what is wrong with it
    word = f"{TRUST}=[{','.join(map(quoted, wanted))}]"
    found = project.allowing([word], (run, Path.cwd())) if wanted else None
    if found is None:
        return list(given)
    use(found)
    return list(wanted)


@functools.cache
def _say(name: str, file: Path) -> None:
    print(f"project: {name} ({file})", file=sys.stderr)


def is_trusted(found: Project) -> bool:
    """Whether the user has allowed all that a project lets be imported and read, and whose it was
    then is whose it is.
    """
    entry = known().get(str(found.root))
    if not isinstance(entry, dict) or entry.get("owners") != owners(found.file):
        return False
    return all(set(entry.get(key, ())).issuperset(now) for key, now in _allows(found).items())


def remember(found: Project) -> None:
    """Trust a project from now on, as it is. Raises ConfigError where that cannot be kept."""
    entry = {**_allows(found), "owners": owners(found.file)}
    file = registry()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(file, {**known(), str(found.root): entry})
    except OSError as error:
        message = (
            f"{file}, which keeps what you trust, cannot be written: {error.strerror or error}."
        )
        raise refusal(str(file), message, "XDG_CONFIG_HOME=DIR") from None


def ask(found: Project) -> None:
    """Ask whether a project is trusted, and keep the answer. Raises ConfigError for any but yes,
    and where nobody can be asked.
    """
    message = f"the project in {found.root} is not yet trusted on this machine."
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        how = shlex.join(["python", "-m", "forge.new", "--trust", str(found.root)])
        lets = "; it ".join(described(found))
        raise _refusal(found, f"{message} It {lets}.", f"if you trust it: {how}")
    lines = [message, *(f"  it {line}" for line in described(found)), "Do you trust it? [y/N] "]
    print("\n".join(lines), end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise _refusal(found, message, "answer y, or type the command outside of it")
    remember(found)


def described(found: Project) -> list[str]:
    """What a project does where it is trusted, and who else may change it."""
    packages = [one for one in found.searchpath if "://" in one]
    folders = [one for one in found.searchpath if "://" not in one]
    modules = [*found.trust, *(one.partition("://")[2] for one in packages)]
    said = [f"lets {', '.join(modules)} be imported and run"] if modules else []
    said += [f"adds the groups in {', '.join(folders)}"] if folders else []
    said += [f"begins each command with {shlex.join(found.defaults)}"] if found.defaults else []
    return [*(said or ["says nothing yet"]), *_others(found)]


def _others(found: Project) -> list[str]:
    """Who else may write in it."""
    said = []
    for path in (found.root, found.file):
        facts = path.stat()
        if facts.st_uid not in (0, os.getuid()):
            said.append(f"belongs to {_name(facts.st_uid)}: {path}")
        if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            said.append(f"may be written by others: {path}")
    return said


def _name(user: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    return f"user {user}"


def _allows(found: Project) -> dict[str, list[str]]:
    """What is asked for, anew where there is more of it."""
    return {"trust": list(map(str, found.trust)), "searchpath": list(map(str, found.searchpath))}


def _refusal(found: Project, what: str, fix: str) -> ConfigError:
    return refusal(found.name, what, fix, str(found.file))
