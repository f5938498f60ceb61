"""``Call``: the record of one request from the door to the storage. The engine fills it in. Its trace, spans, ledger
rows, response and events are computed when they are read. It keeps no prompt or answer, unless they are captured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw, Struct, json, msgpack
from msgspec.structs import replace

from routewright.errors import BudgetExceeded, RouterError
from routewright.wire import (
    FAILED,
    Budget,
    BudgetRefused,
    Caller,
    Counted,
    DecisionInput,
    Environment,
    FallbackReason,
    FallbackTriggered,
    LedgerRow,
    PolicySnapshot,
    PushedEvent,
    Reading,
    Reasoning,
    RouteRequest,
    RouteResponse,
    Routing,
    Span,
    TokenBounds,
    Tokens,
    ToolCall,
    Trace,
    TraceStatus,
    Usage,
    WarmPrefix,
    WindowState,
)

from .account import usage_of
from .attempt import NO_TEXT, Attempt, Rare
from .attempts.faults import FAULTS
from .catalogue.prices import saved_nanos
from .guardrails.screen import Hit
from .money import usd
from .policy import Laid
from .routing.board import Board
from .routing.budget import Amount, Room, own_room
from .routing.decision import Decision
from .routing.dials import Asks
from .routing.exploration import Draw
from .routing.plan import ID, Plan
from .routing.scoring import Prompt
from .timestamps import timestamp
from .trace.compact import (
    ESTIMATED,
    HEDGE,
    PROBE,
    REPAIR,
    AttemptLine,
    CallLine,
    ChoiceLine,
    LookLine,
    spans_of,
    trace_of,
)
from .trace.ids import TraceParent

BEST_KEPT = 5  # candidates in a trace; replay gives the whole table


class _Rare(Rare):
    """Fields that few calls set."""

    __slots__ = ()

    policy: PolicySnapshot | None = None
    laid: Laid | None = None
    """The policy applied to the request; dropped when the call ends."""
    hold: Any = None
    """Its hold on limits and money until it ends. None: its caller has no limits."""
    asks: Asks | None = None
    """What it needs from a model besides text."""
    repeats = False
    """Its prompt will be sent again as the prefix of a longer one."""
    workload_values: tuple[str | None, ...] = ()
    """Values in its metadata that identify its workload."""
    workload: tuple[int, int] | None = None
    """How much longer, and how much slower, the workload's answers are than usual, in quarter octaves."""
    prompt: Prompt | None = None
    """Hashes of its prompt, if vendors may have it cached."""
    warm: tuple[WarmPrefix, ...] = ()
    """Prefixes expected to be in vendors' caches."""
    has_lists = False
    """It names models, so no compiled plan of a class applies."""
    budget: Room | None = None
    own_given: DecisionInput | None = None
    """The decision's input, if it is not shared by a class. None: derived from the plan's input when read."""
    reading: Reading | None = None
    """The prediction from its prompt. None: not made yet, or it could not change the choice."""
    quality: tuple[int, ...] | None = None
    """Predicted quality per row of the pool, if it differs from the catalogue's."""
    explores = True
    """A policy may try another model first. False if only the decision is wanted, since nothing is learned from it."""
    draw: Draw | None = None
    """The model to try first under a policy that explores."""
    asks_cache = False
    lookup: Any = None
    looked: LookLine | None = None
    metadata_json: bytes | None = None
    """Copied when the call was made, so that later changes of the caller's object do not matter."""
    rollup_keys: tuple[str, ...] = ()
    """Metadata keys that usage is grouped by."""
    windows: Sequence[WindowState] = ()
    """Its rate limits when it was admitted."""
    traceparent: TraceParent | None = None
    is_guarded = False
    """Its request has passed the guardrails."""
    hits: Sequence[Hit] = ()
    used = Amount()
    """The most of its budget that it can have used. Set when it ends."""
    created_text: str | None = None
    error_code: str | None = None  # an error itself holds on to the frames it passed
    captured: Any = None
    """The captured prompt and answer. Redacted when first read."""
    text_bytes = 0
    is_booked = False
    """Its cost is settled separately from its trace."""
    waited_s = 0.0
    """How long its answer waited for the storage. Not in its trace, which is written before."""
    is_void = False
    """Another call was answered and billed in its place."""


