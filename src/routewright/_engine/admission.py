"""Admits a call before it runs (contract 7): idempotency key, rate windows, slot and money.

    begin -> [take: windows and slot -> guardrails] -> decide within what is left -> take -> settled, or released

The storage answers with a ``Grant``. A call that ran settles it with its ``Facts``
(``TraceLog.conclude``); otherwise it is released."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf

import msgspec
from msgspec import Struct

from routewright import errors, wire
from routewright._core.accounts.keys import is_issued
from routewright._core.accounts.purses import tags_of, within_tags
from routewright._core.call import Call
from routewright._core.idempotency import fingerprint
from routewright._core.limits import OUTPUT_TOKENS, headers_of
from routewright._core.permissions import narrow
from routewright._core.policy import reads_limits
from routewright._runtime.identity import Ids
from routewright._runtime.loop import Signal
from routewright._runtime.worker import Worker
from routewright.errors import InternalError, PermissionDenied, RateLimited, RouterError, StorageUnavailable
from routewright.protocols import Accounts, Clock, ImmediateStorage, Storage
from routewright.wire import Caller, PolicySnapshot, RunLimit, Scope, SpentShares
from routewright.wire.problems import did_you_mean, shown

from .context import InsideRun, RunShare, current_run, find_run
from .request_input import Read
from .shared_limits import SharedLimits
from .storage import KNOWN_S, LONGEST_S, MOST_KNOWN, GuardedStorage, NoAccounts, in_time, no_accounts, unfit
from .trace_log import TraceLog

_log = logging.getLogger(__name__)
_HINT = "add it with Console.create_account or 'routewright accounts create', or set Settings(unknown_accounts='serve')"
MONEY_ERRORS = errors.QuotaExhausted, errors.InsufficientBalance, errors.BudgetExceeded
"""Refusals of a call for a lack of money."""
TRIES = 5
"""Decisions per call, each within the balance that the storage reported last."""
OPEN_S = 0.25
"""How long a caller without an account waits for the storage to say if it has one now. After that it has none for
``KNOWN_S``."""
SPARE_S = 0.05
"""Time kept, at most a quarter of the call's, for a storage to report that a wait was in vain."""


