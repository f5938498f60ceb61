"""What a call takes before it may run, and releases however it ends (contract 7).

    idempotency key, or the answer that was given under it -> rate windows and a slot -> [decide] -> money

One object a call owns them all; leaving its context is the one place where what it still holds is released. Once a call
has ended its money and its key pass to its ``Settlement``, which is written in one batch with its trace.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from types import TracebackType
from typing import Self

import msgspec

from routewright._core.account import may
from routewright._core.allowance import OUTPUT_TOKENS, headers_of, refusal, takes_of
from routewright._core.call import Call
from routewright._core.idempotency import fingerprint
from routewright._core.ledger import THRESHOLDS
from routewright._core.routing.inputs import DEFAULT_TIMEOUT_MS
from routewright._core.routing.plan import Plan
from routewright.errors import (
    PermissionDenied,
    RouterClosed,
    RouterError,
    RouterTimeoutError,
    StorageUnavailable,
)
from routewright.fork import Guard
from routewright.identity import Ids
from routewright.protocols import Clock, Coordination, ImmediateCoordination, Storage
from routewright.wire import (
    DEFAULT_ACCOUNT,
    Caller,
    Denied,
    RouteRequest,
    RunLimit,
    Scope,
    Standing,
    Take,
    Taken,
    TokenBounds,
    WindowState,
)

from .account import NO_LIMITS, Accounts
from .answer import Answer
from .idempotency import Claim, Claims
from .leases import Leases
from .money import Choosing, Cover, Money, Payer, Reservation
from .reading import Read
from .retry_queue import RetryQueue
from .settlement import Settlement
from .storage import GuardedStorage, in_time
from .trace_log import TraceLog
from .turn import Turns
from .worker import Worker

_log = logging.getLogger(__name__)

GIVE_BACK_S = 0.5
"""How long the end of a call waits for its slot to be released; then that goes on in the background."""


class Admissions:
    """What the calls of a Router share that need an admission. Safe to use from several loops and threads."""

    def __init__(
        self,
        storage: Storage,
        coordination: Coordination,
        log: TraceLog,
        retry_queue: RetryQueue,
        worker: Worker,
        ids: Ids,
        clock: Clock,
        lease_s: float,
        keep_dropped: Callable[[], object],
    ) -> None:
        """``keep_dropped`` ends calls that nobody holds any more."""
        self.clock = clock
        self.ids = ids
        self.keep_dropped = keep_dropped
        self.retry_queue = retry_queue
        self.leases = Leases(storage, coordination, worker, ids, clock, lease_s, keep_dropped)
        guarded = GuardedStorage(storage)
        self.accounts = Accounts(guarded, clock, weakref.WeakMethod(self.later))
        self.claims = Claims(guarded, self.leases, self.retry_queue, clock)
        self.money = Money(guarded, self.leases, self.retry_queue, self.accounts, Turns(clock), clock)
        self.log = log
        self._coordination = coordination
        self._immediate = coordination if isinstance(coordination, ImmediateCoordination) else None
        self._worker = worker
        self._guard = Guard()
        self._listens = False

    def is_open(self, request: RouteRequest, caller: Caller) -> bool:
        """True if nothing limits a call, so that it needs no admission. False if that is not known."""
        if request.idempotency_key is not None or caller.scopes is not None:
            return False
        if caller.key_id is None and caller.account == DEFAULT_ACCOUNT:
            return True
        standing = self.accounts.recent(caller)
        return standing is NO_LIMITS or (standing is not None and standing.account is None and standing.key is None)

    def begin_to_listen(self) -> None:
        """Listen for changes of accounts from now on."""
        if self._listens:
            self._worker.home()  # a child listens anew
            return
        with self._guard.lock:
            if not self._listens:
                self._worker.start_daemon(self.accounts.listen, self._coordination)
                self._listens = True

    async def take(self, takes: Sequence[Take], until: float, deadline: float) -> Taken | None:
        """Take all of it, once there is room; but nothing is waited for that comes after ``until``, on the monotonic
        scale. None: there are no limits. Raises ``RateLimited``, and ``RouterTimeoutError`` beyond ``deadline``."""
        while takes:
            said = await self._told(takes, deadline)
            if not isinstance(said, Denied):
                return said
            if self.clock.monotonic() + said.retry_after_s > until:
                raise refusal(takes, said, self.clock.time())
            await self.clock.sleep(said.retry_after_s)
        return None

    async def _told(self, takes: Sequence[Take], deadline: float) -> Taken | Denied:
        asking = self._coordination.take(takes, self.leases.id)
        if self._immediate is not None:
            return await asking
        with self.clock.deadline(deadline):
            return await asking
        raise RouterTimeoutError("timeout_ms ran out while the rate limits were asked; allow more time, or try again")

    def later(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run something in the background."""
        with suppress(RouterClosed):  # then the lease ends it
            self._worker.start(work)

    async def write_last(self, trace_id: str) -> None:
        """Write the trace of a call whose Router is closed: the background no longer does."""
        if not self.log.is_closed:
            return
        with self.clock.deadline(self.clock.monotonic() + GIVE_BACK_S, shield=True):
            await self.retry_queue.write()
            await self.log.write_last(trace_id)

    async def give_back(self, taken: Taken, tokens: int | None, until: float) -> None:
        """Give the slot back, and report the tokens used; in the background if the call has no time left for it, or
        cannot await it."""
        if self._immediate is not None:
            self._immediate.give_back(taken, tokens)
            return
        later = partial(self.later, partial(self._coordination.end, taken, tokens))
        try:
            now = self.clock.monotonic()
            with self.clock.deadline(min(now + GIVE_BACK_S, max(now, until)), shield=True) as limit:
                await self._coordination.end(taken, tokens)
        except Exception as error:  # the answer is there, and paid for: no fault of the host's may take it away
            _log.debug("a slot is given back behind its call: %s", type(error).__name__)
            later()
        except BaseException:
            later()
            raise
        else:
            if limit.expired:
                later()


