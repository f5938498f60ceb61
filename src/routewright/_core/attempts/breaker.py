"""Circuit breakers, one per model and one per credential (contract 4).

    CLOSED     fault that trips ──> OPEN          success ──> CLOSED, consecutive faults reset
               long Retry-After, or another process opened its circuit ──> OPEN until then
    OPEN       call, once due ────> HALF_OPEN     fault, late success ──> OPEN, perhaps due later
    HALF_OPEN  probe succeeds ────> CLOSED        probe fails ──> OPEN, for longer   probe abandoned ──> OPEN, due now
               probe is lost ─────> HALF_OPEN, with a new probe

Only faults of the provider are reported here. Callers pass the time.
"""

from __future__ import annotations

from collections import defaultdict
from enum import StrEnum
from functools import partial
from math import inf

from .retry import WindowedCount
from .timeouts import ExecutionLimits

WINDOW_S = 30  # seconds over which the share of faults is computed, the current one included
WINDOW_LEAST = 20  # calls in the window needed for a share
WINDOW_SHARE = 0.5
LONGER = 1.5  # factor of the open time after a failed probe
LONGEST_RETRY_AFTER_S = 300.0


class State(StrEnum):
    """The state of a circuit."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    """One call probes."""


class Circuit:
    """One circuit. Times are monotonic seconds. Methods that may change its state return True if they did."""

    __slots__ = ("_calls", "_in_a_row", "_limits", "_open_s", "_probed_at", "_retry_at", "due", "state")

    def __init__(self, limits: ExecutionLimits) -> None:
        self._limits = limits
        self.state: State
        self.due: float  # when a circuit that is not closed admits a call
        self._open_s: float
        self._probed_at: float
        self._retry_at: float  # the latest Retry-After since it opened; a shorter one does not replace it
        self._close()

    def admits(self, now: float) -> bool:
        """True if a call may be made. A call admitted by a circuit that is not closed is its probe; report its end."""
        if self.state is State.CLOSED:
            return True
        if now < self.due:
            return False
        self.state = State.HALF_OPEN
        self._probed_at = now
        self.due = now + self._limits.longest_open_s  # a lost probe is replaced then
        return True

    def record_success(self, now: float, *, probe: bool, count: int = 1) -> bool:
        """Record answers. In a circuit that is not closed only a probe's counts: other calls began before it opened."""
        if self.state is State.CLOSED:
            self._in_a_row = 0
            self._calls.add(int(now), count=count)
            return False
        if probe:
            self._close()
        return probe

    def record_fault(
        self,
        now: float,
        *,
        probe: bool = False,
        retry_after: float | None = None,
        at_once: bool = False,
        alone: bool = False,
    ) -> bool:
        """Record a fault. ``at_once``: it opens the circuit by itself. ``alone``: the Retry-After is too long to wait
        for, so it applies to all calls."""
        # Faults come in late: of calls that began before the circuit opened, and of probes that hang until their
        # timeout. A plain counter would let each of them open the circuit anew and keep a healthy model away for
        # minutes. So in a circuit that is not closed only the probe's verdict counts, and a failed probe opens it from
        # the time the probe began. What a late fault may still do is to bring a longer Retry-After (contract 4: the
        # model is left alone until it has passed). ``test_random_histories_agree_with_a_reference_model`` runs both
        # against the contract in its own words; ``test_a_flapping_provider_is_back_in_service_within_sixteen_seconds``
        # is what it is for.
        retry_at = now + min(retry_after or 0.0, LONGEST_RETRY_AFTER_S)
        if self.state is State.CLOSED:
            self._in_a_row += 1
            self._calls.add(int(now), bad=1)
            calls = self._calls
            is_bad_share = calls.total >= WINDOW_LEAST and calls.bad >= WINDOW_SHARE * calls.total
            is_tripped = at_once or is_bad_share or self._in_a_row >= self._limits.open_after
            if not is_tripped and not (alone and retry_at > now):
                return False
            self._retry_at = retry_at
            self._open(now, self._open_s if is_tripped else 0.0)
            return True
        self._retry_at = max(self._retry_at, retry_at)
        if self.state is State.HALF_OPEN and probe:
            self._open_s = min(self._open_s * LONGER, self._limits.longest_open_s)
            # counted from the probe's start, so that a hanging probe does not add its own time
            self._open(self._probed_at, self._open_s)
            return True
        is_later = retry_at > self.due
        self.due = max(self.due, retry_at)
        return is_later

    def open_for(self, now: float, seconds: float) -> bool:
        """Open because another process did, for this long. Then this process probes by itself."""
        if self.state is not State.CLOSED:
            return False
        self._open(now, min(seconds, LONGEST_RETRY_AFTER_S))
        return True

    def abandon_probe(self, now: float) -> bool:
        """Record that the probe was abandoned. Another may start at once."""
        if self.state is not State.HALF_OPEN:
            return False
        self._open(now, 0.0)
        return True

    def is_refusing(self, now: float) -> bool:
        """True if calls are refused now."""
        return self.state is not State.CLOSED and now < self.due

    def _open(self, now: float, seconds: float) -> None:
        self.state = State.OPEN
        self.due = max(now + seconds, self._retry_at)

    def _close(self) -> None:
        self.state = State.CLOSED
        self.due = self._retry_at = -inf
        self._open_s = min(self._limits.open_s, self._limits.longest_open_s)
        self._in_a_row = 0
        self._calls = WindowedCount(WINDOW_S)


