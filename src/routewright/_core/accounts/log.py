"""The log of a shared storage: the changes of its processes, in order. Whoever folds them arrives at the same state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from routewright.wire import WINDOW_S

from .holds import Hold
from .settlement import End, end_hold, expire_hold
from .state import State


class Widened(Struct, array_like=True, gc=False):
    """A changed reservation of a hold."""

    id: str
    nanos: int


class Tick(Struct, array_like=True, gc=False):
    """Changes of one owner in one transaction, in this order."""

    changed: list[str] = []
    """Accounts whose terms, keys or sums were changed by other writes."""
    expired: list[str] = []
    ends: list[End] = []
    widened: list[Widened] = []
    admits: list[Hold] = []

    @property
    def is_empty(self) -> bool:
        """True if it only extends its owner's lease."""
        return not (self.ends or self.admits or self.expired or self.widened or self.changed)


def fold(state: State, owner: int, at: float, until: float, tick: Tick) -> None:
    """Repeat a tick of an owner, and extend its lease to ``until``."""
    state.begin(owner, at, until)
    for account in tick.changed:
        state.forget(account)
    for hold_id in tick.expired:
        expire_hold(state, hold_id)
    for end in tick.ends:
        end_hold(state, end)
    for widened in tick.widened:
        if (running := state.holds.get(widened.id)) is not None:
            state.reserve(running, widened.nanos)
    for hold in tick.admits:
        hold.owner = owner
        hold.taken_at = at
        state.take(hold, state.group(hold.account, hold.purses))
    state.booked()  # its owner wrote the charges to the books


def dump(state: State) -> Any:
    """The state that follows from the log, as plain data."""
    windows = {
        name: (window.times[window.head :], window.requests[window.head :], window.tokens[window.head :])
        for name, window in state.windows.items()
        if window.times and window.times[-1] > state.at - WINDOW_S
    }
    return state.at, list(state.heard.items()), windows, list(state.holds.values())


def load(state: State, at: float, heard: Iterable[tuple[int, float]], windows: Any, holds: Iterable[Hold]) -> None:
    """Load the result of ``dump`` into an empty state."""
    state.at = at
    for name, (times, requests, tokens) in windows.items():
        window = state.window(name)
        window.times = list(times)
        window.requests = list(requests)
        window.tokens = list(tokens)
        window.used_requests = sum(requests)
        window.used_tokens = sum(tokens)
    for hold in holds:
        state.take(hold, state.group(hold.account, hold.purses), counts=False)
    state.heard.update(heard)
