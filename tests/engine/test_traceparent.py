"""A call records its place in a distributed trace, and passes it on."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry import trace as telemetry
from opentelemetry.sdk.trace import TracerProvider

from routewright import Answer, Delta, Finish, Model, Pricing, Router, Settings, UpstreamCall, ValidationFailed
from routewright.router import StepCall
from routewright.wire import Chunk
from routewright.wire.ids import span_id_of
from tests.tables import table

pytestmark = pytest.mark.anyio

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HERE = f"00-{TRACE}-{SPAN}-01"
FORM = re.compile(rf"00-{TRACE}-([0-9a-f]{{16}})-01")


class Listening:
    """A provider that keeps what it was called with."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[UpstreamCall] = []

    def models(self) -> Sequence[Model]:
        return [Model(id=f"{self.name}/m", pricing_per_1m=Pricing(1, 1), context_window=10_000, quality=0.5)]

    @asynccontextmanager
    async def open(self, call: UpstreamCall) -> AsyncIterator[AsyncIterator[Chunk]]:
        self.calls.append(call)

        async def chunks() -> AsyncIterator[Chunk]:
            if len(self.calls) == 1:
                raise ConnectionResetError
            yield Delta("hello")
            yield Finish("stop")

        yield chunks()

    async def aclose(self) -> None: ...


def listening(*to: str) -> tuple[Router, Listening]:
    provider = Listening("house")
    return Router(providers=[provider], settings=Settings(traceparent_to=to)), provider


async def heard(router: Router) -> str | None:
    answer: Answer[Any] = await router.route("hi")
    return answer.trace.traceparent


async def test_calls_inside_the_block_belong_to_the_trace() -> None:
    router = Router.sandbox()
    assert await heard(router) is None
    with router.traceparent(HERE):
        assert await heard(router) == HERE
        stream = router.stream("hi")
        with router.traceparent(HERE.replace(SPAN, "1" * 16)):
            assert await heard(router) == HERE.replace(SPAN, "1" * 16)
    assert await heard(router) is None
    async for _ in stream:
        pass
    assert stream.result.trace.traceparent == HERE


def test_blocking_calls_and_other_routers_inside_the_block_belong_to_it_too() -> None:
    router, other = Router.sandbox(), Router.sandbox()
    with router.traceparent(HERE):
        assert other.blocking.route("hi").trace.traceparent == HERE


def test_an_invalid_traceparent_is_refused_with_an_example() -> None:
    for wrong in ("garbage", HERE.upper(), b"00", None):
        with pytest.raises(ValidationFailed, match=r"traceparent: is .*pass version-trace-span-flags"):
            Router.sandbox().traceparent(wrong)  # type: ignore[arg-type]


async def test_the_active_span_is_the_parent_unless_one_is_set() -> None:
    router, tracer = Router.sandbox(), TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("request") as span:
        context = span.get_span_context()
        assert await heard(router) == f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        with router.traceparent(HERE):
            assert await heard(router) == HERE
    with telemetry.use_span(telemetry.INVALID_SPAN):
        assert await heard(router) is None


async def test_a_provider_that_is_not_named_gets_no_traceparent() -> None:
    for to in ((), ("elsewhere",)):
        router, provider = listening(*to)
        with router.traceparent(HERE):
            await router.route("hi")
        assert [call.traceparent for call in provider.calls] == [None, None]


@pytest.mark.parametrize("to", ["house", "*"])
async def test_a_named_provider_gets_the_traceparent_with_a_span_per_attempt(to: str) -> None:
    router, provider = listening(to)
    with router.traceparent(HERE):
        answer = await router.route("hi")
    spans = [found[1] for call in provider.calls if (found := FORM.fullmatch(call.traceparent or ""))]
    assert spans == [span_id_of(answer.trace_id, 1), span_id_of(answer.trace_id, 2)]
    assert SPAN not in spans


def test_steps_have_the_traceparent_header() -> None:
    router, _ = listening("house")
    with router.traceparent(HERE), router.steps("hi") as steps:
        step = steps.next()
        assert isinstance(step, StepCall)
        assert FORM.fullmatch(step.upstream.traceparent or "")


@table("wrong", ["house", ("house", ""), (None,), 7])
def test_traceparent_to_must_be_a_tuple(wrong: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"Settings\.traceparent_to: .*pass a tuple of names"):
        Settings(traceparent_to=wrong)
