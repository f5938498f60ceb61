"""Finds policies that lose models to deprecation, by deciding on each day on which a model ends."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time

from msgspec import Struct

from .backends.clock import SystemClock
from .catalogue import Catalogue
from .errors import NoCandidates
from .router import Router
from .settings import Settings
from .wire import Policy


class PolicyLoss(Struct, frozen=True):
    """What a policy loses, for a short plain request and with every provider available."""

    policy: str
    first_choice: str | None
    """The model chosen today; None: there is none."""
    lost_on: str | None
    """The day on which that model ends, ``YYYY-MM-DD``; None: not within the time asked for."""
    next_choice: str | None
    """The model chosen from then on; None: there is none."""
    empty_from: str | None
    """The day from which no model is left; None: not within the given time."""


def policy_losses(
    catalogue: Catalogue, policies: Sequence[Policy], today: date, within_days: int | None = None
) -> tuple[PolicyLoss, ...]:
    """The policies that lose their first choice or their last model within some days, in their order."""
    ending = {each.ends for each in catalogue.deprecations(within_days, today=today) if each.days_left > 0}
    days = [today.isoformat(), *sorted(ending)]
    settings = [Settings(clock=_Noon(day)) for day in days]
    routers = [Router.sandbox(catalogue=catalogue, policies=policies, settings=each) for each in settings]
    ends = {model.id: (model.deprecated_at or "")[:10] for model in catalogue.models}
    losses = []
    for policy in policies:
        choices: list[str | None] = []
        for router in routers:
            try:
                choices.append(router.decide("Hello", policy_id=policy.name).model)
            except NoCandidates:
                choices.append(None)
        lost_on = None if choices[0] is None or ends[choices[0]] not in days else ends[choices[0]]
        after = None if lost_on is None else choices[days.index(lost_on)]
        empty_from = next((day for day, choice in zip(days, choices, strict=True) if choice is None), None)
        if lost_on or empty_from:
            losses.append(PolicyLoss(policy.name, choices[0], lost_on, after, empty_from))
    return tuple(losses)


class _Noon(SystemClock):
    """A clock that stands at noon of a day."""

    def __init__(self, day: str) -> None:
        super().__init__()
        self._time = datetime.combine(date.fromisoformat(day), time(12), UTC).timestamp()

    def time(self) -> float:
        """Seconds since the epoch."""
        return self._time
