"""Public API of the response cache, and the judge that compares answers.

Caches, embedders and comparators are loaded when they are first used."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, MsgspecError, convert

from ._core.cache.calibration import START, Bound
from ._core.cache.comparators import judge_request, read_judgement
from ._core.cache.guards import guard, offer
from ._core.cache.question import gist
from ._core.call import Call
from ._engine.cache import Caching
from ._engine.request_input import RawRequest
from ._engine.route import Engine
from ._runtime.blocking import Twin, plain
from ._runtime.worker import Worker
from .errors import RouterError, RouterTimeoutError, UpstreamFailed, ValidationFailed
from .protocols import Clock
from .settings import CacheSettings as CacheSettings
from .storage import open_cache as open_cache
from .wire import CacheSelection, CacheStats, Caller
from .wire.plain import Struct
from .wire.problems import shown

if TYPE_CHECKING:
    from ._core.cache.comparators import JsonEquality as JsonEquality
    from ._core.cache.comparators import NormalisedEquality as NormalisedEquality
    from ._core.cache.comparators import NumericEquality as NumericEquality
    from .backends.cache.memory import MemoryCache as MemoryCache
    from .backends.cache.sqlite import SqliteCache as SqliteCache
    from .backends.embed import HashedEmbedder as HashedEmbedder
    from .backends.embed import OpenAIEmbedder as OpenAIEmbedder
    from .backends.embed import StaticEmbedder as StaticEmbedder

_log = logging.getLogger(__name__)

_HOME = {"MemoryCache": "backends.cache.memory", "SqliteCache": "backends.cache.sqlite"}
_HOME |= dict.fromkeys(("HashedEmbedder", "OpenAIEmbedder", "StaticEmbedder"), "backends.embed")
_HOME |= dict.fromkeys(("JsonEquality", "NormalisedEquality", "NumericEquality"), "_core.cache.comparators")
DAY_S = 86_400
MOST_SHOWN = 100
"""Characters of a question in a sentence."""
MOST_A_QUESTION_USD = 0.01
"""The most that one comparison by the judge may cost."""


class NearEntry(Struct, frozen=True, kw_only=True):
    """An entry near a question, and how it was judged."""

    trace_id: str
    """The call that made the entry."""
    question: str
    similarity: float
    age_s: float
    refused_by: str | None
    """The guard that found a difference between the two questions."""
    compared: list[str]
    """Guards that compared something and found no difference."""
    probability: float | None = None
    """Probability that its answer is right. None: only the first entry that no guard refuses is judged."""
    risk: float | None = None
    """Upper confidence bound of the probability that it is wrong."""
    serve: float = 0.0
    """Probability of serving it."""


class CacheExplanation(Struct, frozen=True, kw_only=True):
    """What the cache would do with a request now."""

    key: str
    """Digest of the request, for ``invalidate(key=)``."""
    partition: str
    """Digest of everything that must be equal for a hit, for ``invalidate(partition=)``."""
    exact_age_s: float | None
    """Age of the entry of the same request; None without one."""
    near: list[NearEntry]
    """The most similar first; empty if the same request has an entry, and in mode ``exact``."""
    reason: str
    """One sentence."""


class ResponseCache:
    """The response cache of this caller's account and environment: stats, explain, invalidate (``router.cache``).

    async with Router.sandbox() as router:
        await router.route("Why is the sky blue?", cache=True)
        print(await router.cache.stats())"""

    def __init__(
        self,
        caching: Callable[[], Caching],
        decided: Callable[[Any, Any], Awaitable[Call]],
        caller: Caller,
        clock: Clock,
        worker: Worker,
    ) -> None:
        self._caching = caching
        self._decided = decided
        self._caller = caller
        self._clock = clock
        self._worker = worker

    def __repr__(self) -> str:
        return f"<ResponseCache of {self._caller.account}>"

    async def stats(self) -> CacheStats:
        """Count the account's entries in both environments. ``router.traces.cache_report()`` has the hit rate."""
        return await self._caching().cache.stats(self._caller.account, self._clock.time())

    async def explain(self, request: Any, **options: Any) -> CacheExplanation:
        """Explain what the cache would do with a request (``cache=True`` by default). Changes nothing and calls no
        model. Raises as ``Router.decide``."""
        call = await self._decided(request, options)
        caching = self._caching()
        lookup = caching.make_lookup(call)
        now = caching.clock.time()
        near: list[NearEntry] = []
        exact = await caching.await_cache(caching.cache.get(lookup.key, now), lookup.deadline)
        exact = exact if exact is not None and lookup.allows(exact) else None
        if exact is not None:
            reason = f"a hit: the same request was answered {now - exact.created_at:.0f} s ago"
        elif lookup.question is None:
            reason = "a miss: the same request has no entry, and similar ones are not looked for"
        elif (matches := await caching.find_near(lookup)) is None:
            reason = "a miss: the question has no embedding; if it has words, the embedder failed or is paused"
        else:
            question_gist = gist(lookup.question)
            calibration = await caching.calibrations.of(lookup.space)
            chosen = offer(lookup.question, matches, calibration, lookup.bound)
            figures = {name: round(getattr(chosen, name), 4) for name in ("probability", "risk", "serve")}
            for match in matches:
                entry = match.entry
                question = entry.prompt or ""
                verdict = guard(question_gist, gist(question))
                judged: dict[str, float] = figures if match is chosen.match else {}
                near.append(
                    NearEntry(
                        trace_id=entry.id,
                        question=question,
                        similarity=round(match.similarity, 4),
                        age_s=round(now - entry.created_at, 3),
                        refused_by=verdict.refused_by,
                        compared=[*verdict.compared],
                        **judged,
                    )
                )
            reason = _reason(near, lookup.bound, calibration.requests)
        exact_age_s = None if exact is None else round(now - exact.created_at, 3)
        return CacheExplanation(
            key=lookup.key.hex(), partition=lookup.partition.hex(), exact_age_s=exact_age_s, near=near, reason=reason
        )

    async def invalidate(
        self,
        *,
        key: str | None = None,
        partition: str | None = None,
        trace_id: str | None = None,
        namespace: str | None = None,
        metadata: tuple[str, str | float | bool] | None = None,
        older_than_s: float | None = None,
        everything: bool = False,
    ) -> int:
        """Remove the account's entries in this environment that match all selectors, and return how many.
        ``everything=True``, without others, removes all of them. Raises ``ValidationFailed``."""
        selectors = {"trace_id": trace_id, "namespace": namespace, "metadata": metadata, "older_than_s": older_than_s}
        try:
            convert(selectors | {"everything": everything}, _Selected)
        except MsgspecError as error:
            raise ValidationFailed.at("invalidate", str(error), "pass selectors of these types") from None
        has_selector = any(selector is not None for selector in (key, partition, *selectors.values()))
        if has_selector and everything:
            raise ValidationFailed.at("everything", "cannot be combined with other selectors", "leave out one of them")
        if not has_selector and not everything:
            raise ValidationFailed.at("invalidate", "nothing is selected", "pass a selector, or everything=True")
        selection = CacheSelection(
            account=self._caller.account,
            environment=self._caller.environment,
            key=None if key is None else _digest("key", key),
            partition=None if partition is None else _digest("partition", partition),
            id=trace_id,
            namespace=namespace,
            metadata=metadata,
            created_before=None if older_than_s is None else self._clock.time() - older_than_s,
        )
        return await self._caching().remove(selection)

    async def aclose(self) -> None:
        """Nothing to free: the Router closes the cache."""

    @cached_property
    def blocking(self) -> BlockingResponseCache:
        """The same methods for code without ``await``."""
        return BlockingResponseCache(self, self._worker)


