"""The run directory: made once by the parent, changed by it when the run goes on, read by every
worker.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yaml import YAMLError

from forge.config.changes import Change, changes, permitted
from forge.config.problems import ConfigError, Problem
from forge.config.root import Config
from forge.rundir import serialize, stored
from forge.rundir.checkpoints import listed, saved_folder
from forge.rundir.consent import behind, consent, looks_up, reaching, without_consent
from forge.rundir.lock import Held, Lock
from forge.rundir.provenance import diff, provenance
from forge.rundir.stored import CONFIG, fields_of, is_run, newest, numbered, read_json, read_yaml

if TYPE_CHECKING:
    from forge.resolve.resolve import Resolution

ERROR, RESULT, OVERRIDES = "error.json", "result.json", "overrides.json"
OF_RESULT = {"status": str, "reason": str, "step": int, "config": str, "metrics": dict}
PROLONGING = {
    "end": ("train.max_steps", "train.max_epochs"),
    "max_time": ("train.max_time",),
    "target": ("eval",),
    "patience": ("eval",),
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended: status, reason, final metrics, and the value of run.objective (None when it
    was never logged).
    """

    run_dir: Path
    status: str
    reason: str
    step: int
    metrics: dict[str, float]
    objective: float | None


@dataclass(frozen=True, kw_only=True)
class Made:
    """What runs that are made together have in common: their provenance, and the changes of the
    working tree.
    """

    provenance: dict[str, Any]
    diff: str


def made_now() -> Made:
    """Git is asked several times for it."""
    return Made(provenance=provenance(), diff=diff())


@dataclass(frozen=True, kw_only=True)
class Before:
    """What there was where a run directory is to be made. fresh: no run. names: in the directory,
    when it was there.

    absent: folders that were not there, the deepest first.
    """

    fresh: bool
    names: frozenset[str] | None
    absent: tuple[Path, ...]

    def restore(self, run_dir: Path) -> None:
        """Take back a fresh run directory of which nothing is worth keeping, unless another process
        has just begun to work in it.
        """
        with suppress(OSError, Held), Lock(run_dir).acquire():
            for path in [path for path in run_dir.iterdir() if path.name not in (self.names or ())]:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for folder in dict.fromkeys((run_dir, *self.absent)) if self.names is None else ():
            with suppress(OSError):
                folder.rmdir()


def before(config: Config) -> Before:
    """To be asked before `prepare`."""
    given = config.run.dir
    path = Path(given or config.run.root).absolute()
    names = frozenset(os.listdir(path)) if given and path.is_dir() else None
    absent = tuple(folder for folder in (path, *path.parents) if not os.path.lexists(folder))
    return Before(fresh=given is None or not is_run(path), names=names, absent=absent)


def prepare(
    resolution: Resolution,
    *,
    overrides: Sequence[str],
    made: Made | None = None,
) -> tuple[Path, list[Change]]:
    """The directory of a run that is to start or to go on, with all that its worker reads; and what
    changes. Raises ConfigError.
    """
    given = resolution.config.run.dir
    if given is not None and is_run(Path(given)):
        path = Path(given).resolve()
        return path, go_on(path, resolution, overrides=overrides)
    return create(resolution, overrides=overrides, made=made)[0], []


