"""Asks servers for their models, before the first decision and periodically."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence

import anyio

from routewright._core.attempts.faults import place_of
from routewright._core.outage import Outage
from routewright._runtime.fork import Guard
from routewright._runtime.loop import Signal, in_thread
from routewright._runtime.worker import Worker
from routewright.errors import ProviderFault
from routewright.protocols import Clock, DiscoveringProvider
from routewright.wire.printable import one_line

FIRST_S, ALONE_S = 1.0, 5.0
"""How long first calls wait for servers: if other providers can serve them, and if none can."""
LONGEST_S = 10.0
"""Time-out of a server's answer."""
EVERY_S = 30.0
RETRY_S = 5.0
"""The pause after a server failed."""

_log = logging.getLogger(__name__)


class Discovery:
    """Lists the models of discovering providers. Started by its first user, and shared by all."""

    def __init__(
        self,
        providers: Sequence[DiscoveringProvider],
        clock: Clock,
        patience_s: float,
        changed: weakref.WeakMethod[Callable[[], bool]],
    ) -> None:
        """``patience_s``: how long first calls wait. ``changed`` is called when a server's models change, and again
        until it returns True; it does not keep the Router alive."""
        reasons = {provider.name: f"{provider.name} has not listed its models yet" for provider in providers}
        self.problems = {name: ProviderFault("connect", reason) for name, reason in reasons.items()}
        """Why a provider has no models, by its name."""
        self.providers = providers
        self.outages = {name: Outage(_log.warning, f"{name} lists its models again") for name in reasons}
        self.ready = Signal()
        """Set once all have answered and their models are in use."""
        self.ready.is_set = not providers
        self._clock = clock
        self._patience_s = patience_s
        self._changed = changed
        self._guard = Guard()
        self._wait_until: float | None = None

    def begin(self, worker: Worker) -> None:
        with self._guard.lock:
            if self._wait_until is None and self.providers:
                worker.start_daemon(self._keep_asking)
                self._wait_until = self._clock.monotonic() + self._patience_s

    async def wait(self) -> None:
        if self._left_s > 0:
            with self._clock.deadline(self._clock.monotonic() + self._left_s):
                await self.ready.wait()

    def block(self) -> None:
        """``wait`` for plain code. Does not wait on a virtual clock, whose time stands still."""
        if self._left_s > 0 and not self._clock.virtual:
            self.ready.block(self._left_s)

    @property
    def _left_s(self) -> float:
        if self.ready.is_set or self._wait_until is None:
            return 0.0
        return self._wait_until - self._clock.monotonic()

    async def _keep_asking(self) -> None:
        has_news = False
        while True:
            before = [provider.models() for provider in self.providers]
            async with anyio.create_task_group() as group:
                for provider in self.providers:
                    group.start_soon(self._ask, provider)
            has_news |= before != [provider.models() for provider in self.providers]
            changed = self._changed()
            if changed is None:
                return
            if has_news:  # in a thread, since it may wait for this one
                has_news = not await in_thread(self._clock, changed)
            del changed
            self.ready.set()
            await self._clock.sleep(RETRY_S if self.problems else EVERY_S)

    async def _ask(self, provider: DiscoveringProvider) -> None:
        problem = ProviderFault("timeout", f"{provider.name} did not list its models within {LONGEST_S:g} s")
        try:
            with self._clock.deadline(self._clock.monotonic() + LONGEST_S) as limit:
                await provider.discover()
            if not limit.expired:
                self.problems.pop(provider.name, None)
                self.outages[provider.name].end(self._clock.monotonic())
                return
        except ProviderFault as fault:
            problem = fault
        except Exception as error:  # its message may hold a key
            problem = ProviderFault("local", f"discover() of {provider.name} failed: {place_of(error)}")
        self.problems[provider.name] = problem
        self.outages[provider.name].begin(self._clock.monotonic(), one_line(problem.message))
