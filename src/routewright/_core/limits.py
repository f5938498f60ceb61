"""The sliding window of a rate limit: exact for requests and tokens (contract 7).

``State.admit`` in ``accounts/state.py`` checks it together with all other limits of a call;
``accounts.sql`` repeats ``Window.admits`` for PostgreSQL."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import inf, nextafter

from routewright.wire import WINDOW_S, Denied, RateLimits, Resource, Take, WindowState

SLOT_WAIT_S = 1.0  # retry delay for a slot, because its release is unknown


def fits(used: int, amount: int, limit: int) -> bool:
    """True if a limit has room. An amount above the whole limit fits an empty window. A limit of 0 admits nothing."""
    if amount < 1:
        return amount == 0
    return used + amount <= limit or (used == 0 and limit > 0)


def leaves_in(at: float, now: float) -> float:
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
        self.used_requests, self.used_tokens, self.slots = requests, tokens, slots
        rest = last, requests - sum(each[1] for each in first), tokens - sum(each[2] for each in first)
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
        found = []
        requests, tokens = limits.requests_per_min, limits.tokens_per_min
        if requests is not None:
            found.append(WindowState("requests", requests, max(requests - self.used_requests, 0), reset_s))
        if tokens is not None:
            found.append(WindowState("tokens", tokens, max(tokens - self.used_tokens, 0), reset_s))
        return found

    def admits(self, limits: RateLimits, tokens: int, slots: int) -> bool:
        """True if the window has room for one more call. Call ``age`` first."""
        concurrency, requests, most = limits.concurrency, limits.requests_per_min, limits.tokens_per_min
        return (
            (concurrency is None or not slots or self.slots < concurrency)
            and (requests is None or self.used_requests < requests)
            and (most is None or self.used_tokens + tokens <= most or fits(self.used_tokens, tokens, most))
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
                return leaves_in(self.times[place], now)
        return SLOT_WAIT_S

    def used(self, resource: Resource) -> int:
        """Amount taken."""
        if resource == "requests":
            return self.used_requests
        return self.used_tokens if resource == "tokens" else self.slots


def denied(takes: list[tuple[Take, Window]], now: float) -> Denied:
    """Which limit has the longest wait. At least one has no room. Call ``age`` on the windows first."""
    waits = [window.wait_s(take.resource, take.amount, take.limit, now) for take, window in takes]
    states = []
    for take, window in takes:
        reset_s = 0.0 if take.resource == "slots" or not window.times else WINDOW_S - (now - window.times[-1])
        remaining = max(take.limit - window.used(take.resource), 0)
        states.append(WindowState(take.resource, take.limit, remaining, reset_s))
    return Denied(waits.index(max(waits)), max(waits), tuple(states))
