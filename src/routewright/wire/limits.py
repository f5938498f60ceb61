"""Rate limits, and news between processes (spec 8, contract 7)."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

WINDOW_S = 60.0  # length of a window of requests or tokens

Resource = Literal["requests", "tokens", "slots"]
"""What a limit counts: requests and tokens over the last minute, slots while they are held."""


class RateLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of an account or a key. None: no limit, or that of the plan; 0 lets nothing in."""

    requests_per_min: int | None = None
    """In any 60 seconds."""
    tokens_per_min: int | None = None
    """Input and output together, in any 60 seconds."""
    concurrency: int | None = None
    """Calls at a time; an agent run is one of them."""


class Take(Struct, frozen=True, gc=False):
    """So much of one limit."""

    name: str
    """Whose: ``account:acme``, or ``key:key_...``."""
    resource: Resource
    limit: int
    amount: int = 1
    """More than the whole limit: it is admitted alone."""


class WindowState(Struct, frozen=True, gc=False):
    """What a limit has left."""

    resource: Resource
    limit: int
    remaining: int
    reset_s: float
    """Seconds until all that is taken now has left the window; of slots 0."""


class Denied(Struct, frozen=True):
    """One limit had no room, and nothing was taken of any."""

    by: int
    """Which, by its place: of several the one that is to be waited for longest."""
    retry_after_s: float
    """Seconds until all would have room, if nobody else took any of it meanwhile. Of slots nobody can say: a second. Of
    a limit of 0: a window."""
    states: tuple[WindowState, ...]
    """One for each ``Take``, as they stand."""


class Takes(Struct, frozen=True, gc=False):
    """What one call takes of the rate limits of its account and of its key."""

    id: str
    """The call's."""
    account: str
    parties: tuple[tuple[str, RateLimits], ...]
    """The account and the key, as far as they have limits."""
    tokens: int
    slots: int
    """1, or 0 for calls of an agent run."""
    lasts_s: float
    """The call ends within this time."""


class Taken(Struct, frozen=True, gc=False):
    """A call that was counted."""

    takes: Takes
    windows: tuple[WindowState, ...]
    """The rate limits, this call counted in."""
    places: tuple[tuple[int, int], ...]
    """Where it was counted, for each party, in the terms of the coordination."""


CIRCUIT_TOPIC = "circuit"  # of notices that say which model is left alone, and for how long


class Notice(Struct, frozen=True):
    """Something that other processes should know at once."""

    topic: str
    said: str


class Heard(Struct, frozen=True):
    """News, in their order."""

    notices: tuple[Notice, ...]
    last: int
    """To be said when asking for what comes after."""