class Admissions:
    """State shared by the admissions of a Router. Safe to use from several loops and threads."""

    def __init__(
        self, storage: Storage, log: TraceLog, worker: Worker, ids: Ids, clock: Clock, default_timeout_ms: int,
        unknown_accounts: wire.UnknownAccounts,
    ) -> None:  # fmt: skip
        accounts = log.writer.accounts
        self._storage = GuardedStorage(storage)
        self._refuses = unknown_accounts == "refuse"
        self._served_until = inf if unknown_accounts == "serve" else -inf
        """Until then, callers of unknown accounts are served."""
        self._has_accounts = accounts is not None
        self.accounts: Accounts = accounts or NoAccounts(storage, clock)
        self.is_immediate = isinstance(storage, ImmediateStorage) and not isinstance(accounts, SharedLimits)
        """The storage never waits, except for money that other calls hold."""
        self.queue = log.writer
        self.count_refusal = log.count_refusal
        self.ids = ids
        self.clock = clock
        self.default_timeout_ms = default_timeout_ms
        self._worker = worker
        self._open: OrderedDict[tuple[str, str | None], float] = OrderedDict()
        """Callers known to have no account, and until when that holds without asking."""
        self._known: list[str] = []
        """Accounts in the storage, besides the default one, once there are any."""
        worker.renewals.add(self)

    def renew(self) -> None:
        """After a fork: older grants are the parent's."""
        self.since = self.clock.monotonic()

    def begin(
        self, read: Read, caller: Caller, inside: InsideRun | None = None, *,
        patient: bool = True, scope: Scope = "route",
    ) -> Admission | None:  # fmt: skip
        """The admission of a call, which has taken nothing yet. None: nothing limits the call. ``inside``: the run that
        makes it; by default that of this context. ``patient``: it may wait for money that other calls hold. Raises
        ``PermissionDenied``, ``StorageUnavailable`` while too many calls wait to be written, and ``InternalError`` if
        the storage keeps no accounts."""
        key_id = caller.key_id
        if inside is None and current_run() is not None:
            inside = find_run(self.ids, caller)
        run = None if inside is None else inside.scope.limit
        scope = scope if inside is None else inside.scope.right
        may_be_open = read.request.idempotency_key is None and run is None
        is_default = key_id is None and caller.scopes is None and caller.account == wire.DEFAULT_ACCOUNT
        if is_default and may_be_open and (inside is None or inside.is_free):
            return None
        if caller.scopes is not None and scope not in caller.scopes:
            raise self._named(PermissionDenied(f"the API key lacks the scope {scope!r}; use one that has it"))
        if not self._has_accounts and (not may_be_open or (key_id is not None and is_issued(key_id))):
            raise self._named(no_accounts())
        left = self.accounts.left(caller, run)
        if left is None:
            pass
        elif left.account is None and left.key is None and not self._serves_unknown(caller):
            left = None  # look again before it is refused
        elif left.account is not None and left.account.tag_limits:
            left = within_tags(left, read.request.metadata)
        if not may_be_open:
            pass
        elif inside is not None:
            left = None  # the run counts the call, even if nothing limits it
        elif left is None:
            if self._open.get((caller.account, key_id), -inf) > self.clock.monotonic():
                return None
        elif left.account is None and left.key is None and (key_id is None or not is_issued(key_id)):
            return None
        if self.queue.is_full:
            raise self._named(StorageUnavailable("too many calls wait for the storage; check it, and try again"))
        started_at = self.clock.monotonic()
        request = read.request
        cap = None if request.params is None else request.params.max_output_tokens
        tokens = read.tokens.high + (OUTPUT_TOKENS if cap is None else int(cap))
        deadline = started_at + (request.timeout_ms or self.default_timeout_ms) / 1000
        trace_id = self.ids("tr_")
        at = self.clock.time()
        key = None if left is None else left.key
        rights = caller if key is None or not (key.models or key.policies) else narrow(caller, key)
        return Admission(
            self, read, caller, rights, run, left, patient, tokens, trace_id, at, started_at, deadline, self.event_id,
            None if inside is None else RunShare(inside),
        )  # fmt: skip

    async def find_rights(self, read: Read, caller: Caller) -> Caller:
        """The caller with what its key may use. Raises as ``begin`` and ``is_open``."""
        admission = self.begin(read, caller)
        if admission is not None and admission.left is None:
            await self.is_open(admission)
        return caller if admission is None else admission.rights

    def known_rights(self, caller: Caller) -> Caller:
        """The caller with what its key may use, as far as this process knows: for methods that admit no call."""
        left = self.accounts.left(caller)
        return caller if left is None or left.key is None else narrow(caller, left.key)

    def find_spent(self, caller: Caller, *policies: PolicySnapshot) -> SpentShares | None:
        """What a caller has spent of its limits, as far as this process knows. None: no policy reads it."""
        is_read = any(reads_limits(policy.policy) for policy in policies)
        return msgspec.convert(self.accounts.spent_shares(caller) or {}, SpentShares) if is_read else None

    async def is_open(self, admission: Admission) -> bool:
        """Look up an unknown caller. True if nothing limits the call. A caller that had no account before is not held
        up by an unavailable or hanging storage. Raises as ``Admission.look``, and ``PermissionDenied`` for an unknown
        account."""
        caller = admission.caller
        name = caller.account, caller.key_id
        if admission.may_be_open and caller == Caller(environment=caller.environment):
            return True
        if not admission.may_be_open or name not in self._open:
            return self._note(name, await self._look(admission)) and admission.may_be_open
        with suppress(InternalError), self.clock.deadline(self.clock.monotonic() + OPEN_S):
            return self._note(name, await self._look(admission))
        self._open[name] = self.clock.monotonic() + KNOWN_S

        async def look_again() -> None:  # take the answer of a slow storage when it comes
            with suppress(RouterError):
                self._note(name, await self._look(admission, LONGEST_S))

        self._worker.start_if_open(look_again)
        return True

    async def _look(self, admission: Admission, longest_s: float | None = None) -> wire.Left:
        # A typo in an account's name must not lift its limits, and yet an application without accounts may name as many
        # as it likes. What tells the two apart is whether the storage has any account. Accounts are never removed, so
        # "it has some" holds for ever, and "it has none" for `KNOWN_S`. A caller of the default account never asks.
        # test_an_unknown_account_is_refused_once_the_storage_has_accounts
        left = await admission.look(longest_s)
        caller = admission.caller
        if left.account is not None or left.key is not None or self._serves_unknown(caller):
            return left
        if not self._known:
            with suppress(errors.UnsupportedWrite):
                query = self._storage.read(wire.SYSTEM_ACCOUNT, wire.AllAccounts())
                accounts = await in_time(query, self.clock, admission.deadline)
                self._known = [account.name for account in accounts if account.name != wire.DEFAULT_ACCOUNT]
        if self._known or self._refuses:
            admission.is_unadmitted = True
            self._open.pop((caller.account, caller.key_id), None)
            text = f"the account {shown(caller.account)} is unknown;"
            public = f"{text} ask the operator to add it"
            is_owner = not admission.is_remote and caller.key_id is None and caller.scopes is None
            hint = " ".join(filter(None, (text, did_you_mean(caller.account, self._known), _HINT)))
            error = PermissionDenied(hint if is_owner else public)
            error.outside = public, {}
            raise self._named(error)
        if self._served_until == -inf:
            _log.warning("the account %s is unknown, so nothing limits its calls; %s", shown(caller.account), _HINT)
        self._served_until = self.clock.monotonic() + KNOWN_S
        return left

    def _serves_unknown(self, caller: Caller) -> bool:
        """True if a caller without an account is served without asking the storage."""
        is_exempt = caller.account == wire.DEFAULT_ACCOUNT or caller.environment == "sandbox"
        return is_exempt or self.clock.monotonic() < self._served_until

    def _note(self, name: tuple[str, str | None], left: wire.Left) -> bool:
        if left.account is not None or left.key is not None:
            self._open.pop(name, None)
            return False
        self._open[name] = -inf
        if len(self._open) > MOST_KNOWN:
            with suppress(KeyError):  # another thread took the last
                self._open.popitem(last=False)
        return True

    def event_id(self, percent: int) -> str:
        """The id of a threshold's event (``Facts.event_id``)."""
        return self.ids("evt_")

    def _named(self, error: RouterError) -> RouterError:
        error.request_id = self.ids("req_")
        self.count_refusal(error)
        return error


