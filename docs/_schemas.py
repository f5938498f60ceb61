"""JSON Schemas of the files that people write: an editor completes and checks them. Shipped in ``routewright/data``."""

from __future__ import annotations

import json
import re
from typing import Any

from docs._blocks import ROOT
from msgspec import Struct
from pydantic import BaseModel

from routewright import settings, wire
from routewright._core.request.rules import NUMBERS
from routewright._setup import config
from routewright._setup.config import CatalogueFile, PoliciesFile, Strict
from routewright.cli.litellm import SCHEMAS
from routewright.serve import config as serve_config
from routewright.serve.config import ServeFile
from routewright.server import http_limits
from routewright.wire.docstrings import field_docs, summary

FOLDER = ROOT / "src/routewright/data"
FILES: dict[str, tuple[type[Strict], str]] = {
    "catalogue": (CatalogueFile, "Models and prices"),
    "policies": (PoliciesFile, "Policies"),
    "serve": (ServeFile, "Configuration of routewright serve"),
}


def schemas() -> dict[str, str]:
    """The text of each schema, by the name of its file."""
    return {f"{name}.schema.json": _schema(name, *kind) for name, kind in FILES.items()}


def _schema(name: str, model: type[Strict], title: str) -> str:
    schema = model.model_json_schema()
    _describe(schema, model)
    for entry, table in schema["$defs"].items():
        _describe(table, _kind(entry))
    schema["properties"] = {"$schema": {"type": "string"}, **schema["properties"]}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMAS.format(name), "title": title}
    return json.dumps({**head, **_tidy(schema)}, ensure_ascii=False, indent=1) + "\n"


def _kind(name: str) -> type[Struct] | type[BaseModel]:
    """The class that documents a table: a struct's own where the table was made from one."""
    struct = name.removesuffix("Entry")
    for module, attribute in (
        (wire, struct), (settings, struct), (http_limits, struct), (config, name), (serve_config, name)
    ):  # fmt: skip
        if hasattr(module, attribute):
            return getattr(module, attribute)  # type: ignore[no-any-return]
    raise LookupError(name)


def _describe(table: dict[str, Any], kind: type[Any]) -> None:
    """Add what the schema of pydantic does not know: meanings, and the ranges that our own validators hold."""
    meanings = field_docs(kind)
    if "enum" in table:
        return
    table["description"] = _plain(summary(kind))
    for name, key in table["properties"].items():
        if meaning := meanings.get(name):
            key["description"] = _plain(meaning)
        if allowed := NUMBERS.get(kind, {}).get(name):
            numbers = [part for part in (key, *key.get("anyOf", ())) if part.get("type") in ("integer", "number")]
            for part in numbers:
                part["exclusiveMinimum" if allowed.above else "minimum"] = allowed.low
                if allowed.high < 1 << 53:
                    part["maximum"] = allowed.high


def _plain(text: str) -> str:
    """Docstrings without their marks and links."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("``", "`")


def _tidy(schema: Any) -> Any:
    """Without the titles that pydantic makes of names, and without null, which neither TOML nor a reader needs."""
    if isinstance(schema, list):
        return [_tidy(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {name: value for name, value in schema.items() if not (name == "title" and isinstance(value, str))}
    if schema.get("default", ...) is None:
        del schema["default"]
    return {name: _tidy(value) for name, value in schema.items()}
