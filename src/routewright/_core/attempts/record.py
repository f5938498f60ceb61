"""``Attempt``: one call of one model, its answer and its cost. Times are monotonic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct, json
from msgspec.structs import astuple, replace

from routewright import wire
from routewright._core.catalogue.prices import Prices, adds_up, range_nanos, usage_nanos
from routewright._core.guardrails.screen import Hit
from routewright._core.money import MOST_TOKENS
from routewright._core.routing.plan import Leg
from routewright._core.tokens.estimate import LONGEST_TOKEN, MESSAGE_TOKENS, TOOL_CALL_TOKENS, estimate, text_range
from routewright.errors import ProviderFault
from routewright.wire import Delta, FaultKind, Finish, Thought, TokenBounds, ToolDelta, Usage
from routewright.wire.json_scan import is_unicode

from .faults import ENDING, FinishReason, ending_of

MAX_ANSWER_CHARS = 32 << 20
"""Limit on the length of an answer. Each piece of a tool call counts ``PIECE_CHARS`` extra."""
PIECE_CHARS = 64
CHARACTERS_PER_TOKEN = 6
"""More than in the tokens of most texts."""
MAX_REASON_CHARS = 200  # of a finish reason
_COMMON = ("stop", "tool_calls", "length", "content_filter")  # finish reasons that need no table look-up


class Rare:
    """Fields that few structs set: class defaults, stored in ``__dict__`` once set."""

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle ``__dict__`` as well."""
        return (*super().__reduce__(), self.__dict__)


class CheckedAnswer(Protocol):
    """An answer behind guardrails (``_engine/guardrails.py``)."""

    @property
    def output(self) -> str:
        """The text that passed."""

    @property
    def calls(self) -> list[wire.ToolCall] | None:
        """The tool calls that passed."""

    @property
    def hits(self) -> list[Hit]:
        """The matches of the guardrails."""


class _Rare(Rare):
    """Fields that few attempts need."""

    __slots__ = ()

    place = 0
    """Position in the plan: 0 is the chosen model, 1 the first fallback."""
    after: Attempt | None = None
    """The attempt whose fault led to this one. None for the first attempt and for a hedge."""
    past_circuit = False
    """True: the plan's first model was not called, since its circuit has opened."""
    budget_capped = False
    """True: the budget determines the cap."""
    repair: TokenBounds | None = None
    """Set if the model repairs its answer: size of the previous answer and problem report in the prompt."""
    probe = False
    """True: probes a model whose circuit is not closed."""
    hedge = False
    """True: runs in parallel with another attempt."""
    delivered = False
    """True: content has reached the caller. Without streaming that happens only at the end."""
    fault: FaultKind | None = None
    fault_text = ""
    fault_public = ""
    """``fault_text`` without addresses, if it contains any."""
    hint = ""
    """A remedy for the fault, if known."""
    thoughts: list[Thought] | None = None
    """The model's visible reasoning, in order."""
    pieces: dict[int, ToolPieces] | None = None
    thought_characters = 0
    usage_estimated = False
    unsure: tuple[int, ...] | None = None
    """If the provider did not report final usage: the output tokens it reported, the bytes of the answer and the tokens
    of its tool calls' names. Empty if the answer never arrived."""
    overrun: wire.Overrun | None = None
    """Set if the provider billed more than was reserved, or so little that less can be reserved."""
    excess = 0, 0
    """The input and output tokens billed beyond what was reserved."""
    unslept_ms = 0.0
    """In the sandbox: the model's usual latency."""
    screen: CheckedAnswer | None = None
    """Guardrails applied to its answer, if any."""
    hits: Sequence[Hit] = ()
    finish_word: str | None = None
    """The vendor's own word, if the reason is ``other``."""
    prices_of_day: Prices | None = None
    """Prices of the day on which it began, if they depend on the day."""


