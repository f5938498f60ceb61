"""How a request becomes an answer, in named steps. Read this first.

    request -> read -> make_call -> begin, or enter -> Execution.run (or a Stream that pulls it, or a host's Steps)
        -> conclude -> Answer

``read`` checks the request. ``make_call`` makes its ``Call``: snapshots, policy, requirements. ``begin`` decides, and
counts tokens only where their bounds do not settle it. ``enter`` does the same for a caller with limits, and reserves
what the call needs. The execution calls models. ``Records.conclude`` keeps the trace; then any failure is raised.

Deciding, admission, guardrails and the cache return values; only this file puts them into the ``Call``, each once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import NamedTuple, NoReturn

from msgspec import Struct, json
from msgspec.structs import replace

from routewright._core.accounts.payer import held_by_others, without_money
from routewright._core.attempts.machine import Attempts, End, Rules
from routewright._core.attempts.statistics import values_of
from routewright._core.call import Call
from routewright._core.guardrails.screen import RequestGate, guardrails_of, standing
from routewright._core.guardrails.texts import PIECE_CHARS
from routewright._core.policy import Laid, by_key, class_of, find_policy, name_of, under_policy
from routewright._core.request.read import STREAMED
from routewright._core.request.rules import check_costs_nothing, check_https
from routewright._core.routing.budget import UNLIMITED, room_of, worst_of_start
from routewright._core.routing.choice import class_plan, input_of_call, within_money
from routewright._core.routing.constraints import CountTokens
from routewright._core.routing.decide import Choice, choose, countable, decide, least_nanos
from routewright._core.routing.decision import Decision
from routewright._core.routing.inputs import Defaults, asked_of, caller_requirements, with_ids
from routewright._core.routing.request_options import request_options_of
from routewright._core.routing.scoring import LEAST_TOKENS
from routewright._core.routing.what_if import PolicyCheck, check
from routewright._core.structured_output import Form
from routewright._core.tokens.estimate import bounds_of
from routewright.errors import (
    BlockedByPolicy,
    InsufficientBalance,
    NoCandidates,
    QuotaExhausted,
    RateLimited,
    RouterError,
    RouterTimeoutError,
    StorageUnavailable,
    ValidationFailed,
)
from routewright.loop import at_once, in_plain_code, in_thread
from routewright.protocols import Guardrail, Rng
from routewright.wire import (
    Caller,
    DecisionInput,
    Environment,
    Grant,
    Need,
    PolicyFallback,
    PolicySnapshot,
    Replay,
    RouteResponse,
    RunLimit,
    Scope,
)
from routewright.wire.json_scan import quoted

from .admission import TRIES, Admission, Admissions
from .answer import Answer, DecideAgain, Replayed, reread
from .cache import Caching, Lookup
from .context import Onward
from .counting import Counting
from .discovery import Discovery
from .execute import Execution
from .fleet import Fleet
from .guardrail import pass_gate, rest
from .hedge import Hedge
from .record import Records
from .request_input import RawRequest, Read
from .storage import storage_faults

_HTTP_URL = int(Need.HTTP_URL)
_decode = json.Decoder(RouteResponse).decode
_TRACELESS = InsufficientBalance, QuotaExhausted, RateLimited, ValidationFailed
"""Refusals that leave no trace (contract 9)."""


class Options(NamedTuple):
    """Settings of every call."""

    defaults: Defaults
    guardrails: Sequence[Guardrail]
    rollup_keys: tuple[str, ...]
    """Metadata keys that usage is counted by."""
    workload_keys: tuple[str, ...]
    """Metadata keys that tell workloads apart."""
    traceparent_to: Collection[str]
    """Providers that trace contexts are sent to."""


class Entry(Struct, frozen=True):
    """A call that was admitted."""

    call: Call
    hold: Admission | None = None
    """What it holds. None: nothing limits the call, which is not decided yet."""
    lookup: Lookup | None = None


class Engine:
    """The pipeline over one Router's parts. Safe to use from several loops and threads."""

    def __init__(
        self,
        *,
        fleet: Callable[[Environment], Fleet],
        fleets: Mapping[str, Fleet],
        servers: Discovery,
        policies: Sequence[PolicySnapshot],
        counting: Counting,
        rng: Rng,
        records: Records,
        admissions: Admissions,
        caching: Callable[[], Caching],
        decide_again: DecideAgain,
        options: Options,
    ) -> None:
        """``fleets`` has those that ``fleet`` has made."""
        self.fleet = fleet
        self._fleets = fleets
        self.servers = servers
        self.counting = counting
        self.records = records
        self.admissions = admissions
        self.ids = admissions.ids
        self._clock = records.clock
        self._rng = rng
        self.defaults, self._guardrails, self._rollup_keys, self._workload_keys, self._traceparent_to = options
        self._caching = caching
        self._decide_again = decide_again
        self._warmth = records.warmth
        self.publish(policies)

    @cached_property
    def caching(self) -> Caching:
        return self._caching()

    def publish(self, policies: Sequence[PolicySnapshot]) -> None:
        self.policies = policies
        self._policy_by_key = by_key(policies)
        laid = {each.id: each.policy for each in policies}
        laid |= {each.id: each.policy for one in policies for each in one.classes}
        self._policy_guardrails = {id: guardrails_of(policy) for id, policy in laid.items() if policy.guardrails}

    async def read(self, asked: RawRequest | Read) -> Read:
        """Check a request and bound its tokens; a large one in a worker thread."""
        if isinstance(asked, Read):
            return asked
        return await in_thread(self._clock, asked.read) if asked.is_large else asked.read()

    async def route(
        self,
        asked: RawRequest | Read,
        caller: Caller,
        run: RunLimit | None = None,
        form: Form | None = None,
        scope: Scope = "route",
    ) -> Answer:
        """Answer a request in one piece. Raises ``RouterError``. An admitted request leaves a trace either way."""
        if isinstance(asked, Read):
            read = asked
        else:
            form, read = asked.form, await self.read(asked)
            if read.request.stream:
                raise ValidationFailed.of(STREAMED)
        if not self.servers.looked.is_set:
            await self.servers.wait()
        hold = self.admissions.begin(read, caller, run, scope=scope)
        if hold is None:
            return await self._answer(self.make_call(read, caller), None, form)
        return await self._limited(hold, read, None, form)

    async def carry_out(self, read: Read, call: Call) -> Answer:
        """Answer an admitted request that has passed the guardrails."""
        hold = self.admissions.begin(read, call.caller)
        if hold is None:
            return await self._answer(call)
        hold.adopt(call)
        return await self._limited(hold, read, call)

    async def _limited(self, hold: Admission, read: Read, call: Call | None, form: Form | None = None) -> Answer:
        try:
            entry = await self.enter(hold, read, call, form=form)
            if isinstance(entry, bytes):
                return await self.replayed(entry, hold.caller, form)
            return await self._answer(entry.call, entry, form)
        except RouterError as error:
            hold.tell(error)
            raise
        finally:
            if hold.grant is not None:
                hold.release()
            if self.admissions.queue.is_closed:
                await self.records.write_last(hold.trace_id)

    async def replayed(self, stored: bytes, caller: Caller, form: Form | None = None) -> Answer:
        """The answer kept under an idempotency key."""
        with storage_faults:
            response = _decode(stored)
        data = None if form is None or response.tool_calls else reread(form, response.output)
        before = Replayed(response, await self.records.find(caller, response.trace_id), self._decide_again)
        return Answer(before, None, response.output, response.tool_calls, data)

    async def _answer(self, call: Call, entry: Entry | None = None, form: Form | None = None) -> Answer:
        """Answer an admitted request; return once everything that must be stored is. Raises ``RouterError``; the trace
        is kept either way."""
        is_limited = entry is not None and entry.hold is not None
        commits = self.records.commits or (is_limited and not self.admissions.is_immediate)
        try:
            if entry is None or entry.hold is None:
                execution = await self.begin(call, form=form)
            else:
                execution = self.execution(call, entry.hold, entry.lookup, form=form)
            try:
                await execution.run()
            except BaseException:
                try:
                    await execution.aclose()
                finally:
                    self.records.conclude(call, execution, left=True)
                raise
            answer, error = self.records.conclude(call, execution)
            if error is not None:
                raise_failure(error)
        except RouterError:
            if commits:
                await self.records.commit(call)
            raise
        if commits:
            await self.records.commit(call)
        return answer

    async def begin(
        self, call: Call, *, whole: bool = True, form: Form | None = None, patient: bool = True
    ) -> Execution:
        """Guard and decide a call that nothing limits, look it up in the cache, and make the execution of its plan."""
        if not call.is_guarded and (self._guardrails or call.policy is not None):
            await self.guard(call)
        request, lookup = call.request, None
        budget = None if request.budget is None else room_of(request.budget)
        plan = None if self.counting.predictor is not None else class_plan(call, budget, self.defaults)
        if plan is not None:
            call.plan = plan
            if budget is not None:
                call.budget = budget
        else:
            try:
                call.decide(await self._choose(call, self.input_of(call)))
            except BaseException as error:
                self.undecided(call, error)
                raise
        if request.cache:
            try:
                lookup = await self._look_up(call, form, patient=patient)
            except BaseException as error:
                self.undecided(call, error)
                raise
        return self.execution(call, None, lookup, whole=whole, form=form)

    async def start(
        self, hold: Admission, read: Read, fleet: Fleet | None = None, *, whole: bool = True
    ) -> Execution | bytes:
        """Begin a call of a caller with limits. Returns the answer kept under its idempotency key, if there is one."""
        entry = await self.enter(hold, read, fleet=fleet)
        if isinstance(entry, bytes):
            return entry
        if entry.hold is None:
            return await self.begin(entry.call, whole=whole, patient=hold.is_patient)
        return self.execution(entry.call, entry.hold, entry.lookup, whole=whole)

    async def leave(self, call: Call, hold: Admission) -> None:
        """Settle a call that has ended, and release its hold."""
        try:
            await self.records.commit(call)
        finally:
            hold.release()
            await self.records.write_last(call.id)

    def make_call(
        self,
        read: Read,
        caller: Caller,
        fleet: Fleet | None = None,
        hold: Admission | None = None,
        policies: Mapping[str, PolicySnapshot] | None = None,
    ) -> Call:
        """Make the call of a checked request, under its policy. ``fleet`` and ``policies`` replace the caller's fleet
        and the published policies."""
        request, records, policy, laid, class_name = read.request, self.records, None, None, ""
        if records.dropped:
            records.keep_dropped()
        started_at = self._clock.monotonic() if hold is None else hold.started_at
        if fleet is None:
            fleet = self._fleets.get(caller.environment) or self.fleet(caller.environment)
        if not fleet.serves:
            fleet.require_providers(caller)
        board = fleet.board()
        fallback = request.fallback
        chain = fallback is not None and fallback.models is not None
        lists = chain or request.models is not None or request.prefer is not None
        if lists:
            try:
                request = with_ids(request, fleet.aliases, board.pool.row)
            except ValidationFailed as error:
                raise fleet.explained(error) from None
        if request.policy_id is not None:
            policy = find_policy(request.policy_id, policies or self._policy_by_key)
            if policy.classes:
                policy, class_name = class_of(policy, request.metadata or {})
            laid = Laid(policy, request.models)
            request = under_policy(request, policy)
        asks, is_plain = None, request.params is None and request.tools is None
        for message in request.messages if is_plain else ():
            if type(message.content) is not str:
                is_plain = False
        if not is_plain:
            asks = asked_of(request)
            if caller.key_id is not None or read.is_remote:
                extra = None if read.has_own_params else fleet.caller_extra
                asks = caller_requirements(asks, read.request, extra)
            if asks.needs & _HTTP_URL and not fleet.fetches_http:
                check_https(request.messages)
            board = board.dialled(request_options_of(asks))
            if request.budget is not None and request.budget.max_cost_usd is not None:
                check_costs_nothing(request.params)
        call = Call(
            self.ids("tr_") if hold is None else hold.trace_id,
            caller,
            request,
            read.tokens,
            board,
            fleet,
            fleet.day,
            board.ids if policy is None else (*board.ids[:2], policy.id),
            fleet.inline_version if policy is None else policy.version,
            self.defaults.timeout_ms if request.timeout_ms is None else int(request.timeout_ms),
            self._clock.time() if hold is None else hold.at,
            started_at,
            started_at,
        )
        if lists or request.prefer is not None:  # the policy may have set ``prefer``
            call.has_lists = True
        if asks is not None:
            call.asks = asks
        if read.repeats:
            call.repeats = True
        if request.metadata:
            call.metadata_json = json.encode(request.metadata)
            if self._workload_keys:
                call.workload_values = values_of(request.metadata, self._workload_keys)
        if self._rollup_keys:
            call.rollup_keys = self._rollup_keys
        if read.traceparent is not None:
            call.traceparent = read.traceparent
        if policy is not None:
            call.policy, call.laid = policy, laid
            if class_name:
                call.policy_class = class_name
        if steps := fleet.workloads.steps:
            whose = caller.account, caller.environment, call.snapshot_ids[2], *call.workload_values
            call.workload = steps.get(whose)
        if self._warmth is not None and read.tokens.estimate >= LEAST_TOKENS:
            call.warm = self._warmth.look(call)
        return call

    async def guard(self, call: Call) -> None:
        """Apply the input guardrails. In plain code a guardrail that has to be awaited raises ``InternalError``. Raises
        ``BlockedByPolicy``; the trace is kept."""
        call.is_guarded = True
        guardrails = standing(self.guardrails(call), "input")
        if not guardrails:
            return
        if call.bounds.high > PIECE_CHARS:
            await self._refuse_too_long(call)
        gate = RequestGate(call.request, guardrails)
        try:
            if in_plain_code():
                await pass_gate(gate, partial(self._check_time, call))
            else:
                with self._clock.deadline(call.deadline) as limit:
                    await pass_gate(gate, partial(rest, self._clock))
                if limit.expired:
                    raise _late_guardrail(call)
        except BaseException as error:
            call.request = gate.request
            self.undecided(call, error)
            raise
        call.request, call.hits = gate.request, gate.hits
        if gate.blocked is not None:
            hit = gate.blocked
            said = f"the guardrail {quoted(hit.guardrail)} blocks the request by its rule {quoted(hit.rule)}"
            detail = {"guardrail": hit.guardrail, "rule": hit.rule, "stage": hit.stage}
            self.refuse(call, BlockedByPolicy(f"{said}; no model was called", detail=detail))
        if gate.hits:
            call.bounds = bounds_of(call.request)
            if call.warm is not None and self._warmth is not None:
                call.warm = self._warmth.look(call)

    async def _refuse_too_long(self, call: Call) -> None:
        """Raise the decision's refusal of a prompt that no model can take, before guardrails spend time on it. The
        decision repeats the check, since guardrails may change the prompt."""
        try:
            refused = await self.counting.too_long(call, input_of_call(call, self.defaults))
            if refused is not None:
                decide(refused, call.board, call.laid)
        except BaseException as error:
            self.undecided(call, error)
            raise

    async def _check_time(self, call: Call) -> None:
        """Raise ``RouterTimeoutError`` past the deadline. Awaits nothing."""
        if self._clock.monotonic() >= call.deadline:
            raise _late_guardrail(call)

    def guardrails(self, call: Call) -> Sequence[Guardrail]:
        """The guardrails of a call: first the Router's, then the policy's."""
        policy = call.policy
        if policy is None or not policy.policy.guardrails:
            return self._guardrails
        made = self._policy_guardrails.get(policy.id)  # None if the policy was replaced meanwhile
        return (*self._guardrails, *(guardrails_of(policy.policy) if made is None else made))

    async def enter(
        self,
        hold: Admission,
        read: Read,
        call: Call | None = None,
        fleet: Fleet | None = None,
        form: Form | None = None,
    ) -> Entry | bytes:
        """Make the call of a caller with limits, apply the guardrails, decide within the money that is left, and
        reserve the most that the chosen model can cost.

        Returns the call (without a hold if nothing limits it), or the answer kept under its idempotency key. A refused
        request still counts in the rate limits, and a refusal for rate limits goes before any other."""
        choice: Choice | None = None
        lookup = None
        try:
            if call is None:
                call = self.make_call(read, hold.caller, fleet, hold)
            if call.policy is not None:  # it may shorten the time-out
                hold.adopt(call)
            if hold.left is None and await self.admissions.is_open(hold):
                return Entry(call)
            has_guardrails = bool(self._guardrails) or call.policy is not None
            if has_guardrails and not call.is_guarded and standing(self.guardrails(call), "input"):
                reply = await hold.take()  # a guardrail may cost something: admit first
                if isinstance(reply, Replay):
                    return reply.result
                await self.guard(call)
            if call.request.cache:
                choice = await self.choice(call)
                lookup = await self._look_up(call, form, patient=hold.is_patient)
            if choice is not None and lookup is not None and lookup.served is not None:
                reply = await hold.take()
                if isinstance(reply, Replay):
                    return reply.result
            else:
                outcome = await self._afford(hold, call)
                if isinstance(outcome, bytes):
                    if lookup is not None:
                        lookup.leave()
                    return outcome
                choice = outcome
            call.decide(choice)
            call.windows = hold.windows
            return Entry(call, hold, lookup)
        except BaseException as error:
            if lookup is not None:  # first, since the rest may be cancelled
                lookup.leave()
            if isinstance(error, RouterError) and hold.grant is None and not hold.is_refused:
                stored = await hold.count()
                if stored is not None:
                    return stored
            # a call that failed before a model was chosen leaves a trace, unless its admission was refused
            is_traced = not (hold.is_refused or isinstance(error, _TRACELESS))
            if call is not None and call.status == "running" and is_traced:
                self.undecided(call, error, choice)
            raise

    async def _look_up(self, call: Call, form: Form | None, *, patient: bool) -> Lookup:
        """Look up the answer to a decided call in the response cache (``Caching.look``)."""
        guardrails = self.guardrails(call)
        lookup = await self.caching.look(call, guardrails and standing(guardrails, "output"), form, patient=patient)
        call.looked = lookup.line
        return lookup

    async def _afford(self, hold: Admission, call: Call) -> Choice | bytes:
        """Decide within the money that the caller has left, and reserve the most that the plan can cost.

        The balance in memory is only a first guess: it may have been spent in another process, or by a call that is
        admitted at this moment. The storage's answer to ``take`` decides; if it is short, the decision is made again
        within what the storage says is left, and a cheaper model may do. Refused is only what even then no model can
        do (contract 7; ``tests/engine/test_admission_money.py``)."""
        assert hold.left is not None, "`enter` has looked"
        request, left_nanos, own_input = call.request, hold.left.nanos, None
        if left_nanos is not None and call.asks is not None:
            check_costs_nothing(request.params)
        own_budget = None if request.budget is None else room_of(request.budget)
        calls = 2 if call.policy is not None and is_hedged(call) else 1
        for _ in range(TRIES):
            choice, nanos = None, 0
            if own_input is None:
                budget = own_budget
                if left_nanos is not None:
                    budget = (own_budget or UNLIMITED).within(left_nanos)
                plan = None if self.counting.predictor is not None else class_plan(call, budget, self.defaults)
                if plan is not None:
                    choice = Choice(plan, None, budget)
                else:
                    own_input = self.input_of(call)
            if own_input is not None:
                choice = await self._choose_within(call, own_input, left_nanos)
            if left_nanos is not None:
                nanos = max(left_nanos + 1, 1)  # the least that any model can need
                if choice is not None:
                    bounds = call.bounds if choice.own_input is None else choice.own_input.tokens
                    nanos = worst_of_start(choice.plan, bounds, choice.budget or UNLIMITED, calls)
            reply = await hold.take(nanos)
            if isinstance(reply, Replay):
                return reply.result
            if isinstance(reply, Grant):
                if choice is not None and (left_nanos is not None or not reply.is_limited):
                    return choice
                left_nanos = (await hold.look()).nanos
            elif reply.waits:
                raise held_by_others(reply.purse, call.timeout_ms if hold.is_patient else None)
            elif choice is None:
                counted = await self.counting.count(call, own_input or self.input_of(call))
                raise without_money(reply.purse, least_nanos(counted, call.board))
            else:
                left_nanos = reply.purse.left_nanos
        raise StorageUnavailable("the caller's balance keeps changing: try again")

    async def choice(self, call: Call) -> Choice:
        """Decide within the call's own budget. Long prompts are counted in a worker thread; in plain code this blocks.
        Raises ``NoCandidates``."""
        budget = None if call.request.budget is None else room_of(call.request.budget)
        plan = None if self.counting.predictor is not None else class_plan(call, budget, self.defaults)
        return await self._choose(call, self.input_of(call)) if plan is None else Choice(plan, None, budget)

    def input_of(self, call: Call) -> DecisionInput:
        """The input of a decision for the call alone, with the host's predicted qualities, if any."""
        return self.counting.with_qualities(call, input_of_call(call, self.defaults))

    async def _choose(self, call: Call, decision_input: DecisionInput) -> Choice:
        """Decide by an input of the call's own, and count tokens if their bounds leave the outcome open."""
        with suppress(CountTokens):  # so that it is not in the chain of a later refusal
            return choose(decision_input, call.board, call.laid)
        vocabularies = countable(decision_input, call.board)  # those whose counts can change the decision
        counted = await self.counting.count(call, decision_input, vocabularies)
        return choose(counted, call.board, call.laid)

    async def _choose_within(self, call: Call, own_input: DecisionInput, left_nanos: int | None) -> Choice | None:
        """Decide within the money that is left. None if that is too little. A refusal that has nothing to do with the
        balance is raised."""
        decision_input = own_input if left_nanos is None else within_money(call, own_input, left_nanos)
        if decision_input is not None:
            try:
                return await self._choose(call, decision_input)
            except NoCandidates:
                if decision_input is own_input:
                    raise
        await self._choose(call, own_input)
        return None

    async def decision(self, call: Call) -> Decision:
        """Decide, and leave no trace. Raises ``NoCandidates``."""
        choice = await self.choice(call)
        call.decide(choice)
        return Decision(choice.plan, call.decision_input, call.board)

    def undecided(self, call: Call, error: BaseException, choice: Choice | None = None) -> None:
        """Keep the trace of a call that ends before a model is called."""
        if call.plan is None:
            refused = error.decision_input if isinstance(error, NoCandidates) else None
            if choice is not None:
                call.decide(choice)
            elif isinstance(refused, DecisionInput):
                call.own_input = refused
            else:
                call.own_input = input_of_call(call, self.defaults)
        self.records.undecided(call, error)

    def refuse(self, call: Call, error: RouterError) -> NoReturn:
        """End an admitted call without a decision: keep its trace and raise ``error``."""
        self.undecided(call, error)
        raise error

    def check(self, read: Read, caller: Caller) -> list[PolicyCheck]:
        """Check every policy, and each of its classes, with one request. Counts tokens."""
        found = []
        for published in self.policies:
            under = replace(read, request=replace(read.request, policy_id=published.policy.id))
            names = map(name_of, published.policy.classes or ())
            for name, each in (("", published), *zip(names, published.classes, strict=True)):
                call = self.make_call(under, caller, policies={published.policy.id: each})
                assert call.laid is not None, "the call has a policy"
                found.append(replace(check(self.counted(call), call.board, call.laid), policy_class=name))
        return found

    def counted(self, call: Call) -> DecisionInput:
        """The decision's input, with tokens counted."""
        return at_once(self.counting.count(call, self.input_of(call)))

    def execution(
        self,
        call: Call,
        hold: Admission | None,
        lookup: Lookup | None = None,
        *,
        whole: bool = True,
        form: Form | None = None,
    ) -> Execution:
        """The execution of a decided call."""
        plan, fleet, room, payer = call.plan, call.fleet, call.budget, None
        assert isinstance(fleet, Fleet), "`make_call` took one"
        assert plan is not None, "the call was decided"
        rules = fleet.rules
        if call.policy is not None or call.request.fallback is not None:
            rules = self._rules(call, fleet)
        if hold is not None and room is not None and hold.grant is not None and hold.grant.is_limited:
            room, payer = room.within(hold.grant.nanos), hold
        timeout_s = call.timeout_ms / 1000
        deadline = call.started_at + timeout_s
        machine = Attempts(
            plan=plan,
            bounds=call.bounds,
            budget=call.budget,
            room=room,
            deadline=deadline,
            timeout_s=timeout_s,
            whole=whole,
            traffic=fleet,
            rules=rules,
            on_partial=rules.on_partial,
        )
        is_sandbox = call.caller.environment == "sandbox"
        execution = Execution(
            call, machine, fleet, self._clock, self._rng, deadline, is_sandbox, hold, payer, lookup, form
        )
        if rules.hedged:
            execution.hedge = Hedge(execution)
        if lookup is not None and lookup.served is not None:
            call.served, machine.end = lookup.served, End.SUCCEEDED
            if form is not None and lookup.served.pieces is None:
                execution.data = reread(form, lookup.served.output)
        if self._guardrails or call.policy is not None:
            execution.guardrails = standing(self.guardrails(call), "output")
        if call.traceparent is not None and self._traceparent_to:
            execution.onward = Onward(call.traceparent, call.id, self._traceparent_to)
        self.records.under_way.add(call)
        return execution

    def _rules(self, call: Call, fleet: Fleet) -> Rules:
        """The rules for the attempts of a call with a policy or a fallback of its own."""
        fallback, policy_rules = call.request.fallback, _policy_fallback(call)
        return Rules(
            fleet.limits,
            (None if fallback is None else fallback.on_partial) or "restart",
            on_refusal_fall_back=policy_rules is not None and policy_rules.on_refusal == "fallback",
            hedged=policy_rules is not None and policy_rules.hedge,
            retries=None if fallback is not None and fallback.max_retries is not None else fleet.rules.retries,
        )


def _late_guardrail(call: Call) -> RouterTimeoutError:
    problem = f"timeout_ms={call.timeout_ms} ran out while a guardrail checked the request"
    return RouterTimeoutError(f"{problem}; raise timeout_ms, send a shorter text, or use a faster guardrail")


def is_hedged(call: Call) -> bool:
    """True if a second model may be called beside one that does not respond."""
    rules = _policy_fallback(call)
    return rules is not None and rules.hedge


def _policy_fallback(call: Call) -> PolicyFallback | None:
    return None if call.policy is None else call.policy.policy.fallback


def raise_failure(error: RouterError) -> NoReturn:
    """Raise the error that ended a call, without a reference cycle."""
    try:
        raise error
    finally:
        del error  # else the traceback's frame refers to the error
