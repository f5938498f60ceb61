"""Admits a call before it runs (contract 7): idempotency key, rate windows, slot and money.

    begin -> [take: windows and slot -> guardrails] -> decide within what is left -> take -> settled, or released

What was taken is the storage's ``Grant``. It ends with the call's ``Facts`` once the call has run (``Records.conclude``
hands both to the trace log), and is released otherwise."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import Any

import msgspec

from routewright._core.account import OUTPUT_TOKENS, headers_of, is_made
from routewright._core.accounts.ledger import THRESHOLDS
from routewright._core.call import Call
from routewright._core.idempotency import fingerprint
from routewright.errors import (
    InternalError,
    PermissionDenied,
    RateLimited,
    RouterClosed,
    RouterError,
    StorageUnavailable,
)
from routewright.fork import renew_in_children
from routewright.identity import Ids
from routewright.protocols import Accounts, Clock, Facts, ImmediateStorage, Storage
from routewright.wire import (
    DEFAULT_ACCOUNT,
    Ask,
    Caller,
    Claim,
    Grant,
    Left,
    Replay,
    RunLimit,
    Scope,
    Short,
    WindowState,
)

from .answer import Answer
from .reading import Read
from .shared_limits import SharedLimits
from .storage import KNOWN_S, MOST_KNOWN, NoAccounts, in_time, no_accounts, unfit
from .trace_log import LONGEST_S, TraceLog
from .worker import Worker

TRIES = 5
"""Decisions for one call, each within what the storage said last."""
OPEN_S = 0.25
"""Who had no account waits so long for a storage that is asked whether there is one by now; then there is none, for
``KNOWN_S``."""
SPARE_S = 0.05
"""Of a call's time, at most a quarter, is left to a storage that one has to wait for, to say that it waited in vain."""


class Admissions:
    """State shared by the admissions of a Router. Safe to use from several loops and threads."""

    def __init__(
        self, storage: Storage, log: TraceLog, worker: Worker, ids: Ids, clock: Clock, default_timeout_ms: int
    ) -> None:
        accounts = log.accounts
        self._has_accounts = accounts is not None
        self.accounts: Accounts = accounts or NoAccounts(storage, clock)
        self.is_immediate = isinstance(storage, ImmediateStorage) and not isinstance(accounts, SharedLimits)
        """It never waits, but for what other calls hold."""
        self.queue = log.queue
        self.event_ids = _EventIds(ids)
        self.ids = ids
        self.clock = clock
        self.default_timeout_ms = default_timeout_ms
        self._worker = worker
        self._open: OrderedDict[tuple[str, str | None], float] = OrderedDict()
        """Callers who had no account when that was last asked, and until when that need not be asked again."""
        renew_in_children(self)

    def renew(self) -> None:
        """Leave alone what the parent's calls hold."""
        self.since = self.clock.monotonic()

    def begin(
        self, read: Read, caller: Caller, run: RunLimit | None = None, *, patient: bool = True, scope: Scope = "route"
    ) -> Admission | None:
        """The admission of a call, which has taken nothing yet. None: nothing limits it, so that it needs none.
        ``patient``: it waits for what others hold, within its time. Raises ``PermissionDenied``, ``StorageUnavailable``
        while too many calls wait to be written, and ``InternalError`` where the storage keeps no accounts."""
        key_id, key, accounts = caller.key_id, read.request.idempotency_key, self.accounts
        may_be_open = key is None and run is None
        if may_be_open and key_id is None and caller.scopes is None and caller.account == DEFAULT_ACCOUNT:
            return None
        if caller.scopes is not None and scope not in caller.scopes:
            raise self._named(PermissionDenied(f"the API key lacks the scope {scope!r}: use one that has it"))
        if not self._has_accounts and (not may_be_open or (key_id is not None and is_made(key_id))):
            raise self._named(no_accounts())
        left = accounts.left(caller, run)
        if not may_be_open:
            pass
        elif left is None:
            if self._open.get((caller.account, key_id), -inf) > self.clock.monotonic():
                return None
        elif left.account is None and left.key is None and (key_id is None or not is_made(key_id)):
            return None
        if self.queue.is_full:
            said = "too many calls wait to be written to the storage: see to it, and try again"
            raise self._named(StorageUnavailable(said))
        return Admission(self, accounts, read, caller, run, left, patient=patient)

    async def is_open(self, hold: Admission) -> bool:
        """Look how a caller stands of whom nothing is known. True if nothing limits the call. Who had no account before
        does not suffer from a storage that is away, or stands still. Raises what ``Admission.look`` does."""
        name = hold.caller.account, hold.caller.key_id
        if not hold.may_be_open or name not in self._open:
            return self._note(name, await hold.look()) and hold.may_be_open
        with suppress(InternalError), self.clock.deadline(self.clock.monotonic() + OPEN_S):
            return self._note(name, await hold.look())
        self._open[name] = self.clock.monotonic() + KNOWN_S

        async def look_again() -> None:  # a storage that is slow is believed once it has answered
            with suppress(RouterError):
                self._note(name, await hold.look(LONGEST_S))

        with suppress(RouterClosed):
            self._worker.start(look_again)
        return True

    def _note(self, name: tuple[str, str | None], left: Left) -> bool:
        if left.account is not None or left.key is not None:
            self._open.pop(name, None)
            return False
        self._open[name] = -inf
        if len(self._open) > MOST_KNOWN:
            with suppress(KeyError):  # another thread took the last
                self._open.popitem(last=False)
        return True

    def _named(self, error: RouterError) -> RouterError:
        error.request_id = self.ids("req_")
        return error


