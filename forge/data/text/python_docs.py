"""The English in Python files."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

from forge.data.text.reading import Document, read_python

LEAST = 80  # characters
TOPICS = ("pydoc_data", "topics.py")


def read_docs(path: Path) -> Iterator[Document]:
    """Docstrings of a Python file, or the texts of pydoc's topics, each a document.

    A file that does not parse has none.
    """
    for blocks in read_python(path):
        assert isinstance(blocks, Iterator)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of invalid escapes in texts
                tree = ast.parse("".join(blocks))
        except (SyntaxError, ValueError, RecursionError):
            return
        texts = _topics(tree) if path.parts[-2:] == TOPICS else _docstrings(tree)
        yield from (iter((text + "\n",)) for text in texts if len(text) >= LEAST)


def _topics(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            values = (value.value for value in node.values if isinstance(value, ast.Constant))
            yield from (value for value in values if isinstance(value, str))


def _docstrings(tree: ast.AST) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and (text := ast.get_docstring(node, clean=False)):
            yield cleandoc(text)
