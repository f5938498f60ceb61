"""Functions as providers: what they may return, where they run, and that their resources are released."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest

from routewright import CallableProvider, Model, ProviderFault, UpstreamCall, ValidationFailed
from routewright.backends.providers import callable as callables
from routewright.wire import Chunk, Delta, Finish, Message, Params, ToolDelta

pytestmark = pytest.mark.anyio

MODEL = Model(id="mine/one")
CALL = UpstreamCall(MODEL, [Message("user", "hi")], Params(), None, None, None, deadline=60.0)
PATIENCE_S = 10.0


async def chunks_of(function: Callable[[UpstreamCall], Any]) -> list[Chunk]:
    async with CallableProvider(function, models=[MODEL]).open(CALL) as pieces:
        return [piece async for piece in pieces]


async def test_none_as_a_piece_is_a_sign_of_life() -> None:
    async def pieces(call: UpstreamCall) -> AsyncIterator[str | None]:
        yield "half "
        yield None
        yield "an answer"

    whole = [Delta("half "), Delta(""), Delta("an answer"), Finish("stop")]
    assert await chunks_of(pieces) == whole
    assert await chunks_of(lambda call: ["half ", None, "an answer"]) == whole
    assert await chunks_of(lambda call: iter(["half ", None, "an answer"])) == whole


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("answer", "function: 'answer' is not callable; return text, or an iterable of text and chunks"),
        (lambda: "hi",
         "function: has the wrong parameters: too many positional arguments; accept one argument, the UpstreamCall"),
        (lambda one, two: "hi",
         "function: has the wrong parameters: missing a required argument: 'two'; accept one argument"),
    ],
)  # fmt: skip
async def test_an_unsuitable_function_is_refused_by_the_constructor(function: Any, said: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        CallableProvider(function, models=[MODEL])
    assert str(refused.value).startswith(said)


async def test_tool_calls_end_with_the_reason_tool_calls() -> None:
    assert (await chunks_of(lambda call: [ToolDelta(0, "{}", "c", "look")]))[-1] == Finish("tool_calls")


@pytest.mark.parametrize("reply", [{"text": "hello"}, {"hello"}, b"hello", None, 7, Delta("hello")])
async def test_another_result_is_refused_with_a_hint(reply: object) -> None:
    with pytest.raises(ProviderFault, match=f"returned {type(reply).__name__}; return text") as fault:
        await chunks_of(lambda call: reply)
    assert fault.value.kind == "malformed"


async def test_an_exception_of_the_function_is_a_fault_that_names_it() -> None:
    with pytest.raises(ProviderFault, match="the function raised ZeroDivisionError") as fault:
        await chunks_of(lambda call: str(1 // 0))
    assert fault.value.kind == "server"


async def test_a_generator_does_not_block_the_loop_and_is_closed() -> None:
    here, threads, closed = threading.get_ident(), set(), []

    def pieces(call: UpstreamCall) -> Iterator[str]:
        try:
            for word in ("a ", "b ", "c"):
                threads.add(threading.get_ident())
                yield word
        finally:
            closed.append(threading.get_ident())

    provider = CallableProvider(pieces, models=[MODEL])
    async with provider.open(CALL) as given:
        assert await anext(given) == Delta("a ")
    assert here not in threads
    assert len(closed) == 1
    assert here not in closed


async def test_a_running_generator_is_closed_after_its_next_piece() -> None:
    begun, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def pieces(call: UpstreamCall) -> Iterator[str]:
        try:
            begun.set()
            go_on.wait(PATIENCE_S)
            yield "late"
        finally:
            closed.set()

    async with CallableProvider(pieces, models=[MODEL]).open(CALL) as given, anyio.create_task_group() as group:
        group.start_soon(anext, given)
        assert await anyio.to_thread.run_sync(begun.wait, PATIENCE_S)
        group.cancel_scope.cancel()
    assert not closed.is_set()
    go_on.set()
    assert await anyio.to_thread.run_sync(closed.wait, PATIENCE_S)


class Hanging:
    """A provider whose function hangs until it is released."""

    def __init__(self) -> None:
        self.begun, self.release, self.times = threading.Semaphore(0), threading.Event(), 0
        self._provider = CallableProvider(self._hang, models=[MODEL])

    def _hang(self, call: UpstreamCall) -> str:
        self.times += 1
        self.begun.release()
        self.release.wait(PATIENCE_S)
        return "late"

    async def ask(self) -> None:
        async with self._provider.open(CALL) as pieces:
            await anext(pieces)


async def test_hanging_functions_keep_their_threads_after_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callables, "THREADS", 2)
    hanging = Hanging()
    try:
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(hanging.ask)
            for _ in range(2):
                assert await anyio.to_thread.run_sync(hanging.begun.acquire, True, PATIENCE_S)
            group.cancel_scope.cancel()
        async with anyio.create_task_group() as group:
            group.start_soon(hanging.ask)
            assert not await anyio.to_thread.run_sync(hanging.begun.acquire, True, 0.05)
            group.cancel_scope.cancel()
    finally:
        hanging.release.set()
    assert hanging.times == 2
