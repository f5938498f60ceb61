"""The endpoints of ``/v1`` (spec 4): each reads what was sent, asks the Router, and answers."""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

from routewright._core.moment import span_of
from routewright.wire import Bucket, Caller, Candidate, Model, Rejection

from .departure import while_connected
from .events import RouteFrames
from .exchange import Exchange
from .operation import NoQuery
from .service import Service


class TracesQuery(Struct, frozen=True, omit_defaults=True):
    """The parameters of ``GET /v1/traces`` (spec 4.5)."""

    since: str | None = field(default=None, name="from")
    """RFC 3339: traces that began then or later."""
    until: str | None = field(default=None, name="to")
    """RFC 3339: traces that began before then."""
    filter: str = ""
    """``term(,term)*``, of which all hold: key, one of ``= != >= <= > <``, value."""
    limit: int = 50
    """1 to 200."""
    cursor: str | None = None
    """``next_cursor`` of the page before, with the same parameters."""


class DatesQuery(Struct, frozen=True, omit_defaults=True):
    """The parameters of the reports of cache, fallback and latency: days in UTC, both of them in it."""

    start_date: str | None = None
    """``YYYY-MM-DD``; default: six days before the last."""
    end_date: str | None = None
    """``YYYY-MM-DD``; default: today."""


class UsageQuery(DatesQuery, frozen=True, omit_defaults=True):
    """The parameters of ``GET /v1/analytics/usage`` (spec 4.6)."""

    group_by: str = "model"
    """``model``, ``tenant``, ``workflow``, or ``metadata.<key>`` of the keys that this service groups by."""
    bucket: Bucket = "day"
    """``hour``, ``day``, ``week`` or ``month``."""


class Models(Struct, frozen=True):
    """What ``GET /v1/models`` answers (spec 4.2)."""

    models: list[Model]


class Decided(Struct, frozen=True, kw_only=True):
    """What ``POST /v1/decide`` answers: the decision and why, of a call that is not made."""

    model: str
    """The one that would serve the request."""
    chain: list[str]
    """Those that would follow if it failed, in order."""
    score: float
    reason: str
    """One sentence from the decision's own numbers."""
    output_cap: int | None
    """Output tokens that the model is to be asked for at most; null: its own limit."""
    fallback_affordable: bool
    """False: the budget pays for the chosen model's answer alone."""
    candidates: list[Candidate]
    """Every model that fits, best first."""
    rejected: list[Rejection]
    """Every model that does not, with the first reason that kept it out."""
    digest: str
    """Equal digests are equal decisions."""


async def route(service: Service, exchange: Exchange, caller: Caller, _: NoQuery) -> None:
    """Answer a request, falling back along the chain where a model fails."""
    prepared = await service.prepare(exchange, caller)
    if prepared.request.stream:
        await service.send(exchange, prepared, RouteFrames(exchange, prepared.stream()))
        return
    answer = await service.answer(exchange, prepared)
    await exchange.json(answer.response, headers=answer.headers)


async def decide(service: Service, exchange: Exchange, caller: Caller, _: NoQuery) -> None:
    """Choose without calling anything. It counts as a request, and as no tokens."""
    prepared = await service.prepare(exchange, caller)
    decision = await while_connected(exchange, prepared.decide)
    await exchange.json(
        Decided(
            model=decision.model,
            chain=decision.chain,
            score=decision.score,
            reason=decision.reason,
            output_cap=decision.output_cap,
            fallback_affordable=decision.fallback_affordable,
            candidates=decision.candidates,
            rejected=decision.rejected,
            digest=decision.digest,
        ),
        prepared.headers,
    )


async def models(service: Service, exchange: Exchange, caller: Caller, _: NoQuery) -> None:
    """The models that can be routed to, with price, window, abilities and availability."""
    await exchange.json(Models(service.router.models(caller=caller)))


async def policies(service: Service, exchange: Exchange, caller: Caller, _: NoQuery) -> None:
    """The policies that ``policy_id`` can name."""
    # what guardrails look for is the operator's to know: who has it can write around it
    await exchange.json([replace(policy, guardrails=None) for policy in service.router.policies()])


async def trace(service: Service, exchange: Exchange, caller: Caller, _: NoQuery) -> None:
    """One trace with its spans."""
    store = service.router.as_caller(caller).traces
    await exchange.json(await store.get(exchange.parameter, environment=caller.environment))


async def traces(service: Service, exchange: Exchange, caller: Caller, asked: TracesQuery) -> None:
    """A page of traces without their spans, newest first."""
    since, until = span_of(asked.since, asked.until, ("from", "to"))
    page = await service.router.as_caller(caller).traces.query(
        filter=asked.filter,
        since=since,
        until=until,
        limit=asked.limit,
        cursor=asked.cursor,
        environment=caller.environment,
    )
    await exchange.json(page)


async def usage(service: Service, exchange: Exchange, caller: Caller, asked: UsageQuery) -> None:
    """Requests, money and tokens by time and group."""
    report = await service.router.as_caller(caller).traces.usage(
        asked.start_date,
        asked.end_date,
        group_by=asked.group_by,
        bucket=asked.bucket,
        environment=caller.environment,
    )
    await exchange.json(report)


async def cache(service: Service, exchange: Exchange, caller: Caller, asked: DatesQuery) -> None:
    """Hit rate, dollars saved, hits by the age of their entries."""
    store, environment = service.router.as_caller(caller).traces, caller.environment
    await exchange.json(await store.cache_report(asked.start_date, asked.end_date, environment=environment))


async def fallback(service: Service, exchange: Exchange, caller: Caller, asked: DatesQuery) -> None:
    """How often a fallback served, why, and how attempts at each model ended."""
    store, environment = service.router.as_caller(caller).traces, caller.environment
    await exchange.json(await store.fallback_report(asked.start_date, asked.end_date, environment=environment))


async def latency(service: Service, exchange: Exchange, caller: Caller, asked: DatesQuery) -> None:
    """Quantiles of the latency by model and strategy."""
    store, environment = service.router.as_caller(caller).traces, caller.environment
    await exchange.json(await store.latency_report(asked.start_date, asked.end_date, environment=environment))
