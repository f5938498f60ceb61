"""The circuit breaker: a reference model over thousands of random histories, and what its numbers are."""

from __future__ import annotations

from math import inf
from random import Random

from routewright._core.attempts.breaker import Circuit, Circuits, State
from routewright._core.attempts.timeouts import ExecutionLimits
from tests.tables import table

LIMITS = ExecutionLimits()


class Reference:
    """Contract 4 in its own words: all that was told is kept with its time, and counted anew whenever it matters."""

    def __init__(self) -> None:
        self._close()

    def _close(self) -> None:
        self.state = "closed"
        self.told: list[tuple[float, bool]] = []  # since it closed: when, and whether it was a fault
        self.opened: list[float] = []  # since it closed: when it opened, and opened again
        self.asked: list[float] = []  # since it opened: until when a provider asked to be left alone
        self.ready = -inf
        self.probed = inf  # when the probe that is under way began

    @property
    def due(self) -> float:
        return -inf if self.state == "closed" else max(self.ready, *self.asked)

    def ask(self, now: float) -> bool:
        if self.state == "closed":
            return True
        if now < self.due:
            return False
        self.state, self.ready, self.probed = "half_open", now + 15, now  # one probe; a lost one is replaced
        return True

    def success(self, now: float, *, probe: bool) -> None:
        if self.state == "closed":
            self.told.append((now, False))
        elif probe:
            self._close()

    def fault(self, now: float, *, probe: bool, retry_after: float | None, alone: bool) -> None:
        until = now + min(retry_after or 0, 300)
        if self.state == "closed":
            self.told.append((now, True))
            if self._trips(now):
                self._open(now, until)
            elif alone and until > now:
                self.opened.append(now)
                self.asked.append(until)
                self.state, self.ready = "open", now
        elif self.state == "half_open" and probe:
            self._open(self.probed, until)  # the provider had that long to get well
        else:
            self.asked.append(until)

    def left(self, now: float) -> None:
        if self.state == "half_open":
            self.state, self.ready = "open", now

    def _trips(self, now: float) -> bool:
        lately = [fault for at, fault in self.told if int(at) > int(now) - 30]
        in_a_row = [fault for _, fault in self.told[-5:]] == [True] * 5
        return in_a_row or (len(lately) >= 20 and sum(lately) >= 0.5 * len(lately))

    def _open(self, now: float, until: float) -> None:
        self.opened.append(now)
        self.asked.append(until)
        self.state, self.ready = "open", now + (10 if len(self.opened) == 1 else 15)


def test_random_histories_agree_with_a_reference_model(full: bool) -> None:
    seen: set[str] = set()
    for seed in range(5_000 if full else 170):
        seen |= play(Random(seed))
    assert seen == {"closed", "open", "half_open"}


def play(chance: Random) -> set[str]:
    """One random history of one circuit and its model; the states that it came through."""
    circuit, model, now = Circuit(LIMITS), Reference(), chance.choice([0.0, 0.9, 12_345.678])
    weights = [chance.choice([1, 4, 10]) for _ in range(5)]
    patience, seen = chance.choice([0.05, 0.5, 5.0]), set()
    for _ in range(chance.randint(5, 90)):
        what = chance.choices(["ask", "success", "fault", "left", "wait"], weights)[0]
        probe, before = chance.random() < 0.5, (circuit.state, circuit.due)
        moved = None
        match what:
            case "ask":
                assert circuit.admits(now) == model.ask(now)
            case "success":
                moved = circuit.record_success(now, probe=probe)
                model.success(now, probe=probe)
            case "fault":
                asked_s = chance.choice([None, None, None, 0.0, 3.0, 40.0, 1e9])
                alone = chance.random() < 0.5
                moved = circuit.record_fault(now, probe=probe, retry_after=asked_s, alone=alone)
                model.fault(now, probe=probe, retry_after=asked_s, alone=alone)
            case "left":
                moved = circuit.abandon_probe(now)
                model.left(now)
            case _:
                now += chance.choice([patience * chance.random(), 1.0, 10.0, 15.0, 29.0, 300.0, 1e6])
        assert (circuit.state, circuit.due) == (model.state, model.due)
        assert circuit.is_refusing(now) == (model.state != "closed" and now < model.due)
        assert moved is None or moved == ((circuit.state, circuit.due) != before)
        seen.add(str(circuit.state))
    return seen


