"""The wait queue: who waits, in which order, and the cost of waiting."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.accounts import wait_queue
from routewright._core.accounts.holds import Hold, Wait
from routewright._core.accounts.wait_queue import MOST_TRIED, WaitQueue
from routewright._core.idempotency import scope_of
from routewright.errors import RateLimited
from routewright.wire import Ask, Caller, Grant, Replay, Short
from tests.contracts.storage.samples import MONTH, make_ask
from tests.tables import table

from .account_state import Ledger, one

ACCOUNT = ("acme", "account")
KEY = scope_of(Caller("acme"), "i")


class Asked:
    """An ask and its answer."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.result: Grant | Replay | Short | None = None
        self.error: Exception | None = None
        self.waits: Wait | None = None
        self.takes = False


class Queue:
    """Calls that wait in a ledger, and what was tried."""

    def __init__(self, **terms: Any) -> None:
        self.ledger = Ledger(**{"prepaid": True} | terms)
        self.ledger.credit(1_000)
        self.waiting: WaitQueue[Asked] = WaitQueue(self.ledger.state, self.ledger.owner)
        self.asked: dict[str, Asked] = {}
        self.tried: list[str] = []
        self.fails = ""
        self._admit = self.ledger.state.admit
        self.ledger.state.admit = self._try  # type: ignore[method-assign]

    def ask(self, call: str, nanos: int, *, waits_s: float = 60.0, **given: Any) -> object:
        asked = self.make(call, nanos, waits_s=waits_s, **given)
        self.waiting.admit(asked, self.ledger.time)
        self.waiting.answered.clear()
        self.tried.clear()
        return asked.error or asked.result or asked.waits

    def make(self, call: str, nanos: int, **given: Any) -> Asked:
        self.asked[call] = Asked(make_ask(call, nanos, **{"at": self.ledger.time} | given))
        return self.asked[call]

    def leave(self, call: str) -> None:
        self.waiting.leave(self.asked[call])

    def again(self) -> list[str]:
        """Try those who can be given something, and say who needs not wait any more."""
        return [call for call, _ in self.found()]

    def found(self) -> list[tuple[str, Any]]:
        self.waiting.retry(self.ledger.time)
        return self.taken()

    def taken(self) -> list[tuple[str, Any]]:
        """Those that were answered."""
        answered, self.waiting.answered = self.waiting.answered, []
        return [(each.ask.id, each.error or each.result) for each in answered]

    def _try(self, ask: Ask, owner: int, now: float) -> Hold | Replay | Wait | Short:
        if ask.id == self.fails:
            raise OSError(ask.id)
        self.tried.append(ask.id)
        return self._admit(ask, owner, now)


def test_a_failing_try_loses_no_waiting_call() -> None:
    queue = Queue()
    queue.ask("first", 1_000)
    for call in "abc":
        assert isinstance(queue.ask(call, 300), Wait)
    queue.ledger.release("first")
    queue.fails = "b"
    with pytest.raises(OSError, match="b"):
        queue.again()
    assert [call for call, _ in queue.taken()] == ["a"]
    assert len(queue.waiting) == 2
    queue.fails = ""
    assert queue.again() == ["b", "c"]


def test_the_tries_of_one_retry_are_bounded() -> None:
    queue = Queue()
    queue.ask("first", 1_000)
    for number in range(3 * MOST_TRIED):
        queue.ask(f"c{number}", 1)
    queue.ledger.release("first")
    for _ in range(3):
        assert len(queue.again()) == MOST_TRIED
    assert (queue.again(), queue.ledger.state.freed) == ([], {})


@table("order", [("a", "b"), ("b", "a")])
def test_two_calls_that_wait_for_each_others_purses_do_not_deadlock(order: tuple[str, str]) -> None:
    queue = Queue(monthly_nanos=1_000)
    queue.ask("first", 1_000)
    names = {"a": ACCOUNT, "b": ("acme", MONTH)}
    for call in order:
        queue.waiting.wait(queue.make(call, 400, waits_s=60.0), Wait(names[call], None))
    queue.ledger.release("first")
    assert {*queue.again()} == {"a", "b"}
    assert queue.ledger.state.freed == {}


def test_a_call_is_refused_if_the_queue_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_queue, "MOST_WAITING", 1)
    queue = Queue()
    queue.ask("first", 0, claim=one())
    assert isinstance(queue.ask("a", 0, claim=one()), Wait)
    assert isinstance(queue.ask("b", 0, claim=one()), RateLimited)


def test_a_repeated_ask_of_a_running_call_does_not_take_its_hold() -> None:
    queue = Queue()
    for nanos in (300, 400):
        assert isinstance(queue.ask("c", nanos), Grant)
        assert queue.asked["c"].takes is (nanos == 300)


@given(st.randoms(use_true_random=False))
def test_no_call_waits_needlessly_and_none_is_overtaken(rng: Random) -> None:
    queue, line, holds = Queue(), list[tuple[str, int]](), dict[str, int]()
    for number in range(60):
        if rng.random() < 0.5 or not holds:
            call, nanos = f"c{number}", rng.choice((50, 200, 500, 900))
            found = queue.ask(call, nanos)
            assert isinstance(found, Wait) == bool(line or sum(holds.values()) + nanos > 1_000)
            if isinstance(found, Wait):
                line.append((call, nanos))
            else:
                holds[call] = nanos
        elif line and rng.random() < 0.2:
            gone = line.pop(rng.randrange(len(line)))
            queue.leave(gone[0])
        else:
            call = rng.choice([*holds])
            queue.ledger.release(call)
            del holds[call]
        expected = list[str]()
        while line and sum(holds.values()) + line[0][1] <= 1_000:
            call, nanos = line.pop(0)
            holds[call] = nanos
            expected.append(call)
        assert queue.again() == expected
        assert len(queue.waiting) == len(line)
