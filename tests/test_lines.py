"""Every place of a text is found on its line."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright.lines import Place, json_lines, place_of, python_lines, toml_lines

TOML = """\
# a comment with [brackets] = "and marks"
title = "a # no comment"

"quoted key" = 1
'literal.key' = 2
dotted.inner . deep = 3

[[policies]]
name = "first"
models = [
  "a/b",  # why
  "c]/d",
  { x = [1,
         2] },
]
text = \"\"\"
[[policies]]
name = "no, this is text\\\\"
\"\"\"
raw = '''
[x]'''
[policies.budget]
max_cost_usd = 1.5
when = 2026-11-21 10:00:00

[[policies]]
name = "second"
budget = { max_cost_usd = 0.1, inner.more = "}" }
[[policies.steps]]
at = 1
[[policies.steps]]
at = 2

[prices."openai/gpt-4.1"]
input_usd = 1
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("", 1),
        ("title", 2),
        ("['quoted key']", 4),
        ("['literal.key']", 5),
        ("dotted", 6),
        ("dotted.inner.deep", 6),
        ("dotted.inner.absent", 6),
        ("policies", 8),
        ("policies[0]", 8),
        ("policies[0].name", 9),
        ("policies['first'].models", 10),
        ("policies[0].models[0]", 11),
        ("policies[0].models[1]", 12),
        ("policies[0].models[2].x", 13),
        ("policies[0].models[2].x[1]", 14),
        ("policies[0].models[9]", 10),
        ("policies[0].text", 16),
        ("policies[0].raw", 20),
        ("policies[0].budget", 22),
        ("policies[0].budget.max_cost_usd", 23),
        ("policies[0].budget.when", 24),
        ("policies['first'].budget.maxCostUsd", 22),
        ("policies[1]", 26),
        ("policies['second'].budget.max_cost_usd", 28),
        ("policies[1].budget.inner.more", 28),
        ("policies[1].steps[1].at", 32),
        ("policies[1].goal", 26),
        ("policies['third'].name", 8),
        ("prices['openai/gpt-4.1']", 34),
        ("prices['openai/gpt-4.1'].input_usd", 35),
        ("prices['openai/gpt-4.1'...].input_usd", 34),
    ],
)
def test_a_place_in_toml_is_found_or_what_holds_it(path: str, line: int) -> None:
    assert toml_lines(TOML, [place_of(path, tomllib.loads(TOML))])[0] == line


def test_windows_line_ends_are_lines() -> None:
    assert toml_lines(TOML.replace("\n", "\r\n"), [("policies", 1, "name")])[0] == 27


PYTHON = '''\
"""Rules."""
from routewright import Policy, PolicyFallback

policies = []
cheap = {"name": "other"}
policies: list[object] = [
    {"name": "first",
     "models": [
         "a/b"]},
    Policy(
        name="second",
        fallback=PolicyFallback(
            max_retries=9)),
    cheap,
]
'''


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (("policies",), 6),
        (("policies", 0), 7),
        (("policies", 0, "models", 0), 9),
        (("policies", 0, "goal"), 7),
        (("policies", 1), 10),
        (("policies", 1, "fallback", "max_retries"), 13),
        (("policies", 2, "name"), 14),
        (("policies", 7), 6),
        (("elsewhere",), 1),
        ((), 1),
    ],
)
def test_a_place_in_python_is_found_as_far_as_it_is_literal(place: Place, line: int) -> None:
    assert python_lines(PYTHON, [place])[0] == line


def test_behind_what_is_unpacked_no_place_is_sure() -> None:
    assert python_lines("more = []\npolicies = [\n*more,\n{}]", [("policies", 1)])[0] == 2


keys = st.text('ab.#"\\\n[]{}= é', max_size=4)
trees: st.SearchStrategy[Any] = st.recursive(
    st.just(0),
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(keys, inner, min_size=1, max_size=3),
    max_leaves=12,
)


def leaves(tree: Any, place: Place = ()) -> Iterator[Place]:
    if isinstance(tree, int):
        yield place
    for step, inner in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from leaves(inner, (*place, step))


def numbered(tree: Any, numbers: Iterator[int]) -> Any:
    """The tree with another number in each leaf."""
    if isinstance(tree, dict):
        return {key: numbered(inner, numbers) for key, inner in tree.items()}
    return [numbered(inner, numbers) for inner in tree] if isinstance(tree, list) else next(numbers)


def at(tree: Any, place: Place) -> Any:
    for step in place:
        tree = tree[step]
    return tree


@given(st.dictionaries(keys, trees, min_size=1, max_size=3), st.sampled_from([None, 1]))
def test_every_leaf_of_json_is_found(tree: Any, indent: int | None) -> None:
    tree = numbered(tree, iter(range(10**6, 10**7)))
    text = json.dumps(tree, indent=indent)
    places = [*leaves(tree)]
    for place, line in zip(places, json_lines(text, places), strict=True):
        assert str(at(tree, place)) in text.split("\n")[line - 1]


@given(st.dictionaries(keys, trees, min_size=1, max_size=3), st.randoms())
def test_every_leaf_of_toml_is_found(tree: Any, chance: Any) -> None:
    tree = numbered(tree, iter(range(10**6, 10**7)))
    text = "".join(as_toml((), tree, chance))
    assert tomllib.loads(text) == tree
    places = [*leaves(tree)]
    for place, line in zip(places, toml_lines(text, places), strict=True):
        assert str(at(tree, place)) in text.split("\n")[line - 1]


def as_toml(path: tuple[str, ...], table: dict[str, Any], chance: Any) -> Iterator[str]:
    """A table in one of the ways in which it can be written."""
    below = {key: value for key, value in table.items() if is_below(value) and chance.random() < 0.7}
    for key, value in table.items():
        if key not in below:
            yield f"{written(key)} = {inline(value, chance)}\n"
    for key, value in below.items():
        header = ".".join(map(written, (*path, key)))
        for each in value if isinstance(value, list) else [value]:
            yield f"\n[[{header}]] # one\n" if isinstance(value, list) else f"[ {header} ]\n"
            yield from as_toml((*path, key), each, chance)


def is_below(value: Any) -> bool:
    """Whether it can stand under a header: a table, or a list of nothing else."""
    return isinstance(value, dict) or (isinstance(value, list) and all(isinstance(each, dict) for each in value))


def written(key: str) -> str:
    return key if key.isascii() and key.isalnum() else json.dumps(key)


def inline(value: Any, chance: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{written(key)} = {inline(inner, chance)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        gap = chance.choice([" ", "\n  ", " # ,]\n"])
        return f"[{gap}" + f",{gap}".join(inline(inner, chance) for inner in value) + f"{gap}]"
    return str(value)
