"""How a request becomes an answer, in named steps. Read this first.

    request -> read -> admit -> choose -> Execution.run (or a Stream that pulls it, or a host's Steps)
        -> conclude -> Outcome

``read`` checks the request; ``admit`` lays the policy over it and makes the decision's input; ``choose`` decides,
counting tokens only where the bounds leave it open; the execution calls models; ``Records.conclude`` keeps the trace,
and what went wrong is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn, TypeVar

import anyio.to_thread
from msgspec.structs import replace

from routewright._core.call import Rules
from routewright._core.catalogue import resolve_one
from routewright._core.check import PolicyCheck, check
from routewright._core.constraints import CountTokens
from routewright._core.gate import RequestGate, standing
from routewright._core.guardrail import Hit, guardrails_of
from routewright._core.intake import input_of, with_ids
from routewright._core.output import Form
from routewright._core.plan import Plan, build_plan
from routewright._core.policy import Laid, by_key, find_policy, under_policy
from routewright._core.scan import quoted
from routewright._core.tokens import VOCABULARIES, bounds_of
from routewright._core.why_not import WhyNot, why_not
from routewright.errors import BlockedByPolicy, RouterError, RouterTimeoutError
from routewright.protocols import Clock, Guardrail, QualityPredictor, Rng
from routewright.wire import (
    Caller,
    DecisionInput,
    Environment,
    OnPartial,
    PolicyFallback,
    PolicySnapshot,
)

from .capture import Capturing
from .course import Course
from .entry import Counting, CountRequest, Entry
from .event import Hooks
from .execution import Execution
from .fleet import Fleet
from .guardrail import LARGE_CHARACTERS, done_now, pass_gate
from .hedge import HedgedExecution
from .identity import Ids
from .outcome import Admitted, Outcome
from .reading import Asked, Read
from .record import Records
from .trace import TraceLog

C = TypeVar("C", bound=Course)


class Published(NamedTuple):
    """The policies in force, replaced as a whole: a request keeps the one that it found."""

    snapshots: Sequence[PolicySnapshot]
    by_key: Mapping[str, PolicySnapshot]
    guardrails: Mapping[str, Sequence[Guardrail]]
    """Of each policy, by its snapshot's id: made once, since long lists take their time."""

    def guardrails_of(self, published: PolicySnapshot) -> Sequence[Guardrail]:
        """Those of a policy, which need not be in force any more."""
        if not published.policy.guardrails:
            return ()
        found = self.guardrails.get(published.id)
        return guardrails_of(published.policy) if found is None else found


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
    ) -> None:
        self.fleet = fleet
        self.publish(policies)
        self.ids = Ids(clock, rng)
        self.records = Records(log, hooks, self.ids, clock, rollup_keys, capture)
        self._clock = clock
        self._rng = rng
        self._counting = Counting(count, predictor, clock)
        self._guardrails = guardrails
        self._default_output_cap = default_output_cap

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

    async def route(self, asked: Asked, caller: Caller) -> Outcome:
        """Answer a request whole. Raises ``RouterError``; its trace is kept either way."""
        entry = self.admit(await self.read(asked), caller)
        try:
            outcome = await self._carry_out(entry, asked.form)
        except RouterError as error:
            if self.records.commits:
                await self.records.commit(error.trace_id, entry.deadline)
            raise
        if self.records.commits:
            await self.records.commit(outcome.facts.id, entry.deadline)
        return outcome

    async def _carry_out(self, entry: Entry, form: Form | None) -> Outcome:
        if self._is_guarded(entry):
            entry = await self.guarded(entry)
        return await self.run(entry, self.execution(entry, await self.choose(entry), whole=True, form=form))

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

    def admit(self, asked: Read, caller: Caller, fleet: Fleet | None = None) -> Entry:
        """Lay the policy over a checked request and make the decision's input, for the caller's fleet or another."""
        request, tokens = asked
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
            self.ids("tr_"),
            self._clock.time(),
            started_at,
            None if policy is None else policy.policy.id,
            fleet.inline_version if policy is None else policy.version,
            given,
            request.metadata or {},
            bool(request.cache),
        )
        return Entry(request, admitted, fleet, board, laid)

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

    def choose_now(self, entry: Entry) -> Plan:
        """Decide without awaiting; counting tokens, where that is needed, holds up the caller."""
        given = self._counting.predicted(entry)
        plan = _plan_uncounted(entry, given)
        return plan or build_plan(self._counting.recounted(entry, given), entry.board, entry.laid)

    def why_not(self, entry: Entry, model: str) -> WhyNot:
        """Say what would have to be true for a model, or an alias of one, to be chosen. Counts tokens."""
        model = resolve_one(model, entry.fleet.aliases, entry.fleet.pool.row, "model")
        given = self._counting.counted(entry, self._counting.predicted(entry), VOCABULARIES)
        return why_not(given, entry.board, model, entry.laid)

    def check(self, asked: Read, caller: Caller) -> list[PolicyCheck]:
        """Check every policy by one request. Counts tokens."""
        found = []
        for published in self.policies:
            under = replace(asked.request, policy_id=published.policy.id)
            entry = self.admit(asked._replace(request=under), caller)
            given = self._counting.counted(entry, self._counting.predicted(entry), VOCABULARIES)
            assert entry.laid is not None, "it was admitted under the policy"
            found.append(check(given, entry.board, entry.laid))
        return found

    async def choose(self, entry: Entry) -> Plan:
        """Decide; long prompts are counted in a worker thread. Whatever keeps it from that leaves its trace."""
        given = entry.admitted.given
        try:
            given = self._counting.predicted(entry)
            plan = _plan_uncounted(entry, given)
            if plan is None:
                given = await self._counting.recounted_aside(entry, given)
                plan = build_plan(given, entry.board, entry.laid)
            return plan
        except BaseException as error:
            self.records.undecided(entry, given, error)
            raise

    def choose_here(self, entry: Entry) -> Plan:
        """Decide as ``choose`` does, without awaiting."""
        given = entry.admitted.given
        try:
            given = self._counting.predicted(entry)
            plan = _plan_uncounted(entry, given)
            if plan is None:
                given = self._counting.recounted(entry, given)
                plan = build_plan(given, entry.board, entry.laid)
            return plan
        except BaseException as error:
            self.records.undecided(entry, given, error)
            raise

    def refuse(self, entry: Entry, error: RouterError) -> NoReturn:
        """Raise it for a request that was let in and needs no decision. Its trace is kept."""
        self.records.undecided(entry, entry.admitted.given, error)
        raise error

    def execution(
        self, entry: Entry, plan: Plan, *, whole: bool, on_partial: OnPartial | None = None, form: Form | None = None
    ) -> Execution:
        """Make the execution of a plan. ``on_partial`` holds in place of what the request says."""
        rules = _policy_fallback(entry)
        kind = HedgedExecution if rules is not None and rules.hedge else Execution
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
            rules=_rules(entry, on_partial),
            sandbox=entry.admitted.caller.environment == "sandbox",
            form=form,
            guardrails=standing(self.guardrails(entry), "output") if self._is_guarded(entry) else (),
        )


