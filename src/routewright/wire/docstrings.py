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
    told: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if each.__module__.startswith(_OURS):
            told |= _docs_of_module(each.__module__).get(each.__name__, {})
    return told


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
            field.target.id: " ".join(str(ast.literal_eval(said.value)).split())
            for field, said in pairwise(kind.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(said, ast.Expr)
            and isinstance(said.value, ast.Constant)
        }
    return docs
