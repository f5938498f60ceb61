"""Answers replayed under an idempotency key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import msgspec

from routewright._core.request.json_scan import quoted
from routewright._core.routing.decision import Decision
from routewright._core.structured_output import Fit, Form
from routewright.errors import NotFound
from routewright.wire import (
    DecisionInput,
    OutputData,
    OutputDelta,
    Reasoning,
    ReasoningData,
    ReasoningDelta,
    RouteCompleted,
    RouteEvent,
    RouteResponse,
    RouteStarted,
    StartedData,
    StartedRouting,
    ToolCall,
    ToolCallData,
    ToolCallDelta,
    Trace,
    WindowState,
)

from .storage import storage_faults

_decode = msgspec.json.Decoder(RouteResponse).decode


DecideAgain = Callable[[DecisionInput], Decision]


class Replayed:
    """Replaces the ``Call`` of a replayed answer."""

    windows: Sequence[WindowState] = ()
    created_at = 0.0
    looked = None

    def __init__(self, response: RouteResponse, trace: Trace | None, decide_again: DecideAgain) -> None:
        self.id = response.trace_id
        self._decide_again = decide_again
        self._response = response
        self._trace = trace

    def response(self, output: str, tool_calls: list[ToolCall] | None, reasoning: Reasoning | None) -> RouteResponse:
        return self._response

    @property
    def trace(self) -> Trace:
        if self._trace is None:
            raise NotFound(f"trace {quoted(self.id)} is no longer stored, although its answer is")
        return self._trace.copy()

    @property
    def decision(self) -> Decision:
        """The decision, replayed from the trace. Raises ``NotFound`` if that is no longer stored."""
        given = self.trace.decision_input
        assert given is not None, "a served call was decided"
        return self._decide_again(given)


def read_result(kept: bytes) -> RouteResponse:
    with storage_faults:
        return _decode(kept)


def reread(form: Form, output: str) -> Any:
    """The answer parsed as the requested type; None if it does not fit."""
    found = form.read(output)
    return found.value if isinstance(found, Fit) else None


def reasoning_data(reasoning: Reasoning, attempt: int) -> ReasoningData:
    """A model's thoughts as the data of an event."""
    return ReasoningData(reasoning.text or "", reasoning.items, reasoning.provider, attempt)


def events_again(response: RouteResponse) -> list[RouteEvent]:
    """The events of a finished call (contract 5), with its text in one piece."""
    routing = response.routing
    begun = StartedRouting(response.primary_model, routing.fallback_chain, routing.policy_version)
    events = events_before_end(
        StartedData(response.trace_id, begun), response.output, response.tool_calls, response.reasoning
    )
    return [*events, RouteCompleted(len(events) + 1, response)]


def events_before_end(
    begun: StartedData, output: str, tool_calls: list[ToolCall] | None, reasoning: Reasoning | None = None
) -> list[RouteEvent]:
    """The events of a complete answer, except the last."""
    ids = count(1)
    events: list[RouteEvent] = [RouteStarted(next(ids), begun)]
    if reasoning is not None:
        events.append(ReasoningDelta(next(ids), reasoning_data(reasoning, 1)))
    if output:
        events.append(OutputDelta(next(ids), OutputData(output, 1)))
    for place, call in enumerate(tool_calls or ()):
        told = ToolCallData(place, call.id, call.function.name, call.function.arguments, 1)
        events.append(ToolCallDelta(next(ids), told))
    return events
