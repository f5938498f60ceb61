"""Rate limits: the sliding window, exact for requests and tokens, and headers and errors (spec 8, contract 7).

``State.admit`` in ``accounts/state.py`` checks the windows together with all other limits of a call; ``accounts.sql``
repeats ``Window.age``, ``admits`` and ``take`` for PostgreSQL."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import ceil, inf, nextafter

from msgspec.structs import replace

from routewright.errors import RateLimited
from routewright.wire import WINDOW_S, Denied, RateLimits, Resource, Take, WindowState, WindowUsage

SLOT_WAIT_S = 1.0  # retry delay for a slot, because its release is unknown
UNLIMITED = 2**53 - 1  # remaining requests without a limit
AWAY_S = 5  # retry delay if a process has no share of a limit while the coordination is away
OUTPUT_TOKENS = 256  # assumed for a call without a cap, until its usage is known
_FIELDS: dict[Resource, str] = {"requests": "requests_per_min", "tokens": "tokens_per_min", "slots": "concurrency"}
_RATES: dict[Resource, str] = {
    "requests": "request{} a minute",
    "tokens": "token{} a minute",
    "slots": "call{} at a time",
}


def fits(used: int, amount: int, limit: int) -> bool:
    """True if a limit has room. An amount above the whole limit fits an empty window. A limit of 0 admits nothing."""
    if amount < 1:
        return amount == 0
    return used + amount <= limit or (used == 0 and limit > 0)


def wait_until_free(at: float, now: float) -> float:
    """Seconds until what was taken at ``at`` leaves its window; whole seconds if these suffice despite rounding."""
    leaves = at + WINDOW_S
    if leaves - WINDOW_S < at:
        leaves = nextafter(leaves, inf)
    wait = leaves - now
    if now + int(wait) >= leaves:
        return float(int(wait))
    return wait if now + wait >= leaves else nextafter(wait, inf)


class Window:
    """Requests and tokens of an account or key in the last minute, oldest first, and its running calls. Calls admitted
    at the same time share an entry."""

    __slots__ = ("head", "payers", "requests", "slots", "times", "tokens", "used_requests", "used_tokens")

    def __init__(self) -> None:
        self.times: list[float] = []  # entries from ``head`` on count
        self.requests: list[int] = []
        self.tokens: list[int] = []
        self.head = 0
        self.used_requests = self.used_tokens = 0
        self.slots = 0  # running calls
        self.payers = 0  # number of ``Payer`` that refer to it

    def fill(
        self, requests: int, tokens: int, slots: int, last: float, first: Sequence[tuple[float, int, int]] = ()
    ) -> None:
        """Set a new window to these sums. ``last`` is the time of its last change (0: never); ``first`` its oldest
        entries (time, requests, tokens), as many as a call waits for. The rest counts as taken at ``last``."""
        self.used_requests = requests
        self.used_tokens = tokens
        self.slots = slots
        rest = last, requests - sum(entry[1] for entry in first), tokens - sum(entry[2] for entry in first)
        for at, some_requests, some_tokens in (*first, rest) if last else ():
            self.times.append(at)
            self.requests.append(some_requests)
            self.tokens.append(some_tokens)

    def take(self, at: float, tokens: int) -> None:
        """Count a call. ``at`` never decreases."""
        times = self.times
        self.used_requests += 1
        self.used_tokens += tokens
        if times and times[-1] == at:
            self.requests[-1] += 1
            self.tokens[-1] += tokens
            return
        times.append(at)
        self.requests.append(1)
        self.tokens.append(tokens)

    def correct(self, at: float, by: int, requests: int = 0) -> None:
        """Change the tokens and requests taken ``at`` a time, if they still count."""
        times = self.times
        place = bisect_left(times, at, self.head)
        if place < len(times) and times[place] == at:
            self.tokens[place] += by
            self.used_tokens += by
            self.requests[place] += requests
            self.used_requests += requests

    def age(self, cut: float) -> None:
        """Drop entries up to ``cut``."""
        first = self.head
        times = self.times
        self.head = end = bisect_right(times, cut, first)
        self.used_requests -= sum(self.requests[first:end])
        self.used_tokens -= sum(self.tokens[first:end])
        if 2 * end >= len(times):
            del times[:end], self.requests[:end], self.tokens[:end]
            self.head = 0

    def states(self, limits: RateLimits, now: float) -> list[WindowState]:
        """The room left in each limit, except slots."""
        if self.times and self.times[self.head] <= now - WINDOW_S:
            self.age(now - WINDOW_S)
        reset_s = WINDOW_S - (now - self.times[-1]) if self.times else 0.0
        states = []
        requests = limits.requests_per_min
        tokens = limits.tokens_per_min
        if requests is not None:
            states.append(WindowState("requests", requests, max(requests - self.used_requests, 0), reset_s))
        if tokens is not None:
            states.append(WindowState("tokens", tokens, max(tokens - self.used_tokens, 0), reset_s))
        return states

    def admits(self, limits: RateLimits, tokens: int, slots: int) -> bool:
        """True if the window has room for one more call. Call ``age`` first."""
        limit = limits.tokens_per_min
        return (
            (limits.concurrency is None or not slots or self.slots < limits.concurrency)
            and (limits.requests_per_min is None or self.used_requests < limits.requests_per_min)
            and (limit is None or self.used_tokens + tokens <= limit or fits(self.used_tokens, tokens, limit))
        )

    def wait_s(self, resource: Resource, amount: int, limit: int, now: float) -> float:
        """Seconds until an amount fits if nobody else takes any; 0 if it fits. For slots, the retry delay."""
        used = self.used(resource)
        if fits(used, amount, limit):
            return 0.0
        if limit < 1:
            return WINDOW_S
        if resource == "slots":
            return SLOT_WAIT_S
        column = self.requests if resource == "requests" else self.tokens
        left = used if amount > limit else used + amount - limit
        for place in range(self.head, len(self.times)):
            left -= column[place]
            if left <= 0:
                return wait_until_free(self.times[place], now)
        return SLOT_WAIT_S

    def used(self, resource: Resource) -> int:
        """Amount taken."""
        if resource == "requests":
            return self.used_requests
        return self.used_tokens if resource == "tokens" else self.slots


def find_denial(takes: list[tuple[Take, Window]], now: float) -> Denied:
    """Which limit has the longest wait. At least one has no room. Call ``age`` on the windows first."""
    waits_s = [window.wait_s(take.resource, take.amount, take.limit, now) for take, window in takes]
    states = []
    for take, window in takes:
        reset_s = 0.0 if take.resource == "slots" or not window.times else WINDOW_S - (now - window.times[-1])
        states.append(WindowState(take.resource, take.limit, max(take.limit - window.used(take.resource), 0), reset_s))
    return Denied(waits_s.index(max(waits_s)), max(waits_s), tuple(states))


def limit_error(
    windows: Sequence[tuple[str, Window, RateLimits]],
    tokens: int,
    at: float,
    now: float,
    *,
    slots: bool,
    processes: int = 1,
) -> RateLimited:
    """The error for a call that exceeds a limit; it names the limit with the longest wait. ``at`` is the windows' time,
    ``now`` in Unix seconds. ``processes`` share the limits equally."""
    takes = [(take, window) for name, window, limits in windows for take in takes_of(name, limits, tokens, slots=slots)]
    for _, window in takes:
        window.age(at - WINDOW_S)
    parts = [(replace(take, limit=take.limit // processes), window) for take, window in takes]
    return refusal_of([take for take, _ in takes], find_denial(parts, at), now, processes)


def takes_of(name: str, limits: RateLimits, tokens: int, *, slots: bool) -> list[Take]:
    """Amounts that a call takes from the limits of an account or key."""
    takes: list[Take] = []
    if limits.concurrency is not None and slots:
        takes.append(Take(name, "slots", limits.concurrency))
    if limits.requests_per_min is not None:
        takes.append(Take(name, "requests", limits.requests_per_min))
    if limits.tokens_per_min is not None:
        takes.append(Take(name, "tokens", limits.tokens_per_min, tokens))
    return takes


def usage_of(states: Sequence[WindowState], now: float) -> WindowUsage:
    """Remaining requests of the tightest limit. ``now`` in Unix seconds."""
    tightest = None
    for state in states:
        if state.resource == "requests" and (tightest is None or state.remaining < tightest.remaining):
            tightest = state
    if tightest is None:
        return WindowUsage(UNLIMITED, int(now) // 60 * 60 + 60)
    return WindowUsage(tightest.remaining, ceil(now + tightest.reset_s))


def headers_of(states: Sequence[WindowState], now: float) -> dict[str, str]:
    """Rate limit headers for the window with the smallest share left. Empty without limits."""
    tightest, lowest_share = None, 0.0
    for state in states:
        share = state.remaining / state.limit if state.limit else 0.0
        if state.resource != "slots" and (tightest is None or share < lowest_share):
            tightest, lowest_share = state, share
    if tightest is None:
        return {}
    return {
        "X-RateLimit-Limit": str(tightest.limit),
        "X-RateLimit-Remaining": str(tightest.remaining),
        "X-RateLimit-Reset": str(ceil(now + tightest.reset_s)),
        "X-RateLimit-Resource": tightest.resource,
    }


def refusal_of(takes: Sequence[Take], verdict: Denied, now: float, processes: int = 1) -> RateLimited:
    """The error for a call that exceeds a limit, or this process's share of it."""
    take = takes[verdict.by]
    state = verdict.states[verdict.by]
    owner = take.name.partition(":")[0]
    has_part = state.limit > 0 or take.limit == 0
    wait_s = max(1, ceil(verdict.retry_after_s)) if has_part else AWAY_S
    message = f"the {owner} is limited to {take.limit} {_RATES[take.resource].format('' if take.limit == 1 else 's')}"
    if processes > 1 and take.limit:
        message += f", of which each of {processes} processes has {state.limit} while the coordination is away"
    if not take.limit:
        message += ", which refuses every call; raise it first"
    elif not has_part:
        message += f"; try again in {wait_s} s"
    else:
        message += f", and {state.remaining} {'is' if state.remaining == 1 else 'are'} left; try again in {wait_s} s"
    detail = {
        "level": owner,
        # the specification has two resources; concurrency counts as requests
        "resource": "tokens" if take.resource == "tokens" else "requests",
        "limit_of": _FIELDS[take.resource],
        "limit": take.limit,
        "remaining": state.remaining,
        "asked": take.amount,
        "retry_after_seconds": wait_s,
        # not before the wait is over, because slots have no window and a limit of 0 has an empty one
        "reset_unix": ceil(now + max(state.reset_s, wait_s)),
    }
    return RateLimited(message, detail=detail)
