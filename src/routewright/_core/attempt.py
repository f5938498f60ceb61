"""One call of one model: what it was asked with, what came of it, and what it cost. Times on the monotonic scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from msgspec import Struct, json
from msgspec.structs import astuple, replace

from routewright.errors import ProviderFault
from routewright.wire import (
    Chunk,
    Delta,
    FaultKind,
    Finish,
    FunctionCall,
    Reasoning,
    SpanStatus,
    Thought,
    TokenBounds,
    ToolCall,
    ToolDelta,
    Usage,
)

from .attempts.faults import ENDING, FinishReason, ending_of
from .catalogue.prices import Prices, adds_up, range_nanos, usage_nanos
from .guardrails.screen import Hit
from .money import MOST_TOKENS
from .routing.plan import Leg
from .tokens.estimate import LONGEST_TOKEN, MESSAGE_TOKENS, TOOL_CALL_TOKENS, estimate, text_range

MAX_ANSWER_CHARS = 32 << 20
"""Longest answer that is taken; a piece of a tool call counts ``PIECE_CHARS`` besides its own."""
PIECE_CHARS = 64
MAX_REASON_CHARS = 200  # of a finish reason
_COMMON = ("stop", "tool_calls", "length", "content_filter")  # finish reasons that need no look at the table


class Rare:
    """What few structs of a kind have: a default of the class until it is set, and then no field."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle has what is no field, too."""
        return (*super().__reduce__(), self.__dict__)

    def __copy__(self) -> Self:
        """So has a copy."""
        copied: Self = super().__copy__()  # type: ignore[misc]  # the stubs of msgspec leave it out
        copied.__dict__.update(self.__dict__)
        return copied


class _Rare(Rare):
    """What few attempts have."""

    __slots__ = ()

    place = 0
    """In the plan: 0 is the chosen model, 1 the first fallback."""
    after: Attempt | None = None
    """The attempt whose fault led here; None for the first, and for a hedge."""
    budget_capped = False
    """An answer cut at the cap was cut by the budget."""
    repair: TokenBounds | None = None
    """The model repairs its answer: that, and what is wrong with it, make the prompt longer by so much."""
    probe = False
    """The model's circuit is not closed: this call shows whether it may be."""
    hedge = False
    """It runs beside another."""
    delivered = False
    """Content had reached the caller; of a plain call none does before the end."""
    fault: FaultKind | None = None
    fault_text = ""
    fault_public = ""
    """The same without addresses, where it names any."""
    hint = ""
    """What to do about the fault, where its provider knows."""
    thoughts: list[Thought] | None = None
    """What the model thought, in order; None: nothing that was shown."""
    pieces: dict[int, ToolPieces] | None = None
    thought_characters = 0
    usage_estimated = False
    unsure: tuple[int, ...] | None = None
    """Where the provider did not say the usage, or not as its last word: what ``cost_range_nanos`` needs."""
    unslept_ms = 0.0
    """In the sandbox, the time that the model would have taken."""
    screen: Any = None
    """The guardrails its answer passes; None where there are none."""
    hits: Sequence[Hit] = ()
    finish_word: str | None = None
    """The vendor's own word, where the reason is ``other``."""
    prices_of_day: Prices | None = None
    """Of the day on which it began, where prices depend on it."""


