"""Shapes that storages and JSON readers rely on: they round-trip, with every published field."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect

from routewright.wire import Event, PushedEvent, Query, Scan, Snapshot, Span, Tokens, Trace, Write
from tests.contracts.storage.samples import make_trace
from tests.tables import table

UNIONS: tuple[Any, ...] = (Write, Query, Scan, Snapshot, Span)


def sample(kind: Any, *within: type) -> Any:
    """A value of a type, with every field set; of alternatives the first. ``within``: what holds it."""
    match inspect.type_info(kind) if not isinstance(kind, inspect.Type) else kind:
        case inspect.StructType(cls, fields):
            return cls(**{field.name: sample(field.type, *within, cls) for field in fields})
        case inspect.UnionType(types):
            return sample(next(each for each in types if not isinstance(each, inspect.NoneType)), *within)
        case inspect.LiteralType(values):
            return values[0]
        case inspect.EnumType(cls):
            return next(iter(cls))
        case inspect.TupleType(items):
            return tuple(sample(item, *within) for item in items)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            ends = isinstance(item, inspect.StructType) and item.cls in within
            return (list if isinstance(kind, inspect.ListType) else tuple)([] if ends else [sample(item, *within)])
        case inspect.DictType(key_type=key, value_type=value):
            return {sample(key): sample(value, *within)}
        case inspect.FrozenSetType(item_type=item):
            return frozenset([sample(item)])
        case inspect.NoneType():
            return None
        case found:
            return {"IntType": 2**60, "FloatType": 0.5, "BoolType": True, "BytesType": b"x"}.get(
                type(found).__name__, "x"
            )


@table("codec", [msgspec.json, msgspec.msgpack], ids=["json", "msgpack"])
@table(("kind", "union"), [(kind, union) for union in UNIONS for kind in union.__args__], ids=lambda of: str(of)[-30:])
def test_each_member_of_a_union_survives_a_round_trip(codec: Any, kind: Any, union: Any) -> None:
    thing = sample(kind)
    again = codec.decode(codec.encode(thing), type=union)
    assert again == thing
    assert type(again) is kind


@table("kind", PushedEvent.__args__)
def test_a_stored_event_equals_the_event(kind: Any) -> None:
    data = sample(kind)
    event = Event(id="evt_1", type=data.type, created_at="2026-11-21", data=data, account="a", environment="production")
    kept = msgspec.json.decode(msgspec.json.encode(event.stored), type=type(event.stored))
    assert kept.event == event
    assert msgspec.json.encode(kept) == msgspec.json.encode(event), "delivered as it was told"


def test_tokens_have_three_counts_and_others_only_if_not_zero() -> None:
    assert msgspec.json.encode(Tokens()) == b'{"input":0,"output":0,"cached":0}'
    assert msgspec.to_builtins(Tokens(9, 5, written=3)) == {"input": 9, "output": 5, "cached": 0, "written": 3}


def test_every_published_field_of_a_trace_is_in_its_json_even_if_empty() -> None:
    least = Trace(
        id="tr_1", status="cancelled", created_at="2026-11-21T00:00:00.000Z", duration_ms=1.0, environment="production",
        account="default", policy_version="inline@2026-11-20", goal="cost", strategy="balanced",
    )  # fmt: skip
    shown = msgspec.json.decode(msgspec.json.encode(least))
    published = (  # contract 9
        "id, kind, status, created_at, duration_ms, environment, account, key_id, policy_id, policy_version, goal, "
        "strategy, selected_model, fallback_used, cache_hit, cost_usd, charged_usd, tokens, metadata, error, "
        "compromised, decision_input, spans, children"
    )
    assert set(shown) == {*published.split(", "), "cost_range_usd", "traceparent", "content"}
    absent: dict[str, object] = {
        "policy_id": None,
        "fallback_used": False,
        "cost_usd": 0.0,
        "metadata": {},
        "children": [],
        "spans": [],
    }
    assert {name: shown[name] for name in absent} == absent
    assert shown["tokens"] == {"input": 0, "output": 0, "cached": 0}


@table(
    ("type_", "published"),
    [
        ("decision", "candidates rejected digest"),
        ("cache", "hit mode similarity age_s saved_usd"),
        ("model", "model provider attempt latency_ms ttft_ms tokens cost_usd finish_reason error"),
        ("fallback", "used from_model to_model reason"),
        ("guardrail", "rule stage action"),
    ],
)
def test_every_published_field_of_a_span_is_in_its_json(type_: str, published: str) -> None:
    span = next(kind for kind in Span.__args__ if kind.__struct_config__.tag == type_)
    shown = msgspec.json.decode(msgspec.json.encode(sample(span)))
    assert {"id", "parent_id", "type", "name", "start_ms", "duration_ms", "status", *published.split()} <= set(shown)


def test_the_decision_input_stays_small() -> None:
    shown = msgspec.json.decode(msgspec.json.encode(make_trace(1)))["decision_input"]
    assert set(shown) == {"catalogue", "health", "as_of", "tokens", "models", "rules"}
