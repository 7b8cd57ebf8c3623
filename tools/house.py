"""Measures of the source: size by room, functions, circles of imports, words, names.

python tools/house.py              # the working tree
python tools/house.py --at 43bd276 # a revision
python tools/house.py --circles    # each circle of imports too
python tools/house.py --names      # public functions with one name in several modules
python tools/house.py --words      # filler names by file
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import statistics
import subprocess
import tarfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from import_graph import LEVELS, circles, imports

ROOMS = ("forge", "launch", "tests", "benchmarks", "tools")
CORE = ("forge/models/", "forge/parallel/", "forge/optim/", "forge/training/")
LONG, COMPLEX = 40, 20
FILLER_WORDS = """
found made kept one own each how more what fix said here there theirs its this so whole wanted left
rest place places of given known others both two all none same again before after at into named
"""
FILLER = frozenset(FILLER_WORDS.split())
"""Names that say nothing of a value; names of content stand in their place."""
RELATIVES = re.compile(
    r"\b(which|that|whose|what|those|these|it|they|them|its|such|so|one|ones|there|here)\b", re.I
)
COMPONENTS = frozenset(
    ("QLoRA", "LoRA", "IA3", "FP8", "MXFP8", "Int8", "QAT", "Sparse", "CrossEntropy", "MoE", "MLA")
)
"""Classes of components, which their own files alone should test for."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--at", metavar="REVISION", help="of git; without it, the working tree")
    for flag in ("circles", "names", "words"):
        parser.add_argument(f"--{flag}", action="store_true")
    options = parser.parse_args()
    files = read(options.at)
    source = {name: text for name, text in files.items() if name.startswith(("forge/", "launch/"))}
    rows = [size_row(room, texts) for room, texts in by_room(files).items()]
    rows.append(size_row("forge + launch", source))
    table([("room", "files", "kB", "lines", "median", "longest"), *rows])
    print()
    table([("measure of forge + launch", "value"), *measures(files)])
    if options.circles:
        for level in LEVELS:
            for circle in circles(imports(source, level)):
                print(f"\n{level}: {', '.join(sorted(circle))}")
    if options.names:
        for name, modules in sorted(shared_names(source, ast.FunctionDef).items()):
            print(f"\n{name}: {', '.join(modules)}")
    if options.words:
        for name, text in source.items():
            counted = Counter(n for n in assigned_names(ast.parse(text)) if n in FILLER)
            if counted:
                print(f"\n{name}: {dict(counted)}")


def read(revision: str | None) -> dict[str, str]:
    """The Python files of the rooms, by path; without links and templates."""
    if revision is None:
        files = {str(p): p.read_text("utf-8") for room in ROOMS for p in _modules(Path(room))}
    else:
        archive = subprocess.check_output(["git", "archive", "--format=tar", revision])
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            members = [m for m in packed if m.isfile() and m.name.endswith(".py")]
            opened = {member.name: packed.extractfile(member) for member in members}
            files = {name: file.read().decode("utf-8") for name, file in opened.items() if file}
    return {name: text for name, text in files.items() if "/template/" not in name}


def _modules(folder: Path) -> Iterator[Path]:
    """The Python files below a folder, links left out."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from _modules(path)
        elif path.suffix == ".py" and path.is_file():
            yield path


def by_room(files: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The files of each folder of the first two levels, such as forge/config."""
    rooms: dict[str, dict[str, str]] = {}
    for name, text in sorted(files.items()):
        parts = PurePosixPath(name).parts
        if parts[0] in ROOMS:
            rooms.setdefault("/".join(parts[: min(2, len(parts) - 1)]), {})[name] = text
    return rooms


def size_row(room: str, files: Mapping[str, str]) -> tuple[str, ...]:
    """One line of the table of sizes."""
    lines = {name: text.count("\n") for name, text in files.items()}
    longest = max(lines, key=lines.__getitem__, default="")
    kilobytes = sum(len(text.encode()) for text in files.values()) / 1000
    median = statistics.median(lines.values()) if lines else 0
    file = f"{PurePosixPath(longest).name} ({lines.get(longest, 0)})"
    return (
        room,
        str(len(files)),
        f"{kilobytes:.0f}",
        f"{sum(lines.values()):,}",
        f"{median:.0f}",
        file,
    )