class Attempt(_Rare, Struct, dict=True, eq=False):
    """One call of one model. The machine makes it; whoever performs it fills in what happens."""

    number: int
    leg: Leg
    cap: int | None
    """Output tokens the model is asked for at most; None: its own limit."""
    patience_s: float = 0.0
    """How long the model may take to show life: longer silence is its own fault."""
    due_at: float = 0.0
    """When it must have shown life if it begins at once."""
    started_at: float = 0.0
    ended_at: float = 0.0
    first_at: float | None = None
    text: list[str] = []
    characters: int = 0
    counted_at: int = -1
    """How many characters had come when the usage did."""
    usage: Usage | None = None
    finish_reason: str | None = None
    """In the common words, or ``budget``."""
    cost_nanos: int = 0
    server: str | None = None
    """The provider's name, where the catalogue has another for the model."""

    def __repr__(self) -> str:
        # no text: a repr ends up in logs
        return f"<Attempt {self.number} of {self.model}: {self.fault or self.finish_reason or 'under way'}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """What ``rich`` prints: no text either."""
        return [("number", self.number), ("model", self.model)]

    @property
    def model(self) -> str:
        """Id of the model."""
        return self.leg.id

    @property
    def provider(self) -> str:
        """Name of the provider."""
        return self.server or self.leg.provider

    @property
    def status(self) -> SpanStatus:
        """How it ended: without a fault and an answer it was left."""
        return "error" if self.fault is not None else "cancelled" if self.finish_reason is None else "ok"

    @property
    def restart(self) -> bool:
        """It voids what was delivered so far."""
        return self.after is not None and self.after.delivered

    @property
    def output(self) -> str:
        """The text so far."""
        return "".join(self.text)

    @property
    def answer(self) -> str:
        """The text as the caller may have it."""
        return self.output if self.screen is None else str(self.screen.output)

    @property
    def tool_calls(self) -> list[ToolCall] | None:
        """The tool calls so far."""
        if self.pieces is None:
            return None
        calls = (call for _, call in sorted(self.pieces.items()))
        return [ToolCall(call.id, FunctionCall(call.name, "".join(call.arguments))) for call in calls]

    @property
    def answer_calls(self) -> list[ToolCall] | None:
        """The tool calls as the caller may have them."""
        if self.screen is None:
            return self.tool_calls
        calls: list[ToolCall] | None = self.screen.calls
        return calls

    @property
    def produced(self) -> bool:
        """Something came that costs; a fault or a farewell before that costs nothing."""
        return self.characters > 0 or self.usage is not None

    @property
    def counted(self) -> bool:
        """The usage is final: the answer has ended, and none of it came after the usage did."""
        return self.usage is not None and self.finish_reason is not None and self.counted_at == self.characters

    @property
    def prices(self) -> Prices:
        """Of the day on which it began."""
        return self.leg.prices if self.prices_of_day is None else self.prices_of_day

    def take(self, chunk: Any) -> Delta | ToolDelta | Finish | None:
        """Add a chunk; give it back if the caller is to have it. After the end nothing counts but usage. Raises
        ``ProviderFault("malformed")`` for what is no sound chunk, an answer that is too long, and a tool call without a
        name; and the fault that its finish reason stands for."""
        if isinstance(chunk, Delta):
            text = chunk.text
            if not ((type(text) is str and text.isascii()) or _is_text(text)):
                raise self._malformed(chunk)
            if not text or self.finish_reason is not None:
                return None
            self.text.append(text)
            self.characters = characters = self.characters + len(text)
            if characters > MAX_ANSWER_CHARS:
                raise self._too_long()
            return chunk
        if isinstance(chunk, Usage):
            *counts, tier = astuple(chunk)
            if not ([*map(type, counts)] == _SEVEN_INTS and max(counts) <= MOST_TOKENS and type(tier) is str):
                raise self._malformed(chunk)
            if adds_up(chunk):
                self.usage = chunk  # else it is no usage, and is estimated
                self.counted_at = self.characters
            return None
        if isinstance(chunk, Finish):
            reason = chunk.reason
            if reason not in _COMMON and not (_is_text(reason) and len(reason) <= MAX_REASON_CHARS):
                raise self._malformed(chunk)
            if self.finish_reason is not None:
                return None
            if reason not in _COMMON:
                reason = self._read_ending(reason)
            pieces = self.pieces if reason != "content_filter" else None
            if pieces is not None and not all(call.name for call in pieces.values()):
                raise ProviderFault(FaultKind.MALFORMED, f"{self.provider} gave a tool call without a name")
            self.finish_reason = "budget" if reason == "length" and self.budget_capped else reason
            return chunk
        if isinstance(chunk, Thought):
            if not _is_text(chunk.text) or not isinstance(chunk.item, dict | None):
                raise self._malformed(chunk)
            if self.finish_reason is None and (chunk.text or chunk.item is not None):
                self._think(chunk)
            return None
        if not isinstance(chunk, ToolDelta) or not (
            type(chunk.index) is int and all(map(_is_text, (chunk.arguments, chunk.id, chunk.name)))
        ):
            raise self._malformed(chunk)
        if self.finish_reason is not None:
            return None
        self._collect(chunk)
        return chunk

    def settle(self, bounds: TokenBounds) -> Usage:
        """Price it by its usage and the day on which it began. Where the provider sent no usage, or not as its last
        word, the text that came is counted too. ``bounds``: of the prompt."""
        usage = self.usage
        if usage is None or self.finish_reason is None or self.counted_at != self.characters:
            usage = self._estimate(bounds, usage)
        prices = self.prices_of_day
        self.cost_nanos = usage_nanos(self.leg.prices if prices is None else prices, usage)
        return usage

    def doubt(self) -> None:
        """Note that it may be billed for all that it can have made, though nothing of that came."""
        self.unsure = ()

    def cost_range_nanos(self, bounds: TokenBounds) -> tuple[int, int] | None:
        """The least and the most that it can have cost, where the provider did not say, by the bounds of the prompt and
        of what came. An answer that broke off may go on where nobody sees it, and so may what was thought."""
        unsure, usage, leg, prices = self.unsure, self.usage, self.leg, self.prices
        if unsure is None or not prices:
            return None
        low, high, _ = leg.length(bounds)
        if self.repair is not None:
            low, high = low + self.repair.low, high + self.repair.high
        most = self.cap or leg.max_output
        if not unsure or usage is None:
            return range_nanos(prices, (0, high), (0, most))
        told, size, names = unsure
        if self.finish_reason is not None and not leg.reasoning:
            most = min(size + names + MESSAGE_TOKENS, most)
        inputs = min(low, usage.input), max(high, usage.input)
        outputs = min(max(-(-size // LONGEST_TOKEN), told), usage.output), max(most, usage.output)
        return range_nanos(prices, inputs, outputs)

    def _estimate(self, bounds: TokenBounds, told: Usage | None) -> Usage:
        """Make up the usage that the provider did not send."""
        output, names = "".join(self.text), 0
        if self.pieces is not None:
            output += "".join("".join(call.arguments) for call in self.pieces.values())
            names = sum(TOOL_CALL_TOKENS + text_range(call.name)[1] for call in self.pieces.values())
        data = output.encode("utf-8", "surrogatepass")
        made, size = estimate(len(output), data), len(data)
        if self.cap is not None:
            made = min(made, self.cap)
        if told is None:
            more = 0 if self.repair is None else self.repair.estimate
            asked = bounds.estimate
            if bounds.counted or bounds.images:
                asked = min(bounds.best, self.leg.length(bounds)[1])
            told = Usage(asked + more, -1)
        self.unsure = told.output, size, names
        if made > told.output:
            self.usage_estimated = True
            told = replace(told, output=made)
        self.usage = told
        return told

    def _think(self, thought: Thought) -> None:
        """Keep a thought, whose length counts as that of the answer does."""
        self.thought_characters += len(thought.text) if thought.item is None else len(json.encode(thought.item))
        if self.thought_characters > MAX_ANSWER_CHARS:
            raise self._too_long()
        self.thoughts = self.thoughts or []
        self.thoughts.append(thought)

    def reasoning(self, since: int = 0) -> Reasoning | None:
        """What was thought from the thought of this number on, for the caller and the vendor's next turn. Withheld
        where guardrails look at answers, since thoughts repeat what they take out of those."""
        thoughts = (self.thoughts or ())[since:]
        if not thoughts or self.screen is not None:
            return None
        items = [each.item for each in thoughts if each.item is not None]
        text = "".join(each.text for each in thoughts)
        return Reasoning(self.provider, items, text or None)

    def _read_ending(self, word: str) -> FinishReason:
        """The common word for a vendor's finish reason. Raises ``ProviderFault`` where it stands for a fault."""
        means = ending_of(word) if word else FaultKind.TRUNCATED
        if isinstance(means, FaultKind):
            how = f"broke off with {word.partition(':')[0]!r}" if word else "ended the answer without a finish reason"
            raise ProviderFault(means, f"{self.provider} {how}")
        if means is None and ENDING.fullmatch(word):
            self.finish_word = word
        return means or "other"

    def _collect(self, piece: ToolDelta) -> None:
        if self.pieces is None:
            self.pieces = {}
        call = self.pieces.setdefault(piece.index, ToolPieces())
        call.id = piece.id or call.id
        call.name = piece.name or call.name
        call.arguments.append(piece.arguments)
        self.characters += len(piece.arguments) + PIECE_CHARS
        if self.characters > MAX_ANSWER_CHARS:
            raise self._too_long()

    def _too_long(self) -> ProviderFault:
        said = f"{self.provider} gave an answer over {MAX_ANSWER_CHARS} characters"
        return ProviderFault(FaultKind.MALFORMED, said)

    def _malformed(self, chunk: object) -> ProviderFault:
        return ProviderFault(FaultKind.MALFORMED, f"{self.provider} gave {_named(chunk)}")


class ToolPieces:
    """One tool call as it comes."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id = self.name = ""
        self.arguments: list[str] = []


NO_TEXT: Any = ()  # takes no more
_SEVEN_INTS = [int] * 7


# Chunks come from strangers' code and go to clients. The structs take any value, so what they hold is checked here.


def _is_text(text: object) -> bool:
    """Whether it is a text that can be written as UTF-8: half of a surrogate pair cannot."""
    if not isinstance(text, str):
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _named(chunk: object) -> str:
    """What an unsound chunk is, without a word of it."""
    name = type(chunk).__name__
    if isinstance(chunk, Usage):
        return f"a {name} whose counts are not whole numbers up to {MOST_TOKENS:,}"
    if isinstance(chunk, Finish) and _is_text(chunk.reason):
        return f"a {name} whose reason is over {MAX_REASON_CHARS} characters"
    return f"a {name} that holds no text" if isinstance(chunk, Chunk) else f"a {name}, which is no chunk"
