"""The response cache: finds answers for calls, and keeps the answers of calls that found none.

    look -> hit: the call is served, and costs nothing
         -> miss: the call goes on; ``Lookup.ended`` keeps its answer, passes it to waiting calls, and learns

A cache error is a miss."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Coroutine, Sequence
from functools import partial
from math import inf
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from routewright import wire
from routewright._core.alerts import LowHits
from routewright._core.attempts.faults import place_of
from routewright._core.attempts.record import Attempt, cached_attempt
from routewright._core.cache.calibration import Bound
from routewright._core.cache.guards import Offer
from routewright._core.cache.request_key import keys_of, selects
from routewright._core.call import Call
from routewright._core.outage import Outage
from routewright._core.structured_output import Fit, Form
from routewright._core.trace.spans import LookLine
from routewright._runtime.fork import Guard
from routewright._runtime.loop import Signal, at_once, in_thread
from routewright._runtime.worker import Worker
from routewright.protocols import AnswerComparator, BaseCache, Cache, Clock, Embedder, Guardrail, Rng, options_of

from .calibration import Calibrations, Judge, Space
from .guardrails import GuardrailFailed, Screen, rest
from .part import WAIT_SHARE, Part

NEAREST = 6
"""Entries that are compared with a question."""
LONG_QUESTION = 1_500
"""Longer questions, in characters, are embedded and compared in a worker thread: that takes a millisecond."""
LOOK_S = 0.05
"""Interval for checking if another process has made an answer."""
CACHE_S, EMBED_S = 0.05, 1.0
"""How long a call waits for a cache, and for an embedder."""
POOR = 0.5
"""Feedback below this marks an answer as wrong."""
MAX_ERROR = 0.01
"""Share of all requests that may get a wrong cached answer unless the request says otherwise (contract 6)."""
DEFAULT = wire.CacheOpts()

_log = logging.getLogger(__name__)


class Caching:
    """The response cache of one Router. Safe to use from several loops and threads."""

    def __init__(
        self,
        cache: Cache,
        *,
        embedder: Embedder,
        comparators: Sequence[AnswerComparator],
        judge: Judge | None,
        evicted_below: float,
        clock: Clock,
        rng: Rng,
        worker: Worker,
    ) -> None:
        self.cache = cache
        self.embedder = embedder
        self.clock = clock
        self._rng = rng
        self._worker = worker
        self._own = options_of(cache, BaseCache)
        self._waits = self._own.waits
        self._lead: Any = self._own.lead
        self._low_hits = LowHits(evicted_below)
        self.calibrations = Calibrations(self._own.learned, comparators, judge, clock, rng, worker)
        self.guard = Guard()
        worker.renewals.add(self)

    def renew(self) -> None:
        """Forget running calls: after a fork they are the parent's."""
        self.calibrations.renew()
        self._flights: dict[bytes, Lookup] = {}
        """Misses whose answers are being made, by request key."""
        self._overtaken: set[Lookup] = set()
        """Misses that took too long; no new call waits for them."""
        self._outage = Outage(_log.warning, "the response cache works again")
        self._cache_part = Part("response cache", CACHE_S)
        self._embedder_part = Part("embedder", EMBED_S)
        self._search_part = Part("search of the response cache", CACHE_S, lambda: self._own.is_starting)

    @property
    def outages(self) -> dict[str, Outage]:
        """Those of its parts, by name."""
        parts = self._cache_part, self._embedder_part, self._search_part
        return self.calibrations.outages | {part.name: part.outage or self._outage for part in parts}

    async def look(
        self, call: Call, guardrails: Sequence[Guardrail] = (), form: Form | None = None, *, patient: bool = True
    ) -> Lookup:
        """Look up the answer to a decided call. If not ``patient``, only a finished answer to the same request is
        found."""
        started_at = self.clock.monotonic()
        lookup = self.make_lookup(call)
        try:
            await self._find(lookup, guardrails, form, patient=patient)
        except BaseException:
            lookup.leave()
            raise
        entry = lookup.hit
        spent_ms = (self.clock.monotonic() - started_at) * 1000
        lookup.line = self._line(lookup, (started_at - call.started_at) * 1000, spent_ms, patient=patient)
        with self.guard.lock:
            tenant = call.caller.account, call.environment
            lookup.evicted = self._low_hits.count_lookup(tenant, self.clock.time(), is_hit=entry is not None)
        if entry is not None:
            lookup.served = cached_attempt(entry.answer)
            lookup.land(None)
        return lookup

    async def _find(self, lookup: Lookup, guardrails: Sequence[Guardrail], form: Form | None, *, patient: bool) -> None:
        """Find an entry that may be served: one of the same request, else one near enough."""
        entry = await self._exact(lookup, lookup.deadline, patient=patient)
        if entry is None and patient and lookup.question is not None:
            lookup.offer = offer = await self._offer(lookup)
            if offer is not None and offer.match is not None and self._rng.random() < offer.serve:
                entry = offer.match.entry
        is_checked = entry is not None and (guardrails or form is not None)
        if entry is not None and is_checked and not await _fits(entry, guardrails, form, self.clock):
            entry = lookup.offer = None
        lookup.hit = entry

    def _line(self, lookup: Lookup, start_ms: float, spent_ms: float, *, patient: bool) -> LookLine:
        """The look-up as the trace keeps it."""
        offer = lookup.offer
        entry = lookup.hit
        is_hit = entry is not None
        mode: Literal["exact", "semantic"] = "semantic"
        if lookup.question is None or not patient or (is_hit and offer is None):
            mode = "exact"
        line = LookLine(is_hit, mode, start_ms, spent_ms, lookup.key, namespace=lookup.options.namespace)
        if entry is not None:
            line.saved_nanos = entry.cost_nanos
        if offer is not None:
            line.compared, line.refused_by = offer.compared, offer.refused_by
            line.max_error = lookup.bound.max_error
            if offer.match is not None:
                entry = offer.match.entry
                line.features = offer.features
                line.similarity, line.risk = round(offer.match.similarity, 4), round(offer.risk, 4)
                line.explored = offer.serve > 0 and not is_hit
        if entry is not None:
            line.entry_id = entry.id
            line.age_s = round(max(0.0, self.clock.time() - entry.created_at), 3)
        return line

    def make_lookup(self, call: Call) -> Lookup:
        options = call.request.cache if isinstance(call.request.cache, wire.CacheOpts) else DEFAULT
        keys = keys_of(
            call.request, call.caller, call.policy_version, call.fleet.candidates, self.embedder.name, options.namespace
        )
        question = None if options.mode == "exact" or self._own.exact else keys.question
        return Lookup(self, call.caller, keys.partition, keys.key, question, options, call.deadline)

    async def _exact(self, lookup: Lookup, deadline: float, *, patient: bool) -> wire.CacheEntry | None:
        """The entry of the same request, also one that a running call is about to make."""
        # Of twenty equal requests at once, a cache that is only read has twenty misses. So the first look-up is the
        # flight that the others wait for (contract 6). That must not make them worse off than without a cache:
        # - the first is slow: a call waits for half of its own time, then makes its own call, for which the next wait;
        # - it is a stream that nobody reads: it is forgotten at its deadline;
        # - its caller has left: the next one takes its place;
        # - it failed: all make their calls at once, since one after the other each would wait for the failures before.
        # test_the_same_misses_at_once_make_one_call, test_no_call_waits_longer_than_half_of_its_time,
        # test_an_unread_stream_delays_no_call_past_its_own_deadline,
        # test_calls_that_waited_for_a_failed_one_all_call_at_once
        was_read = False
        while (flight := self._flights.setdefault(lookup.key, lookup)) is not lookup:
            if not flight.is_over and not was_read:  # another process may have kept an answer
                entry = await self._get(lookup, deadline)
                was_read = True
                if entry is not None or not patient:
                    return entry
            now = self.clock.monotonic()
            give_up_at = now + WAIT_SHARE * max(0.0, deadline - now)
            with self.guard.lock:
                is_over = flight.is_over
                if not is_over and now >= flight.deadline:  # a stream that nobody reads
                    self.forget(flight)
                    continue
                done = flight.done = flight.done or Signal()
            if not is_over:
                with self.clock.deadline(min(give_up_at, flight.deadline)) as limit:
                    await done.wait()
                if limit.expired and give_up_at > flight.deadline:
                    continue
                if limit.expired:
                    with self.guard.lock:
                        if self._flights.get(lookup.key) is flight:
                            self._flights[lookup.key] = lookup
                            self._overtaken.add(flight)
                    return None
            if flight.entry is not None and lookup.allows(flight.entry):
                return flight.entry
            if not flight.was_left:  # it failed, or its answer may not be kept
                return None
        entry = await self._get(lookup, deadline)
        if entry is None and patient and self._lead is not None:
            entry = await self._wait_for_leader(lookup, deadline)
        if entry is not None:
            lookup.land(entry)
        return entry

    async def _wait_for_leader(self, lookup: Lookup, deadline: float) -> wire.CacheEntry | None:
        """The entry that another process makes. None if none does, or if it takes too long: this process makes the
        call."""
        entry = None
        now = self.clock.monotonic()
        wake_at = now + WAIT_SHARE * (deadline - now)
        while entry is None and now < wake_at:
            leads = await self.await_cache(self._lead(lookup.key, deadline - now), deadline)
            if leads is not False:
                lookup.leads = leads is True  # the last leader may have kept an answer since the look-up
                return await self._get(lookup, deadline) if leads else None
            await self.clock.sleep(LOOK_S)
            entry = await self._get(lookup, deadline)
            now = self.clock.monotonic()
        return entry

    async def _get(self, lookup: Lookup, deadline: float) -> wire.CacheEntry | None:
        entry: wire.CacheEntry | None = await self.await_cache(self.cache.get(lookup.key, self.clock.time()), deadline)
        return entry if entry is not None and lookup.allows(entry) else None

    async def _offer(self, lookup: Lookup) -> Offer | None:
        """The nearest entry that may be served, with the probability to serve it."""
        matches = await self.find_near(lookup)
        if matches is None:
            return None
        question = lookup.question or ""
        judge = partial(self.calibrations.judge, lookup.space, question, matches, lookup.bound)
        return await in_thread(self.clock, judge) if len(question) > LONG_QUESTION else judge()

    async def find_near(self, lookup: Lookup) -> Sequence[wire.CacheMatch] | None:
        """The entries nearest to a question that may serve it by age; None if it has no embedding."""
        lookup.space = self.calibrations.space(lookup.caller, lookup.options.namespace, self.embedder.name)
        embedding = self._embed(lookup.question or "")
        lookup.vector = vector = await self._embedder_part.ask(self.clock, embedding, lookup.deadline)
        if vector is None:
            return None
        search = self.cache.nearest(lookup.partition, vector, self.clock.time(), NEAREST)
        near = await self.await_cache(search, lookup.deadline, self._search_part)
        return [match for match in near or () if match.entry.prompt is not None and lookup.allows(match.entry)]

    async def _embed(self, question: str) -> Any:
        """The embedding of a question, of length 1; None for a zero vector, as of a text without words. Raises
        ``ValueError`` for an invalid one."""
        embed = self.embedder.embed
        result: Any = await in_thread(self.clock, embed, question) if len(question) > LONG_QUESTION else embed(question)
        vector = np.asarray(await result if isinstance(result, Awaitable) else result, dtype=np.float32)
        length = float(np.sqrt(vector @ vector)) if vector.ndim == 1 else inf
        if not length < inf:
            raise ValueError("an embedding must be a list of finite numbers")
        return vector / np.float32(length) if length else None

    async def await_cache(self, work: Coroutine[Any, Any, Any], deadline: float = inf, part: Part | None = None) -> Any:
        if self._waits:
            return await (part or self._cache_part).ask(self.clock, work, deadline)
        try:
            result = await work
        except Exception as error:  # a custom cache may raise anything; calls go on without it
            self._outage.begin(self.clock.monotonic(), f"the response cache failed: {place_of(error)}")
            return None
        if self._outage.is_on or self._outage.flaps:
            self._outage.end(self.clock.monotonic())
        return result

    def keep(self, lookup: Lookup, entry: wire.CacheEntry) -> None:
        """Keep an answer. Calls that wait for it, or come before it is kept, get it at once."""
        lookup.publish(entry)
        if self._waits:
            self._worker.start_if_open(partial(self._put, lookup, entry))
            return
        at_once(self.await_cache(self.cache.put(entry)))
        self.forget(lookup)

    async def _put(self, lookup: Lookup, entry: wire.CacheEntry) -> None:
        try:
            if lookup.may_store:
                await self.await_cache(self.cache.put(entry))
            if not lookup.may_store:  # removed while it was being kept
                await self.cache.remove(wire.CacheSelection(account=entry.account, id=entry.id))
        finally:
            self.forget(lookup)

    async def remove(self, selection: wire.CacheSelection) -> int:
        for flight in [*self._flights.values(), *self._overtaken]:
            if flight.is_selected(selection):
                flight.may_store = False
                self.forget(flight)
        return await self.cache.remove(selection)

    def forget(self, lookup: Lookup) -> None:
        """End the flight: the next call with the same request makes its own look-up."""
        with self.guard.lock:
            self._overtaken.discard(lookup)
            if self._flights.get(lookup.key) is lookup:
                del self._flights[lookup.key]
            was_leader = lookup.leads
            lookup.leads = False
        if was_leader:
            self._worker.start_if_open(lambda: self.await_cache(self._lead(lookup.key, 0.0)))

    async def feedback(self, caller: wire.Caller, trace: wire.Trace, score: float) -> None:
        """Apply feedback on an answer: a poor answer is removed, and the calibration learns if it was a hit."""
        span = next((other for other in trace.spans if isinstance(other, wire.CacheSpan) and other.hit), None)
        if span is not None and span.features:
            space = self.calibrations.space(caller, span.namespace, self.embedder.name)
            self.calibrations.learn(space, wire.Observation(tuple(span.features), score >= POOR, 1.0))
        if score < POOR:
            entry_id = trace.id if span is None else span.entry_trace_id
            await self.remove(wire.CacheSelection(account=caller.account, id=entry_id))