def _plan_uncounted(entry: Entry, given: DecisionInput) -> Plan | None:
    """The plan, or None where tokens have to be counted first: behind this, so that no refusal is chained to it."""
    try:
        return build_plan(given, entry.board, entry.laid)
    except CountTokens:
        return None


def _blocked(hit: Hit) -> BlockedByPolicy:
    said = (
        f"the guardrail {quoted(hit.guardrail)} blocks the request by its rule {quoted(hit.rule)}; no model was asked"
    )
    return BlockedByPolicy(said, detail={"guardrail": hit.guardrail, "rule": hit.rule, "stage": hit.stage})


def _rules(entry: Entry, on_partial: OnPartial | None) -> Rules:
    """How a request is carried out; ``on_partial`` holds in place of what it says."""
    asked, given = entry.request.fallback, _policy_fallback(entry)
    if asked is None and given is None and on_partial is None:
        return entry.fleet.rules
    return Rules(
        entry.fleet.limits,
        on_partial or (None if asked is None else asked.on_partial) or "restart",
        on_refusal_fall_back=given is not None and given.on_refusal == "fallback",
        hedged=given is not None and given.hedge,
    )


def _policy_fallback(entry: Entry) -> PolicyFallback | None:
    return None if entry.laid is None else entry.laid.published.policy.fallback


def raise_failure(outcome: Outcome) -> Outcome:
    """Hand a success on, raise anything else."""
    error = outcome.error
    if error is None:
        return outcome
    try:
        raise error
    finally:
        del error, outcome  # else the error's frames hold the error