class _Selected(Struct, frozen=True):
    """Arguments of ``ResponseCache.invalidate``."""

    trace_id: str | None
    namespace: str | None
    metadata: tuple[str, str | float | bool] | None
    older_than_s: Annotated[float, Meta(ge=0)] | None
    everything: bool


class BlockingResponseCache(Twin[ResponseCache]):
    """``router.cache.blocking``: the methods of ``ResponseCache`` as plain functions."""

    stats = plain(ResponseCache.stats)

    def explain(self, request: Any, **options: Any) -> CacheExplanation:
        """Explain what the cache would do with a request (``ResponseCache.explain``)."""
        return self._wait(partial(self._of.explain, request, **options))

    invalidate = plain(ResponseCache.invalidate)


def _reason(near: list[NearEntry], bound: Bound, requests: int) -> str:
    judged = next((entry for entry in near if entry.risk is not None), None)
    if not near:
        return "a miss: no similar question is stored with the same settings and earlier turns (the same partition)"
    entry = judged or near[0]
    question = entry.question if len(entry.question) <= MOST_SHOWN else f"{entry.question[:MOST_SHOWN]}..."
    nearest = f"{question!r} (similarity {entry.similarity:.3f})"
    if judged is None:
        return f"a miss: {nearest} is nearest, but differs in {near[0].refused_by}"
    if judged.serve > 0:
        return f"a hit in {judged.serve:.0%} of cases: {nearest} is near enough"
    if bound.max_error is None:
        return f"a miss: {nearest} is nearest, below the threshold of {bound.threshold}"
    if requests < START and bound.max_error:
        learning = (
            f"this account's cache has seen {requests} requests, and until about {START} it answers nearly all live"
        )
        return f"a miss: {nearest} is nearest, but {learning}, to learn how often similar questions have other answers"
    risk = f"its answer may be wrong with a chance of up to {judged.risk:.1%}"
    return f"a miss: {nearest} is nearest, but {risk}: all such answers would exceed max_error={bound.max_error:g}"


