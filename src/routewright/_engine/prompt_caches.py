"""Follows what vendors have in their caches: which prompts went where, and what they reported to have found.

Processes of one store share the last turn of each conversation with a name (``metadata.conversation``): one writes it
behind the answer, another reads it before it decides on the next."""

from __future__ import annotations

from collections import deque

from msgspec import MsgspecError, msgpack

from routewright._core.attempt import Attempt
from routewright._core.call import Call
from routewright._core.catalogue.prices import HOUR_S, price_at, prompt_cache_of
from routewright._core.routing.scoring import MOST_BYTES, Prefixes, Prompt, Sent
from routewright.errors import RouterError
from routewright.loop import at_once
from routewright.protocols import LocalStorage, Storage
from routewright.wire import AgentState, PutAgentState

from .storage import GuardedStorage
from .worker import Job, Worker

DELAY_S = 0.01
"""How long turns are collected before they are written."""


class Warmth:
    """What vendors of one Router's models have in their caches. Safe to use from several loops and threads."""

    def __init__(self, storage: Storage, worker: Worker) -> None:
        self._prefixes = Prefixes()
        self._path = storage.path if isinstance(storage, LocalStorage) else None
        """Where turns are shared; None: nowhere."""
        self._storage = GuardedStorage(storage)
        self._job = Job(worker, self._write, DELAY_S)
        self._unsent: deque[tuple[str, PutAgentState]] = deque(maxlen=1_000)

    def look(self, call: Call) -> None:
        caller, call.prompt, call.warm = call.caller, None, ()
        if caller.environment == "sandbox" or call.bounds.high > MOST_BYTES:
            return
        prompt = Prompt(call.request, caller.account, repeats=call.repeats)
        if prompt.sizes[-1] > MOST_BYTES:  # of images, say
            return
        call.prompt = prompt
        call.warm = self._prefixes.find(prompt, call.created_at)
        is_new = all(place < prompt.turn for place, _ in prompt.known.values())
        if is_new and prompt.turn and (turn := self._recalled(call)) is not None:
            self._prefixes.put(turn, call.created_at)
            call.warm = self._prefixes.find(prompt, call.created_at)

    def answered(self, call: Call, attempt: Attempt) -> None:
        """Note what the vendor of an answer found in its cache, and that it has the prompt now."""
        prompt, usage, model, prices = call.prompt, attempt.usage, attempt.leg.id, attempt.prices
        cache = prompt_cache_of(attempt.provider, model.partition("/")[2])
        if prompt is None or usage is None or attempt.usage_estimated or cache is None or not prices:
            return
        if (price := price_at(prices, usage.input)).cached >= price.input:
            return
        if cache.by_marks and call.asks is not None and call.asks.hour_cache:
            cache = cache._replace(lifetime_s=HOUR_S)
        sent, id = self._prefixes.answered(prompt, model, cache, usage, call.created_at), _turn_of(call)
        if sent is not None and id is not None and self._path is not None:
            put = PutAgentState(id, call.caller.environment, msgpack.encode(sent), sent.until)
            self._unsent.append((call.caller.account, put))
            self._job.poke()

    def _recalled(self, call: Call) -> Sent | None:
        """A conversation's last turn, of another process, from the store: at once, or not at all."""
        id = _turn_of(call)
        if id is None or self._path is None or not self._path.exists():  # nothing is made for a decision
            return None
        try:
            query = AgentState(id, environment=call.caller.environment, informs=True)
            body: bytes | None = at_once(self._storage.read(call.caller.account, query))
            return None if body is None else msgpack.decode(body, type=Sent)
        except (RuntimeError, RouterError, MsgspecError):
            return None

    async def _write(self) -> None:
        """Write the turns that were made. Those that the storage does not take are cold elsewhere."""
        while self._unsent:
            account, turn = self._unsent.popleft()
            try:
                await self._storage.apply(account, [turn])
            except RouterError:
                return


def _turn_of(call: Call) -> str | None:
    """What the last turn of a call's conversation is kept as; None: it has no name."""
    name = (call.request.metadata or {}).get("conversation")
    return f"warm:{name}" if isinstance(name, str) and name else None
