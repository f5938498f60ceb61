"""Writes the reference of the HTTP interface from its OpenAPI document."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any

import msgspec
from docs._table import table

from routewright import Router
from routewright.server.admin import Admin
from routewright.server.openapi import openapi
from routewright.server.openapi.document import codes
from routewright.server.routes import ENDPOINTS

Schema = dict[str, Any]
_WIDTH = 100


def http_reference() -> str:
    """Addresses, events, errors, headers and shapes."""
    document: dict[str, Any] = json.loads(msgspec.json.encode(openapi()))
    parts = document["components"]
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return "\n".join(
        [
            f"## Addresses\n\n{_addresses(operations)}",
            f"### Clients of other vendors\n\n{_doors(document['paths'])}",
            f"### For the operator\n\n{_of_the_operator()}",
            *(_operation(*each) for each in operations),
            f"## Errors\n\n{_errors(parts['responses'])}",
            f"## Headers of answers\n\n{_headers(parts['headers'])}",
            "## Shapes\n",
            *(_shape(name, schema) for name, schema in parts["schemas"].items()),
        ]
    )


def _addresses(operations: list[tuple[str, str, Any]]) -> str:
    rows = [
        (f"[`{method} {path}`](#{_anchor(f'{method} {path}')})", each["summary"], _scope(each))
        for method, path, each in operations
    ]
    return table(("address", "what it does", "scope"), rows)


def _doors(described: Any) -> str:
    """What is served below ``/v1`` of others, whose own documents describe it."""
    rows = [
        (f"`{method} {path}`", inspect.getdoc(serve) or "")
        for path, methods in ENDPOINTS.items()
        if path not in described
        for method, serve in methods.items()
    ]
    said = (
        "They take the same keys. What they honour is on the pages about\n"
        "[clients of OpenAI](../how-to/openai-clients.md) and [of Anthropic](../how-to/anthropic-clients.md).\n"
        "`/v1/openapi.json` leaves them out.\n"
    )
    return f"{said}\n{table(('address', 'what it does'), rows)}"


def _of_the_operator() -> str:
    router = Router.sandbox()
    rows = [(f"`GET {path}`", inspect.getdoc(serve) or "") for path, serve in Admin(router, "", 1.0).addresses.items()]
    said = (
        "They need no key, and so have a port of their own: `routewright serve --admin-port`, or\n"
        "[`create_admin`](../how-to/metrics-and-tracing.md#health-checks).\n"
    )
    return f"{said}\n{table(('address', 'what it does'), rows)}"


def _anchor(heading: str) -> str:
    return "".join(letter for letter in heading.lower().replace(" ", "-") if letter.isalnum() or letter in "-_")


def _scope(operation: Any) -> str:
    return ", ".join(f"`{scope}`" for each in operation["security"] for scope in each["bearer"]) or "none, and no key"


def _operation(method: str, path: str, operation: Any) -> str:
    lines = [f"### `{method} {path}`\n", f"{operation['summary']}\n"]
    if "parameters" in operation:
        rows = [_parameter(each) for each in operation["parameters"]]
        lines.append(table(("parameter", "in", "type", "meaning"), rows))
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        lines.append(f"Body: {_type(content['schema'])}. For example\n")
        lines += [_json(each["value"]) for each in content["examples"].values()]
    return "\n".join([*lines, *_answers(operation["responses"])])


def _parameter(parameter: Any) -> tuple[str, ...]:
    name = f"`{parameter['name']}`" + (", required" if parameter.get("required") else "")
    return name, parameter["in"], _type(parameter["schema"]), parameter["description"]


def _answers(responses: Any) -> Iterator[str]:
    content = responses["200"].get("content", {}).get("application/json", {})
    yield f"200: {_type(content['schema'])}. {responses['200']['description']}\n"
    for example in content.get("examples", {}).values():
        yield _json(example["value"])
    stream = responses["200"]["content"].get("text/event-stream")
    if stream is not None:
        yield f"As a stream, events are {_type(stream['schema'])}:\n"
        yield "```\n" + "\n".join(map(_event, stream["examples"].values())) + "```\n"
    rows = [(status, each["description"]) for status, each in responses.items() if status != "200"]
    yield table(("otherwise", "code"), rows)


def _event(example: Any) -> str:
    return "".join(f"{field}: {text}\n" for field, text in example["value"].items())


def _errors(responses: Any) -> str:
    shown = next(iter(responses["BadRequest"]["content"]["application/json"]["examples"].values()))["value"]
    rows = [(str(status), f"`{code}`", said) for status, code, said in codes()]
    every = table(("status", "code", "when"), rows)
    return (
        f"All are an [`ErrorEnvelope`](#errorenvelope). [Details](errors.md#details) differ.\n\n{_json(shown)}\n{every}"
    )


def _headers(headers: Any) -> str:
    rows = [(f"`{name}`", _type(each["schema"]), each["description"]) for name, each in headers.items()]
    return table(("header", "type", "meaning"), rows)


def _shape(name: str, schema: Schema) -> str:
    said = f"### `{name}`\n\n{schema.get('description', '')}\n"
    if "properties" not in schema:
        return f"{said}\n{_type(schema).capitalize()}.\n"
    needed = schema.get("required", [])
    rows = [
        (f"`{field}`", _type(each), "yes" if field in needed else "no", _meaning(each))
        for field, each in schema["properties"].items()
    ]
    return f"{said}\n{table(('field', 'type', 'always', 'meaning'), rows)}"


def _meaning(schema: Schema) -> str:
    said: str = schema.get("description", "")
    default = schema.get("default", "")
    return said if default in ("", [], {}) else f"{said} Default: `{json.dumps(default)}`.".lstrip()


def _type(schema: Schema) -> str:
    """What a value may be, in few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[`{name}`](#{name.lower()})"
    if "contentSchema" in schema:
        return f"JSON of {_type(schema['contentSchema'])}"
    for word in ("anyOf", "oneOf"):
        if word in schema and "properties" not in schema:
            return " or ".join(map(_type, schema[word]))
    if "enum" in schema:
        return _coded(schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kinds = schema.get("type", "any JSON")
    return " or ".join(_kind(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _kind(kind: str, schema: Schema) -> str:
    if kind == "array":
        return f"array of {_type(schema['items'])}" if schema.get("items") else f"array of {len(schema['prefixItems'])}"
    if kind == "string" and "format" in schema:
        return str(schema["format"])
    return kind + _range(schema) if kind in ("number", "integer") else kind


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    above = schema.get("exclusiveMinimum")
    whole = ", whole" if "multipleOf" in schema else ""
    if above is not None:
        return f" above {above:,}" + ("" if high is None else f", at most {high:,}") + whole
    if low is None:
        return whole
    return (f" from {low:,}" if high is None else f" from {low:,} to {high:,}") + whole


def _coded(words: list[Any]) -> str:
    return ", ".join("null" if word is None else f"`{word}`" for word in words)


def _json(value: Any) -> str:
    return f"```json\n{_written(value, 0)}\n```\n"


def _written(value: Any, depth: int) -> str:
    """JSON, with what fits a line in one."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + 2 * depth <= _WIDTH or not isinstance(value, dict | list) or not value:
        return line
    inner = "  " * (depth + 1)
    if isinstance(value, list):
        items = [_written(each, depth + 1) for each in value]
        return f"[\n{inner}" + f",\n{inner}".join(items) + f"\n{'  ' * depth}]"
    items = [f"{json.dumps(name)}: {_written(each, depth + 1)}" for name, each in value.items()]
    return f"{{\n{inner}" + f",\n{inner}".join(items) + f"\n{'  ' * depth}}}"
