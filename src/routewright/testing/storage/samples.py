"""What the suite stores: traces that are all alike but for what a test is about, and traces of a seeded chance."""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar, get_args

from msgspec.structs import replace

from routewright._core.routing.inputs import RULES
from routewright._core.trace.filter import FLAGS, METADATA, NUMBERS, TEXTS
from routewright.protocols import Storage
from routewright.wire import (
    CacheSpan,
    Candidate,
    Content,
    DecisionInput,
    DecisionSpan,
    Environment,
    FallbackSpan,
    FilterOp,
    FunctionCall,
    GuardrailSpan,
    ImagePart,
    ImageUrl,
    Message,
    ModelSpan,
    Span,
    Term,
    TextPart,
    TokenBounds,
    Tokens,
    ToolCall,
    Trace,
    TraceItem,
    TraceItems,
    TraceStatus,
)

T = TypeVar("T")

ODD_TEXTS = (
    'it\'s "quoted" \\ `so`',
    "x'; DROP TABLE trace; --",
    "%_*?[a]",
    "a\0b",
    "line\nbreak\ttab",
    "Ünïcødé 日本 😀",
    "e\u0301",  # not the same as é
    "NULL",
    " spaces ",
    "{'json': [1]}",
    "$1 ?1 :name",
    "long " * 1_000,
)
"""What people write where a name is expected."""
ODD_NAMES = tuple(text for text in ODD_TEXTS if text.isprintable() and len(text) < 200)
"""Those that an account or a trace may be called."""
LONG_NAMES = tuple("n" * 199 + end for end in "12")
"""Of accounts, as long as they may be, and alike up to the last character."""
LONG_IDS = tuple("t" * 99 + end for end in "12")
"""Of traces, likewise."""
HOURS = tuple(f"2026-11-{day}T{hour:02}" for day in (19, 20, 21) for hour in (0, 1, 13, 23))
"""In which the traces of chance were created."""
ROLLUP_KEYS = ("team", "it's")

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
        "id": f"tr_{number:026}",
        "status": "completed",
        "created_at": "2026-11-21T00:00:00.000Z",
        "duration_ms": 12.5,
        "environment": "production",
        "account": "default",
        "policy_version": "inline@2026-11-20",
        "goal": "cost",
        "strategy": "balanced",
        "metadata": {"team": "search", "nested": {"deep": [1, None, "é"]}},
        "decision_input": decision_input(),
    }
    return Trace(**facts | given)


def full_trace() -> Trace:
    """A trace of which every field holds something, prompt and answer included."""
    call = ToolCall("call_1", FunctionCall("search", '{"query":"x"}'))
    asked = [
        Message("user", [TextPart("Why?"), ImagePart(ImageUrl("data:image/png;base64,AA=="))]),
        Message("assistant", None, tool_calls=[call]),
        Message("tool", ODD_TEXTS[0], tool_call_id="call_1"),
    ]
    return make_trace(
        1,
        kind="agent",
        key_id="key_1",
        policy_id="pol_1",
        selected_model="a/one",
        fallback_used=True,
        cache_hit=True,
        cost_usd=0.25,
        cost_range_usd=(0.1, 0.2),
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        charged_usd=0.5,
        tokens=Tokens(1, 2, 3),
        error="router.upstream_failed",
        compromised=True,
        children=["tr_child"],
        spans=spans_of_each_kind(),
        content=Content(messages=asked, output=ODD_TEXTS[5], tool_calls=[call]),
    )


def decision_input(**names: str) -> DecisionInput:
    """What a decision was made from; ``names`` are those of its snapshots."""
    given: dict[str, Any] = {"catalogue": "cat_1", "health": "hea_1"} | names
    return DecisionInput(rules=RULES, as_of="2026-11-21", tokens=TokenBounds(1, 2, 1), models=("a/one",), **given)


def spans_of_each_kind() -> list[Span]:
    """One span of each kind."""
    move: dict[str, Any] = {"from_model": "a/one", "to_model": "b/two", "reason": "timeout"}
    return [
        decision_span(),
        CacheSpan(id=2, name="cache", start_ms=0.0, hit=True, mode="exact", age_s=12.5, saved_usd=0.25),
        model_span("a/one", "error", error="timeout"),
        FallbackSpan(id=4, name="b/two", start_ms=2.0, used=True, **move),
        model_span("b/two", tokens=Tokens(1, 2, 3), cost_usd=0.01, cost_range_usd=(0.01, 0.02), finish_reason="stop"),
        GuardrailSpan(id=6, name="patterns", start_ms=0.0, rule="email", stage="input", action="redact", count=2),
    ]