# --- its numbers


def opened(retry_after: float | None = None, limits: ExecutionLimits = LIMITS) -> Circuit:
    """A circuit that opened at 0."""
    circuit = Circuit(limits)
    for _ in range(limits.open_after):
        circuit.record_fault(0.0, retry_after=retry_after)
    assert circuit.state is State.OPEN
    return circuit


def test_five_faults_in_a_row_open_it_and_four_do_not() -> None:
    circuit = Circuit(LIMITS)
    assert [circuit.record_fault(1_000.0 * n) for n in range(5)] == [False] * 4 + [True]
    assert circuit.state is State.OPEN


@table(("calls", "faults", "opens"), [(20, 10, True), (20, 9, False), (19, 12, False)])
def test_half_of_twenty_calls_in_thirty_seconds_open_it(calls: int, faults: int, opens: bool) -> None:
    circuit, now = Circuit(LIMITS), 0.0
    spread = [n * faults // calls != (n + 1) * faults // calls for n in range(calls)]
    for fault in spread:
        now += 29.0 / calls
        circuit.record_fault(now) if fault else circuit.record_success(now, probe=False)
    assert (circuit.state is State.OPEN) is opens


def test_the_longest_open_time_limits_the_first() -> None:
    assert opened(limits=ExecutionLimits(open_s=20.0, longest_open_s=5.0)).due == 5.0


@table(("asked_s", "due"), [(3.0, 3.0), (40.0, 40.0), (86_400.0, 300.0)])
def test_a_retry_after_too_long_to_wait_for_opens_the_circuit(asked_s: float, due: float) -> None:
    circuit = Circuit(LIMITS)
    assert circuit.record_fault(0.0, retry_after=asked_s, alone=True)
    assert (circuit.state, circuit.due) == (State.OPEN, due)
    for told in ({"alone": True}, {"retry_after": 0.0, "alone": True}, {"retry_after": asked_s}):
        assert not Circuit(LIMITS).record_fault(0.0, **told)


def test_a_decisive_fault_opens_the_circuit_at_once() -> None:
    circuit = Circuit(LIMITS)
    assert circuit.record_fault(0.0, at_once=True)
    assert circuit.due == 10.0


# --- models and credentials

A_ONE, A_TWO, B_ONE = range(3)


def circuits() -> Circuits:
    return Circuits(["a", "a", "b"], LIMITS)


def break_model(both: Circuits, row: int, now: float = 0.0) -> Circuits:
    for _ in range(5):
        both.record_fault(row, now, probe=False)
    return both


def test_a_refused_credential_stops_all_models_of_its_provider_only() -> None:
    both = circuits()
    assert both.record_fault(A_TWO, 0.0, probe=False, credential=True)
    assert both.tripped == {A_ONE, A_TWO}
    assert [both.admits(row, 9.9) for row in range(3)] == [False, False, True]
    assert [both.admits(row, 10.0) for row in range(3)] == [True, False, True], "one probe of the credential"


def test_model_and_credential_must_both_admit_a_call() -> None:
    both = break_model(circuits(), A_ONE)
    both.record_fault(A_ONE, 5.0, probe=False, credential=True)
    assert both.due(A_ONE) == 15.0
    assert not both.admits(A_ONE, 10.0)
    assert both.admits(A_ONE, 15.0)
    assert both.record_success(A_ONE, 16.0, probe=True)
    assert both.tripped == frozenset()


def test_a_refused_probe_does_not_use_up_the_other_circuits_probe() -> None:
    both = break_model(circuits(), A_ONE)
    both.record_fault(A_TWO, 5.0, probe=False, credential=True)
    assert not both.admits(A_ONE, 12.0)
    assert both.admits(A_TWO, 15.0)
    both.record_success(A_TWO, 15.5, probe=True)
    assert both.admits(A_ONE, 15.5)


def test_a_refused_credential_does_not_count_against_the_probed_model() -> None:
    both = break_model(circuits(), A_ONE)
    both.record_fault(A_TWO, 0.0, probe=False, credential=True)
    both.admits(A_ONE, 10.0)
    both.record_fault(A_ONE, 11.0, probe=True, credential=True)
    assert both.due(A_TWO) == 25.0, "the credential stays open for longer"
    assert both.admits(A_ONE, 26.0)
    both.record_success(A_ONE, 26.5, probe=True)
    break_model(both, A_ONE, now=27.0)
    assert both.due(A_ONE) == 37.0, "its own circuit never had a probe that failed"


def test_a_probe_whose_credential_is_refused_is_over() -> None:
    both = break_model(circuits(), A_ONE)
    assert both.admits(A_ONE, 10.0)
    assert both.record_fault(A_ONE, 10.5, probe=True, credential=True)
    assert both.due(A_ONE) == 20.5, "once the credential may be asked, the model may"


def test_a_successful_probe_admits_all_models_of_the_credential() -> None:
    both = circuits()
    both.record_fault(A_TWO, 0.0, probe=False, credential=True)
    assert both.admits(A_ONE, 10.0)
    assert both.record_success(A_ONE, 10.5, probe=True)
    assert both.tripped == frozenset()


def test_a_probed_model_stays_tripped_when_another_circuit_moves() -> None:
    both = break_model(circuits(), A_ONE)
    assert both.admits(A_ONE, 10.0)
    break_model(both, B_ONE, now=10.5)
    assert both.tripped == {A_ONE, B_ONE}


def test_a_late_credential_refusal_starts_no_second_probe() -> None:
    both = break_model(circuits(), A_ONE)
    assert both.admits(A_ONE, 10.0)
    both.record_fault(A_ONE, 10.5, probe=False, credential=True)
    assert both.due(A_ONE) == 25.0, "the first is still under way"


def test_a_models_fault_frees_the_credentials_probe() -> None:
    both = circuits()
    both.record_fault(A_ONE, 0.0, probe=False, credential=True)
    both.admits(A_ONE, 10.0)
    assert both.record_fault(A_ONE, 11.0, probe=True)
    assert both.tripped == {A_ONE, A_TWO}
    assert both.admits(A_TWO, 11.0)


def test_an_abandoned_probe_frees_both_circuits() -> None:
    both = break_model(circuits(), A_ONE)
    both.record_fault(A_ONE, 0.0, probe=False, credential=True)
    assert both.admits(A_ONE, 10.0)
    assert not both.admits(A_TWO, 10.0)
    assert both.abandon_probe(A_ONE, 11.0)
    assert both.admits(A_TWO, 11.0)


def test_refused_models_are_listed_with_their_due_time() -> None:
    both = circuits()
    assert both.find_refusing(0.0) == {}
    break_model(both, B_ONE)
    both.record_fault(A_ONE, 2.0, probe=False, credential=True)
    assert both.find_refusing(3.0) == {A_ONE: 12.0, A_TWO: 12.0, B_ONE: 10.0}
    assert both.find_refusing(10.0) == {A_ONE: 12.0, A_TWO: 12.0}
    assert both.find_refusing(12.0) == {}
    assert both.tripped == {A_ONE, A_TWO, B_ONE}, "none is closed before its probe succeeds"
    both.admits(B_ONE, 12.0)
    assert both.find_refusing(12.0) == {B_ONE: 27.0}, "nobody else goes while it is probed"
