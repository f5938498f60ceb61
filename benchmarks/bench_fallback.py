"""What does a call cost whose first model fails, and one that routes past a model which is left alone?

Every fault is a provider's own, with the limits as they are shipped. Before each call that is timed, more calls are
answered than it has faults, so that no circuit opens: what is timed is a fallback. No pause is waited out: with
``maxRetries`` 0 there is none, and where the same model is tried again the shortest one is set to nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import cycle
from operator import attrgetter

import pytest

from routewright import ExecutionLimits, Model, OpenAIProvider, Settings, UpstreamCall
from routewright.errors import ProviderFault
from routewright.wire import Chunk, FallbackDict, FaultKind, ModelSpan

from . import data
from .conftest import Peer, TimedAsync
from .data import TODAY
from .doubles import MODELS, TEXT, Canned, DropsAtOnce, Messages, router_over
from .floors import BarePost, LeastRouter, Row, bare_post, request_bytes, rows
from .report import Question, Report
from .upstream import Upstream

TARGET = "35 above the plain call"
FAULTS = (FaultKind.SERVER, FaultKind.CONNECT)
AT_ONCE = ExecutionLimits(backoff_s=0.0, longest_backoff_s=0.0, retry_share=1.0)
"""Second tries without a pause, however many."""
LONG = ExecutionLimits(open_s=3_600.0, longest_open_s=3_600.0)
"""An open circuit stays open."""

ANSWERED = Question("route(), the first model answers")
ANSWERED_STREAM = Question("stream().text() to its end, the first answers")
DOWN = Question("route(), the first says 503 over loopback, maxRetries 0")
PAST = Question("route() past open circuits, of which the first choice is one")

Open = Callable[[UpstreamCall], AbstractAsyncContextManager[AsyncIterator[Chunk]]]
Plain = Callable[[Messages], Awaitable[object]]


def failing(kind: FaultKind, retries: int) -> Question:
    target = TARGET if (kind, retries) == (FaultKind.SERVER, 0) else ""
    return Question(f"route(), the first model fails ({kind}), the next answers, maxRetries {retries}", target)


def failing_stream(kind: FaultKind, retries: int) -> Question:
    return Question(f"stream().text() to its end, the first fails: {kind}, maxRetries {retries}")


class Flaky:
    """A provider whose next calls fail; then it answers at once."""

    name = "flaky"

    def __init__(self, fail: Open) -> None:
        self.faults = 0
        """How many calls are still to fail."""
        self._fail = fail

    def models(self) -> Sequence[Model]:
        return MODELS

    def open(self, call: UpstreamCall) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        if not self.faults:
            return Canned(turns=0)
        self.faults -= 1
        return self._fail(call)

    async def aclose(self) -> None: ...


class Failing(Canned):
    """A call that fails as it begins."""

    def __init__(self, kind: FaultKind) -> None:
        super().__init__(turns=0)
        self._kind = kind

    async def __aenter__(self) -> Failing:
        raise ProviderFault(self._kind, "as told")


def failing_with(kind: FaultKind) -> Open:
    return lambda call: Failing(kind)


class Case:
    """A Router over a provider that fails when told, and the two ways to call it."""

    def __init__(self, fail: Open, *, retries: int = 0, settings: Settings | None = None) -> None:
        self.provider = Flaky(fail)
        self.router = router_over(self.provider, DropsAtOnce(), settings)
        self._faults = retries + 1
        self._fallback: FallbackDict = {"maxRetries": retries}

    async def route(self, messages: Messages) -> object:
        return await self.router.route(messages, fallback=self._fallback)

    async def stream(self, messages: Messages) -> None:
        async with self.router.stream(messages, fallback=self._fallback) as stream:
            async for _ in stream.text():
                pass

    async def answer(self, messages: Messages) -> None:
        """Have it answer twice as often as it is to fail."""
        for _ in range(2 * self._faults):
            await self.router.route(messages)

    def failing(self, call: Plain) -> Plain:
        """The call, of which the first attempts fail."""

        async def fail(messages: Messages) -> None:
            self.provider.faults = self._faults
            await call(messages)
            assert not self.provider.faults, "the first was not asked as often as it was to fail"

        return fail


def retrying(retries: int) -> Settings | None:
    return Settings(execution=AT_ONCE) if retries else None


@pytest.fixture
def chats() -> Iterator[Messages]:
    return cycle(data.conversations())


def least_router(call: Callable[[Row, Messages], Awaitable[tuple[str, int, int]]]) -> LeastRouter:
    best_first = sorted(rows(data.forecast(MODELS), TODAY), key=attrgetter("merit"), reverse=True)
    return LeastRouter(best_first, call)


async def canned(row: Row, messages: Messages) -> tuple[str, int, int]:
    return TEXT, 42, 9


async def caught(row: Row, messages: Messages) -> tuple[str, int, int]:
    """Two functions, and the second where the first fails."""
    try:
        return await broken(row, messages)
    except ProviderFault:
        return await canned(row, messages)


async def broken(row: Row, messages: Messages) -> tuple[str, int, int]:
    raise ProviderFault(FaultKind.SERVER, "as told")


async def caught_stream(messages: Messages) -> None:
    """The same for two generators."""
    try:
        async for _ in broken_pieces():
            pass
    except ProviderFault:
        async for _ in canned_pieces():
            pass


async def canned_stream(messages: Messages) -> None:
    async for _ in canned_pieces():
        pass


async def broken_pieces() -> AsyncIterator[str]:
    raise ProviderFault(FaultKind.SERVER, "as told")
    yield TEXT


async def canned_pieces() -> AsyncIterator[str]:
    yield TEXT


class TestTheFirstAnswers:
    def test_floor(self, timed_async: TimedAsync, chats: Iterator[Messages]) -> None:
        timed_async(ANSWERED, "floor", least_router(canned).route, chats)
        timed_async(ANSWERED_STREAM, "floor", canned_stream, chats)

    def test_routewright(self, timed_async: TimedAsync, chats: Iterator[Messages]) -> None:
        case = Case(failing_with(FaultKind.SERVER))
        timed_async(ANSWERED, "routewright", case.route, chats)
        timed_async(ANSWERED_STREAM, "routewright", case.stream, chats)


class TestTheFirstFails:
    def test_floor(self, timed_async: TimedAsync, chats: Iterator[Messages]) -> None:
        timed_async(failing(FaultKind.SERVER, 0), "floor", least_router(caught).route, chats)
        timed_async(failing_stream(FaultKind.SERVER, 0), "floor", caught_stream, chats)

    def test_litellm(self, peer: Peer, report: Report) -> None:
        report.add(failing(FaultKind.SERVER, 0), "litellm", peer("litellm", "litellm_router", "fallback"))

    def test_pydantic_ai(self, peer: Peer, report: Report) -> None:
        figure = peer("pydantic-ai", "pydantic_ai_direct", "fallback")
        report.add(failing(FaultKind.SERVER, 0), "pydantic-ai", figure)

    @pytest.mark.parametrize("kind", FAULTS)
    @pytest.mark.parametrize("retries", [0, 1])
    def test_plain(self, timed_async: TimedAsync, chats: Iterator[Messages], kind: FaultKind, retries: int) -> None:
        case = Case(failing_with(kind), retries=retries, settings=retrying(retries))
        timed_async.after(case.answer, failing(kind, retries), "routewright", case.failing(case.route), chats)

    @pytest.mark.parametrize("retries", [0, 1])
    def test_streamed(self, timed_async: TimedAsync, chats: Iterator[Messages], retries: int) -> None:
        kind = FaultKind.SERVER
        case = Case(failing_with(kind), retries=retries, settings=retrying(retries))
        timed_async.after(case.answer, failing_stream(kind, retries), "routewright", case.failing(case.stream), chats)


class TestTheFirstIsDown:
    def test_floor(
        self, timed_async: TimedAsync, loop: asyncio.Runner, server: Upstream, chats: Iterator[Messages]
    ) -> None:
        bare = loop.run(bare_post(server.port))
        timed_async(DOWN, "floor", least_router(after_post(bare)).route, chats)
        bare.close()

    def test_routewright(
        self, timed_async: TimedAsync, loop: asyncio.Runner, server: Upstream, chats: Iterator[Messages]
    ) -> None:
        provider = OpenAIProvider("none", name="down", base_url=server.url("down"))
        case = Case(provider.open)
        timed_async.after(case.answer, DOWN, "routewright", case.failing(case.route), chats)
        loop.run(provider.aclose())


def after_post(bare: BarePost) -> Callable[[Row, Messages], Awaitable[tuple[str, int, int]]]:
    """Ask a server that is down, then answer."""
    request = request_bytes("/down/chat/completions", b"{}")

    async def call(row: Row, messages: Messages) -> tuple[str, int, int]:
        await bare.post(request)
        return TEXT, 42, 9

    return call


class TestPastOpenCircuits:
    def test_floor(self, timed_async: TimedAsync, chats: Iterator[Messages]) -> None:
        timed_async(PAST, "floor", least_router(canned).route, chats)

    def test_routewright(self, timed_async: TimedAsync, loop: asyncio.Runner, chats: Iterator[Messages]) -> None:
        case = Case(failing_with(FaultKind.SERVER), settings=Settings(execution=LONG))
        loop.run(open_circuits(case))
        timed_async(PAST, "routewright", case.route, chats)


async def open_circuits(case: Case) -> None:
    """Fail until every conversation's first choice is left alone."""
    first = {case.router.decide(messages).model for messages in data.conversations()}
    for messages in data.conversations():
        while case.router.decide(messages).model in first:
            await case.failing(case.route)(messages)


def test_each_way_fails_over_as_often_as_it_says() -> None:
    asyncio.run(fail_over())


async def fail_over() -> None:
    messages = data.conversations()[0]
    for retries in (0, 1):
        case = Case(failing_with(FaultKind.SERVER), retries=retries, settings=retrying(retries))
        decided = case.router.decide(messages)
        case.provider.faults = retries + 1
        answer = await case.router.route(messages, fallback={"maxRetries": retries})
        called = [span.model for span in answer.trace.spans if isinstance(span, ModelSpan)]
        assert called == [decided.model] * (retries + 1) + decided.chain[:1]
