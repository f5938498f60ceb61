"""How a request becomes an answer, in named steps. Read this first.

    request -> admit -> choose -> Execution.run (or a Stream that pulls it) -> conclude -> Outcome

``admit`` lays the policy over the request and makes the decision's input; ``choose`` decides, counting tokens only
where the bounds leave it open; the execution calls models; ``conclude`` keeps the trace and raises what went wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import anyio.to_thread
from msgspec.structs import replace

from routewright._core.attempt import End
from routewright._core.constraints import CountTokens
from routewright._core.decision import Decision, decide
from routewright._core.intake import input_of, quality_column
from routewright._core.policy import find_policy, under_policy
from routewright._core.tokens import bounds_of
from routewright.errors import ContentRefused, NoCandidates, RouterError, RouterTimeoutError, UpstreamFailed
from routewright.protocols import Clock, QualityPredictor, Rng
from routewright.wire import Caller, DecisionInput, OnPartial, PolicySnapshot, RouteRequest, TokenBounds

from .attempt import Execution
from .fleet import Fleet
from .identity import Ids
from .outcome import Admitted, Outcome
from .trace import Snapshot, TraceLog

COUNT_INLINE_CHARS = 2_000
"""Prompts up to this long are counted on the spot once the tables are loaded; longer ones in a worker thread."""

CountRequest = Callable[[RouteRequest, TokenBounds], TokenBounds]


class Engine:
    """The pipeline over one Router's parts. Safe to use from several loops and threads."""

    def __init__(
        self,
        *,
        fleet: Callable[[Literal["production", "sandbox"]], Fleet],
        policies: Sequence[PolicySnapshot],
        log: TraceLog,
        clock: Clock,
        rng: Rng,
        count: CountRequest,
        predictor: QualityPredictor | None,
        default_output_cap: int,
    ) -> None:
        self.fleet = fleet
        self.policies = {snapshot.policy.id: snapshot for snapshot in policies}
        self.log = log
        self.ids = Ids(clock, rng)
        self._named = [snapshot.policy for snapshot in policies]
        self._clock = clock
        self._rng = rng
        self._count = count
        self._counted_before = False
        self._predictor = predictor
        self._default_output_cap = default_output_cap

    async def route(self, request: RouteRequest, caller: Caller) -> Outcome:
        """Answer a request whole. Raises ``RouterError``; its trace is kept either way."""
        admitted = self.admit(request, caller)
        decision = await self.choose(admitted)
        execution = self.execution(admitted, decision, whole=True)
        try:
            await execution.run()
        except BaseException:
            await execution.aclose()
            await self.conclude(admitted, decision, execution)
            raise
        return raise_failure(await self.conclude(admitted, decision, execution))

    def admit(self, request: RouteRequest, caller: Caller) -> Admitted:
        """Lay the policy over a checked request and make the decision's input."""
        fleet = self.fleet(caller.environment)
        fleet.require_providers()
        policy = None
        version = f"inline@{fleet.pool.snapshot.as_of}"
        if request.policy_id is not None:
            policy = self.policies[find_policy(request.policy_id, self._named).id]
            request = under_policy(request, policy.policy)
            version = policy.version
        given = input_of(
            request,
            bounds_of(request),
            pool=fleet.pool,
            aliases=fleet.aliases,
            health=fleet.board().outlook.health.id,
            policy=policy,
            as_of=fleet.today(),
            default_output_cap=self._default_output_cap,
            quality=self._predicted(request, fleet),
        )
        policy_id = None if policy is None else policy.policy.id
        now, started_at = self._clock.time(), self._clock.monotonic()
        return Admitted(request, caller, self.ids("tr_"), now, started_at, policy_id, version, given)

    def choose_now(self, admitted: Admitted) -> Decision:
        """Decide without awaiting; counting tokens, where that is needed, holds up the caller."""
        board = self.fleet(admitted.caller.environment).board()
        try:
            return decide(admitted.given, board)
        except CountTokens:
            return decide(self._recounted(admitted), board)

    async def choose(self, admitted: Admitted) -> Decision:
        """Decide; long prompts are counted in a worker thread. A refusal leaves its trace."""
        board = self.fleet(admitted.caller.environment).board()
        given = admitted.given
        try:
            try:
                return decide(given, board)
            except CountTokens:
                given = await self._recounted_aside(admitted)
                return decide(given, board)
        except NoCandidates as refused:
            refused.trace_id, refused.request_id = admitted.trace_id, self.ids("req_")
            admitted, now = admitted._replace(given=given), self._clock.monotonic()
            await self._keep(Outcome(admitted, None, [], end=None, error=refused, ended_at=now))
            raise

    def execution(
        self, admitted: Admitted, decision: Decision, *, whole: bool, on_partial: OnPartial = "restart"
    ) -> Execution:
        """Make the execution of a decision. ``on_partial`` is what holds where the request does not say."""
        policy = None if admitted.policy_id is None else self.policies[admitted.policy_id].policy
        fallback = admitted.request.fallback
        refusal_moves_on = (
            policy is not None and policy.fallback is not None and policy.fallback.on_refusal == "fallback"
        )
        return Execution(
            admitted.request,
            decision,
            self.fleet(admitted.caller.environment),
            clock=self._clock,
            rng=self._rng,
            deadline=admitted.started_at + decision.input.timeout_ms / 1000,
            whole=whole,
            on_partial=on_partial if fallback is None or fallback.on_partial is None else fallback.on_partial,
            on_refusal_fall_back=refusal_moves_on,
            learns=admitted.caller.environment == "production",
        )

    async def conclude(self, admitted: Admitted, decision: Decision, execution: Execution) -> Outcome:
        """Make the outcome of an execution that ended or was left, and keep its trace."""
        outcome = Outcome(
            admitted._replace(given=decision.input),
            decision,
            execution.attempts,
            end=execution.end,
            error=_error(admitted, execution, self.ids),
            ended_at=self._clock.monotonic(),
        )
        await self._keep(outcome)
        return outcome

    async def _keep(self, outcome: Outcome) -> None:
        admitted = outcome.admitted
        fleet = self.fleet(admitted.caller.environment)
        board = fleet.board() if outcome.decision is None else outcome.decision.board
        snapshots: list[Snapshot] = [fleet.pool.snapshot, board.outlook.health]
        if admitted.policy_id is not None:
            snapshots.append(self.policies[admitted.policy_id])
        await self.log.put(outcome, snapshots)

    def _predicted(self, request: RouteRequest, fleet: Fleet) -> tuple[int, ...] | None:
        if self._predictor is None:
            return None
        qualities = self._predictor.predict(request, fleet.pool.models)
        return None if qualities is None else quality_column(list(qualities))

    def _recounted(self, admitted: Admitted) -> DecisionInput:
        self._counted_before = True
        return replace(admitted.given, tokens=self._count(admitted.request, admitted.given.tokens))

    async def _recounted_aside(self, admitted: Admitted) -> DecisionInput:
        if self._counted_before and admitted.given.tokens.high <= COUNT_INLINE_CHARS:
            return self._recounted(admitted)
        return await anyio.to_thread.run_sync(partial(self._recounted, admitted))


