"""Decides what an agent run does next: call a model, run tools, or end (contract 10). The engine performs it.

    state      event                            next state
    ---------  -------------------------------  -------------------------------------------
    asking     answer without tool calls        completed
    asking     answer with tool calls           calling
    asking     first retryable fault of a step  asking, the same step again
    asking     any other fault                  failed
    asking     budget used up                   budget_exceeded
    asking     step limit reached               partial: max_steps_reached
    calling    results of all calls             asking
    calling    calls left to the client         partial: tool_calls_pending
    any        cancelled, or an exception       failed

``resume`` continues a run from ``tool_calls_pending``; the other end states are final.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import MsgspecError, Struct, json
from msgspec.structs import replace

from routewright import wire
from routewright._core.money import usd
from routewright._core.request.compatibility import complete_call
from routewright.errors import RouterError
from routewright.wire import JsonObject
from routewright.wire.json_scan import is_shallow
from routewright.wire.money import nanos_of

NOT_RUN = "not run: the run may take {} steps, and this call would have been one more"
"""The result shown to the model for a parallel call beyond the step limit."""
decode_object = json.Decoder(JsonObject).decode
REPEATS = 3  # this many rounds of the same calls, or failed calls, count as no progress


class CallModel(Struct, frozen=True):
    """Ask a model, as step ``number``."""

    number: int
    messages: Sequence[wire.Message]
    escalate: bool = False
    """Use a stronger model, since the run makes no progress."""


class RunTools(Struct, frozen=True):
    """Run tools concurrently; the first is step ``number``."""

    number: int
    calls: Sequence[wire.ToolCall]


class Ended(Struct, frozen=True):
    """The run is over."""

    status: wire.RunStatus
    marker: wire.Marker | None = None


class Observation(Struct, frozen=True):
    """The result of a tool call, as shown to the model."""

    call_id: str
    text: str


class AgentRun:
    """One run. ``next`` returns the next action; the other methods report its outcome."""

    def __init__(
        self, state: wire.Checkpoint, max_steps: int, client_tools: Collection[str] = (), *, escalates: bool
    ) -> None:
        """``client_tools``: tools that the client runs or must approve."""
        self.state = state
        self.max_steps = max_steps
        self.ended: Ended | None = None
        self.error: RouterError | None = None  # the cause of ``failed`` or ``budget_exceeded``
        self.output = ""
        self._client_tools = client_tools
        self._escalates = escalates
        self.tries = 0  # failed tries of the current step
        self._tried_nanos = 0  # cost of earlier tries of the step

    @property
    def pending(self) -> list[wire.ToolCall]:
        """Calls left to the client."""
        return self.state.pending if self.ended is not None and self.ended.marker == "tool_calls_pending" else []

    def next(self) -> CallModel | RunTools | Ended:
        """The next action. Idempotent."""
        # The next action follows from the checkpoint alone, not from a position in a loop: the process may end after
        # any step, and another one continues the run (test_a_run_continues_from_its_checkpoint). Asked twice, it gives
        # the same answer. Pending tool calls come before everything else, even at the step limit: vendors refuse a
        # conversation in which a tool call has no result (test_every_call_has_a_result_before_a_model_is_asked_again).
        # So a run ends within its steps, with a result for each call
        # (test_any_order_of_events_ends_in_one_state_within_the_steps).
        state = self.state
        if self.ended is not None:
            return self.ended
        used = len(state.steps)
        if state.pending:
            own_calls = [
                call
                for call in state.pending
                if call.function.name not in self._client_tools or call.id in state.approved
            ]
            if own_calls:
                return RunTools(used + 1, own_calls)
            state.status = "pending"
            return self._end("partial", "tool_calls_pending")
        if used >= self.max_steps:
            return self._end("partial", "max_steps_reached")
        # stuck: the last rounds made the same calls, or the last tools all failed
        rounds = [message.tool_calls for message in state.messages if message.tool_calls][-REPEATS:]
        called = {frozenset((call.function.name, call.function.arguments) for call in calls) for calls in rounds}
        tools = [step for step in state.steps if step.tool is not None][-REPEATS:]
        fails = len(tools) == REPEATS and all("error" in step.output for step in tools)
        is_stuck = (len(rounds) == REPEATS and len(called) == 1) or fails
        return CallModel(used + 1, state.messages, self._escalates and is_stuck)

    def record_answer(self, response: wire.RouteResponse, start_ms: float, duration_ms: float, nanos: int) -> None:
        """Record a model's answer, which cost ``nanos``."""
        by_id: dict[str, wire.ToolCall] = {}  # by id; some models omit or repeat ids
        for place, call in enumerate(response.tool_calls or []):
            id = call.id if call.id and call.id not in by_id else f"call_{len(self.state.steps)}_{place}"
            function = call.function if call.function.arguments.strip() else replace(call.function, arguments="{}")
            by_id[id] = replace(call, id=id, function=function)
        state = self.state
        calls = list(by_id.values())
        self.output = response.output or self.output
        self._add_step(
            {"text": response.output, "tool_calls": [call.function.name for call in calls]},
            start_ms,
            duration_ms,
            nanos,
            model=response.routing.selected_model,
            tokens=response.routing.tokens,
            finish_reason=response.finish_reason,
            trace_id=response.trace_id,
        )
        # pending calls keep bad arguments, which become an error for the model; in a history some vendors refuse them
        sent = [complete_call(call) for call in calls]
        message = wire.Message("assistant", response.output or None, sent or None, reasoning=response.reasoning)
        state.messages.append(message)
        if not calls:
            self._end("completed")
            return
        room = max(0, self.max_steps - len(state.steps))
        state.pending = calls[:room]
        for call in calls[room:]:
            self._observe(Observation(call.id, NOT_RUN.format(self.max_steps)))

    def record_failure(
        self, error: RouterError, start_ms: float, duration_ms: float, nanos: int, *, is_budget: bool = False
    ) -> None:
        """Record a failed model call, which cost ``nanos``. The first retryable fault of a step is retried."""
        if is_budget:
            self.state.spent_nanos += nanos
            self.error = error
            self._end("budget_exceeded")
        elif error.retryable and not self.tries:
            self.tries = 1
            self._tried_nanos = nanos
            self.state.spent_nanos += nanos
            if error.trace_id is not None:
                self.state.failed_tries.append(error.trace_id)
        else:
            output = {"error": error.code}
            self._add_step(output, start_ms, duration_ms, nanos, tokens=wire.Tokens(), trace_id=error.trace_id)
            self.error = error
            self._end("failed")

    def record_results(self, results: Sequence[tuple[wire.Step, Observation]], start_ms: float) -> None:
        """Record the results of the last ``RunTools``, failed or not."""
        state = self.state
        for step, observation in results:
            state.steps.append(replace(step, number=len(state.steps) + 1, start_ms=start_ms))
            state.spent_nanos += nanos_of(step.cost_usd)
            self._observe(observation)
        done = {observation.call_id for _, observation in results}
        state.pending = [call for call in state.pending if call.id not in done]

    def record_nested(self, call: wire.NestedCall) -> None:
        """Record a call by a tool as part of its step's cost. The step may have ended before."""
        nanos = nanos_of(call.cost_usd)
        state = self.state
        state.nested.append(call)
        state.spent_nanos += nanos
        if call.step > len(state.steps):  # the run ends before its tool
            return
        step = state.steps[call.step - 1]
        state.steps[call.step - 1] = replace(step, cost_usd=usd(nanos_of(step.cost_usd) + nanos))

    def resume(self, results: Mapping[str, str], approved: Collection[str], start_ms: float) -> None:
        """Continue with the client's results, by call id, and the ``approved`` calls. Others stay pending."""
        state = self.state
        for call in [call for call in state.pending if call.id in results]:
            self._observe(Observation(call.id, results[call.id]))
            arguments = arguments_shown(call.function)
            output = {"result": results[call.id]}
            self._add_step(output, start_ms, 0.0, 0, action="tool_call", tool=call.function.name, input=arguments)
        state.pending = [call for call in state.pending if call.id not in results]
        state.approved = [*approved]
        state.status = "running"

    def give_up(self, error: RouterError | None) -> None:
        """End a run that was cancelled or raised an exception. It may already have ended."""
        self.error = self.error or error
        if self.ended is None:
            self._end("failed")

    def summary(self, latency_ms: float) -> wire.RunSummary:
        """The totals of the run."""
        tools = dict.fromkeys(step.tool for step in self.state.steps if step.tool is not None)
        return wire.RunSummary(len(self.state.steps), usd(self.state.spent_nanos), latency_ms, [*tools])

    def _add_step(self, output: JsonObject, start_ms: float, duration_ms: float, nanos: int, **more: Any) -> None:
        """Add a step, by default of a model call, with the cost of all its tries."""
        state = self.state
        step = wire.Step(
            number=len(state.steps) + 1,
            output=output,
            start_ms=start_ms,
            duration_ms=duration_ms,
            cost_usd=usd(nanos + self._tried_nanos),
            **{"action": "llm_call", "input": {"messages": len(state.messages)}, **more},
        )
        state.spent_nanos += nanos
        state.steps.append(step)
        self.tries = self._tried_nanos = 0

    def _observe(self, observation: Observation) -> None:
        self.state.messages.append(wire.Message("tool", observation.text, tool_call_id=observation.call_id))

    def _end(self, status: wire.RunStatus, marker: wire.Marker | None = None) -> Ended:
        self.ended = Ended(status, marker)
        return self.ended


def arguments_shown(call: wire.FunctionCall) -> JsonObject:
    """Arguments as shown in a step. Text that is not a JSON object, or nests too deeply, goes under ``text``."""
    try:
        shown = decode_object(call.arguments or "{}")
    except (MsgspecError, RecursionError):
        return {"text": call.arguments}
    return shown if is_shallow(call.arguments, shown) else {"text": call.arguments}