class Lookup(Struct, eq=False):
    """One call's look-up. Of several with the same request, the first is the flight that the others wait for."""

    caching: Caching
    caller: wire.Caller
    partition: bytes
    key: bytes
    question: str | None
    """The text for the similarity search; None: only an answer to the same request is found."""
    options: wire.CacheOpts
    deadline: float
    """The call's deadline; other calls do not wait longer."""
    is_over: bool = False
    """``entry`` is its result."""
    entry: wire.CacheEntry | None = None
    was_left: bool = False
    """Its caller left, so another call may make the answer."""
    may_store: bool = True
    """False after a removal that covers its entry."""
    leads: bool = False
    """Other processes wait for its answer."""
    done: Signal | None = None
    """Set when it is over; made by the first waiter."""
    space: Space = None  # type: ignore[assignment]  # set before there is an offer
    vector: Any = None
    offer: Offer | None = None
    hit: wire.CacheEntry | None = None
    """The entry that serves the call."""
    served: Attempt | None = None
    """Its answer, in the form of an attempt."""
    line: LookLine | None = None
    evicted: wire.CacheEvicted | None = None
    """An alert: too few hits in the last hour."""

    @property
    def bound(self) -> Bound:
        options = self.options
        max_error = MAX_ERROR if options.max_error is None else options.max_error
        return Bound(None if options.threshold is not None else max_error, options.threshold, options.explore)

    def allows(self, entry: wire.CacheEntry) -> bool:
        """True if an entry is young enough, and calls no tools unless the mode is ``exact``."""
        is_young = self.caching.clock.time() - entry.created_at < self.options.ttl_seconds
        return is_young and (entry.answer.tool_calls is None or self.options.mode == "exact")

    def is_selected(self, selection: wire.CacheSelection) -> bool:
        """True if a selection covers its entry, or may cover its future entry."""
        if self.entry is not None:
            return selects(selection, self.entry)
        is_same = selection.key in (None, self.key) and selection.partition in (None, self.partition)
        return selection.account == self.caller.account and selection.id is None and is_same

    def land(self, entry: wire.CacheEntry | None) -> None:
        """Pass the result to waiting calls, and end the flight."""
        self.publish(entry)
        self.caching.forget(self)

    def publish(self, entry: wire.CacheEntry | None) -> None:
        """Pass the result to waiting calls."""
        with self.caching.guard.lock:
            if not self.is_over:
                self.entry, self.is_over = entry, True
            done = self.done
        if done is not None:
            done.set()

    def leave(self) -> None:
        """End the look-up of a call that was not made."""
        self.was_left = True
        self.land(None)

    def ended(self, call: Call, output: str, tool_calls: list[wire.ToolCall] | None) -> None:
        """Keep the answer of a call if it may be kept, and learn from it."""
        served = call.served
        reason = None if served is None else served.finish_reason
        if tool_calls:
            is_whole = self.options.mode == "exact" and reason in ("tool_calls", "stop")
        else:
            is_whole = bool(output) and reason == "stop"
        if served is None and call.error_code is None:
            self.leave()
        elif served is None or not is_whole or not self.may_store or not call.attempts:
            self.land(None)
        else:
            now = self.caching.clock.time()
            entry = wire.CacheEntry(
                call.id,
                self.caller.account,
                self.caller.environment,
                self.partition,
                self.key,
                wire.CachedAnswer(output, str(served.finish_reason), served.leg.id, served.provider, tool_calls),
                served.cost_nanos,
                now,
                now + self.options.ttl_seconds,
                None if self.vector is None else self.question,
                None if self.vector is None else self.vector.tobytes(),
                self.options.namespace,
                call.metadata_json,
            )
            self.caching.keep(self, entry)
            if self.offer is not None and self.offer.match is not None and self.offer.features:
                texts = self.question or "", self.offer.match.entry.answer.output, output
                self.caching.calibrations.compare(self.space, self.caller, self.offer, texts)


async def _fits(entry: wire.CacheEntry, guardrails: Sequence[Guardrail], form: Form | None, clock: Clock) -> bool:
    """True if a cached answer may be served: it has the requested type, and the present guardrails do not change it."""
    answer = entry.answer
    if form is not None and not answer.tool_calls and not isinstance(form.read(answer.output), Fit):
        return False
    if not guardrails:
        return True
    screen = Screen(guardrails, as_json=False, resting=partial(rest, clock))
    try:
        await screen.feed(answer.output)
        await screen.end(answer.output, answer.tool_calls or (), wire.Finish(answer.finish_reason))
    except GuardrailFailed:
        return False
    return screen.blocked is None and screen.output == answer.output