def create(
    resolution: Resolution,
    *,
    overrides: Sequence[str],
    made: Made | None = None,
) -> tuple[Path, Config]:
    """Make the directory and write the resolved config, overrides, provenance and warnings into it.

    config.yaml comes last and makes it a run. made: with what, where many runs are made at once.
    Raises ConfigError when the directory cannot be made.
    """
    config, made = resolution.config, made or made_now()
    path = (
        Path(config.run.dir)
        if config.run.dir
        else Path(config.run.root) / fresh_name(config.run.name or config.preset)
    )
    key = "run.dir" if config.run.dir else "run.root"
    absent = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    try:
        path.mkdir(parents=True, exist_ok=config.run.dir is not None)
        path = path.resolve()
        config = replace(config, run=replace(config.run, dir=str(path)))
        config.freeze()
        with Lock(path).acquire():
            if is_run(path):
                raise Held(
                    f"another process has just made a run in {path}. Type the command again, or give another run.dir"
                )
            write_json(
                path / "provenance.json", {"run_id": secrets.token_hex(8), **made.provenance}
            )
            if made.diff and config.run.record_diff:
                (path / "git.diff").write_text(made.diff, encoding="utf-8")
            _write_version(path, 1, config, resolution, overrides)
    except Held as error:
        raise _held(path, error) from None
    except OSError as error:
        _remove(absent)
        raise _unwritable(f"{key}={path}", path, error) from None
    return path, config


def go_on(path: Path, resolution: Resolution, *, overrides: Sequence[str]) -> list[Change]:
    """Keep what changes in a run that goes on as config.N.yaml, with its overrides and the list of
    changes, which is returned.

    A version that the run never started with gives way. Which changes are allowed is a matter of
    the rules. Raises ConfigError when another process works in the directory, or it cannot be
    written.
    """
    config = replace(resolution.config, run=replace(resolution.config.run, dir=str(path)))
    config.freeze()
    try:
        with Lock(path).acquire():
            base = stored.settled(path)
            file = path / numbered(CONFIG, max(base, 1))
            before = serialize.load(file, trust=config.run.trust)
            before = replace(before, run=replace(before.run, trust=serialize.stored_trust(file)))
            found = changes(before, config)
            if base and any(
                not change.free and not permitted(change.key, config.run.allow_change)
                for change in found
            ):
                raise Held(
                    f"another process has just changed the run in {path}. Type the command again"
                )
            _drop_versions(path, above=max(base, 1))
            if found and base:
                write_json(
                    path / numbered("changes.json", base + 1), [asdict(change) for change in found]
                )
                write_json(path / numbered("provenance.json", base + 1), provenance())
            if found:
                _write_version(path, base + 1, config, resolution, overrides)
    except Held as error:
        raise _held(path, error) from None
    except OSError as error:
        raise _unwritable(f"run.dir={path}", path, error) from None
    return found


def changed(run_dir: Path, since: str = "") -> list[Change]:
    """What the config in force has changed: since the file `since`, or since the version before it."""
    n = stored.number(newest(run_dir).name)
    first = stored.number(since) + 1 if since else n
    found: list[Change] = []
    for version in range(max(first, 2), n + 1):
        found += [
            Change(**change) for change in read_json(run_dir / numbered("changes.json", version))
        ]
    return found


def finished(run_dir: Path) -> Result | None:
    """The result of a run that has nothing left to do: it finished, and nothing that ended it was
    changed since.
    """
    result = read_result(run_dir)
    if result is None or result.status != "finished":
        return None
    since = changed(run_dir, read_json(run_dir / RESULT)["config"])
    sections = PROLONGING.get(result.reason)
    for change in since:
        if (
            sections is None
            or change.key.startswith(sections)
            or (change.key == "checkpoint.resume_from" and change.after is not None)
        ):
            return None
    return result