class _EventIds(Sequence[str]):
    """Ids for the events of thresholds, made when a call crosses one."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(THRESHOLDS)

    def __getitem__(self, place: Any) -> Any:
        return self._ids("evt_")


class Admission:
    """The admission of one call. ``release`` gives back what it still holds."""

    __slots__ = (
        "_accounts", "_read", "_shared", "at", "caller", "claim", "deadline", "grant", "is_patient",
        "is_refused", "left", "run", "started_at", "tokens", "trace_id", "windows",
    )  # fmt: skip

    def __init__(
        self,
        shared: Admissions,
        accounts: Accounts,
        read: Read,
        caller: Caller,
        run: RunLimit | None,
        left: Left | None,
        *,
        patient: bool,
    ) -> None:
        clock, request = shared.clock, read.request
        cap = None if request.params is None else request.params.max_output_tokens
        self._shared = shared
        self._accounts = accounts
        self._read = read
        self.is_patient = patient
        self.claim: Claim | None = None
        self.tokens = read.tokens.high + (OUTPUT_TOKENS if cap is None else int(cap))
        """The most that the call is taken to come to."""
        self.caller = caller
        self.run = run
        self.left = left
        """The money the caller has left, as far as is known. None: unknown, so the storage has to be asked."""
        self.trace_id = shared.ids("tr_")
        self.at = clock.time()
        self.started_at = clock.monotonic()
        self.deadline = self.started_at + (request.timeout_ms or shared.default_timeout_ms) / 1000
        self.windows: Sequence[WindowState] = ()
        """Its rate limits when it was admitted."""
        self.grant: Grant | None = None
        """None: it holds nothing."""
        self.is_refused = False
        """The storage refuses it, or has not answered: it counts nowhere, and leaves no trace."""

    @property
    def headers(self) -> dict[str, str]:
        return headers_of(self.windows, self._shared.clock.time())

    def tell(self, error: BaseException | None) -> None:
        if isinstance(error, RouterError):
            error.headers = self.headers | error.headers
            error.request_id = error.request_id or self._shared.ids("req_")

    @property
    def may_be_open(self) -> bool:
        """It needs no admission if its caller has no account."""
        return self.run is None and self._read.request.idempotency_key is None

    async def look(self, longest_s: float | None = None) -> Left:
        """Ask the storage what the caller has left. Raises ``AuthenticationFailed`` for a revoked key, or one that a
        Console made elsewhere, ``StorageUnavailable``, and ``RouterTimeoutError``."""
        clock, self.is_refused = self._shared.clock, self.grant is None
        until = self.deadline if longest_s is None else clock.monotonic() + longest_s
        found: object = await in_time(self._accounts.look(self.caller, self.run), clock, until)
        if not isinstance(found, Left):
            raise unfit(self._accounts, "look", "a Left", found)
        self.left, self.is_refused = found, False
        return found

    async def take(self, nanos: int = 0) -> Grant | Replay | Short:
        """Take all that the call needs, or nothing; once it is admitted, hold another amount of money. Waits for what
        other calls hold as long as the call may. A call of an agent run waits for its windows, too. Raises what
        ``Accounts.admit`` does."""
        shared, accounts, read = self._shared, self._accounts, self._read
        if self.claim is None and read.request.idempotency_key is not None:
            self.claim = _claimed(read, read.request.idempotency_key)
        while True:
            left_s = self.deadline - shared.clock.monotonic()
            spare_s = 0.0 if shared.is_immediate else min(SPARE_S, left_s / 4)
            ask = Ask(
                id=self.trace_id,
                caller=self.caller,
                at=self.at,
                lasts_s=left_s,
                tokens=self.tokens,
                nanos=nanos,
                waits_s=left_s - spare_s if self.is_patient else 0.0,
                claim=self.claim,
                run=self.run,
                slot=self.run is None,
            )
            asking, self.is_refused = accounts.admit(ask), self.grant is None
            found: object
            try:
                if shared.is_immediate:
                    found = await asking
                else:
                    found = await in_time(asking, shared.clock, self.deadline)
            except RateLimited as error:
                wait_s = error.detail["retry_after_seconds"]
                if self.run is None or wait_s > left_s:
                    raise
                await shared.clock.sleep(wait_s)
                continue
            self.is_refused = False
            if isinstance(found, Grant):
                if self.grant is None:
                    self.windows = found.windows
                self.grant = found
                return found
            if isinstance(found, Replay | Short):
                return found
            self.is_refused = True
            raise unfit(accounts, "admit", "a Grant, a Replay or a Short", found)

    async def count(self) -> bytes | None:
        """Count a request that is refused for what it asks, and give all else back. Returns the answer that is kept
        under its key, if any. Raises what refuses it before that."""
        found = await self.take()
        self.release()
        return found.result if isinstance(found, Replay) else None

    @property
    def nanos(self) -> int:
        return 0 if self.grant is None else self.grant.nanos

    async def widen(self, nanos: int) -> None:
        grant = self.grant
        if grant is None or nanos <= grant.nanos:
            return
        try:
            await in_time(self._accounts.widen(grant, nanos), self._shared.clock, self.deadline)
        except RouterError:
            return  # what is reserved has to do

    def facts(self, call: Call, answer: Answer | None, used_nanos: int) -> Facts:
        """The outcome of the call, to settle it by. ``used_nanos``: the most that it can have cost."""
        claim, account, rows = self.claim, None if self.left is None else self.left.account, call.ledger_rows
        call.is_booked = True
        used: int | None = 0
        for attempt in call.attempts:
            usage = attempt.usage
            if usage is None and attempt.unsure is not None and attempt.cost_range_nanos(call.bounds):
                used = None  # nobody knows, so that all that was taken counts
            elif usage is not None and used is not None:
                used += usage.input + usage.output
        return Facts(
            id=call.id,
            caller=self.caller,
            created_at=call.created,
            trace=call,
            rows=rows,
            tokens=used,
            run=self.run,
            run_nanos=None if self.run is None else used_nanos,
            claim=claim,
            result=None if claim is None or answer is None else msgspec.json.encode(answer.response),
            event_ids=self._shared.event_ids if account is not None and account.monthly_nanos else (),
        )

    def release(self) -> None:
        """Give back what it holds, and count no tokens. Twice is once. A forked child gives back nothing of its
        parent's."""
        grant, self.grant = self.grant, None
        if grant is not None and self.started_at >= self._shared.since:
            self._accounts.release(grant)


def _claimed(read: Read, key: str) -> Claim:
    body = msgspec.to_builtins(read.request) if read.body is None else read.body
    return Claim(key, fingerprint("POST", read.path, body))