class Attempt(_Rare, Struct, dict=True, eq=False):
    """One call of one model. The fallback machine creates it, the engine records what happens."""

    number: int
    leg: Leg
    cap: int | None
    """Output token limit. None: the model's own."""
    patience_s: float = 0.0
    """Time until the first response, after which the attempt counts as the model's fault."""
    wake_at: float = 0.0
    """Deadline of the first response if it begins at once."""
    started_at: float = 0.0
    ended_at: float = 0.0
    first_at: float | None = None
    text: list[str] = []
    characters: int = 0
    counted_at: int = -1
    """``characters`` when usage arrived."""
    usage: Usage | None = None
    finish_reason: str | None = None
    """A common finish reason, or ``budget``."""
    cost_nanos: int = 0
    server: str | None = None
    """Name of the provider, if it differs from the catalogue's."""

    def __repr__(self) -> str:
        # leaves out the text, because reprs end up in logs
        return f"<Attempt {self.number} of {self.model}: {self.fault or self.finish_reason or 'under way'}>"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Representation for ``rich``, also without text."""
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
    def status(self) -> wire.SpanStatus:
        """How it ended. Without fault or finish reason it was cancelled."""
        return "error" if self.fault is not None else "cancelled" if self.finish_reason is None else "ok"

    @property
    def restart(self) -> bool:
        """True: it discards what was delivered so far."""
        return self.after is not None and self.after.delivered

    @property
    def output(self) -> str:
        """The text so far."""
        return "".join(self.text)

    @property
    def answer(self) -> str:
        """The text after guardrails."""
        return self.output if self.screen is None else self.screen.output

    @property
    def tool_calls(self) -> list[wire.ToolCall] | None:
        """The tool calls so far."""
        if self.pieces is None:
            return None
        calls = (call for _, call in sorted(self.pieces.items()))
        return [wire.ToolCall(call.id, wire.FunctionCall(call.name, "".join(call.arguments))) for call in calls]

    @property
    def answer_calls(self) -> list[wire.ToolCall] | None:
        """The tool calls after guardrails."""
        return self.tool_calls if self.screen is None else self.screen.calls

    @property
    def produced(self) -> bool:
        """True: something billable arrived. A fault or cancellation before that costs nothing."""
        return self.characters > 0 or self.usage is not None

    @property
    def counted(self) -> bool:
        """True: usage is final. The answer has ended, and nothing followed the usage."""
        return self.usage is not None and self.finish_reason is not None and self.counted_at == self.characters

    @property
    def prices(self) -> Prices:
        """Prices of the day on which it began."""
        return self.leg.prices if self.prices_of_day is None else self.prices_of_day

    def take(self, chunk: object) -> Delta | ToolDelta | Finish | None:
        """Add a chunk, and return it if it is for the caller. The last finish reason counts. Raises
        ``ProviderFault("malformed")`` for an invalid chunk, an answer that is too long, a tool call without a name, or
        an answer that goes on after its end behind guardrails, and the fault that a finish reason stands for."""
        if isinstance(chunk, Delta):
            text = chunk.text
            if not ((type(text) is str and text.isascii()) or _is_text(text)):
                raise self._malformed(chunk)
            if not text:
                return None
            if self.finish_reason is not None and self.screen is not None:
                raise self._screened()
            self.text.append(text)
            self.characters = characters = self.characters + len(text)
            if characters > MAX_ANSWER_CHARS:
                raise self._too_long()
            return chunk
        if isinstance(chunk, Usage):
            *counts, tier = astuple(chunk)
            if not ([*map(type, counts)] == _SEVEN_INTS and max(counts) <= MOST_TOKENS and type(tier) is str):
                raise self._malformed(chunk)
            if adds_up(chunk):  # inconsistent usage is ignored and estimated instead
                if chunk.input and chunk.output:
                    self.usage = chunk
                    self.counted_at = self.characters
                elif chunk.input or chunk.output:
                    self._merge(chunk)
            return None
        if isinstance(chunk, Finish):
            reason = chunk.reason
            if reason not in _COMMON and not (_is_text(reason) and len(reason) <= MAX_REASON_CHARS):
                raise self._malformed(chunk)
            if reason not in _COMMON:
                reason = self._read_ending(reason)
            pieces = self.pieces if reason != "content_filter" else None
            if pieces is not None and not all(call.name for call in pieces.values()):
                raise ProviderFault(FaultKind.MALFORMED, f"{self.provider} sent a tool call without a name")
            is_first = self.finish_reason is None
            self.finish_reason = "budget" if reason == "length" and self.budget_capped else reason
            return chunk if is_first else None
        if isinstance(chunk, Thought):
            if not _is_text(chunk.text) or not isinstance(chunk.item, dict | None):
                raise self._malformed(chunk)
            if chunk.text or chunk.item is not None:
                self._think(chunk)
            return None
        if not isinstance(chunk, ToolDelta) or not (
            type(chunk.index) is int and all(map(_is_text, (chunk.arguments, chunk.id, chunk.name)))
        ):
            raise self._malformed(chunk)
        if self.finish_reason is not None and self.screen is not None:
            raise self._screened()
        self._collect(chunk)
        return chunk

    def _screened(self) -> ProviderFault:
        """The fault of an answer that goes on although guardrails have passed its end. Takes the end back."""
        self.finish_reason = None
        return ProviderFault(FaultKind.MALFORMED, f"{self.provider} sent more of an answer after its end")

    def _merge(self, report: Usage) -> None:
        """Add usage with a zero, which keeps what was reported before; ``settle`` estimates the rest."""
        # Many servers send zeros: before the end, in streams, or for a model whose tokenizer they do not know. No
        # prompt has 0 tokens, and no visible answer. Taken as they are, they would make a call free that the vendor
        # bills, also under a budget. Of an answer without text an output of 0 may be true. See
        # test_zeros_are_not_reported.
        before = self.usage or _NOTHING
        if not report.input:
            report = replace(before, output=report.output, reasoning=report.reasoning, tier=report.tier or before.tier)
        if report.output or not self.characters:
            self.counted_at = self.characters
        else:
            report = replace(report, output=before.output, reasoning=before.reasoning)
        self.usage = report

    def settle(self, bounds: TokenBounds) -> Usage:
        """Compute the cost from usage and prices of the day. Without final usage the received text is counted too.
        ``bounds`` are the prompt's."""
        usage = self.usage
        is_final = self.finish_reason is not None and self.counted_at == self.characters
        if usage is None or not usage.input or not is_final:
            output = "".join(self.text)
            name_tokens = 0
            if self.pieces is not None:
                output += "".join("".join(call.arguments) for call in self.pieces.values())
                name_tokens = sum(TOOL_CALL_TOKENS + text_range(call.name)[1] for call in self.pieces.values())
            data = output.encode("utf-8", "surrogatepass")
            output_tokens = estimate(len(output), data)
            if self.cap is not None:
                output_tokens = min(output_tokens, self.cap)
            usage = usage or Usage(0, -1)
            if not usage.input:
                input_tokens = bounds.estimate
                if bounds.counted or bounds.images:
                    input_tokens = min(bounds.best, self.leg.length(bounds)[1])
                usage = replace(usage, input=input_tokens + (0 if self.repair is None else self.repair.estimate))
                self.usage_estimated = True
            self.unsure = usage.output, len(data), name_tokens
            if output_tokens > usage.output and not is_final:
                self.usage_estimated = True
                usage = replace(usage, output=output_tokens)
            self.usage = usage
        if self.cap is not None:
            high = self.leg.length(bounds)[1] if bounds.counted or bounds.images else bounds.high
            if self.repair is not None:
                high += self.repair.high
            if usage.output > self.cap or usage.input > high or self.leg.overrun is not None:
                self._note_overrun(usage, bounds, high, self.cap)
        self.cost_nanos = usage_nanos(self.leg.prices if self.prices_of_day is None else self.prices_of_day, usage)
        return usage

    def _note_overrun(self, usage: Usage, bounds: TokenBounds, high: int, cap: int) -> None:
        # A bill bounds other calls by the size of what it was for. Of a prompt that was not counted exactly only bounds
        # are known, and ``high`` is one token per byte: taken as the size, it would let a prompt of as many tokens seem
        # as cheap once it is counted. So such a prompt counts as 80 % of what a count would probably have been, by the
        # estimate and the margin of the model's vocabulary. An answer that ended by itself does not show what is billed
        # for its cap, but a long one bounds what a cap of its length costs: else one call with a small cap, billed for
        # its thoughts, would make all others costly for ever, as hardly any is cut. A text visibly longer than the cap
        # shows that the host ignores it, and then only the model's own maximum bounds the next. What was ever added
        # stays covered: a vendor may add tokens to calls with tools, and a call without them must not hide it
        # (test_what_a_vendor_adds_to_some_calls_stays_covered). A change is published and ends compiled plans. So a
        # bill counts if it contradicts the record, or lowers it by a sixteenth:
        # test_no_call_admitted_after_an_overrun_exceeds_its_budget, test_a_large_call_ends_the_overestimate,
        # test_a_long_answer_ends_the_overestimate.
        known = self.leg.overrun or wire.Overrun()
        reserved = known.billed(high, cap)
        self.excess = excess = usage.input - reserved[0], usage.output - reserved[1]
        inputs: wire.Bills = ()
        outputs: wire.Bills = ()
        if excess[0] > 0 or (known.input and self.counted and not self.usage_estimated):
            size = min(self._size(bounds), usage.input)
            inputs = ((size, max(usage.input, size + known.added[0])),)
        if usage.output > cap and self.characters + self.thought_characters > cap * CHARACTERS_PER_TOKEN:
            longest = max(usage.output, self.leg.max_output)
            outputs = (1, longest), (longest, longest)
        elif excess[1] > 0 or (known.output and usage.output and self.finish_reason in ("length", "budget")):
            size = min(cap, usage.output)
            outputs = ((size, max(usage.output, size + known.added[1])),)
        elif known.output and not self.usage_estimated and known.billed(0, 1)[1] < self.leg.max_output:
            size = min(self.characters // CHARACTERS_PER_TOKEN, usage.output)
            billed = max(usage.output, size + known.added[1])
            if size > 0 and billed < known.billed(high, size)[1]:
                outputs = ((size, billed),)
        bills = wire.Overrun(inputs, outputs)
        merged = known.merge(bills).billed(high, cap)
        if max(excess) > 0 or any(16 * new <= 15 * old for new, old in zip(merged, reserved, strict=True)):
            self.overrun = bills

    def _size(self, bounds: TokenBounds) -> int:
        """The size of the prompt that a bill was for; if it was not counted exactly, a low one."""
        length = self.leg.length(bounds)
        measure = self.leg.measure
        percent = 100 if measure.tokenizer or bounds.images else measure.margin.percent
        return length[1] if length[0] == length[1] else max(1, min(length[1], bounds.best * percent // 100) * 4 // 5)

    def doubt(self) -> None:
        """Note that the provider may bill output that never arrived."""
        self.unsure = ()

    def cost_range_nanos(self, bounds: TokenBounds) -> tuple[int, int] | None:
        """Lowest and highest possible cost without final usage, from the bounds of the prompt and the received output.
        A broken-off answer, or hidden reasoning, may have continued at the vendor."""
        unsure = self.unsure
        usage = self.usage
        leg = self.leg
        prices = leg.prices if self.prices_of_day is None else self.prices_of_day
        if unsure is None or not prices:
            return None
        low, high = leg.length(bounds)[:2]
        if self.repair is not None:
            low += self.repair.low
            high += self.repair.high
        maximum = self.cap or leg.max_output
        if not unsure or usage is None:
            return range_nanos(prices, (0, high), (0, maximum))
        if self.finish_reason is not None and not leg.reasoning:
            maximum = min(unsure[1] + unsure[2] + MESSAGE_TOKENS, maximum)
        least = min(max(-(-unsure[1] // LONGEST_TOKEN), unsure[0]), usage.output)
        inputs = min(low, usage.input), max(high, usage.input)
        return range_nanos(prices, inputs, (least, max(maximum, usage.output)))

    def _think(self, thought: Thought) -> None:
        """Add reasoning. It has the same limit as the answer."""
        self.thought_characters += len(thought.text) if thought.item is None else len(json.encode(thought.item))
        if self.thought_characters > MAX_ANSWER_CHARS:
            raise self._too_long()
        self.thoughts = self.thoughts or []
        self.thoughts.append(thought)

    def reasoning(self, since: int = 0) -> wire.Reasoning | None:
        """Reasoning from the item at index ``since`` on. None if guardrails check answers, because reasoning repeats
        what they redact."""
        thoughts = (self.thoughts or ())[since:]
        if not thoughts or self.screen is not None:
            return None
        items = [thought.item for thought in thoughts if thought.item is not None]
        return wire.Reasoning(self.provider, items, "".join(thought.text for thought in thoughts) or None)

    def _read_ending(self, word: str) -> FinishReason:
        """Map a vendor's finish reason to a common one. Raises ``ProviderFault`` if it stands for a fault."""
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
        text = f"{self.provider} sent an answer of more than {MAX_ANSWER_CHARS} characters"
        return ProviderFault(FaultKind.MALFORMED, text)

    def _malformed(self, chunk: object) -> ProviderFault:
        """The fault for an invalid chunk. It leaves out the chunk's text."""
        description = f"a {type(chunk).__name__}"
        if isinstance(chunk, Usage):
            description += f" whose counts are not whole numbers up to {MOST_TOKENS:,}"
        elif isinstance(chunk, Finish) and _is_text(chunk.reason):
            description += f" with a reason of more than {MAX_REASON_CHARS} characters"
        else:
            description += " without valid text" if isinstance(chunk, wire.Chunk) else ", which is no chunk"
        return ProviderFault(FaultKind.MALFORMED, f"{self.provider} gave {description}")


class ToolPieces:
    """A tool call while it arrives."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id = self.name = ""
        self.arguments: list[str] = []


def cached_attempt(answer: wire.CachedAnswer) -> Attempt:
    """A cached answer in the form of an attempt."""
    attempt = Attempt(1, Leg(answer.model, answer.provider), None)
    attempt.text.append(answer.output)
    attempt.characters = len(answer.output)
    attempt.finish_reason = answer.finish_reason
    for place, call in enumerate(answer.tool_calls or ()):
        attempt.pieces = attempt.pieces or {}
        attempt.pieces[place] = pieces = ToolPieces()
        pieces.id = call.id
        pieces.name = call.function.name
        pieces.arguments.append(call.function.arguments)
    return attempt


NO_TEXT: Any = ()  # replaces text that was dropped
_SEVEN_INTS = [int] * 7
_NOTHING = Usage(0, 0)


def _is_text(text: object) -> bool:
    """True for a string without lone surrogates. Chunks come from third-party code, and structs do not check their
    fields."""
    return isinstance(text, str) and (text.isascii() or is_unicode(text))
