"""Incidents of the service, as the public status page shows them (spec 6.1)."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .batch import Durability, Expect

Severity = Literal["minor", "major", "critical"]


class Incident(Struct, frozen=True, kw_only=True):
    """Something that goes wrong for many."""

    id: str
    """``inc_...``."""
    title: str
    """What the public is told."""
    severity: Severity
    started_at: str
    """RFC 3339, UTC, milliseconds."""
    resolved_at: str | None = None
    """None: it goes on."""
    status_url: str | None = None
    """Where more is said of it."""


class PutIncident(Struct, frozen=True, tag=True):
    """Keep an incident, in place of what was said of it before. Said under ``SYSTEM_ACCOUNT``."""

    incident: Incident
    expect: Expect | None = None
    durability: Durability = "committed"


class Incidents(Struct, frozen=True, tag=True):
    """A list of the 100 incidents that began last, newest first. Asked under ``SYSTEM_ACCOUNT``."""
