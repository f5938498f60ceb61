"""Writes the reference of the HTTP interface from its OpenAPI document."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from docs._openapi import openapi
from docs._table import WIDTH, json_block, table

from routewright import Router
from routewright.server.admin import Admin
from routewright.server.routes import ENDPOINTS

Schema = dict[str, Any]
_LARGEST = 2**53 - 1
_FEW = 8
"""An object with at most so many fields is described where it stands, if it stands in one place."""
_PAGES = {
    "route-request.md#fields": "RouteRequest",
    "route-request.md#fallback": "Fallback",
    "route-request.md#budget": "Budget",
    "route-request.md#params": "Params ReasoningBudget",
    "route-request.md#cache": "CacheOpts",
    "agents.md#agentresponse": "AgentResponse",
    "agents.md#runsummary": "RunSummary",
    "agents.md#step": "Step",
    "decision.md#attributes": "Candidate Rejection",
    "decision.md#reasons": "Reason",
    "decision.md#the-input": "DecisionInput TokenBounds Images WarmPrefix Requested",
    "errors.md#as-json": "ErrorEnvelope ErrorBody",
    "#listedmodel": "Models",
    "#parts-of-a-message": "TextPart ImagePart AudioPart FilePart",
    "../how-to/prices.md": "Pricing PriceTier ServicePrice",
    "policy-file.md#policies": "Policy",
    "policy-file.md#weights": "PolicyWeights",
    "policy-file.md#fallback": "PolicyFallback",
    "policy-file.md#policiesguardrails": "PolicyGuardrail",
    "policy-file.md#policiesclasses": "PolicyClass PolicyMatch PolicyWhen",
    "traces.md#fields": "PageTraceItem TraceItem Trace Content",
    "traces.md#spans": ("DecisionSpan CacheSpan ModelSpan FallbackSpan GuardrailSpan StepSpan SubTraceSpan ToolSpan"),
    "analytics.md#usagereport": "UsageReport UsageRow UsageTotals",
    "analytics.md#cachereport": "CacheReport TtlBucket",
    "analytics.md#fallbackreport": "FallbackReport FallbackCandidate",
    "analytics.md#latencyreport": "LatencyReport LatencyRow",
}
_ELSEWHERE = {name: page for page, names in _PAGES.items() for name in names.split()}
"""Shapes whose fields another page of the reference lists."""


_WITH_EXAMPLE = {"RouteResponse", "AgentResponse"}
"""Answers that are shown; the OpenAPI document has an example of each."""

_ERRORS = """\
Every address may answer 400 `validation_failed` and 500 `internal_error`, every one with a key also 401
`authentication_failed`, 403 `permission_denied` and 500 `storage_unavailable`. The others are listed with each address.
[Errors](errors.md) lists the codes, when each is sent, [an example of the body](errors.md#as-json), and its
[`detail`](errors.md#details).
"""


COMMON = {
    "400": {"`validation_failed`"},
    "401": {"`authentication_failed`"},
    "403": {"`permission_denied`"},
    "500": {"`internal_error`", "`storage_unavailable`"},
}
"""Errors of every address, by status."""


def http_reference() -> str:
    """Addresses, events, errors, headers and shapes."""
    document: dict[str, Any] = json.loads(openapi())
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
            *_operations([each for each in operations if not _of_a_vendor(each[2])], parts["schemas"]),
            f"## Errors\n\n{_ERRORS}",
            f"## Headers of answers\n\n{_headers(parts['headers'])}",
            f"## Shapes\n\n{_shapes(parts['schemas'])}",
        ]
    )


def _addresses(operations: list[tuple[str, str, Any]]) -> str:
    rows = [(_address(*each), each[2]["summary"], _scope(each[2])) for each in operations]
    return table(("address", "what it does", "scope"), rows)


def _address(method: str, path: str, operation: Any) -> str:
    name = f"`{method} {path}`"
    return name if _of_a_vendor(operation) else f"[{name}](#{_anchor(f'{method} {path}')})"


def _of_a_vendor(operation: Any) -> bool:
    """True if requests and answers are in a vendor's own format."""
    return "default" in operation["responses"]


def _doors(described: Any) -> str:
    """What is served below ``/v1`` of others, whose own documents describe it."""
    rows = [
        (f"`{method} {path}`", inspect.getdoc(serve) or "")
        for path, methods in ENDPOINTS.items()
        if path not in described
        for method, serve in methods.items()
    ]
    said = (
        "[Clients of OpenAI](../how-to/openai-clients.md) and [of Anthropic](../how-to/anthropic-clients.md)\n"
        "describe these addresses, and those of the table above without a link. They take the same keys.\n"
        "`/v1/openapi.json` leaves the ones below out.\n"
    )
    return f"{said}\n{table(('address', 'what it does'), rows)}"


def _of_the_operator() -> str:
    router = Router.sandbox()
    rows = [(f"`GET {path}`", inspect.getdoc(serve) or "") for path, serve in Admin(router, "", 1.0).addresses.items()]
    said = (
        "They need no key, so they are served on a port of their own: `routewright serve --admin-port`, or\n"
        "[`create_admin`](../how-to/metrics-and-tracing.md#health-checks).\n"
    )
    return f"{said}\n{table(('address', 'what it does'), rows)}"


def _anchor(heading: str) -> str:
    return "".join(letter for letter in heading.lower().replace(" ", "-") if letter.isalnum() or letter in "-_")


def _scope(operation: Any) -> str:
    return ", ".join(f"`{scope}`" for each in operation["security"] for scope in each["bearer"]) or "none, and no key"


def _operations(operations: list[tuple[str, str, Any]], schemas: dict[str, Schema]) -> Iterator[str]:
    """A part for each operation, with the parameters that no earlier one has in the same words."""
    described: set[tuple[str, ...]] = set()
    for method, path, operation in operations:
        rows = [_parameter(parameter) for parameter in operation.get("parameters", ())]
        parameters = ""
        if rows and described.issuperset(rows):
            parameters = f"Parameters as above: {', '.join(name for name, *_ in rows)}.\n"
        elif rows:
            parameters = table(("parameter", "in", "type", "meaning"), rows)
        described.update(rows)
        yield _operation(method, path, operation, parameters, schemas)


def _operation(method: str, path: str, operation: Any, parameters: str, schemas: dict[str, Schema]) -> str:
    lines = [f"### `{method} {path}`\n", *([parameters] if parameters else [])]
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        shown = content["examples"].get("bounded") or content["examples"]["plain"]
        examples = [json_block(shown["value"])] if path != "/v1/decide" else []
        lines.append(f"Body: {_type(content['schema'])}{', for example' if examples else '.'}\n")
        lines += examples
    return "\n".join([*lines, *_answers(operation["responses"], schemas)])


def _parameter(parameter: Any) -> tuple[str, ...]:
    name = f"`{parameter['name']}`" + (", required" if parameter.get("required") else "")
    return name, parameter["in"], _type(parameter["schema"]), parameter["description"]


def _answers(responses: Any, schemas: dict[str, Schema]) -> Iterator[str]:
    content = responses["200"].get("content", {}).get("application/json", {})
    said = responses["200"]["description"].removeprefix("The answer.")
    yield f"200: {_type(content['schema'])}. {said}".rstrip() + "\n"
    for example in content.get("examples", {}).values():
        if content["schema"].get("$ref", "").rpartition("/")[2] in _WITH_EXAMPLE:
            yield json_block(example["value"])
    stream = responses["200"]["content"].get("text/event-stream")
    if stream is not None:
        if content["schema"]["$ref"].endswith("/RouteResponse"):
            yield "```text\n" + "\n".join(map(_event, stream["examples"].values())) + "```\n"
        rows = [row for name in _names_in(stream["schema"]) for row in _event_rows(schemas[name], schemas)]
        yield table(("event", "data", "meaning"), rows)
    others = [
        f"{status} {', '.join(sorted(left)) or response['description'].removesuffix('.')}"
        for status, response in responses.items()
        if status != "200"
        for codes in [set(re.findall("`[^`]+`", response["description"]))]
        if (left := codes - COMMON.get(status, set())) or not codes
    ]
    if others:
        yield f"Otherwise: {'; '.join(others)}.\n"


def _event(example: Any) -> str:
    """An event, without most of a long one's data."""
    return "".join(f"{field}: {_shortened(text)}\n" for field, text in example["value"].items())


def _shortened(text: str) -> str:
    return text if len(text) <= 2 * WIDTH else f"{text[:WIDTH]}..."


def _event_rows(event: Schema, schemas: dict[str, Schema]) -> Iterator[tuple[str, str, str]]:
    """An event, then the fields of its data, if only this event has them."""
    (name,) = _names_in(event)
    kind = f"`{event['properties']['event']['const']}`"
    if not _is_data(name):
        yield kind, _link(name), event["description"]
        return
    yield kind, "", event["description"]
    for field, of, meaning in _fields(schemas[name], _inner(schemas), ""):
        yield "", f"{field}: {of}", meaning


def _is_data(name: str) -> bool:
    return name.endswith("Data") and name not in _ELSEWHERE


def _headers(headers: Any) -> str:
    rows = [(f"`{name}`", _type(each["schema"]), each["description"]) for name, each in headers.items()]
    return table(("header", "type", "meaning"), rows)


def _shapes(schemas: dict[str, Schema]) -> str:
    inner = _inner(schemas)
    shown = [name for name, each in schemas.items() if name not in _ELSEWHERE and not _is_event(each)]
    tables = [_shape(name, schemas[name], inner) for name in shown if name not in inner and not _is_data(name)]
    return "\n".join([tables[0], _parts_of_a_message(schemas, inner), *tables[1:]])


def _parts_of_a_message(schemas: dict[str, Schema], inner: dict[str, Schema]) -> str:
    rows = [
        (_type(part["properties"]["type"]), *row)
        for name in _PAGES["#parts-of-a-message"].split()
        for part in [schemas[name]]
        for row in _fields(part, inner, "")
        if row[0] not in ("`type`", "`cache_control`")
    ]
    said = "A part also has its `type`, and optionally a [`cache_control`](#cachecontrol).\n"
    return f"### Parts of a message\n\n{said}\n{table(('type', 'field', 'is', 'meaning'), rows)}"


def _inner(schemas: dict[str, Schema]) -> dict[str, Schema]:
    """Small objects that are in one field alone: they are described with it."""
    shapes = [each for each in schemas.values() if not _is_event(each)]
    fields = [[*_names_in(field)] for each in shapes for field in each.get("properties", {}).values()]
    uses = Counter(name for names in fields for name in names)
    alone = [names[0] for names in fields if len(names) == 1 and uses[names[0]] == 1 and names[0] not in _ELSEWHERE]
    return {name: schemas[name] for name in alone if 0 < len(schemas[name].get("properties", ())) <= _FEW}


def _is_event(schema: Schema) -> bool:
    return [*schema.get("properties", ())] == ["event", "id", "data"]


def _names_in(schema: Any) -> Iterator[str]:
    """The shapes that one refers to, each as often as it does."""
    if isinstance(schema, list):
        for each in schema:
            yield from _names_in(each)
    elif isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        for each in schema.values():
            yield from _names_in(each)


def _shape(name: str, schema: Schema, inner: dict[str, Schema]) -> str:
    said = f"### `{name}`\n\n{schema.get('description', '')}\n"
    if "properties" not in schema:
        return f"{said}\n{_type(schema).capitalize()}.\n"
    return f"{said}\n{table(('field', 'type', 'meaning'), _fields(schema, inner, ''))}"


def _fields(schema: Schema, inner: dict[str, Schema], at: str) -> Iterator[tuple[str, str, str]]:
    """A row for each field; the fields of an inner object follow under dotted names."""
    for field, each in schema["properties"].items():
        path, kind, meaning = f"{at}{field}", _type(each), _meaning(each)
        name = next((name for name in _names_in(each) if name in inner), None)
        if name is not None:
            kind = kind.replace(_link(name), "object")
            meaning = meaning or inner[name].get("description", "")
        if field not in schema.get("required", []):
            kind = kind.removesuffix(", null").removesuffix(" or null") + "; optional"
        yield f"`{path}`", kind, meaning
        if name is not None:
            yield from _fields(inner[name], inner, f"{path}[]." if kind.startswith("array") else f"{path}.")


def _meaning(schema: Schema) -> str:
    said: str = schema.get("description", "")
    default = schema.get("default", "")
    return said if default in ("", [], {}) else f"{said} Default: `{json.dumps(default)}`.".lstrip()


def _type(schema: Schema) -> str:
    """What a value may be, in few words."""
    if "$ref" in schema:
        return _link(schema["$ref"].rpartition("/")[2])
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


def _link(name: str) -> str:
    return f"[`{name}`]({_ELSEWHERE.get(name, f'#{name.lower()}')})"


def _kind(kind: str, schema: Schema) -> str:
    if kind == "array":
        return f"array of {_type(schema['items'])}" if schema.get("items") else f"array of {len(schema['prefixItems'])}"
    if kind == "string" and "format" in schema:
        return str(schema["format"])
    if kind not in ("number", "integer"):
        return kind
    return ("integer" if "multipleOf" in schema else kind) + _range(schema)


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum", _LARGEST)
    above = schema.get("exclusiveMinimum")
    if above is not None:
        return f" above {above:,}" + ("" if high >= _LARGEST else f", at most {high:,}")
    if low is None or low <= -_LARGEST:
        return ""
    return f" from {low:,}" if high >= _LARGEST else f" from {low:,} to {high:,}"


def _coded(words: list[Any]) -> str:
    return ", ".join("null" if word is None else f"`{word}`" for word in words)
