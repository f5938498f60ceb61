"""Rate limits at scale: a million arrivals against a list-based model, and a client that obeys retry-after."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest

from routewright._core.accounts.holds import Hold
from routewright._core.accounts.settlement import End, end_hold
from routewright.errors import RateLimited
from routewright.wire import Ask, Caller, RateLimits
from tests.contracts.storage.samples import make_key

from .account_state import LEASE_S, Ledger
from .rate_limit_model import ARRIVALS, FIRST, Arrivals, Crowd, limits_of, told


class StateGate:
    """The rules themselves."""

    def __init__(self, account: RateLimits, key: RateLimits) -> None:
        ledger = Ledger(make_key(limits=key), limits=account)
        self._state = ledger.state
        self._eviction = ledger.eviction

    def ask(self, ask: Ask, at: float) -> RateLimited | None:
        self._state.begin(1, at, at + LEASE_S)
        self._eviction.step(at)
        try:
            found = self._state.admit(ask, 1, ask.at)
        except RateLimited as refused:
            return refused
        assert isinstance(found, Hold)
        return None

    def end(self, call: str, tokens: int | None) -> None:
        end_hold(self._state, End(call, tokens))


@pytest.mark.parametrize("arrivals", ARRIVALS, ids=lambda arrivals: arrivals.__name__)
@pytest.mark.parametrize("limit", [3, 200])
def test_no_window_of_a_million_arrivals_exceeds_a_limit_and_no_refusal_is_needless(
    limit: int, arrivals: Arrivals, full: bool
) -> None:
    rng, limits = Random(limit), limits_of(limit)
    crowd = Crowd(StateGate(*limits), rng, *limits)
    for at in islice(arrivals(limit, rng), 1_000_000 if full else 5_000):
        crowd.come(at)
    crowd.check()


def test_a_caller_that_waits_as_told_is_always_admitted(full: bool) -> None:
    rng, at, refusals, limits = Random(1), FIRST, 0, limits_of(60)
    crowd = Crowd(StateGate(*limits), rng, *limits)
    while refusals < (10_000 if full else 1_000):
        asked = rng.choice((0, 100, 2_000, 70_000)), Caller("acme", key_id=rng.choice((None, "k")))
        refused = crowd.ask(at, *asked)
        if refused is not None:
            refusals += 1
            at += told(refused)
            assert crowd.ask(at, *asked) is None
        at += rng.random() / 3