class Judge:
    """Has a model judge answers, within a daily budget over all callers."""

    def __init__(self, engine: Callable[[], Engine], budget_usd: float, clock: Clock) -> None:
        self._engine = engine
        self._budget_usd = budget_usd
        self._clock = clock
        self._has_warned = False
        self._day = 0
        self._spent_usd = 0.0

    async def compare(self, caller: Caller, question: str, cached: str, live: str) -> bool | None:
        """True if the model says that the cached answer could have replaced the live one. None if it does not say, or
        the budget is spent. Paid by ``caller``."""
        day = int(self._clock.time() // DAY_S)
        if day != self._day:
            self._day = day
            self._spent_usd = 0.0
        left_usd = min(MOST_A_QUESTION_USD, self._budget_usd - self._spent_usd)
        if left_usd <= 0:
            return None
        self._spent_usd += left_usd  # reserved, since judgements run side by side
        spent_usd = left_usd
        try:
            metadata = {"routewright": "cache_judge"}  # no cache, even if the policy of a key sets one
            options = {"budget": {"maxCostUsd": left_usd}, "cache": False, "metadata": metadata}
            answer = await self._engine().route(RawRequest(judge_request(question, cached, live), options), caller)
            spent_usd = answer.routing.cost_usd
            return read_judgement(answer.output)
        except (RouterTimeoutError, UpstreamFailed):  # the vendor may bill it all the same
            return None
        except RouterError as error:
            spent_usd = (error.cost_nanos or 0) / 1e9
            if not self._has_warned:
                self._has_warned = True
                _log.warning("cache_judge could not call its model (logged once): %s", error)
            return None
        finally:
            if day == self._day:  # otherwise it was taken from yesterday's budget
                self._spent_usd += spent_usd - left_usd


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"routewright.{_HOME[name]}"), name)


def _digest(path: str, text: str) -> bytes:
    try:
        digest = bytes.fromhex(text)
    except (ValueError, TypeError):
        digest = b""
    if len(digest) != 16:
        raise ValidationFailed.at(path, f"is {shown(text)}", "pass the 32 hexadecimal digits from explain() or a span")
    return digest
