"""The run directory: the parent makes it and changes it, every worker reads it."""

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
from forge.config.problems import refusal
from forge.config.root import Config
from forge.rundir import provenance, saved_config, versions
from forge.rundir.annotations import annotate
from forge.rundir.files import read_object, write_json
from forge.rundir.lock import InUse, Lock
from forge.rundir.provenance import Provenance
from forge.rundir.saved_config import (
    CONFIG,
    is_run,
    last_started,
    numbered,
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


class OfRun(Protocol):
    """What says which run it is of, as a result does."""

    @property
    def run_dir(self) -> Path: ...


Place = str | os.PathLike[str] | OfRun
"""A run, or a checkpoint, as it is named from Python."""


@dataclass(frozen=True, kw_only=True)
class Before:
    """What is there before a run directory is made. fresh: no run. names: in the directory, None
    where there is none. absent: folders to be made, the deepest first.
    """

    fresh: bool
    names: frozenset[str] | None
    absent: tuple[Path, ...]

    def restore(self, run_dir: Path) -> None:
        """Remove a fresh run that is not worth keeping, unless another process works in it."""
        with suppress(OSError, InUse), Lock(run_dir).acquire():
            for path in list(run_dir.iterdir()):
                if path.name not in (self.names or ()):
                    is_folder = path.is_dir() and not path.is_symlink()
                    shutil.rmtree(path) if is_folder else path.unlink()
        for folder in dict.fromkeys((run_dir, *self.absent)) if self.names is None else ():
            with suppress(OSError):
                folder.rmdir()


def before(config: Config) -> Before:
    given = config.run.dir
    path = Path(given or config.run.root).absolute()
    names = frozenset(os.listdir(path)) if given and path.is_dir() else None
    return Before(fresh=given is None or not is_run(path), names=names, absent=_absent(path))


def prepare(
    resolution: Resolution, *, overrides: Sequence[str], made: Provenance | None = None
) -> tuple[Path, list[Change]]:
    """Make the directory of a run, or take up the one in run.dir; with the changes. Raises
    ConfigError.
    """
    given = resolution.config.run.dir
    if given is not None and is_run(Path(given)):
        path = Path(given).resolve()
        return path, go_on(path, resolution, overrides=overrides)
    return create(resolution, overrides=overrides, made=made)[0], []


def create(
    resolution: Resolution, *, overrides: Sequence[str], made: Provenance | None = None
) -> tuple[Path, Config]:
    """Make a run directory; config.yaml comes last and makes it a run. Raises ConfigError.

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
                raise InUse(
                    f"another process has just made a run in {path}. "
                    "Type the command again, or give another run.dir"
                )
            write_json(path / MADE_WITH, {"run_id": secrets.token_hex(8), **made.facts})
            if made.diff and config.run.record_diff:
                (path / "git.diff").write_text(made.diff, encoding="utf-8")
            if config.tags:
                annotate(path, tags=config.tags, note="")
            _write_version(path, 1, config, resolution, overrides)
    return path, config


def go_on(path: Path, resolution: Resolution, *, overrides: Sequence[str]) -> list[Change]:
    """Keep the config of a run that goes on as config.N.yaml and in changes.jsonl, with its
    overrides and the changes, which are returned and which the rules have checked. Raises
    ConfigError.

    Versions that the run never started with are replaced; config.yaml and the one before remain.
    """
    with _explained(path, "run.dir"), Lock(path).acquire():
        config = _placed(resolution.config, path)
        started = last_started(path)
        n = max(started, 1)
        file = path / numbered(CONFIG, n)
        old = saved_config.load(file, trust=config.run.trust)
        old = replace(old, run=replace(old.run, trust=saved_config.stored_trust(file)))
        found = changes(old, config)
        for version in path.glob("config.*.yaml"):
            if saved_config.version(version.name) > n:
                version.unlink()
        if found and started:
            row = {"changes": [asdict(one) for one in found], "provenance": provenance.facts()}
            row["config"] = saved_config.to_plain(config)
            _write_version(path, started + 1, config, resolution, overrides, row)
            versions.prune(path, started)
        elif found:
            _write_version(path, 1, config, resolution, overrides)
    return found


def changed(run_dir: Path, since: str = "") -> list[Change]:
    """What the config in force changes, against the file `since` or the version before it."""
    last = versions.in_force(run_dir)
    first = saved_config.version(since) + 1 if since else last
    return [
        Change(**change)
        for n in range(max(first, 2), last + 1)
        for change in versions.read(run_dir, "changes", n)
    ]


def run_id(run_dir: Path) -> str:
    """The id that a run keeps wherever it is moved, also in its checkpoints. Raises ValueError."""
    file = run_dir / MADE_WITH
    try:
        return str(read_object(file)["run_id"])
    except (OSError, ValueError, KeyError):
        what = f"{file} is missing or damaged, and with it the id of the run; begin another"
        raise ValueError(what) from None


def resume_command(run_dir: Path) -> str:
    """What to type for the run to go on; the overrides that need trust are typed again, but for
    those of the project that it is typed in.
    """
    try:
        own = own_overrides(run_dir)
        options = reaching_out(read_plain(run_dir))
        asked = [
            *(text for text in code_overrides(own) if text not in of_project("overrides")),
            *overrides_behind(options, other_overrides(own)),
            *filter(reads_environment, own),
        ]
    except (OSError, ValueError, TypeError):
        asked = []  # the command itself will say what is wrong with the files
    return shlex.join(["python", "-m", "forge.resume", short(run_dir), *dict.fromkeys(asked)])


def prolonging_override(run_dir: Path, reason: str, step: int) -> str:
    """What to add to the command of a finished run for it to go on twice as long."""
    if reason != "end":
        return "..."
    train = read_plain(run_dir)["train"]
    epochs = train["max_epochs"]
    if epochs and step < train["max_steps"]:
        return f"train.max_epochs={2 * epochs:g}"
    return f"train.max_steps={2 * step}"


def own_overrides(run_dir: Path) -> list[str]:
    """The overrides with which a run last started. Raises OSError, ValueError and TypeError."""
    stored = versions.read(run_dir, "overrides", max(last_started(run_dir), 1))
    return [str(text) for text in stored]


def fresh_name(label: str) -> str:
    """A dated name that no other run has, also within the same second."""
    return f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{readable(label)}_{secrets.token_hex(4)}"


def readable(label: str) -> str:
    """A label as it stands in the name of a directory, where 255 bytes are the most."""
    clean = "".join(c if c.isalnum() or c in "-_." else "-" for c in label)
    return clean.encode()[:100].decode(errors="ignore")


def path_of(run: Place) -> Path:
    """The directory that is meant."""
    return Path(run if isinstance(run, str | os.PathLike) else run.run_dir)


def short(path: Path) -> str:
    """A path relative to the working directory, when it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


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
    versions.write(path, n, **parts, **more)
    saved_config.save(config, path / numbered(CONFIG, n))


def _placed(config: Config, path: Path) -> Config:
    config = replace(config, run=replace(config.run, dir=str(path)))
    config.freeze()
    return config


def _absent(path: Path) -> tuple[Path, ...]:
    return tuple(folder for folder in (path, *path.parents) if not os.path.lexists(folder))


@contextmanager
def _explained(path: Path, key: str, absent: Sequence[Path] = ()) -> Iterator[None]:
    """Errors as a ConfigError, and what was made of the absent folders is removed again."""
    try:
        yield
    except InUse as error:
        what, _, fix = str(error).partition(". ")
        raise refusal(f"run.dir={path}", f"{what}.", fix) from None
    except OSError as error:
        for folder in absent[:1]:
            shutil.rmtree(folder, ignore_errors=True)
        for folder in absent[1:]:
            with suppress(OSError):
                folder.rmdir()
        what = f"the run directory {path} cannot be written: {error.strerror or error}."
        fix = "choose another place with run.root or run.dir"
        raise refusal(f"{key}={path}", what, fix) from None
