"""Rate limits, and notices between processes (spec 8, contract 7)."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

WINDOW_S = 60.0  # window of requests and tokens

Resource = Literal["requests", "tokens", "slots"]
"""What a limit counts: requests or tokens of the last minute, or calls running now (slots)."""


class RateLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of an account or a key. None: no limit, or the plan's; 0 refuses everything."""

    requests_per_min: int | None = None
    """Requests in any 60 seconds."""
    tokens_per_min: int | None = None
    """Input and output tokens in any 60 seconds."""
    concurrency: int | None = None
    """Calls running at the same time. An agent run counts as one."""


class Take(Struct, frozen=True, gc=False):
    """An amount taken of one limit."""

    name: str
    """Owner: ``account:acme`` or ``key:key_...``."""
    resource: Resource
    limit: int
    amount: int = 1
    """An amount above the whole limit is admitted if nothing else is in the window."""


class WindowState(Struct, frozen=True, gc=False):
    """Current state of a limit."""

    resource: Resource
    limit: int
    remaining: int
    reset_s: float
    """Seconds until everything taken so far has left the window; 0 for slots."""


class Denied(Struct, frozen=True):
    """A limit had no room. Nothing was taken of any limit."""

    by: int
    """Index of the limit; of several, the one with the longest wait."""
    retry_after_s: float
    """Seconds until all limits would have room if nobody else took any. One second for slots, since their release is
    unknown; one window for a limit of 0."""
    states: tuple[WindowState, ...]
    """One per ``Take``."""


class Takes(Struct, frozen=True, gc=False):
    """What one call takes of the rate limits of its account and key."""

    id: str
    """Id of the call."""
    account: str
    parties: tuple[tuple[str, RateLimits], ...]
    """The account and the key, if they have limits."""
    tokens: int
    slots: int
    """1, or 0 for calls of an agent run."""
    lasts_s: float
    """Time limit of the call."""


class Taken(Struct, frozen=True, gc=False):
    """A call counted in rate limits."""

    takes: Takes
    windows: tuple[WindowState, ...]
    """Rate limits, this call included."""
    places: tuple[tuple[int, int], ...]
    """Where it was counted, per party, as the coordination defines it."""


CIRCUIT_TOPIC = "circuit"  # notices of open circuits: which model, and for how long


class Notice(Struct, frozen=True):
    """A message to all other processes."""

    topic: str
    message: str


class Heard(Struct, frozen=True):
    """Notices, in order."""

    notices: tuple[Notice, ...]
    last: int
    """Pass this to get later notices."""
