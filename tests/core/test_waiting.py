"""Who waits, in which order, and what waiting costs."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.accounts.hold import Hold
from routewright._core.accounts.state import Wait, scope_of
from routewright._core.accounts.waiting import MOST_TRIED, Waiting
from routewright.testing.storage.samples import MONTH, RUN, make_row
from routewright.wire import Caller, Replay, Short

from .ledgers import Ledger, one

ACCOUNT = ("acme", "account")
KEY = scope_of(Caller("acme"), "i")


class Queue:
    """Calls that wait in a ledger, and what was tried."""

    def __init__(self, **terms: Any) -> None:
        self.ledger = Ledger(**{"prepaid": True} | terms)
        self.ledger.credit(1_000)
        self.waiting: Waiting[str] = Waiting(self.ledger.state)
        self.asks: dict[str, tuple[int, dict[str, Any]]] = {}
        self.tried: list[str] = []
        self.fails = ""

    def ask(self, call: str, nanos: int, **given: Any) -> object:
        found = self.ledger.ask(call, nanos, **given)
        if isinstance(found, Wait):
            self.asks[call] = nanos, given
            self.waiting.join(call, found.on)
        return found

    def again(self) -> list[str]:
        """Try those who can be given something, and say who needs not wait any more."""
        return [call for call, _ in self.found()]

    def found(self) -> list[tuple[str, Any]]:
        answered: list[tuple[str, Any]] = []
        self.waiting.retry(self._try, lambda call, found: answered.append((call, found)))
        return answered

    def _try(self, call: str) -> object:
        if call == self.fails:
            raise OSError(call)
        self.tried.append(call)
        nanos, given = self.asks[call]
        return self.ledger.ask(call, nanos, **given)


def test_a_try_that_fails_loses_nobody_who_waits() -> None:
    queue = Queue()
    queue.ask("first", 1_000)
    for call in "abc":
        assert isinstance(queue.ask(call, 300), Wait)
    queue.ledger.release("first")
    queue.fails = "b"
    answered: list[str] = []
    with pytest.raises(OSError, match="b"):
        queue.waiting.retry(queue._try, lambda call, found: answered.append(call))
    assert answered == ["a"]
    assert len(queue.waiting) == 2
    queue.fails = ""
    assert queue.again() == ["b", "c"]


def test_those_who_wait_get_what_is_freed_in_their_order_as_far_as_it_goes() -> None:
    queue = Queue()
    queue.ask("first", 1_000)
    for call, nanos in (("a", 600), ("b", 300), ("c", 200), ("d", 50)):
        assert isinstance(queue.ask(call, nanos), Wait)
    queue.ledger.release("first")
    assert queue.again() == ["a", "b"]
    assert queue.tried == ["a", "b", "c"], "d stands behind c, though there is room for it"
    assert len(queue.waiting) == 2
    queue.ledger.release("b")
    assert queue.again() == ["c", "d"]
    assert (len(queue.waiting), queue.ledger.state.queued) == (0, {})


def test_waiting_costs_nothing_until_something_is_freed_that_somebody_waits_for() -> None:
    queue = Queue(monthly_nanos=500)
    queue.ask("month", 450)
    queue.ask("a", 100)
    for number in range(100):
        queue.ledger.hold(f"c{number}", 0)
        queue.ledger.release(f"c{number}")
        assert queue.again() == []
    assert queue.tried == []
    assert queue.ledger.state.queued == {("acme", MONTH): 1}


def test_no_more_are_tried_at_a_time_than_others_can_wait_for() -> None:
    queue = Queue()
    queue.ask("first", 1_000)
    for number in range(3 * MOST_TRIED):
        queue.ask(f"c{number}", 1)
    queue.ledger.release("first")
    for _ in range(3):
        assert len(queue.again()) == MOST_TRIED
    assert (queue.again(), queue.ledger.state.freed) == ([], {})


def test_who_needs_two_purses_waits_for_one_after_the_other() -> None:
    queue = Queue(monthly_nanos=900)
    queue.ask("run", 800, run=RUN)
    queue.ask("other", 100)
    assert isinstance(queue.ask("a", 300, run=RUN), Wait)
    assert [*queue.ledger.state.queued] == [("acme", MONTH)], "it has the least left"
    queue.ledger.settle("run", make_row("run", charge=0, cost=650))
    assert queue.again() == ["a"]


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_two_who_wait_for_each_others_purses_both_go_on(order: tuple[str, str]) -> None:
    queue = Queue(monthly_nanos=1_000)
    queue.ask("first", 1_000)
    names = {"a": ACCOUNT, "b": ("acme", MONTH)}
    for call in order:
        queue.asks[call] = 400, {}
        queue.waiting.join(call, names[call])
    queue.ledger.release("first")
    assert {*queue.again()} == {"a", "b"}
    assert queue.ledger.state.freed == {}


def test_who_leaves_lets_those_behind_go_on() -> None:
    queue = Queue()
    queue.ask("first", 500)
    queue.ask("large", 600)
    queue.ask("small", 100)
    queue.waiting.leave("large")
    assert queue.again() == ["small"]
    queue.waiting.leave("large")
    assert (queue.tried, len(queue.waiting), queue.ledger.state.freed) == (["small"], 0, {})


def test_all_who_wait_for_a_key_get_its_answer_or_the_first_goes_on() -> None:
    queue = Queue()
    queue.ask("first", 0, claim=one())
    for number in range(5):
        queue.ask(f"c{number}", 0, claim=one())
    assert [*queue.ledger.state.queued] == [KEY]
    queue.ledger.release("first")
    ((call, found),) = queue.found()
    assert (call, isinstance(found, Hold)) == ("c0", True)
    queue.ledger.settle("c0", claim=one(), result=b"x")
    assert queue.found() == [(f"c{number}", Replay(b"x")) for number in range(1, 5)]


def test_who_waits_for_what_was_spent_meanwhile_is_told_so() -> None:
    queue = Queue()
    queue.ask("first", 1_000)
    queue.ask("a", 300)
    queue.ledger.settle("first", make_row("first", charge=900))
    ((_, found),) = queue.found()
    assert isinstance(found, Short)
    assert not found.waits


@given(st.randoms(use_true_random=False))
def test_nobody_waits_though_there_is_room_and_nobody_is_overtaken(rng: Random) -> None:
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
            queue.waiting.leave(gone[0])
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
