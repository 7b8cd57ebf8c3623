"""`python -m forge.new NAME`: make a small project of one's own that trains at once.

Examples:
    python -m forge.new demo
    python -m forge.new --trust DIR
"""

from __future__ import annotations

import importlib.util
import keyword
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from forge import cli
from forge.compose import project, trust
from forge.config.problems import COMMAND_LINE, refusal

TEMPLATE = Path(__file__).parent / "template"
CALLED = "myproject"
"""The name of the project in the template's file names and texts."""
DESCRIPTION = """\
A folder with a model, a callback, an experiment, a test, and a forge.yaml that names search path,
trust and defaults for every command typed below it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Make a project, or trust a project made by somebody else; exit code 2 on refusal."""
    arguments = cli.Parser("forge.new", DESCRIPTION)
    add = arguments.add_argument
    add("name", nargs="?", help="the project's folder, whose last part names its package")
    lets = "trust the project in DIR on this machine, instead of making one"
    add("--trust", metavar="DIR", help=lets)
    options = arguments.parse_args(argv)

    def verb() -> int:
        if (options.name is None) == (options.trust is None):
            message = "it makes a project, or trusts one."
            raise refusal("NAME", message, "python -m forge.new demo", COMMAND_LINE)
        name, trusted = (
            cli.local_path("NAME", text or "") for text in (options.name, options.trust)
        )
        print(_make(name) if options.name else _trust(trusted))
        return 0

    return cli.refuse(verb)


def _make(folder: Path) -> str:
    name = folder.name
    if fault := _name_fault(name):
        raise refusal(str(folder), fault, "another name, such as demo", COMMAND_LINE)
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        message = f"{folder} exists, and is no empty directory."
        raise refusal(str(folder), message, "another name", COMMAND_LINE)
    files = [path for path in sorted(TEMPLATE.rglob("*")) if path.is_file()]
    files = [path for path in files if "__pycache__" not in path.parts]
    try:
        for path in files:
            file = folder / str(path.relative_to(TEMPLATE)).replace(CALLED, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="utf-8").replace(CALLED, name)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"{folder} cannot be written: {error.strerror or error}."
        raise refusal(str(folder), message, "another place", COMMAND_LINE) from None
    _trust(folder)
    commands = [
        f"cd {shlex.quote(str(folder))}",
        "python -m forge.train",
        "python -m forge.train -m experiment=width",
        "python -m forge.report sweeps/width",
        "pytest",
    ]
    head = f"{folder}: {len(files)} files; README.md says what each is"
    return "\n  ".join([head, *commands])


def _name_fault(name: str) -> str:
    """The reason why a package cannot have this name; '' where possible."""
    if not name.isascii() or not name.isidentifier() or keyword.iskeyword(name):
        return f"'{name}' is no name of a Python package: letters a-z, digits and _."
    if name in ("conf", "tests"):
        return f"a project has a folder {name} beside its package."
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin is not None:
        return f"there is a module {name} already, which it would hide: {spec.origin}."
    return ""


def _trust(folder: Path) -> str:
    user_project = project.find_project(folder) if folder.is_dir() else None
    if user_project is None:
        message = f"{folder} is in no project: it has no {project.FILE}."
        raise refusal(str(folder), message, "python -m forge.new NAME makes one", COMMAND_LINE)
    trust.remember(user_project)
    return f"{user_project.root} is trusted: it {'; it '.join(trust.described(user_project))}"


if __name__ == "__main__":
    sys.exit(main())
