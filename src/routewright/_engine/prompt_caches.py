"""Tracks the contents of vendors' prompt caches: which prompts were sent, and what vendors reported as cached.

Processes of one store share the last turn of each named conversation (``metadata.conversation``): it is written behind
the answer, and read before the next decision."""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from msgspec import MsgspecError, msgpack

from routewright._core.attempts.record import Attempt
from routewright._core.call import Call
from routewright._core.catalogue.prices import HOUR_S, price_at, prompt_cache_of
from routewright._core.prompt_caches import MOST_BYTES, Prefixes, Prompt, Sent, Warm
from routewright._runtime.loop import at_once
from routewright._runtime.worker import Job, Worker
from routewright.errors import RouterError
from routewright.protocols import LocalStorage, Storage
from routewright.wire import AgentState, PutAgentState

from .storage import GuardedStorage

DELAY_S = 0.01
"""How long turns are collected before a write."""


class Warmth:
    """Tracks the prompt caches of one Router's vendors. Safe to use from several loops and threads."""

    def __init__(self, storage: Storage, worker: Worker) -> None:
        self._prefixes = Prefixes()
        self._path = storage.path if isinstance(storage, LocalStorage) else None
        """The store that shares turns; None: they are not shared."""
        self._storage = GuardedStorage(storage)
        self._job = Job(worker, self._write, DELAY_S)
        self._unsent: deque[tuple[str, PutAgentState]] = deque(maxlen=1_000)

    def look(self, call: Call) -> Warm | None:
        """The prompt of a call, and the prefixes of it that vendors should have; also by the conversation's last turn
        from another process, if the store can be read without waiting. None: no vendor caches such a prompt."""
        caller = call.caller
        if caller.environment == "sandbox" or call.bounds.high > MOST_BYTES:
            return None
        prompt = Prompt(call.request, caller.account, repeats=call.repeats)
        if prompt.sizes[-1] > MOST_BYTES:  # for example with images
            return None
        prefixes = self._prefixes.find(prompt, call.created_at)
        is_new = all(place < prompt.turn for place, _ in prompt.known.values())
        id = _turn_of(call)
        if not (is_new and prompt.turn) or id is None or self._path is None or not self._path.exists():
            return Warm(prompt, prefixes)  # a decision does not create the file
        query = AgentState(id, environment=caller.environment, informs=True)
        with suppress(RuntimeError, RouterError, MsgspecError):  # it would have to wait, or fails
            body: bytes | None = at_once(self._storage.read(caller.account, query))
            if body is not None:
                self._prefixes.put(msgpack.decode(body, type=Sent), call.created_at)
                prefixes = self._prefixes.find(prompt, call.created_at)
        return Warm(prompt, prefixes)

    def learn(self, call: Call, attempt: Attempt) -> None:
        """Record what the vendor found in its cache, and that it has the prompt now."""
        usage = attempt.usage
        prices = attempt.prices
        cache = prompt_cache_of(attempt.provider, attempt.leg.id.partition("/")[2])
        if call.warm is None or usage is None or attempt.usage_estimated or cache is None or not prices:
            return
        if (price := price_at(prices, usage.input)).cached >= price.input:
            return
        if cache.by_marks and call.asks is not None and call.asks.hour_cache:
            cache = cache._replace(lifetime_s=HOUR_S)
        sent = self._prefixes.learn(call.warm.prompt, attempt.leg.id, cache, usage, call.created_at)
        id = _turn_of(call)
        if sent is not None and id is not None and self._path is not None:
            put = PutAgentState(id, call.caller.environment, msgpack.encode(sent), sent.until)
            self._unsent.append((call.caller.account, put))
            self._job.poke()

    async def _write(self) -> None:
        """Write queued turns; refused ones are not shared."""
        while self._unsent:
            account, turn = self._unsent.popleft()
            try:
                await self._storage.apply(account, [turn])
            except RouterError:
                return


def _turn_of(call: Call) -> str | None:
    """The storage id of the conversation's last turn; None without a name."""
    name = (call.request.metadata or {}).get("conversation")
    return f"warm:{name}" if isinstance(name, str) and name else None
