"""How large the house is, by room: files, bytes, longest file, long lines, and circles of imports.

python tools/house.py              # the working tree
python tools/house.py --at 5c4eaf5 # a revision
"""

from __future__ import annotations

import argparse
import ast
import io
import statistics
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

COLUMNS = 100
LONGEST = 5
ROOMS = ("forge", "launch", "tests", "benchmarks", "tools")
PREPARE = ("config", "compose", "resolve", "plan")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--at", metavar="REVISION", help="of git; without it, the working tree")
    files = read(parser.parse_args().at)
    rows = [row(room, texts) for room, texts in by_room(files).items()]
    source = {name: text for name, text in files.items() if name.startswith(("forge/", "launch/"))}
    sections = tuple(f"forge/{room}/" for room in PREPARE)
    rows.append(row("forge + launch", source))
    prepare = {name: text for name, text in source.items() if name.startswith(sections)}
    rows.append(row(" + ".join(PREPARE), prepare))
    tests = {name: text for name, text in files.items() if name.startswith("tests/")}
    rows.append(row("tests, all", tests))
    heads = ("room", "files", "kB", "lines, median", "longest", f"over {COLUMNS} columns")
    table([heads, *rows])
    print("\nlongest functions:")
    for lines, place in sorted(functions(source), reverse=True)[:LONGEST]:
        print(f"  {lines} lines: {place}")
    found = list(circles(imports(source)))
    print(f"\ncircles of imports: {len(found)}")
    for names in found:
        print(f"  {len(names)} files: {', '.join(sorted(names))}")


def read(revision: str | None) -> dict[str, str]:
    """The Python files that git knows, by path."""
    if revision is None:
        listed = subprocess.check_output(["git", "ls-files", "*.py"], text=True).splitlines()
        return {name: Path(name).read_text("utf-8") for name in listed if Path(name).is_file()}
    packed = subprocess.check_output(["git", "archive", "--format=tar", revision])
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        files = [one for one in archive if one.isfile() and one.name.endswith(".py")]
        opened = {one.name: archive.extractfile(one) for one in files}
        return {name: file.read().decode("utf-8") for name, file in opened.items() if file}


def by_room(files: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The files of each folder of the first two levels, such as forge/config."""
    rooms: dict[str, dict[str, str]] = {}
    for name, text in sorted(files.items()):
        parts = PurePosixPath(name).parts
        if parts[0] in ROOMS:
            rooms.setdefault("/".join(parts[: min(2, len(parts) - 1)]), {})[name] = text
    return rooms


def row(room: str, files: Mapping[str, str]) -> tuple[str, ...]:
    """One line of the table."""
    lines = {name: text.count("\n") for name, text in files.items()}
    longest = max(lines, key=lines.__getitem__, default="")
    size = sum(len(text.encode()) for text in files.values())
    over = sum(len(line) > COLUMNS for text in files.values() for line in text.splitlines())
    median = statistics.median(lines.values()) if lines else 0
    file = f"{PurePosixPath(longest).name} ({lines.get(longest, 0)})"
    return room, str(len(files)), f"{size / 1000:.0f}", f"{median:.0f}", file, str(over)


def table(rows: list[tuple[str, ...]]) -> None:
    """Print rows in columns, as Markdown has them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for index, cells in enumerate(rows):
        print(f"| {' | '.join(map(str.ljust, cells, widths))} |")
        if index == 0:
            print(f"| {' | '.join('-' * width for width in widths)} |")


def functions(files: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """(lines, place) of every function and method."""
    for name, text in files.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                yield (node.end_lineno or 0) - node.lineno + 1, f"{name}:{node.lineno} {node.name}"


def imports(files: Mapping[str, str]) -> dict[str, set[str]]:
    """By module, the modules that it imports, in functions too; not for the type checker alone.

    What a package's __init__ imports in a function, on first use of one of its names, is not
    counted: whoever imports a file of the package runs its __init__, which does not run that.
    """
    modules = {module_of(name): text for name, text in files.items()}
    packages = {module_of(name) for name in files if name.endswith("/__init__.py")}
    return {
        module: set(imported(ast.parse(text), modules, lazy=module not in packages)) - {module}
        for module, text in modules.items()
    }


def module_of(name: str) -> str:
    """forge.launch.sweep of launch/sweep/__init__.py."""
    path = PurePosixPath(name).with_suffix("")
    parts = path.parts[:-1] if path.name == "__init__" else path.parts
    return ".".join(parts if parts[0] == "forge" else ("forge", *parts))


def imported(tree: ast.AST, modules: Mapping[str, str], *, lazy: bool) -> Iterator[str]:
    """The modules of `modules` that a tree imports. lazy: in functions too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.FunctionDef) and not lazy:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else node.module for name in names)
            # Importing pkg.file runs pkg/__init__.py first.
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            yield from imported(node, modules, lazy=lazy)


def circles(graph: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """The strongly connected components of more than one module (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(module: str) -> Iterator[set[str]]:
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in graph[module] & graph.keys():
            if other not in number:
                yield from visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], number[other])
        if low[module] == number[module]:
            place = stack.index(module)
            found = set(stack[place:])
            del stack[place:]
            if len(found) > 1:
                yield found

    for module in graph:
        if module not in number:
            yield from visit(module)


if __name__ == "__main__":
    main()
