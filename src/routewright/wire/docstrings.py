"""Reads docstrings, including the strings below fields, which only the source has."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Mapping
from functools import cache
from itertools import pairwise

_OURS = f"{__name__.partition('.')[0]}."
_CITED = re.compile(r" \((?:spec|contract|reliability) [^)]*\)")
_SPACE = re.compile(r"\s+")


def field_docs(kind: type) -> Mapping[str, str]:
    """The string below each field of a class of this package and its bases; empty without source."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith(_OURS):
            docs |= _docs_of_module(base.__module__).get(base.__name__, {})
    return docs


def summary(thing: object) -> str:
    """The first paragraph of a docstring as Markdown, without citations of clauses."""
    return prose(inspect.cleandoc(getattr(thing, "__doc__", None) or "").partition("\n\n")[0])


def prose(text: str) -> str:
    """Words of a docstring as Markdown in one line."""
    return _CITED.sub("", _SPACE.sub(" ", text).replace("``", "`")).strip()


@cache
def _docs_of_module(name: str) -> dict[str, dict[str, str]]:
    try:
        source = inspect.getsource(sys.modules[name])
    except OSError:  # installed without it
        return {}
    docs: dict[str, dict[str, str]] = {}
    for kind in ast.parse(source).body:
        if not isinstance(kind, ast.ClassDef):
            continue
        docs[kind.name] = {
            field.target.id: " ".join(str(ast.literal_eval(docstring.value)).split())
            for field, docstring in pairwise(kind.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(docstring, ast.Expr)
            and isinstance(docstring.value, ast.Constant)
        }
    return docs
