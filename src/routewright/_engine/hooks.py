"""Who hears of a call that has ended? Hooks: in the background, in order, once the call's trace is in the storage.

Plain hooks run in a thread of their own, so that one that blocks holds up nothing but the hooks behind it; async ones
run in the background's loop. On virtual time both run in the caller's loop.
"""

from __future__ import annotations

import contextvars
import inspect
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, NamedTuple, Self

from routewright._core.call import Call
from routewright._core.moment import timestamp
from routewright._core.request.problems import shown
from routewright.errors import Problem, ValidationFailed
from routewright.fork import Guard, renew_in_children
from routewright.identity import Ids
from routewright.loop import Signal, is_cancelled
from routewright.protocols import Clock
from routewright.wire import Caller, Event, PushedEvent, Trace
from routewright.wire.trace import copied

from .tasks import Job
from .worker import Worker

QUEUE = 10_000
"""Calls that may wait to be told of."""
ROUND = 256
"""Calls that are told of in one go."""
DELAY_S = 0.02
LOG_EVERY_S = 60.0
"""A hook that fails or is too slow is logged so often at most."""

TraceHook = Callable[[Trace], object]
"""Takes a trace; plain or ``async def``."""
EventHook = Callable[[Event], object]
"""Takes an event; plain or ``async def``."""

_log = logging.getLogger(__name__)
_telling: contextvars.ContextVar[Hooks | None] = contextvars.ContextVar("routewright.telling", default=None)
"""Whose hook runs here."""


class HookCounts(NamedTuple):
    """How hooks do, in this process."""

    waiting: int
    """Calls that they are still to hear of."""
    failed: int
    """Times that a hook raised."""
    lost: int
    """Calls that they will not hear of, because too many waited or the Router was closed."""


class Subscription:
    """A hook that hears, until this is called or left as a context manager.

    with router.on_trace(print):
        router.blocking.route("Hello")
    """

    def __init__(self, hook: Callable[[Any], object], leave: Callable[[Subscription], None]) -> None:
        self.hook = hook
        self.is_async = _is_async(hook)
        self.active = True
        self._leave = leave

    def __call__(self) -> None:
        """Hear no more, not even of what waits. Twice is once."""
        self.active = False
        self._leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self()


class News:
    """One call that ended, or what happened outside of any, and who is to hear of it."""

    def __init__(
        self,
        call: Call | None,
        events: Sequence[Event],
        on_trace: Sequence[Subscription],
        on_event: Sequence[Subscription],
    ) -> None:
        self._call = call
        self._events = events
        self._on_trace = on_trace
        self._on_event = on_event

    @cached_property
    def trace(self) -> Trace:
        """The call's trace, of which each hook gets a copy."""
        assert self._call is not None, "only of calls there are traces"
        return self._call.trace

    def deliveries(self) -> Iterator[Delivery]:
        """What to tell whom, in order."""
        for to in self._on_trace:
            yield Delivery(to, self, None)
        for event in self._events:
            for to in self._on_event:
                yield Delivery(to, self, event)


class Delivery(NamedTuple):
    """One thing to tell one hook."""

    to: Subscription
    news: News
    event: Event | None
    """None: the trace."""

    def call(self) -> object:
        """Call the hook with a copy of its own."""
        if not self.to.active:
            return None
        return self.to.hook(self.news.trace.copy() if self.event is None else self.event.copy())


