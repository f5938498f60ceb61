"""Rate limits on one file, compared with lists: two processes admit in turn, and one is sometimes replaced."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from random import Random

import pytest

from routewright.errors import RateLimited
from routewright.wire import Ask, Caller, Grant, PutAccount, PutKey, RateLimits, Write
from tests.contracts.storage.samples import make_account, make_key
from tests.core.rate_limit_model import ARRIVALS, FIRST, Arrivals, Crowd, paired_limits, told

from .account_storages import LONG_S, Place, at_once

REPLACED_EVERY = 300
"""Asks, after which another process begins with what the file says."""


class FileGate:
    """Two processes, of which any admits and any is told of the end."""

    def __init__(self, path: Path, rng: Random, account: RateLimits, key: RateLimits) -> None:
        self._place = Place("sqlite", path, lease_s=LONG_S)
        self._rng = rng
        self._asks = 0
        self._grants: dict[str, Grant] = {}
        writes: list[Write] = [PutAccount(make_account(limits=account)), PutKey(make_key(limits=key))]
        at_once(self._place.processes[0].apply("acme", writes))

    def ask(self, ask: Ask, at: float) -> RateLimited | None:
        place = self._place
        place.clock.now = at
        self._asks += 1
        if not self._asks % REPLACED_EVERY:
            place.die(self._rng.randrange(2))
        try:
            found = at_once(self._rng.choice(place.processes).accounts.admit(ask))
        except RateLimited as refused:
            return refused
        assert isinstance(found, Grant)
        self._grants[ask.id] = found
        return None

    def end(self, call: str, tokens: int | None) -> None:
        self._rng.choice(self._place.processes).accounts.release(self._grants.pop(call), tokens)

    def close(self) -> None:
        self._place.close()


@pytest.mark.parametrize("arrivals", ARRIVALS, ids=lambda arrivals: arrivals.__name__)
def test_two_processes_stay_within_a_limit_and_refuse_no_call_that_fits(
    tmp_path: Path, arrivals: Arrivals, full: bool
) -> None:
    rng, limits = Random(1), paired_limits(40)
    gate = FileGate(tmp_path / "traces.db", rng, *limits)
    crowd = Crowd(gate, rng, *limits)
    for at in islice(arrivals(40, rng), 50_000 if full else 1_200):
        crowd.come(at)
    crowd.check()
    gate.close()


def test_a_call_that_waits_as_one_process_said_is_admitted_by_another(tmp_path: Path, full: bool) -> None:
    rng, at, refusals, limits = Random(1), FIRST, 0, paired_limits(20)
    gate = FileGate(tmp_path / "traces.db", rng, *limits)
    crowd = Crowd(gate, rng, *limits)
    while refusals < (5_000 if full else 200):
        asked = rng.choice((0, 100, 700, 30_000)), Caller("acme", key_id=rng.choice((None, "k")))
        refused = crowd.ask(at, *asked)
        if refused is not None:
            refusals += 1
            at += told(refused)
            assert crowd.ask(at, *asked) is None
        at += rng.random()
    gate.close()
