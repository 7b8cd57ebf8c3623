"""The run directory: made and changed by the parent, read by every worker."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from forge.config.changes import Change, changes
from forge.config.places import is_remote
from forge.config.problems import refusal
from forge.config.root import Config
from forge.rundir import provenance, saved_config, versions
from forge.rundir.annotations import annotate
from forge.rundir.files import NoRename, check_rename, read_object, write_json
from forge.rundir.lock import DirectoryInUse, Lock
from forge.rundir.provenance import Provenance
from forge.rundir.saved_config import (
    CONFIG,
    is_run,
    last_started,
    numbered_file,
    read_plain,
)
from forge.rundir.untrusted import (
    code_overrides,
    of_project,
    other_overrides,
    overrides_behind,
    reaching_out,
    reads_environment,
)

if TYPE_CHECKING:
    from forge.resolve.resolve import Resolution

MADE_WITH = "provenance.json"


class RunObject(Protocol):
    """An object of a run, for example a result."""

    @property
    def run_dir(self) -> Path: ...


Place = str | os.PathLike[str] | RunObject
"""A run or a checkpoint, as named from Python."""


@dataclass(frozen=True, kw_only=True)
class DirectoryState:
    """The state before a run directory is made.

    fresh: no run exists. names: entries of the directory, None where the directory is absent.
    absent: folders to be made, the deepest first.
    """

    fresh: bool
    names: frozenset[str] | None
    absent: tuple[Path, ...]

    def restore(self, run_dir: Path) -> None:
        """Remove a fresh run not worth keeping, unless another process works in the directory."""
        with suppress(OSError, DirectoryInUse), Lock(run_dir).acquire():
            for path in list(run_dir.iterdir()):
                if path.name not in (self.names or ()):
                    is_folder = path.is_dir() and not path.is_symlink()
                    shutil.rmtree(path) if is_folder else path.unlink()
        for folder in dict.fromkeys((run_dir, *self.absent)) if self.names is None else ():
            with suppress(OSError):
                folder.rmdir()


def before(config: Config) -> DirectoryState:
    run_dir = config.run.dir
    path = Path(run_dir or config.run.root).absolute()
    names = frozenset(os.listdir(path)) if run_dir and path.is_dir() else None
    return DirectoryState(
        fresh=run_dir is None or not is_run(path), names=names, absent=_absent(path)
    )


def prepare_directory(
    resolution: Resolution, *, overrides: Sequence[str], made: Provenance | None = None
) -> tuple[Path, list[Change]]:
    """Make the directory of a run, or take up the run in run.dir; with the changes. Raises
    ConfigError.
    """
    run_dir = resolution.config.run.dir
    if run_dir is not None and is_run(Path(run_dir)):
        path = Path(run_dir).resolve()
        return path, continue_run(path, resolution, overrides=overrides)
    return create(resolution, overrides=overrides, made=made)[0], []


def create(
    resolution: Resolution, *, overrides: Sequence[str], made: Provenance | None = None
) -> tuple[Path, Config]:
    """Make a run directory; config.yaml comes last and makes the directory a run. Raises
    ConfigError.

    made: the provenance, where many runs are made at once.
    """
    config, made = resolution.config, made or provenance.collect()
    root, label = Path(config.run.root), config.run.name or config.preset
    path = Path(config.run.dir) if config.run.dir else root / fresh_name(label)
    with _explained(path, "run.dir" if config.run.dir else "run.root", absent=_absent(path)):
        path.mkdir(parents=True, exist_ok=config.run.dir is not None)
        path = path.resolve()
        config = _placed(config, path)
        with Lock(path).acquire():
            if is_run(path):
                raise DirectoryInUse(
                    f"another process has just made a run in {path}. "
                    "Type the command again, or give another run.dir"
                )
            check_rename(path)
            write_json(path / MADE_WITH, {"run_id": secrets.token_hex(8), **made.facts})
            if made.diff and config.run.record_diff:
                (path / "git.diff").write_text(made.diff, encoding="utf-8")
            if config.tags:
                annotate(path, tags=config.tags, note="")
            _write_version(path, 1, config, resolution, overrides)
    return path, config


def continue_run(path: Path, resolution: Resolution, *, overrides: Sequence[str]) -> list[Change]:
    """Keep the config of a continued run as config.N.yaml and in changes.jsonl.

    With the config go the run's overrides and the changes, returned, and checked before by the
    rules. Raises ConfigError. Versions never started are replaced; config.yaml and the previous
    version remain.
    """
    with _explained(path, "run.dir"), Lock(path).acquire():
        config = _placed(resolution.config, path)
        started = last_started(path)
        n = max(started, 1)
        file = path / numbered_file(CONFIG, n)
        old = saved_config.load_config(file, trust=config.run.trust)
        old = replace(old, run=replace(old.run, trust=saved_config.stored_trust(file)))
        config_changes = changes(old, config)
        for version in path.glob("config.*.yaml"):
            if saved_config.version(version.name) > n:
                version.unlink()
        if config_changes and started:
            row = {
                "changes": [asdict(change) for change in config_changes],
                "provenance": provenance.facts(),
            }
            row["config"] = saved_config.to_plain(config)
            _write_version(path, started + 1, config, resolution, overrides, row)
            versions.prune(path, started)
        elif config_changes:
            _write_version(path, 1, config, resolution, overrides)
    return config_changes


def changed(run_dir: Path, since: str = "") -> list[Change]:
    """The changes in the config in force, against the file `since` or the version before."""
    last = versions.number_in_force(run_dir)
    first = saved_config.version(since) + 1 if since else last
    return [
        Change(**change)
        for n in range(max(first, 2), last + 1)
        for change in versions.read_config_part(run_dir, "changes", n)
    ]


def run_id(run_dir: Path) -> str:
    """The id of a run, kept wherever the run is moved, also in its checkpoints. Raises
    ValueError.
    """
    file = run_dir / MADE_WITH
    try:
        return str(read_object(file)["run_id"])
    except (OSError, ValueError, KeyError):
        message = f"{file} is missing or damaged, and with it the id of the run; begin another"
        raise ValueError(message) from None


def resume_command(run_dir: Path) -> str:
    """The command for the run to continue.

    Overrides in need of trust are typed again, except overrides of the current project.
    """
    try:
        typed = own_overrides(run_dir)
        options = reaching_out(read_plain(run_dir))
        asked = [
            *(text for text in code_overrides(typed) if text not in of_project("overrides")),
            *overrides_behind(options, other_overrides(typed)),
            *filter(reads_environment, typed),
        ]
    except (OSError, ValueError, TypeError):
        asked = []  # the command itself reports the fault of the files
    return shlex.join(["python", "-m", "forge.resume", short(run_dir), *dict.fromkeys(asked)])


def prolonging_override(run_dir: Path, reason: str, step: int) -> str:
    """The addition to the command of a finished run for twice the length."""
    if reason != "end":
        return "..."
    train = read_plain(run_dir)["train"]
    epochs = train["max_epochs"]
    if epochs and step < train["max_steps"]:
        return f"train.max_epochs={2 * epochs:g}"
    return f"train.max_steps={2 * step}"


def own_overrides(run_dir: Path) -> list[str]:
    """The overrides of a run's last start. Raises OSError, ValueError and TypeError."""
    stored = versions.read_config_part(run_dir, "overrides", max(last_started(run_dir), 1))
    return [str(text) for text in stored]


