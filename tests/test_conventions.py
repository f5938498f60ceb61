"""What users of other clients expect to find: errors, logging, ``repr``, functions as tools, assertions on traces."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from routewright import (
    Agent,
    Answer,
    AnthropicProvider,
    BudgetExceeded,
    Caller,
    Model,
    OpenAIProvider,
    ProviderFault,
    Router,
    RouteRequest,
    RouterError,
    Tool,
    ValidationFailed,
    wire,
)
from routewright.errors import StorageFull, StorageUnavailable, UpstreamFailed
from routewright.testing import ScriptedProvider, assert_trace
from routewright.tools import FunctionTool
from tests.tables import table

ONE = Model(id="test/one", quality=0.9, modalities=("text", "tool"))
TWO = Model(id="spare/two", quality=0.5)

# --- errors


def test_an_error_has_what_vendors_sdks_give_it() -> None:
    with pytest.raises(BudgetExceeded) as refused:
        Router.sandbox().blocking.route("Hello", budget={"maxCostUsd": 0.0})
    error = refused.value
    assert error.status_code == error.status == 422
    assert error.request_id is not None
    assert error.request_id.startswith("req_")
    told = error.body["error"]
    assert (told["code"], told["message"], told["type"]) == (error.code, str(error), error.type)
    assert told["trace_id"] == error.trace_id
    assert told["detail"]["rejected_candidates"]
    assert json.loads(json.dumps(error.body)) == error.body


def test_the_body_of_an_error_is_what_http_answers_and_names_no_upstream() -> None:
    error = RouterError("http://10.0.0.1 failed", detail={"url": "http://10.0.0.1"}, request_id="req_1")
    error.outside = "it failed", {}
    assert error.body == {
        "error": {
            "code": "internal_error",
            "message": "it failed",
            "type": "internal_error",
            "request_id": "req_1",
            "detail": {},
        }
    }
    assert wire.error_envelope(error).to_dict() == error.body


@pytest.mark.parametrize("kind", [StorageUnavailable, StorageFull])
def test_the_body_of_an_error_names_no_storage(kind: type[StorageUnavailable]) -> None:
    error = kind("host=10.0.0.7 port=5432: cannot connect; check the server", request_id="req_1")
    for same in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert "10.0.0.7" not in json.dumps(same.body)
        assert same.body == {
            "error": {
                "code": "storage_unavailable",
                "message": "the storage is not available; ask the operator to check it",
                "type": "internal_error",
                "request_id": "req_1",
                "detail": {},
            }
        }


def test_what_an_own_function_raises_is_the_cause() -> None:
    class Broken(ScriptedProvider):
        def open(self, call: Any) -> Any:
            raise KeyError("mine")

    with pytest.raises(UpstreamFailed) as failed:
        Router(providers=[Broken([], models=[ONE])]).blocking.route("Hello", max_retries=0)
    assert isinstance(failed.value.__cause__, KeyError)


# --- logging


def test_nothing_is_printed_by_a_program_that_has_not_set_up_logging() -> None:
    code = "import logging, routewright; logging.getLogger('routewright.router').warning('seen')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


# --- repr


def test_a_router_names_its_providers_and_models_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-CANARY")
    assert repr(Router()) == "<Router with the providers of the environment>"
    assert repr(Router(providers=[])) == "<Router without providers>"
    assert repr(Router.sandbox()) == "<Router in the sandbox>"
    router = Router(providers=[OpenAIProvider("sk-CANARY"), AnthropicProvider("sk-CANARY")])
    assert repr(router) == "<Router with openai, anthropic>"
    count = len([model for model in router.models() if model.provider in ("openai", "anthropic")])
    shown = repr(router.as_caller(Caller("acme")))
    assert shown.startswith("<Router with openai, anthropic, ")
    assert f", {count} models: openai/" in shown
    assert shown.endswith(", ...>")
    assert len(shown) < 200
    assert "CANARY" not in shown


# --- functions as tools


def weather(city: str, days: int = 1) -> str:
    """The weather forecast for a city.

    Args:
        city: Its name, in English.
    """
    raise AssertionError("the caller runs it")


SPEC = wire.FunctionSpec(
    "weather",
    "The weather forecast for a city.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Its name, in English."},
            "days": {"type": "integer", "default": 1},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
)
FLAT = {"type": "function", "name": "flat", "parameters": {"type": "object"}}


async def both_ways(router: Router, **options: Any) -> Answer[Any]:
    """Call plainly and streamed, and return the last answer."""
    await router.route("Hello", **options)
    async with router.stream("Hello", **options) as stream:
        async for _ in stream:
            pass
        return stream.result


@pytest.mark.anyio
async def test_a_function_is_declared_as_agents_declare_it() -> None:
    provider = ScriptedProvider(["one", "two"], models=[ONE])
    await both_ways(
        Router(providers=[provider]), tools=[weather, FLAT, Tool(name="struct"), FunctionTool(weather, name="again")]
    )
    assert len(provider.calls) == 2
    for call in provider.calls:
        names = [tool.function_spec.name for tool in call.tools or ()]
        assert names == ["weather", "flat", "struct", "again"]
        assert (call.tools or [])[0].function_spec == SPEC == FunctionTool(weather).spec


def test_a_function_is_a_tool_wherever_a_request_is_taken() -> None:
    router = Router.sandbox()
    ask: dict[str, Any] = {"tools": [weather], "tool_choice": "weather"}
    assert [call.function.name for call in router.blocking.route("Hello", **ask).tool_calls or ()] == ["weather"]
    assert router.decide("Hello", tools=(weather,)).input.needs == router.decide("Hello", tools=[FLAT]).input.needs
    assert router.prepare("Hello", tools=[weather]).request.tools == [Tool(function=SPEC)]
    answers = router.blocking.route_many(["a", "b"], tools=[weather], tool_choice="required")
    assert all(isinstance(answer, Answer) and answer.tool_calls for answer in answers)
    with router.steps("Hello", tools=[weather]) as steps:
        upstream = steps.next().upstream  # type: ignore[union-attr]
        assert upstream.tools == [Tool(function=SPEC)]


class Forecast:
    """Tells the weather."""

    __name__ = "forecast"
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, city: str) -> str:
        return city


def test_an_object_that_can_be_called_is_a_tool() -> None:
    (tool,) = Router.sandbox().prepare("Hello", tools=[Forecast()]).request.tools or [Tool()]
    assert tool.function_spec.name == "forecast"
    assert tool.function_spec.parameters is not None
    assert tool.function_spec.parameters["required"] == ["city"]
    spec = FunctionTool(partial(weather, days=3), name="soon").spec
    assert spec.parameters is not None
    assert spec.parameters["properties"]["days"]["default"] == 3


def chatter(*words: str) -> str:
    return " ".join(words)


@table(
    ("tool", "said"),
    [
        (Forecast, "Forecast is a class; pass a function, or an object that can be called"),
        (dict, "dict is a class"),
        (max, "max has no signature; wrap it in a function"),
        (print, "print takes *args"),
        (lambda city: city, "has a function named '<lambda>'; pass routewright.tools.FunctionTool(f, name=...)"),
        (chatter, "chatter takes *words"),
    ],
)
def test_what_has_no_signature_to_declare_is_refused_as_agents_refuse_it(tool: Any, said: str) -> None:
    router = Router.sandbox()
    refusals: list[Callable[[], object]] = [
        lambda: router.decide("Hello", tools=[tool]),
        lambda: router.stream("Hello", tools=[tool]),
        lambda: router.blocking.route("Hello", tools=[tool]),
        lambda: Agent(router, tools=[tool]),
    ]
    told = set()
    for refuse in refusals:
        with pytest.raises(ValidationFailed) as refused:
            refuse()
        told.add(str(refused.value))
    (sentence,) = told
    assert said in sentence


@table(
    ("asked", "options"),
    [
        ("Hello", {"tools": weather}),
        ("Hello", {"tools": [weather], "tool_choice": weather}),
        ({"messages": [], "tools": [weather]}, {}),
        (RouteRequest([], tools=[weather]), {}),  # type: ignore[list-item]
    ],
)
def test_a_function_where_no_function_goes_is_told_where_it_goes(asked: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationFailed, match=r"; pass functions as route\(tools=\[...\]\), and a function"):
        Router.sandbox().decide(asked, **options)


# --- dicts


@table(
    ("shape", "written"),
    [
        (wire.Budget, wire.BudgetDict),
        (wire.Fallback, wire.FallbackDict),
        (wire.CacheOpts, wire.CacheOptsDict),
        (wire.Params, wire.ParamsDict),
        (wire.ReasoningBudget, wire.ReasoningBudgetDict),
    ],
)
def test_a_dict_of_options_has_the_keys_of_its_struct(shape: Any, written: Any) -> None:
    assert {*shape.__struct_encode_fields__} == written.__annotations__.keys()


# --- assertions on traces


@pytest.fixture
def rescued() -> Answer[Any]:
    first = ScriptedProvider([ProviderFault("request")], models=[ONE])
    router = Router(providers=[first, ScriptedProvider(["Hello"], models=[TWO])])
    return router.blocking.route("Hello", goal="quality", metadata={"team": "a"})


def test_a_trace_is_as_expected(rescued: Answer[Any]) -> None:
    trace = assert_trace(
        rescued,
        status="completed",
        selected_model="spare/two",
        provider="spare",
        fallback_used=True,
        metadata={"team": "a"},
        spans=["decision", "model", "fallback", "model"],
        attempts=["test/one", "spare/two"],
    )
    assert trace == rescued.trace == assert_trace(trace)


def test_a_trace_that_is_not_says_every_difference(rescued: Answer[Any]) -> None:
    with pytest.raises(AssertionError) as failed:
        assert_trace(rescued, status="failed", fallback_used=True, attempts=["test/one"], spans=["decision"])
    assert str(failed.value).splitlines() == [
        f"trace {rescued.trace_id} is not as expected:",
        "  status: expected 'failed', got 'completed'",
        "  attempts: expected ['test/one'], got ['test/one', 'spare/two']",
        "  spans: expected ['decision'], got ['decision', 'model', 'fallback', 'model']",
    ]
    with pytest.raises(TypeError, match="a trace has no 'statsu': did you mean 'status'"):
        assert_trace(rescued, statsu="completed")
