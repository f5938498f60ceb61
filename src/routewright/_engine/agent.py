"""Performs agent runs as the run machine says. Model calls go through the Router; tools run within their step's
time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from itertools import count
from math import inf
from typing import Any

import anyio
from msgspec import json

from routewright import errors, wire
from routewright._core.accounts.purses import money_error
from routewright._core.agent.machine import AgentRun, CallModel, Ended, Observation, RunTools
from routewright._core.agent.record import RunRecord, run_trace, words_of
from routewright.protocols import ToolContext
from routewright.wire.money import nanos_of

from .admission import MONEY_ERRORS
from .answer import reread
from .checkpoints import Checkpoints, Resumption, identity_of
from .context import InsideRun, inside_run
from .request_input import Read
from .route import Engine
from .run import LAST_S, OpenRun
from .storage import GuardedStorage
from .tool_calls import APPROVAL_S, run_tool
from .turns import AgentSettings, Turns

PATH = "/v1/agents/run"
AT_ONCE = 8
"""Tools of one run that execute at a time."""
_WINDOWS = ("requests_per_min", "tokens_per_min")
_decode_response = json.Decoder(wire.AgentResponse).decode


class Run:
    """One agent run, new or resumed. Iterate ``events`` to perform it; ``response`` is set before the last event."""

    def __init__(
        self,
        engine: Engine,
        storage: GuardedStorage,
        settings: AgentSettings,
        request: wire.AgentRequest,
        caller: wire.Caller,
        *,
        resumed: Resumption | None = None,
        is_tool: bool = False,
        is_remote: bool = False,
    ) -> None:
        """``request`` has its limits filled in. ``is_tool``: it is a tool call of another run. ``is_remote``: a server
        received it (``Read.is_remote``)."""
        self._engine = engine
        self._is_immediate = engine.admissions.is_immediate
        self._checkpoints = Checkpoints(storage, engine.log, caller, request)
        self.clock = engine.log.clock
        self._settings = settings
        self._request = request
        self._caller = caller
        self._resumed = resumed
        self._is_tool = is_tool
        self._is_remote = is_remote
        self._open = OpenRun(engine, caller, "agents", request.total_budget_usd)
        self._scope = self._open.scope
        self._step_s = (request.per_step_timeout_ms or 0.0) / 1000
        self._max_steps = int(request.max_steps or 0)
        self._turns = Turns(partial(engine.fleet, caller.environment), settings, request)
        self._key: str | None = None
        self._keeps_answer = False
        """The answer is kept under the caller's idempotency key."""
        self._is_recorded = False
        """Trace and event were passed to the trace log."""
        self._began = 0.0
        """Start on the monotonic scale, moved so that interruptions do not count."""
        self._why_left: Callable[[], errors.RouterError | None] = lambda: None
        self.trace_id = "" if resumed is None else resumed.state.trace_id
        self.deadline = inf
        """Upper bound for the end, on the monotonic scale."""
        self.headers: dict[str, str] = {}
        """Rate-limit headers, once it is admitted."""
        self.response: wire.AgentResponse | None = None
        self.data: Any = None
        self.error: errors.RouterError | None = None
        self.spent_nanos = 0

    async def events(self) -> AsyncGenerator[wire.AgentEvent]:
        """Perform the run and yield its events. Raises the error if the run is refused before its first step."""
        stored = await self._admit()
        if stored is not None:
            for event in self._replay(stored):
                yield event
            return
        try:
            state = await self._begin()
        except BaseException:
            self._open.release()
            raise
        ids = count(1)
        client_names = {*self._settings.client_tools, *self._settings.unapproved}
        run = AgentRun(state, self._max_steps, client_names, escalates=self._settings.escalates)
        try:
            if self._resumed is not None and (self._resumed.results or self._resumed.approved):
                run.resume(self._resumed.results, self._resumed.approved, self._now_ms())
                await self._checkpoints.try_keep(state)  # from here on it cannot be resumed again
            yield wire.RunStarted(next(ids), self._started())
            while not isinstance(action := run.next(), Ended):
                first_new = len(state.steps)
                if isinstance(action, CallModel):
                    yield wire.StepStarted(next(ids), wire.StepStartedData(action.number, "llm_call"))
                    await self._ask(run, action)
                else:
                    for index, call in enumerate(action.calls):
                        started = wire.StepStartedData(action.number + index, "tool_call", call.function.name)
                        yield wire.StepStarted(next(ids), started)
                    await self._use(run, action)
                self.spent_nanos = state.spent_nanos
                for step in state.steps[first_new:]:
                    yield wire.StepCompleted(next(ids), step)
                if not self._is_immediate and run.ended is None:
                    await self._checkpoints.try_keep(state)
            self._scope.close()
            self._record_nested(run)
            self.error = run_error = run.error
            message = None if run_error is None else (run_error.outside or (run_error.message,))[0]
            self.response = wire.AgentResponse(
                trace_id=self.trace_id,
                status=action.status,
                output=run.output,
                steps=state.steps,
                summary=run.summary(self._now_ms()),
                marker=action.marker,
                pending_tool_calls=run.pending,
                error=None if run_error is None else {"code": run_error.code, "message": str(message)},
            )
            await self._conclude(run)
            yield wire.RunCompleted(next(ids), self.response)
        except BaseException as error:
            if not self._is_recorded:
                await self._abandon(run, error)
            raise
        finally:
            self._open.release()

    async def finish(self) -> wire.AgentResponse:
        async for _ in self.events():
            pass
        assert self.response is not None, "its last event has it"
        return self.response

    def explain_leaving(self, why: Callable[[], errors.RouterError | None]) -> None:
        """``why`` returns the error to record when the run is cancelled; None: the client disconnected."""
        self._why_left = why

    # Beginning

    async def _admit(self) -> bytes | None:
        """Take a slot and the idempotency key. Returns the response kept under the key.

        If checkpoints outlive a process, a run without a key takes one from its id, so that it is not resumed twice at
        a time; every resumption has its own."""
        request = self._request
        resumed = self._resumed
        if resumed is None:
            self.trace_id = self._engine.ids("tr_")
            key = request.idempotency_key or (None if self._is_immediate else self.trace_id)
        elif resumed.state.status == "pending":
            key = f"{self.trace_id}.{len(resumed.state.steps)}"
        else:
            key = resumed.state.key
        self._key = key
        self._keeps_answer = key is not None and key == request.idempotency_key
        approval_s = 0.0 if self._settings.approve is None else APPROVAL_S
        lasts_s = self._max_steps * (self._step_s * 2 + approval_s) + 60  # each step twice, and a minute
        self._scope.has_purse = self._scope.has_purse or not self._is_immediate
        stored = None
        if self._scope.within is None or key is not None:
            task_request = wire.RouteRequest(
                [wire.Message("user", request.task)], "cost", "balanced", timeout_ms=lasts_s * 1000, idempotency_key=key
            )
            body = identity_of(request)
            read = Read(task_request, wire.TokenBounds(0, 0, 0), PATH, body=body, is_remote=self._is_remote)
            stored = await self._open.admit(read, self.trace_id if resumed is None else None)
            self.headers = self._open.headers
        self.deadline = self.clock.monotonic() + lasts_s
        return stored

    async def _begin(self) -> wire.Checkpoint:
        """Load the checkpoint of an interrupted run, or create one."""
        state = None
        resumed = self._resumed
        if resumed is not None:
            state = await self._checkpoints.reload(resumed)
        elif self._request.idempotency_key is not None:
            state = await self._checkpoints.interrupted(self._request.idempotency_key)
        if state is None:
            system = self._settings.system
            messages = [wire.Message("system", system)] if system else []
            messages += [*await self._checkpoints.conversation(), wire.Message("user", self._request.task)]
            state = wire.Checkpoint(
                trace_id=self.trace_id,
                created_at=self.clock.time(),
                request=self._request,
                messages=messages,
                steps=[],
                tools=self._settings.names,
                key=self._key,
            )
            if not self._is_immediate:
                await self._checkpoints.keep(state)
        state.key = self._key
        self.trace_id = state.trace_id
        self.spent_nanos = state.spent_nanos
        tools = sum(nanos_of(step.cost_usd) for step in state.steps if step.tool is not None and step.trace_id is None)
        tools -= sum(nanos_of(call.cost_usd) for call in state.nested)  # the purse has counted them
        self._scope.begin(self.trace_id, state.spent_nanos, tools)
        before_ms = max((step.start_ms + step.duration_ms for step in state.steps), default=0.0)
        self._began = self.clock.monotonic() - before_ms / 1000
        return state

    def _started(self) -> wire.RunStartedData:
        return wire.RunStartedData(self.trace_id, self._max_steps, self._request.total_budget_usd)

    def _replay(self, stored: bytes) -> Iterator[wire.AgentEvent]:
        ids, form = count(1), self._settings.form
        response = self.response = _decode_response(stored)
        self.trace_id = response.trace_id
        self.spent_nanos = nanos_of(response.summary.total_cost_usd)
        if form is not None and response.status == "completed":
            self.data = reread(form, response.output)
        yield wire.RunStarted(next(ids), self._started())
        for step in response.steps:
            yield wire.StepStarted(next(ids), wire.StepStartedData(step.number, step.action, step.tool))
            yield wire.StepCompleted(next(ids), step)
        yield wire.RunCompleted(next(ids), response)

    # Steps

    async def _ask(self, run: AgentRun, action: CallModel) -> None:
        """Call the model, again after a retryable error. Waits for room in the caller's rate limits, if need be longer
        than a step's time."""
        state = run.state
        started_at = self.clock.monotonic()
        start_ms = self._now_ms()
        while len(state.steps) < action.number and run.ended is None:
            took_ms = 0.0
            self._record_nested(run)
            try:
                purse = self._scope.purse
                if purse is not None and (purse.left_nanos or 0) <= 0:  # tools may cost something though no model does
                    raise money_error(purse, 0)
                key = None if self._is_immediate else f"{state.trace_id}.{action.number}.{run.tries}"
                read = self._turns.read(state, escalate=action.escalate, key=key)
                inside = InsideRun(self._scope, None)
                answer = await self._engine.route(read, self._caller, self._settings.form, inside)
                took_ms = self._ms_since(started_at)
            except errors.RouterError as error:
                if isinstance(error, errors.RateLimited) and error.detail.get("limit_of") in _WINDOWS:
                    wait_s = error.detail.get("retry_after_seconds", inf)
                    if self.clock.monotonic() + wait_s <= self.deadline:
                        await self.clock.sleep(wait_s)
                        continue
                if self._turns.shorten(state, error):
                    continue
                is_short = isinstance(error, MONEY_ERRORS)
                is_own = is_short and error.detail.get("level") == "agent_run"
                if not (state.steps or error.retryable or error.trace_id or is_own):
                    raise  # the run is refused before its first step
                run.record_failure(error, start_ms, self._ms_since(started_at), error.cost_nanos, is_budget=is_short)
            else:
                self.data = answer.data
                run.record_answer(answer.response, start_ms, took_ms, nanos_of(answer.routing.cost_usd))

    async def _use(self, run: AgentRun, action: RunTools) -> None:
        start_ms, results = self._now_ms(), dict[int, tuple[wire.Step, Observation]]()
        purse = self._scope.purse
        left_nanos = None if purse is None else max(0, purse.left_nanos or 0)

        slots = anyio.Semaphore(AT_ONCE, fast_acquire=True)
        metadata = self._request.metadata or {}
        tags = {key: value for key, value in metadata.items() if key != "conversation"}

        async def use(index: int, call: wire.ToolCall) -> None:
            async with slots:
                context = ToolContext(
                    run_id=self.trace_id,
                    step=action.number + index,
                    caller=self._caller,
                    deadline=self.clock.monotonic() + self._step_s,
                    left_nanos=None if left_nanos is None else left_nanos // len(action.calls),
                    metadata=metadata,
                )
                settings = self._settings
                with inside_run(self._scope, context.step), settings.tags(**tags):
                    results[index] = await run_tool(settings.tools, call, context, self.clock, settings.approve)

        if len(action.calls) == 1:
            await use(0, action.calls[0])  # a new task would take longer than most tools
        else:
            async with anyio.create_task_group() as group:
                for index, call in enumerate(action.calls):
                    group.start_soon(use, index, call)
        in_order = [results[index] for index in range(len(action.calls))]
        self._scope.spend(sum(nanos_of(step.cost_usd) for step, _ in in_order if step.trace_id is None))
        run.record_results(in_order, start_ms)
        self._record_nested(run)

    def _record_nested(self, run: AgentRun) -> None:
        """Record the calls of tools that have ended."""
        while self._scope.ended:
            run.record_nested(self._scope.ended.popleft())

    # End

    async def _conclude(self, run: AgentRun) -> None:
        """Settle the run: trace, event, and answer under the idempotency key. The response is returned even if writes
        fail."""
        response = self.response
        assert response is not None, "it has ended"
        record = self._record(run, response.status, json.encode(response))
        with self.clock.deadline(record.deadline, shield=True):
            await self._engine.log.commit(record)
            if response.marker == "tool_calls_pending":
                await self._checkpoints.try_keep(run.state)
            elif self._checkpoints.is_stored:
                await self._checkpoints.forget(self.trace_id)  # after the commit: a crash before it resumes the run
            if response.status == "completed":
                await self._checkpoints.remember(self.trace_id, run.output)

    async def _abandon(self, run: AgentRun, error: BaseException) -> None:
        fault = error if isinstance(error, errors.RouterError) else self._why_left()
        if fault is None and isinstance(error, Exception):
            fault = errors.InternalError(type(error).__name__)
        with self.clock.deadline(self.clock.monotonic() + LAST_S, shield=True):
            if not run.state.steps and isinstance(error, errors.RouterError):  # refused
                if self._checkpoints.is_stored:
                    await self._checkpoints.forget(self.trace_id)
                return
            run.give_up(fault)
            self._scope.close()
            self._record_nested(run)
            if run.state.steps:  # before the key is released
                await self._checkpoints.try_keep(run.state)
            await self._engine.log.commit(self._record(run, "cancelled" if fault is None else "failed", None))

    def _record(self, run: AgentRun, status: wire.TraceStatus, result: bytes | None) -> RunRecord:
        """Pass the run to the trace log."""
        self._is_recorded = True
        summary = run.summary(self._now_ms()) if self.response is None else self.response.summary
        code = None if run.error is None else run.error.code
        trace = run_trace(run.state, self._caller, self._turns.base, status, summary.total_latency_ms, code)
        capture = self._engine.log.capture
        captured = None if capture is None else capture.of(words_of(run.state), None)
        stored = result if self._keeps_answer and status != "failed" else None
        return self._open.conclude(trace, summary, captured, stored, is_own_step=self._is_tool)

    def _now_ms(self) -> float:
        """Milliseconds since the run began."""
        return self._ms_since(self._began)

    def _ms_since(self, began: float) -> float:
        return round((self.clock.monotonic() - began) * 1000, 3)
