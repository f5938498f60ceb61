"""What one call of one model does: its chunks, collected and checked, and what they cost."""

from __future__ import annotations

from msgspec.structs import replace

from routewright._core.call import Call
from routewright._core.cost import Prices, adds_up, range_nanos, usage_nanos
from routewright._core.guardrail import Hit
from routewright._core.health import Seen, seen_of
from routewright._core.plan import Plan
from routewright._core.tokens import MESSAGE_TOKENS, TOOL_CALL_TOKENS, estimate_text, text_range
from routewright.errors import ProviderFault
from routewright.protocols import Provider
from routewright.wire import Chunk, Delta, FaultKind, Finish, FunctionCall, ToolCall, ToolDelta, Usage

from .chunk import are_counts, is_piece, is_reason, is_text, named
from .guardrail import Screen

MAX_ANSWER_CHARS = 32 << 20
"""An answer beyond this is none; a piece of a tool call counts ``PIECE_CHARS`` besides its own."""
PIECE_CHARS = 64


class Attempt:
    """What one call of one model did, filled in as it happens. Times on the monotonic scale."""

    def __init__(self, call: Call, plan: Plan, provider: Provider) -> None:
        self.call = call
        self.model = plan.pool.ids[call.row]
        self.provider = provider.name
        self.started_at = self.ended_at = 0.0
        self.first_at: float | None = None
        self.text: list[str] = []
        self.tool_calls: dict[int, _ToolText] = {}
        self.usage: Usage | None = None
        self.usage_estimated = False
        self.day: str | None = None
        """UTC date on which it began, where prices depend on it."""
        self.cost_nanos = 0
        self.cost_range_nanos: tuple[int, int] | None = None
        """The least and the most that it can have cost, where nobody told."""
        self.finish_reason: str | None = None
        self.screen: Screen | None = None
        """What of the answer may pass; None where nobody guards it."""
        self.hits: list[Hit] = []
        """What the guardrails found in it."""
        self.fault: FaultKind | None = None
        self.fault_text = ""
        self.spoke = False
        """Content had come."""
        self.delivered = False
        """Content had reached the caller; of a plain call none does before the end."""
        self.unslept_ms = 0.0
        """In the sandbox, the time that the model would have taken."""
        self.characters = 0
        """Of what came so far, pieces of tool calls weighed."""
        self._counted_at = 0
        """How many had come when the usage did."""

    @property
    def output(self) -> str:
        """The text so far."""
        return "".join(self.text)

    @property
    def produced(self) -> bool:
        """Something came that costs; a fault or a farewell before that costs nothing."""
        return self.spoke or self.usage is not None

    @property
    def counted(self) -> bool:
        """The usage is the last word: the answer has ended, and none of it came later."""
        return self.usage is not None and self.finish_reason is not None and self._counted_at == self.characters

    @property
    def answer(self) -> str:
        """The text as the caller may have it."""
        return self.output if self.screen is None else self.screen.output

    @property
    def answer_calls(self) -> list[ToolCall] | None:
        """The tool calls as the caller may have them."""
        return self.calls() if self.screen is None else self.screen.calls

    def forget_text(self) -> None:
        """Keep the facts alone: traces hold no text."""
        self.screen = None
        self.text = []
        self.tool_calls = {}

    def calls(self) -> list[ToolCall] | None:
        """The tool calls so far."""
        if not self.tool_calls:
            return None
        return [
            ToolCall(call.id, FunctionCall(call.name, "".join(call.arguments)))
            for _, call in sorted(self.tool_calls.items())
        ]

    def take(self, chunk: Chunk) -> Delta | ToolDelta | Finish | None:
        """Note what a chunk says; give it back if the caller is to have it. After the end nothing counts but usage.

        Raises ``ProviderFault("malformed")`` for what is no chunk, an answer without end, and a call of no tool.
        """
        ended = self.finish_reason is not None
        match chunk:
            case Delta() if is_text(chunk.text):
                if chunk.text and not ended:
                    self.text.append(chunk.text)
                    self._weigh(len(chunk.text))
                    return chunk
            case ToolDelta() if is_piece(chunk):
                if not ended:
                    self._collect(chunk)
                    self._weigh(len(chunk.arguments) + PIECE_CHARS)
                    return chunk
            case Usage() if are_counts(chunk):
                if adds_up(chunk):
                    self.usage = chunk  # else it is no usage, and is estimated
                    self._counted_at = self.characters
            case Finish() if is_reason(chunk.reason):
                if not ended:
                    if self.tool_calls and chunk.reason != "content_filter":
                        self._require_names()
                    cut_by_budget = chunk.reason == "length" and self.call.capped_by_budget
                    self.finish_reason = "budget" if cut_by_budget else chunk.reason
                    return chunk
            case _:
                raise ProviderFault(FaultKind.MALFORMED, f"{self.provider} gave {named(chunk)}")
        return None

    def settle(self, plan: Plan) -> Usage:
        """Price it by its usage and the day on which it began. Where the provider sent no usage, or not as its last
        word, the text that came is counted too."""
        prices = plan.pool.prices_on(self.call.row, self.day)
        usage = self.usage
        if usage is None or not self.counted:
            told, made = usage or Usage(_asked(plan, self.call), -1), self._made()
            self.usage = usage = told
            if made > told.output:
                self.usage_estimated = True
                self.usage = usage = replace(told, output=made)
            self.cost_range_nanos = self._range(plan, prices, usage, told.output)
        self.cost_nanos = usage_nanos(prices, usage)
        return usage

    def seen(self, plan: Plan, *, whole: bool) -> Seen:
        """What its answer showed of the model. Of one that was asked for whole the first token's time is not known."""
        assert self.usage is not None, "it was settled"
        assert self.first_at is not None, "an answer came"
        whole_ms = (self.ended_at - self.started_at) * 1000
        first_ms = None if whole else (self.first_at - self.started_at) * 1000
        itself = self.finish_reason in ("stop", "tool_calls") and not self.usage_estimated
        return seen_of(plan.ask.outlook, self.call.row, self.usage, whole_ms, first_ms, length=itself)

    def doubt(self, plan: Plan) -> None:
        """Note that it may be billed for all that it can have made, though nothing of that came."""
        row = self.call.row
        prices = plan.pool.prices_on(row, self.day)
        if prices:
            self.cost_range_nanos = range_nanos(prices, (0, _asked_range(plan, self.call)[1]), (0, self._most(plan)))

    def _range(self, plan: Plan, prices: Prices, usage: Usage, told: int) -> tuple[int, int] | None:
        """What it can have cost, by the bounds of the prompt and of what came. ``told``: output of which the provider
        spoke."""
        if not prices:
            return None
        low, high = _asked_range(plan, self.call)
        least, most = self._made_range(plan)
        inputs = min(low, usage.input), max(high, usage.input)
        outputs = min(max(least, told), usage.output), max(most, usage.output)
        return range_nanos(prices, inputs, outputs)

    def _made_range(self, plan: Plan) -> tuple[int, int]:
        """The fewest and the most output tokens. An answer that broke off may go on where nobody sees it, and so may
        what was thought."""
        least, seen = text_range(self.output + self._tool_text())
        names = sum(TOOL_CALL_TOKENS + text_range(call.name)[1] for call in self.tool_calls.values())
        most = self._most(plan)
        if self.finish_reason is None or plan.pool.models[self.call.row].reasoning:
            return least, most
        return least, min(seen + names + MESSAGE_TOKENS, most)

    def _most(self, plan: Plan) -> int:
        """Output tokens that the provider was to make at most."""
        return self.call.output_cap or plan.pool.max_output[self.call.row]

    def _made(self) -> int:
        """Output tokens, estimated from what came."""
        made, most = estimate_text(self.output + self._tool_text()), self.call.output_cap
        return made if most is None else min(made, most)

    def _tool_text(self) -> str:
        return "".join("".join(call.arguments) for call in self.tool_calls.values())

    def _collect(self, piece: ToolDelta) -> None:
        call = self.tool_calls.setdefault(piece.index, _ToolText())
        call.id = piece.id or call.id
        call.name = piece.name or call.name
        call.arguments.append(piece.arguments)

    def _require_names(self) -> None:
        if not all(call.name for call in self.tool_calls.values()):
            raise ProviderFault(FaultKind.MALFORMED, f"{self.provider} gave a tool call without a name")

    def _weigh(self, chars: int) -> None:
        self.characters += chars
        self.spoke = True
        if self.characters > MAX_ANSWER_CHARS:
            what = f"{self.provider} gave an answer over {MAX_ANSWER_CHARS} characters"
            raise ProviderFault(FaultKind.MALFORMED, what)


class _ToolText:
    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id = self.name = ""
        self.arguments: list[str] = []


def _asked(plan: Plan, call: Call) -> int:
    """Input tokens, estimated from the prompt."""
    more = 0 if call.repair is None else call.repair.estimate
    return min(plan.given.tokens.best, plan.ask.high(call.row)) + more


def _asked_range(plan: Plan, call: Call) -> tuple[int, int]:
    """The fewest and the most input tokens."""
    low, high, _ = plan.ask.input[plan.pool.measure[call.row]]
    return (low, high) if call.repair is None else (low + call.repair.low, high + call.repair.high)
