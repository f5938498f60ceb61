"""What the batch of a call's trace has to do besides: book what it cost, end its reservation, keep its answer."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from routewright._core.call import Call
from routewright._core.idempotency import KEPT_S
from routewright._core.ledger import THRESHOLDS
from routewright._core.moment import timestamp
from routewright._core.salvage import Part, pause_after
from routewright.wire import LedgerRow, Settle, Write

from .answer import Answer
from .idempotency import Claim
from .money import Payer, Reservation

if TYPE_CHECKING:
    from .admission import Admissions

_CUT = "the storage refused to book it as it was"


class Held(NamedTuple):
    """What a call held that is to end with its trace."""

    payer: Payer
    reservation: Reservation | None
    claim: Claim | None


class Ending:
    """The bill of one call, until it is booked."""

    def __init__(
        self, shared: Admissions, held: Held, call: Call, answer: Answer | None, used_nanos: int, *, tells: bool
    ) -> None:
        """``tells``: the account has thresholds that are told of."""
        self._shared = shared
        self._payer, self._reservation, self._claim = held
        self._used_nanos = used_nanos
        self._at = shared.clock.time()
        self._event_ids = tuple(shared.ids("evt_") for _ in THRESHOLDS) if tells else ()
        claim = self._claim
        succeeded = answer is not None and call.served is not None
        self._result = msgspec.json.encode(answer.response) if claim is not None and answer and succeeded else None
        call.is_booked = True
        self.is_booked = False
        """What it has to do is done, but perhaps for its trace."""
        self._refused_at: float | None = None
        self.again_at = -inf
        """When it is to be tried again, on the monotonic scale, once it was refused."""
        shared.owner.hold()  # what is set aside stays so until it is settled

    def part(self, call: Call, part: Part) -> list[Write]:
        """What to do of a call of which no more is taken."""
        return self._least(call) if part is Part.BOUND else self.writes(call)

    def writes(self, call: Call) -> list[Write]:
        """What to do, all of it or nothing."""
        writes: list[Write] = []
        if self.is_booked:
            return writes
        if call.environment == "production":
            writes.append(self._settle(call, call.ledger_rows, self._used_nanos))
        if self._claim is not None:
            writes.append(self._claim.ended(self._result, self._at + KEPT_S))
        return writes

    def lose_claim(self, call: Call) -> bool:
        """Let the one who took the key over have it, and bill him alone. False: there is nothing to lose."""
        if self._claim is None or self._result is None:
            return False
        call.is_void, self._result = True, None
        return True

    def _least(self, call: Call) -> list[Write]:
        """As little as can be said of its attempts, and no more than was set aside for them."""
        if call.environment != "production":
            return []
        most = left = call.cost_nanos if self._reservation is None else self._reservation.nanos
        rows: list[LedgerRow] = []
        for row in call.ledger_rows:
            cost = min(row.cost_nanos, left)
            left -= cost
            said = LedgerRow(request_id=row.request_id, attempt=row.attempt, at=row.at, key_id=row.key_id, note=_CUT)
            rows.append(replace(said, cost_nanos=cost, charge_nanos=min(row.charge_nanos, cost)))
        return [self._settle(call, rows, min(self._used_nanos, most))]

    def _settle(self, call: Call, rows: Sequence[LedgerRow], run_nanos: int) -> Settle:
        payer = self._payer
        return Settle(
            id=call.id,
            at=timestamp(call.created_at),
            rows=tuple(rows),
            key_id=payer.caller.key_id,
            run=payer.run,
            run_nanos=None if payer.run is None else run_nanos,
            event_ids=self._event_ids,
        )

    def booked(self, part: Part) -> None:
        """So much was written: nothing else is, and after less than it came to its key is another's to take."""
        self.is_booked = True
        if part is Part.BOUND and self._claim is not None:
            self._shared.claims.give_up(self._claim)

    def waited_s(self, now: float) -> float:
        """For how long it has been refused."""
        self._refused_at = now if self._refused_at is None else self._refused_at
        return now - self._refused_at

    def put_off(self, now: float) -> None:
        """It was refused: try it again, after a while."""
        self.again_at = now + pause_after(self.waited_s(now))

    def written(self) -> None:
        """It is done: those who waited for it may look."""
        self._shared.owner.let_go()
        if self._claim is not None:
            self._shared.claims.end(self._claim)
        if self._reservation is not None:
            self._shared.money.settled(self._reservation)
