"""``Call``: the record of one request, its decision, attempts and outcome, filled in by the engine.

Trace, spans, ledger rows, response and events are computed from it on demand. After the end it holds no text unless
content is captured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from msgspec import Raw, Struct, json, msgpack
from msgspec.structs import replace

from routewright import wire
from routewright.errors import BudgetExceeded, RouterError
from routewright.wire.ids import TraceParent
from routewright.wire.timestamps import timestamp

from .analytics.rollup import compared_to
from .attempts.faults import FAULTS
from .attempts.machine import Rules
from .attempts.record import NO_TEXT, Attempt, Rare
from .catalogue.prices import saved_nanos
from .guardrails.capture import Texts
from .guardrails.screen import Hit
from .limits import usage_of
from .money import usd
from .policy import AppliedPolicy
from .prompt_caches import Warm
from .routing.board import Board, Boards
from .routing.budget import UNLIMITED, Amount, Room, least_room, room_of, worst_of_call
from .routing.decide import Choice, find_passed
from .routing.decision import Decision
from .routing.plan import ID, Plan
from .routing.request_options import Requirements
from .routing.shadow import Shadow
from .trace.spans import AttemptLine, CallLine, ChoiceLine, Flag, LookLine, MoveLine, spans_of, trace_of

decode_object = json.Decoder(wire.JsonObject).decode
MAX_CANDIDATES = 5  # candidates in a trace; a replay gives all of them


class Serving(Protocol):
    """The providers and models that a call was decided for: the engine's ``Fleet``."""

    aliases: Mapping[str, str]

    @property
    def candidates(self) -> bytes:
        """Digest of the served models and their providers."""

    def boards_on(self, day: str) -> Boards:
        """The boards at the prices of a day."""

    def count_end(self, account: tuple[str, str], *, error: bool) -> wire.ErrorBurst | None:
        """Count a finished call of an account and environment. Returns an error burst when one begins."""


class CallInRun(Protocol):
    """The place of a call in a run (``_engine/context.py``)."""

    def record(self, call: Call) -> None:
        """Record the end of the call."""


class _Rare(Rare):
    """Fields that few calls need."""

    __slots__ = ()

    policy: wire.PolicySnapshot | None = None
    applied_policy: AppliedPolicy | None = None
    """The policy applied to the request."""
    asks: Requirements | None = None
    """Model abilities that it needs besides text. None: none."""
    repeats = False
    """True: the prompt will be sent again with more messages."""
    workload_values: tuple[str | None, ...] = ()
    """Metadata values that identify its workload."""
    workload: tuple[int, int] | None = None
    """How much longer, and slower, the workload's answers are than usual, in quarter octaves."""
    warm: Warm | None = None
    """Its prompt and the prefixes of it that vendors' caches should have, until the call ends."""
    has_lists = False
    """True: the request names models, so it shares no plan with its class."""
    budget: Room | None = None
    own_input: wire.DecisionInput | None = None
    """The decision's input if it differs from the class's. None: ``decision_input`` derives it from the plan's."""
    policy_class = ""
    """Name of the policy's class that applies."""
    assignment = ""
    """Digest that decides if a share of its policy serves it. Empty: no share runs, or it has no value to go by."""
    passed_by: str | None = None
    """The model that it would have called first if its circuit were closed. Set at the end."""
    beside: Shadow | None = None
    """The shadow of its policy. Set at the end."""
    looked: LookLine | None = None
    metadata_json: bytes | None = None
    """Encoded at the start, because callers may change their object."""
    rollup_keys: tuple[str, ...] = ()
    """Metadata keys that usage is counted by."""
    windows: Sequence[wire.WindowState] = ()
    """Rate limits at its admission."""
    traceparent: TraceParent | None = None
    is_guarded = False
    """True: the request has passed the guardrails."""
    hits: Sequence[Hit] = ()
    used = Amount()
    """Highest possible use of its budget, if any. Set at the end."""
    created_text: str | None = None
    error_code: str | None = None  # not the error itself, which would keep its frames alive
    captured: Texts | None = None
    """Captured content, if any. Redacted when first read."""
    text_bytes = 0
    is_booked = False
    """True: its cost is settled separately from its trace."""
    in_run: CallInRun | None = None
    """The run that it is part of."""
    waited_s = 0.0
    """How long its answer waited for the storage; not in the trace."""
    is_void = False
    """True: another call was answered and billed instead."""


