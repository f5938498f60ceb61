"""Hooks on traces and events, called in the background, in order, once a call's trace is stored.

Plain hooks run in a separate thread, so that a blocking one delays only later hooks; async ones run in the worker's
loop. On a virtual clock both run in the caller's loop."""

from __future__ import annotations

import contextvars
import inspect
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, Self

from routewright._core.agent.record import Recorded
from routewright._runtime.fork import Guard
from routewright._runtime.loop import Signal, is_cancelled
from routewright._runtime.worker import Job, Worker
from routewright.errors import ValidationFailed
from routewright.protocols import Clock
from routewright.wire import Event, Trace
from routewright.wire.problems import shown

QUEUE = 10_000
"""The most calls that wait for their hooks."""
BATCH = 256
DELAY_S = 0.02
LOG_EVERY_S = 3600.0
"""The shortest time between two warnings about failing, or about slow, hooks."""

TraceHook = Callable[[Trace], object]
"""Takes a trace; plain or ``async def``."""
EventHook = Callable[[Event], object]
"""Takes an event; plain or ``async def``."""

_log = logging.getLogger(__name__)
_calling: contextvars.ContextVar[Hooks | None] = contextvars.ContextVar("routewright.calling", default=None)
"""The ``Hooks`` whose hook runs in this context."""


class HookCounts(NamedTuple):
    """State of the hooks in this process."""

    waiting: int  # calls whose hooks are pending
    failed: int  # number of times a hook raised
    lost: int  # calls whose hooks were dropped: the queue was full, or the Router was closed


class Subscription:
    """A registered hook.

    Call it, or leave it as a context manager, to unregister:

        with router.on_trace(print):
            router.blocking.route("Hello")
    """

    def __init__(self, hook: Callable[[Any], object], leave: Callable[[Subscription], None]) -> None:
        if not callable(hook):
            raise ValidationFailed.at("hook", f"{shown(hook)} cannot be called", "pass a function of one argument")
        self.hook = hook
        self.is_async = any(map(inspect.iscoroutinefunction, (hook, getattr(hook, "__call__", None))))  # noqa: B004
        self.active = True
        self._leave = leave

    def __call__(self) -> None:
        """Unregister the hook, also for queued calls. Safe to call twice."""
        self.active = False
        self._leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self()


@dataclass(eq=False)
class _News:
    """An ended call, or events outside of any call, with the hooks registered at that time."""

    call: Recorded | None
    events: Sequence[Event]
    on_trace: Sequence[Subscription]
    on_event: Sequence[Subscription]

    @cached_property
    def trace(self) -> Trace:
        assert self.call is not None, "only calls have traces"
        return self.call.trace

    def deliveries(self) -> Iterator[_Delivery]:
        for to in self.on_trace:
            yield _Delivery(to, self, None)
        for event in self.events:
            for to in self.on_event:
                yield _Delivery(to, self, event)


class _Delivery(NamedTuple):
    """One call of one hook."""

    to: Subscription
    news: _News
    event: Event | None
    """None: the trace."""

    def call(self) -> object:
        """Call the hook with its own copy."""
        if not self.to.active:
            return None
        return self.to.hook(self.news.trace.copy() if self.event is None else self.event.copy())


