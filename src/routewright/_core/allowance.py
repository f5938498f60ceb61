"""What a caller is told of its rate limits (spec 8, contract 7)."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from routewright.errors import RateLimited
from routewright.wire import Denied, Resource, Take, WindowState, WindowUsage

UNLIMITED = 2**53 - 1  # what is left where there is no limit
AWAY_S = 5  # when to ask again where a process has no part of a limit: nobody knows when they count together again
OUTPUT_TOKENS = 256  # of a call that names no cap, until it is known what it came to
_NOUNS: dict[Resource, tuple[str, str]] = {
    "requests": ("request", "a minute"),
    "tokens": ("token", "a minute"),
    "slots": ("call", "at a time"),
}
_LIMIT_OF: dict[Resource, str] = {  # what a limit is called in ``RateLimits``
    "requests": "requests_per_min",
    "tokens": "tokens_per_min",
    "slots": "concurrency",
}


def usage_of(states: Sequence[WindowState], now: float) -> WindowUsage:
    """The requests that are left, of several limits by the one with the fewest. ``now`` in Unix seconds."""
    least = None
    for state in states:
        if state.resource == "requests" and (least is None or state.remaining < least.remaining):
            least = state
    if least is None:
        return WindowUsage(UNLIMITED, int(now) // 60 * 60 + 60)
    return WindowUsage(least.remaining, ceil(now + least.reset_s))


def headers_of(states: Sequence[WindowState], now: float) -> dict[str, str]:
    """The headers of an answer: of the window that has the smallest share left; of none, where nothing is limited."""
    least, least_share = None, 0.0
    for state in states:
        share = state.remaining / state.limit if state.limit else 0.0
        if state.resource != "slots" and (least is None or share < least_share):
            least, least_share = state, share
    if least is None:
        return {}
    return {
        "X-RateLimit-Limit": str(least.limit),
        "X-RateLimit-Remaining": str(least.remaining),
        "X-RateLimit-Reset": str(ceil(now + least.reset_s)),
        "X-RateLimit-Resource": least.resource,
    }


def refusal(takes: Sequence[Take], denied: Denied, now: float, processes: int = 1) -> RateLimited:
    """The error for a call without room in its limits, or in this process's part of them."""
    take, state = takes[denied.by], denied.states[denied.by]
    whose = take.name.partition(":")[0]
    has_part = state.limit > 0 or take.limit == 0
    wait_s = max(1, ceil(denied.retry_after_s)) if has_part else AWAY_S
    noun, per = _NOUNS[take.resource]
    said = f"the {whose} is limited to {take.limit} {noun}{'' if take.limit == 1 else 's'} {per}"
    if processes > 1 and take.limit:
        said += f", of which each of {processes} processes has {state.limit} while the coordination is away"
    if not take.limit:
        said += ", which lets nothing in: it has to be raised first"
    elif not has_part:
        said += f": try again in {wait_s} s"
    else:
        said += f", and {state.remaining} {'is' if state.remaining == 1 else 'are'} left: try again in {wait_s} s"
    detail = {
        "level": whose,
        # a call more at a time is a request too many: the specification knows two resources
        "resource": "tokens" if take.resource == "tokens" else "requests",
        "limit_of": _LIMIT_OF[take.resource],
        "limit": take.limit,
        "remaining": state.remaining,
        "asked": take.amount,
        "retry_after_seconds": wait_s,
        # not before the wait is over: slots have no window, and one that is empty lets nothing in at a limit of 0
        "reset_unix": ceil(now + max(state.reset_s, wait_s)),
    }
    return RateLimited(said, detail=detail)
