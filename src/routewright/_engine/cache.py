"""Step 10 of the path: looks for an answer in the response cache, and keeps the answers of calls that found none.

    look -> hit: the call is served, and costs nothing
         -> miss: the call goes on; ``Lookup.ended`` keeps its answer, wakes those who wait for it, and learns

No call fails with its cache: whatever that raises is a miss.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from math import inf
from typing import Any, Literal

import anyio.to_thread
import numpy as np
from msgspec import Struct

from routewright._core.alerts import MOST_COUNTED, LowHits
from routewright._core.attempt import Attempt, ToolPieces
from routewright._core.attempts.faults import raised_in
from routewright._core.cache.calibration import Bound, Calibration
from routewright._core.cache.key import keys_of
from routewright._core.cache.offer import Offer, offer
from routewright._core.call import Call
from routewright._core.routing.plan import NamedLeg
from routewright._core.structured_output import Fit, Form
from routewright._core.trace.line import LookLine
from routewright.errors import RouterClosed
from routewright.fork import Guard, renew_in_children
from routewright.loop import Signal, at_once
from routewright.protocols import AnswerComparator, Cache, Clock, Embedder, Guardrail, Rng
from routewright.wire import (
    CachedAnswer,
    CacheEntry,
    CacheEvicted,
    CacheMatch,
    CacheOpts,
    CacheSelection,
    Caller,
    Finish,
    Observation,
    ToolCall,
)

from .cancel import CancelWatch
from .guardrail import LARGE_CHARACTERS, GuardrailFailed, Screen
from .worker import Worker

NEAREST = 6
"""Entries that are looked at for one question."""
LONG_QUESTION = 1_500
"""Characters from which on a question is embedded and judged in a worker thread: it takes a millisecond."""
CACHE_S, EMBED_S = 0.05, 1.0
"""Seconds that a call waits for a cache, and for an embedder."""
WAIT_SHARE = 0.5
"""Share of a call's time in which it waits for the answer of another with the same request; then it makes its own."""
FAULTS, REST_S = 3, 10.0
"""After so many faults in a row a part is left alone for so many seconds."""
JUDGED_SHARE = 0.1
"""Share of the refused candidates whose answers are compared where that has to be awaited, as by a judge."""
COUNTED_TOGETHER = 16
"""Look-ups of an account that are counted at a time."""
MOST_SPACES, MOST_SERVED = 1_000, 10_000
"""Calibrations, and hits that feedback still finds, in memory."""
NEWS_EVERY_S = 60.0
"""How often a calibration takes in what other processes learned."""
POOR = 0.5
"""Feedback below this says that an answer was wrong."""
MAX_ERROR = 0.01
"""Share of all requests that may get a wrong cached answer where nothing else is asked for (contract 6)."""
ALL = CacheOpts()

_log = logging.getLogger(__name__)


class Fuse(Struct):
    """Leaves a part alone that failed several times in a row."""

    part: str
    faults: int = 0
    rests_until: float = 0.0

    def failed(self, now: float, said: str) -> None:
        """Note a fault."""
        self.faults += 1
        if self.faults >= FAULTS:
            self.rests_until = now + REST_S
            _log.warning("the %s failed %d times in a row and rests for %.0f s: %s", self.part, FAULTS, REST_S, said)


class Space(Struct, eq=False):
    """What is known of cached answers of one account, environment and namespace."""

    name: str
    calibration: Calibration
    new: list[Observation] = []
    """What other processes have not been told."""
    heard: int = 0
    """How far their news were read."""
    due: float = 0.0
    """When they are read again."""


