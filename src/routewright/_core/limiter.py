"""May this call go on? The one step that takes of several windows and slots at once, or of none (contract 7).

The time and the owner are arguments. Owners keep their slots by a lease; slots whose lease is not renewed become free.
A finaliser may end a step while another is under way in the same thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

from routewright.wire import WINDOW_S, Denied, Resource, Take, Taken, WindowState

from .window import SLOT_WAIT_S, Window, check_amount, fits, state_of

LOOK_AT = 2
"""Windows looked at for each new one, to drop those that are empty: they are found faster than they are made."""
LOOK_EVERY = 128
LOOK_AT_THEN = 16
"""Windows looked at in every so many steps, where no new ones come."""


class Hold:
    """What one step took, and may correct or give back."""

    __slots__ = ("owner", "slots", "tokens")

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.tokens: list[tuple[Window, int]] = []
        """With the number of the entry."""
        self.slots: list[tuple[Window, int]] = []
        """With how many."""

    def take_slots(self, window: Window, amount: int, now: float) -> None:
        """Take some slots."""
        window.used += amount
        window.seen = now
        self.slots.append((window, amount))

    def take_tokens(self, window: Window, amount: int, now: float, step: int) -> None:
        """Take some tokens."""
        window.steps.append(step)
        self.tokens.append((window, window.put(amount, now)))

    def free(self) -> None:
        """Give the slots back. Each is off the list before it is given, so that nobody gives it twice."""
        while self.slots:
            window, amount = self.slots.pop()
            window.used -= amount

    def correct(self, amount: int) -> None:
        """Put another amount in the place of the tokens."""
        for window, number in self.tokens:
            window.correct(number, amount)

    @property
    def counts(self) -> bool:
        """Whether there is something to give back or to correct."""
        return bool(self.slots) or any(window.counts(number) for window, number in self.tokens)


class Owner:
    """Somebody who holds slots."""

    __slots__ = ("holds", "until")

    def __init__(self) -> None:
        self.until = 0.0
        """When his lease ends."""
        self.holds: dict[int, Hold] = {}
        """By step."""


class Limiter:
    """All windows and slots of one place. To be used under a lock.

    Memory grows with what was taken within a minute, not with the names that ever were. ``first``: the number of the
    first step, above those of another's that may still be ended here.
    """

    __slots__ = ("_lapse_at", "_lease_s", "_owners", "_ring", "_steps", "_windows", "next")

    def __init__(self, lease_s: float, first: int = 1) -> None:
        self._lease_s = lease_s
        self._windows: dict[Resource, dict[str, Window]] = {"requests": {}, "tokens": {}, "slots": {}}
        self._ring: deque[tuple[Resource, str]] = deque()
        """All of them, in the order in which they are looked at."""
        self._steps: dict[int, Hold] = {}
        """Those that took tokens or slots, until they end or it is past."""
        self._owners: dict[str, Owner] = {}
        self._lapse_at = inf
        """No lease ends before."""
        self.next = first

    def __len__(self) -> int:
        """Windows, and steps that may still be ended."""
        return len(self._ring) + len(self._steps)

    def take(self, takes: Sequence[Take], owner: str, now: float) -> Taken | Denied:
        """Take all of it or nothing (``protocols.Coordination``). Raises ``ValidationFailed`` for a negative amount."""
        if now >= self._lapse_at:
            self._lapse(now)
        step, windows, hold = self.next, self._windows, None
        cut = now - WINDOW_S
        states: list[WindowState] = []
        for take in takes:
            resource, limit, amount = take.resource, take.limit, take.amount
            window = windows[resource].get(take.name)
            if window is None:
                window = self._add(resource, take.name, cut)
            times = window.times
            if times and times[window.head] <= cut:
                self._age(window, cut)
            used = window.used + amount
            if (used > limit or amount < 1) and not fits(window.used, amount, limit):
                return self._denied(takes, len(states), now)
            if resource == "requests" and amount == 1 and window.weights is None:  # nearly all: without a call
                window.used += 1
                window.times.append(now)
                states.append(WindowState(resource, limit, limit - used if used < limit else 0, WINDOW_S))
                continue
            if resource == "requests":
                window.put(amount, now)
            elif resource == "tokens":
                hold = hold or Hold(owner)
                hold.take_tokens(window, amount, now, step)
            else:
                hold = hold or Hold(owner)
                hold.take_slots(window, amount, now)
            states.append(state_of(resource, limit, used, window.reset_s(now)))
        if hold is not None:
            self._keep(step, hold, now)
        self.next = step + 1
        if not step % LOOK_EVERY:
            self._look(LOOK_AT_THEN, cut)
        return Taken(step, tuple(states))

    def end(self, step: int, tokens: int | None = None) -> None:
        """Give back the slots of a step, and correct its tokens (``protocols.Coordination``). Raises
        ``ValidationFailed`` for a negative number."""
        check_amount(tokens or 0, "tokens")
        hold = self._steps.pop(step, None)
        if hold is None:
            return
        if hold.slots:
            self._part(step, hold.owner)
            hold.free()
        if tokens is not None:
            hold.correct(tokens)

    def lengthen(self, lease_s: float) -> None:
        """Let leases be at least so long from now on."""
        self._lease_s = max(self._lease_s, lease_s)

    def renew(self, owner: str, now: float) -> None:
        """Keep an owner's slots for another lease."""
        self._lapse(now)
        if owner in self._owners:
            self._owners[owner].until = now + self._lease_s

    def _denied(self, takes: Sequence[Take], taken: int, now: float) -> Denied:
        """Undo the first, and say why and for how long."""
        for take in takes[:taken]:
            self._windows[take.resource][take.name].undo(take.amount)
        for place, take in enumerate(takes):
            check_amount(take.amount, f"takes[{place}].amount")
        found = [(take, self._present(take, now)) for take in takes]
        waits = [
            0.0 if fits(window.used, take.amount, take.limit) else window.wait(take.amount, take.limit, now)
            for take, window in found
        ]
        waits[taken] = waits[taken] or SLOT_WAIT_S  # a limit that is named twice
        states = [state_of(take.resource, take.limit, window.used, window.reset_s(now)) for take, window in found]
        return Denied(waits.index(max(waits)), max(waits), tuple(states))

    def _present(self, take: Take, now: float) -> Window:
        """A window as it is now."""
        window = self._windows[take.resource].get(take.name) or Window()
        self._age(window, now - WINDOW_S)
        return window

    def _add(self, resource: Resource, name: str, cut: float) -> Window:
        self._look(LOOK_AT, cut)
        self._ring.append((resource, name))
        window = self._windows[resource][name] = Window()
        return window

    def _look(self, many: int, cut: float) -> None:
        """Drop those of the next windows that are empty."""
        for _ in range(min(many, len(self._ring))):
            resource, name = self._ring.popleft()
            window = self._windows[resource][name]
            self._age(window, cut)
            if window.times or window.used or window.seen > cut:
                self._ring.append((resource, name))
            else:
                del self._windows[resource][name]

    def _age(self, window: Window, cut: float) -> None:
        for step in window.age(cut):
            hold = self._steps.get(step)
            if hold is not None and not hold.slots:
                self._steps.pop(step, None)

    def _keep(self, step: int, hold: Hold, now: float) -> None:
        """Let a step be ended later. Whoever takes a slot is alive: his lease begins anew."""
        self._steps[step] = hold
        if not hold.slots:
            return
        owner = self._owners.get(hold.owner)
        if owner is None:
            owner = self._owners[hold.owner] = Owner()
        owner.holds[step] = hold
        owner.until = now + self._lease_s
        self._lapse_at = min(self._lapse_at, owner.until)

    def _part(self, step: int, name: str) -> None:
        """Take a step off its owner's."""
        owner = self._owners.get(name)
        if owner is not None:
            owner.holds.pop(step, None)
            if not owner.holds:
                self._owners.pop(name, None)

    def _lapse(self, now: float) -> None:
        """Give back the slots of those whose leases have ended."""
        for name, owner in list(self._owners.items()):
            if owner.until <= now:
                self._owners.pop(name, None)
                self._free(owner)
        self._lapse_at = min((owner.until for owner in list(self._owners.values())), default=inf)

    def _free(self, owner: Owner) -> None:
        for step, hold in list(owner.holds.items()):
            hold.free()
            if not hold.counts:
                self._steps.pop(step, None)
