"""A minimal recorded call, for tests that vary one field."""

from __future__ import annotations

from typing import Any

USUAL: dict[str, Any] = {
    "id": "tr_1",
    "status": "completed",
    "created_at": "2026-11-22T09:30:00.000Z",
    "duration_ms": 812.5,
    "environment": "production",
    "account": "acme",
    "policy_version": "p1",
    "goal": "cost",
    "strategy": "balanced",
}