def fresh_name(label: str) -> str:
    """A dated name unique among runs, also within the same second."""
    return f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{directory_name(label)}_{secrets.token_hex(4)}"


def directory_name(label: str) -> str:
    """A label in the form of a directory name, 255 bytes at most."""
    clean = "".join(c if c.isalnum() or c in "-_." else "-" for c in label)
    return clean.encode()[:100].decode(errors="ignore")


def path_of(run: Place) -> Path:
    """The directory of a run or checkpoint; of an address that of a copy. Raises RemoteError."""
    if isinstance(run, str) and is_remote(run):
        from forge.rundir.remote.local_copy import local_copy_of  # imported late: of few callers

        return local_copy_of(run)
    return Path(run if isinstance(run, str | os.PathLike) else run.run_dir)


def short(path: Path) -> str:
    """A path relative to the working directory, when below the working directory."""
    working_dir = Path.cwd()
    return str(path.relative_to(working_dir) if path.is_relative_to(working_dir) else path)


def _write_version(
    path: Path,
    n: int,
    config: Config,
    resolution: Resolution,
    overrides: Sequence[str],
    more: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    parts = {"overrides": list(overrides), "derived": [asdict(d) for d in resolution.derived]}
    parts["warnings"] = [asdict(w) for w in resolution.warnings]
    versions.write_parts(path, n, **parts, **more)
    saved_config.save_config(config, path / numbered_file(CONFIG, n))


def _placed(config: Config, path: Path) -> Config:
    config = replace(config, run=replace(config.run, dir=str(path)))
    config.freeze()
    return config


def _absent(path: Path) -> tuple[Path, ...]:
    return tuple(folder for folder in (path, *path.parents) if not os.path.lexists(folder))


@contextmanager
def _explained(path: Path, key: str, absent: Sequence[Path] = ()) -> Iterator[None]:
    """Turn errors into a ConfigError, and remove folders made from the absent folders."""
    try:
        yield
    except DirectoryInUse as error:
        message, _, hint = str(error).partition(". ")
        raise refusal(f"run.dir={path}", f"{message}.", hint) from None
    except OSError as error:
        for folder in absent[:1]:
            shutil.rmtree(folder, ignore_errors=True)
        for folder in absent[1:]:
            with suppress(OSError):
                folder.rmdir()
        message = f"the run directory {path} cannot be written: {error.strerror or error}."
        hint = "choose another place with run.root or run.dir"
        if isinstance(error, NoRename):
            hint = f"{key} on a disk, and checkpoint.remote=s3://bucket/runs for copies in a store"
        raise refusal(f"{key}={path}", message, hint) from None
