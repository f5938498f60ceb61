"""Results are plain data: for ``json.dumps``, for pydantic, and for FastAPI with its OpenAPI document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from typing import Annotated, Any

import msgspec
import pytest
from fastapi import Body, FastAPI
from fastapi.exceptions import ResponseValidationError
from fastapi.responses import JSONResponse
from hypothesis import given
from hypothesis import strategies as st
from openapi_spec_validator import validate
from pydantic import BaseModel, TypeAdapter
from starlette.testclient import TestClient

from routewright import (
    Agent,
    Answer,
    Decision,
    Model,
    Policy,
    Router,
    RouteRequest,
    RouterError,
    RouteResponse,
    Trace,
)
from routewright.agent import AgentAnswer
from routewright.router import PolicyCheck
from routewright.wire import Content, LatencyReport, Message, Page, TraceItem, UsageReport
from routewright.wire.plain import PlainData, Struct, preformatted
from tests.tables import table

HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture(scope="module")
def router() -> Iterator[Router]:
    made = Router.sandbox(policies=[Policy(name="support", goal="quality", models=["provider:openai"])])
    yield made
    made.blocking.close()


@pytest.fixture(scope="module")
def results(router: Router) -> dict[str, PlainData]:
    """One result of each kind."""
    answer, traces = router.blocking.route("Hello", budget={"maxCostUsd": 1.0}), router.blocking.traces
    router.blocking.flush()
    return {
        "answer": answer,
        "response": answer.response,
        "decision": answer.decision,
        "trace": answer.trace,
        "agent": Agent(router, tools=["calculator"]).blocking.run("What is 2 + 2?"),
        "page": traces.query(),
        "usage": traces.usage(),
        "latency": traces.latency_report(),
        "model": router.models()[0],
        "policy": router.policies()[0],
        "check": router.check_policies()[0],
        "why not": router.why_not("Hello", "openai/gpt-4.1"),
    }


KINDS = "answer response decision trace agent page usage latency model policy check".split()


@pytest.mark.parametrize("kind", [*KINDS, "why not"])
def test_dict_and_json_of_a_result_are_equal(kind: str, results: dict[str, PlainData]) -> None:
    result = results[kind]
    told = result.to_dict()
    assert json.loads(json.dumps(told)) == told == json.loads(result.to_json()) == dict(result)
    assert json.loads(result.to_json(indent=2)) == told
    assert result.to_json(indent=2).startswith("{\n  ")


def test_dicts_use_the_field_names_of_http(results: dict[str, PlainData], router: Router) -> None:
    answer = results["answer"]
    assert isinstance(answer, Answer)
    assert answer.to_json().encode() == msgspec.json.encode(answer.response)
    assert results["trace"].to_dict()["spans"][0]["type"] == "decision"
    read = router.prepare("Hello", budget={"maxCostUsd": 0.5}, fallback={"maxRetries": 0}).request
    assert read.to_dict()["budget"] == {"maxCostUsd": 0.5}
    assert read.to_dict()["fallback"] == {"maxRetries": 0}


# Notebooks


@given(st.text() | st.sampled_from(["</pre><script>alert(1)</script>", "&lt;", "a\n\n    b", "\ud800"]))
def test_a_text_of_a_notebook_is_escaped_and_complete(text: str) -> None:
    html = preformatted(text)
    inside = html.removeprefix("<pre>").removesuffix("</pre>")
    assert len(inside) == len(html) - len("<pre></pre>")
    assert not {*"<>\"'"} & {*inside}
    assert unescape(inside) == re.sub("[\ud800-\udfff]", "?", text)


def test_a_notebook_shows_no_prompt_and_no_captured_content() -> None:
    prompt, faults = "canary-of-the-prompt", {"openai/gpt-4.1": "server"}
    router = Router.sandbox(faults=faults, answers={prompt: "fine"})
    answer = router.blocking.route(prompt, models=["openai/gpt-4.1", "openai/gpt-4o"], goal="quality")
    content = Content(messages=[Message(role="user", content=prompt)], output="canary-of-the-answer")
    trace = msgspec.structs.replace(answer.trace, content=content)
    for html in (answer._repr_html_(), answer.decision._repr_html_(), trace._repr_html_()):
        assert "canary" not in html
    router.blocking.close()


def shapes(kind: type[Struct] = Struct) -> Iterator[type[Struct]]:
    for each in kind.__subclasses__():
        yield each
        yield from shapes(each)


SHAPES = sorted({*shapes()}, key=str)


@table("shape", SHAPES, ids=[shape.__name__ for shape in SHAPES])
def test_pydantic_describes_every_struct(shape: type[Struct]) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(shape)
    for mode in ("validation", "serialization"):
        schema = adapter.json_schema(mode=mode)
        found = schema if "properties" in schema else schema["$defs"][shape.__name__]
        assert {field.encode_name for field in msgspec.structs.fields(shape)} <= found["properties"].keys()
        assert found["description"] or not shape.__doc__


def test_pydantic_reads_plain_data_back(results: dict[str, PlainData]) -> None:
    for kind, result in results.items():
        if isinstance(result, Struct):
            adapter: TypeAdapter[Any] = TypeAdapter(type(result))
            if kind == "page":
                adapter = TypeAdapter(Page[TraceItem])
            assert adapter.validate_python(result) is result
            assert adapter.validate_json(adapter.dump_json(result)) == result
            assert adapter.dump_python(result) == result.to_dict()


class Both(BaseModel):
    answer: Answer
    traces: list[Trace]


def app_of(router: Router, results: dict[str, Any]) -> FastAPI:
    app = FastAPI()

    @app.get("/plain/{kind}")
    async def plain(kind: str):  # type: ignore[no-untyped-def]
        return results[kind]

    shapes = {
        "answer": Answer[Any], "response": RouteResponse, "decision": Decision, "trace": Trace,
        "agent": AgentAnswer[Any],
        "page": Page[TraceItem], "usage": UsageReport, "latency": LatencyReport, "model": Model, "policy": Policy,
        "check": PolicyCheck,
    }  # fmt: skip
    for kind, shape in shapes.items():
        app.get(f"/kinds/{kind}", response_model=shape)(lambda kind=kind: results[kind])

    @app.get("/models")
    def models() -> list[Model]:
        return router.models()

    @app.get("/both")
    async def both() -> Both:
        answer = await router.route("Hello")
        return Both(answer=answer, traces=[answer.trace])

    @app.get("/wrong")
    def wrong() -> Answer[Any]:
        return {"output": "Hello"}  # type: ignore[return-value]

    @app.post("/ask")
    async def ask(request: Annotated[RouteRequest, Body()]) -> Answer[Any]:
        return await router.route(request)

    @app.exception_handler(RouterError)
    async def respond(_: object, error: RouterError) -> JSONResponse:
        return JSONResponse(error.body, error.status_code, error.headers)

    return app


@pytest.fixture(scope="module")
def client(router: Router, results: dict[str, PlainData]) -> Iterator[TestClient]:
    with TestClient(app_of(router, results)) as client:
        yield client


@pytest.mark.parametrize("kind", KINDS)
def test_fastapi_returns_a_result(kind: str, client: TestClient, results: dict[str, PlainData]) -> None:
    for path in ("plain", "kinds"):
        sent = client.get(f"/{path}/{kind}")
        assert sent.status_code == 200
        assert sent.json() == results[kind].to_dict()


def test_fastapi_returns_results_within_others(client: TestClient, router: Router) -> None:
    assert client.get("/models").json() == [model.to_dict() for model in router.models()]
    both = client.get("/both").json()
    assert both["answer"]["trace_id"] == both["traces"][0]["id"]
    with pytest.raises(ResponseValidationError, match="dict is not Answer"):
        client.get("/wrong")


def test_fastapi_takes_a_request(client: TestClient) -> None:
    sent = client.post("/ask", json={**HELLO, "budget": {"maxCostUsd": 1}})
    assert sent.json()["output"]
    nulls = client.post("/ask", json={**HELLO, "stream": None, "fallback": {"maxRetries": None}})
    assert nulls.json()["output"]
    failed = client.post("/ask", json={**HELLO, "models": ["openai/gpt-0"]})
    assert (failed.status_code, failed.json()["error"]["code"]) == (400, "validation_failed")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"budget": {"maxCost": 1}}, "budget.maxCost: is not a field; did you mean 'maxCostUsd'?"),
        ({"tools": {}}, "tools: must be an array, got an object; "),
    ],
)
def test_fastapi_reports_invalid_fields_with_hints(given: dict[str, Any], said: str, client: TestClient) -> None:
    refused = client.post("/ask", json={**HELLO, **given})
    (problem,) = refused.json()["detail"]
    assert (refused.status_code, problem["loc"]) == (422, ["body"])
    assert said in problem["msg"]


def test_fastapi_documents_results(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    validate(document)
    schemas = document["components"]["schemas"]
    for path, name in {
        "/kinds/answer": "RouteResponse",
        "/kinds/agent": "AgentResponse",
        "/kinds/page": "Page_TraceItem_",
        "/ask": "RouteResponse",
    }.items():
        (operation,) = document["paths"][path].values()
        told = operation["responses"]["200"]["content"]["application/json"]["schema"]
        assert told == {"$ref": f"#/components/schemas/{name}"}
    answer = schemas["RouteResponse"]
    assert answer["properties"]["routing"]["$ref"] == "#/components/schemas/Routing"
    assert answer["properties"]["output"]["description"] == "The model's text."
    assert "(spec" not in answer["description"]
    assert schemas["DecisionSpan"]["properties"]["type"] == {"const": "decision", "title": "Type", "type": "string"}
    assert schemas["Page_TraceItem_"]["properties"]["data"]["items"] == {"$ref": "#/components/schemas/TraceItem"}
