"""``Prepared``: a checked request that is not admitted yet (``Router.prepare``)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from routewright._core.catalogue.models import resolve_one
from routewright._core.routing.decision import Decision
from routewright._core.tokens.estimate import length
from routewright._runtime.loop import at_once
from routewright.errors import RouterError
from routewright.wire import Caller, RouteRequest, TokenBounds
from routewright.wire.plain import Struct

from .answer import Answer
from .request_input import Read
from .route import Engine
from .stream import Stream


class InputTokens(Struct, frozen=True):
    """The input tokens of a request for one model. Exact if ``low`` equals ``high``."""

    model: str
    low: int
    high: int
    estimate: int


class Prepared:
    """A checked request with bounds for its tokens. It is not admitted or counted in rate limits yet.

        prepared = router.prepare(body, caller=caller)
        if prepared.request.stream:
            async with prepared.stream() as stream: ...
        else:
            answer = await prepared.run()

    Each ``run`` or ``stream`` is a separate call."""

    __slots__ = ("_engine", "_read", "caller", "headers", "request", "tokens")

    def __init__(self, engine: Engine, read: Read, caller: Caller) -> None:
        self._engine = engine
        self._read = read
        self.request: RouteRequest = read.request
        """The complete request: goal and strategy are set, tags are in its metadata."""
        self.tokens: TokenBounds = read.tokens
        """Bounds and an estimate of the prompt's tokens, not counted yet."""
        self.caller = caller
        """The caller, in the environment that the Router serves."""
        self.headers: dict[str, str] = {}
        """Rate-limit headers of ``decide`` and ``count_tokens``. Answers, streams and errors have their own."""

    def __repr__(self) -> str:
        # without the prompt, since a repr ends up in logs
        return f"<Prepared for {self.caller.account}, {self.tokens.estimate} tokens or so>"

    @property
    def decision(self) -> Decision:
        """The decision as of now (``Router.decide``), without counting in rate limits. Tokens are counted inline if
        need be; ``await decide()`` counts them in a thread."""
        return at_once(self._decide(self._engine.admissions.known_rights(self.caller)))

    def run(self) -> Awaitable[Answer[Any]]:
        """Admit the request and answer it. Raises as ``Router.route``."""
        return self._engine.route(self._read, self.caller)

    def stream(self) -> Stream:
        """Answer it piece by piece. It is admitted when the first piece is read."""
        return Stream(self._engine, self._read, self.caller)

    async def decide(self) -> Decision:
        """Choose a model without calling it. Counts as a request without tokens in the caller's rate limits. Raises as
        ``Router.decide``, and as an admission: ``RateLimited`` ..."""
        async with self._admitted() as caller:
            return await self._decide(caller)

    async def count_tokens(self, model: str | None = None) -> InputTokens:
        """Count the input tokens for a model, by default the one that would serve the request. Admitted as ``decide``
        is. Raises ``ValidationFailed`` for an unknown model, and ``RouterTimeoutError``."""
        engine = self._engine
        async with self._admitted() as caller:
            call = engine.make_call(self._read, caller)
            pool = call.board.pool
            if model is None:
                model = (await self._decide(caller)).model
            else:
                model = resolve_one(model, call.fleet.aliases, pool.row, "model")
            counted = await engine.counting.count(call, engine.deciding.input_of(call))
            return InputTokens(model, *length(counted.tokens, pool.measures[pool.measure[pool.row[model]]]))

    async def _decide(self, caller: Caller) -> Decision:
        return await self._engine.decision(self._engine.make_call(self._read, caller))

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[Caller]:
        """Admit an operation that calls no model, and yield its caller. It takes no idempotency key, since it has no
        answer to keep."""
        read = replace(self._read, request=replace(self.request, idempotency_key=None))
        await self._engine.servers.wait()
        admissions = self._engine.admissions
        admission = admissions.begin(read, self.caller)
        if admission is None or (admission.left is None and await admissions.is_open(admission)):
            yield self.caller
            return
        try:
            await admission.take()
            self.headers = admission.headers
            yield admission.rights
        except RouterError as error:
            admission.annotate(error)
            raise
        finally:
            admission.release()
