"""What leaves memory: callers, windows and purses that are idle for a minute and hold nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from routewright.wire import WINDOW_S

from .state import State

LATE_S = 3_600.0  # how long after its hold expired a call may still settle
IDLE_S = 60.0
STEP = 64  # entries that one step visits


class Eviction:
    """Drops idle entries of a state in small steps."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._pass = self._drop_idle()
        self._ended_at = -IDLE_S
        """Time when the last pass ended."""
        self._at = 0.0

    def step(self, at: float) -> bool:
        """Visit some entries. False: a full pass was finished recently."""
        if at < self._ended_at + IDLE_S / 2:
            return False
        self._at = at
        if len([*islice(self._pass, STEP)]) < STEP:
            self._pass = self._drop_idle()
            self._ended_at = at
        return True

    def _drop_idle(self) -> Iterator[None]:
        """One pass. Yields after each account and window, and then at another time."""
        state = self._state
        for hold_id in list(state.expired):
            if state.expired[hold_id] < self._at - LATE_S and hold_id not in state.holds:
                del state.expired[hold_id]
        for account in list(state.payers):
            mine = state.payers.get(account, {})
            for name in [name for name, payer in mine.items() if payer.used_at < self._at - IDLE_S]:
                mine.pop(name).release()
            if not mine:
                state.payers.pop(account, None)
            yield
        for party in list(state.windows):
            window = state.windows.get(party)
            if window is not None and not window.payers:
                window.age(self._at - WINDOW_S)
                if not window.times and not window.slots:
                    del state.windows[party]
            yield
        for account in list(state.sums):
            state.drop_idle_purses(account)
            yield
