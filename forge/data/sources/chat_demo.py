"""data=chat_demo: questions and answers about functions of Python's standard library, made of its
source files (PSF-2.0), present on every machine.
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
    """A conversation for each public function, class and method with a summary."""
    root = sysconfig.get_paths()["stdlib"]
    reader = f"chat_demo:{section.train_on}:{section.end_responses}"
    return Corpus(
        name="chat_demo",
        source=root,
        files=python_source(PythonSource()).files,
        reader=reader,
        read=_read_demo,
        masked=True,
        render=Render.of(section),
    )


def _read_demo(path: Path) -> Iterator[Document]:
    """The conversations of a Python file; none where the file does not parse."""
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
            if summary := _summary(node):
                yield _conversation(module, name, node, summary, where=f"{path} line {node.lineno}")


def _functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Yield the public functions and methods with their names, methods as `Class.name`."""
    for node in tree.body:
        inside = node.body if isinstance(node, ast.ClassDef) else []
        above = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for member in (node, *inside):
            if isinstance(member, Function) and not member.name.startswith("_"):
                yield above + member.name, member


def _summary(node: Function) -> str:
    """The first paragraph of a docstring; '' where unfit as an answer."""
    first = cleandoc(ast.get_docstring(node, clean=False) or "").partition("\n\n")[0]
    summary = " ".join(first.split())
    return summary if LEAST <= len(summary) <= MOST and summary.endswith(".") else ""


def _conversation(module: str, name: str, node: Function, said: str, *, where: str) -> Conversation:
    """A question for the function's purpose, and one or no further question, chosen by the length
    of the summary (as good as drawn).
    """
    names = [
        argument.arg
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    ]
    arguments = [argument for argument in names if argument not in ("self", "cls")]
    line = f"{'async ' * isinstance(node, ast.AsyncFunctionDef)}def {node.name}"
    further = {
        0: [],
        1: [("In which module is it?", f"It is in the module {module}.")],
        2: [("Which arguments does it take?", f"It takes {_listed(arguments)}.")],
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
