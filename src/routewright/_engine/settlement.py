"""Settlement of a call: the writes that are committed together with its trace.

They book what the call cost, end its reservation, and keep its answer under its idempotency key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from msgspec.structs import replace

from routewright._core.call import Call
from routewright._core.idempotency import KEPT_S
from routewright._core.moment import timestamp
from routewright._core.salvage import Part, pause_after
from routewright.wire import Durability, LedgerRow, Settle, Write

from .idempotency import Claim, Claims
from .leases import Leases
from .money import Money, Payer, Reservation

_CUT = "the storage refused to book it as it was"


@dataclass(slots=True, eq=False)
class Settlement:
    """What a finished call still holds: its reservation, its idempotency key, and the lease that keeps both."""

    payer: Payer
    reservation: Reservation | None
    claim: Claim | None
    result: bytes | None
    """The answer to keep under the idempotency key."""
    used_nanos: int
    """The most that the call can have cost."""
    at: float
    """Unix seconds."""
    event_ids: tuple[str, ...]
    """For the thresholds that it may cross."""
    leases: Leases
    claims: Claims
    money: Money
    is_booked: bool = False
    """Only the trace is still to be written."""
    retry_at: float = -inf
    """When to try again after a refusal, on the monotonic scale."""
    refused_at: float | None = None

    def lose_claim(self, call: Call) -> bool:
        """Leave the answer and the charge to the call that took the key over. False: there is nothing to lose."""
        if self.claim is None or self.result is None:
            return False
        call.is_void, self.result = True, None
        return True

    def booked(self, part: Part) -> None:
        """Write nothing more but the trace. If only the costs were booked, the key is free for another call."""
        self.is_booked = True
        if part is Part.BOUND and self.claim is not None:
            self.claims.give_up(self.claim)

    def refused_s(self, now: float) -> float:
        """Seconds since the storage refused it first."""
        self.refused_at = now if self.refused_at is None else self.refused_at
        return now - self.refused_at

    def put_off(self, now: float) -> None:
        """Try again after a pause."""
        self.retry_at = now + pause_after(self.refused_s(now))

    def end(self) -> None:
        """Wake the calls that wait for its money or its key: it is settled, or given up."""
        self.leases.let_go()
        if self.claim is not None:
            self.claims.end(self.claim)
        if self.reservation is not None:
            self.money.settled(self.reservation)


def settle(
    call: Call, settlement: Settlement | None, durability: Durability, part: Part = Part.WHOLE
) -> Sequence[Write]:
    """The writes that settle a call, to be applied in one batch with its trace; fewer for a smaller ``part``.

    A call without a ``settlement`` held nothing: only its ledger rows are booked, if it has any.
    """
    if settlement is None:
        rows = tuple(call.rows)
        if not rows:
            return ()
        key_id = call.caller.key_id  # the key may have been created since the call began
        return (Settle(id=call.id, at=rows[0].at, rows=rows, key_id=key_id, durability=durability),)
    if settlement.is_booked:
        return ()
    writes: list[Write] = []
    if call.environment == "production":
        rows, used_nanos = tuple(call.ledger_rows), settlement.used_nanos
        if part is Part.BOUND:
            reservation = settlement.reservation
            most = call.cost_nanos if reservation is None else reservation.nanos
            rows, used_nanos = _bounded(rows, most), min(used_nanos, most)
        payer = settlement.payer
        writes.append(
            Settle(
                id=call.id,
                at=timestamp(call.created_at),
                rows=rows,
                key_id=payer.caller.key_id,
                run=payer.run,
                run_nanos=None if payer.run is None else used_nanos,
                event_ids=settlement.event_ids,
            )
        )
    if settlement.claim is not None and part is not Part.BOUND:
        writes.append(settlement.claim.ended(settlement.result, settlement.at + KEPT_S))
    return writes


def _bounded(rows: Sequence[LedgerRow], most_nanos: int) -> tuple[LedgerRow, ...]:
    """Ledger rows without detail, which cost at most ``most_nanos`` together."""
    bounded = []
    for row in rows:
        cost = min(row.cost_nanos, most_nanos)
        most_nanos -= cost
        plain = LedgerRow(request_id=row.request_id, attempt=row.attempt, at=row.at, key_id=row.key_id, note=_CUT)
        bounded.append(replace(plain, cost_nanos=cost, charge_nanos=min(row.charge_nanos, cost)))
    return tuple(bounded)
