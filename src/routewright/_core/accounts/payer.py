"""Who calls: the terms of a caller, resolved to windows and purses with their limits (contract 7)."""

from __future__ import annotations

from routewright._core.limits import Window
from routewright.wire import Account, Caller, Key, RateLimits

from .purses import LimitedPurse
from .terms import limits_of

_NO_LIMITS = RateLimits()


class Payer:
    """Resolved terms of a caller: windows and purses with their limits."""

    __slots__ = ("account", "all", "day", "key", "limited", "names", "parties", "purses", "used_at", "windows")

    def __init__(
        self,
        account: Account | None,
        key: Key | None,
        day: int,
        windows: list[tuple[str, Window, RateLimits]],
        purses: list[LimitedPurse],
    ) -> None:
        self.account = account
        self.key = key
        self.day = day  # resolved anew each day, for its purses
        self.windows = windows
        self.parties = tuple([name for name, _, _ in windows])
        self.purses = purses
        """Innermost first. The limit of a balance is ``BALANCE``."""
        self.names = tuple([sums.name for sums, _ in purses])
        self.all = tuple([sums for sums, _ in purses])  # without limits
        self.limited = any(limit is not None for _, limit in purses)
        self.used_at = 0.0
        for _, window, _ in windows:
            window.payers += 1
        for sums, _ in purses:
            sums.payers += 1

    def release(self) -> None:
        """Drop the references to its windows and purses, so that they can be evicted."""
        for _, window, _ in self.windows:
            window.payers -= 1
        for sums, _ in self.purses:
            sums.payers -= 1


def parties_of(caller: Caller, account: Account | None, key: Key | None) -> list[tuple[str, RateLimits]]:
    """Account and key of a caller with their rate limits, if any."""
    parties = [(f"account:{caller.environment}:{caller.account}", limits_of(account))]
    if key is not None and key.limits is not None:
        parties.append((f"key:{caller.account}\0{key.id}", key.limits))
    return [party for party in parties if party[1] != _NO_LIMITS]
