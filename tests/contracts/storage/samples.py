"""Sample data of the suites: traces, accounts, keys, and asks and outcomes of calls.

Defaults are equal except for what a test sets; random data is seeded. ``expected_answers`` counts traces anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from random import Random
from typing import Any, get_args

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from routewright._core.analytics.rollup import GROUPS, Rollups, counted_of
from routewright._core.routing.inputs import RULES
from routewright._core.trace.filter import FLAGS, METADATA, NUMBERS, TEXTS
from routewright.errors import RateLimited
from routewright.protocols import Accounts, Facts, LimitingStorage, Storage
from routewright.wire import (
    Account,
    AddCredit,
    Ask,
    CacheCounts,
    CacheSpan,
    Caller,
    Candidate,
    Claim,
    Content,
    DecisionInput,
    DecisionSpan,
    Environment,
    FallbackCounts,
    FallbackSpan,
    FilterOp,
    FunctionCall,
    Grant,
    GuardrailSpan,
    ImagePart,
    ImageUrl,
    Key,
    LatencyCounts,
    LedgerRow,
    LedgerRows,
    LedgerSum,
    Message,
    ModelSpan,
    PutAccount,
    PutKey,
    PutTrace,
    RowKind,
    RunLimit,
    SetRetention,
    ShadowDecision,
    Short,
    Span,
    Standing,
    Stands,
    StoredEvent,
    Term,
    TextPart,
    TokenBounds,
    Tokens,
    ToolCall,
    Trace,
    TraceItem,
    TraceItems,
    TraceStatus,
    UsageCounts,
    Write,
    Written,
)
from routewright.wire.ids import policy_id

Counts = UsageCounts | CacheCounts | FallbackCounts | LatencyCounts

NOW = 1_795_478_400.0  # 2026-11-24T00:00:00Z
HOUR_S = 3_600.0
DAY_S = 24 * HOUR_S
FOR_EVER = SetRetention()
ODD_TEXTS = (
    'it\'s "quoted" \\ `so`', "x'; DROP TABLE trace; --", "%_*?[a]", "a\0b", "line\nbreak\ttab", "Ünïcødé 日本 😀",
    "e\u0301",  # not the same as é
    "NULL", " spaces ", "{'json': [1]}", "$1 ?1 :name", "long " * 1_000,
)  # fmt: skip
"""Odd texts where a name is expected."""
ODD_NAMES = tuple(text for text in ODD_TEXTS if text.isprintable() and len(text) < 200)
"""Odd texts that are valid names of accounts and traces."""
LONG_NAMES = tuple("n" * 199 + end for end in "12")
"""Account names of the greatest length that differ in the last character."""
ALIKE = (
    *("acme", "Acme", "acme ", " acme", "acm", "acme2", "acme%", "acm_", "acmé", "acme\u0301", "a'cme", "*", "default"),
    *ODD_NAMES,
    *LONG_NAMES,
)
"""Account names that must not be confused."""
HOURS = tuple(f"2026-11-{day}T{hour:02}" for day in (19, 20, 21) for hour in (0, 1, 13, 23))
"""The hours of random traces."""
ROLLUP_KEYS = ("team", "it's")

AT = "2026-11-21T09:30:00.000Z"
AT_S = 1_795_253_400.0
"""The same in Unix seconds."""
NEXT_MONTH = "2026-12-01T00:00:00.000Z"
NEXT_MONTH_S = 1_796_083_200.0
RUN = RunLimit("r", 1_000)
EVENT_IDS = {50: "evt_1", 80: "evt_2", 100: "evt_3"}.__getitem__
"""Ids for the events of a settlement."""
BIG = 2**62
MONTH = "month:2026-11"
PURSES = ("run:r", "key:k", "key:k:2026-11", "account", MONTH)
"""All purses of a call with a key in a run, the innermost first."""

_MODELS = (None, "a/one", "a/two", "b/one", "x'; DROP TABLE usage; --/two")
_ERRORS = (None, None, "router.upstream_failed", "a\0b")
_USD = (0.0, 0.000000001, 0.01, 0.25, 1.5)
_VALUES: tuple[Any, ...] = (
    *("search", "search", "search", "", "1", "1.0", "true", "null", "it's", "a\0b", "Ünïcødé", "1e3"),
    *(1, 1.0, -2.5, 0, 1_000, 2**53, 2**70, 1e300, True, False, None, [], ["search"], {"search": 1}),
)
_TAGS = ("team", "tenant", "workflow", "it's", "a\0b")
_OPS: tuple[FilterOp, ...] = get_args(FilterOp)
_EQUALITY: tuple[FilterOp, ...] = ("=", "!=")
_STATUSES: tuple[TraceStatus, ...] = get_args(TraceStatus)
_ENVIRONMENTS: tuple[Environment, ...] = get_args(Environment)


def make_trace(number: int, **given: Any) -> Trace:
    """A trace whose id grows with ``number``."""
    facts: dict[str, Any] = {
        "id": f"tr_{number:026}", "status": "completed", "created_at": "2026-11-21T00:00:00.000Z", "duration_ms": 12.5,
        "environment": "production", "account": "default", "policy_version": "inline@2026-11-20", "goal": "cost",
        "strategy": "balanced", "metadata": {"team": "search", "nested": {"deep": [1, None, "é"]}},
        "decision_input": decision_input(),
    }  # fmt: skip
    return Trace(**facts | given)


def full_trace() -> Trace:
    """A trace with a value in every field, including prompt and answer."""
    call = ToolCall("call_1", FunctionCall("search", '{"query":"x"}'))
    asked = [
        Message("user", [TextPart("Why?"), ImagePart(ImageUrl("data:image/png;base64,AA=="))]),
        Message("assistant", None, tool_calls=[call]),
        Message("tool", ODD_TEXTS[0], tool_call_id="call_1"),
    ]
    return make_trace(
        1, kind="agent", key_id="key_1", policy_id="pol_1", selected_model="a/one", fallback_used=True, cache_hit=True,
        cost_usd=0.25, cost_range_usd=(0.1, 0.2), traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        charged_usd=0.5, tokens=Tokens(1, 2, 3), error="router.upstream_failed", compromised=True,
        children=["tr_child"], spans=spans_of_each_kind(),
        content=Content(messages=asked, output=ODD_TEXTS[5], tool_calls=[call]),
    )  # fmt: skip


def decision_input(**names: str) -> DecisionInput:
    """The input of a decision; ``names`` are the ids of its snapshots."""
    given: dict[str, Any] = {"catalogue": "cat_1", "health": "hea_1"} | names
    return DecisionInput(rules=RULES, as_of="2026-11-21", tokens=TokenBounds(1, 2, 1), models=("a/one",), **given)


def spans_of_each_kind() -> list[Span]:
    """One span of each kind."""
    move: dict[str, Any] = {"from_model": "a/one", "to_model": "b/two", "reason": "timeout"}
    return [
        decision_span(shadow=ShadowDecision(policy="draft", reason="budget", cost_usd=0.01)),
        CacheSpan(id=2, name="cache", start_ms=0.0, hit=True, mode="exact", age_s=12.5, saved_usd=0.25),
        model_span("a/one", "error", error="timeout"),
        FallbackSpan(id=4, name="b/two", start_ms=2.0, used=True, **move),
        model_span("b/two", tokens=Tokens(1, 2, 3), cost_usd=0.01, cost_range_usd=(0.01, 0.02), finish_reason="stop"),
        GuardrailSpan(id=6, name="patterns", start_ms=0.0, rule="email", stage="input", action="redact", count=2),
    ]


def decision_span(passed_by: str | None = None, shadow: ShadowDecision | UnsetType = UNSET) -> DecisionSpan:
    """A span with lists and dicts in it."""
    best = Candidate("a/one", 0.5, 0.5, 0.01, 1.0, 0.9, (0.5, 0.5, 0.5, 0.5))
    facts: dict[str, Any] = {"candidates": [best], "rejected": {"budget": 1}, "digest": "d"}
    return DecisionSpan(id=1, name="decision", start_ms=0.0, passed_by=passed_by, shadow=shadow, **facts)


def model_span(model: str, status: Any = "ok", **given: Any) -> ModelSpan:
    """An attempt at a model."""
    facts: dict[str, Any] = {"id": 3, "name": model, "start_ms": 1.0, "provider": "a", "attempt": 1, "latency_ms": 2.0}
    return ModelSpan(model=model, status=status, **facts | given)


def random_trace(rng: Random, number: int, account: str = "default") -> Trace:
    """A trace with random values in everything that filters and roll-ups use, except the environment, which is part of
    its identity."""
    return make_trace(
        number, account=account,
        created_at=f"{rng.choice(HOURS)}:{rng.choice(('00:00.000', '30:00.000', '59:59.999'))}Z",
        status=rng.choice(_STATUSES), kind=rng.choice(("route", "agent")), environment=_ENVIRONMENTS[number % 2],
        selected_model=rng.choice(_MODELS), policy_id=rng.choice((None, "pol_1", "it's", policy_id("support"))),
        policy_version=rng.choice(("p@2026-11-20", "p@2026-11-20.2")),
        goal=rng.choice(("cost", "quality")), strategy=rng.choice(("balanced", "quality-first")),
        error=rng.choice(_ERRORS), cache_hit=rng.random() < 0.2, fallback_used=rng.random() < 0.3,
        compromised=rng.random() < 0.1, cost_usd=rng.choice(_USD), charged_usd=rng.choice(_USD),
        duration_ms=rng.choice((0.0, 0.001, 100.0, 812.5, 60_000.0)),
        tokens=Tokens(rng.randrange(9), rng.randrange(9), rng.randrange(9)),
        metadata={key: rng.choice(_VALUES) for key in _TAGS if rng.random() < 0.6},
        spans=[_random_span(rng) for _ in range(rng.randrange(4))], decision_input=None,
    )  # fmt: skip


def _random_span(rng: Random) -> Span:
    match rng.randrange(4):
        case 0:
            age_s = rng.choice((None, 0.0, 60.0, 60.1, 86_400.5))
            saved = rng.choice((None, *_USD))
            return CacheSpan(id=2, name="cache", start_ms=0.0, hit=rng.random() < 0.5, age_s=age_s, saved_usd=saved)
        case 1:
            reason, used = rng.choice(("timeout", "budget")), rng.random() < 0.5
            facts: dict[str, Any] = {"from_model": "a/one", "to_model": "b/one", "reason": reason, "used": used}
            facts["fault"] = rng.choice((None, "auth", "connect"))
            return FallbackSpan(id=4, name="b/one", start_ms=2.0, **facts)
        case 2:
            shadows: list[ShadowDecision | UnsetType] = [UNSET]
            shadows += (ShadowDecision(policy="draft", model=model) for model in ("a/one", "b/one", None))
            return decision_span(rng.choice((None, "a/one", "b/one")), rng.choice(shadows))
    return model_span(rng.choice(("a/one", "b/one")), rng.choice(("ok", "error", "cancelled")))


def all_terms() -> list[Term]:
    """Every filter key with every operator it takes, and values that some random traces have."""
    held: dict[str, tuple[Any, ...]] = {
        "model": ("", "a/one", "x'; DROP TABLE usage; --/two"),
        "provider": ("", "a", "a/one"),
        "policy_id": ("", "pol_1", "it's", "support"),
        "error": ("", "router.upstream_failed", "a\0b", "a"),
    }
    texts = [Term(key, op, value) for key, known in TEXTS.items() for op in _EQUALITY for value in known or held[key]]
    flags = [Term(key, op, value) for key in FLAGS for op in _EQUALITY for value in (True, False)]
    amounts = {"cost_usd": (*_USD, -1.0), "duration_ms": (0.0, 0.001, 812.5, 1e9)}
    numbers = [Term(key, op, value) for key in NUMBERS for op in _OPS for value in amounts[key]]
    asked = ("search", "", "1", "1.0", "true", "null", "it's", "a\0b", "a", "1e3", "-2.50", "9007199254740992", "1e300")
    for key in (*_TAGS[:1], *_TAGS[3:], "none", "x' OR 1=1 --"):
        texts += [Term(METADATA + key, op, value) for op in _EQUALITY for value in asked]
        numbers += [Term(METADATA + key, op, value) for op in _OPS[2:] for value in (-2.5, 0.0, 1.0, 2.0**53, 1e300)]
    return [*texts, *flags, *numbers]


def plain(trace: Trace) -> Trace:
    """The same trace without a decision input, so that it names no snapshots."""
    return replace(trace, decision_input=None)


def newest_first(traces: list[Trace]) -> list[Trace]:
    """Sorted as a scan returns them."""
    return sorted(traces, key=lambda trace: trace.key, reverse=True)


async def all_items(storage: Storage, query: TraceItems, *, limit: int = 7) -> list[TraceItem]:
    """All items of a scan, page by page."""
    return await all_pages(storage, "default", query, lambda item: item.key, limit)


async def all_pages(storage: Storage, account: str, query: Any, key: Callable[[Any], str], limit: int) -> list[Any]:
    """All results of a scan, page by page, each starting behind the last key."""
    found: list[Any] = []
    while page := await storage.scan(account, query, after=key(found[-1]) if found else None, limit=limit):
        assert len(page) <= limit
        assert not found or key(page[0]) < key(found[-1]), "a page begins behind the one before it"
        found += page
    return found


def all_counts(first: str = HOURS[0][:10], last: str = HOURS[-1][:10]) -> Iterator[Counts]:
    """Every kind of query for counts, over the days of the traces of chance or these."""
    for environment in (None, *_ENVIRONMENTS):
        days: dict[str, Any] = {"first": first, "last": last, "environment": environment}
        yield from (CacheCounts(**days), FallbackCounts(**days), LatencyCounts(**days))
        for group_by in (*GROUPS, *(METADATA + key for key in (*ROLLUP_KEYS, "none"))):
            yield UsageCounts(**days, group_by=group_by)
            yield UsageCounts(**days, group_by=group_by, hourly=True, groups=2)


async def answers(storage: Storage, account: str = "default") -> list[Any]:
    """What a storage answers to all queries for counts."""
    return [await storage.read(account, query) for query in all_counts()]


def expected_answers(puts: Sequence[PutTrace]) -> list[Any]:
    """What it has to answer if these traces and no others are counted."""
    counted = counted_anew(puts)
    return [answer(counted, query) for query in all_counts()]


def counted_anew(puts: Sequence[PutTrace]) -> Rollups:
    """The roll-ups of traces."""
    counted = Rollups()
    for put in puts:
        counted.add(put.trace, put.rollup_keys)
    return counted


def answer(counted: Rollups, query: Counts) -> Any:
    """The answer of roll-ups to a query."""
    if isinstance(query, UsageCounts):
        return counted.usage_counts(query)
    if isinstance(query, CacheCounts):
        return counted.cache_counts(query)
    return counted.fallback_counts(query) if isinstance(query, FallbackCounts) else counted.latency_counts(query)


def make_account(**given: Any) -> Account:
    """An account, by default ``acme``, without rate limits."""
    return Account(**{"name": "acme", "created_at": AT, "plan": "unlimited"} | given)


def make_key(**given: Any) -> Key:
    """A key, by default ``k`` of ``acme``."""
    facts = {"id": "k", "account": "acme", "environment": "production", "name": "mine", "prefix": "sk_live_abcd"}
    return Key(**facts | {"digest": "00", "created_at": AT} | given)


def make_row(call: str = "c", attempt: int = 1, charge: int = 0, cost: int | None = None, **given: Any) -> LedgerRow:
    """A ledger row; by default its cost equals its charge."""
    paid = charge if cost is None else cost
    facts: dict[str, Any] = {"at": AT, "model": "a/one", "provider": "a", "charge_nanos": charge, "cost_nanos": paid}
    return LedgerRow(request_id=call, attempt=attempt, **facts | given)


def ledger_sums(rows: Iterable[LedgerRow]) -> list[LedgerSum]:
    """Rows added up by day, provider, model and kind, in order."""

    def name(row: LedgerRow) -> tuple[str, str, str, RowKind]:
        return row.at[:10], row.provider, row.model, row.kind

    sums = []
    for names, group in groupby(sorted(rows, key=name), key=name):
        members = list(group)
        ranges = [row.cost_range_nanos or (row.cost_nanos, row.cost_nanos) for row in members]
        tokens = Tokens(*(sum(getattr(row.tokens, each) for row in members) for each in ("input", "output", "cached")))
        totals = [sum(getattr(row, each) for row in members) for each in ("cost_nanos", "charge_nanos", "credit_nanos")]
        sums.append(LedgerSum(*names, len(members), tokens, *totals, *map(sum, zip(*ranges, strict=True))))
    return sums


def make_ask(call: str = "c", nanos: int = 0, **given: Any) -> Ask:
    """An ask, by default of ``acme`` and without waiting."""
    facts: dict[str, Any] = {"caller": Caller("acme"), "at": AT_S, "lasts_s": 60.0}
    return Ask(id=call, nanos=nanos, **facts | given)


def make_facts(call: str = "c", *rows: LedgerRow, **given: Any) -> Facts:
    """The outcome of a call, by default of ``acme``."""
    facts: dict[str, Any] = {"caller": Caller("acme"), "created_at": AT}
    return Facts(id=call, rows=rows, **facts | given)


def make_event(number: int = 1, created_at: str = AT, account: str = "acme", **given: Any) -> StoredEvent:
    """An event whose id grows with ``number``."""
    facts: dict[str, Any] = {"type": "router.error_burst", "data": {"requests": number}, "environment": "production"}
    return StoredEvent(id=f"evt_{number:026}", created_at=created_at, account=account, **facts | given)


class Draft:
    """A ``protocols.TraceDraft`` of an existing trace."""

    line = None

    def __init__(self, trace: Trace) -> None:
        self.trace = self.wordless = trace
        self.id, self.key, self.environment = trace.id, trace.key, trace.environment
        self.rollup_keys, self.rows, self.text_bytes = (), (), 0
        given = trace.decision_input
        self.snapshot_ids = None if given is None else (given.catalogue, given.health, given.policy)
        self.counted = counted_of(trace)
        self.is_void = False

    def void(self, is_void: bool) -> None:
        """Charge nothing, or revert that."""
        self.is_void = is_void


class Till:
    """One account of a storage, with helpers for the tests. Remembers the calls it admitted."""

    def __init__(self, storage: Storage, account: str = "acme") -> None:
        self.storage = storage
        self.account = account
        self.asks: dict[str, Ask] = {}
        self.grants: dict[str, Grant] = {}

    @property
    def limiting(self) -> LimitingStorage:
        assert isinstance(self.storage, LimitingStorage), "a storage with limits has a property 'accounts'"
        return self.storage

    @property
    def accounts(self) -> Accounts:
        return self.limiting.accounts

    async def open(self, *keys: Key, credit: int | None = None, **terms: Any) -> Till:
        """Create the account, with keys and a balance; without terms it is unlimited."""
        writes: list[Write] = [PutAccount(make_account(name=self.account, **terms)), *map(PutKey, keys)]
        if credit is not None:
            writes.append(AddCredit("cr", credit, AT))
        await self.storage.apply(self.account, writes)
        return self

    async def open_full(self) -> Till:
        """Create it with a key and a limit of 1,000 at every level."""
        key = make_key(account=self.account, digest=f"of {self.account}", budget_nanos=1_000, monthly_nanos=1_000)
        return await self.open(key, credit=1_000, prepaid=True, monthly_nanos=1_000)

    async def put(self, write: Write) -> Written:
        (written,) = await self.storage.apply(self.account, [write])
        return written

    def caller(self, key: str | None = None, environment: Environment = "production") -> Caller:
        return Caller(self.account, environment, key)

    async def ask(
        self, call: str = "c", nanos: int = 0, *, key: str | None = None, same: Claim | str | None = None, **given: Any
    ) -> Any:
        """Ask for a call. ``same``: its idempotency key, with the same fingerprint for all calls."""
        claim = Claim(same, "of it") if isinstance(same, str) else same
        asked = make_ask(call, nanos, **{"caller": self.caller(key), "claim": claim} | given)
        found = await self.accounts.admit(asked)
        if isinstance(found, Grant):
            assert (found.id, found.caller) == (call, asked.caller), "a grant names its call"
            self.asks[call], self.grants[call] = asked, found
        return found

    async def admit(self, call: str = "c", nanos: int = 0, **given: Any) -> Grant:
        found = await self.ask(call, nanos, **given)
        assert isinstance(found, Grant), f"{call} was not admitted but answered with {found}"
        return found

    async def short(self, call: str, nanos: int, **given: Any) -> Short:
        """Ask for a call that must be refused for lack of money."""
        found = await self.ask(call, nanos, **given)
        assert isinstance(found, Short), f"{call} was not refused for lack of money, but answered with {found}"
        return found

    async def limited(self, call: str = "refused", nanos: int = 0, **given: Any) -> dict[str, Any]:
        """Ask for a call that must be refused by a rate limit; returns the error's detail."""
        try:
            found = await self.ask(call, nanos, **given)
        except RateLimited as refused:
            detail = refused.detail
        else:
            raise AssertionError(f"{call} was not refused by a rate limit, but answered with {found}")
        assert detail is not None, "a refusal says which limit it is: routewright.errors.RateLimited"
        return detail

    async def settle(
        self, call: str = "c", *rows: LedgerRow, key: str | None = None, **given: Any
    ) -> Sequence[StoredEvent]:
        """Settle a call, with its grant if it was admitted."""
        asked = self.asks.get(call)
        known: dict[str, Any] = {"caller": self.caller(key)}
        if asked is not None:
            known = {"caller": asked.caller, "run": asked.run, "claim": asked.claim}
        return await self.accounts.settle(self.grants.get(call), make_facts(call, *rows, **known | given))

    def release(self, call: str = "c", tokens: int | None = 0) -> None:
        self.accounts.release(self.grants[call], tokens)

    async def standing(self, at: str = AT, key: str | None = "k", run: RunLimit | None = RUN) -> Standing:
        """The account, key and purses."""
        return await self.storage.read(self.account, Stands(at, key, run))

    async def purses(self, at: str = AT, **given: Any) -> dict[str, tuple[int, int]]:
        purses = (await self.standing(at, **given)).purses
        return {purse.name: (purse.spent_nanos, purse.reserved_nanos) for purse in purses}

    async def rows(self, **given: Any) -> list[LedgerRow]:
        return await self.storage.scan(self.account, LedgerRows(**given), after=None, limit=1_000)

    async def kinds(self) -> list[str]:
        """Kinds of the rows other than credit, ordered by the rows' names."""
        rows = sorted(await self.rows(), key=lambda row: (row.request_id, row.attempt))
        return [row.kind for row in rows if row.kind != "credit"]
