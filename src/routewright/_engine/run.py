"""Runs: calls that share a purse, a slot and a trace tree. ``OpenRun`` is what an agent's run and a block of
``Router.run`` have in common."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from typing import Self

from routewright import errors, wire
from routewright._core.accounts.purses import money_error
from routewright._core.agent.record import RunRecord, run_trace
from routewright._core.guardrails.capture import Texts
from routewright._core.money import budget_nanos, usd
from routewright._core.outcome import event_of
from routewright.protocols import Facts

from .admission import MONEY_ERRORS, Admission
from .checkpoints import CHECKPOINT_S
from .context import RunScope, TagScopes, current_run, find_run, inside_run
from .request_input import Read
from .route import Engine
from .trace_writer import Pending

_log = logging.getLogger(__name__)
_ELSEWHERE = "no call was part of the run %s; enter its block in the task or thread that makes the calls"
LAST_S = 10.0
"""Time limit for settling a run that has ended."""
LONGEST_MS = 3_600_000.0
"""How long a block of ``Router.run`` holds its slot."""


class OpenRun:
    """A run in progress: the scope of its calls, and its slot."""

    def __init__(self, engine: Engine, caller: wire.Caller, right: wire.Scope, budget_usd: float | None) -> None:
        self.scope = scope = RunScope(engine.ids, caller, right, find_run(engine.ids, caller))
        if budget_usd is not None:
            scope.cap_nanos = budget_nanos(budget_usd)
            scope.has_purse = True
        self.headers: dict[str, str] = {}
        """Rate-limit headers, once it is admitted."""
        self._engine = engine
        self._admission: Admission | None = None

    async def admit(self, read: Read, trace_id: str | None) -> bytes | None:
        """Take a slot of the caller, and the idempotency key. Returns the answer stored under the key.

        ``trace_id``: of a new run."""
        admissions = self._engine.admissions
        admission = admissions.begin(read, self.scope.caller, scope=self.scope.right)
        if admission is None or (admission.left is None and await admissions.is_open(admission)):
            return None
        self.scope.has_purse = True
        admission.tokens = 0
        admission.trace_id = trace_id or admission.trace_id
        try:
            reply = await admission.take()
            if isinstance(reply, wire.Short):
                raise money_error(reply.purse, None)
        except errors.RouterError as error:
            admission.annotate(error)
            raise
        self.headers = admission.headers
        if isinstance(reply, wire.Replay):
            return reply.result
        self._admission = admission
        return None

    def release(self) -> None:
        """Return the slot."""
        if self._admission is not None:
            self._admission.release()

    def conclude(
        self, trace: wire.Trace, summary: wire.RunSummary, captured: Texts | None = None, result: bytes | None = None,
        *, is_own_step: bool = False,
    ) -> RunRecord:  # fmt: skip
        """Pass the ended run to the trace log; its writes have ``LAST_S``.

        ``result``: to store under its idempotency key. ``is_own_step``: the run around it records it as a step."""
        log = self._engine.log
        now = log.clock.time()
        ended_at = log.clock.monotonic()
        record = RunRecord(trace, captured, deadline=ended_at + LAST_S)
        if self.scope.within is not None and not is_own_step:
            took_ms = summary.total_latency_ms
            failed = trace.status not in ("completed", "partial")
            call = wire.NestedCall(0, trace.id, trace.cost_usd, None, trace.tokens, 0.0, took_ms, failed)
            self.scope.within.add(call, ended_at - took_ms / 1000)
        outcome = "failed" if trace.status == "cancelled" else trace.status
        message = wire.AgentRunCompleted(trace.id, outcome, summary, trace.metadata)
        once = f"{message.type}:{trace.id}:{summary.total_steps}"  # a resumed run ends more than once
        event = event_of(message, self.scope.caller, self._engine.ids("evt_"), now).stored
        put = wire.PutEvent(event, once, 2 * CHECKPOINT_S, now, log.writer.durability)
        grant = facts = None
        admission = self._admission
        if admission is not None and admission.grant is not None:
            grant, admission.grant = admission.grant, None
            caller = self.scope.caller
            facts = Facts(
                grant.id, caller, record.created, trace=record, tokens=0, claim=admission.claim, result=result
            )
        log.put(Pending(record, (), [put], grant, facts))
        return record


class RouterRun:
    """The run of a ``Router.run`` block. A block of plain code may use it without ``async``."""

    def __init__(
        self, engine: Engine, caller: wire.Caller, request: wire.AgentRequest, tags: TagScopes,
        wait: Callable[[Callable[[], Coroutine[object, object, None]]], None],
    ) -> None:  # fmt: skip
        """``request`` has the budget, and the tags of all calls. ``wait`` awaits in plain code."""
        self._open = OpenRun(engine, caller, "route", request.total_budget_usd)
        self._scope = scope = self._open.scope
        self._log = engine.log
        self._request = request
        self._contexts = (tags.scope(request.metadata or {}), inside_run(scope, 0))
        self._entered = ExitStack()
        self._wait = wait
        self._created_at = 0.0
        scope.begin(engine.ids("tr_"))

    async def __aenter__(self) -> Self:
        await self._begin()
        return self._enter()

    def __enter__(self) -> Self:
        self._wait(self._begin)
        return self._enter()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave()
        await self._end(error)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave()
        self._wait(partial(self._end, error))

    @property
    def trace_id(self) -> str:
        """The id of its trace, which is stored at its end."""
        return self._scope.id

    @property
    def cost_usd(self) -> float:
        """The cost of the calls in it, and of the runs within it, that have ended."""
        return usd(self._scope.ended_nanos)

    @property
    def left_usd(self) -> float | None:
        """What its calls may still spend, by its budget and those of the runs around it. None: neither has one."""
        purse = self._scope.purse
        return None if purse is None else usd(max(0, purse.left_nanos or 0))

    async def _begin(self) -> None:
        """Take a slot of the caller, unless a run around it has one."""
        if self._created_at:
            raise RuntimeError("this run has begun before; call router.run() again for another block")
        self._created_at = self._log.clock.time()
        self._scope.began = self._log.clock.monotonic()
        if self._scope.within is None:
            request = wire.RouteRequest([wire.Message("user", "run")], timeout_ms=LONGEST_MS)
            await self._open.admit(Read(request, wire.TokenBounds(0, 0, 0)), self.trace_id)

    def _enter(self) -> Self:
        for context in self._contexts:
            self._entered.enter_context(context)
        return self

    def _leave(self) -> None:
        block = current_run()
        if (block is None or block.value.scope is not self._scope) and not self._scope.ended:
            _log.warning(_ELSEWHERE, self.trace_id)
        self._entered.close()
        self._scope.close()

    async def _end(self, error: BaseException | None) -> None:
        """Store its trace and its event. ``error``: what left the block."""
        status: wire.TraceStatus = "completed" if error is None else "cancelled"
        code = None
        if isinstance(error, Exception):
            causes = error if isinstance(error, ExceptionGroup) else ExceptionGroup("", [error])
            # a framework or an SDK raises an error of its own for a call that was refused
            is_short = self._scope.is_short or causes.subgroup(MONEY_ERRORS) is not None
            status = "budget_exceeded" if is_short else "failed"
            code = error.code if isinstance(error, errors.RouterError) else errors.InternalError.code
        took_ms = round((self._log.clock.monotonic() - self._scope.began) * 1000, 3)
        state = wire.Checkpoint(
            trace_id=self.trace_id, created_at=self._created_at, request=self._request, messages=[], steps=[],
            nested=[*self._scope.ended], spent_nanos=self._scope.ended_nanos,
        )  # fmt: skip
        trace = run_trace(state, self._scope.caller, None, status, took_ms, code)
        record = self._open.conclude(trace, wire.RunSummary(len(state.nested), trace.cost_usd, took_ms, []))
        with self._log.clock.deadline(record.deadline, shield=True):
            await self._log.commit(record)