class Outcome(Struct):
    """Working data that a call hands over when it ends: its answer, and the sources of its trace and events."""

    board: Board
    budget: wire.Budget | None
    """The request's."""
    snapshots: Sequence[wire.Snapshot]
    """Those that its trace names."""
    output: str = ""
    tool_calls: list[wire.ToolCall] | None = None
    reasoning: wire.Reasoning | None = None


class Call(_Rare, Struct, dict=True, eq=False):
    """One request that was admitted."""

    id: str
    caller: wire.Caller
    request: wire.RouteRequest
    """The request after its policy. Dropped at the end, like ``board`` and ``fleet``."""
    bounds: wire.TokenBounds
    board: Board
    """Snapshots used for the whole call."""
    fleet: Serving
    day: str
    """UTC date of its start."""
    snapshot_ids: tuple[str, str, str | None]
    """Ids of the catalogue, health and policy snapshots of the decision."""
    policy_version: str
    timeout_ms: int
    created_at: float
    """Unix seconds."""
    started_at: float
    """Monotonic seconds."""
    ended_at: float
    plan: Plan | None = None
    attempts: tuple[Attempt, ...] = ()
    served: Attempt | None = None
    status: wire.TraceStatus = "running"
    cost_nanos: int = 0
    """Cost of all attempts. Set at the end."""

    def __repr__(self) -> str:
        # leaves out the text, because reprs end up in logs
        return f"<Call {self.id}: {self.status}, {len(self.attempts)} attempts>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Representation for ``rich``, also without text."""
        return [("id", self.id), ("status", self.status)]

    @property
    def as_of(self) -> str:
        """UTC date of the decision."""
        return self.board.pool.as_of if self.board.pool.dated else self.day

    @property
    def deadline(self) -> float:
        """Monotonic seconds at which its time is over."""
        return self.started_at + self.timeout_ms / 1000

    @property
    def policy_fallback(self) -> wire.PolicyFallback | None:
        """The fallback rules of its policy, if any."""
        return None if self.policy is None else self.policy.policy.fallback

    def attempt_rules(self, default: Rules) -> Rules:
        """The rules for its attempts: the default, changed by its policy and its own fallback."""
        fallback = self.request.fallback
        policy = self.policy_fallback
        return Rules(
            default.limits,
            (None if fallback is None else fallback.on_partial) or "restart",
            on_refusal_fall_back=policy is not None and policy.on_refusal == "fallback",
            hedged=policy is not None and policy.hedge,
            retries=None if fallback is not None and fallback.max_retries is not None else default.retries,
        )

    @property
    def metadata(self) -> dict[str, Any]:
        """Tags of the request."""
        return {} if self.metadata_json is None else decode_object(self.metadata_json)

    def limit(self, room: Room) -> None:
        """Reduce its budget to the room that others leave it."""
        budget = self.request.budget
        least = least_room(room, UNLIMITED if budget is None else room_of(budget))
        cost_usd = None if least.nanos is None else usd(least.nanos)
        self.request = replace(self.request, budget=wire.Budget(cost_usd, least.tokens))

    def decide(self, choice: Choice) -> None:
        """Record the decision."""
        self.plan = choice.plan
        if choice.budget is not None:
            self.budget = choice.budget
        if choice.own_input is not None:
            self.own_input = choice.own_input
            self.bounds = choice.own_input.tokens

    def renew(self, board: Board) -> None:
        """Decide again by newer snapshots."""
        self.board = board
        self.snapshot_ids = (*board.ids[:2], self.snapshot_ids[2])
        self.own_input = None

    def refuse(self, decision_input: wire.DecisionInput) -> None:
        """Record the input of a decision that found no model."""
        self.own_input = decision_input

    def pass_guardrails(self, request: wire.RouteRequest, hits: Sequence[Hit], bounds: wire.TokenBounds) -> None:
        """Record the outcome of the input guardrails."""
        self.request = request
        self.hits = hits
        self.bounds = bounds
        self.is_guarded = True

    @property
    def decision_input(self) -> wire.DecisionInput:
        """The decision's input."""
        if self.own_input is not None:
            return self.own_input
        assert self.plan is not None, "its plan is one of a class of requests"
        budget = self.budget
        return replace(
            self.plan.decision_input,
            catalogue=self.snapshot_ids[0],
            health=self.snapshot_ids[1],
            tokens=self.bounds,
            timeout_ms=self.timeout_ms,
            budget_nanos=None if budget is None else budget.nanos,
            budget_tokens=None if budget is None else budget.tokens,
            policy_class=self.policy_class,
            assignment=self.assignment,
            requested=None if self.applied_policy is None else self.applied_policy.requested,
            spent=None if self.applied_policy is None else self.applied_policy.spent,
        )

    @property
    def decision(self) -> Decision | None:
        """The decision, if one was made."""
        return None if self.plan is None else Decision(self.plan, self.decision_input, None)

    @cached_property
    def shadow(self) -> wire.ShadowDecision | None:
        """What the shadow of its policy decides. Computed for its trace, once it has ended."""
        return None if self.beside is None else self.beside.decide(self.decision_input, self.policy, self.metadata)

    @property
    def created(self) -> str:
        """Time of the call, RFC 3339."""
        if self.created_text is None:
            self.created_text = timestamp(self.created_at)
        return self.created_text

    @property
    def key(self) -> str:
        """Sort key of its trace."""
        return self.created + self.id

    @property
    def environment(self) -> wire.Environment:
        """The caller's environment."""
        return self.caller.environment

    @property
    def fell_back(self) -> bool:
        """True: a fallback served the request."""
        return self.served is not None and self.served.place > 0

    @property
    def charged_nanos(self) -> int:
        """Billed: the cost of an answer, or the cost so far if the caller left after content was delivered."""
        if self.caller.environment == "sandbox" or self.is_void:
            return 0
        if self.served is not None:
            return self.cost_nanos
        is_left = self.status == "cancelled" and any(attempt.delivered for attempt in self.attempts)
        return self.cost_nanos if is_left else 0

    @property
    def latency_ms(self) -> float:
        """Duration of the call. In the sandbox it includes the model's usual latency without waiting for it."""
        milliseconds = (self.ended_at - self.started_at) * 1000
        for attempt in self.attempts:
            milliseconds += attempt.unslept_ms
        return round(milliseconds, 3)

    @property
    def answering(self) -> Attempt | None:
        """The attempt that served the request, or the last one of a call that was left."""
        return (
            self.attempts[-1] if self.served is None and self.status == "cancelled" and self.attempts else self.served
        )

    @property
    def tokens(self) -> wire.Tokens:
        """Tokens of the answering attempt."""
        answering = self.answering
        usage = None if answering is None else answering.usage
        return wire.Tokens() if usage is None else wire.Tokens(usage.input, usage.output, usage.cached)

    def most_used(self, spent: Amount) -> Amount:
        """Upper bound for the budget used, of which ``spent`` is booked. An answer without reported usage counts with
        the most it can cost."""
        served = self.served
        if served is None or served.usage is None or served.cap is None:
            return spent
        if served.counted and not served.usage_estimated:
            return spent
        worst = worst_of_call(served.leg, self.bounds, served.cap)
        return spent.plus(worst.without(Amount(served.cost_nanos, served.usage.input + served.usage.output)))

    def void(self, is_void: bool) -> None:
        """Set whether another call was answered and billed instead, so that this one charges nothing."""
        self.is_void = is_void

    def end(
        self, error: RouterError | None, at: float, *, used: Amount | None, captured: Texts | None, is_booked: bool
    ) -> Outcome:
        """Record the outcome, and hand out the working data. With neither an answer nor an error, the
        caller left."""
        served = self.served
        plan = self.plan
        board = self.board
        if plan is not None and plan.counts is None:
            plan.counts = Decision(plan, self.decision_input, board).rejected_counts
        if plan is not None and self.attempts:
            if plan.passed:
                self.passed_by = find_passed(plan, self.decision_input, board)
            if self.attempts[0].past_circuit:
                self.passed_by = self.passed_by or plan.legs[0].id
        if plan is not None and self.applied_policy is not None and self.applied_policy.shadow is not None:
            self.beside = Shadow(self.applied_policy.shadow, self.fleet.boards_on(self.as_of), board.forecast.health)
        snapshots = board.snapshots if self.policy is None else (*board.snapshots, self.policy)
        outcome = Outcome(board, self.request.budget, snapshots)
        if served is not None:
            if served.screen is None:
                outcome.output = "".join(served.text)
                outcome.tool_calls = None if served.pieces is None else served.tool_calls
            else:
                outcome.output = served.answer
                outcome.tool_calls = served.answer_calls
            if served.thoughts is not None:
                outcome.reasoning = served.reasoning()
        if used is not None:
            self.used = used
        if captured is not None:
            self.captured = captured
            self.text_bytes = captured.size
        if is_booked:
            self.is_booked = True
        self.ended_at = at
        self.request = None  # type: ignore[assignment]
        self.fleet = self.board = None  # type: ignore[assignment]
        if self.warm is not None:
            self.warm = None
        if served is not None and not self.attempts:  # it came from the cache
            served.text = NO_TEXT
            served.screen = served.pieces = None
        for attempt in self.attempts:
            self.cost_nanos += attempt.cost_nanos
            attempt.text = NO_TEXT
            if attempt.thoughts is not None:
                attempt.thoughts = None
            attempt.patience_s = attempt.wake_at = 0.0
            if attempt.screen is not None:
                attempt.hits = attempt.screen.hits
                attempt.screen = None
            if attempt.pieces is not None:
                attempt.pieces = None
        if served is not None:
            self.status = "completed"
        elif error is None:
            self.status = "cancelled"
        else:
            self.status = "budget_exceeded" if isinstance(error, BudgetExceeded) else "failed"
        if error is not None:
            self.error_code = error.code
        if self.in_run is not None:
            self.in_run.record(self)
            self.in_run = None
        return outcome

    def shorten(self) -> None:
        """Drop captured content."""
        self.captured = None
        self.text_bytes = 0

    def record_wait(self, at: float) -> None:
        """Record that its answer was held back until it was stored."""
        self.waited_s = at - self.ended_at

    # Results for the ledger, the storage and listeners

    @property
    def rows(self) -> list[wire.LedgerRow]:
        """Ledger rows to book with its trace (``TraceDraft``)."""
        return [] if self.is_booked else self.ledger_rows

    @property
    def ledger_rows(self) -> list[wire.LedgerRow]:
        """One row per attempt that may have a cost; none in the sandbox."""
        rows: list[wire.LedgerRow] = []
        if self.caller.environment == "sandbox":
            return rows
        is_charged = self.charged_nanos > 0
        for attempt in self.attempts:
            usage = attempt.usage
            cost_range = None if attempt.unsure is None else attempt.cost_range_nanos(self.bounds)
            if usage is None and cost_range is None:
                continue
            row = wire.LedgerRow(
                request_id=self.id,
                attempt=attempt.number,
                at=self.created,
                key_id=self.caller.key_id,
                model=attempt.leg.id,
                provider=attempt.server or attempt.leg.provider,
                tokens=wire.Tokens() if usage is None else wire.Tokens(usage.input, usage.output, usage.cached),
                cost_nanos=attempt.cost_nanos,
                charge_nanos=attempt.cost_nanos if is_charged else 0,
                cost_range_nanos=cost_range,
            )
            rows.append(row)
        return rows

    @property
    def line(self) -> CallLine:
        """The stored form of its trace, without content."""
        answering = self.served or self.answering
        decision_input = self.decision_input
        usage = None if answering is None else answering.usage
        line = CallLine(
            self.id,
            self.status,
            self.created,
            self.latency_ms,
            self.caller.environment,
            self.caller.account,
            self.caller.key_id,
            self.policy_version,
            decision_input,
            None if self.plan is None else self._choice(self.plan, decision_input),
            None if answering is None else answering.leg.id,
            self.served is not None and self.served.place > 0,
            self.cost_nanos,
            self.charged_nanos if self.cost_nanos else 0,
            (0, 0, 0) if usage is None else (usage.input, usage.output, usage.cached),
            [self._attempt_line(attempt) for attempt in self.attempts],
            self.error_code,
            None if self.policy is None else self.policy.policy.id,
            self.metadata_json,
        )
        if self.traceparent is not None:
            line.traceparent = self.traceparent.text
        if self.looked is not None or self.hits:
            line.looked = self.looked
            line.hits = tuple(self.hits)
        line.passed_by = self.passed_by
        line.shadow = self.shadow
        return line

    def _choice(self, plan: Plan, decision_input: wire.DecisionInput) -> ChoiceLine:
        decided_at = self.attempts[0].started_at if self.attempts else self.ended_at
        looked = self.looked
        took_ms = round((decided_at - self.started_at) * 1000, 3) if looked is None else round(looked.start_ms, 3)
        shared = plan.line  # of an earlier call, and whether that was plain: its input and budget were the plan's
        is_plain = self.own_input is None and self.budget is None
        if shared is not None and shared[1] and is_plain:
            line: ChoiceLine = replace(shared[0], took_ms=took_ms)
            return line
        decision = Decision(plan, decision_input, None)
        line = ChoiceLine(
            Raw(msgpack.encode(decision.front[:MAX_CANDIDATES])) if shared is None else shared[0].candidates,
            plan.models,
            -plan.front[0][0],
            *decision.output,
            {str(reason): count for reason, count in decision.rejected_counts.items()},
            decision.token_count,
            took_ms,
        )
        if plan.is_shared and (shared is None or is_plain):
            plan.line = line, is_plain
        return line

    def _attempt_line(self, attempt: Attempt) -> AttemptLine:
        began = attempt.started_at
        usage = attempt.usage
        from_model, before = self._replaced_by(attempt)
        line = AttemptLine(
            attempt.number,
            attempt.leg.id,
            attempt.server or attempt.leg.provider,
            attempt.status,
            round((began - self.started_at) * 1000, 3),
            round((attempt.ended_at - began) * 1000 + attempt.unslept_ms, 3),
            None if attempt.first_at is None else round((attempt.first_at - began) * 1000, 3),
            None if usage is None else (usage.input, usage.output, usage.cached),
            attempt.cost_nanos,
            None if attempt.unsure is None else attempt.cost_range_nanos(self.bounds),
            attempt.finish_word or attempt.finish_reason,
            attempt.fault,
            attempt.usage_estimated * Flag.ESTIMATED
            | (attempt.repair is not None) * Flag.REPAIR
            | attempt.hedge * Flag.HEDGE
            | attempt.probe * Flag.PROBE,
        )
        if from_model is not None:
            used = self.served is not None and self.served.leg is attempt.leg  # perhaps after a retry
            line.instead = MoveLine(from_model, _reason_after(before), used, _fault_of(attempt, before))
        if usage is not None and usage.cached:
            line.saved_nanos = saved_nanos(attempt.prices, usage)
        if attempt.hits:
            line.hits = tuple(attempt.hits)
            line.hits_ms = round((attempt.ended_at - self.started_at) * 1000, 3)
        return line

    @property
    def trace(self) -> wire.Trace:
        """The trace (spec 2.6, contract 9), newly built for each reader."""
        return trace_of(self.line, None if self.captured is None else self.captured.content)

    @property
    def wordless(self) -> wire.Trace:
        """The trace without captured content, so it needs no redactor."""
        return trace_of(self.line)

    @property
    def spans(self) -> list[wire.Span]:
        """Spans of the trace, in order."""
        return spans_of(self.line)

    @property
    def counted(self) -> wire.Counted:
        """What analytics count of its trace."""
        served = self.served
        looked = self.looked
        is_hit = looked is not None and looked.hit
        answering = served or self.answering
        usage = None if answering is None else answering.usage
        decision_input = self.own_input
        if decision_input is None:
            assert self.plan is not None, "its plan is one of a class of requests"
            decision_input = self.plan.decision_input
        reason = None
        ended: list[tuple[str, bool]] = []
        for attempt in self.attempts:
            if attempt.fault is not None or attempt.finish_reason is not None:  # else it was cancelled
                ended.append((attempt.leg.id, attempt.fault is None))
        if self.fell_back:
            replaced = ((attempt, *self._replaced_by(attempt)) for attempt in self.attempts)
            reason = next(
                (_fault_of(attempt, before) for attempt, model, before in replaced if model is not None), None
            )
        return wire.Counted(
            environment=self.caller.environment,
            created_at=self.created,
            is_error=self.status in wire.FAILED,
            model=served.leg.id if served is not None else self.attempts[-1].leg.id if self.attempts else "",
            cost_nanos=self.cost_nanos,
            charged_nanos=self.charged_nanos if self.cost_nanos else 0,
            tokens=wire.Tokens() if usage is None else wire.Tokens(usage.input, usage.output, usage.cached),
            metadata={} if self.metadata_json is None else self.metadata,
            was_tried=bool(self.attempts),
            ended=ended,
            fallback=reason,
            passed_by=self.passed_by,
            latency=None if served is None or is_hit else (served.leg.id, decision_input.strategy, self.latency_ms),
            lookups=[] if looked is None else [(looked.age_s, looked.saved_nanos) if looked.hit else (None, 0)],
            policy_version="" if self.policy is None else self.policy_version,
            shadow="" if self.plan is None or self.shadow is None else compared_to(self.shadow, self.plan.legs[0].id),
        )

    def _replaced_by(self, attempt: Attempt) -> tuple[str | None, Attempt | None]:
        """The model that an attempt replaced, if it was a fallback, and the previous attempt, if any."""
        first = self.attempts[0]
        before = attempt.after or (None if attempt is first else first)
        model = before.model if before is not None else attempt.model if self.plan is None else self.plan.legs[0].id
        return (model if model != attempt.model and (not attempt.hedge or attempt is self.served) else None), before

    def response(
        self, output: str, calls: list[wire.ToolCall] | None, reasoning: wire.Reasoning | None = None
    ) -> wire.RouteResponse:
        """The route response (spec 2.2) of a served call."""
        plan = self.plan
        served = self.served
        assert plan is not None
        assert served is not None
        usage = served.usage
        amounts = () if usage is None else (usage.input, usage.output, usage.cached, usage.reasoning, usage.written)
        primary, *chain = map(ID, plan.legs)
        last_reason = plan.last_reason
        budget = self.budget
        counts = plan.counts if budget is None else plan.rejections(self.bounds.high, budget.nanos, budget.tokens)
        if last_reason is not None and last_reason[0] is counts:
            sentence = last_reason[1]
        else:
            sentence = Decision(plan, self.decision_input, None).reason
        looked = self.looked
        is_hit = looked is not None and looked.hit
        if looked is not None and is_hit:
            near = "" if looked.similarity is None else f", similarity {looked.similarity:.3f}"
            sentence = f"from the cache ({looked.mode}, {looked.age_s:.0f} s old{near}); else {sentence}"
        routing = wire.Routing(
            selected_model=served.leg.id,
            fallback_chain=chain,
            policy_version=self.policy_version,
            decision_reason=sentence,
            cost_usd=usd(served.cost_nanos if len(self.attempts) == 1 else self.cost_nanos),
            latency_ms=round(self.latency_ms + self.waited_s * 1000, 3),
            cache_hit=is_hit,
            tokens=wire.Tokens(*amounts),
        )
        if usage is not None and usage.cached and not is_hit and (saved := saved_nanos(served.prices, usage)):
            routing = replace(routing, saved_usd=usd(saved))
        if self.asks is not None:
            routing.ignored_params.extend(self.asks.ignored_by(served.leg.able))
        return wire.RouteResponse(
            trace_id=self.id,
            output=output,
            routing=routing,
            usage=usage_of(self.windows, self.created_at),
            primary_model=primary,
            fallback_model=served.leg.id if served.place else None,
            cache_hit=is_hit,
            tool_calls=calls,
            finish_reason=served.finish_reason,
            reasoning=reasoning,
        )

    def events(self, error: RouterError | None, budget: wire.Budget | None) -> list[wire.PushedEvent]:
        """Events to push (spec 6.1). ``budget`` is the request's."""
        if isinstance(error, BudgetExceeded):
            return [wire.BudgetRefused(self.id, error.detail["rejected_candidates"], budget, self.metadata)]
        plan = self.plan
        served = self.served
        if plan is None or served is None or served.place == 0:
            return []
        primary = [attempt for attempt in self.attempts if attempt.place == 0]
        reason = _reason_after(primary[-1] if primary else None)
        spent_ms = round(sum((attempt.ended_at - attempt.started_at) * 1000 for attempt in primary), 3)
        return [wire.FallbackTriggered(self.id, plan.legs[0].id, served.model, reason, spent_ms, self.metadata)]


def _reason_after(before: Attempt | None) -> wire.FallbackReason:
    """Reason for the fallback after an attempt. None: the model was skipped because of earlier faults."""
    if before is None:
        return "upstream_5xx"
    # without a fault, a hedge was faster
    return "timeout" if before.fault is None else FAULTS[before.fault].reason


def _fault_of(attempt: Attempt, before: Attempt | None) -> str:
    """What was wrong with the model that an attempt replaced (``FallbackSpan.fault``)."""
    if before is None:
        return wire.Reason.CIRCUIT_OPEN.value if attempt.past_circuit else "budget"
    return "hedge" if before.fault is None else before.fault.value