class Circuits:
    """The circuits of all models and their providers' credentials. Use it under a lock; ``tripped`` may be read
    without."""

    def __init__(self, providers: list[str], limits: ExecutionLimits) -> None:
        self._providers = providers  # the provider's name of each row
        self._models = defaultdict[int, Circuit](partial(Circuit, limits))
        self._credentials = defaultdict[str, Circuit](partial(Circuit, limits))
        self.tripped: frozenset[int] = frozenset()  # rows with a circuit that is not closed

    def admits(self, row: int, now: float) -> bool:
        """True if both the model's and the credential's circuits admit a call. A row in ``tripped`` is then probed."""
        circuits = self._of(row)
        if any(circuit.is_refusing(now) for circuit in circuits):
            return False
        for circuit in circuits:
            circuit.admits(now)
        return True

    def due(self, row: int) -> float:
        """The time from which a model may be called again."""
        return max((circuit.due for circuit in self._of(row)), default=-inf)

    def record_success(self, row: int, now: float, *, probe: bool, count: int = 1) -> bool:
        """Record one or more answers of a model; True if a circuit changed, which only a probe can do."""
        has_changed = self._models[row].record_success(now, probe=probe, count=count)
        if (credential := self._credentials.get(self._providers[row])) is not None:
            has_changed |= credential.record_success(now, probe=probe, count=count)
        return self._retrip(has_changed)

    def record_fault(
        self,
        row: int,
        now: float,
        *,
        probe: bool,
        retry_after: float | None = None,
        credential: bool = False,
        alone: bool = False,
    ) -> bool:
        """Record a fault of a model, or of its ``credential``; True if a circuit changed."""
        # A call passes two circuits, but its fault speaks about one: a revoked key does not make the model ill
        # (``test_a_refused_credential_does_not_count_against_the_probed_model``), and a model's error says nothing of
        # the key. If the call was a probe, the other circuit waits for a verdict that never comes. To count it as a
        # failure would keep the model away for longer, to forget it would let nobody in until the probe counts as
        # lost. It is abandoned: another call may probe at once (``test_a_models_fault_frees_the_credentials_probe``).
        if credential:
            other = self._models.get(row)
            circuit = self._credentials[self._providers[row]]
            has_changed = circuit.record_fault(now, probe=probe, retry_after=retry_after, at_once=True)
        else:
            other = self._credentials.get(self._providers[row])
            has_changed = self._models[row].record_fault(now, probe=probe, retry_after=retry_after, alone=alone)
        if probe and other is not None and other.abandon_probe(now):  # the probe says nothing about it
            has_changed = True
        return self._retrip(has_changed)

    def is_tripped(self, row: int, *, credential: bool) -> bool:
        """True if the model's circuit, or its credential's, is not closed."""
        circuit = self._credentials.get(self._providers[row]) if credential else self._models.get(row)
        return circuit is not None and circuit.state is not State.CLOSED

    def open_for(self, row: int, now: float, seconds: float) -> bool:
        """Open a model's circuit because another process did; True if it changed."""
        return self._retrip(self._models[row].open_for(now, seconds))

    def abandon_probe(self, row: int, now: float) -> bool:
        """Record that a probe was abandoned; True if a circuit changed."""
        changes = [circuit.abandon_probe(now) for circuit in self._of(row)]
        return self._retrip(any(changes))

    def find_refusing(self, now: float) -> dict[int, float]:
        """Rows whose circuits refuse calls, with the time until when."""
        return {row: self.due(row) for row in sorted(self.tripped) if any(c.is_refusing(now) for c in self._of(row))}

    def _of(self, row: int) -> list[Circuit]:
        circuits = self._models.get(row), self._credentials.get(self._providers[row])
        return [circuit for circuit in circuits if circuit is not None]

    def _retrip(self, has_changed: bool) -> bool:
        # Every attempt reads ``tripped`` without the lock, so the set is made anew and never changed. It is made from
        # all rows: to add or drop the one that was reported would miss the other models of a credential, and would
        # drop a model whose credential is still open (``test_a_probed_model_stays_tripped_when_another_circuit_moves``,
        # ``test_a_successful_probe_admits_all_models_of_the_credential``). Circuits change rarely enough for that.
        if has_changed:
            self.tripped = frozenset(
                row
                for row in range(len(self._providers))
                if any(circuit.state is not State.CLOSED for circuit in self._of(row))
            )
        return has_changed
