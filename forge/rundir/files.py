"""Reading and writing files: atomic writes, JSON, YAML, and JSON lines."""

from __future__ import annotations

import json
import logging
import math
import os
import re
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
SECTION = re.compile(r"(?m)^(?=[A-Za-z_])")  # where a key of the root begins
TAIL = 16_384  # bytes that are read from the end of a long file


class Damaged(ValueError):
    """A YAML file that is not as forge writes it."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that becomes `path` when the block succeeds: a reader sees all of the new
    content or none, also after a power cut.
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
    """Write a JSON file unless it exists; whether it was. Of several processes one succeeds."""
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
    """A YAML file like those read before, of whose sections many are the same: only a new one is
    parsed. known: sections by their text, which it adds to. convert: applied to what was parsed.
    Raises OSError and ValueError.
    """
    text = read_text(path)
    sections = [section for section in SECTION.split(text) if section]
    try:
        for section in sections:
            if section not in known:
                known[section] = convert(parse_yaml(section))
        return {key: value for section in sections for key, value in known[section].items()}
    except (Damaged, AttributeError):
        return convert(parse_yaml(text))  # it says where it is damaged


def parse_yaml(text: str) -> Any:
    """Raises ValueError.

    Its depth is found first: the loader in C ends the process at one that is too great. An alias,
    which forge does not write, may make it endless.
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
    """Add a line of JSON, on a new line where a kill left the last one unfinished. NaN and infinity
    become null. Raises OSError with what to do.
    """
    plain = {name: _finite(value) for name, value in row.items()}
    text = json.dumps(plain, ensure_ascii=False) + "\n"
    # A lone surrogate, as an argument that is no UTF-8 brings, becomes JSON's escape for it.
    line = text.encode(errors="backslashreplace")
    try:
        with path.open("ab+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n":
                line = b"\n" + line
            while line:
                line = line[file.write(line) :]
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror or error}"
        raise OSError(f"{what}; make room or give access") from error


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def row_sizes(paths: Iterable[Path]) -> dict[str, int]:
    """The size of each of these files that exists, by name, once all of it is on the disk."""
    found = [path for path in paths if path.exists()]
    for path in found:
        sync(path)
    return {path.name: path.stat().st_size for path in found}


def cut_rows(paths: Iterable[Path], sizes: Mapping[str, int]) -> None:
    """Cut files of rows to their sizes at a checkpoint, 0 where it has none. A shorter one has lost
    rows, as in a power cut: it is left, with a warning.
    """
    for path in paths:
        size, kept = path.stat().st_size if path.exists() else 0, sizes.get(path.name, 0)
        if size < kept:
            what = "%s has %d bytes, %d less than at the checkpoint: rows before it are lost"
            log.warning(what, path, size, kept - size)
        elif size > kept:
            os.truncate(path, kept)


def read_rows(path: Path, having: str = "") -> list[dict[str, Any]]:
    """All lines of JSON but damaged ones, oldest first; none where there is no file. having: a text
    that is in a line. Raises ConfigError when it cannot be read.
    """
    try:
        lines = read_text(path, errors="replace").strip("\n").split("\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        what = f"it cannot be read: {error.strerror}."
        raise refusal(str(path), what, "move it away") from None
    lines = [line for line in lines if having in line] if having else lines
    try:
        rows = json.loads(f"[{','.join(lines)}]")  # several times as fast as line by line
    except (ValueError, RecursionError):
        return list(parse_rows(lines))
    return [row for row in rows if isinstance(row, dict)]


def rows_if_readable(path: Path, having: str = "") -> list[dict[str, Any]]:
    """The same for a list of many runs, which goes on without a file that cannot be read, with a
    warning.
    """
    try:
        return read_rows(path, having)
    except ConfigError as error:
        log.warning("%s: %s The list goes on without it", path, error.problems[0].what)
        return []


def last_rows(path: Path) -> list[dict[str, Any]]:
    return list(parse_rows(last_lines(path)))


def last_lines(path: Path, count: int | None = None) -> list[str]:
    """The last lines of a file that may be long; none where there is no file."""
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
    """Why no file can be written in a directory that need not exist yet; '' where one can."""
    if not path:
        return "its name is empty"
    found = next(above for above in (Path(path), *Path(path).parents) if os.path.lexists(above))
    if not found.is_dir():
        return f"{found} is no directory"
    return "" if os.access(found, os.W_OK | os.X_OK) else f"you may not write in {found}"


def _json(content: Any) -> str:
    return json.dumps(content, indent=1, default=str) + "\n"
