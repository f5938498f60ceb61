"""When is a webhook delivered, tried again, or given up? The whole rule, as a table (spec 6.5, contract 11)."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from routewright.wire import DeliveryState, Event, StoredEvent

DELAYS_S = (60.0, 300.0, 900.0, 3_600.0, 14_400.0)  # after failed attempt 1, 2 ...: seconds until the next
MAX_ATTEMPTS = 5
ATTEMPT_S = 10.0  # an attempt without an answer after this time has failed

_BY_STATUS: dict[int, DeliveryState] = {408: "waiting", 429: "waiting"}
_BY_CLASS: dict[int, DeliveryState] = {2: "delivered", 3: "rejected", 4: "rejected", 5: "waiting"}


def body_of(event: StoredEvent | Event) -> bytes:
    """The body of an event's deliveries (spec 6.3)."""
    shown = ("id", "type", "created_at", "api_version", "data")
    return msgspec.json.encode({name: getattr(event, name) for name in shown})


class Step(NamedTuple):
    """What becomes of a delivery after an attempt."""

    state: DeliveryState
    delay_s: float | None = None
    """Until the next attempt, if it is ``waiting``."""


def after_attempt(
    number: int, status: int | None, retry_after_s: float | None = None, max_attempts: int = MAX_ATTEMPTS
) -> Step:
    """What follows attempt ``number`` (1, 2 ...). ``status``: the answer's; None if none came within ``ATTEMPT_S``. A
    redirect is final, never followed. ``retry_after_s`` counts with 429: it lengthens the delay, to at most twice the
    one that would come next, and never shortens it."""
    answer = 500 if status is None else status
    state = _BY_STATUS.get(answer) or _BY_CLASS.get(answer // 100, "waiting")
    if state != "waiting":
        return Step(state)
    if number >= max_attempts:
        return Step("failed_delivery")
    delay = DELAYS_S[min(number, len(DELAYS_S)) - 1]
    if status == 429 and retry_after_s is not None:
        longest = 2 * DELAYS_S[min(number, len(DELAYS_S) - 1)]
        delay = max(delay, min(retry_after_s, longest))
    return Step(state, delay)