def run_id(run_dir: Path) -> str:
    """What tells this run from every other, wherever its directory is moved; also in each of its
    checkpoints.

    Raises ValueError when no file has it any more.
    """
    try:
        return str(read_json(run_dir / "provenance.json")["run_id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        known = [
            one.meta["run_id"] for one in listed(saved_folder(run_dir)) if "run_id" in one.meta
        ]
        if known:
            return known[-1]
        raise ValueError(
            f"{run_dir / 'provenance.json'} is missing or damaged, and with it the id of the run; begin another"
        ) from error


def resume_command(run_dir: Path) -> str:
    """What to type for the run to go on; what it needs trust for is typed again."""
    try:
        own = [str(text) for text in read_json(newest_overrides(run_dir))]
        asked = [
            *consent(own),
            *behind(reaching(read_yaml(newest(run_dir))), without_consent(own)),
            *filter(looks_up, own),
        ]
    except (OSError, ValueError, TypeError, AttributeError, YAMLError):
        asked = []  # whoever types the command is told what is wrong with them
    return shlex.join(["python", "-m", "forge.resume", short(run_dir), *dict.fromkeys(asked)])


def longer(run_dir: Path, reason: str, step: int) -> str:
    """What to add to the command of a run that has finished, for it to go on twice as long."""
    if reason != "end":
        return "..."
    epochs, steps = (
        read_yaml(newest(run_dir))["train"][name] for name in ("max_epochs", "max_steps")
    )
    return (
        f"train.max_epochs={2 * epochs:g}"
        if epochs and step < steps
        else f"train.max_steps={2 * step}"
    )


def newest_overrides(run_dir: Path) -> Path:
    """The overrides of the config that the run was last started with."""
    return run_dir / numbered(OVERRIDES, max(stored.settled(run_dir), 1))


def fresh_name(label: str) -> str:
    """A dated name that no other run has, also within the same second."""
    return f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{readable(label)}_{secrets.token_hex(4)}"


def readable(label: str) -> str:
    """A label as it stands in the name of a directory."""
    clean = "".join(c if c.isalnum() or c in "-_." else "-" for c in label)
    return clean.encode()[:100].decode(errors="ignore")  # a file system takes names of 255 bytes


def read_result(path: Path) -> Result | None:
    """The result that the worker left, if it ended of its own; one that cannot be read is none."""
    try:
        content = fields_of(read_json(path / RESULT), OF_RESULT)
        fields_of(content["objective"], {"name": str | None, "value": int | float | None})
        kept = {name: content[name] for name in ("status", "reason", "step", "metrics")}
        return Result(run_dir=path, objective=content["objective"]["value"], **kept)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_error(path: Path) -> str | None:
    """What the worker said of its failure, if it could."""
    file = path / ERROR
    return read_json(file)["message"] if file.is_file() else None


def short(path: Path) -> str:
    """Relative to where the command was typed, when it lies below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def write_json(path: Path, content: Any) -> None:
    """Write JSON under a temporary name, then rename: a reader sees all of it or none."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with scratch.open("w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=1, default=str) + "\n")
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def _drop_versions(path: Path, *, above: int) -> None:
    for file in path.glob("config.*.yaml"):
        if stored.number(file.name) > above:
            file.unlink()


def write_first(path: Path, content: Any) -> bool:
    """Write JSON unless the file is there already; whether it was written. Of several processes one
    succeeds.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
    try:
        os.link(scratch, path)
    except FileExistsError:
        return False
    finally:
        scratch.unlink()
    return True


def _write_version(
    path: Path, n: int, config: Config, resolution: Resolution, overrides: Sequence[str]
) -> None:
    write_json(path / numbered(OVERRIDES, n), list(overrides))
    write_json(path / numbered("derived.json", n), [asdict(d) for d in resolution.derived])
    write_json(path / numbered("warnings.json", n), [asdict(w) for w in resolution.warnings])
    serialize.save(config, path / numbered(CONFIG, n))


def _remove(made: Sequence[Path]) -> None:
    """Take back the directories of a run that could not be made, the deepest first; above it only
    what is empty.
    """
    if made:
        shutil.rmtree(made[0], ignore_errors=True)
    for folder in made[1:]:
        with suppress(OSError):
            folder.rmdir()


def _held(path: Path, error: Held) -> ConfigError:
    what, _, fix = str(error).partition(". ")
    return ConfigError([Problem(key=f"run.dir={path}", what=f"{what}.", fix=fix)])


def _unwritable(key: str, path: Path, error: OSError) -> ConfigError:
    what = f"the run directory {path} cannot be written: {error.strerror or error}."
    return ConfigError(
        [Problem(key=key, what=what, fix="choose another place with run.root or run.dir")]
    )
