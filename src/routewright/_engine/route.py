"""How a request becomes an answer, in named steps. Read this first.

    request -> read -> make_call -> begin, or enter -> Execution.run (or a Stream that pulls it, or a host's Steps)
        -> conclude -> Answer

``read`` checks the request. ``make_call`` makes its ``Call``: snapshots, policy, requirements. ``begin`` decides, and
counts tokens only where their bounds do not settle it. ``enter`` does the same for a caller with limits, and reserves
what the call needs. The execution calls models. ``TraceLog.conclude`` keeps the trace; then any failure is raised.

Deciding, admission, guardrails and the cache return values. This file puts them into the ``Call``; ``many`` also limits
a call and records its guardrails, ``decide`` renews its snapshots. ``tests/test_layers.py`` lists every writer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from msgspec import Struct, json
from msgspec.structs import replace

from routewright import wire
from routewright._core.attempts.fallback import Chain
from routewright._core.attempts.machine import Attempts, End
from routewright._core.attempts.statistics import values_of
from routewright._core.call import Call
from routewright._core.guardrails.screen import RequestGate, at_stage, guardrails_of
from routewright._core.guardrails.texts import PIECE_CHARS
from routewright._core.outcome import raise_failure
from routewright._core.permissions import permit
from routewright._core.policy import AppliedPolicy, apply_policy, class_of, name_of
from routewright._core.policy_table import PolicyTable
from routewright._core.prompt_caches import LEAST_TOKENS
from routewright._core.request.read import STREAMED
from routewright._core.request.rules import check_costs_nothing, check_https
from routewright._core.routing.budget import room_of
from routewright._core.routing.choice import class_choice, input_of_call
from routewright._core.routing.decide import Choice
from routewright._core.routing.decision import Decision
from routewright._core.routing.inputs import Defaults, caller_requirements, requested_of, requirements_of, with_ids
from routewright._core.routing.request_options import request_options_of
from routewright._core.routing.what_if import PolicyCheck, check_policy
from routewright._core.structured_output import Form
from routewright._core.tokens.estimate import bounds_of
from routewright._runtime.loop import in_thread
from routewright.errors import BlockedByPolicy, NoCandidates, RouterError, ValidationFailed
from routewright.protocols import Guardrail, Rng
from routewright.wire.json_scan import quoted

from .admission import Admission, Admissions
from .answer import Answer, DecideAgain, Replayed, reread
from .cache import Caching, Lookup
from .context import InsideRun, Onward
from .counting import Counting
from .decide import Deciding
from .discovery import Discovery
from .execute import Execution
from .fleet import Fleet
from .guardrails import pass_in_time
from .hedge import Hedge
from .request_input import RawRequest, Read
from .storage import storage_faults
from .trace_log import TRACELESS, TraceLog

_HTTP_URL = int(wire.Need.HTTP_URL)
_decode = json.Decoder(wire.RouteResponse).decode


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


class AdmittedCall(Struct, frozen=True):
    """A call that may begin."""

    call: Call
    admission: Admission | None = None
    """What it holds. None: nothing limits the call, which is not decided yet."""
    lookup: Lookup | None = None


class Engine:
    """The pipeline over one Router's parts. Safe to use from several loops and threads."""

    def __init__(
        self,
        *,
        fleet: Callable[[wire.Environment], Fleet],
        fleets: Mapping[str, Fleet],
        servers: Discovery,
        policies: PolicyTable,
        counting: Counting,
        rng: Rng,
        log: TraceLog,
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
        self.deciding = Deciding(counting, options.defaults)
        self.log = log
        self.admissions = admissions
        self.ids = admissions.ids
        self._clock = log.clock
        self._rng = rng
        self._options = options
        self.defaults = options.defaults
        self._guardrails = options.guardrails
        self._caching = caching
        self._decide_again = decide_again
        self._warmth = log.warmth
        self.policy_table = policies
        """Replaced by a publication; running calls keep theirs."""

    @cached_property
    def caching(self) -> Caching:
        return self._caching()

    async def read(self, request: RawRequest | Read) -> Read:
        """Check a request and bound its tokens; a large one in a worker thread."""
        if isinstance(request, Read):
            return request
        return await in_thread(self._clock, request.read) if request.is_large else request.read()

    async def route(
        self,
        request: RawRequest | Read,
        caller: wire.Caller,
        form: Form | None = None,
        inside: InsideRun | None = None,
    ) -> Answer:
        """Answer a request in one piece, by default ``inside`` the run of this context. Raises ``RouterError``. An
        admitted request leaves a trace either way."""
        if isinstance(request, Read):
            read = request
        else:
            form = request.form
            read = await self.read(request)
            if read.request.stream:
                raise ValidationFailed.of(STREAMED)
        if not self.servers.ready.is_set:
            await self.servers.wait()
        if (admission := self.admissions.begin(read, caller, inside)) is None:
            return await self._answer(self.make_call(read, caller), None, form)
        return await self._limited(admission, read, None, form)

    async def carry_out(self, read: Read, call: Call) -> Answer:
        """Answer an admitted request that has passed the guardrails."""
        if (admission := self.admissions.begin(read, call.caller)) is None:
            return await self._answer(call)
        admission.adopt(call)
        return await self._limited(admission, read, call)

    async def _limited(self, admission: Admission, read: Read, call: Call | None, form: Form | None = None) -> Answer:
        try:
            entry = await self.enter(admission, read, call, form=form)
            if isinstance(entry, bytes):
                return await self.replay(entry, admission.caller, form)
            return await self._answer(entry.call, entry, form)
        except RouterError as error:
            admission.annotate(error)
            raise
        finally:
            if admission.grant is not None or admission.in_run is not None:
                admission.release()
            if self.admissions.queue.is_closed:
                await self.log.write_last(admission.trace_id)

    async def replay(self, stored: bytes, caller: wire.Caller, form: Form | None = None) -> Answer:
        """The answer kept under an idempotency key."""
        with storage_faults:
            response = _decode(stored)
        data = None if form is None or response.tool_calls else reread(form, response.output)
        before = Replayed(response, await self.log.find(caller, response.trace_id), self._decide_again)
        return Answer(before, None, response.output, response.tool_calls, data)

    async def _answer(self, call: Call, entry: AdmittedCall | None = None, form: Form | None = None) -> Answer:
        """Answer an admitted request; return once everything that must be stored is. Raises ``RouterError``; the trace
        is kept either way."""
        is_limited = entry is not None and entry.admission is not None
        commits = self.log.commits or (is_limited and not self.admissions.is_immediate)
        try:
            if entry is None or entry.admission is None:
                execution = await self.begin(call, form=form)
            else:
                execution = self.execution(call, entry.admission, entry.lookup, form=form)
            try:
                await execution.run()
            except BaseException:
                try:
                    await execution.aclose()
                finally:
                    self.log.conclude(call, execution, left=True)
                raise
            answer, error = self.log.conclude(call, execution)
            if error is not None:
                raise_failure(error)
        except RouterError:
            if commits:
                await self.log.commit(call)
            raise
        if commits:
            await self.log.commit(call)
        return answer

    async def begin(
        self, call: Call, *, whole: bool = True, form: Form | None = None, patient: bool = True
    ) -> Execution:
        """Guard and decide a call that nothing limits, look it up in the cache, and make the execution of its plan."""
        if not call.is_guarded and (self._guardrails or call.policy is not None):
            await self.guard(call)
        budget = None if call.request.budget is None else room_of(call.request.budget)
        choice = class_choice(call, budget, self.defaults)  # as ``Deciding.choice`` does, without awaiting
        try:
            if choice is None:
                choice = await self.deciding.choose(call, self.deciding.input_of(call))
            call.decide(choice)
            lookup = await self._look_up(call, form, patient=patient) if call.request.cache else None
        except BaseException as error:
            self.conclude_undecided(call, error)
            raise
        return self.execution(call, None, lookup, whole=whole, form=form)

    async def decision(self, call: Call) -> Decision:
        """Decide, and leave no trace. Raises ``NoCandidates``."""
        call.decide(await self.deciding.choice(call))
        assert call.plan is not None, "just decided"
        return Decision(call.plan, call.decision_input, call.board)

    async def start(
        self, admission: Admission, read: Read, fleet: Fleet | None = None, *, whole: bool = True
    ) -> Execution | bytes:
        """Begin a call of a caller with limits. Returns the answer kept under its idempotency key, if there is one."""
        entry = await self.enter(admission, read, fleet=fleet)
        if isinstance(entry, bytes):
            return entry
        if entry.admission is None:
            return await self.begin(entry.call, whole=whole, patient=admission.is_patient)
        return self.execution(entry.call, entry.admission, entry.lookup, whole=whole)

    async def leave(self, call: Call, admission: Admission) -> None:
        """Settle a call that has ended, and release what it holds."""
        try:
            await self.log.commit(call)
        finally:
            admission.release()
            await self.log.write_last(call.id)

    def make_call(
        self,
        read: Read,
        caller: wire.Caller,
        fleet: Fleet | None = None,
        admission: Admission | None = None,
        policies: PolicyTable | None = None,
    ) -> Call:
        """Make the call of a checked request, under its policy. ``fleet`` and ``policies`` replace the caller's fleet
        and the published policies."""
        request = read.request
        policy = applied_policy = None
        class_name = ""
        assignment = ""
        if self.log.dropped:
            self.log.keep_dropped()
        started_at = self._clock.monotonic() if admission is None else admission.started_at
        fleet = fleet or self._fleets.get(caller.environment) or self.fleet(caller.environment)
        if not fleet.serves:
            fleet.require_providers(caller)
        board = fleet.board()
        chain = request.fallback is not None and request.fallback.models is not None
        lists = chain or request.models is not None or request.prefer is not None
        if lists:
            try:
                request = with_ids(request, fleet.aliases, board.pool.row)
            except ValidationFailed as error:
                raise fleet.explain(error) from None
        policies = policies or self.policy_table
        if caller.models or caller.policies:
            request = permit(request, caller, fleet.select(caller.models or ()), policies.by_key)
        if request.policy_id is not None:
            policy, assignment = policies.choose(request.policy_id, caller.account, request.metadata)
            shadow = policies.shadow(policy)
            spent = self.admissions.find_spent(caller, policy, shadow or policy) if policy.classes or shadow else None
            policy, class_name = class_of(policy, request.metadata or {}, spent)
            requested = requested_of(request, self.defaults)
            applied_policy = AppliedPolicy(policy, request.models, requested, spent, shadow)
            request = apply_policy(request, policy)
        asks = None
        is_plain = request.params is None and request.tools is None
        for message in request.messages if is_plain else ():
            if type(message.content) is not str:
                is_plain = False
        if not is_plain:
            asks = requirements_of(request)
            if caller.key_id is not None or read.is_remote:
                extra = None if read.has_own_params else fleet.caller_extra
                asks = caller_requirements(asks, read.request, extra)
            if asks.needs & _HTTP_URL and not fleet.fetches_http:
                check_https(request.messages)
            board = board.with_dials(request_options_of(asks))
            if request.budget is not None and request.budget.max_cost_usd is not None:
                check_costs_nothing(request.params)
        call = Call(
            self.ids("tr_") if admission is None else admission.trace_id,
            caller,
            request,
            read.tokens,
            board,
            fleet,
            fleet.day,
            board.ids if policy is None else (*board.ids[:2], policy.id),
            fleet.inline_version if policy is None else policy.version,
            self.defaults.timeout_ms if request.timeout_ms is None else int(request.timeout_ms),
            self._clock.time() if admission is None else admission.at,
            started_at,
            started_at,
        )
        if lists or caller.models or request.prefer is not None:  # the policy may have set ``prefer``
            call.has_lists = True
        if asks is not None:
            call.asks = asks
        if read.repeats:
            call.repeats = True
        if request.metadata:
            call.metadata_json = json.encode(request.metadata)
            if self._options.workload_keys:
                call.workload_values = values_of(request.metadata, self._options.workload_keys)
        if self._options.rollup_keys:
            call.rollup_keys = self._options.rollup_keys
        if read.traceparent is not None:
            call.traceparent = read.traceparent
        if policy is not None:
            call.policy = policy
            call.applied_policy = applied_policy
            call.policy_class = class_name
            if assignment:
                call.assignment = assignment
        if steps := fleet.workloads.steps:
            workload_key = caller.account, caller.environment, call.snapshot_ids[2], *call.workload_values
            call.workload = steps.get(workload_key)
        if self._warmth is not None and read.tokens.estimate >= LEAST_TOKENS:
            call.warm = self._warmth.look(call)
        return call

    async def guard(self, call: Call) -> None:
        """Apply the input guardrails. In plain code a guardrail that has to be awaited raises ``InternalError``. Raises
        ``BlockedByPolicy``; the trace is kept."""
        call.is_guarded = True
        guardrails = at_stage(self.guardrails(call), "input")
        if not guardrails:
            return
        gate = RequestGate(call.request, guardrails)
        try:
            if call.bounds.high > PIECE_CHARS:
                await self.deciding.refuse_too_long(call)
            await pass_in_time(gate, self._clock, call)
        except BaseException as error:
            call.request = gate.request
            self.conclude_undecided(call, error)
            raise
        is_changed = bool(gate.hits) and gate.blocked is None
        call.pass_guardrails(gate.request, gate.hits, bounds_of(gate.request) if is_changed else call.bounds)
        if gate.blocked is not None:
            hit = gate.blocked
            text = f"the guardrail {quoted(hit.guardrail)} blocks the request by its rule {quoted(hit.rule)}"
            detail = {"guardrail": hit.guardrail, "rule": hit.rule, "stage": hit.stage}
            blocked = BlockedByPolicy(f"{text}; no model was called", detail=detail)
            self.conclude_undecided(call, blocked)
            raise blocked
        if is_changed and call.warm is not None and self._warmth is not None:
            call.warm = self._warmth.look(call)

    def guardrails(self, call: Call) -> Sequence[Guardrail]:
        """The guardrails of a call: first the Router's, then the policy's."""
        policy = call.policy
        if policy is None or not policy.policy.guardrails:
            return self._guardrails
        policy_guardrails = self.policy_table.guardrails.get(policy.id)  # None if the policy was replaced meanwhile
        return (*self._guardrails, *(guardrails_of(policy.policy) if policy_guardrails is None else policy_guardrails))

    async def enter(
        self,
        admission: Admission,
        read: Read,
        call: Call | None = None,
        fleet: Fleet | None = None,
        form: Form | None = None,
    ) -> AdmittedCall | bytes:
        """Make the call of a caller with limits, apply the guardrails, decide within the money that is left, and
        reserve the most that the chosen model can cost.

        Returns the call (without an admission if nothing limits it), or the answer kept under its idempotency key."""
        # Raising an error at once, before the admission, would be wrong twice. A client that sends nonsense at full
        # speed would never meet its rate limit; and a repeated request would get an error instead of the answer kept
        # under its key, if no model fits it any more. So `count` admits a failed request first: it answers from the
        # key, raises the refusal for a rate limit, or lets the error stand (contract 7; P1: one key, one result).
        # test_the_key_of_a_refused_call_is_free_at_once_and_the_request_counts,
        # test_a_kept_answer_is_given_though_no_model_fits_any_more
        choice: Choice | None = None
        lookup = None
        try:
            is_open = admission.left is None and await self.admissions.is_open(admission)
            if call is None:  # what its key may use, and what it has spent, are known now
                call = self.make_call(read, admission.rights, fleet, admission)
            if call.policy is not None:  # it may shorten the time-out
                admission.adopt(call)
            has_budget = admission.in_run is not None and admission.in_run.inside.scope.budget is not None
            if admission.in_run is not None:
                call.in_run = admission.in_run
            if is_open and not has_budget:
                return AdmittedCall(call)
            is_guarded = call.is_guarded or not (call.policy or self._guardrails)
            is_guarded = is_guarded or not at_stage(self.guardrails(call), "input")
            # a guardrail may cost something, and the answer to a repeated request needs no money: admit first
            if not is_guarded or (has_budget and call.request.idempotency_key is not None):
                reply = await admission.take()
                if isinstance(reply, wire.Replay):
                    return reply.result
            if not is_guarded:
                await self.guard(call)
            if call.request.cache:
                choice = await self.deciding.choice(call)
                lookup = await self._look_up(call, form, patient=admission.is_patient)
            if choice is not None and lookup is not None and lookup.served is not None:
                reply = await admission.take()
                if isinstance(reply, wire.Replay):
                    return reply.result
            else:
                if has_budget:
                    await self.deciding.reserve(admission, call)
                outcome = await self.deciding.afford(admission, call)
                if isinstance(outcome, bytes):
                    if lookup is not None:
                        lookup.leave()
                    return outcome
                choice = outcome
            call.decide(choice)
            call.windows = admission.windows
            return AdmittedCall(call, admission, lookup)
        except BaseException as error:
            if lookup is not None:  # first, since the rest may be cancelled
                lookup.leave()
            if isinstance(error, RouterError) and admission.grant is None and not admission.is_unadmitted:
                stored = await admission.count()
                if stored is not None:
                    return stored
            # a call that failed before a model was chosen leaves a trace, unless its admission was refused
            is_traceless = admission.is_unadmitted or isinstance(error, TRACELESS)
            if call is not None and call.status == "running" and not is_traceless:
                self.conclude_undecided(call, error, choice)
            raise

    async def _look_up(self, call: Call, form: Form | None, *, patient: bool) -> Lookup:
        """Look up the answer to a decided call in the response cache (``Caching.look``)."""
        guardrails = self.guardrails(call)
        lookup = await self.caching.look(call, guardrails and at_stage(guardrails, "output"), form, patient=patient)
        call.looked = lookup.line
        return lookup

    def conclude_undecided(self, call: Call, error: BaseException, choice: Choice | None = None) -> None:
        """Keep the trace of a call that ends before a model is called."""
        if call.plan is None:
            refused = error.decision_input if isinstance(error, NoCandidates) else None
            if choice is not None:
                call.decide(choice)
            else:
                call.refuse(refused if isinstance(refused, wire.DecisionInput) else input_of_call(call, self.defaults))
        self.log.conclude_undecided(call, error)

    def check(self, read: Read, caller: wire.Caller) -> list[PolicyCheck]:
        """Check every policy, and each of its classes, with one request. Counts tokens."""
        results = []
        for published in self.policy_table.policies:
            policy_read = replace(read, request=replace(read.request, policy_id=published.policy.id))
            names = map(name_of, published.policy.classes or ())
            for name, snapshot in (("", published), *zip(names, published.classes, strict=True)):
                call = self.make_call(policy_read, caller, policies=PolicyTable([snapshot]))
                assert call.applied_policy is not None, "the call has a policy"
                policy_check = check_policy(self.deciding.count_tokens(call), call.board, call.applied_policy)
                results.append(replace(policy_check, policy_class=name))
        return results

    def execution(
        self,
        call: Call,
        admission: Admission | None,
        lookup: Lookup | None = None,
        *,
        whole: bool = True,
        form: Form | None = None,
    ) -> Execution:
        """The execution of a decided call."""
        plan = call.plan
        fleet = call.fleet
        room = call.budget
        payer = None
        assert isinstance(fleet, Fleet), "`make_call` took one"
        assert plan is not None, "the call was decided"
        rules = fleet.rules
        if call.policy is not None or call.request.fallback is not None:
            rules = call.attempt_rules(rules)
        if admission is not None and room is not None and admission.grant is not None and admission.grant.is_limited:
            room = room.within(admission.grant.nanos)
            payer = admission
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
            chain=Chain(plan.legs),
        )
        is_sandbox = call.caller.environment == "sandbox"
        execution = Execution(
            call, machine, fleet, self._clock, self._rng, deadline, is_sandbox, admission, payer, lookup, form
        )
        if rules.hedged:
            execution.hedge = Hedge(execution)
        if lookup is not None and lookup.served is not None:
            call.served = lookup.served
            machine.end = End.SUCCEEDED
            if form is not None and lookup.served.pieces is None:
                execution.data = reread(form, lookup.served.output)
        if self._guardrails or call.policy is not None:
            execution.guardrails = at_stage(self.guardrails(call), "output")
        if call.traceparent is not None and self._options.traceparent_to:
            execution.onward = Onward(call.traceparent, call.id, self._options.traceparent_to)
        self.log.under_way.add(call)
        return execution
