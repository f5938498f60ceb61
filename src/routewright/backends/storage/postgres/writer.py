"""The thread of a process for PostgreSQL: all waiting requests become one ``tick`` (accounts.sql).

Requests that arrive meanwhile become the next tick, so under load more calls share a round trip and a sync. The thread
starts with the first request and ends when it is idle. A forked child starts its own.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from operator import attrgetter
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from msgspec.structs import replace

from routewright._core.accounts.holds import Wait
from routewright._core.accounts.purses import DAY
from routewright._core.idempotency import scope_of
from routewright._runtime.fork import Guard
from routewright._runtime.loop import Reply, give
from routewright.errors import RouterError, StorageUnavailable
from routewright.protocols import Clock
from routewright.wire import Ask, Caller, Grant, Left, Replay, RunLimit
from routewright.wire.timestamps import timestamp

from . import request_queue
from .connections import COLLIDED, LOCKED, state_of
from .refusal import Terms, explain_refusal, windows_of
from .request_queue import LOOK_S, MAX_BATCH, Ending, PendingAsk, Queues, Work
from .transaction import FORGET_OWNERS, Server

IDLE_S = 2.0
"""The thread ends after this time without a request."""
MAX_WAITING = 10_000
MAX_RELEASES = 10_000
"""Most releases that wait for the server. A dropped hold expires a lease after its call should have ended."""
MAX_BALANCES = 10_000
AGAIN_S = 0.5
"""Pause after a failed tick before work that can wait is tried again."""
_RESULT = "SELECT result FROM kept WHERE account = $1 AND claim = $2"
_log = logging.getLogger(__name__)
Request = PendingAsk | Ending | Work


class Spent(NamedTuple):
    """What a caller has spent of its purses (``purses_of``) on a day."""

    day: str
    left: Left
    nanos: Sequence[int]


class Writer:
    """Sends admissions and settlements to the server. With ``inline``, for a virtual clock, in the caller's thread."""

    def __init__(self, server: Server, clock: Clock, lease_s: float, *, inline: bool) -> None:
        self._server = server
        self._clock = clock
        self._lease_s = lease_s
        self._inline = inline
        self._guard = Guard()
        server.database.renewals.add(self)

    def renew(self) -> None:
        """Start without holds: the parent's calls continue there."""
        self.owner = random.SystemRandom().getrandbits(62)
        self._requests: SimpleQueue[Request] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._holds: dict[str, Ask] = {}
        """Asks of calls with holds."""
        self._queues = Queues()
        self._releases: list[Ending] = []
        """Releases that the server has not received."""
        self._ticks = 0
        """Number of ticks. The server refuses a tick after a later one, since its calls were abandoned."""
        self._locked: set[str] = set()
        """Accounts with long locks. They are tried separately, so that the others need not wait."""
        self._faults: dict[str | None, RouterError] = {}
        """Errors for the remaining work of an account; None: of all."""
        self._spoke_at = self._failed_at = -inf
        self._expires_at = -inf
        """Monotonic times of the last answered and the last failed tick, and of the next try to expire holds."""
        self._is_closed = False
        """True after ``close`` without holds: the thread ends, even if some releases were not sent."""
        self.balances: dict[tuple[Caller, RunLimit | None], tuple[Left, float]] = {}
        """What callers have left, with the monotonic time."""
        self.spent: dict[tuple[str, str, str | None], Spent] = {}
        """By account, environment and key."""

    # In any thread

    def put(self, request: Request) -> None:
        """Queue a request."""
        if self._inline:
            with self._guard.lock:
                self._run([request])
                while self._queues.is_ready:
                    self._run([])
            return
        with self._guard.lock:  # the thread takes it before it ends
            self._requests.put(request)
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="routewright-postgres", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the next request tries again
                    request.is_left = True
                    raise StorageUnavailable(f"{self._server} cannot be used now: {error}") from error
                self._thread = thread

    def make_widening(self, grant: Grant, nanos: int) -> PendingAsk | None:
        """An ask for another amount. None: the call has ended."""
        ask = self._holds.get(grant.id)
        return (
            None if ask is None else PendingAsk(replace(ask, nanos=nanos, waits_s=0.0), "widens", inline=self._inline)
        )

    async def replay(self, ask: Ask) -> Replay:
        """Read the answer under an idempotency key, separately since it may be large."""
        assert ask.claim is not None, "what has no key has no answer"
        claim = scope_of(ask.caller, ask.claim.key)
        result = await self._server.database.value(_RESULT, ask.caller.account, claim)
        if not result:
            raise StorageUnavailable(f"{self._server}: the answer of this key was just removed; send the request again")
        return Replay(result)

    def forget(self, account: str) -> None:
        """Called after an account's terms or sums have changed: drops cached state and tries waiting asks again."""
        for who in [*self.balances]:
            if who[0].account == account:
                self.balances.pop(who, None)
        self.put(Work(lambda: self._queues.free(account), awaited=False))

    def look_again(self) -> None:
        """Try waiting asks again, in virtual time."""
        self.put(Work(self._queues.look, awaited=False))

    def leave(self, pending: PendingAsk) -> None:
        """Cancel an ask and release what it has been or will be granted."""
        pending.is_left = True

        def leave() -> None:
            self._queues.leave(pending)
            self._give_back(pending)

        with suppress(StorageUnavailable):
            self.put(Work(leave, awaited=False))

    async def tidy(self) -> None:
        """End abandoned holds of other processes, and overdue ones of this process."""
        await self._done(self._tidy)

    async def close(self) -> None:
        """End the thread after all pending requests. It continues while calls have holds."""
        await self._done(self._hang_up, comes_last=True)

    async def _done(self, do: Callable[[], object], *, comes_last: bool = False) -> None:
        work = Work(do, awaited=not self._inline, comes_last=comes_last)
        self.put(work)
        await work.wait()

    # In its own thread

    def _work(self) -> None:
        while (requests := self._take()) is not None:
            self._run(requests)
            del requests  # what they hold must not stay while nothing happens

    def _take(self) -> list[Request] | None:
        """The next requests; empty if there is other work. None ends the thread."""
        wait_s = 0.0 if self._is_closed else IDLE_S
        now = time.monotonic()
        if self._holds:
            wait_s = min(wait_s, max(self._spoke_at + self._lease_s / 4, self._failed_at + AGAIN_S) - now)
        if self._releases:
            wait_s = min(wait_s, self._failed_at + AGAIN_S - now)
        if self._queues:
            wait_s = 0.0 if self._queues.is_ready else min(wait_s, LOOK_S, self._queues.gives_up_at - now)
        try:
            requests = [self._requests.get(timeout=wait_s) if wait_s > 0 else self._requests.get_nowait()]
        except Empty:
            with self._guard.lock:
                goes_on = not self._is_closed and (self._holds or self._queues or self._releases)
                if goes_on or not self._requests.empty():
                    return []
                self._thread = None
            return None
        self._is_closed = False
        with suppress(Empty):
            while len(requests) < MAX_BATCH:
                requests.append(self._requests.get_nowait())
        return requests

    def _run(self, requests: Sequence[Request]) -> None:
        """Process requests, and try waiting asks again."""
        works = [request for request in requests if isinstance(request, Work)]
        for work in works:
            if not work.comes_last:
                self._do(work)
        ends = [*self._releases[:MAX_BATCH], *(request for request in requests if isinstance(request, Ending))]
        self._releases = self._releases[MAX_BATCH:]
        asks = self._queues.take_ready(self._now()) if self._queues else []
        asks += [request for request in requests if isinstance(request, PendingAsk) and not request.is_left]
        ready: list[Ending | PendingAsk] = [*(ending for ending in ends if ending.is_plain), *asks]
        self._faults = {}
        if self._locked:
            locked = [request for request in ready if request.account in self._locked]
            self._try_apart(locked, attrgetter("account"), hurries=True)
            ready = [request for request in ready if request not in locked]
        self._try(ready)
        for ending in ends:
            if not ending.is_plain:
                self._settle(ending)
        for work in works:
            if work.comes_last:
                self._do(work)

    def _try(self, requests: Sequence[Ending | PendingAsk], *, hurries: bool = False) -> None:
        """Run a tick. After an error each request is tried alone, or each account if one of them is locked."""
        # A connection lost at the commit leaves open whether the tick took effect; sent again, it could admit a call
        # twice. So an ask fails, and the next tick releases what it may hold
        # (`test_a_grant_whose_reply_was_lost_is_released`). A settlement fails, and is booked once when it is repeated
        # (`test_a_repeated_settlement_changes_nothing`). The lost tick may still arrive after that release: hence the
        # server refuses a tick after a later one (`test_a_tick_that_arrives_after_later_ones_is_refused`).
        fault = self._fault_in(partial(self._tick, requests, hurries=hurries))
        if fault is None:
            if hurries:
                self._locked -= {request.account for request in requests}
            return
        answered = [request for request in requests if isinstance(request, PendingAsk) and request.is_done]
        self._answer([request for request in answered if not request.is_delivered])
        failed = [request for request in requests if request not in answered and not request.is_delivered]
        accounts = {request.account for request in failed}
        if state_of(fault) == LOCKED:
            if len(accounts) > 1:
                self._try_apart(failed, attrgetter("account"), hurries=True)
                return
            self._locked |= accounts
        elif not isinstance(fault, StorageUnavailable) and len(failed) > 1:
            self._try_apart(failed, id, hurries=hurries)
            return
        self._failed_at = time.monotonic()
        _log.debug("a tick of %s failed: %s", self._server, fault)
        for request in failed:
            if isinstance(request, PendingAsk):
                self._queues.leave(request)
                self._give_back(request)  # may have been granted
                request.answer(fault)
            elif request.facts is not None:
                request.error = fault
            elif len(self._releases) < MAX_RELEASES:
                self._releases.append(request)
        self._answer([request for request in failed if isinstance(request, PendingAsk) or request.facts is not None])

    def _try_apart(
        self, requests: Sequence[Ending | PendingAsk], key: Callable[[Ending | PendingAsk], object], *, hurries: bool
    ) -> None:
        parts: dict[object, list[Ending | PendingAsk]] = {}
        for request in requests:
            parts.setdefault(key(request), []).append(request)
        for part in parts.values():
            self._try(part, hurries=hurries)

    def _tick(self, requests: Sequence[Ending | PendingAsk], *, expires: bool = True, hurries: bool = False) -> None:
        """End calls, then admit others, first those that waited. ``expires``: ends holds of dead processes.
        ``hurries``: does not wait for locked accounts."""
        if not requests and not (self._holds and time.monotonic() - self._spoke_at >= self._lease_s / 4):
            return
        ends = [request for request in requests if isinstance(request, Ending)]
        asks = [request for request in requests if isinstance(request, PendingAsk)]
        blobs: list[bytes | None] = []
        traces: list[dict[str, Any]] = []
        ended: list[dict[str, Any]] = []
        for index, ending in enumerate(ends):
            if ending.facts is None or ending.grant is None:
                ended.append(request_queue.release_of(index, ending.account, ending.call, ending.tokens))
                continue
            ended.append(request_queue.end_of(index, ending.grant, ending.facts, blobs))
            if ending.trace is not None:
                traces.append(request_queue.trace_of(ending.trace, blobs) | {"end": index})
        callers: dict[tuple[Caller, str, bool], int] = {}
        entries: list[dict[str, Any]] = []
        numbers = {pending.number for pending in asks if pending.waits is not None}
        now = self._now()
        for index, pending in enumerate(asks):
            ask = pending.ask
            is_new = pending.waits is None
            caller = callers.setdefault((ask.caller, timestamp(ask.at)[:DAY], ask.windows), len(callers))
            may_wait = ask.waits_s > 0 and (is_new or pending.until > now)
            behind = self._queues.find_waiting(pending.account, numbers) if is_new and self._queues else []
            again = ask.id in self._holds or not is_new  # what waited may have had a hold, which expired
            entries.append(request_queue.ask_of(index, pending, caller, again=again, waits=may_wait, behind=behind))
        self._ticks += 1
        settings = {
            "owner": self.owner, "lease": self._lease_s, "at": self._server.now, "now": self._server.now,
            "accounts": sorted({ending.account for ending in ends} | {who.account for who, *_ in callers}),
            "today": timestamp(self._clock.time())[:DAY], "tick": self._ticks, "hurries": hurries,
        }  # fmt: skip
        self._server.put_snapshots(ends)
        caller_entries = [request_queue.caller_of(index, *who) for who, index in callers.items()]
        answer = self._server.tick((settings, ended, caller_entries, entries, traces), blobs)
        self._spoke_at = time.monotonic()
        terms = [*map(Terms, answer["terms"])]
        lefts = [Left(term.account, term.key, least) for term, least in zip(terms, answer["left"] or (), strict=True)]
        shares = answer.get("spent") or [()] * len(lefts)  # stores of older versions do not say
        for (who, day, _), left, spent in zip(callers, lefts, shares, strict=True):
            self._note((who, None), left)
            self.spent[who.account, who.environment, who.key_id] = Spent(day, left, spent)
        self._take_ends(ends, {*answer["ended"]})
        has_expired = bool(answer["silent"] and expires) and self._expire()
        refused: list[PendingAsk] = []
        for pending, facts, entry in zip(asks, answer["answers"], entries, strict=True):
            if "nanos" in facts:
                self._grant(pending, facts, terms[entry["caller"]], lefts[entry["caller"]], answer["at"])
            elif has_expired:
                refused.append(pending)
            else:
                facts["queued"] = [*(facts["queued"] or ()), *entry["behind"]]
                self._refuse(pending, facts, terms[entry["caller"]], answer["at"], answer["now"])
        self._answer([pending for pending in asks if pending.is_done])
        if refused:
            self._tick(refused, expires=False, hurries=hurries)

    def _take_ends(self, ends: Sequence[Ending], ended: set[int]) -> None:
        done: list[Ending] = []
        for index, ending in enumerate(ends):
            if index in ended or ending.facts is None:  # releases always succeed
                ending.result = ()
                self._ended(ending)
                done.append(ending)
            else:
                self._settle(ending)
        self._answer(done)

    def _settle(self, ending: Ending) -> None:
        """Book a call that ``tick`` has skipped."""
        fault = self._faults.get(None) or self._faults.get(ending.account)
        if fault is None:
            fault = self._fault_in(partial(self._book, ending))
        if fault is not None:
            ending.error = fault
            state = state_of(fault) or ""
            if isinstance(fault, StorageUnavailable) and not state.startswith(COLLIDED):  # others fail at once
                self._faults[ending.account if state == LOCKED else None] = fault
        self._answer([ending])

    def _book(self, ending: Ending) -> None:
        ending.result = self._server.settle(ending)
        self._ended(ending)

    def _ended(self, ending: Ending) -> None:
        self._holds.pop(ending.call, None)
        self._queues.free(ending.account)

    def _do(self, work: Work) -> None:
        def do() -> None:
            work.result = work.do()

        work.error = self._fault_in(do)
        self._answer([work])

    def _fault_in(self, work: Callable[[], object]) -> RouterError | None:
        """Run work and return its error as one of the library; None if it succeeds."""
        try:
            work()
        except Exception as error:  # of the driver, or a defect: it fails these requests, but not the thread
            return self._server.fault_of(error)
        return None

    def _tidy(self) -> None:
        for call in self._server.transact(lambda _, transaction: transaction.expire_overdue(self.owner, self._lease_s)):
            _log.error("call %s held money or limits long after its end; it is released, please report it", call)
            self._holds.pop(call, None)
        while self._expire():
            pass

    def _expire(self) -> bool:
        """End some holds of silent processes. False: there were none, or it failed and is tried again later."""
        if time.monotonic() < self._expires_at:
            return False
        spare_s = None if self._inline else self._lease_s
        freed: list[str] = []

        def expire() -> None:
            freed.extend(self._server.transact(lambda _, transaction: transaction.expire(self.owner, spare_s)))

        fault = self._fault_in(expire)
        if fault is not None:
            self._expires_at = time.monotonic() + AGAIN_S
            _log.debug("cannot end holds of dead processes: %s", fault)
        for account in freed:
            self._queues.free(account)
        return bool(freed)

    def _hang_up(self) -> None:
        if self._queues or self._holds.keys() - {ending.call for ending in self._releases}:
            return
        self._is_closed = True
        if not self._releases and self._spoke_at > -inf:
            with suppress(Exception):  # its lease ends
                self._server.transact(lambda tables, _: tables.execute(FORGET_OWNERS, ([self.owner],)))
            # the server forgets the tick number with the owner
            self.owner = random.SystemRandom().getrandbits(62)

    def _grant(self, pending: PendingAsk, facts: dict[str, Any], terms: Terms, left: Left, at: float) -> None:
        ask = pending.ask
        self._holds[ask.id] = ask
        self._queues.leave(pending)
        if facts["run_left"] is not None:
            nanos = facts["run_left"] if left.nanos is None else min(facts["run_left"], left.nanos)
            self._note((ask.caller, ask.run), Left(left.account, left.key, nanos))
        windows = windows_of(terms, facts["windows"], at)
        nanos = facts["nanos"]
        pending.answer(
            Grant(id=ask.id, caller=ask.caller, nanos=nanos, is_limited=facts["is_limited"], windows=windows)
        )
        if pending.is_left:
            self._give_back(pending)

    def _refuse(self, pending: PendingAsk, facts: dict[str, Any], terms: Terms, at: float, now: float) -> None:
        """Answer an ask that was not granted, or let it wait."""
        try:
            answer: Any = explain_refusal(pending.ask, pending.kind, terms, facts, at, now)
        except RouterError as error:
            answer = error
        if isinstance(answer, Left):
            self._note((pending.ask.caller, pending.ask.run), answer)
        if isinstance(answer, Wait):
            wait = answer
            monotonic = self._now()
            if pending.number == 0 and len(self._queues) >= MAX_WAITING:
                answer = wait.turn_away()
            elif pending.ask.waits_s <= 0 or pending.until <= monotonic:
                answer = wait.give_up()
            else:
                self._queues.wait(pending, wait, monotonic)
                return
        self._queues.leave(pending)
        pending.answer(answer)

    def _give_back(self, pending: PendingAsk) -> None:
        if pending.kind == "admits":  # a running call keeps its hold
            self._releases.append(Ending(pending.account, pending.ask.id, None))

    def _note(self, who: tuple[Caller, RunLimit | None], left: Left) -> None:
        if len(self.balances) >= MAX_BALANCES:
            self.balances.clear()
            self.spent.clear()
        self.balances[who] = left, self._now()

    def _now(self) -> float:
        return self._clock.monotonic() if self._inline else time.monotonic()

    def _answer(self, replies: Sequence[Reply[Any]]) -> None:
        for reply in give(replies):
            if isinstance(reply, PendingAsk) and isinstance(reply.result, Grant):  # its task is gone
                self._give_back(reply)