def raise_failure(outcome: Outcome) -> Outcome:
    """Hand a success on, raise anything else."""
    if outcome.error is not None:
        raise outcome.error
    return outcome


def _error(admitted: Admitted, execution: Execution, request_id: Callable[[str], str]) -> RouterError | None:
    """What the caller is told of an execution that did not succeed; None if the caller left."""
    if execution.end is None or execution.end is End.SUCCEEDED:
        return None
    attempts = [
        {
            "model": attempt.model,
            "attempt": attempt.call.number,
            "error": str(attempt.fault),
            "message": attempt.fault_text,
            "latency_ms": round((attempt.ended_at - attempt.started_at) * 1000, 3),
        }
        for attempt in execution.attempts
    ]
    tried = ", then ".join(f"{entry['model']} ({entry['error']})" for entry in attempts) or "nothing"
    kind, said = _failure(execution, tried)
    return kind(said, detail={"attempts": attempts}, trace_id=admitted.trace_id, request_id=request_id("req_"))


def _failure(execution: Execution, tried: str) -> tuple[type[RouterError], str]:
    match execution.end:
        case End.TIMED_OUT:
            timeout_ms = execution.decision.input.timeout_ms
            said = f"no answer within timeout_ms={timeout_ms}; tried {tried}; allow more time or a faster model"
            return RouterTimeoutError, said
        case End.REFUSED:
            model = execution.attempts[-1].model
            return ContentRefused, f"{model} refused the content; other providers were not asked"
        case _:
            return UpstreamFailed, f"every attempt failed: {tried}; try again later"
