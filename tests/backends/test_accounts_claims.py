"""Idempotency keys: one running call or one stored answer per key for a day, billed once, in any order of events."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from routewright.backends.storage.memory import accounts as memory
from routewright.errors import IdempotencyKeyReused, RouterTimeoutError
from routewright.protocols import Accounts, LimitingStorage
from routewright.wire import Caller, Claim, DeleteResults, Environment, Grant, LedgerRows, Replay
from tests.contracts.storage.samples import DAY_S, make_ask, make_facts, make_row

from .places import KINDS, LEASE_S, Place, at_once, tills_of

ENVIRONMENTS: tuple[Environment, ...] = ("production", "sandbox")
ACCOUNTS = ("acme", "other")
CHARGE = 5

Scope = tuple[str, Environment, str]
SCOPES: list[Scope] = list(product(ACCOUNTS, ENVIRONMENTS, ("k1", "k2")))
scopes, fingerprints = st.sampled_from(SCOPES), st.sampled_from(("f", "f", "g"))
processes = st.integers(0, 1)


@dataclass
class Call:
    """One that was admitted under a key."""

    id: str
    scope: Scope
    fingerprint: str
    grant: Grant
    process: int
    ends_at: float
    state: Literal["runs", "lost", "ended"] = "runs"
    charged: int | None = None

    @property
    def caller(self) -> Caller:
        return Caller(self.scope[0], self.scope[1])

    @property
    def claim(self) -> Claim:
        return Claim(self.scope[2], self.fingerprint)


@dataclass
class Answer:
    """One that is kept."""

    call: Call
    result: bytes
    until: float


class Machine(RuleBasedStateMachine):
    """Two accounts with two environments each, and who has their keys in dicts."""

    kind: ClassVar[str]
    path: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self.place = Place(self.kind, self.path)
        self.clock = self.place.clock
        self.running: dict[Scope, Call] = {}
        self.answers: dict[Scope, Answer] = {}
        self.calls: list[Call] = []

    # The model

    def answer(self, scope: Scope) -> Answer | None:
        """What is kept under a key, if that is not a day ago."""
        found = self.answers.get(scope)
        return found if found is not None and self.clock.time() < found.until else None

    def expected(self, scope: Scope, fingerprint: str) -> object:
        """What an ask comes to, by the kind of its answer or as a replay. None: it is admitted."""
        running, kept = self.running.get(scope), self.answer(scope)  # both: the wall clock was set back
        of = running or (None if kept is None else kept.call)
        if of is None:
            return None
        if of.fingerprint != fingerprint:
            return IdempotencyKeyReused
        return RouterTimeoutError if running is not None or kept is None else Replay(kept.result)

    def lose(self, *, of: set[int]) -> None:
        """The calls of some processes are lost."""
        for scope, call in [*self.running.items()]:
            if call.process in of:
                call.state = "lost"
                del self.running[scope]

    # What happens

    @rule(scope=scopes, fingerprint=fingerprints, process=processes)
    def ask(self, scope: Scope, fingerprint: str, process: int) -> None:
        self._ask(f"c{len(self.calls)}", scope, fingerprint, process)

    @precondition(lambda self: any(call.state == "lost" and call.charged is None for call in self.calls))
    @rule(data=st.data(), process=processes)
    def ask_again_after_a_loss(self, data: st.DataObject, process: int) -> None:
        lost = [call for call in self.calls if call.state == "lost" and call.charged is None]
        call = data.draw(st.sampled_from(lost))
        if self._ask(call.id, call.scope, call.fingerprint, process):
            self.calls.remove(call)

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), process=processes, succeeds=st.booleans())
    def settle(self, data: st.DataObject, process: int, succeeds: bool) -> None:
        """End any call, perhaps by another process, perhaps once more, perhaps after it was lost."""
        call = data.draw(st.sampled_from(self.calls))
        result, there, kept = call.id.encode() if succeeds else None, self.running.get(call.scope), None
        if there is call:
            del self.running[call.scope]
            there = None
        else:
            kept = self.answer(call.scope)
        is_void = succeeds and (there is not None or (kept is not None and kept.call is not call))
        if call.charged is None:
            call.charged = 0 if is_void else CHARGE
        if result is not None and there is None and kept is None:
            self.answers[call.scope] = Answer(call, result, self.clock.time() + DAY_S)
        call.state = "ended"
        facts = make_facts(
            call.id, make_row(call.id, charge=CHARGE), caller=call.caller, claim=call.claim, result=result
        )
        at_once(self._accounts(process).settle(call.grant, facts))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), process=processes)
    def release(self, data: st.DataObject, process: int) -> None:
        call = self.running.pop(data.draw(st.sampled_from([*self.running])))
        call.state = "ended"
        self._accounts(process).release(call.grant)

    @rule(account=st.sampled_from(ACCOUNTS), environment=st.none() | st.sampled_from(ENVIRONMENTS))
    def delete_results(self, account: str, environment: Environment | None) -> None:
        gone = [scope for scope in self.answers if scope[0] == account and environment in (None, scope[1])]
        for scope in gone:
            del self.answers[scope]
        (written,) = at_once(self.place.processes[0].apply(account, [DeleteResults(environment)]))
        assert written.count == len(gone)

    # Time

    @rule(seconds=st.sampled_from((1.0, LEASE_S / 2 - 1.0)))
    def wait(self, seconds: float) -> None:
        self.place.pause(seconds)

    @rule(seconds=st.sampled_from((LEASE_S + 1.0, DAY_S - LEASE_S, DAY_S - 1.0, DAY_S)), process=processes)
    def all_are_silent_for_longer_than_a_lease_but_one(self, seconds: float, process: int) -> None:
        self.clock.now += seconds
        self.place.touch(self._process(process))
        if self.place.is_shared:
            self.lose(of={1 - process})

    @rule(seconds=st.sampled_from((-DAY_S, -1.0, 3_600.0)))
    def set_the_time(self, seconds: float) -> None:
        self.clock.step_s += seconds

    @rule(process=processes)
    def die(self, process: int) -> None:
        self.place.die(process % len(self.place.processes))
        for _ in range(3):
            self.place.pause(LEASE_S / 2)
        if self.place.is_shared:
            self.lose(of={process})

    @rule()
    def sweep(self) -> None:
        self.place.sweep()
        for scope in [scope for scope in self.answers if self.answer(scope) is None]:
            del self.answers[scope]
        if not self.place.is_shared:
            for call in [call for call in self.running.values() if call.ends_at < self.clock.now - LEASE_S]:
                call.state = "lost"
                del self.running[call.scope]

    # What has to be seen

    @invariant()
    def all_processes_agree_on_each_key(self) -> None:
        for number, scope in enumerate(SCOPES):
            found = self._outcome("probe", scope, "f", number)
            expected = self.expected(scope, "f")
            if isinstance(found, Grant):
                assert expected is None, f"{scope} is not free"
                self._accounts(number).release(found)
            else:
                assert found == expected, scope

    def teardown(self) -> None:
        for account in ACCOUNTS:
            rows = at_once(self.place.processes[0].scan(account, LedgerRows(), after=None, limit=1_000))
            charged = {call.id: call.charged for call in self.calls if call.scope[0] == account}
            assert {row.request_id: row.charge_nanos for row in rows} == {
                name: nanos for name, nanos in charged.items() if nanos is not None
            }
            assert len(rows) == len({row.request_id for row in rows}), "each is billed once"
        self.place.close()

    def _ask(self, name: str, scope: Scope, fingerprint: str, process: int) -> bool:
        expected, found = self.expected(scope, fingerprint), self._outcome(name, scope, fingerprint, process)
        if not isinstance(found, Grant):
            assert found == expected
            return False
        assert expected is None, f"{scope} is not free"
        call = Call(name, scope, fingerprint, found, process, self.clock.now + self.place.lasts_s)
        self.running[scope] = call
        self.calls.append(call)
        return True

    def _outcome(self, name: str, scope: Scope, fingerprint: str, process: int) -> object:
        claim, caller = Claim(scope[2], fingerprint), Caller(scope[0], scope[1])
        ask = make_ask(name, caller=caller, claim=claim, at=self.clock.time(), lasts_s=self.place.lasts_s)
        try:
            return at_once(self._accounts(process).admit(ask))
        except (IdempotencyKeyReused, RouterTimeoutError) as error:
            return type(error)

    def _process(self, number: int) -> LimitingStorage:
        return self.place.processes[number % len(self.place.processes)]

    def _accounts(self, number: int) -> Accounts:
        return self._process(number).accounts


@pytest.mark.parametrize("kind", KINDS)
def test_an_idempotency_key_never_has_two_calls_or_answers(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    monkeypatch.setattr(memory, "TIDY_EVERY", 10**9)  # only a sweep takes what is overdue
    machine = type("Placed", (Machine,), {"kind": kind, "path": tmp_path / "traces.db"})
    chosen = settings(
        max_examples=2_000 if full else 12, stateful_step_count=50 if full else 25, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_removes_expired_answers_after_the_clock_was_set_back(kind: str, tmp_path: Path) -> None:
    place = Place(kind, tmp_path / "traces.db")
    till = tills_of(place, "acme")[0]
    for key, step_s in (("first", 0.0), ("second", -DAY_S)):
        place.clock.step_s = step_s
        at_once(till.admit(key, same=key))
        at_once(till.settle(key, result=b"answer"))
    now = place.clock.time() + DAY_S
    assert [at_once(till.storage.sweep(each)) for each in (now - 1.0, now, now + DAY_S)] == [0, 1, 1]
    place.close()
