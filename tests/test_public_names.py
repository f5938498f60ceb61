"""The public names are what they are on purpose."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import routewright
from routewright.router import BlockingPrepared, BlockingRouter, BlockingStream

DOOR = Path(routewright.__file__)


def test_every_public_name_loads() -> None:
    for name in routewright.__all__:
        getattr(routewright, name)


def test_names_are_listed_before_they_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(routewright), "Agent", raising=False)
    assert {*routewright.__all__} <= {*dir(routewright)}


def test_the_top_has_at_most_fifty_one_names() -> None:
    assert len(routewright.__all__) <= 51


def test_what_type_checkers_see_is_what_loads() -> None:
    tree = ast.parse(DOOR.read_text("utf-8"))
    guarded = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name
        for branch in guarded
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    listed = {*routewright.__all__}
    for module in ("errors", "wire"):  # imported with a star
        seen |= {name for name in listed if hasattr(importlib.import_module(f"routewright.{module}"), name)}
    assert seen - {"*"} == listed


def test_every_public_class_and_function_says_what_it_is() -> None:
    for name in routewright.__all__:
        assert (getattr(routewright, name).__doc__ or "").strip(), name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = routewright.nothing_of_that_name


def test_no_help_text_shows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A default such as ``os.environ`` would be printed with its keys by ``help``, and by documentation tools."""
    code = """
import pydoc, routewright
print(*[pydoc.render_doc(getattr(routewright, name)) for name in routewright.__all__])
"""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-CANARY")
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert "class Router" in shown
    assert "CANARY" not in shown


def test_help_on_a_blocking_method_has_its_own_result() -> None:
    assert inspect.signature(BlockingRouter.stream).return_annotation is BlockingStream
    assert inspect.signature(BlockingRouter.prepare).return_annotation is BlockingPrepared