class Caching:
    """The cache of one Router, and what it learns. Safe to use from several loops and threads."""

    def __init__(
        self,
        cache: Cache,
        *,
        embedder: Embedder,
        comparators: Sequence[AnswerComparator],
        judge: Callable[[Caller, str, str, str], Awaitable[bool | None]] | None,
        evicted_below: float,
        clock: Clock,
        rng: Rng,
        worker: Worker,
    ) -> None:
        self.cache = cache
        self.embedder = embedder
        self._comparators = comparators
        self._judge = judge
        self._clock = clock
        self._rng = rng
        self._worker = worker
        self._waits = getattr(cache, "waits", True)
        self._shares = self._waits and hasattr(cache, "learned")
        self._low_hits = LowHits(evicted_below)
        self._guard = Guard()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with no call under way: those from before a fork are the parent's."""
        self._flights: dict[bytes, Lookup] = {}
        """Misses whose answers are on their way, by the keys of their requests."""
        self._spaces: OrderedDict[str, Space] = OrderedDict()
        self._served: OrderedDict[str, tuple[str, str, tuple[float, ...]]] = OrderedDict()
        """By the calls that were hits: whose answer it was, and the space and features that it was judged by."""
        self._looks: dict[tuple[str, str], list[tuple[float, bool]]] = {}
        """Look-ups that were not counted yet, by whose they are."""
        self._cache_fuse, self._embed_fuse = Fuse("response cache"), Fuse("embedder")

    async def look(
        self, call: Call, guardrails: Sequence[Guardrail] = (), form: Form | None = None, *, plain: bool = False
    ) -> None:
        """Look for an answer to a call that was decided. One that is found serves it. ``plain``: whoever asks cannot
        await, so only the same request is looked for, and no other call is waited for."""
        clock = self._clock
        began, lookup = clock.monotonic(), self.lookup(call)
        call.lookup, offered = lookup, None
        if plain:
            lookup.question = None
        entry = await self._exact(lookup, call, patient=not plain)
        mode: Literal["exact", "semantic"] = "exact"
        if entry is None and lookup.question is not None:
            mode = "semantic"
            await self._judge_near(lookup)
            offered = lookup.offer
            if offered is not None and offered.match is not None and self._rng.random() < offered.serve:
                entry = offered.match.entry
        if entry is not None and not await self._fits(entry, guardrails, form):
            entry = offered = lookup.offer = None
        is_hit, found = entry is not None, entry
        start_ms, spent_ms = (began - call.started_at) * 1000, (clock.monotonic() - began) * 1000
        call.looked = looked = LookLine(is_hit, mode, start_ms, spent_ms, lookup.key)
        if offered is not None:
            looked.compared, looked.refused_by = offered.compared, offered.refused_by
            looked.max_error = lookup.bound.max_error
            if offered.match is not None:
                found = offered.match.entry
                looked.similarity, looked.risk = round(offered.match.similarity, 4), round(offered.risk, 4)
                looked.explored = offered.serve > 0 and not is_hit
        now = clock.time()
        if found is not None:
            looked.entry_id, looked.age_s = found.id, round(max(0.0, now - found.created_at), 3)
        whose = call.caller.account, call.caller.environment
        with self._guard.lock:
            if len(self._looks) > MOST_COUNTED:
                self._looks.clear()
            looks = self._looks.setdefault(whose, [])
            looks.append((now, is_hit))
        if len(looks) >= COUNTED_TOGETHER:
            lookup.evicted = self._low_rate(whose)
        if entry is not None:
            looked.saved_nanos = entry.cost_nanos
            self._serve(call, entry, lookup)
            lookup.land(None)

    def lookup(self, call: Call) -> Lookup:
        """What a call is looked up by. Changes nothing."""
        request = call.request
        options = request.cache if isinstance(request.cache, CacheOpts) else ALL
        embedder, candidates = self.embedder.name, call.fleet.candidates
        partition, key, question = keys_of(
            request, call.caller, call.policy_version, candidates, embedder, options.namespace
        )
        if options.mode == "exact":
            question = None
        return Lookup(self, call.caller, call.metadata_json, partition, key, options, call.deadline, question)

    def _low_rate(self, whose: tuple[str, str]) -> CacheEvicted | None:
        """Count the last look-ups of an account. Returns the event where too few of them were hits."""
        with self._guard.lock:
            looks = self._looks.pop(whose, [])
            found = [self._low_hits.looked(whose, at, is_hit=is_hit) for at, is_hit in looks]
        return next((event for event in found if event is not None), None)

    def _serve(self, call: Call, entry: CacheEntry, lookup: Lookup) -> None:
        """Let an entry's answer serve a call, as an attempt that is not among those that were made."""
        answer = entry.answer
        served = Attempt(1, NamedLeg(answer.model, answer.provider), None)
        served.text, served.characters = [answer.output], len(answer.output)
        served.finish_reason = answer.finish_reason
        for place, told in enumerate(answer.tool_calls or ()):
            pieces = served.pieces = served.pieces or {}
            pieces[place] = piece = ToolPieces()
            piece.id, piece.name, piece.arguments = told.id, told.function.name, [told.function.arguments]
        call.served = served
        name, features = ("", ()) if lookup.offer is None else (lookup.space.name, lookup.offer.features)
        self._served[call.id] = entry.id, name, features
        if len(self._served) > MOST_SERVED:
            with suppress(KeyError):  # another thread took the last
                self._served.popitem(last=False)

    async def _exact(self, lookup: Lookup, call: Call, *, patient: bool) -> CacheEntry | None:
        """The entry of the same request; waits for that of one that is being answered."""
        while True:
            flight = self._flights.setdefault(lookup.key, lookup)
            if flight is lookup:
                entry = await self.exact(lookup)
                if entry is not None:
                    lookup.land(entry)
                return entry
            if not flight.is_over and self._clock.monotonic() >= flight.until:  # a stream that nobody reads
                with self._guard.lock:
                    if self._flights.get(lookup.key) is flight:
                        self._flights[lookup.key] = lookup
                continue
            with self._guard.lock:
                done = flight.done = flight.done or Signal()
            if not flight.is_over and not patient:
                return None
            if not flight.is_over:
                now = self._clock.monotonic()
                own = now + WAIT_SHARE * max(0.0, call.deadline - now)
                with self._clock.deadline(min(own, flight.until)):
                    await done.wait()
                if own > flight.until:
                    continue
            if flight.entry is not None and lookup.allows(flight.entry):
                return flight.entry
            if not flight.was_left:  # it failed, takes too long, or brought nothing that may be kept
                return None

    async def exact(self, lookup: Lookup) -> CacheEntry | None:
        """The entry of the same request, if it is young enough."""
        entry: CacheEntry | None = await self._asked(self.cache.get(lookup.key, self.now()))
        return entry if entry is not None and lookup.allows(entry) else None

    async def _judge_near(self, lookup: Lookup) -> None:
        """Find the nearest entry that may be served, and with what chance it is to be."""
        matches = await self.near(lookup)
        if matches is None:
            return
        if lookup.is_long and not self._clock.virtual:
            await anyio.to_thread.run_sync(self._offer, lookup, matches)
        else:
            self._offer(lookup, matches)
        space, now = lookup.space, self._clock.monotonic()
        if self._shares and now >= space.due:
            space.due = now + NEWS_EVERY_S
            self._start(partial(self.exchange, space))

    async def near(self, lookup: Lookup) -> Sequence[CacheMatch] | None:
        """The entries nearest to a question that are young enough; None without an embedding."""
        lookup.space = self._space(lookup)
        lookup.vector = vector = await self._within(self._embed_fuse, EMBED_S, self._embedded(lookup))
        if vector is None:
            return None
        near = self.cache.nearest(lookup.partition, vector, self.now(), NEAREST)
        return [match for match in await self._asked(near) or () if lookup.allows(match.entry)]

    async def _embedded(self, lookup: Lookup) -> Any:
        """The embedding of a question, of length 1; None if it has none, as a text without words. Raises ``ValueError``
        for what is no embedding."""
        made: Any
        question = lookup.question or ""
        if lookup.is_long and not self._clock.virtual:
            made = await anyio.to_thread.run_sync(self.embedder.embed, question, abandon_on_cancel=True)
        else:
            made = self.embedder.embed(question)
        vector = np.asarray(await made if isinstance(made, Awaitable) else made, dtype=np.float32)
        length = float(np.sqrt(vector @ vector)) if vector.ndim == 1 else inf
        if not length < inf:
            raise ValueError("an embedding must be a list of finite numbers")
        if length == 0:
            return None
        return vector / np.float32(length)

    def _offer(self, lookup: Lookup, matches: Sequence[CacheMatch]) -> None:
        assert lookup.question is not None, "it is of words alone"
        with self._guard.lock:
            lookup.space.calibration.count(self._clock.time())
            lookup.offer = offer(lookup.question, matches, lookup.space.calibration, lookup.bound)

    async def _fits(self, entry: CacheEntry, guardrails: Sequence[Guardrail], form: Form | None) -> bool:
        """Whether an answer may still be given: it has the type that is asked for, and passes the guardrails of
        today as it is."""
        answer = entry.answer
        if form is not None and not answer.tool_calls and not isinstance(form.read(answer.output), Fit):
            return False
        if guardrails:
            screen = Screen(guardrails, as_json=False, aside_from=LARGE_CHARACTERS)
            try:
                await screen.feed(answer.output)
                await screen.end(answer.output, answer.tool_calls or (), Finish(answer.finish_reason))
            except GuardrailFailed:
                return False
            return screen.blocked is None and screen.output == answer.output
        return True

    async def _asked(self, asking: Coroutine[Any, Any, Any]) -> Any:
        """What the cache says; None where it fails, or takes too long."""
        if self._waits:
            return await self._within(self._cache_fuse, CACHE_S, asking)
        try:
            return await asking
        except Exception as error:
            _log.warning("the response cache failed: %s", raised_in(error))
            return None

    async def _within(self, fuse: Fuse, seconds: float, asking: Coroutine[Any, Any, Any]) -> Any:
        """What a part says; None where it fails, takes too long, or rests."""
        now, watch = self._clock.monotonic(), CancelWatch()
        if now < fuse.rests_until:
            asking.close()
            return None
        try:
            with self._clock.deadline(now + seconds) as limit:
                found = await asking
            if limit.expired:
                raise TimeoutError(f"no word within {seconds} s")
        except BaseException as error:
            if watch.passes(error):
                raise
            fuse.failed(now, raised_in(error))
            return None
        fuse.faults = 0
        return found

    def _space(self, lookup: Lookup) -> Space:
        caller = lookup.caller
        name = f"{caller.account}\n{caller.environment}\n{lookup.options.namespace or ''}\n{self.embedder.name}"
        with self._guard.lock:
            space = self._spaces.get(name)
            if space is None:
                space = self._spaces[name] = Space(name, Calibration())
                if len(self._spaces) > MOST_SPACES:
                    self._spaces.popitem(last=False)
            else:
                self._spaces.move_to_end(name)
        return space

    def keep(self, lookup: Lookup, entry: CacheEntry) -> None:
        """Keep an answer. Those who wait for it get it at once, and those who come until it is kept."""
        lookup.tell(entry)
        if self._waits:
            lookup.kept = Signal()
            self._start(partial(self._put, lookup, entry))
            return
        try:
            at_once(self.cache.put(entry))
        except Exception as error:  # the answer is out
            _log.warning("the response cache failed: %s", raised_in(error))
        self.forget(lookup)

    async def _put(self, lookup: Lookup, entry: CacheEntry) -> None:
        try:
            await self._asked(self.cache.put(entry))
        finally:
            self.forget(lookup)
            if lookup.kept is not None:
                lookup.kept.set()

    async def remove(self, which: CacheSelection) -> int:
        """Remove entries, those on their way to the cache as well. Raises what the cache does."""
        mine = [each for each in [*self._flights.values()] if each.is_meant(which)]
        for flight in mine:
            flight.may_be_kept = False
        flights = [each for each in mine if each.kept]
        with self._clock.deadline(self._clock.monotonic() + CACHE_S * (1 + len(flights))):
            for flight in flights:
                assert flight.kept is not None, "it is one of those"
                await flight.kept.wait()
        return await self.cache.remove(which)

    def forget(self, lookup: Lookup) -> None:
        """Let the next with the same request look for itself."""
        if self._flights.get(lookup.key) is lookup:
            del self._flights[lookup.key]

    def compare(self, lookup: Lookup, live: str) -> None:
        """Learn from a question that was answered live whether the nearest entry's answer was right for it."""
        offer = lookup.offer
        if offer is None or offer.match is None or lookup.question is None:
            return
        cached, weight = offer.match.entry.answer.output, 1 / max(1 - offer.serve, 1e-9)
        found: Any = None
        for comparator in self._comparators:
            try:
                found = comparator.compare(lookup.question, cached, live)
            except Exception as error:
                _log.warning("a comparator of answers failed: %s", raised_in(error))
            if found is not None:
                break
        if found is None and self._judge is not None:
            found = self._judge(lookup.caller, lookup.question, cached, live)
        if not isinstance(found, Awaitable):  # what cannot be shown to be right counts as wrong
            self._learn(lookup, Observation(offer.features, bool(found), weight, self.now()))
        elif offer.serve > 0:
            self._start(partial(self._compare_aside, lookup, offer, weight, found))
        elif self._rng.random() < JUDGED_SHARE:  # there are many of them, and each may cost
            self._start(partial(self._compare_aside, lookup, offer, weight / JUDGED_SHARE, found))
        elif isinstance(found, Coroutine):
            found.close()

    async def _compare_aside(
        self, lookup: Lookup, offer: Offer, weight: float, waiting: Awaitable[bool | None]
    ) -> None:
        found = None
        try:
            found = await waiting
        except Exception as error:
            _log.warning("a comparator of answers failed: %s", raised_in(error))
        self._learn(lookup, Observation(offer.features, bool(found), weight, self.now()))

    async def calibration(self, space: Space) -> Calibration:
        """A copy of what is known, since it remembers what it is asked."""
        if self._shares and not space.heard:
            await self.exchange(space)
        with self._guard.lock:
            return deepcopy(space.calibration)

    def _learn(self, lookup: Lookup, observation: Observation) -> None:
        space = lookup.space
        with self._guard.lock:
            space.calibration.learn(observation)
            if self._shares:
                space.new.append(observation)

    async def exchange(self, space: Space) -> None:
        """Tell other processes what was learned here, and take in what they learned."""
        with self._guard.lock:
            new, space.new = space.new, []
        learned = self.cache.learned(space.name, new, space.heard)  # type: ignore[attr-defined]
        found = await self._asked(learned)
        if found is not None:
            others, space.heard = found
            with self._guard.lock:
                for each in others:
                    space.calibration.learn(each)

    async def feedback(self, caller: Caller, trace_id: str, score: float) -> None:
        """Take in what a caller thought of an answer: a poor one that came from the cache, or is in it, goes, and
        the calibration learns."""
        found = self._served.get(trace_id)
        if found is not None:
            _, space, features = found
            with self._guard.lock:
                if space in self._spaces:
                    self._spaces[space].calibration.learn(Observation(features, score >= POOR, 1.0, self._clock.time()))
        if score < POOR:
            made_by = trace_id if found is None else found[0]
            await self.remove(CacheSelection(account=caller.account, id=made_by))

    def now(self) -> float:
        """Unix seconds."""
        return self._clock.time()

    def _start(self, async_fn: Callable[[], Awaitable[object]]) -> None:
        with suppress(RouterClosed):
            self._worker.start(async_fn)


