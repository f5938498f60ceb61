"""The OpenAPI document that is served, and its schemas of values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routewright.server.routes import document_at

DOCUMENT: dict[str, Any] = json.loads(document_at("")[0])


def flaws(value: object, schema: dict[str, Any]) -> list[str]:
    """What keeps a value from conforming to a schema of the document."""
    validators = pytest.importorskip("jsonschema", reason="the test group installs it with openapi-spec-validator")
    whole = {**schema, "components": DOCUMENT["components"]}
    found = validators.Draft202012Validator(whole).iter_errors(value)
    return [f"{error.json_path}: {error.message[:300]}" for error in found]


def conforms(value: object, schema: dict[str, Any]) -> None:
    """Hold a value to a schema of the document."""
    assert not flaws(value, schema)


def strictly(schema: Any) -> Any:
    """The schema without what nobody described: objects with properties have no others."""
    if isinstance(schema, list):
        return [strictly(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {word: strictly(value) for word, value in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        made["additionalProperties"] = False
    return made
