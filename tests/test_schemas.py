"""The JSON Schemas that ship for files: they say what the readers accept."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from docs._blocks import pages
from docs._schemas import schemas
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from routewright import Catalogue
from routewright.policies import read_policies

_FILE = re.compile(r"<!-- file: \S*?(policies|models|catalogue|serve)[\w.-]*\.toml -->\n```toml\n(.*?)```", re.DOTALL)
SHOWN = [
    (page.stem, {"models": "catalogue"}.get(kind, kind), text)
    for page in pages()
    for kind, text in _FILE.findall(page.read_text("utf-8"))
]
"""The files in the documentation, all of which its tests read: page, kind, TOML."""


def validator(kind: str) -> Draft202012Validator:
    schema = json.loads(files("routewright.data").joinpath(f"{kind}.schema.json").read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_the_schemas_are_what_the_code_says() -> None:
    for name, text in schemas().items():
        assert files("routewright.data").joinpath(name).read_text("utf-8") == text, "run python docs/_generate.py"


@pytest.mark.parametrize(("page", "kind", "text"), SHOWN, ids=[f"{page}-{kind}" for page, kind, _ in SHOWN])
def test_files_of_the_documentation_are_valid(page: str, kind: str, text: str) -> None:
    problems = [error.message for error in validator(kind).iter_errors(tomllib.loads(text))]
    assert problems == [], page


def test_every_kind_is_shown() -> None:
    assert {kind for _, kind, _ in SHOWN} == {"policies", "catalogue", "serve"}


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("policies", {"policies": [{"name": "a", "gaol": "cost"}]}),
        ("policies", {"policies": [{"name": "a", "goal": "speed"}]}),
        ("policies", {"policies": [{"name": "a", "budget": {"max_cost_usd": -1}}]}),
        ("policies", {"policies": [{"goal": "cost"}]}),
        ("catalogue", {"prices": {"openai/x": {"input_usd": -1, "output_usd": 1}}}),
        ("catalogue", {"model": []}),
        ("serve", {"port": "http"}),
        ("serve", {"settings": {"durability": "none"}}),
    ],
)
def test_mistakes_are_shown_in_an_editor(kind: str, content: dict[str, Any]) -> None:
    assert not validator(kind).is_valid(content)


def test_a_json_file_may_name_its_schema(tmp_path: Path) -> None:
    policies = tmp_path / "policies.json"
    policies.write_text(json.dumps({"$schema": "policies.schema.json", "policies": [{"name": "a"}]}), "utf-8")
    assert [policy.name for policy in read_policies(policies)] == ["a"]
    models = tmp_path / "models.json"
    models.write_text(json.dumps({"$schema": "catalogue.schema.json", "disabled": ["openai/gpt-6-luna"]}), "utf-8")
    Catalogue.load(models)