class Lookup(Struct, eq=False):
    """One call's look into the cache: the flight that others with the same request wait for, if it was the first."""

    caching: Caching
    caller: Caller
    metadata: bytes | None
    partition: bytes
    key: bytes
    options: CacheOpts
    until: float
    """When the call's time is over: then nobody waits for it any more."""
    question: str | None
    """What similar ones are looked for; None: only the same request has its answer."""
    is_over: bool = False
    """``entry`` is what it came to."""
    entry: CacheEntry | None = None
    """What those who wait are given."""
    may_be_kept: bool = True
    """Nobody has removed its entry before it was there."""
    was_left: bool = False
    """Its caller left it, so that another may make the call."""
    done: Signal | None = None
    """Set when it is over; made by the first who waits."""
    kept: Signal | None = None
    """Set when its entry is in a cache that takes its time."""
    vector: Any = None
    space: Space = None  # type: ignore[assignment]  # set before there is an offer
    offer: Offer | None = None
    evicted: CacheEvicted | None = None

    @property
    def bound(self) -> Bound:
        """What limits wrong answers."""
        options = self.options
        max_error = MAX_ERROR if options.max_error is None else options.max_error
        return Bound(None if options.threshold is not None else max_error, options.threshold, options.explore)

    @property
    def is_long(self) -> bool:
        """Whether its question takes more than a moment to embed and judge."""
        return self.question is not None and len(self.question) > LONG_QUESTION

    def allows(self, entry: CacheEntry) -> bool:
        """Whether an entry is young enough for the request, and calls no tools unless that was asked for."""
        is_young = self.caching.now() - entry.created_at < self.options.ttl_seconds
        return is_young and (entry.answer.tool_calls is None or self.options.mode == "exact")

    def land(self, entry: CacheEntry | None) -> None:
        """Give those who wait the entry, or nothing, and let the next look for itself."""
        self.tell(entry)
        self.caching.forget(self)

    def tell(self, entry: CacheEntry | None) -> None:
        """Give those who wait the entry, or nothing."""
        if not self.is_over:
            self.entry, self.is_over = entry, True
        if self.done is not None:
            self.done.set()

    def ended(self, call: Call, output: str, tool_calls: list[ToolCall] | None) -> None:
        """Keep the answer that a call brought, if it may be kept; whoever else the answer serves gets it."""
        looked, served = call.looked, call.served
        if looked is not None and looked.hit:
            self.land(None)
        elif served is None:
            self.was_left = call.error_code is None
            self.land(None)
        elif self.may_be_kept and self._is_whole(served, output, tool_calls):
            now = self.caching.now()
            entry = CacheEntry(
                id=call.id,
                account=self.caller.account,
                environment=self.caller.environment,
                partition=self.partition,
                key=self.key,
                answer=CachedAnswer(output, str(served.finish_reason), served.leg.id, served.provider, tool_calls),
                cost_nanos=served.cost_nanos,
                created_at=now,
                expires_at=now + self.options.ttl_seconds,
                prompt=None if self.vector is None else self.question,
                vector=None if self.vector is None else self.vector.tobytes(),
                namespace=self.options.namespace,
                metadata=self.metadata,
            )
            self.caching.keep(self, entry)
            try:
                self.caching.compare(self, output)
            except Exception as error:  # of a comparator's result; the call has to be settled
                _log.warning("a comparator of answers failed: %s", raised_in(error))
        else:
            self.land(None)

    def leave(self) -> None:
        """End it for a call that was not made."""
        self.was_left = True
        self.land(None)

    def is_meant(self, which: CacheSelection) -> bool:
        """Whether a selection means the entry that it may come to."""
        return (
            self.caller.account == which.account
            and which.environment in (None, self.caller.environment)
            and which.key in (None, self.key)
            and which.partition in (None, self.partition)
            and which.namespace in (None, self.options.namespace)
            and which.id is None
        )

    def _is_whole(self, served: Attempt, output: str, tool_calls: list[ToolCall] | None) -> bool:
        """Only whole answers; what calls tools only where that was asked for by ``mode="exact"``."""
        if tool_calls:
            return served.finish_reason in ("tool_calls", "stop") and self.options.mode == "exact"
        return served.finish_reason == "stop" and bool(output)
