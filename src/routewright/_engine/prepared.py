"""A request between its check and its call: what a server holds once it has read a body (``Router.prepare``)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from routewright._core.catalogue.models import resolve_one
from routewright._core.routing.decision import Decision
from routewright._core.tokens.estimate import length
from routewright.errors import RouterError
from routewright.wire import Caller, RouteRequest, TokenBounds
from routewright.wire.plain import Struct

from .answer import Answer
from .reading import Read
from .route import Engine
from .stream import Stream


class InputTokens(Struct, frozen=True):
    """How long a request is for one model. Where ``low`` equals ``high`` the count is exact."""

    model: str
    low: int
    high: int
    estimate: int


class Prepared:
    """A checked request whose tokens are bounded. Nothing is admitted, counted against a limit or paid for yet.

        prepared = router.prepare(body, caller=caller)
        if prepared.request.stream:
            async with prepared.stream() as stream: ...
        else:
            answer = await prepared.run()

    Each ``run`` and ``stream`` is a call of its own."""

    __slots__ = ("_engine", "_read", "caller", "headers", "request", "tokens")

    def __init__(self, engine: Engine, read: Read, caller: Caller) -> None:
        self._engine = engine
        self._read = read
        self.request: RouteRequest = read.request
        """The whole request: goal and strategy are filled in, tags are in its metadata."""
        self.tokens: TokenBounds = read.tokens
        """What is known of the prompt's length: no count yet, but ``low``, ``high`` and ``estimate``."""
        self.caller = caller
        """Who calls, in the environment that the Router serves."""
        self.headers: dict[str, str] = {}
        """Rate-limit headers of ``decide`` and ``count_tokens``, once they were admitted. Answers, streams and errors
        have ``headers`` of their own."""

    def __repr__(self) -> str:
        # no prompt: a repr ends up in logs
        return f"<Prepared for {self.caller.account}, {self.tokens.estimate} tokens or so>"

    @property
    def decision(self) -> Decision:
        """What would be decided now (``Router.decide``): counted against no limit. Where bounds do not settle it,
        tokens are counted on the spot; ``await decide()`` counts in a thread."""
        call = self._engine.admit(self._read, self.caller)
        call.explores = False
        call.plan = self._engine.plan_now(call)
        return Decision(call.plan, call.given, call.board)

    def run(self) -> Awaitable[Answer[Any]]:
        """Admit the request and answer it. Raises what ``Router.route`` does."""
        return self._engine.route(self._read, self.caller)

    def stream(self) -> Stream:
        """Answer it piece by piece. It is admitted when the first piece is asked for."""
        return Stream(self._engine, self._read, self.caller)

    async def decide(self) -> Decision:
        """Choose without calling anything, as a request of the caller's: it counts against its limits, with no tokens.
        Raises what ``Router.decide`` does, ``RateLimited``, and what else refuses a caller."""
        async with self._admitted():
            return await self._decide()

    async def count_tokens(self, model: str | None = None) -> InputTokens:
        """Count the input for a model, by default for the one that would serve the request. It is admitted as
        ``decide`` is. Raises ``ValidationFailed`` for an unknown model, and ``RouterTimeoutError``."""
        engine = self._engine
        async with self._admitted():
            call = engine.admit(self._read, self.caller)
            pool = call.board.pool
            model = (
                (await self._decide()).model
                if model is None
                else resolve_one(model, call.fleet.aliases, pool.row, "model")
            )
            given = await engine.counting.count_aside(call, engine.give(call))
            return InputTokens(model, *length(given.tokens, pool.measures[pool.measure[pool.row[model]]]))

    async def _decide(self) -> Decision:
        engine = self._engine
        call = engine.admit(self._read, self.caller)
        call.explores = False
        call.plan = await engine.plan(call)
        return Decision(call.plan, call.given, call.board)

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        """Admit what calls no model: an idempotency key is not taken, since nothing is kept under it."""
        read = replace(self._read, request=replace(self.request, idempotency_key=None))
        await self._engine.servers.wait()
        hold = self._engine.admissions.begin(read, self.caller)
        if hold is None:
            yield
            return
        try:
            await hold.take()
            self.headers = hold.headers
            yield
        except RouterError as error:
            hold.tell(error)
            raise
        finally:
            hold.release()