class Hooks:
    """The hooks of one Router, and what they are still to hear. Safe to use from several loops and threads."""

    def __init__(self, worker: Worker, clock: Clock) -> None:
        self._clock = clock
        self._guard = Guard()
        self._on_trace: tuple[Subscription, ...] = ()
        self._on_event: tuple[Subscription, ...] = ()
        self.any = False
        """Whether there are any."""
        self._job = Job(worker, self._tell_all, DELAY_S)
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with nothing to tell: what waited at a fork is the parent's. Those who hear stay."""
        self._queue: deque[News] = deque()
        self._put = self._settled = 0
        self._failed = self._lost = 0
        self._waiters: list[tuple[int, Signal]] = []
        self._logged: dict[str, float] = {}

    @property
    def counts(self) -> HookCounts:
        """How they do."""
        return HookCounts(self._put - self._settled, self._failed, self._lost)

    def on_trace(self, hook: TraceHook) -> Subscription:
        """Let a hook hear of traces from now on. Raises ``ValidationFailed`` for what cannot be called."""
        mine = Subscription(_checked(hook), self._leave)
        with self._guard.lock:
            self._on_trace, self.any = (*self._on_trace, mine), True
        return mine

    def on_event(self, hook: EventHook) -> Subscription:
        """Let a hook hear of events from now on. Raises ``ValidationFailed`` for what cannot be called."""
        mine = Subscription(_checked(hook), self._leave)
        with self._guard.lock:
            self._on_event, self.any = (*self._on_event, mine), True
        return mine

    def put(self, call: Call, events: Sequence[Event] = ()) -> None:
        """Have the hooks told of a call whose trace is in the storage. Never fails a call, nor holds it up."""
        on_trace, on_event = self._on_trace, self._on_event if events else ()
        if on_trace or on_event:
            self._enqueue(News(call, events, on_trace, on_event))

    def announce(self, events: Sequence[Event]) -> None:
        """Have the hooks told of what happened outside of any call."""
        if events and self._on_event:
            self._enqueue(News(None, events, (), self._on_event))

    def _enqueue(self, news: News) -> None:
        with self._guard.lock:
            fits = self._put - self._settled < QUEUE
            if fits:
                self._queue.append(news)
                self._put += 1
            else:
                self._lost += 1
        if not fits:
            self._complain("slow", "hooks are too slow: %d calls wait, and more are not told of", QUEUE)
        elif not self._job.poke():
            self.close()

    async def flush(self) -> None:
        """Wait until the hooks have heard of all that ended before. At once where a hook of these asks for it."""
        if _telling.get() is self:
            return
        told = Signal()
        with self._guard.lock:
            if self._settled >= self._put:
                return
            self._waiters.append((self._put, told))
        if self._job.poke():
            await told.wait()
        else:
            self.close()

    def close(self) -> None:
        """Give up what still waits."""
        with self._guard.lock:
            left = len(self._queue)
            self._queue.clear()
        if left:
            self._end(left, lost=left)
            _log.warning("the router was closed; calls that hooks did not hear of: %d", left)

    async def _tell_all(self) -> None:
        _telling.set(self)
        while news := self._take():
            going = _Round(news)
            try:
                await self._tell(going)
            finally:
                going.stopped = True
                self._end(len(news), lost=len({id(delivery.news) for delivery in going.left}))

    def _take(self) -> list[News]:
        with self._guard.lock:
            return [self._queue.popleft() for _ in range(min(ROUND, len(self._queue)))]

    async def _tell(self, going: _Round) -> None:
        """Tell it all in order, as many plain hooks in one go as follow one another."""
        while going.left:
            if going.left[0].to.is_async:
                await self._await(going.left.popleft())
            elif self._clock.virtual:
                self._call(going)
            else:
                await self._call_aside(going)

    async def _await(self, delivery: Delivery) -> None:
        try:
            told = delivery.call()
            if isinstance(told, Awaitable):
                await told
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # an exit, say, or a group with one in it
            if is_cancelled():
                raise
            self._fail(delivery, error)

    def _call(self, going: _Round) -> None:
        """Call plain hooks until one that is not comes."""
        while going.left and not going.left[0].to.is_async and not going.stopped:
            delivery = going.left.popleft()
            try:
                _refuse_awaitable(delivery.call())
            except BaseException as error:  # of a thread that has nothing else to do
                self._fail(delivery, error)

    async def _call_aside(self, going: _Round) -> None:
        ended, context = Signal(), contextvars.copy_context()

        def run() -> None:
            context.run(self._call, going)
            ended.set()

        try:
            threading.Thread(target=run, name="routewright-hooks", daemon=True).start()
        except RuntimeError:  # the interpreter exits
            run()
        await ended.wait()

    def _end(self, settled: int, lost: int) -> None:
        with self._guard.lock:
            self._settled += settled
            self._lost += lost
            told = [signal for due, signal in self._waiters if due <= self._settled]
            self._waiters = [waiter for waiter in self._waiters if waiter[0] > self._settled]
        for signal in told:
            signal.set()

    def _fail(self, delivery: Delivery, error: BaseException) -> None:
        with self._guard.lock:
            self._failed += 1
        name = getattr(delivery.to.hook, "__qualname__", type(delivery.to.hook).__name__)
        self._complain("failed", "hook %s failed; it is called again all the same", name, error=error)

    def _complain(self, kind: str, said: str, *values: object, error: BaseException | None = None) -> None:
        """Log it, unless the like was logged a short while ago."""
        now = self._clock.monotonic()
        if now >= self._logged.get(kind, now):
            self._logged[kind] = now + LOG_EVERY_S
            _log.warning(said, *values, exc_info=error)

    def _leave(self, left: Subscription) -> None:
        with self._guard.lock:
            self._on_trace = tuple(each for each in self._on_trace if each is not left)
            self._on_event = tuple(each for each in self._on_event if each is not left)
            self.any = bool(self._on_trace or self._on_event)


class _Round:
    """What is told in one go. ``stopped``: a thread that was left behind calls no further hook."""

    def __init__(self, news: Sequence[News]) -> None:
        self.left = deque(delivery for each in news for delivery in each.deliveries())
        self.stopped = False


def events_of(happened: Iterable[PushedEvent], caller: Caller, ids: Ids, at: float) -> list[Event]:
    """What the world is to be told of what happened ``at`` (Unix seconds)."""
    return [
        Event(
            id=ids("evt_"),
            type=data.type,
            created_at=timestamp(at),
            data=copied(data),  # the caller has the error that it was made of
            account=caller.account,
            environment=caller.environment,
        )
        for data in happened
    ]


def _checked(hook: object) -> Callable[[Any], object]:
    if not callable(hook):
        hint = "pass a function of one argument, plain or async"
        raise ValidationFailed.of(Problem("hook", f"{shown(hook)} cannot be called", hint))
    return hook


def _is_async(hook: Callable[[Any], object]) -> bool:
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(getattr(hook, "__call__", None))  # noqa: B004


def _refuse_awaitable(told: object) -> None:
    """A plain hook has no loop to wait in."""
    if isinstance(told, Awaitable):
        if inspect.iscoroutine(told):
            told.close()
        raise TypeError("the hook gave back what has to be awaited: define it with async def")
