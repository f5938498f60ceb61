"""What of a Router's inside does the adapter use? All of it passes here, by name; elsewhere the adapter calls the
Router's public methods alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from routewright._core.decision import Decision
from routewright._core.tokens import Length, length
from routewright._engine.admission import Admissions
from routewright._engine.answer import Answer
from routewright._engine.fleet import Fleet
from routewright._engine.reading import Read
from routewright._engine.stream import Stream
from routewright.protocols import Coordination
from routewright.router import Router
from routewright.trace import TraceStore
from routewright.wire import Caller


class Inside:
    """A Router, as what stands around it may use it."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._parts = parts = router._parts
        self.clock, self.rng = parts.settings.clock, parts.settings.rng
        self.storage, self.worker = parts.storage, parts.worker

    @property
    def coordination(self) -> Coordination:
        """What the Router shares its limits through: a ``Console`` beside it has the same."""
        return self._parts.coordination

    @property
    def is_closed(self) -> bool:
        """Whether it serves no more."""
        return self._parts.is_closed

    @property
    def is_stuck(self) -> bool:
        """Whether traces wait for a storage that takes none."""
        return self._parts.log.is_stuck

    @property
    def open_circuits(self) -> int:
        """Of all its models, of both environments."""
        return sum(fleet.open_circuits for fleet in self._parts.fleets())

    @property
    def admissions(self) -> Admissions:
        """Who is let in."""
        return self._parts.engine.admissions

    def placed(self, caller: Caller) -> Caller:
        """The caller in the environment that the Router serves. Raises ``ValidationFailed``."""
        return self._router._as(caller)

    def fleet(self, caller: Caller) -> Fleet:
        """The models that a caller may have, and their aliases."""
        return self._parts.fleet(caller.environment)

    def tags(self) -> Mapping[str, Any]:
        """The metadata that holds here for every call (``Router.tags``)."""
        return self._parts.tags.here()

    def traces(self, caller: Caller) -> TraceStore:
        """The traces of a caller's account."""
        return self._parts.traces.as_account(caller.account)

    async def answer(self, read: Read, caller: Caller) -> Answer[Any]:
        """Answer a request that has been read."""
        return await self._parts.engine.route(read, caller)

    def stream(self, read: Read, caller: Caller) -> Stream:
        """Answer it piece by piece."""
        return Stream(self._parts.engine, read, caller)

    async def decide(self, read: Read, caller: Caller) -> Decision:
        """Choose, without holding up others where many tokens are to be counted."""
        engine = self._parts.engine
        call = engine.admit(read, caller)
        call.plan = await engine.plan(call)
        return Decision(call.plan, call.given, call.board)

    async def count(self, read: Read, caller: Caller, model: str) -> Length:
        """How long a request is for one of the fleet's models. Raises ``RouterTimeoutError``."""
        engine = self._parts.engine
        call = engine.admit(read, caller)
        pool = call.board.pool
        given = await engine.counting.count_aside(call, engine.give(call))
        return length(given.tokens, pool.measures[pool.measure[pool.row[model]]])
