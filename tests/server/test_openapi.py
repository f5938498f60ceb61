"""``GET /v1/openapi.json``: valid, complete, up to date, and with correct examples."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any, get_args

import msgspec
import pytest
from docs._generate import OPENAPI
from docs._openapi import NO_REQUESTS, openapi, told_operations
from docs._openapi_schemas import structs_in

from routewright import Router, errors
from routewright.console import SCOPES
from routewright.errors import RouterError, SignatureError, ValidationFailed
from routewright.server.routes import ENDPOINTS, document_at
from routewright.wire import AgentEvent, RouteEvent, RouteRequest

from .openapi_document import DOCUMENT, conforms, flaws, strictly
from .uvicorn_server import HELLO, Site

OPERATIONS = [pytest.param(told, id=f"{told.method} {told.path}") for told in told_operations()]


def described(told: Any) -> dict[str, Any]:
    operation: dict[str, Any] = DOCUMENT["paths"][told.path][told.method]
    return operation


def answer_schema(told: Any, kind: str = "application/json") -> dict[str, Any]:
    schema: dict[str, Any] = described(told)["responses"]["200"]["content"][kind]["schema"]
    return schema


def test_the_document_is_valid() -> None:
    validator = pytest.importorskip("openapi_spec_validator", reason="the test group installs it")
    validator.validate(json.loads(msgspec.json.encode(DOCUMENT)))


def test_the_document_has_every_path_of_this_version() -> None:
    told = {(path, method) for path, methods in ENDPOINTS.items() if path.startswith("/v1/") for method in methods}
    assert told == {(path, word.upper()) for path, words in DOCUMENT["paths"].items() for word in words}


def test_the_document_is_up_to_date() -> None:
    assert OPENAPI.read_bytes() == openapi() + b"\n", "run python docs/_generate.py"


def test_every_error_code_is_described_at_its_status() -> None:
    kinds = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, RouterError)]
    told: dict[str, set[str]] = {}
    for answer in DOCUMENT["components"]["responses"].values():
        content = answer["content"]["application/json"]
        for code in content["schema"]["allOf"][1]["properties"]["error"]["properties"]["code"]["enum"]:
            told.setdefault(code, set()).add(answer["description"])
        for example in content["examples"].values():
            conforms(example["value"], content["schema"])
        assert content["examples"]
    assert {each.code for each in kinds if each not in {SignatureError, *NO_REQUESTS}} == told.keys()
    assert all(len(answers) == 1 for answers in told.values())


def test_every_scope_is_required_by_an_operation() -> None:
    asked = {scope for told in told_operations() for scope in described(told)["security"][0]["bearer"]}
    assert asked <= set(SCOPES)
    assert set(SCOPES) - asked <= {"agents"}


def test_every_field_and_parameter_of_a_request_is_explained() -> None:
    for name, kind in structs_in([RouteRequest]).items():
        properties = DOCUMENT["components"]["schemas"][name]["properties"]
        plain = {"type", "text", "id", "name", "role", "arguments", "function", "image_url", "cache_control"}
        plain |= {"input_audio", "file", "format"}
        missing = [field for field, schema in properties.items() if "description" not in schema and field not in plain]
        assert not missing, f"{missing} of {kind.__name__} want a string below them"
    for told in told_operations():
        assert all(each["description"] for each in described(told).get("parameters", []))


@pytest.mark.parametrize("told", OPERATIONS)
def test_examples_fit_their_own_schemas(told: Any) -> None:
    operation = described(told)
    for example in operation["responses"]["200"]["content"]["application/json"]["examples"].values():
        conforms(json.loads(msgspec.json.encode(example["value"])), strictly(answer_schema(told)))
    for parameter in operation.get("parameters", []):
        if "example" in parameter:
            conforms(parameter["example"], parameter["schema"])
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        for example in content["examples"].values():
            conforms(example["value"], content["schema"])


def test_requests_of_the_examples_are_answered_as_described() -> None:
    site = Site()
    with site.client(site.key(environment="sandbox")) as client:
        trace_id = client.post("/v1/route", json=HELLO).json()["trace_id"]
        for told in told_operations():
            operation = described(told)
            parameters = {
                each["name"]: each["example"] for each in operation.get("parameters", []) if "example" in each
            }
            path = told.path.replace("{trace_id}", trace_id)
            parameters.pop("trace_id", None)
            examples = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("examples")
            for body in [each["value"] for each in examples.values()] if examples else [None]:
                answer = client.request(told.method.upper(), path, params=parameters, json=body)
                assert answer.status_code == 200, answer.text
                conforms(answer.json(), strictly(answer_schema(told)))


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/route", {**HELLO, "stream": True}, {"route.started", "output.delta", "route.completed"}),
        (
            "/v1/agents/run",
            {"task": "Hello", "stream_steps": True},
            {"run.started", "step.started", "step.completed", "run.completed"},
        ),
    ],
)
def test_streamed_events_match_their_schemas(path: str, body: dict[str, Any], expected: set[str]) -> None:
    site = Site()
    (told,) = (each for each in told_operations() if each.path == path)
    schema = answer_schema(told, "text/event-stream")
    examples = described(told)["responses"]["200"]["content"]["text/event-stream"]["examples"].values()
    with site.client(site.key(environment="sandbox")) as client:
        text = client.post(told.path, json=body).text
    sent = [dict(line.split(": ", 1) for line in event.split("\n")) for event in text.split("\n\n") if event]
    assert {event["event"] for event in sent} == expected
    for event in [*sent, *(each["value"] for each in examples)]:
        conforms(event, schema)
        data = DOCUMENT["components"]["schemas"][NAMES[event["event"]]]["properties"]["data"]
        conforms(json.loads(event["data"]), strictly(data["contentSchema"]))


NAMES = {kind.event: kind.__name__ for kind in (*get_args(RouteEvent), *get_args(AgentEvent))}


def test_the_document_needs_no_key_and_head_returns_its_etag() -> None:
    with Site().client() as client:
        read = client.get("/v1/openapi.json")
        head = client.head("/v1/openapi.json")
        assert client.get("/v1/openapi.json?version=3").status_code == 400
    assert read.json() == json.loads(msgspec.json.encode(DOCUMENT))
    assert read.headers["content-type"] == "application/json"
    assert read.headers["cache-control"] == "no-cache"
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["etag"] == read.headers["etag"]


@pytest.mark.parametrize("known", ["{}", "W/{}", '"another", {}', "*"])
def test_a_current_copy_is_answered_with_304(known: str) -> None:
    with Site().client() as client:
        tag = client.get("/v1/openapi.json").headers["etag"]
        answer = client.get("/v1/openapi.json", headers={"If-None-Match": known.format(tag)})
        other = client.get("/v1/openapi.json", headers={"If-None-Match": '"another"'})
    assert answer.status_code == 304
    assert answer.content == b""
    assert answer.headers["etag"] == tag
    assert other.status_code == 200


def test_the_server_url_is_the_mount_point() -> None:
    with Site().client(root_path="/llm") as client:
        told = client.get("/v1/openapi.json").json()
    assert told["servers"] == [{"url": "/llm"}]
    assert json.loads(document_at("/über mir/")[0])["servers"] == [{"url": "/%C3%BCber%20mir"}]
    assert json.loads(document_at("")[0])["servers"] == [{"url": "/"}]
    assert json.loads(document_at("//other.example")[0])["servers"] == [{"url": "/other.example"}], "not another host"


def test_component_names_are_unique_and_every_reference_resolves() -> None:
    for kind, components in DOCUMENT["components"].items():
        alike = {re.sub(r"\W|_", "", name).lower() for name in components}
        assert len(alike) == len(components), f"generators make one class of two {kind}"
        assert not [name for name, each in components.items() if "title" in each], "a title would be its second name"
    for reference in re.findall(r'"\$ref":"([^"]+)"', msgspec.json.encode(DOCUMENT).decode()):
        there = DOCUMENT
        for step in reference.removeprefix("#/").split("/"):
            there = there[step]


USER = {"role": "user", "content": "Hello"}
CALLS = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
FORM = {"name": "a", "schema": {}}
VALID = {
    "messages": [USER, {"role": "assistant", "tool_calls": CALLS}, {**USER, "role": "tool", "tool_call_id": "a"}],
    "tools": [{"name": "f", "function": None, "parameters": {}}, {"function": {"name": "g"}}],
    "cache": {"max_error": 0.1, "threshold": None},
    "params": {"response_format": {"type": "json_schema", "json_schema": FORM}},
}


@pytest.mark.parametrize(
    "field",
    [
        {"messages": [{"role": "user"}]},
        {"messages": [{**USER, "tool_calls": CALLS}]},
        {"messages": [{**USER, "tool_call_id": "a"}]},
        {"messages": [{"role": "assistant"}]},
        {"messages": [{**USER, "role": "tool"}]},
        {"messages": [{"role": "tool", "tool_call_id": "a"}]},
        {"tools": [{}]},
        {"tools": [{"name": "f", "function": {"name": "f"}}]},
        {"cache": {"max_error": 0.1, "threshold": 0.5}},
        {"params": {"response_format": {}}},
        {"params": {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}},
        {"params": {"response_format": {"type": "text", "json_schema": FORM}}},
    ],
)
def test_rules_between_fields_are_those_of_validation(field: dict[str, Any]) -> None:
    schema, router = {"$ref": "#/components/schemas/RouteRequest"}, Router.sandbox()
    conforms(VALID, schema)
    router.decide(VALID)
    assert flaws(VALID | field, schema)
    with pytest.raises(ValidationFailed):
        router.decide(VALID | field)