class Admission(Struct, eq=False):
    """The admission of one call. ``release`` returns what it still holds."""

    _shared: Admissions
    _read: Read
    caller: Caller
    rights: Caller
    """The caller with what its key may use."""
    run: RunLimit | None
    left: wire.Left | None
    """The caller's remaining money as far as this process knows. None: ask the storage."""
    is_patient: bool
    """It may wait for money that other calls hold."""
    tokens: int
    """Upper estimate of the call's tokens."""
    trace_id: str
    at: float
    """Unix seconds."""
    started_at: float
    deadline: float
    event_id: Callable[[int], str]
    """``Facts.event_id``."""
    in_run: RunShare | None = None
    """The run that makes the call."""
    claim: wire.Claim | None = None
    tags: wire.Tags = ()
    windows: Sequence[wire.WindowState] = ()
    """The rate limits when it was admitted."""
    grant: wire.Grant | None = None
    """None: it holds nothing."""
    is_unadmitted: bool = False
    """The storage refused it, or has not answered: it is not counted, and leaves no trace."""

    def adopt(self, call: Call) -> None:
        """Admit this call: with its id and times, and until its deadline, which a policy may have shortened."""
        self.trace_id = call.id
        self.at = call.created_at
        self.started_at = call.started_at
        self.deadline = call.deadline

    @property
    def headers(self) -> dict[str, str]:
        return headers_of(self.windows, self._shared.clock.time())

    def annotate(self, error: BaseException | None) -> None:
        if isinstance(error, RouterError):
            error.headers = self.headers | error.headers
            error.request_id = error.request_id or self._shared.ids("req_")
            self._shared.count_refusal(error)
            for run in () if self.in_run is None else self.in_run.inside.scope.around():
                run.is_short = isinstance(error, MONEY_ERRORS)

    @property
    def is_remote(self) -> bool:
        return self._read.is_remote

    @property
    def may_be_open(self) -> bool:
        """True if it needs no admission unless its caller has an account."""
        return self.run is None and self._read.request.idempotency_key is None

    async def look(self, longest_s: float | None = None) -> wire.Left:
        """Ask the storage for the caller's remaining money. Raises ``AuthenticationFailed`` for a key that is revoked
        or of another store, ``StorageUnavailable``, and ``RouterTimeoutError``."""
        self.is_unadmitted = self.grant is None
        deadline = self.deadline if longest_s is None else self._shared.clock.monotonic() + longest_s
        left: object = await in_time(self._shared.accounts.look(self.caller, self.run), self._shared.clock, deadline)
        if not isinstance(left, wire.Left):
            raise unfit(self._shared.accounts, "look", "a Left", left)
        self.left = left = within_tags(left, self._read.request.metadata)
        self.is_unadmitted = False
        self.rights = self.caller if left.key is None else narrow(self.caller, left.key)
        return left

    async def take(self, nanos: int = 0) -> wire.Grant | wire.Replay | wire.Short:
        """Take all that the call needs, or nothing; for an admitted call, change the reserved amount. Waits within the
        call's time for money that other calls hold. A call of an agent run waits for its rate limits, too. Raises as
        ``Accounts.admit``."""
        # Taken one after the other, key, windows, slot and money would leak into each other: a call refused for money
        # would have used up a request of its rate limit, and two calls with one key would both see it free. So the
        # storage takes all in one step, or nothing (contract 7; P1: one key, one call at a time). It also holds the
        # queue: a second call with a running key waits inside `admit` for the answer, which comes as a `Replay`, and
        # takes over if the first leaves without one. Until the storage answers, nobody knows if the call was admitted:
        # `is_unadmitted` stays set: a call that times out here leaves no trace, and the storage returns what it took.
        # test_calls_of_four_processes_with_one_idempotency_key_are_one_call,
        # test_a_waiting_call_takes_over_if_the_first_is_cancelled, test_an_unanswered_admission_is_released
        shared = self._shared
        read = self._read
        if self.left is not None and self.left.account is not None and self.left.account.tag_limits:
            self.tags = tags_of(self.left.account, read.request.metadata)
        if self.claim is None and read.request.idempotency_key is not None:
            body = msgspec.to_builtins(read.request) if read.body is None else read.body
            rights = self.rights.models, self.rights.policies  # other keys of the account may be allowed more
            path = read.path if rights == (None, None) else f"{read.path} {rights}"
            self.claim = wire.Claim(read.request.idempotency_key, fingerprint("POST", path, body))
        while True:
            left_s = self.deadline - shared.clock.monotonic()
            spare_s = 0.0 if shared.is_immediate else min(SPARE_S, left_s / 4)
            ask = wire.Ask(
                id=self.trace_id,
                caller=self.caller,
                at=self.at,
                lasts_s=left_s,
                tokens=self.tokens,
                nanos=nanos,
                waits_s=left_s - spare_s if self.is_patient else 0.0,
                claim=self.claim,
                run=self.run,
                slot=self.in_run is None,
                tags=self.tags,
            )
            pending_reply = shared.accounts.admit(ask)
            self.is_unadmitted = self.grant is None
            reply: object
            try:
                reply = await (
                    pending_reply if shared.is_immediate else in_time(pending_reply, shared.clock, self.deadline)
                )
            except RateLimited as error:
                wait_s = error.detail["retry_after_seconds"]
                if self.run is None or wait_s > left_s:
                    raise
                await shared.clock.sleep(wait_s)
                continue
            except StorageUnavailable:
                shared.queue.last_write = False
                raise
            self.is_unadmitted = False
            if isinstance(reply, wire.Grant):
                if self.grant is None:
                    self.windows = reply.windows
                self.grant = reply
                return reply
            if isinstance(reply, wire.Replay | wire.Short):
                return reply
            self.is_unadmitted = True
            raise unfit(shared.accounts, "admit", "a Grant, a Replay or a Short", reply)

    async def count(self) -> bytes | None:
        """Count an invalid or unservable request in the rate limits, and release the rest. Returns the answer kept
        under its idempotency key, if any. Raises if the admission refuses it first."""
        reply = await self.take()
        self.release()
        return reply.result if isinstance(reply, wire.Replay) else None

    @property
    def nanos(self) -> int:
        return 0 if self.grant is None else self.grant.nanos

    async def await_room(self, changed: Signal) -> bool:
        """Wait within the call's time. False: it is up, or the call may not wait."""
        if not self.is_patient:
            return False
        with self._shared.clock.deadline(self.deadline) as limit:
            await changed.wait()
        return not limit.expired

    async def widen(self, nanos: int) -> None:
        grant = self.grant
        if grant is None or nanos <= grant.nanos:
            return
        try:
            await in_time(self._shared.accounts.widen(grant, nanos), self._shared.clock, self.deadline)
        except RouterError:
            return  # the reserved amount has to suffice

    def release(self) -> None:
        """Release what it holds, without tokens. Safe to call twice. A forked child releases nothing of its parent."""
        if self.in_run is not None:
            self.in_run.release()
        grant, self.grant = self.grant, None
        if grant is not None and self.started_at >= self._shared.since:
            self._shared.accounts.release(grant)
