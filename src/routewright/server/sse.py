"""Server-sent events of one answer (contract 5): held back until there is content, kept alive with comments, stopped
when the client disconnects.

One task reads the events into a short buffer; the request's task sends it. A slow client delays only its own
answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple, Protocol

import anyio

from routewright import Stream
from routewright._runtime.loop import outcome_of, this_loop
from routewright.agent import Run
from routewright.errors import RouterError

from .errors import shutdown_error
from .exchange import ClientLeft, Exchange

TYPE = b"text/event-stream; charset=utf-8"
HEARTBEAT = b": keep-alive\n\n"
HIGH_BYTES = 64 << 10
"""The buffer holds at most one event more than this."""
SHORTEST_TICK_S = 0.05


class Frame(NamedTuple):
    """An event on the wire."""

    body: bytes
    """Complete, with the final empty line."""
    content: bool = True
    """True for content: the status is sent with the first."""


class Frames(Protocol):
    """The events of one answer in the format of one API."""

    headers: dict[str, str]
    """Additional headers of the response; complete with the first frame."""

    @property
    def stream(self) -> Stream | Run:
        """The call or run."""

    def __aiter__(self) -> AsyncGenerator[Frame, None]:
        """Give them in order. Raises the error in which the answer ends."""

    def error_frame(self, error: Exception) -> bytes:
        """The last event of a failed stream."""


class EventStream:
    """Sends frames: ``await EventStream(exchange, frames).run(finishes=False)``."""

    def __init__(self, exchange: Exchange, frames: Frames) -> None:
        self._exchange = exchange
        self._frames = frames
        self._buffer = bytearray()
        self._is_open = False
        """True if the buffer may be sent: it has content, or was held back long enough."""
        self._is_over = anyio.Event()
        """Set once all events are in the buffer."""
        self._error: Exception | None = None
        self._arrival = anyio.Event()
        self._drain = anyio.Event()
        self._sender = anyio.CancelScope()
        self._sends_since: float | None = None
        self._sent_at = exchange.clock.monotonic()
        self._has_left = self._finishes = False
        self._is_sent = False

    async def run(self, *, finishes: bool) -> None:
        """Send all events. ``finishes``: the call continues if the client disconnects. Raises ``ClientLeft``, and what
        the frames raise before anything was sent. A stream that is cancelled at shutdown ends with an error."""
        # One loop that reads an event and sends it would see neither a client that leaves while the model is silent nor
        # a model that is done while the client reads slowly, and could send no comment in between (contract 5: at
        # least every 15 s). So one task reads into a buffer with a bound, this one sends it, and two watch: for the
        # disconnect, and for silence in either direction. Only the sender is cancelled when the client is gone; with
        # an idempotency key the reader goes on to the end (`finishes`), and its frames are dropped.
        # test_a_slow_reader_pauses_the_model_and_fills_no_memory,
        # test_a_silent_stream_is_kept_open_by_a_comment_every_fifteen_seconds,
        # test_on_asyncio_no_task_outlives_a_stream
        self._finishes = finishes
        self._frames.stream.explain_leaving(self._why_left)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._produce)
                watchers: list[asyncio.Task[None]] = []
                if isinstance(loop := this_loop(), asyncio.AbstractEventLoop) and not self._exchange.clock.virtual:
                    # plain tasks, at a fifth of the cost of a group's
                    watchers = [loop.create_task(self._watch()), loop.create_task(self._tick())]
                else:
                    group.start_soon(self._watch)
                    group.start_soon(self._tick)
                try:
                    with self._sender:
                        await self._send()
                finally:
                    for task in watchers:
                        task.cancel()
                if self._has_left and finishes:
                    await self._is_over.wait()
                group.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            if self._exchange.status is not None and not self._has_left:
                error_frame = self._frames.error_frame(shutdown_error())
                await self._exchange.send_shielded(self._exchange.send_piece(error_frame, more=False))
            raise
        finally:
            self._exchange.trace_id = self._frames.stream.trace_id or None
        if self._has_left:
            raise ClientLeft
        if self._error is not None and self._exchange.status is None:
            raise self._error

    def _why_left(self) -> RouterError | None:
        """None if the client disconnected: it pays. It does not pay at shutdown, nor for a stopped call that was to
        finish without it, since that will be repeated."""
        return None if self._has_left and not self._finishes else shutdown_error()

    async def _produce(self) -> None:
        self._error = await outcome_of(self._put_all())
        self._is_over.set()
        self._arrival.set()

    async def _put_all(self) -> None:
        async with aclosing(aiter(self._frames)) as frames:
            async for frame in frames:
                self._put(frame)
                if len(self._buffer) <= HIGH_BYTES:
                    continue
                # until the client has read; at the call's deadline the rest of the answer is short
                with self._exchange.clock.deadline(self._frames.stream.deadline):
                    while len(self._buffer) > HIGH_BYTES:
                        self._drain = anyio.Event()
                        await self._drain.wait()

    def _put(self, frame: Frame) -> None:
        if self._has_left:
            return
        self._buffer += frame.body
        if frame.content or self._is_open:
            self._is_open = True
            self._arrival.set()

    async def _send(self) -> None:
        """Send the buffer whenever it has something, until the last event."""
        exchange = self._exchange
        while True:
            await self._arrival.wait()
            self._arrival = anyio.Event()
            is_last = self._is_over.is_set()
            body = self._take_buffer()
            if self._error is not None:
                if exchange.status is None:
                    return
                body += self._frames.error_frame(self._error)
            self._sends_since = exchange.clock.monotonic()
            self._is_sent = is_last
            try:
                if exchange.status is None:
                    await exchange.start(200, TYPE, self._frames.stream.headers | self._frames.headers)
                await exchange.send_piece(body, more=not is_last)
            except ClientLeft:
                self._leave()
                return
            self._sends_since = None
            self._sent_at = exchange.clock.monotonic()
            if is_last:
                return

    def _take_buffer(self) -> bytes:
        body = bytes(self._buffer)
        self._buffer.clear()
        self._drain.set()
        return body

    async def _watch(self) -> None:
        await self._exchange.wait_disconnect()
        if not self._is_sent:  # servers report a disconnect after a complete response, too
            self._leave()

    async def _tick(self) -> None:
        """Send heartbeats in a silent stream; disconnect a client that reads nothing."""
        clock, limits = self._exchange.clock, self._exchange.limits
        while not self._has_left:
            now = clock.monotonic()
            if self._sends_since is not None:
                due = self._sends_since + limits.send_s
                if now >= due:
                    self._leave()
            else:
                due = self._sent_at + limits.heartbeat_s
                if now >= due:
                    self._put(Frame(HEARTBEAT))
            await clock.sleep(max(due - now, SHORTEST_TICK_S))

    def _leave(self) -> None:
        self._has_left = True
        self._take_buffer()
        self._sender.cancel()
