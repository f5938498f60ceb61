"""How a request becomes an answer, in named steps. Read this first.

    request -> read -> make_call -> choose, or enter -> Execution.run (or a Stream that pulls it, or a host's Steps)
        -> conclude -> Answer

``read`` checks the request. ``make_call`` makes its ``Call``: snapshots, policy, input of the decision. ``choose``
decides, and counts tokens only where their bounds do not settle it. ``enter`` does the same for a caller with limits,
and reserves what the call needs. The execution calls models. ``Records.conclude`` keeps the trace; then any failure is
raised."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import NamedTuple, NoReturn, TypeVar

from msgspec import json
from msgspec.structs import replace

from routewright._core.accounts.payer import held_by_others, without_money
from routewright._core.attempts.machine import End, Rules
from routewright._core.attempts.statistics import values_of
from routewright._core.call import Call
from routewright._core.guardrails.screen import RequestGate, guardrails_of, standing
from routewright._core.guardrails.texts import PIECE_CHARS
from routewright._core.money import PICOS_PER_NANO
from routewright._core.policy import Laid, by_key, class_of, find_policy, name_of, under_policy
from routewright._core.request.read import STREAMED
from routewright._core.request.rules import check_costs_nothing, check_https
from routewright._core.routing.budget import Room, room_of, within, worst_of_start
from routewright._core.routing.constraints import CountTokens
from routewright._core.routing.decide import compiled, countable, decide, least_nanos, pays_for_any
from routewright._core.routing.inputs import Defaults, asked_of, caller_requirements, input_of, with_ids
from routewright._core.routing.logarithms import SIZE_CLASSES, size_class
from routewright._core.routing.plan import Plan
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
from .cache import Caching
from .context import Onward
from .counting import Counting
from .discovery import Discovery
from .execute import Execution
from .fleet import Fleet
from .guardrail import pass_gate, rest
from .hedge import HedgedExecution
from .progress import Progress
from .record import Records
from .request_input import RawRequest, Read
from .storage import storage_faults

P = TypeVar("P", bound=Progress)
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
        self._defaults, self._guardrails, self._rollup_keys, self._workload_keys, self._traceparent_to = options
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
            return await self._answer(self.make_call(read, caller), form)
        return await self._limited(hold, read, None, form)

    async def carry_out(self, read: Read, call: Call) -> Answer:
        """Answer an admitted request that has passed the guardrails."""
        hold = self.admissions.begin(read, call.caller)
        if hold is None:
            return await self._answer(call)
        call.hold, hold.trace_id, hold.at, hold.deadline = hold, call.id, call.created_at, call.deadline
        return await self._limited(hold, read, call)

    async def _limited(self, hold: Admission, read: Read, call: Call | None, form: Form | None = None) -> Answer:
        try:
            entered = await self.enter(hold, read, call, form=form)
            if isinstance(entered, bytes):
                return await self.replayed(entered, hold.caller, form)
            return await self._answer(entered, form)
        except RouterError as error:
            hold.tell(error)
            raise
        finally:
            if hold.grant is not None:
                hold.release()
            if self.admissions.queue.is_closed:
                await self.records.write_last(hold.trace_id)

    async def replayed(self, kept: bytes, caller: Caller, form: Form | None = None) -> Answer:
        """The answer kept under an idempotency key."""
        with storage_faults:
            response = _decode(kept)
        data = None if form is None or response.tool_calls else reread(form, response.output)
        before = Replayed(response, await self.records.find(caller, response.trace_id), self._decide_again)
        return Answer(before, None, response.output, response.tool_calls, data)

    async def _answer(self, call: Call, form: Form | None = None) -> Answer:
        """Answer an admitted request; return once everything that must be stored is. Raises ``RouterError``; the trace
        is kept either way."""
        commits = self.records.commits or (call.hold is not None and not self.admissions.is_immediate)
        try:
            if call.hold is not None:
                execution = self.execution(call, form=form)
            else:
                execution = await self.begin(call, form=form)
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

    async def begin(self, call: Call, *, whole: bool = True, form: Form | None = None) -> Execution:
        """Apply the guardrails to an admitted call, decide, and make the execution of its plan."""
        if not call.is_guarded and (self._guardrails or call.policy is not None):
            await self.guard(call)
        call.plan = self.class_plan(call)
        if call.plan is None:
            await self.choose(call)
        if call.asks_cache:
            await self.look_up(call, form)
        if call.policy is not None:
            return self.execution(call, whole=whole, form=form)
        return self.progress(Execution, call, whole=whole, form=form)

    def execution(self, call: Call, *, whole: bool = True, form: Form | None = None) -> Execution:
        return self.progress(HedgedExecution if is_hedged(call) else Execution, call, whole=whole, form=form)

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
            board.ids if policy is None else (*board.ids[:2], policy.id),
            fleet.inline_version if policy is None else policy.version,
            self._defaults.timeout_ms if request.timeout_ms is None else int(request.timeout_ms),
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
        if request.budget is not None:
            call.budget = room_of(request.budget)
        if request.metadata:
            call.metadata_json = json.encode(request.metadata)
            if self._workload_keys:
                call.workload_values = values_of(request.metadata, self._workload_keys)
        if self._rollup_keys:
            call.rollup_keys = self._rollup_keys
        if request.cache:
            call.asks_cache = True
        if read.traceparent is not None:
            call.traceparent = read.traceparent
        if policy is not None:
            call.policy, call.laid = policy, laid
            if class_name:
                call.policy_class = class_name
        if hold is not None:
            call.hold = hold
        if steps := fleet.workloads.steps:
            whose = caller.account, caller.environment, call.snapshot_ids[2], *call.workload_values
            call.workload = steps.get(whose)
        if self._warmth is not None and read.tokens.estimate >= LEAST_TOKENS:
            self._warmth.look(call)
        return call

    def give(self, call: Call) -> DecisionInput:
        if call.plan is None and call.own_given is None:
            call.given = self._input(call)
        return call.given

    def _input(self, call: Call) -> DecisionInput:
        return input_of(
            call.request,
            call.bounds,
            asks=call.asks,
            pool=call.board.pool,
            health=call.board.forecast.health.id,
            policy=call.policy,
            as_of=call.as_of,
            defaults=self._defaults,
            work=call.workload,
            warm=call.warm,
            policy_class=call.policy_class,
        )

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
            if call.prompt is not None and self._warmth is not None:
                self._warmth.look(call)

    async def _refuse_too_long(self, call: Call) -> None:
        """Raise the decision's refusal of a prompt that no model can take, before guardrails spend time on it. The
        decision repeats the check, since guardrails may change the prompt."""
        given = self._input(call)
        try:
            refused = await self.counting.too_long(call, given)
            if refused is not None:
                call.given = refused
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
        *,
        form: Form | None = None,
    ) -> Call | bytes:
        """Make the call of a caller with limits, apply the guardrails, decide within the money that is left, and
        reserve the most that the chosen model can cost.

        Returns the call (without a hold if nothing limits it), or the answer kept under its idempotency key. A refused
        request still counts in the rate limits, and a refusal for rate limits goes before any other."""
        try:
            if call is None:
                call = self.make_call(read, hold.caller, fleet, hold)
            if call.policy is not None:  # a policy may shorten the time-out
                hold.deadline = call.deadline
            if hold.left is None and await self.admissions.is_open(hold):
                call.hold = None
                return call
            guarded = call.is_guarded or not (self._guardrails or call.policy is not None)
            if not guarded and standing(self.guardrails(call), "input"):
                found = await hold.take()  # a guardrail may cost something: admit first
                if isinstance(found, Replay):
                    return found.result
                call.windows = hold.windows
                await self.guard(call)
            kept = None
            if call.asks_cache:
                call.plan = await self.plan(call)
                await self.look_up(call, form, patient=hold.is_patient)
                if call.served is not None:
                    found = await hold.take()
                    kept = found.result if isinstance(found, Replay) else None
            if call.served is None:
                call.plan = None
                kept = await self._afford(hold, call)
            if kept is not None:
                if call.lookup is not None:
                    call.lookup.leave()
                return kept
            call.windows = hold.windows
        except BaseException as error:
            if call is not None and call.lookup is not None:  # first, since the rest may be cancelled
                call.lookup.leave()
            if isinstance(error, RouterError) and hold.grant is None and not hold.is_refused:
                kept = await hold.count()
                if kept is not None:
                    return kept
            # a call that failed before a model was chosen leaves a trace, unless its admission was refused
            is_traced = not (hold.is_refused or isinstance(error, _TRACELESS))
            if call is not None and call.status == "running" and is_traced:
                self.undecided(call, error)
            raise
        return call

    async def look_up(self, call: Call, form: Form | None = None, *, patient: bool = True) -> None:
        """Look up the answer to a decided call in the response cache (``Caching.look``)."""
        guardrails = self.guardrails(call)
        try:
            await self.caching.look(call, guardrails and standing(guardrails, "output"), form, patient=patient)
        except BaseException as error:
            self.undecided(call, error)
            raise

    async def _afford(self, hold: Admission, call: Call) -> bytes | None:
        """Decide within the money that the caller has left, and reserve the most that the plan can cost.

        The balance in memory is only a first guess: the storage's answer to ``take`` decides, and may start another
        round."""
        assert hold.left is not None, "`enter` has looked"
        left, budget, own = hold.left.nanos, call.budget, None
        if left is not None and call.asks is not None:
            check_costs_nothing(call.request.params)
        calls = 2 if call.policy is not None and is_hedged(call) else 1
        for _ in range(TRIES):
            plan = None
            if own is None:
                if left is not None:
                    own_nanos, tokens = (None, None) if budget is None else budget
                    call.budget = Room(max(0, left if own_nanos is None else min(own_nanos, left)), tokens)
                plan = self.class_plan(call)
                call.plan = plan
            if plan is None:
                if own is None:
                    call.budget = budget
                    own = self.give(call)
                plan = await self._plan_within(call, own, left)
                if plan is not None:
                    call.given = plan.given
            if left is None:
                nanos = 0
            elif plan is None:
                nanos = max(left + 1, 1)  # the least that any model can need
            else:
                assert call.budget is not None, "set above"
                nanos = worst_of_start(plan, call.bounds, call.budget, calls)
            found = await hold.take(nanos)
            if isinstance(found, Replay):
                return found.result
            if isinstance(found, Grant):
                if plan is not None and (left is not None or not found.is_limited):
                    call.plan = plan
                    return None
                left = (await hold.look()).nanos
            elif found.waits:
                raise held_by_others(found.purse, call.timeout_ms if hold.is_patient else None)
            elif plan is None:
                call.given = own or self.give(call)
                self.counting.predict(call)
                counted = await self.counting.count(call, call.given)
                raise without_money(found.purse, least_nanos(counted, call.board))
            else:
                left = found.purse.left_nanos
        raise StorageUnavailable("the caller's balance keeps changing: try again")

    async def choose(self, call: Call) -> None:
        """Decide. A failure leaves a trace."""
        try:
            call.plan = await self.plan(call)
        except BaseException as error:
            self.undecided(call, error)
            raise

    async def plan(self, call: Call) -> Plan:
        """Decide, and leave no trace. Long prompts are counted in a worker thread; in plain code this blocks."""
        plan = self.class_plan(call)
        if plan is not None:
            return plan
        self.give(call)
        if self.counting.predictor is not None:
            self.counting.predict(call)
        with suppress(CountTokens):  # so that it is not in the chain of a later refusal
            return decide(call.given, call.board, call.laid)
        matter = countable(call.given, call.board)  # the vocabularies whose counts can change the decision
        call.given = await self.counting.count(call, call.given, matter)
        return decide(call.given, call.board, call.laid)

    def class_plan(self, call: Call) -> Plan | None:
        """The compiled plan of the request's class, if it covers the call. Requests that list models have no class, nor
        have those of a host that predicts qualities."""
        if call.has_lists or call.warm or call.own_given is not None or self.counting.predictor is not None:
            return None
        request, board, bounds, budget = call.request, call.board, call.bounds, call.budget
        tokens = bounds.estimate
        size = SIZE_CLASSES[tokens] if tokens < len(SIZE_CLASSES) else size_class(tokens)
        retries = None if request.fallback is None else request.fallback.max_retries
        policy, day = call.snapshot_ids[2], call.fleet.day
        key: tuple[Hashable, ...] = (
            policy, request.goal, request.strategy, call.asks, size, retries, day, call.workload,
        )  # fmt: skip
        found = board.lineage.plans[key]
        if found is not None and found.version == board.version:
            plan = found.value
        else:
            plan = compiled(board, key, partial(self._input, call))
        nanos, most = (None, None) if budget is None else budget
        return plan if plan is not None and plan.covers(bounds, call.timeout_ms, nanos, most) else None

    async def _plan_within(self, call: Call, own: DecisionInput, left: int | None) -> Plan | None:
        """Decide by a call's own input within the money that is left. None if that is too little. A refusal that has
        nothing to do with the balance is raised."""
        given = own if left is None else within(own, Room(left, None))
        call.given = given
        if given != own:
            picos = (given.budget_nanos or 0) * PICOS_PER_NANO
            all_fit = call.board.forecast.costs_at_most(given.tokens.high, given.max_output_tokens, picos)
            if all_fit or pays_for_any(given, call.board):
                try:
                    return await self.plan(call)
                except NoCandidates:
                    pass
            call.given = own
        plan = await self.plan(call)
        if given == own:
            return plan
        call.given = own
        return None

    def undecided(self, call: Call, error: BaseException) -> None:
        self.give(call)
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
        self.give(call)
        self.counting.predict(call)
        return at_once(self.counting.count(call, call.given))

    def progress(self, kind: type[P], call: Call, *, whole: bool = True, form: Form | None = None) -> P:
        """Start the plan of a decided call as an object of ``kind``."""
        plan, rules = call.plan, call.fleet.rules
        assert plan is not None, "the call was decided"
        if call.policy is not None or call.request.fallback is not None:
            asked, given = call.request.fallback, _policy_fallback(call)
            rules = Rules(
                call.fleet.limits,
                (None if asked is None else asked.on_partial) or "restart",
                on_refusal_fall_back=given is not None and given.on_refusal == "fallback",
                hedged=given is not None and given.hedge,
                retries=None if asked is not None and asked.max_retries is not None else call.fleet.rules.retries,
            )
        timeout_s = call.timeout_ms / 1000
        deadline = call.started_at + timeout_s
        hold, room, payer = call.hold, call.budget, None
        if hold is not None and room is not None and hold.grant.is_limited:
            room, payer = Room(min(hold.grant.nanos, room.nanos), room.tokens), hold
        progress = kind(
            plan, call.bounds, call.budget, room, deadline, timeout_s, whole, call.fleet, rules,
            rules.on_partial, call=call, fleet=call.fleet, clock=self._clock, rng=self._rng, until=deadline,
            sandbox=call.caller.environment == "sandbox", form=form, payer=payer,
        )  # fmt: skip
        if call.served is not None:  # served from the cache
            progress.end = End.SUCCEEDED
            if form is not None and call.served.pieces is None:
                progress.data = reread(form, call.served.output)
        if self._guardrails or call.policy is not None:
            progress.guardrails = standing(self.guardrails(call), "output")
        if call.traceparent is not None and self._traceparent_to:
            progress.onward = Onward(call.traceparent, call.id, self._traceparent_to)
        self.records.under_way.add(call)
        return progress


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
