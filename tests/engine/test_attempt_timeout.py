"""Real time: an attempt that times out is cancelled natively, and the next model answers."""

from __future__ import annotations

import asyncio
import importlib.util
from random import Random
from types import TracebackType
from typing import Any, Self

import anyio
import pytest

from routewright import Catalogue, ProviderFault, Router, Settings
from routewright.backends.clock import SystemClock
from routewright.errors import RouterTimeoutError
from routewright.wire import Chunk, Delta, Finish, Model, UpstreamCall, Usage
from tests.tables import table

from .scripted_router import GOOD, SPARE

LONG_S = 30.0
LOOPS: list[tuple[str, dict[str, Any]]] = [("asyncio", {"use_uvloop": False})]
if importlib.util.find_spec("uvloop") is not None:
    LOOPS.append(("asyncio", {"use_uvloop": True}))

pytestmark = pytest.mark.anyio


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"][: len(LOOPS)])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


class Fine:
    """Answers at once. Its heirs do not."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.name = model.id.partition("/")[0]
        self.open_calls = 0
        self.cleaned = 0

    def models(self) -> list[Model]:
        return [self.model]

    def open(self, call: UpstreamCall) -> Opened:
        return Opened(self)

    async def aclose(self) -> None:
        pass

    async def wait(self) -> None:
        """Before the first piece."""

    async def leave(self) -> None:
        """When the call is left."""


class Opened:
    def __init__(self, provider: Fine) -> None:
        self.provider = provider
        self.pieces: list[Chunk] = [Finish("stop"), Usage(5, 5), Delta(f"from {provider.name}")]

    async def __aenter__(self) -> Self:
        self.provider.open_calls += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.provider.open_calls -= 1
        await self.provider.leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if len(self.pieces) == 3:
            await self.provider.wait()
        if not self.pieces:
            raise StopAsyncIteration
        return self.pieces.pop()


class Silent(Fine):
    async def wait(self) -> None:
        await asyncio.sleep(LONG_S)


class SlowToLeave(Silent):
    async def leave(self) -> None:
        await asyncio.sleep(LONG_S)


class SwallowsTwo(Fine):
    async def wait(self) -> None:
        for _ in range(2):
            await asyncio.wait([asyncio.ensure_future(swallow())])
        await asyncio.sleep(LONG_S)


class AnswersWhenCancelled(Fine):
    async def wait(self) -> None:
        await swallow()


class Converts(Fine):
    async def wait(self) -> None:
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            raise ProviderFault("reset", "the connection was closed") from None


class FailsInAGroup(Fine):
    async def wait(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._fail())
            await asyncio.sleep(LONG_S)

    async def _fail(self) -> None:
        try:
            await asyncio.sleep(LONG_S)
        finally:
            raise ValueError("mine")


class WaitsInScopes(Fine):
    async def wait(self) -> None:
        while True:
            with anyio.move_on_after(0.01):
                async with anyio.create_task_group() as group:
                    group.start_soon(asyncio.sleep, LONG_S)


class CleansUpInAShield(Fine):
    async def wait(self) -> None:
        try:
            await asyncio.sleep(LONG_S)
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(0.01)
                self.cleaned += 1


class NeedsScope(CleansUpInAShield):
    needs_scope = True


async def swallow() -> None:
    try:
        await asyncio.sleep(LONG_S)
    except asyncio.CancelledError:
        return


ODD = [Silent, SwallowsTwo, Converts, FailsInAGroup, WaitsInScopes]


def router(first: Fine, second: Fine) -> Router:
    return Router(
        providers=[first, second], catalogue=Catalogue(()), settings=Settings(clock=SystemClock(), rng=Random(7))
    )


async def ask(router: Router, *, streamed: bool) -> str:
    options: Any = {"goal": "quality", "timeout_ms": 1_000, "fallback": {"maxRetries": 1}}
    if not streamed:
        answer = await router.route("hi", **options)
        return str(answer.output)
    async with router.stream("hi", **options) as stream:
        async for _ in stream:
            pass
    return str(stream.result.output)


@table("streamed", [False, True])
@table("kind", ODD)
async def test_the_next_model_answers_and_the_task_is_as_before(kind: type[Fine], streamed: bool) -> None:
    first, second, task = kind(GOOD), Fine(SPARE), asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    async with router(first, second) as routed:
        assert await ask(routed, streamed=streamed) == f"from {second.name}"
    assert first.open_calls == second.open_calls == 0
    assert task.cancelling() == before
    await asyncio.sleep(0)


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_that_comes_with_the_alarm_counts_if_it_is_whole(streamed: bool) -> None:
    first, second = AnswersWhenCancelled(GOOD), Fine(SPARE)
    async with router(first, second) as routed:
        answering = second if streamed else first
        assert await ask(routed, streamed=streamed) == f"from {answering.name}"
    assert first.open_calls == second.open_calls == 0


@pytest.mark.parametrize("streamed", [False, True])
async def test_leaving_a_provider_is_limited_too(streamed: bool) -> None:
    first, second, task = SlowToLeave(GOOD), Fine(SPARE), asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    async with router(first, second) as routed:
        with pytest.raises(RouterTimeoutError):
            await ask(routed, streamed=streamed)
    assert first.open_calls == second.open_calls == 0
    assert task.cancelling() == before
    await asyncio.sleep(0)


@table("streamed", [False, True])
@table("kind", [*ODD, SlowToLeave, AnswersWhenCancelled])
async def test_a_cancelled_call_ends_as_cancelled(kind: type[Fine], streamed: bool) -> None:
    first, second = kind(GOOD), Fine(SPARE)
    async with router(first, second) as routed:
        call = asyncio.ensure_future(ask(routed, streamed=streamed))
        await asyncio.sleep(0.005)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert first.open_calls == second.open_calls == 0


@pytest.mark.parametrize(("kind", "cleaned"), [(CleansUpInAShield, 0), (NeedsScope, 1)])
async def test_a_shield_in_a_provider_holds_where_it_needs_a_scope(kind: type[Fine], cleaned: int) -> None:
    first, second = kind(GOOD), Fine(SPARE)
    async with router(first, second) as routed:
        assert await ask(routed, streamed=False) == f"from {second.name}"
    assert first.cleaned == cleaned
