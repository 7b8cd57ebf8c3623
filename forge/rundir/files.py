"""Reading and writing files: atomic writes, JSON, YAML, and JSON lines."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from forge.config.problems import ConfigError, refusal
from forge.config.regular import open_regular, parse_json, read_text

log = logging.getLogger(__name__)
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DEEPEST = 100
TOO_DEEP = f"it is nested more than {DEEPEST} deep"
SECTION = re.compile(r"(?m)^(?=[A-Za-z_])")  # start of a key of the root
TAIL = 16_384  # bytes read from the end of a long file


class Damaged(ValueError):
    """A YAML file not as written by forge."""


class NoRename(OSError):
    """A file system that cannot rename folders, as a mounted object store."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that becomes `path` when the block succeeds.

    A reader sees all of the new content or none, also after a power cut.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield scratch
        sync(scratch)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would block
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as scratch:
        scratch.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    write_text(path, _json(content))


def write_first(path: Path, content: Any) -> bool:
    """Write a JSON file unless the file exists; return whether this process wrote the file.

    Of several processes a single process succeeds.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(_json(content), encoding="utf-8")
    try:
        os.link(scratch, path)
    except FileExistsError:
        return False
    finally:
        scratch.unlink()
    return True


def read_json(path: Path) -> Any:
    """Raises OSError and ValueError."""
    return parse_json(read_text(path))


def read_object(path: Path) -> dict[str, Any]:
    """Raises OSError, and ValueError also for anything but an object."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    return content


def read_yaml(path: Path) -> Any:
    """Raises OSError and ValueError."""
    return parse_yaml(read_text(path))


def read_sections(
    path: Path, known: dict[str, Any], convert: Callable[[Any], Any] = lambda plain: plain
) -> Any:
    """Read a YAML file with many sections equal to those of earlier files: only a new section is
    parsed.

    known: sections by their text, extended here. convert: applied to a parsed section. Raises
    OSError and ValueError.
    """
    text = read_text(path)
    sections = [section for section in SECTION.split(text) if section]
    try:
        for section in sections:
            if section not in known:
                known[section] = convert(parse_yaml(section))
        return {key: value for section in sections for key, value in known[section].items()}
    except (Damaged, AttributeError):
        return convert(parse_yaml(text))  # the error tells the damaged line


def parse_yaml(text: str) -> Any:
    """Parse YAML. Raises ValueError.

    The depth is checked first: the loader in C ends the process at too great a depth. An alias,
    never written by forge, may make the content endless.
    """
    depth = 0
    try:
        for event in yaml.parse(text, Loader=LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise Damaged(TOO_DEEP)
            if isinstance(event, yaml.AliasEvent):
                raise Damaged(f"it has an alias, *{event.anchor}")
        return yaml.load(text, Loader=LOADER)
    except yaml.YAMLError as error:
        raise Damaged(str(error).partition("\n")[0]) from None


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Add a line of JSON, on a new line after a line left unfinished by a kill.

    NaN and infinity become null. Raises OSError with what to do.
    """
    plain = {name: _finite(value) for name, value in row.items()}
    text = json.dumps(plain, ensure_ascii=False) + "\n"
    # A lone surrogate, from an argument not in UTF-8, becomes its escape in JSON.
    line = text.encode(errors="backslashreplace")
    try:
        with path.open("ab+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n":
                line = b"\n" + line
            while line:
                line = line[file.write(line) :]
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}"
        raise OSError(f"{message}; make room or give access") from error


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def row_sizes(paths: Iterable[Path]) -> dict[str, int]:
    """The size of each existing file, by name, once all of the file is on the disk."""
    existing = [path for path in paths if path.exists()]
    for path in existing:
        sync(path)
    return {path.name: path.stat().st_size for path in existing}


def cut_rows(paths: Iterable[Path], sizes: Mapping[str, int]) -> None:
    """Cut files of rows to their sizes at a checkpoint, 0 for a file unknown to the checkpoint.

    A shorter file has lost rows, as in a power cut: the file stays, with a warning.
    """
    for path in paths:
        size, saved_size = path.stat().st_size if path.exists() else 0, sizes.get(path.name, 0)
        if size < saved_size:
            message = "%s has %d bytes, %d less than at the checkpoint: rows before it are lost"
            log.warning(message, path, size, saved_size - size)
        elif size > saved_size:
            os.truncate(path, saved_size)


def read_rows(path: Path, having: str = "") -> list[dict[str, Any]]:
    """All lines of JSON except damaged lines, oldest first; none without a file.

    having: a text contained in the lines. Raises ConfigError when the file is unreadable.
    """
    try:
        lines = read_text(path, errors="replace").strip("\n").split("\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        message = f"it cannot be read: {error.strerror}."
        raise refusal(str(path), message, "move it away") from None
    lines = [line for line in lines if having in line] if having else lines
    try:
        rows = json.loads(f"[{','.join(lines)}]")  # several times as fast as line by line
    except (ValueError, RecursionError):
        return list(parse_rows(lines))
    return [row for row in rows if isinstance(row, dict)]


def rows_if_readable(path: Path, having: str = "") -> list[dict[str, Any]]:
    """All lines of JSON for a list of many runs; an unreadable file gives a warning and no rows."""
    try:
        return read_rows(path, having)
    except ConfigError as error:
        log.warning("%s: %s The list continues without it", path, error.problems[0].what)
        return []


def last_rows(path: Path) -> list[dict[str, Any]]:
    return list(parse_rows(last_lines(path)))


def last_lines(path: Path, count: int | None = None) -> list[str]:
    """The last lines of a possibly long file; none without a file."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - TAIL, 0))
            lines = file.read(TAIL).decode(errors="replace").splitlines()
    except OSError:
        return []
    lines = lines[1:] if size > TAIL and len(lines) > 1 else lines
    return lines if count is None else lines[-count:]


def parse_rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row


def unwritable(path: str) -> str:
    """The reason why no file can be written in a directory, absent or not; '' where writable."""
    if not path:
        return "its name is empty"
    nearest = next(above for above in (Path(path), *Path(path).parents) if os.path.lexists(above))
    if not nearest.is_dir():
        return f"{nearest} is no directory"
    return "" if os.access(nearest, os.W_OK | os.X_OK) else f"you may not write in {nearest}"


def check_rename(folder: Path) -> None:
    """Rename a folder with a file in it, below a folder, as saves are. Raises NoRename."""
    source = Path(tempfile.mkdtemp(prefix=".rename_", dir=folder))
    target = source.with_suffix(".renamed")
    try:
        (source / "file").touch()
        source.rename(target)
    except OSError as error:
        reason = f"folders cannot be renamed there ({error.strerror or error})"
        hint = "and a save is renamed once it is whole; mounted object stores are such"
        raise NoRename(error.errno, f"{reason}, {hint}") from error
    finally:
        for scratch in (source, target):
            shutil.rmtree(scratch, ignore_errors=True)


def _json(content: Any) -> str:
    return json.dumps(content, indent=1, default=str) + "\n"
