"""The response cache: what it is made of, what its owner sees of it, and the judge that compares answers.

Caches, embedders and comparators are loaded when they are first used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from importlib import import_module
from math import inf
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ._core.cache.answers import judge_request, read_judgement
from ._core.cache.offer import Offer, offer
from ._core.call import Call
from ._core.request.problems import shown
from ._engine.cache import Caching
from ._engine.reading import Asked
from ._engine.route import Engine
from ._engine.worker import Worker
from .blocking import Twin, plain
from .errors import RouterError, ValidationFailed
from .protocols import Clock
from .settings import CacheSettings
from .storage import open_cache
from .wire import CacheSelection, CacheStats, Caller

if TYPE_CHECKING:
    from ._core.cache.answers import JsonEquality, NormalisedEquality, NumericEquality
    from .backends.cache.memory import MemoryCache
    from .backends.cache.sqlite import SqliteCache
    from .backends.embed.hashed import HashedEmbedder
    from .backends.embed.openai import OpenAIEmbedder
    from .backends.embed.static import StaticEmbedder

__all__ = [
    "BlockingResponseCache",
    "CacheExplanation",
    "CacheSettings",
    "HashedEmbedder",
    "JsonEquality",
    "MemoryCache",
    "NearEntry",
    "NormalisedEquality",
    "NumericEquality",
    "OpenAIEmbedder",
    "ResponseCache",
    "SqliteCache",
    "StaticEmbedder",
    "open_cache",
]

_HOME = {
    "HashedEmbedder": "backends.embed.hashed",
    "JsonEquality": "_core.cache.answers",
    "MemoryCache": "backends.cache.memory",
    "NormalisedEquality": "_core.cache.answers",
    "NumericEquality": "_core.cache.answers",
    "OpenAIEmbedder": "backends.embed.openai",
    "SqliteCache": "backends.cache.sqlite",
    "StaticEmbedder": "backends.embed.static",
}

DAY_S = 86_400
MOST_SHOWN = 100
"""Characters of a question in a sentence."""
MOST_A_QUESTION_USD = 0.01
"""Of one comparison by the judge."""


class NearEntry(Struct, frozen=True, kw_only=True):
    """An entry near a question, and what was thought of it."""

    trace_id: str
    """The call that made it."""
    question: str
    similarity: float
    age_s: float
    refused_by: str | None
    """The guard that found a difference between the two questions."""
    compared: list[str]
    """Guards that found something to compare, and no difference."""
    probability: float
    """That its answer is right here."""
    risk: float
    """That it is wrong, at the upper confidence bound."""
    serve: float
    """The chance with which it would be served."""


class CacheExplanation(Struct, frozen=True, kw_only=True):
    """What the cache would do with a request now."""

    key: str
    """Digest of the request, for ``invalidate(key=)``."""
    partition: str
    """Digest of all that has to be the same for a hit, for ``invalidate(partition=)``."""
    exact_age_s: float | None
    """Age of the entry of the same request; None: there is none."""
    near: list[NearEntry]
    """The most similar first; empty in the mode ``exact``."""
    reason: str
    """One sentence."""


class ResponseCache:
    """The response cache, as far as it is one account's: ``router.cache``.

    async with Router.sandbox() as router:
        await router.route("Why is the sky blue?", cache=True)
        print(await router.cache.stats())
    """

    def __init__(
        self,
        caching: Callable[[], Caching],
        explain: Callable[..., Awaitable[CacheExplanation]],
        caller: Caller,
        clock: Clock,
        worker: Worker,
    ) -> None:
        self._caching = caching
        self._explain = explain
        self._caller = caller
        self._clock = clock
        self._worker = worker

    def __repr__(self) -> str:
        return f"<ResponseCache of {self._caller.account}>"

    async def stats(self) -> CacheStats:
        """Count what is kept of the account, in both environments. How often it was asked and hit stands in
        ``router.traces.cache_report()``."""
        return await self._caching().cache.stats(self._caller.account, self._clock.time())

    async def explain(self, request: Any, **options: Any) -> CacheExplanation:
        """Say what the cache would do with a request, with ``cache=True`` unless it says otherwise. Changes nothing,
        and calls no model. Raises what ``Router.decide`` does."""
        return await self._explain(request, **options)

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
        """Remove the account's entries that all of what is given holds for, and say how many. ``everything=True``
        alone means all of them. Raises ``ValidationFailed``."""
        named = [each for each in (key, partition, trace_id, namespace, metadata, older_than_s) if each is not None]
        _check_selection(everything, older_than_s, metadata, (trace_id, namespace))
        if bool(named) == everything:
            hint = "say which entries, or everything=True alone"
            raise ValidationFailed.at("invalidate", "selects nothing" if not named else "selects and takes all", hint)
        which = CacheSelection(
            account=self._caller.account,
            environment=self._caller.environment,
            key=None if key is None else _digest("key", key),
            partition=None if partition is None else _digest("partition", partition),
            id=trace_id,
            namespace=namespace,
            metadata=metadata,
            made_before=None if older_than_s is None else self._clock.time() - older_than_s,
        )
        return await self._caching().remove(which)

    async def aclose(self) -> None:
        """Nothing to free: the Router closes the cache."""

    @cached_property
    def blocking(self) -> BlockingResponseCache:
        """The same methods for code without ``await``."""
        return BlockingResponseCache(self, self._worker)


class BlockingResponseCache(Twin[ResponseCache]):
    """``router.cache.blocking``: the methods of ``ResponseCache`` as plain functions."""

    stats = plain(ResponseCache.stats)

    def explain(self, request: Any, **options: Any) -> CacheExplanation:
        """Say what the cache would do with a request (``ResponseCache.explain``)."""
        return self._wait(partial(self._of.explain, request, **options))

    invalidate = plain(ResponseCache.invalidate)


async def explain_cache(caching: Caching, call: Call) -> CacheExplanation:
    """What the cache would do with a call that was decided."""
    lookup = caching.lookup(call)
    exact, near = await caching.exact(lookup), list[NearEntry]()
    matches = await caching.near(lookup) if lookup.question is not None else None
    now, calibration = caching.now(), None if matches is None else await caching.calibration(lookup.space)
    chosen = Offer()
    if calibration is not None and lookup.question is not None:
        chosen = offer(lookup.question, matches or (), calibration, lookup.bound)
    for match in matches or ():
        assert calibration is not None, "there are matches"
        assert lookup.question is not None, "it has some near it"
        entry, found = match.entry, chosen
        if match is not chosen.match:
            found = offer(lookup.question, [match], calibration, lookup.bound)._replace(serve=0.0)
        one = NearEntry(
            trace_id=entry.id,
            question=entry.prompt or "",
            similarity=round(match.similarity, 4),
            age_s=round(now - entry.created_at, 3),
            refused_by=found.refused_by,
            compared=[*found.compared],
            probability=round(found.probability, 4),
            risk=round(found.risk, 4),
            serve=round(found.serve, 4),
        )
        near.append(one)
    exact_age_s = None if exact is None else round(now - exact.created_at, 3)
    served = next((one for one in near if one.serve > 0), None)
    if exact_age_s is not None:
        reason = f"a hit: the same request was answered {exact_age_s:.0f} s ago"
    elif served is not None:
        reason = f"a hit in {served.serve:.0%} of cases: {_named(served)} is near enough"
    elif near and near[0].refused_by is not None:
        reason = f"a miss: {_named(near[0])} is nearest, but its {near[0].refused_by} differ"
    elif near:
        risk = f"its answer may be wrong here with a chance of up to {near[0].risk:.1%}"
        reason = f"a miss: {_named(near[0])} is nearest, but {risk}"
    else:
        reason = "a miss: nothing in the same partition is kept"
    return CacheExplanation(
        key=lookup.key.hex(), partition=lookup.partition.hex(), exact_age_s=exact_age_s, near=near, reason=reason
    )


def _named(near: NearEntry) -> str:
    question = near.question if len(near.question) <= MOST_SHOWN else f"{near.question[:MOST_SHOWN]}..."
    return f"{question!r} (similarity {near.similarity:.3f})"


class Judge:
    """Asks a model whether a cached answer would have done, within a budget a day over all callers."""

    def __init__(self, engine: Callable[[], Engine], budget_usd: float, clock: Clock) -> None:
        self._engine = engine
        self._budget_usd = budget_usd
        self._clock = clock
        self._day, self._spent_usd = 0, 0.0

    async def compare(self, caller: Caller, question: str, cached: str, live: str) -> bool | None:
        """True or False as the model says; None where it says neither, or the budget is spent. Paid by ``caller``."""
        day = int(self._clock.time() // DAY_S)
        if day != self._day:
            self._day, self._spent_usd = day, 0.0
        left_usd = min(MOST_A_QUESTION_USD, self._budget_usd - self._spent_usd)
        if left_usd <= 0:
            return None
        self._spent_usd += left_usd  # by others at the same time, too
        options = {"budget": {"maxCostUsd": left_usd}, "metadata": {"routewright": "cache_judge"}}
        spent_usd = left_usd
        try:
            answer = await self._engine().route(Asked(judge_request(question, cached, live), options), caller)
            spent_usd = answer.routing.cost_usd
            return read_judgement(answer.output)
        except RouterError as error:
            spent_usd = (error.cost_nanos or 0) / 1e9
            return None
        finally:
            self._spent_usd += spent_usd - left_usd


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"routewright.{_HOME[name]}"), name)


def _check_selection(everything: object, older_than_s: object, metadata: object, texts: tuple[object, ...]) -> None:
    """Raises ``ValidationFailed`` for arguments of ``invalidate`` of a wrong kind."""
    seconds = isinstance(older_than_s, int | float) and not isinstance(older_than_s, bool) and 0 <= older_than_s < inf
    pair = isinstance(metadata, tuple) and [*map(type, metadata[:1]), len(metadata)] == [str, 2]
    for path, value, fits, hint in (
        ("everything", everything, isinstance(everything, bool), "pass True or False"),
        ("older_than_s", older_than_s, older_than_s is None or seconds, "pass seconds, 0 or more"),
        ("metadata", metadata, metadata is None or pair, 'pass a key and a value: ("team", "support")'),
        ("trace_id or namespace", texts, all(isinstance(each, str | None) for each in texts), "pass a string"),
    ):
        if not fits:
            raise ValidationFailed.at(path, f"is {shown(value)}", hint)


def _digest(path: str, told: str) -> bytes:
    hint = "pass the 32 hexadecimal digits that explain() or a cache span gives"
    try:
        digest = bytes.fromhex(told)
    except (ValueError, TypeError):
        digest = b""
    if len(digest) != 16:
        raise ValidationFailed.at(path, f"is {shown(told)}", hint)
    return digest
