"""What a caller gets back: the response, with the decision and the trace beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from routewright._core.allowance import headers_of
from routewright._core.decision import Decision
from routewright.wire import RouteResponse, Routing, ToolCall, Trace, WindowUsage

from .outcome import Outcome
from .replay import Replayed

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # the one with a default, for those who write plain ``Answer``

    T_co = TypeVar("T_co", covariant=True, default=None)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)


class Answer(Generic[T_co]):
    """A served request. ``str(answer)`` is its text; ``response`` the whole route response (spec 2.2)."""

    def __init__(self, outcome: Outcome | Replayed) -> None:
        self._outcome = outcome

    def __str__(self) -> str:
        return self.output

    def __repr__(self) -> str:
        # no text: a repr ends up in logs
        return f"<Answer {self.trace_id} from {self.routing.selected_model}, {len(self.output)} characters>"

    def _repr_html_(self) -> str:
        """What notebooks show: the text too, as printing it would."""
        from routewright._core.html import answer_html  # which nothing else needs

        return answer_html(self.response, self.decision, self.trace)

    @property
    def response(self) -> RouteResponse:
        """The response as HTTP would send it."""
        return self._outcome.response

    @property
    def output(self) -> str:
        """The model's text."""
        return self._outcome.output

    @property
    def data(self) -> T_co:
        """The answer as the ``output_type`` that was asked for; None without one, and where tools are called."""
        data: T_co = self._outcome.data
        return data

    @property
    def tool_calls(self) -> list[ToolCall] | None:
        """Tools that the model wants called."""
        return self._outcome.tool_calls

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended: stop, length, tool_calls, budget."""
        return self.response.finish_reason

    @property
    def routing(self) -> Routing:
        """How the request was served, at what cost."""
        return self.response.routing

    @property
    def usage(self) -> WindowUsage:
        """What is left of the request window."""
        return self.response.usage

    @property
    def headers(self) -> dict[str, str]:
        """What HTTP says of its rate limits, ``X-RateLimit-...``: of the one that has the smallest share left. Nothing
        where there is none, and of an answer that is told again, which takes nothing."""
        if isinstance(self._outcome, Replayed):
            return {}
        admitted = self._outcome.facts.admitted
        return headers_of(admitted.windows, admitted.created_at)

    @property
    def replayed(self) -> bool:
        """Whether it was given before, under the same idempotency key, and is only told again."""
        return isinstance(self._outcome, Replayed)

    @property
    def trace_id(self) -> str:
        """Id of the call's trace."""
        return self._outcome.facts.id

    @property
    def trace(self) -> Trace:
        """The call's trace, without a look into the storage."""
        return self._outcome.facts.trace

    @property
    def decision(self) -> Decision:
        """Why this model."""
        decision = self._outcome.facts.decision
        assert decision is not None, "answers are made of calls that were decided"
        return decision
