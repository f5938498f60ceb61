"""``Answer``: the response to a call, with its decision and trace; also one replayed under an idempotency key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Generic

from routewright import wire
from routewright._core.call import Call
from routewright._core.limits import headers_of
from routewright._core.routing.board import Board
from routewright._core.routing.decision import Decision
from routewright._core.structured_output import Fit, Form
from routewright._core.trace.spans import CACHE_HEADER
from routewright.errors import NotFound
from routewright.wire.foreign import no_attribute
from routewright.wire.json_scan import quoted
from routewright.wire.plain import PlainData, preformatted

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # with a default, so that plain ``Answer`` works

    T_co = TypeVar("T_co", covariant=True, default=None)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)


DecideAgain = Callable[[wire.DecisionInput], Decision]


class Replayed:
    """Replaces the ``Call`` of a replayed answer."""

    windows: Sequence[wire.WindowState] = ()
    created_at = 0.0
    looked = None

    def __init__(self, response: wire.RouteResponse, trace: wire.Trace | None, decide_again: DecideAgain) -> None:
        self.id = response.trace_id
        self._decide_again = decide_again
        self._response = response
        self._trace = trace

    def response(
        self, output: str, tool_calls: list[wire.ToolCall] | None, reasoning: wire.Reasoning | None
    ) -> wire.RouteResponse:
        return self._response

    @property
    def trace(self) -> wire.Trace:
        if self._trace is None:
            raise NotFound(f"trace {quoted(self.id)} is no longer stored, only its answer; keep traces longer")
        return self._trace.copy()

    @property
    def decision(self) -> Decision:
        """The decision, replayed from the trace. Raises ``NotFound`` if that is no longer stored."""
        decision_input = self.trace.decision_input
        assert decision_input is not None, "a served call was decided"
        return self._decide_again(decision_input)


class Answer(PlainData, Generic[T_co]):
    """A served request. ``str(answer)`` is its text, ``response`` the route response (spec 2.2), and ``to_dict`` and
    ``to_json`` return that as plain data."""

    _shape = wire.RouteResponse

    def __init__(
        self,
        call: Call | Replayed,
        board: Board | None,
        output: str = "",
        tool_calls: list[wire.ToolCall] | None = None,
        data: Any = None,
        reasoning: wire.Reasoning | None = None,
    ) -> None:
        self._call = call
        self._board = board
        self._output = output
        self._tool_calls = tool_calls
        self._data: T_co = data
        self._reasoning = reasoning
        self._response: wire.RouteResponse | None = None

    def __str__(self) -> str:
        return self.output

    def __repr__(self) -> str:
        # without text, since a repr ends up in logs
        if not self.is_served:
            return f"<Answer {self.trace_id}: none>"
        return f"<Answer {self.trace_id} from {self.routing.selected_model}, {len(self.output)} characters>"

    def _repr_html_(self) -> str:
        """What notebooks show."""
        return preformatted(self.output or repr(self))

    if not TYPE_CHECKING:  # a type checker refuses these names

        def __getattr__(self, name: str) -> object:
            raise no_attribute(self, name)

    @property
    def _plain(self) -> wire.RouteResponse:
        return self.response

    @property
    def response(self) -> wire.RouteResponse:
        """The response as HTTP would send it."""
        if self._response is None:
            self._response = self._call.response(self._output, self._tool_calls, self._reasoning)
        return self._response

    @property
    def output(self) -> str:
        """The model's text."""
        return self._output

    @property
    def data(self) -> T_co:
        """The answer parsed as ``output_type``; None without one, and if tools are called."""
        return self._data

    @property
    def message(self) -> wire.Message:
        """The assistant's turn, to append to the messages of the next request."""
        output = self._output or (None if self._tool_calls else "")
        return wire.Message("assistant", output, self._tool_calls, reasoning=self.reasoning)

    @property
    def tool_calls(self) -> list[wire.ToolCall] | None:
        """The tool calls that the model requests."""
        return self._tool_calls

    @property
    def reasoning(self) -> wire.Reasoning | None:
        """The model's reasoning, in the form to send back with the assistant message of the next turn."""
        return self.response.reasoning

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended: stop, length, tool_calls, budget."""
        return self.response.finish_reason

    @property
    def routing(self) -> wire.Routing:
        """How the request was served, and its cost."""
        return self.response.routing

    @property
    def usage(self) -> wire.WindowUsage:
        """The rest of the request window."""
        return self.response.usage

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers: ``X-RateLimit-...`` of the rate limit with the smallest share left, if there is one and the
        answer is not a replay; ``X-Routewright-Cache`` (``hit`` or ``miss``) if the cache was used."""
        windows, looked = self._call.windows, self._call.looked
        headers = headers_of(windows, self._call.created_at) if windows else {}
        return headers if looked is None else headers | {CACHE_HEADER: looked.header}

    @property
    def is_served(self) -> bool:
        """True if a model answered; a call that was left may have no answer."""
        return isinstance(self._call, Replayed) or self._call.served is not None

    @property
    def replayed(self) -> bool:
        """True if it repeats the answer kept under an idempotency key."""
        return isinstance(self._call, Replayed)

    @property
    def trace_id(self) -> str:
        """Id of the call's trace."""
        return self._call.id

    @property
    def trace(self) -> wire.Trace:
        """The call's trace, from memory."""
        return self._call.trace

    @property
    def decision(self) -> Decision:
        """Why this model was chosen."""
        call = self._call
        if isinstance(call, Replayed):
            return call.decision
        assert call.plan is not None, "an answered call was decided"
        return Decision(call.plan, call.decision_input, self._board)


def reread(form: Form, output: str) -> Any:
    """The answer parsed as the requested type; None if it does not fit."""
    result = form.read(output)
    return result.value if isinstance(result, Fit) else None


def reasoning_data(reasoning: wire.Reasoning, attempt: int) -> wire.ReasoningData:
    """A model's thoughts as the data of an event."""
    return wire.ReasoningData(reasoning.text or "", reasoning.items, reasoning.provider, attempt)


def events_again(response: wire.RouteResponse) -> list[wire.RouteEvent]:
    """The events of a finished call (contract 5), with its text in one piece."""
    routing = response.routing
    routing_started = wire.StartedRouting(response.primary_model, routing.fallback_chain, routing.policy_version)
    events = events_before_end(
        wire.StartedData(response.trace_id, routing_started), response.output, response.tool_calls, response.reasoning
    )
    return [*events, wire.RouteCompleted(len(events) + 1, response)]


def events_before_end(
    started: wire.StartedData,
    output: str,
    tool_calls: list[wire.ToolCall] | None,
    reasoning: wire.Reasoning | None = None,
) -> list[wire.RouteEvent]:
    """The events of a complete answer, except the last."""
    ids = count(1)
    events: list[wire.RouteEvent] = [wire.RouteStarted(next(ids), started)]
    if reasoning is not None:
        events.append(wire.ReasoningDelta(next(ids), reasoning_data(reasoning, 1)))
    if output:
        events.append(wire.OutputDelta(next(ids), wire.OutputData(output, 1)))
    for index, call in enumerate(tool_calls or ()):
        data = wire.ToolCallData(index, call.id, call.function.name, call.function.arguments, 1)
        events.append(wire.ToolCallDelta(next(ids), data))
    return events