def measures(files: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(measure, value) of each property of the source that has a bound or a target."""
    source = {name: text for name, text in files.items() if name.startswith(("forge/", "launch/"))}
    tests = sum(text.count("\n") for name, text in files.items() if name.startswith("tests/"))
    lines = sum(text.count("\n") for text in source.values())
    trees = {name: ast.parse(text) for name, text in source.items()}
    yield "lines of tests for a line of source", f"{tests / lines:.2f}"
    folder, number = largest_folder(source)
    yield "most files in a folder", f"{number} ({folder})"
    for level in LEVELS:
        rings = list(circles(imports(source, level)))
        yield f"circles of imports, {level}", f"{len(rings)} of {sum(map(len, rings))} modules"
    lengths = sorted(function_lengths(trees), reverse=True)
    yield "functions", f"{len(lengths):,}"
    yield f"functions of more than {LONG} lines", str(sum(n > LONG for n, _ in lengths))
    yield "longest function", f"{lengths[0][0]} lines: {lengths[0][1]}"
    complex_ones = [c for tree in trees.values() for c in complexities(tree) if c > COMPLEX]
    yield f"functions of a complexity above {COMPLEX}", str(len(complex_ones))
    names = [name for tree in trees.values() for name in assigned_names(tree)]
    yield "filler among assigned names", f"{filler_share(names):.1f} %"
    yield "relatives in 100 words of docstrings", f"{relatives(trees.values()):.1f}"
    core = [text for name, text in source.items() if name.startswith(CORE)]
    yield "lines with a comment in models, parallel, optim, training", str(sum(map(comments, core)))
    functions = shared_names(source, ast.FunctionDef)
    yield "public functions with one name in several modules", str(len(functions))
    yield "isinstance of Decoder", str(sum(text.count(", Decoder)") for text in source.values()))
    yield (
        "isinstance of a component outside of its room",
        str(sum(map(foreign_tests, trees.items()))),
    )
    any_names = sum(
        isinstance(n, ast.Name) and n.id == "Any" for t in trees.values() for n in ast.walk(t)
    )
    yield "Any in 1,000 lines", f"{1000 * any_names / lines:.1f}"
    yield "type: ignore", str(sum(text.count("# type: ignore") for text in source.values()))


def table(rows: list[tuple[str, ...]]) -> None:
    """Print rows in columns, as Markdown has them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for index, cells in enumerate(rows):
        print(f"| {' | '.join(map(str.ljust, cells, widths))} |")
        if index == 0:
            print(f"| {' | '.join('-' * width for width in widths)} |")


def largest_folder(files: Mapping[str, str]) -> tuple[str, int]:
    """(folder, number of files) with the most files."""
    return Counter(str(PurePosixPath(name).parent) for name in files).most_common(1)[0]


def function_lengths(trees: Mapping[str, ast.AST]) -> Iterator[tuple[int, str]]:
    """(lines, place) of every function and method."""
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield (node.end_lineno or 0) - node.lineno + 1, f"{name}:{node.lineno} {node.name}"


def complexities(tree: ast.AST) -> Iterator[int]:
    """Cyclomatic complexity of each function, as radon counts: decisions, and operands of `and`
    and `or` after the first.
    """
    decisions = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.Assert, ast.Lambda)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes = list(ast.walk(function))
            branches = sum(isinstance(node, decisions) for node in nodes)
            branches += sum(len(n.values) - 1 for n in nodes if isinstance(n, ast.BoolOp))
            branches += sum(1 + len(n.ifs) for n in nodes if isinstance(n, ast.comprehension))
            yield 1 + branches


def assigned_names(tree: ast.AST) -> Iterator[str]:
    """Names of assignments and of parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def filler_share(names: list[str]) -> float:
    """Percentage of filler among names."""
    return 100 * sum(name in FILLER for name in names) / max(len(names), 1)


def relatives(trees: Iterator[ast.AST] | object) -> float:
    """Pronouns and relatives in 100 words of the docstrings of functions and classes."""
    words = pronouns = 0
    for tree in trees:  # type: ignore[attr-defined]
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (
                doc := ast.get_docstring(node)
            ):
                words += len(re.findall(r"\w+", doc))
                pronouns += len(RELATIVES.findall(doc))
    return 100 * pronouns / max(words, 1)


def comments(text: str) -> int:
    """Lines with a comment that is no instruction to a tool."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = (t.string for t in tokens if t.type == tokenize.COMMENT)
    return sum(not re.match(r"# (type|noqa|pyright|ruff)", comment) for comment in found)


def shared_names(files: Mapping[str, str], kind: type[ast.AST]) -> dict[str, list[str]]:
    """Public functions or classes at the top of several modules, with these modules."""
    modules = defaultdict(list)
    for name, text in files.items():
        for node in ast.parse(text).body:
            if isinstance(node, kind) and not node.name.startswith("_"):  # type: ignore[attr-defined]
                modules[node.name].append(name)  # type: ignore[attr-defined]
    return {name: places for name, places in modules.items() if len(places) > 1 and name != "main"}


def foreign_tests(named: tuple[str, ast.AST]) -> int:
    """Tests by isinstance for a concrete component in a file not named after the component."""
    name, tree = named
    stem = PurePosixPath(name).stem.replace("_", "")
    number = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            classes = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
            number += any(c in COMPONENTS and c.lower() not in stem for c in classes)
    return number


if __name__ == "__main__":
    main()