class Hooks:
    """The hooks of one Router, and the calls they wait for. Safe to use from several loops and threads."""

    def __init__(self, worker: Worker, clock: Clock) -> None:
        self._clock = clock
        self._guard = Guard()
        self._on_trace: tuple[Subscription, ...] = ()
        self._on_event: tuple[Subscription, ...] = ()
        self.any = False
        self._job = Job(worker, self._deliver, DELAY_S)
        worker.renewals.add(self)

    def renew(self) -> None:
        """Start with an empty queue: after a fork the parent delivers what was queued. The hooks stay."""
        self._queue: deque[_News | Signal] = deque()
        """A signal is set once everything before it was delivered."""
        self._waiting = 0
        self._failed = self._lost = 0
        self._logged: dict[str, float] = {}

    @property
    def counts(self) -> HookCounts:
        return HookCounts(self._waiting, self._failed, self._lost)

    def on_trace(self, hook: TraceHook) -> Subscription:
        subscription = Subscription(hook, self._leave)
        with self._guard.lock:
            self._on_trace = (*self._on_trace, subscription)
            self.any = True
        return subscription

    def on_event(self, hook: EventHook) -> Subscription:
        subscription = Subscription(hook, self._leave)
        with self._guard.lock:
            self._on_event = (*self._on_event, subscription)
            self.any = True
        return subscription

    def put(self, call: Recorded | None, events: Sequence[Event] = ()) -> None:
        """Queue a call whose trace is stored, or events outside of any call (None). Never fails or waits."""
        on_trace = () if call is None else self._on_trace
        on_event = self._on_event if events else ()
        if not (on_trace or on_event):
            return
        with self._guard.lock:
            fits = self._waiting < QUEUE
            if fits:
                self._queue.append(_News(call, events, on_trace, on_event))
                self._waiting += 1
            else:
                self._lost += 1
        if not fits:
            self._warn("slow", "hooks are too slow: %d calls are queued, and further ones are dropped", QUEUE)
        elif not self._job.poke():
            self.close()

    async def flush(self) -> None:
        """Wait until hooks were called for all calls that ended before. Returns at once inside a hook."""
        if _calling.get() is self:
            return
        delivered = Signal()
        with self._guard.lock:
            if not self._waiting:
                return
            self._queue.append(delivered)
        if self._job.poke():
            await delivered.wait()
        else:
            self.close()

    def close(self) -> None:
        """Drop the queue."""
        with self._guard.lock:
            batch = list(self._queue)
            self._queue.clear()
        lost = sum(isinstance(item, _News) for item in batch)
        self._settle(batch, lost)
        if lost:
            _log.warning("the router was closed; calls not delivered to hooks: %d", lost)

    async def _deliver(self) -> None:
        """Call hooks until the queue is empty, in order; consecutive plain ones in one thread."""
        _calling.set(self)
        while True:
            with self._guard.lock:
                batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            if not batch:
                return
            left = deque(chain.from_iterable(news.deliveries() for news in batch if isinstance(news, _News)))
            try:
                while left:
                    if left[0].to.is_async:
                        await self._await(left.popleft())
                    elif self._clock.virtual:
                        self._call(left)
                    else:
                        await self._call_in_thread(left)
            finally:
                lost = {id(delivery.news) for delivery in list(left)}
                left.clear()  # so that an abandoned thread calls no further hook
                self._settle(batch, len(lost))

    async def _await(self, delivery: _Delivery) -> None:
        try:
            returned = delivery.call()
            if isinstance(returned, Awaitable):
                await returned
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # such as SystemExit, or a group with one
            if is_cancelled():
                raise
            self._fail(delivery, error)

    def _call(self, left: deque[_Delivery]) -> None:
        """Call plain hooks up to the next async one."""
        with suppress(IndexError):  # none is left
            while not left[0].to.is_async:
                delivery = left.popleft()
                try:
                    returned = delivery.call()
                    if isinstance(returned, Awaitable):
                        if inspect.iscoroutine(returned):
                            returned.close()
                        raise TypeError("the hook returned an awaitable; define it with async def")
                except BaseException as error:  # nothing else catches it in this thread
                    self._fail(delivery, error)

    async def _call_in_thread(self, left: deque[_Delivery]) -> None:
        ended, context = Signal(), contextvars.copy_context()

        def run() -> None:
            context.run(self._call, left)
            ended.set()

        try:
            threading.Thread(target=run, name="routewright-hooks", daemon=True).start()
        except RuntimeError:  # the interpreter exits
            run()
        await ended.wait()

    def _settle(self, batch: Sequence[_News | Signal], lost: int) -> None:
        with self._guard.lock:
            self._waiting -= sum(isinstance(item, _News) for item in batch)
            self._lost += lost
        for item in batch:
            if isinstance(item, Signal):
                item.set()

    def _fail(self, delivery: _Delivery, error: BaseException) -> None:
        with self._guard.lock:
            self._failed += 1
        name = getattr(delivery.to.hook, "__qualname__", type(delivery.to.hook).__name__)
        self._warn("failed", "hook %s failed; it stays registered", name, error=error)

    def _warn(self, kind: str, message: str, *values: object, error: BaseException | None = None) -> None:
        """Log a warning, at most one of a kind per ``LOG_EVERY_S``."""
        now = self._clock.monotonic()
        if now >= self._logged.get(kind, now):
            self._logged[kind] = now + LOG_EVERY_S
            _log.warning(message, *values, exc_info=error)

    def _leave(self, subscription: Subscription) -> None:
        with self._guard.lock:
            self._on_trace = tuple(other for other in self._on_trace if other is not subscription)
            self._on_event = tuple(other for other in self._on_event if other is not subscription)
            self.any = bool(self._on_trace or self._on_event)
