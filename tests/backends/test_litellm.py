"""The litellm provider, against a stub with litellm's signatures, and against the package if installed."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from routewright import Pricing, Router
from routewright.backends.clock import SystemClock
from routewright.errors import ProviderFault, ValidationFailed
from routewright.testing import FakeClock
from routewright.wire import (
    Delta,
    Finish,
    FunctionName,
    Message,
    Model,
    NamedToolChoice,
    Params,
    ReasoningBudget,
    Thought,
    Tool,
    ToolDelta,
    UpstreamCall,
    Usage,
)
from routewright.wire.account import Secret
from tests.upstream import Cut, of_json

from . import provider_calls
from .openai_server import USAGE, OpenAIServer, delta, echo, events
from .provider_calls import chunks_of, fault_of

pytestmark = pytest.mark.anyio
HOME = "routewright.backends.providers.litellm"
KEY = "sk-Canary/0123456789+abcdef"
OFFLINE = "LITELLM_LOCAL_MODEL_COST_MAP"
PROMPT = "my secret prompt"
DIALS = ["reasoning_effort", "thinking", "parallel_tool_calls", "service_tier", "verbosity"]
ASKED_FOR = ("parallel_tool_calls", "reasoning_tokens", "flex", "priority", "verbosity")
DEADLINE = FakeClock().monotonic() + 7.0
call = partial(provider_calls.call, PROMPT, model="acme/m", deadline=DEADLINE)
WHOLE = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
}


class Piece:
    """Serializes like a pydantic model."""

    def __init__(self, document: Any) -> None:
        self.document = document

    def model_dump_json(self, *, warnings: bool = True) -> str:
        assert not warnings
        return json.dumps(self.document)


class Wrapper:
    """As ``CustomStreamWrapper``."""

    def __init__(self, *pieces: Any) -> None:
        self._pieces = iter(pieces)
        self.closed = 0

    def __aiter__(self) -> Wrapper:
        return self

    async def __anext__(self) -> Piece:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            return Piece(piece)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.closed += 1


class StandIn(ModuleType):
    """The part of litellm that the provider uses."""

    def __init__(self) -> None:
        super().__init__("litellm")
        self.suppress_debug_info = False
        self.calls: list[dict[str, Any]] = []
        self.answer: Any = Piece(WHOLE)
        self.known: Any = None

    async def acompletion(self, model: str, messages: list[Any] = [], **rest: Any) -> Any:  # noqa: B006 (as it is there)
        self.calls.append({"model": model, "messages": messages, **rest})
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def get_supported_openai_params(self, model: str, custom_llm_provider: str | None = None) -> Any:
        if isinstance(self.known, Exception):
            raise self.known
        return self.known


def error(name: str, status: Any, message: str = "", *, parent: str = "", headers: Any = None) -> Exception:
    """An exception like those of litellm: class, status, message and perhaps the response."""
    base = type(parent, (Exception,), {}) if parent else Exception
    made: Any = type(name, (base,), {})(f"litellm.{name}: {message}")
    made.status_code, made.message = status, f"litellm.{name}: {message}"
    made.response = type("Response", (), {"headers": headers or {}})()
    found: Exception = made
    return found


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "litellm", stand_in)
    monkeypatch.delitem(sys.modules, HOME, raising=False)
    yield stand_in
    sys.modules.pop(HOME, None)


def made(name: str = "acme", **rest: Any) -> Any:
    return import_module(HOME).LiteLLMProvider(name, **{"clock": FakeClock(), "environ": {}} | rest)


def written(fault: BaseException) -> str:
    """All texts of a fault except its body."""
    behind = f"{fault.__cause__!r} {fault.__context__!r}"
    return "".join(traceback.format_exception(fault)) + repr(fault) + repr(fault.args) + str(fault) + behind


def test_without_the_package_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)
    monkeypatch.delitem(sys.modules, HOME, raising=False)
    with pytest.raises(ModuleNotFoundError) as caught:
        import_module(HOME)
    assert str(caught.value) == (
        f"{HOME} needs the extra 'litellm' (litellm is missing): pip install 'routewright[litellm]'"
    )


@pytest.mark.parametrize("before", [None, "False"])
def test_the_package_is_imported_without_download_and_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: str | None
) -> None:
    (tmp_path / "litellm.py").write_text(f"import os\nseen = os.environ.get({OFFLINE!r})\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "litellm", raising=False)
    monkeypatch.delitem(sys.modules, HOME, raising=False)
    monkeypatch.delenv(OFFLINE, raising=False)
    if before is not None:
        monkeypatch.setenv(OFFLINE, before)
    loaded = import_module(HOME).litellm
    del sys.modules["litellm"], sys.modules[HOME]
    assert (loaded.seen, loaded.suppress_debug_info) == ("True", True)
    assert os.environ.get(OFFLINE) == before


async def test_a_call_has_no_retries_and_the_deadline_as_its_timeout(package: StandIn) -> None:
    provider = made("amazon-bedrock", vendor="bedrock", api_key=KEY, options={"aws_region_name": "eu-west-1"})
    tools = [Tool(name="f", parameters={"type": "object"})]
    upstream = provider_calls.call(
        Message("developer", "be brief"), Message("user", "hi"), model="amazon-bedrock/amazon.nova-pro-v1:0",
        params=Params(temperature=0.5, seed=4.0, stop=["a"]), tools=tools, max_output_tokens=50, deadline=DEADLINE,
        tool_choice=NamedToolChoice(FunctionName("f")), stream=False,
    )  # fmt: skip
    assert await chunks_of(provider, upstream) == [Delta("hello"), Usage(9, 3), Finish("stop")]
    assert package.calls == [
        {
            "model": "bedrock/amazon.nova-pro-v1:0",
            "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
            "temperature": 0.5,
            "seed": 4,
            "stop": ["a"],
            "max_tokens": 50,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "timeout": 7.0,
            "num_retries": 0,
            "max_retries": 0,
            "api_key": KEY,
            "aws_region_name": "eu-west-1",
        }
    ]


async def test_traceparent_is_sent_beside_the_headers_of_the_options(package: StandIn) -> None:
    parent, options = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", {"extra_headers": {"x-team": "a"}}
    await chunks_of(made(options=options), call(stream=False, traceparent=parent))
    await chunks_of(made(), call(stream=False, traceparent=parent))
    await chunks_of(made(options=options), call(stream=False))
    await chunks_of(made(), call(stream=False))
    assert [asked.get("extra_headers") for asked in package.calls] == [
        {"x-team": "a", "traceparent": parent},
        {"traceparent": parent},
        {"x-team": "a"},
        None,
    ]
    assert options == {"extra_headers": {"x-team": "a"}}


async def test_a_stream_is_read_like_that_of_a_host_and_closed(package: StandIn) -> None:
    piece = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{ }"}}
    package.answer = Wrapper(
        delta(reasoning_content="hm"), delta("so"), delta(tool_calls=[piece]), delta(finish="tool_calls"), USAGE
    )
    assert await chunks_of(made(), call()) == [
        Thought("hm"), Thought(item={"reasoning_content": "hm"}), Delta("so"), ToolDelta(0, "{ }", "c1", "f"),
        Usage(9, 3), Finish("tool_calls"),
    ]  # fmt: skip
    assert package.answer.closed == 1
    assert package.calls[0]["stream"] is True
    assert package.calls[0]["stream_options"] == {"include_usage": True}


async def test_halves_of_a_character_that_pydantic_refuses_are_joined(package: StandIn) -> None:
    class Refused(Piece):
        def model_dump_json(self, *, warnings: bool = True) -> str:
            raise ValueError("surrogates not allowed")

        def model_dump(self, *, warnings: bool = True) -> Any:
            return self.document

    class Stream(Wrapper):
        async def __anext__(self) -> Piece:
            return Refused((await super().__anext__()).document)

    package.answer = Stream(delta("so \ud83d"), delta("\ude00 \ud83d", finish="stop"))
    assert await chunks_of(made(), call()) == [Delta("so "), Delta("\U0001f600 "), Delta("\ufffd"), Finish("stop")]


async def test_leaving_a_stream_closes_it(package: StandIn) -> None:
    package.answer = Wrapper(delta("a"), delta("b", finish="stop"))
    async with made().open(call()) as chunks:
        assert await anext(chunks) == Delta("a")
    assert package.answer.closed == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_invalid_answer_is_a_fault_after_its_usage(package: StandIn, stream: bool) -> None:
    package.answer = Wrapper(USAGE, delta("half")) if stream else Piece({"choices": [], "usage": USAGE["usage"]})
    async with made().open(call(stream=stream)) as chunks:
        assert await anext(chunks) == Usage(9, 3)
        with pytest.raises(ProviderFault) as caught:
            [chunk async for chunk in chunks]
    assert caught.value.kind == ("truncated" if stream else "malformed")
    assert caught.value.answered


FAULTS = [
    (error("RateLimitError", 429, headers={"Retry-After": "3"}), "rate_limited", 429, 3.0),
    (error("AuthenticationError", 401), "auth", 401, None),
    (error("PermissionDeniedError", 403), "auth", 403, None),
    (error("NotFoundError", 404, "the model `x` does not exist"), "model_not_found", 404, None),
    (error("BadRequestError", 400), "request", 400, None),
    (error("UnsupportedParamsError", 400, parent="BadRequestError"), "request", 400, None),
    (error("ContextWindowExceededError", 400, parent="BadRequestError"), "context_overflow", 400, None),
    (error("ContentPolicyViolationError", 400, parent="BadRequestError"), "refused", 400, None),
    (error("Timeout", 408), "timeout", 408, None),
    (error("APIConnectionError", 500), "connect", None, None),
    (error("ServiceUnavailableError", 503), "server", 503, None),
    (error("InternalServerError", 500), "server", 500, None),
    (error("APIResponseValidationError", 500), "malformed", 500, None),
    (error("APIError", "429"), "server", None, None),
    (ValueError(PROMPT), "server", None, None),
]


@pytest.mark.parametrize(("raised", "kind", "status", "wait_s"), FAULTS, ids=lambda each: type(each).__name__)
async def test_an_exception_is_classified_by_type_and_status(
    package: StandIn, raised: Exception, kind: str, status: int | None, wait_s: float | None
) -> None:
    package.answer = raised
    fault = await fault_of(made(), call())
    assert (fault.kind, fault.status, fault.retry_after, fault.answered) == (kind, status, wait_s, False)
    said = f", status {status}" if status else ""
    assert fault.message == f"acme failed in litellm: {type(raised).__name__}{said}"


async def test_an_exception_in_a_stream_is_marked_as_answered(package: StandIn) -> None:
    for name, kind in (("APIConnectionError", "reset"), ("MidStreamFallbackError", "server")):
        package.answer = Wrapper(delta("half"), error(name, 503))
        async with made().open(call()) as chunks:
            assert await anext(chunks) == Delta("half")
            with pytest.raises(ProviderFault) as caught:
                await anext(chunks)
        assert (caught.value.kind, caught.value.answered) == (kind, True)


@pytest.mark.parametrize("begun", [False, True])
async def test_neither_prompt_nor_key_is_shown(package: StandIn, begun: bool) -> None:
    other, third = "Canary-option-0123", "Canary-environ-0123"
    options, environ = {"aws_secret_access_key": Secret(other)}, {"ACME_API_KEY": third}
    provider = made(api_key=KEY, options=options, environ=environ)
    raised = error("AuthenticationError", 401, f"{PROMPT} {KEY} {other} {third}")
    package.answer = Wrapper(delta("half"), raised) if begun else raised
    fault = await fault_of(provider, call())
    for text in (written(fault), repr(provider), repr(vars(provider))):
        assert "Canary" not in text
        assert PROMPT not in text
    assert PROMPT in fault.body
    assert "Canary" not in fault.body
    assert package.calls[0]["aws_secret_access_key"] == other


def test_litellm_is_sent_no_urls_unless_the_owner_allows_it(package: StandIn) -> None:
    assert made().fetches_urls is False
    provider = made(fetches_urls="callers", caller_extra=["x"])
    assert provider.fetches_urls == "callers"
    assert {"x", "top_k"} <= provider.caller_extra
    with pytest.raises(ValidationFailed, match="fetches_urls"):
        made(fetches_urls="all")


@pytest.mark.parametrize(
    ("known", "lacking"),
    [
        (["temperature", "top_p", "stop", "tool_choice", "tools", *DIALS], ("seed",)),
        (["max_tokens", *DIALS[1:]],
         ("temperature", "top_p", "stop", "seed", "tool_choice", "reasoning", "reasoning_none")),
        (["temperature", "top_p", "stop", "seed", "tool_choice", DIALS[0]], ASKED_FOR),
        (None, ()),
        (ValueError("no such vendor"), ()),
    ],
)  # fmt: skip
def test_parameters_unknown_to_litellm_are_unsupported_features(
    package: StandIn, known: Any, lacking: tuple[str, ...]
) -> None:
    package.known = known
    assert made().unsupported(Model(id="acme/m")) == lacking
    thinks = made().unsupported(Model(id="acme/m", reasoning=True))
    assert thinks == (*lacking, "reasoning_tokens_brief"), "a bound is from 1,024 tokens on"


async def test_what_cannot_be_expressed_is_a_request_fault(package: StandIn) -> None:
    fault = await fault_of(made(), call(params=Params(reasoning=ReasoningBudget(100))))
    assert (fault.kind, fault.message) == (
        "request",
        "the model needs a reasoning budget of at least 1024 tokens, got 100",
    )


async def test_options_that_cannot_be_combined_are_a_fault(package: StandIn) -> None:
    fault = await fault_of(made(options={"extra_body": "text"}), call(params=Params(extra={"acme": {"top_k": 3}})))
    assert (fault.kind, fault.message) == ("server", "acme failed in litellm: TypeError")
    assert not package.calls


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_router_routes_through_it_on_asyncio_only(package: StandIn, anyio_backend: str) -> None:
    model = Model(id="acme/m", quality=0.5, pricing_per_1m=Pricing(1.0, 2.0))
    provider = made(models=[model])
    if anyio_backend == "trio":
        fault = await fault_of(provider, call())
        assert (fault.kind, fault.message) == ("request", "acme needs asyncio, as litellm does")
        return
    answer = await Router(providers=[provider]).route("hi")
    assert (answer.output, answer.routing.cost_usd) == ("hello", 1.5e-05)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"api_key": 7}, "api_key: must be a string, got int; or leave it out"),
        ({"api_key": ["a", "b"]}, "api_key: must be a string, got list; or leave it out"),
        ({"name": 7}, "name: must be a string, got int; name the provider"),
        ({"models": None}, "models: None is not a list of Model; leave it out, or pass [Model(id=...)]"),
    ],
)
def test_arguments_of_a_wrong_type_are_refused(package: StandIn, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        made(**{"name": "acme", **given})
    assert str(caught.value) == said


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(echo) as running:
        yield running


@pytest.fixture
async def real(server: OpenAIServer, anyio_backend: str) -> AsyncIterator[Any]:
    if find_spec("litellm") is None:
        pytest.skip("litellm is not installed")
    options = {"api_base": server.url}
    yield import_module(HOME).LiteLLMProvider("acme", vendor="openai", api_key=KEY, options=options)
    sys.modules.pop(HOME, None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.xdist_group("client table")  # whose process imports the package, which takes seconds
async def test_the_real_package_behaves_like_its_stand_in(server: OpenAIServer, real: Any) -> None:
    def asked(**rest: Any) -> UpstreamCall:
        return provider_calls.call("abc", model="acme/m", deadline=SystemClock().monotonic() + 30.0, **rest)

    assert await chunks_of(real, asked(stream=False)) == [Delta("abc"), Usage(9, 3), Finish("stop")]
    streamed = await chunks_of(real, asked())
    assert "".join(chunk.text for chunk in streamed if isinstance(chunk, Delta)) == "abc"
    assert streamed[-2:] == [Usage(9, 3), Finish("stop")]
    for status, kind in ((401, "auth"), (429, "rate_limited"), (500, "server")):
        server.requests.clear()
        server.answer = lambda request, status=status: of_json({"error": {"message": f"no {KEY} {PROMPT}"}}, status)  # type: ignore[misc]
        fault = await fault_of(real, asked())
        assert (fault.kind, len(server.requests)) == (kind, 1)
        assert "Canary" not in written(fault) + fault.body
        assert PROMPT not in written(fault)
    server.answer = lambda request: events(delta("half"), Cut())
    fault = await fault_of(real, asked())
    assert (fault.kind, fault.answered) == ("server", True)


async def test_extra_fields_are_never_arguments_of_litellm(package: StandIn) -> None:
    extra: dict[str, dict[str, Any]] = {"acme": {"api_base": "http://evil", "top_k": 3}, "other": {"top_k": 4}}
    await chunks_of(made(), provider_calls.call("hi", model="acme/m", params=Params(extra=extra), stream=False))
    (asked,) = package.calls
    assert "api_base" not in asked
    assert asked["extra_body"] == {"api_base": "http://evil", "top_k": 3}
