"""What becomes of policies as models end? Asks the decision itself, on each day on which a model ends."""

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

_PROMPT = "Hello"


class PolicyLoss(Struct, frozen=True):
    """What a policy loses, asked with a short plain request and with every provider at hand."""

    policy: str
    first_choice: str | None
    """The model that it picks today; None: there is none."""
    lost_on: str | None
    """The day on which that one ends, ``YYYY-MM-DD``; None: not in the time that was asked about."""
    next_choice: str | None
    """The model that it picks from then on; None: there is none."""
    empty_from: str | None
    """The day from which it has no model left; None: not in that time."""


def policy_losses(
    catalogue: Catalogue, policies: Sequence[Policy], today: date, within_days: int | None = None
) -> tuple[PolicyLoss, ...]:
    """The policies that lose their first choice or their last model within some days, in their order."""
    ends = {each.ends for each in catalogue.deprecations(within_days, today=today) if each.days_left > 0}
    days = [today.isoformat(), *sorted(ends)]
    choices = [_choices(catalogue, policies, day) for day in days]
    losses = [_loss(policy.name, days, [each[policy.name] for each in choices], catalogue) for policy in policies]
    return tuple(each for each in losses if each.lost_on or each.empty_from)


def _loss(name: str, days: Sequence[str], choices: Sequence[str | None], catalogue: Catalogue) -> PolicyLoss:
    ends = {model.id: (model.deprecated_at or "")[:10] for model in catalogue.models}
    first = choices[0]
    lost_on = None if first is None or ends[first] not in days else ends[first]
    after = None if lost_on is None else choices[days.index(lost_on)]
    empty_from = next((day for day, choice in zip(days, choices, strict=True) if choice is None), None)
    return PolicyLoss(name, first, lost_on, after, empty_from)


def _choices(catalogue: Catalogue, policies: Sequence[Policy], day: str) -> dict[str, str | None]:
    """What each policy picks on a day."""
    router = Router.sandbox(catalogue=catalogue, policies=policies, settings=Settings(clock=_Noon(day)))
    return {policy.name: _choice(router, policy.name) for policy in policies}


def _choice(router: Router, policy: str) -> str | None:
    try:
        return router.decide(_PROMPT, policy_id=policy).model
    except NoCandidates:
        return None


class _Noon(SystemClock):
    """A clock on which it is noon of one day."""

    def __init__(self, day: str) -> None:
        super().__init__()
        self._time = datetime.combine(date.fromisoformat(day), time(12), UTC).timestamp()

    def time(self) -> float:
        """Seconds since the epoch."""
        return self._time