class Call(_Rare, Struct, dict=True, eq=False):
    """One request that was admitted."""

    id: str
    caller: Caller
    request: RouteRequest
    """After its policy was applied. Dropped when the call ends, as are ``board`` and ``fleet``."""
    bounds: TokenBounds
    board: Board
    """The snapshots it decides from."""
    fleet: Any
    snapshot_ids: tuple[str, str, str | None]
    """Of the catalogue, health and policy behind the decision."""
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
    status: TraceStatus = "running"

    def __repr__(self) -> str:
        # no text: a repr ends up in logs
        return f"<Call {self.id}: {self.status}, {len(self.attempts)} attempts>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Fields for ``rich``; no text either."""
        return [("id", self.id), ("status", self.status)]

    @property
    def as_of(self) -> str:
        """UTC date of the decision."""
        return self.board.pool.as_of if self.board.pool.dated else str(self.fleet.day)

    @property
    def deadline(self) -> float:
        """When its time is over, in monotonic seconds."""
        return self.started_at + self.timeout_ms / 1000

    @property
    def metadata(self) -> dict[str, Any]:
        """Tags of its request."""
        metadata: dict[str, Any] = {} if self.metadata_json is None else json.decode(self.metadata_json)
        return metadata

    @property
    def given(self) -> DecisionInput:
        """The decision's input, predictions included."""
        given, plan, budget = self.own_given, self.plan, self.budget
        if given is not None:
            return given
        assert plan is not None, "its plan is one of a class of requests"
        catalogue, health, _ = self.snapshot_ids
        nanos, tokens = (None, None) if budget is None else budget
        return replace(
            plan.given,
            catalogue=catalogue,
            health=health,
            tokens=self.bounds,
            timeout_ms=self.timeout_ms,
            budget_nanos=nanos,
            budget_tokens=tokens,
            reading=self.reading,
            propensity=0 if self.draw is None else self.draw.propensity,
        )

    @given.setter
    def given(self, given: DecisionInput) -> None:
        self.own_given = given
        self.bounds, self.timeout_ms = given.tokens, given.timeout_ms
        unlimited = given.budget_nanos is None and given.budget_tokens is None
        self.budget = None if unlimited else own_room(given)

    @property
    def decision(self) -> Decision | None:
        """None: no decision was made."""
        return None if self.plan is None else Decision(self.plan, self.given, None)

    @property
    def created(self) -> str:
        """``created_at`` as RFC 3339."""
        if self.created_text is None:
            self.created_text = timestamp(self.created_at)
        return self.created_text

    @property
    def key(self) -> str:
        """Key of its trace: traces sort by it in order of time."""
        return self.created + self.id

    @property
    def environment(self) -> Environment:
        """The caller's environment."""
        return self.caller.environment

    @property
    def cost_nanos(self) -> int:
        """Cost upstream of all attempts."""
        attempts = self.attempts
        return attempts[0].cost_nanos if len(attempts) == 1 else sum([attempt.cost_nanos for attempt in attempts])

    @property
    def fell_back(self) -> bool:
        """Another model than the chosen one served the request."""
        return self.served is not None and self.served.place > 0

    @property
    def charged_nanos(self) -> int:
        """What is billed: the cost, if there is an answer or the caller left after content was delivered; else 0."""
        if self.caller.environment == "sandbox" or self.is_void:
            return 0
        if self.served is not None:
            return self.cost_nanos
        left_midway = self.status == "cancelled" and any(attempt.delivered for attempt in self.attempts)
        return self.cost_nanos if left_midway else 0

    @property
    def latency_ms(self) -> float:
        """Duration of the whole call. Sandbox calls add the model's usual time without waiting for it."""
        milliseconds = (self.ended_at - self.started_at) * 1000
        for attempt in self.attempts:
            milliseconds += attempt.unslept_ms
        return round(milliseconds, 3)

    @property
    def tokens(self) -> Tokens:
        """Tokens of the attempt that served the request."""
        return (None if self.served is None else _tokens_of(self.served.usage)) or Tokens()

    def void(self, is_void: bool) -> None:
        """Charge nothing, since another call was answered and billed instead; False charges its cost again."""
        self.is_void = is_void

    def end(self, error: RouterError | None, at: float) -> None:
        """Set its status and drop its working state. No answer and no error means that the caller left."""
        self.ended_at = at
        self.request = self.fleet = self.board = None  # type: ignore[assignment]
        if self.prompt is not None:
            self.prompt = None
        if self.laid is not None or self.hold is not None:
            self.laid = self.hold = None
        if self.lookup is not None:
            self.lookup = None
            if self.served is not None and not self.attempts:  # a hit
                self.served.text, self.served.screen, self.served.pieces = NO_TEXT, None, None
        for attempt in self.attempts:  # traces hold no text, and the times only mattered while it ran
            attempt.text = NO_TEXT
            if attempt.thoughts is not None:
                attempt.thoughts = None
            attempt.patience_s = attempt.due_at = 0.0
            if attempt.screen is not None or attempt.pieces is not None:
                attempt.screen = attempt.pieces = None
        if self.served is not None:
            self.status = "completed"
        elif error is None:
            self.status = "cancelled"
        else:
            self.status = "budget_exceeded" if isinstance(error, BudgetExceeded) else "failed"
        if error is not None:
            self.error_code = error.code

    # Computed from the record

    @property
    def rows(self) -> list[LedgerRow]:
        """Ledger rows to book with its trace (``TraceDraft``)."""
        return [] if self.is_booked else self.ledger_rows

    @property
    def ledger_rows(self) -> list[LedgerRow]:
        """One row per attempt that may have cost something; none in the sandbox."""
        caller, rows = self.caller, list[LedgerRow]()
        if caller.environment == "sandbox":
            return rows
        charges = self.charged_nanos > 0
        for attempt in self.attempts:
            usage, leg, cost = attempt.usage, attempt.leg, attempt.cost_nanos
            cost_range = None if attempt.unsure is None else attempt.cost_range_nanos(self.bounds)
            if usage is None and cost_range is None:
                continue
            row = LedgerRow(
                request_id=self.id,
                attempt=attempt.number,
                at=self.created,
                key_id=caller.key_id,
                model=leg.id,
                provider=attempt.server or leg.provider,
                tokens=Tokens() if usage is None else Tokens(usage.input, usage.output, usage.cached),
                cost_nanos=cost,
                charge_nanos=cost if charges else 0,
                cost_range_nanos=cost_range,
            )
            rows.append(row)
        return rows

    @property
    def line(self) -> CallLine:
        """Its trace as it is stored, without content."""
        caller, served, given, cost = self.caller, self.served, self.given, self.cost_nanos
        usage = None if served is None else served.usage
        line = CallLine(
            self.id,
            self.status,
            self.created,
            self.latency_ms,
            caller.environment,
            caller.account,
            caller.key_id,
            self.policy_version,
            given,
            None if self.plan is None else self._choice(self.plan, given),
            None if served is None else served.leg.id,
            served is not None and served.place > 0,
            cost,
            self.charged_nanos if cost else 0,
            (0, 0, 0) if usage is None else (usage.input, usage.output, usage.cached),
            [self._attempt_line(attempt) for attempt in self.attempts],
            self.error_code,
            None if self.policy is None else self.policy.policy.id,
            self.metadata_json,
        )
        if self.traceparent is not None:
            line.traceparent = self.traceparent.text
        if self.asks_cache or self.hits:
            line.looked, line.hits = self.looked, tuple(self.hits)
        return line

    def _choice(self, plan: Plan, given: DecisionInput) -> ChoiceLine:
        decided_at = self.attempts[0].started_at if self.attempts else self.ended_at
        looked = self.looked
        took_ms = round((decided_at - self.started_at) * 1000, 3) if looked is None else round(looked.start_ms, 3)
        known, is_plain = plan.line, self.own_given is None and self.budget is None
        line: ChoiceLine
        if known is not None and known[1] and is_plain:
            line = replace(known[0], took_ms=took_ms)
            return line
        decision = Decision(plan, given, None)
        line = ChoiceLine(
            Raw(msgpack.encode(decision.front[:BEST_KEPT])) if known is None else known[0].candidates,
            plan.models,
            -plan.front[0][0],
            *decision.output,
            {str(reason): count for reason, count in decision.rejected_counts.items()},
            decision.token_count,
            took_ms,
            plan.instead_of,
        )
        if plan.is_shared and (known is None or is_plain):
            plan.line = line, is_plain
        return line

    def _attempt_line(self, attempt: Attempt) -> AttemptLine:
        began, first_at, leg, usage = attempt.started_at, attempt.first_at, attempt.leg, attempt.usage
        from_model, before = self._replaced_by(attempt)
        line = AttemptLine(
            attempt.number,
            leg.id,
            attempt.server or leg.provider,
            attempt.status,
            round((began - self.started_at) * 1000, 3),
            round((attempt.ended_at - began) * 1000 + attempt.unslept_ms, 3),
            None if first_at is None else round((first_at - began) * 1000, 3),
            None if usage is None else (usage.input, usage.output, usage.cached),
            attempt.cost_nanos,
            None if attempt.unsure is None else attempt.cost_range_nanos(self.bounds),
            attempt.finish_word or attempt.finish_reason,
            attempt.fault,
            attempt.usage_estimated * ESTIMATED
            | (attempt.repair is not None) * REPAIR
            | attempt.hedge * HEDGE
            | attempt.probe * PROBE,
        )
        if from_model is not None:
            line.instead = from_model, _reason_after(before), attempt is self.served
        if usage is not None and usage.cached:
            line.saved_nanos = saved_nanos(attempt.prices, usage)
        if attempt.hits:
            line.hits, line.hits_ms = tuple(attempt.hits), round((attempt.ended_at - self.started_at) * 1000, 3)
        return line

    @property
    def trace(self) -> Trace:
        """The trace (spec 2.6, contract 9); a new object each time."""
        return trace_of(self.line, None if self.captured is None else self.captured.content)

    @property
    def wordless(self) -> Trace:
        """The trace without captured text, so that no redactor runs."""
        return trace_of(self.line)

    @property
    def spans(self) -> list[Span]:
        """Its spans, in order."""
        return spans_of(self.line)

    @property
    def counted(self) -> Counted:
        """What analytics count from its trace."""
        served, attempts, given, looked = self.served, self.attempts, self.own_given, self.looked
        is_hit = looked is not None and looked.hit
        if given is None:
            assert self.plan is not None, "its plan is one of a class of requests"
            given = self.plan.given
        ended, reason = list[tuple[str, bool]](), None
        for each in attempts:
            if each.fault is not None or each.finish_reason is not None:  # else it was left
                ended.append((each.leg.id, each.fault is None))
        if self.fell_back:
            replaced = map(self._replaced_by, attempts)
            reason = next((_reason_after(before) for model, before in replaced if model is not None), None)
        cost = self.cost_nanos
        return Counted(
            environment=self.caller.environment,
            created_at=self.created,
            is_error=self.status in FAILED,
            model=served.leg.id if served is not None else attempts[-1].leg.id if attempts else "",
            cost_nanos=cost,
            charged_nanos=self.charged_nanos if cost else 0,
            tokens=(None if served is None else _tokens_of(served.usage)) or Tokens(),
            metadata={} if self.metadata_json is None else self.metadata,
            was_tried=bool(attempts),
            ended=ended,
            fallback=reason,
            latency=None if served is None or is_hit else (served.leg.id, given.strategy, self.latency_ms),
            lookups=[] if looked is None else [(looked.age_s, looked.saved_nanos) if looked.hit else (None, 0)],
        )

    def _replaced_by(self, attempt: Attempt) -> tuple[str | None, Attempt | None]:
        """The model that an attempt replaced, if any, and the attempt at that model, if it was called."""
        first, plan = self.attempts[0], self.plan
        before = attempt.after or (None if attempt is first else first)
        model = before.model if before is not None else attempt.model if plan is None else plan.legs[0].id
        is_fallback = model != attempt.model and (not attempt.hedge or attempt is self.served)
        return (model if is_fallback else None), before

    def response(
        self, output: str, tool_calls: list[ToolCall] | None, reasoning: Reasoning | None = None
    ) -> RouteResponse:
        """The response (spec 2.2) of a call that was served."""
        plan, served = self.plan, self.served
        assert plan is not None, "a served call has a plan"
        assert served is not None, "the call was served"
        usage, (primary, *chain) = served.usage, map(ID, plan.legs)
        told, budget = plan.told, self.budget
        counts = plan.counts if budget is None else plan.rejections(self.bounds.high, budget.nanos, budget.tokens)
        sentence = told[1] if told is not None and told[0] is counts else Decision(plan, self.given, None).reason
        looked, is_hit = self.looked, False
        if looked is not None and looked.hit:
            near = "" if looked.similarity is None else f", similarity {looked.similarity:.3f}"
            sentence = f"from the cache ({looked.mode}, {looked.age_s:.0f} s old{near}); else {sentence}"
            is_hit = True
        routing = Routing(
            selected_model=served.leg.id,
            fallback_chain=chain,
            policy_version=self.policy_version,
            decision_reason=sentence,
            cost_usd=usd(served.cost_nanos if len(self.attempts) == 1 else self.cost_nanos),
            latency_ms=round(self.latency_ms + self.waited_s * 1000, 3),
            cache_hit=is_hit,
            tokens=Tokens()
            if usage is None
            else Tokens(usage.input, usage.output, usage.cached, usage.reasoning, usage.written),
        )
        if usage is not None and usage.cached and not is_hit and (saved := saved_nanos(served.prices, usage)):
            routing = replace(routing, saved_usd=usd(saved))
        if self.asks is not None:
            routing.ignored_params.extend(self.asks.ignored_by(served.leg.able))
        return RouteResponse(
            trace_id=self.id,
            output=output,
            routing=routing,
            usage=usage_of(self.windows, self.created_at),
            primary_model=primary,
            fallback_model=served.leg.id if served.place else None,
            cache_hit=is_hit,
            tool_calls=tool_calls,
            finish_reason=served.finish_reason,
            reasoning=reasoning,
        )

    def events(self, error: RouterError | None, budget: Budget | None) -> list[PushedEvent]:
        """Webhook events that it caused (spec 6.1). ``budget``: the request's."""
        if isinstance(error, BudgetExceeded):
            return [BudgetRefused(self.id, error.detail["rejected_candidates"], budget, self.metadata)]
        plan, served = self.plan, self.served
        if plan is None or served is None or served.place == 0:
            return []
        primary = [attempt for attempt in self.attempts if attempt.place == 0]
        reason = _reason_after(primary[-1] if primary else None)
        spent_ms = round(sum((attempt.ended_at - attempt.started_at) * 1000 for attempt in primary), 3)
        return [FallbackTriggered(self.id, plan.legs[0].id, served.model, reason, spent_ms, self.metadata)]


def _reason_after(before: Attempt | None) -> FallbackReason:
    """Why another model was called after an attempt. None: the attempt was skipped because of earlier faults."""
    if before is None:
        return "upstream_5xx"
    return "timeout" if before.fault is None else FAULTS[before.fault].reason  # a hedge was quicker


def _tokens_of(usage: Usage | None) -> Tokens | None:
    return None if usage is None else Tokens(usage.input, usage.output, usage.cached)