def decision_span() -> DecisionSpan:
    """A span with lists and dicts in it."""
    best = Candidate("a/one", 0.5, 0.5, 0.01, 1.0, 0.9, (0.5, 0.5, 0.5, 0.5))
    return DecisionSpan(id=1, name="decision", start_ms=0.0, candidates=[best], rejected={"budget": 1}, digest="d")


def model_span(model: str, status: Any = "ok", **given: Any) -> ModelSpan:
    """An attempt at a model."""
    facts: dict[str, Any] = {"id": 3, "name": model, "start_ms": 1.0, "provider": "a", "attempt": 1, "latency_ms": 2.0}
    return ModelSpan(model=model, status=status, **facts | given)


def random_trace(rng: Random, number: int, account: str = "default") -> Trace:
    """A trace in which everything is left to chance that filters and roll-ups look at, but for its environment, in
    which it would take no other's place."""
    return make_trace(
        number,
        account=account,
        created_at=f"{rng.choice(HOURS)}:{rng.choice(('00:00.000', '30:00.000', '59:59.999'))}Z",
        status=rng.choice(_STATUSES),
        kind=rng.choice(("route", "agent")),
        environment=_ENVIRONMENTS[number % 2],
        selected_model=rng.choice(_MODELS),
        policy_id=rng.choice((None, "pol_1", "it's")),
        goal=rng.choice(("cost", "quality")),
        strategy=rng.choice(("balanced", "quality-first")),
        error=rng.choice(_ERRORS),
        cache_hit=rng.random() < 0.2,
        fallback_used=rng.random() < 0.3,
        compromised=rng.random() < 0.1,
        cost_usd=rng.choice(_USD),
        charged_usd=rng.choice(_USD),
        duration_ms=rng.choice((0.0, 0.001, 100.0, 812.5, 60_000.0)),
        tokens=Tokens(rng.randrange(9), rng.randrange(9), rng.randrange(9)),
        metadata={key: rng.choice(_VALUES) for key in _TAGS if rng.random() < 0.6},
        spans=[_random_span(rng) for _ in range(rng.randrange(4))],
        decision_input=None,
    )


def _random_span(rng: Random) -> Span:
    match rng.randrange(4):
        case 0:
            age_s = rng.choice((None, 0.0, 60.0, 60.1, 86_400.5))
            saved = rng.choice((None, *_USD))
            return CacheSpan(id=2, name="cache", start_ms=0.0, hit=rng.random() < 0.5, age_s=age_s, saved_usd=saved)
        case 1:
            reason, used = rng.choice(("timeout", "budget")), rng.random() < 0.5
            facts: dict[str, Any] = {"from_model": "a/one", "to_model": "b/one", "reason": reason, "used": used}
            return FallbackSpan(id=4, name="b/one", start_ms=2.0, **facts)
        case 2:
            return decision_span()
    return model_span(rng.choice(("a/one", "b/one")), rng.choice(("ok", "error", "cancelled")))


def all_terms() -> list[Term]:
    """Every key of a filter with every operator that it takes, and values that some of the random traces have."""
    held: dict[str, tuple[Any, ...]] = {
        "model": ("", "a/one", "x'; DROP TABLE usage; --/two"),
        "provider": ("", "a", "a/one"),
        "policy_id": ("", "pol_1", "it's"),
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
    """The same trace without what decisions are made from: it names no snapshot."""
    return replace(trace, decision_input=None)


def newest_first(traces: list[Trace]) -> list[Trace]:
    """In the order in which a scan gives them."""
    return sorted(traces, key=lambda trace: trace.key, reverse=True)


async def all_items(
    storage: Storage, query: TraceItems, account: str = "default", *, limit: int = 7
) -> list[TraceItem]:
    """All that a scan gives, page by page."""
    found: list[TraceItem] = []
    while page := await storage.scan(account, query, after=found[-1].key if found else None, limit=limit):
        assert len(page) <= limit
        found += page
    return found
