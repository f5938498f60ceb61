"""How a request becomes an answer, in named steps. Read this first.

    request -> read -> admit -> choose -> Execution.run (or a Stream that pulls it, or a host's Steps)
        -> conclude -> Outcome

``read`` checks the request; ``admit`` lays the policy over it and makes the decision's input; ``choose`` decides,
counting tokens only where the bounds leave it open; the execution calls models; ``Records.conclude`` keeps the trace,
and what went wrong is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NoReturn, TypeVar

import anyio.to_thread
from msgspec.structs import replace

from routewright._core.check import PolicyCheck, check
from routewright._core.gate import RequestGate, standing
from routewright._core.guardrail import Hit, guardrails_of
from routewright._core.intake import input_of, with_ids
from routewright._core.output import Form
from routewright._core.plan import Plan
from routewright._core.policy import Laid, by_key, find_policy, under_policy
from routewright._core.scan import quoted
from routewright._core.tokens import bounds_of
from routewright.errors import (
    AuthenticationFailed,
    BlockedByPolicy,
    InsufficientBalance,
    QuotaExhausted,
    RateLimited,
    RouterError,
    RouterTimeoutError,
)
from routewright.protocols import Clock, Guardrail, QualityPredictor, Rng
from routewright.wire import (
    Caller,
    Environment,
    OnPartial,
    PolicySnapshot,
    RunLimit,
)

from .admission import Admission, Admissions
from .capture import Capturing
from .choice import Choices
from .course import Course
from .entry import Counting, CountRequest, Entry
from .event import Hooks
from .execution import Execution
from .fleet import Fleet
from .guardrail import LARGE_CHARACTERS, done_now, pass_gate
from .hedge import HedgedExecution
from .identity import Ids
from .money import Afforded
from .outcome import Admitted, Outcome
from .policy import Published, is_hedged, rules_of
from .reading import Asked, Read
from .record import Records
from .replay import Replayed, read_result, reread
from .trace import TraceLog
from .traceparent import Onward

C = TypeVar("C", bound=Course)
Began = Callable[[Execution], None]
"""Is told of an execution before it begins."""


class Engine:
    """The pipeline over one Router's parts. Safe to use from several loops and threads."""

    def __init__(
        self,
        *,
        fleet: Callable[[Environment], Fleet],
        policies: Sequence[PolicySnapshot],
        log: TraceLog,
        hooks: Hooks,
        clock: Clock,
        rng: Rng,
        count: CountRequest,
        predictor: QualityPredictor | None,
        default_output_cap: int,
        guardrails: Sequence[Guardrail] = (),
        rollup_keys: tuple[str, ...] = (),
        capture: Capturing | None = None,
        traceparent_to: Collection[str] = (),
        ids: Ids,
        admissions: Admissions,
    ) -> None:
        self.fleet = fleet
        self.publish(policies)
        self.ids = ids
        self.admissions = admissions
        self.records = Records(log, hooks, admissions.spool, self.ids, clock, rollup_keys, capture)
        admissions.keep_dropped = admissions.owner.tidy = self.records.keep_dropped
        self._clock = clock
        self._rng = rng
        self.choices = Choices(Counting(count, predictor, clock))
        self._guardrails = guardrails
        self._default_output_cap = default_output_cap
        self._traceparent_to = traceparent_to

    def publish(self, policies: Sequence[PolicySnapshot]) -> None:
        """Put policies in the place of those before, for all requests that come from now on."""
        made = {each.id: guardrails_of(each.policy) for each in policies if each.policy.guardrails}
        self._published = Published(policies, by_key(policies), made)

    @property
    def policies(self) -> Sequence[PolicySnapshot]:
        """The policies in force."""
        return self._published.snapshots

    async def read(self, asked: Asked) -> Read:
        """Check what a caller passed and bound its length, in a worker thread where that takes long."""
        if self._clock.virtual or not asked.is_large:
            return asked.read()
        return await anyio.to_thread.run_sync(asked.read, abandon_on_cancel=True)

    async def route(self, asked: Asked | Read, caller: Caller, run: RunLimit | None = None) -> Outcome | Replayed:
        """Answer a request whole, perhaps in an agent ``run``. Raises ``RouterError``; its trace is kept either way,
        if it was let in."""
        read, form = (asked, None) if isinstance(asked, Read) else (await self.read(asked), asked.form)
        if run is None and self.admissions.is_open(read.request, caller):
            return await self._concluded(self.admit(read, caller), form=form)
        with self.records.named():
            async with Admission(self.admissions, read, caller, run) as admission:
                kept = await admission.begin()
                if kept is not None:
                    return await self.replayed(kept, caller, form)
                return await self._concluded(self.admit(read, caller, admission=admission), form=form)

    async def carry_out(self, read: Read, entry: Entry, began: Began) -> Outcome | Replayed:
        """Answer a request that was let in and is past the guardrails."""
        caller = entry.admitted.caller
        if self.admissions.is_open(read.request, caller):
            return await self._ended(entry, began=began)
        with self.records.named():
            async with Admission(self.admissions, read, caller) as admission:
                kept = await admission.begin()
                if kept is not None:
                    return await self.replayed(kept, caller)
                return await self._ended(entry.holding(admission), began=began)

    async def replayed(self, kept: bytes, caller: Caller, form: Form | None = None) -> Replayed:
        """The answer that was given under an idempotency key."""
        response = read_result(kept)
        data = None if form is None or response.tool_calls else reread(form, response.output)
        return Replayed(response, await self.records.find(caller, response.trace_id), data)

    async def _concluded(self, entry: Entry, form: Form | None = None) -> Outcome:
        """Answer a request that was let in, if the guardrails let it pass."""
        if self._is_guarded(entry):
            try:
                entry = await self.guarded(entry)
            except RouterError as error:
                await self._kept(entry, error.trace_id)
                raise
        return await self._ended(entry, form)

    async def _ended(self, entry: Entry, form: Form | None = None, began: Began | None = None) -> Outcome:
        """Answer a request, and wait until what has to be kept of it is."""
        try:
            entry, plan = await self.afford(entry)
            execution = self.execution(entry, plan, whole=True, form=form)
            if began is not None:
                began(execution)
            outcome = await self.run(entry, execution)
        except RouterError as error:
            await self._kept(entry, error.trace_id)
            raise
        await self._kept(entry, outcome.facts.id)
        return outcome

    async def leave(self, entry: Entry, outcome: Outcome) -> None:
        """Wait until what has to be kept of a call that is over is, and give back what it held."""
        try:
            await self._kept(entry, outcome.facts.id)
        finally:
            if entry.admission is not None:
                await entry.admission.aclose()

    async def _kept(self, entry: Entry, trace_id: str | None) -> None:
        """Wait until what has to be kept of a call is, if it has to be before its answer."""
        if self.records.commits or entry.admission is not None:
            await self.records.commit(trace_id, entry.deadline)

    async def afford(self, entry: Entry) -> Afforded:
        """Decide within what the caller has left, and set aside what that can cost. Whatever keeps it from that leaves
        its trace, but for a want of money."""
        if entry.admission is None:
            return Afforded(entry, await self.choose(entry))
        try:
            return await entry.admission.afford(entry, self.choices.plan, hedged=is_hedged(entry))
        except (AuthenticationFailed, InsufficientBalance, QuotaExhausted, RateLimited):
            raise
        except BaseException as error:
            self.records.undecided(entry, entry.admitted.given, error)
            raise

    async def run(self, entry: Entry, execution: Execution) -> Outcome:
        """Carry an execution out. Raises ``RouterError``; its trace is kept either way."""
        try:
            await execution.run()
        except BaseException:
            try:
                await execution.aclose()
            finally:
                self.records.conclude(entry, execution)
            raise
        return raise_failure(self.records.conclude(entry, execution))

    def admit(
        self, asked: Read, caller: Caller, fleet: Fleet | None = None, admission: Admission | None = None
    ) -> Entry:
        """Lay the policy over a checked request and make the decision's input, for the caller's fleet or another."""
        request, tokens = asked.request, asked.tokens
        self.records.keep_dropped()
        started_at = self._clock.monotonic()
        if fleet is None:
            fleet = self.fleet(caller.environment)
        fleet.require_providers()
        today = fleet.today()
        board, policy, laid = fleet.board(today), None, None
        pool = board.outlook.pool
        request = with_ids(request, fleet.aliases, pool.row)
        if request.policy_id is not None:
            policy = find_policy(request.policy_id, self._published.by_key)
            laid = Laid(policy, request.models)
            request = under_policy(request, policy)
        given = input_of(
            request,
            tokens,
            pool=pool,
            health=board.outlook.health.id,
            policy=policy,
            as_of=today,
            default_output_cap=self._default_output_cap,
        )
        admitted = Admitted(
            caller,
            self.ids("tr_") if admission is None else admission.trace_id,
            self._clock.time(),
            started_at if admission is None else admission.started_at,
            None if policy is None else policy.policy.id,
            fleet.inline_version if policy is None else policy.version,
            given,
            request.metadata or {},
            bool(request.cache),
            windows=() if admission is None else admission.windows,
            traceparent=asked.traceparent,
        )
        return Entry(request, admitted, fleet, board, laid, admission)

    async def guarded(self, entry: Entry) -> Entry:
        """Take a request that was let in past the guardrails. Raises ``BlockedByPolicy``; its trace is kept."""
        guardrails = standing(self.guardrails(entry), "input")
        if not guardrails:
            return entry
        gate, large = RequestGate(entry.request, guardrails), entry.admitted.given.tokens.high > LARGE_CHARACTERS
        try:
            with self._clock.deadline(entry.deadline) as limit:
                await pass_gate(gate, aside=large and not self._clock.virtual)
            if limit.expired:
                said = f"timeout_ms={entry.admitted.given.timeout_ms} ran out while the request was with a guardrail"
                raise RouterTimeoutError(f"{said}; allow more time, or a quicker guardrail")
        except BaseException as error:
            self.records.undecided(entry._replace(request=gate.request), entry.admitted.given, error)
            raise
        return self._past(gate, entry)

    def guarded_now(self, entry: Entry) -> Entry:
        """Take a request past guardrails that need not be awaited. Raises ``BlockedByPolicy``, and ``InternalError``
        for one that has to be; its trace is kept."""
        guardrails = standing(self.guardrails(entry), "input")
        if not guardrails:
            return entry
        gate = RequestGate(entry.request, guardrails)
        try:
            done_now(pass_gate(gate))
        except BaseException as error:
            self.records.undecided(entry._replace(request=gate.request), entry.admitted.given, error)
            raise
        return self._past(gate, entry)

    def _is_guarded(self, entry: Entry) -> bool:
        """Whether any guardrail stands in the way of a request."""
        return bool(self._guardrails) or (entry.laid is not None and bool(entry.laid.published.policy.guardrails))

    def guardrails(self, entry: Entry) -> Sequence[Guardrail]:
        """Those that stand in the way of a request, the Router's before those of its policy."""
        if entry.laid is None:
            return self._guardrails
        return (*self._guardrails, *self._published.guardrails_of(entry.laid.published))

    def _past(self, gate: RequestGate, entry: Entry) -> Entry:
        """The entry with what is left of its request."""
        admitted, request = entry.admitted._replace(hits=gate.hits), gate.request
        entry = entry._replace(request=request, admitted=admitted)
        if gate.blocked is not None:
            self.refuse(entry, _blocked(gate.blocked))
        if not gate.hits:
            return entry
        return entry._replace(admitted=admitted._replace(given=replace(admitted.given, tokens=bounds_of(request))))

    def check(self, asked: Read, caller: Caller) -> list[PolicyCheck]:
        """Check every policy by one request. Counts tokens."""
        found = []
        for published in self.policies:
            under = replace(asked.request, policy_id=published.policy.id)
            entry = self.admit(asked._replace(request=under), caller)
            assert entry.laid is not None, "it was admitted under the policy"
            found.append(check(self.choices.counted(entry), entry.board, entry.laid))
        return found

    async def choose(self, entry: Entry) -> Plan:
        """Decide. Whatever keeps it from that leaves its trace."""
        choice = self.choices.of(entry)
        try:
            return await choice.plan()
        except BaseException as error:
            self.records.undecided(entry, choice.given, error)
            raise

    def choose_here(self, entry: Entry) -> Plan:
        """Decide as ``choose`` does, without awaiting."""
        choice = self.choices.of(entry)
        try:
            return choice.plan_now()
        except BaseException as error:
            self.records.undecided(entry, choice.given, error)
            raise

    def refuse(self, entry: Entry, error: RouterError) -> NoReturn:
        """Raise it for a request that was let in and needs no decision. Its trace is kept."""
        self.records.undecided(entry, entry.admitted.given, error)
        raise error

    def execution(
        self, entry: Entry, plan: Plan, *, whole: bool, on_partial: OnPartial | None = None, form: Form | None = None
    ) -> Execution:
        """Make the execution of a plan. ``on_partial`` holds in place of what the request says."""
        kind = HedgedExecution if is_hedged(entry) else Execution
        return self.course(kind, entry, plan, whole=whole, on_partial=on_partial, form=form)

    def course(
        self,
        kind: type[C],
        entry: Entry,
        plan: Plan,
        *,
        whole: bool = True,
        on_partial: OnPartial | None = None,
        form: Form | None = None,
    ) -> C:
        """Make a plan's course, of the kind that its caller can follow."""
        return kind(
            entry.request,
            plan,
            entry.fleet,
            clock=self._clock,
            rng=self._rng,
            deadline=entry.deadline,
            whole=whole,
            rules=rules_of(entry, on_partial),
            sandbox=entry.admitted.caller.environment == "sandbox",
            form=form,
            guardrails=standing(self.guardrails(entry), "output") if self._is_guarded(entry) else (),
            cover=None if entry.admission is None else entry.admission.cover,
            onward=self._onward(entry.admitted),
        )

    def _onward(self, admitted: Admitted) -> Onward | None:
        """How the trace that a call belongs to goes on, if any provider is to hear of it."""
        parent = admitted.traceparent
        if parent is None or not self._traceparent_to:
            return None
        return Onward(parent, admitted.trace_id, self._traceparent_to)


def _blocked(hit: Hit) -> BlockedByPolicy:
    said = (
        f"the guardrail {quoted(hit.guardrail)} blocks the request by its rule {quoted(hit.rule)}; no model was asked"
    )
    return BlockedByPolicy(said, detail={"guardrail": hit.guardrail, "rule": hit.rule, "stage": hit.stage})


def raise_failure(outcome: Outcome) -> Outcome:
    """Hand a success on, raise anything else."""
    error = outcome.error
    if error is None:
        return outcome
    try:
        raise error
    finally:
        del error, outcome  # else the error's frames hold the error
