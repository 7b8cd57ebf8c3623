"""data=chat_demo: questions about functions of Python's standard library, and answers, both made of
its source files (PSF-2.0), which every machine has.
"""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from functools import cache
from inspect import cleandoc
from pathlib import Path

from forge.config.data.chats import ChatDemo
from forge.config.data.text import PythonSource
from forge.data.text.conversation import Conversation
from forge.data.text.corpus import Corpus, python_source
from forge.data.text.reading import Document, read_python
from forge.data.tokenizers.render import Render

LEAST, MOST = 20, 240  # characters of an answer in English
Function = ast.FunctionDef | ast.AsyncFunctionDef


def chat_demo(section: ChatDemo) -> Corpus:
    """A conversation for each public function, class and method that says what it does."""
    root = sysconfig.get_paths()["stdlib"]
    how = f"chat_demo:{section.train_on}:{section.end_responses}"
    return Corpus(
        name="chat_demo",
        source=root,
        files=python_source(PythonSource()).files,
        reader=how,
        read=read_demo,
        masked=True,
        render=Render.of(section),
    )


def read_demo(path: Path) -> Iterator[Document]:
    """The conversations of a Python file; one that does not parse has none."""
    yield from of_file(path)


@cache  # a corpus is read twice, and to parse its files takes longest
def of_file(path: Path) -> tuple[Conversation, ...]:
    return tuple(_conversations(path))


def _conversations(path: Path) -> Iterator[Conversation]:
    for blocks in read_python(path):
        assert isinstance(blocks, Iterator)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of invalid escapes in texts
                tree = ast.parse("".join(blocks))
        except (SyntaxError, ValueError, RecursionError):
            return
        module = path.stem if path.stem != "__init__" else path.parent.name
        for name, node in _functions(tree):
            if said := _summary(node):
                yield _conversation(module, name, node, said, where=f"{path} line {node.lineno}")


def _functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Public functions and methods, with the class that they are of."""
    for node in tree.body:
        inside = node.body if isinstance(node, ast.ClassDef) else []
        above = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for each in (node, *inside):
            if isinstance(each, Function) and not each.name.startswith("_"):
                yield above + each.name, each


def _summary(node: Function) -> str:
    """The first paragraph of what it says of itself; '' where there is none that is an answer."""
    first = cleandoc(ast.get_docstring(node, clean=False) or "").partition("\n\n")[0]
    said = " ".join(first.split())
    return said if LEAST <= len(said) <= MOST and said.endswith(".") else ""


def _conversation(module: str, name: str, node: Function, said: str, *, where: str) -> Conversation:
    """What it does; and by its length, which is as good as drawn, one or none further question."""
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    known = [one for one in names if one not in ("self", "cls")]
    line = f"{'async ' * isinstance(node, ast.AsyncFunctionDef)}def {node.name}"
    further = {
        0: [],
        1: [("In which module is it?", f"It is in the module {module}.")],
        2: [("Which arguments does it take?", f"It takes {_listed(known)}.")],
        3: [("How does its definition begin?", f"{line}({ast.unparse(node.args)}):")],
    }[len(said) % 4]
    turns = [(f"What does {name} do?", said), *further]
    messages = [
        {"role": role, "content": content}
        for turn in turns
        for role, content in zip(("user", "assistant"), turn, strict=True)
    ]
    return Conversation(messages=tuple(messages), where=where)


def _listed(names: list[str]) -> str:
    *first, last = names or ["no arguments"]
    return f"{', '.join(first)} and {last}" if first else last
