"""The run directory: made once by the parent, read by every worker."""

from __future__ import annotations

import json
import os
import platform
import secrets
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from forge.config import serialize
from forge.config.errors import ConfigError, Problem
from forge.config.resolve import Resolution
from forge.config.root import Config

CONFIG, ERROR, RESULT = "config.yaml", "error.json", "result.json"


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended: its directory, status, final metrics."""

    run_dir: Path
    status: str
    step: int
    metrics: dict[str, float]


def create(resolution: Resolution, *, overrides: tuple[str, ...]) -> tuple[Path, Config]:
    """Make the directory and write the resolved config, overrides, provenance and warnings into it.

    Raises ConfigError when the directory cannot be made.
    """
    config = resolution.config
    path = Path(config.run.dir) if config.run.dir else Path(config.run.root) / fresh_name(config.run.name or config.preset)
    key = "run.dir" if config.run.dir else "run.root"
    try:
        path.mkdir(parents=True, exist_ok=config.run.dir is not None)
        path = path.resolve()
        config = replace(config, run=replace(config.run, dir=str(path)))
        config.freeze()
        serialize.save(config, path / CONFIG)
        write_json(path / "overrides.json", list(overrides))
        write_json(path / "derived.json", [asdict(d) for d in resolution.derived])
        write_json(path / "warnings.json", [asdict(w) for w in resolution.warnings])
        write_json(path / "provenance.json", provenance())
        diff = _git("diff", "HEAD")
        if diff:
            (path / "git.diff").write_text(diff, encoding="utf-8")
    except OSError as error:
        what = f"the run directory {path} cannot be written: {error.strerror or error}."
        raise ConfigError([Problem(key=f"{key}={path}", what=what, fix="choose another place with run.root or run.dir")]) from None
    return path, config


def fresh_name(label: str) -> str:
    """A dated name that no other run has, also within the same second."""
    clean = "".join(c if c.isalnum() or c in "-_." else "-" for c in label)
    return f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{clean}_{secrets.token_hex(4)}"


def provenance() -> dict[str, Any]:
    """What a run was made with: argv, host, Python, package versions, git revision."""
    packages = ("forge-lm", "torch", "hydra-core", "omegaconf", "numpy", "tokenizers", "torchao", "datasets")
    return {
        "argv": sys.argv,
        "cwd": os.getcwd(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
        "git_revision": _git("rev-parse", "HEAD").strip() or None,
    }


def read_result(path: Path) -> Result | None:
    """The result that the worker left, if it finished."""
    file = path / RESULT
    if not file.is_file():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    return Result(run_dir=path, status=content["status"], step=content["step"], metrics=content["metrics"])


def read_error(path: Path) -> str | None:
    """What the worker said of its failure, if it could."""
    file = path / ERROR
    return json.loads(file.read_text(encoding="utf-8"))["message"] if file.is_file() else None


def short(path: Path) -> str:
    """Relative to where the command was typed, when it lies below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def write_json(path: Path, content: Any) -> None:
    """Write JSON under a temporary name, then rename: a reader sees all of it or none."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
    scratch.replace(path)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str:
    root = Path(__file__).resolve().parents[1]
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, encoding="utf-8", errors="replace", timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
