"""Writes the reference of events: the fields of a body, and the data of each type."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import msgspec
from docs._agents import fields
from docs._table import json_block, table

from routewright._core.webhooks.endpoint import SAMPLES
from routewright._core.webhooks.outbox import body_of
from routewright.webhook import WebhookEvent
from routewright.wire import Event, EventType
from routewright.wire.docstrings import field_docs, prose, summary

_IN_FULL: EventType = "router.fallback_triggered"
"""The event that is the sample of a body."""


def event_types() -> str:
    """The body, then a part for each type."""
    docs, types = field_docs(WebhookEvent), WebhookEvent.__annotations__
    names = msgspec.json.decode(_sample("incident.created"))
    rows = [(f"`{name}`", f"`{types[name]}`", prose(docs.get(name, ""))) for name in names]
    sections = "\n".join(map(_section, get_args(EventType)))
    body = json_block(msgspec.json.decode(_sample(_IN_FULL)))
    return f"## Body of a delivery\n\n{table(('field', 'type', 'meaning'), rows)}\n{body}\n{sections}"


def _section(type: EventType) -> str:
    kind = SAMPLES[type].__class__
    return f"## `{type}`\n\n{summary(kind)}\n\n{fields(kind)}"


def _sample(type: EventType) -> bytes:
    event = Event(
        id="evt_01M820F8M1PPDB3PTA889S3Z63",
        type=type,
        created_at="2026-11-22T09:30:00.123Z",
        data=SAMPLES[type],
        account="default",
        environment="production",
    )
    return body_of(event)


PARTS: dict[str, Callable[[], str]] = {"events": event_types}
