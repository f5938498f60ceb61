"""Streamed calls: the execution of a plain call, pulled piece by piece."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable
from math import inf
from typing import Self, assert_never

import anyio

from routewright import wire
from routewright._core.attempts.record import Attempt
from routewright._core.call import Call
from routewright._core.outcome import raise_failure
from routewright._core.routing.plan import ID
from routewright._core.trace.spans import CACHE_HEADER
from routewright.errors import RouterError
from routewright.protocols import Clock

from .admission import Admission
from .answer import Answer, events_again, events_before_end, reasoning_data
from .execute import Execution
from .provider_exchange import AttemptStarted, OutputChunk
from .request_input import RawRequest, Read
from .route import Engine


class Stream:
    """Events of one call, or its text.

        async with router.stream("Tell me a story") as stream:
            async for text in stream.text():
                print(text, end="")
        print(stream.result.routing.cost_usd)

    Iterating over the stream itself yields the events of ``POST /v1/route`` as structs. The first comes with the first
    content, so an error before it is raised; the last is ``route.completed``, or ``error`` for one after it. Leaving
    the context ends the call, even while another task reads. Only one task may read."""

    def __init__(self, engine: Engine, request: RawRequest | Read, caller: wire.Caller) -> None:
        self._engine = engine
        self._request = request
        self._caller = caller
        self._call: Call | None = None
        self._execution: Execution | None = None
        self._answer: Answer | None = None
        """Set once the call has ended, even if it was left or failed."""
        self._error: RouterError | None = None
        """Why it failed."""
        self._admission: Admission | None = None
        self._ready = deque[wire.RouteEvent]()
        """Events that wait for the first content or for the reader."""
        self._event_id = 0
        self._thoughts_sent: tuple[int, int] = 0, 0
        """The attempt whose thoughts were sent last, and the number sent."""
        self._after_thought: OutputChunk | AttemptStarted | None = None
        """What follows the thought sent last."""
        self._is_text = False
        self._headers: dict[str, str] = {}
        self._closed = False
        self._reading = False
        self._read: anyio.Event | None = None
        """Set once the reader has stopped, to let ``aclose`` go on."""
        self._left: anyio.Event | None = None
        """Made by the task that leaves the call, set once it has."""
        self._why_left: Callable[[], RouterError | None] = lambda: None

    def __del__(self) -> None:
        """Book the cost of a stream that is dropped before its end, without ``async with``."""
        if self._execution is not None and self._call is not None and self._answer is None and self._left is None:
            self._engine.log.drop(self._call, self._execution)
            # a generator that the collector ends together with its stream may close it after this
            self._execution = None
            self._admission = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> wire.RouteEvent:
        if self._reading:
            raise RuntimeError("two tasks read this stream at once; use one reader, or one stream per task")
        self._reading = True
        try:
            if self._ready:
                return self._ready.popleft()
            if self._answer is not None or self._closed:
                raise StopAsyncIteration
            execution = self._execution
            if execution is None:
                execution = await self._begin()
                if execution is None:
                    return self._ready.popleft()
            # A status, or anything else that the reader sends on, cannot be taken back. So ``route.started`` and the
            # fallbacks after it wait in ``_ready`` for the first content: a call that fails before it raises, and its
            # reader can still answer 502 (contract 1).
            # test_nothing_comes_before_the_first_content, test_a_failure_before_content_is_raised
            event: wire.RouteEvent | None = None
            while event is None:
                if execution.machine.end is not None:
                    served = execution.call.served
                    if served is not None and served.thoughts is not None:  # after its last word
                        event = self._thought(served)
                    if event is None:
                        event = await self._end_event(execution)
                    break
                chunk, self._after_thought = self._after_thought, None
                try:
                    chunk = chunk or await execution.next()
                except BaseException:
                    await self._leave()
                    raise
                if self._closed:
                    await self._leave()
                    raise StopAsyncIteration
                exchange = execution.exchange
                if exchange is not None and exchange.attempt.thoughts is not None and chunk is not None:
                    event = self._thought(exchange.attempt)
                    if event is not None:
                        self._after_thought = chunk
                        break
                if type(chunk) is wire.Delta:
                    self._event_id += 1
                    number = 0 if exchange is None else exchange.attempt.number
                    event = wire.OutputDelta(self._event_id, wire.OutputData(chunk.text, number))
                elif chunk is not None:
                    event = self._event(chunk, execution)
                    if self._ready and type(event) is wire.RouteFallback:
                        self._ready.append(event)
                        event = None
            if self._ready:
                self._ready.append(event)
                return self._ready.popleft()
            return event
        finally:
            self._reading = False
            if self._read is not None:
                self._read.set()

    async def start(self) -> None:
        """Wait for the first content: text, reasoning, a tool call, or the end of an empty answer. ``headers`` are set
        then, and later errors are events. Raises as ``Router.route`` if the call fails before."""
        self.raise_failure()
        if self._call is None and self._answer is None:
            event = await anext(self, None)
            if event is None:
                raise RuntimeError("the stream was left before its first content; make a new one")
            self._ready.appendleft(event)

    async def sse(self) -> AsyncGenerator[bytes]:
        """The events as ``POST /v1/route`` sends them, each with its empty line, for a response of type
        ``text/event-stream``. Call ``start`` first, to answer an early error with a status of its own. Closing the
        generator ends the call."""
        async with self:
            async for event in self:
                yield event.to_sse()

    def text(self) -> StreamText:
        """Iterate over the answer's text. A fault after the first piece always raises, since text cannot mark earlier
        text as void."""
        self.expect_text()
        return StreamText(self)

    def expect_text(self) -> None:
        """Declare that plain text is read: delivered text cannot be voided, so a fault becomes an error."""
        self._is_text = True
        if self._execution is not None:
            self._execution.expect_text()

    def explain_leaving(self, explain: Callable[[], RouterError | None]) -> None:
        """Set a function that returns why a call was left early. With an error the call is not charged; None: the
        reader left."""
        self._why_left = explain

    @property
    def clock(self) -> Clock:
        """The clock of its Router."""
        return self._engine.log.clock

    @property
    def headers(self) -> dict[str, str]:
        """HTTP rate-limit headers (``Answer.headers``), set once it has started."""
        return self._headers

    @property
    def trace_id(self) -> str | None:
        """Id of the call's trace; None before the call is admitted."""
        if self._answer is not None:
            return self._answer.trace_id
        return None if self._call is None else self._call.id

    @property
    def deadline(self) -> float:
        """The deadline on the monotonic scale; infinity before the call is admitted."""
        return inf if self._call is None else self._call.deadline

    def raise_failure(self) -> None:
        """Raise the error that ended the stream, if any."""
        if self._error is not None:
            raise_failure(self._error)

    @property
    def result(self) -> Answer:
        """The answer, once the stream has ended. Raises the error if it failed."""
        if self._answer is None and not self._closed:
            raise RuntimeError("the stream has not ended: read it to its end first")
        self.raise_failure()
        if self._answer is None or not self._answer.is_served:
            raise RuntimeError("the stream was left before its end, so there is no answer")
        return self._answer

    async def aclose(self) -> None:
        """End the call. The text so far is in its trace."""
        self._closed = True
        if self._reading:  # another task reads: its await must end first
            self._read = self._read or anyio.Event()
            if self._execution is not None:
                self._execution.interrupt()
            await self._read.wait()
        await self._leave()

    async def _leave(self) -> None:
        self._ready.clear()
        execution, call = self._execution, self._call
        if execution is None or call is None or self._answer is not None:
            await self._give_back()
            return
        if self._left is not None:
            await self._left.wait()
            return
        self._left = anyio.Event()
        try:
            await execution.aclose()
        finally:
            try:
                execution.end_with(self._why_left())
                self._answer, self._error = self._engine.log.conclude(call, execution, behind=True)
                await self._give_back()
            finally:
                self._left.set()

    async def _give_back(self) -> None:
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.release()
            await self._engine.log.write_last(admission.trace_id)

    async def _begin(self) -> Execution | None:
        """Admit the call and choose a model, with ``route.started`` in ``_ready``. None: the content is there, too,
        that of an earlier call with the same idempotency key or of a cached answer."""
        engine = self._engine
        try:
            request = self._request
            read = request if isinstance(request, Read) else await engine.read(request)
            if not engine.servers.ready.is_set:
                await engine.servers.wait()
            self._admission = admission = engine.admissions.begin(read, self._caller)
            if admission is None:
                execution = await engine.begin(engine.make_call(read, self._caller), whole=False)
            else:
                start = await engine.start(admission, read, whole=False)
                if not isinstance(start, Execution):
                    self._answer = await engine.replay(start, self._caller)
                    self._ready.extend(events_again(self._answer.response))
                    await self._give_back()
                    return None
                execution = start
                self._headers = admission.headers
        except BaseException as error:
            self._closed = True
            if isinstance(error, RouterError):
                error.request_id = error.request_id or engine.ids("req_")
                self._error = error
            self._tell(error)
            await self._give_back()
            raise
        self._call = call = execution.call
        self._execution = execution
        if self._is_text:
            execution.expect_text()
        legs = execution.machine.plan.legs
        model, *chain = map(ID, legs)
        if call.looked is not None:
            self._headers = self._headers | {CACHE_HEADER: call.looked.header}
        served = call.served
        ignored = [] if call.asks is None else call.asks.ignored_by(legs[0].able)
        started = wire.StartedData(call.id, wire.StartedRouting(model, chain, call.policy_version, ignored))
        if served is not None:  # served from the cache
            started = wire.StartedData(call.id, wire.StartedRouting(served.model, chain, call.policy_version))
            self._ready.extend(events_before_end(started, served.output, served.tool_calls))
            self._event_id = len(self._ready)
            return None
        self._event_id = 1
        self._ready.append(wire.RouteStarted(1, started))
        return execution

    def _tell(self, error: BaseException | None) -> None:
        if self._admission is not None:
            self._admission.annotate(error)

    def _thought(self, attempt: Attempt) -> wire.ReasoningDelta | None:
        """The thoughts of an attempt that were not sent yet."""
        number, thoughts = attempt.number, attempt.thoughts or []
        since = self._thoughts_sent[1] if self._thoughts_sent[0] == number else 0
        self._thoughts_sent = number, len(thoughts)
        reasoning = attempt.reasoning(since)
        return None if reasoning is None else wire.ReasoningDelta(self._next_id(), reasoning_data(reasoning, number))

    def _event(self, chunk: OutputChunk | AttemptStarted, execution: Execution) -> wire.RouteEvent | None:
        match chunk:
            case wire.ToolDelta(index, arguments, call_id, name):
                number = execution.exchange.attempt.number if execution.exchange is not None else 0
                return wire.ToolCallDelta(self._next_id(), wire.ToolCallData(index, call_id, name, arguments, number))
            case wire.Delta() | wire.Finish():  # `__anext__` has yielded the text
                return None
            case AttemptStarted(attempt, from_model, reason, restart):
                if from_model is None or (from_model == attempt.model and not restart):
                    return None  # a silent second try
                return wire.RouteFallback(
                    self._next_id(), wire.FallbackData(from_model, attempt.model, reason, restart)
                )
            case other:
                assert_never(other)

    async def _end_event(self, execution: Execution) -> wire.RouteEvent:
        self._answer, self._error = self._engine.log.conclude(execution.call, execution)
        if self._engine.log.commits or self._admission is not None:
            self._tell(self._error)
            try:
                await self._engine.log.commit(execution.call)
            finally:
                await self._give_back()
        if self._error is None:
            return wire.RouteCompleted(self._event_id + 1, self._answer.response)
        if self._ready:  # nothing was handed out yet
            self._ready.clear()
            raise_failure(self._error)
        return wire.StreamError(self._next_id(), wire.error_envelope(self._error))

    def _next_id(self) -> int:
        self._event_id += 1
        return self._event_id


class StreamText:
    """The text of a stream. An iterator, not a generator: a loop may stop and another continue. The call ends with its
    text, or when the stream's context is left."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        try:
            while True:
                event = await self._stream.__anext__()
                if type(event) is wire.OutputDelta:
                    return event.data.text
        except StopAsyncIteration:
            self._stream.raise_failure()
            raise