class Admission:
    """What one call holds.

    async with Admission(...) as admission:
        kept = await admission.begin()
        plan = await admission.afford(call, choose)
    """

    def __init__(
        self, shared: Admissions, read: Read, caller: Caller, run: RunLimit | None = None, *, patient: bool = True
    ) -> None:
        """``patient``: it waits for what others hold, within its time."""
        self.trace_id = shared.ids("tr_")
        self.started_at = shared.clock.monotonic()
        self.windows: tuple[WindowState, ...] = ()
        """Its limits when it was admitted."""
        self._shared = shared
        self._request = read.request
        self._tokens = read.tokens
        self._path = read.path
        self._body = read.body
        self._payer = Payer(caller, run)
        self._deadline = self.started_at + (read.request.timeout_ms or DEFAULT_TIMEOUT_MS) / 1000
        self._waits_until = self._deadline if patient else self.started_at
        self._standing: Standing | None = None
        self._claim: Claim | None = None
        self._taken: Taken | None = None
        self._reservation: Reservation | None = None
        self._used_tokens: int | None = 0
        """None: nobody knows, so that all that was taken counts."""
        self._holds = False

    async def __aenter__(self) -> Self:
        self._shared.keep_dropped()
        self._shared.leases.hold()
        self._holds = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.tell(error)
        await self.aclose()

    @property
    def headers(self) -> dict[str, str]:
        """What HTTP says of its limits (``Answer.headers``)."""
        return headers_of(self.windows, self._shared.clock.time())

    def tell(self, error: BaseException | None) -> None:
        """Add the headers of its limits to an error."""
        if isinstance(error, RouterError):
            error.headers = self.headers | error.headers

    async def begin(self) -> bytes | None:
        """Take what a call needs before it is looked at; or give what was answered under its idempotency key. Raises
        what ``look``, ``claim`` and ``enter`` do."""
        await self.look()
        kept = await self.claim()
        if kept is None:
            await self.enter()
        return kept

    async def look(self, scope: Scope = "route") -> None:
        """See who calls. Raises ``PermissionDenied``, ``AuthenticationFailed`` for a revoked key, and
        ``StorageUnavailable``."""
        caller, shared = self._payer.caller, self._shared
        if not may(caller.scopes, scope):
            raise PermissionDenied(f"the API key lacks the scope {scope!r}: use one that has it")
        if shared.log.is_full:
            raise StorageUnavailable("too many calls wait to be written to the storage: see to it, and try again")
        shared.begin_to_listen()
        self._standing = shared.accounts.recent(caller)
        if self._standing is None or self._payer.run is not None:
            asking = shared.accounts.standing(caller, self._payer.run)
            self._standing = await in_time(asking, shared.clock, self._deadline)

    async def claim(self) -> bytes | None:
        """Take the request's idempotency key, if it has one; where another call had it, give what that was answered.

        Raises ``IdempotencyKeyReused``, ``RouterTimeoutError`` and ``StorageUnavailable``.
        """
        key = self._request.idempotency_key
        if key is None:
            return None
        body = msgspec.to_builtins(self._request) if self._body is None else self._body
        told = fingerprint("POST", self._path, body)
        claim = Claim(self._payer.caller, key, self.trace_id, told)
        kept = await self._shared.claims.take(claim, self._deadline, self._waits_until)
        if kept is None:
            self._claim = claim
        return kept

    async def enter(self) -> None:
        """Take a place in the rate windows, and a slot; a call of an agent run waits for the windows, and has the slot
        of its run. Raises ``RateLimited`` and ``StorageUnavailable``."""
        assert self._standing is not None, "it was looked at"
        takes, until = takes_of(self._payer.caller, self._standing, _most(self._request, self._tokens)), -inf
        if self._payer.run is not None:
            takes, until = [take for take in takes if take.resource != "slots"], self._waits_until
        self._taken = await self._shared.take(takes, until, self._deadline)
        if self._taken is not None:
            self.windows = self._taken.states

    async def afford(self, call: Call, choose: Choosing, *, hedged: bool = False) -> Plan:
        """Choose, and set aside what that can cost (``Money.afford``)."""
        standing = self._standing
        if standing is None or self._payer.caller.environment == "sandbox":
            return await choose(call, call.given)
        until = min(call.deadline, self._waits_until)
        plan, self._reservation = await self._shared.money.afford(
            call, self._payer, standing, choose, hedged=hedged, until=until
        )
        return plan

    @property
    def cover(self) -> Cover | None:
        """Has more set aside for the call, if there is room; None: its money is not limited."""
        reservation = self._reservation
        return None if reservation is None else Cover(self._shared.money, reservation)

    def settlement(self, call: Call, answer: Answer | None, used_nanos: int) -> Settlement | None:
        """The settlement of a finished call, which takes over its money and its key. None if the call holds neither and
        its account is unknown. ``used_nanos``: the most that it can have cost."""
        standing = self._standing
        usages = [attempt.usage for attempt in call.attempts if attempt.usage is not None]
        unknown = any(attempt.usage is None and attempt.cost_range_nanos(call.bounds) for attempt in call.attempts)
        self._used_tokens = None if unknown else sum(usage.input + usage.output for usage in usages)
        is_known = standing is not None and (standing.account is not None or bool(standing.purses))
        if self._claim is None and (not is_known or call.environment == "sandbox"):
            return None
        shared, account = self._shared, None if standing is None else standing.account
        has_thresholds = account is not None and bool(account.monthly_nanos)
        keeps_answer = self._claim is not None and answer is not None and call.served is not None
        settlement = Settlement(
            self._payer,
            self._reservation,
            self._claim,
            result=msgspec.json.encode(answer.response) if answer is not None and keeps_answer else None,
            used_nanos=used_nanos,
            at=shared.clock.time(),
            event_ids=tuple(shared.ids("evt_") for _ in THRESHOLDS) if has_thresholds else (),
            leases=shared.leases,
            claims=shared.claims,
            money=shared.money,
        )
        self._reservation = self._claim = None
        call.is_booked = True
        shared.leases.hold()  # the reservation stays until it is settled
        return settlement

    def abandon(self) -> None:
        """Release what it holds in the background, for callers without a loop."""
        self._shared.later(self.aclose)

    async def aclose(self) -> None:
        """Release what it holds. Twice is once. A forked child releases nothing of its parent's."""
        if self.started_at < self._shared.leases.since:
            return
        reservation, claim, taken = self._reservation, self._claim, self._taken
        self._reservation = self._claim = self._taken = None
        if reservation is not None:
            self._shared.money.release(reservation)
        if claim is not None:
            self._shared.claims.give_up(claim)
        if self._holds:
            self._holds = False
            self._shared.leases.let_go()
        try:
            if taken is not None:
                await self._shared.give_back(taken, self._used_tokens, self._deadline)
        finally:
            await self._shared.write_last(self.trace_id)


def _most(request: RouteRequest, tokens: TokenBounds) -> int:
    """The most tokens that a call is taken to come to."""
    cap = None if request.params is None else request.params.max_output_tokens
    return tokens.high + (OUTPUT_TOKENS if cap is None else int(cap))
