"""The length of a prompt in tokens: bounds and an estimate without counting, and the length for a model. Exact counts
come from a ``TokenCounter``. All figures cover the whole prompt: texts, chat format, tool declarations and images."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple
from zlib import adler32

import msgspec
import numpy as np
from msgspec.structs import replace

from routewright.protocols import TokenCounter
from routewright.wire import Message, RouteRequest, TextPart, TokenBounds

from .images import UNBOUNDED, Rule, estimate_of, filling_of, images_of, rule_of, tokens_of

Vocabulary = Literal["o200k_base", "cl100k_base"]

VOCABULARIES: tuple[Vocabulary, ...] = ("o200k_base", "cl100k_base")  # those a counter supports


class Margin(NamedTuple):
    """Tokens another vocabulary may need, relative to the larger of the two counts."""

    percent: int
    """The most tokens, in per cent of the count."""
    quarters: int
    """Quarters of a token added for each byte that some vocabularies do not merge (``TokenBounds.single``)."""
    window: int
    """Tokens of usual prose and code, in per cent of the count. Used for windows: an overflow costs nothing and falls
    back to a larger window, while ``percent`` would leave much of every window unused."""


# Each is at least 3 % above the worst text in the tests: 1.00 for Qwen and Llama, 1.22 for Mistral's later vocabulary
# and 1.99 for its first, 1.29 for DeepSeek, 1.34 for Gemini, 1.52 for Claude up to 4.6, 2.74 from 4.7 on. The first
# marker found in a model's id applies.
MARGINS: tuple[tuple[str, Margin], ...] = (
    *((f"claude-{name}", Margin(160, 1, 134)) for name in ("3", "haiku-4", "sonnet-4", "opus-4-5", "opus-4-6")),
    ("claude", Margin(290, 3, 180)),
    ("qwen", Margin(105, 4, 110)),
    ("llama", Margin(105, 0, 105)),
    ("deepseek", Margin(135, 4, 115)),
    ("gemini", Margin(140, 4, 120)),
    ("gemma", Margin(140, 4, 120)),
    *((f"{name}stral", Margin(206, 4, 134)) for name in ("mi", "mini", "code", "pix", "magi", "dev")),
)
ANY_MARGIN = Margin(290, 4, 134)  # for unmeasured vocabularies: the worst of all


class Measure(NamedTuple):
    """A model's way of counting its input."""

    tokenizer: Vocabulary | None
    margin: Margin
    images: tuple[Rule, ...]


Length = tuple[int, int, int]
"""The input's length for a model: the fewest tokens, the most, and those to reserve in its window. A plain tuple for
speed."""

# Tokens of the chat format: upper values of the published counting rules of the o200k and cl100k models.
PRIMING_TOKENS = 3
MESSAGE_TOKENS = 4
NAME_TOKENS = 1
TOOL_CALL_TOKENS = 8
TOOL_TOKENS = 12  # per declaration, in addition to its JSON
SHOWN_TOKENS = 24
"""Per tool result with images, which are sent in a message of their own, in addition to the id of the call."""

LONGEST_TOKEN = 128  # bytes of the longest token in both vocabularies, a run of spaces
LONG_PROMPT = 8_192
"""Bytes from which the lower bound also counts words; shorter prompts fit nearly everywhere by their upper bound."""

WHOLE_CHARACTERS = 1 << 18  # of a longer text only a sample of this length is scanned, to keep the event loop free
SLICES = 64
UNBROKEN_CHARACTERS = 1 << 17
"""A text with a single pre-token of twice this many characters is not counted: it would take seconds per megabyte."""
ENCODED_CHARACTERS = 1 << 19
"""A longer text that is not ASCII is not encoded: its bytes are bounded by ``MOST_BYTES`` per character."""
MOST_BYTES = 4
LONG_BYTES = 1 << 20
"""Counting a longer prompt takes seconds, so one that no model can take is recognised without."""
SAMPLE_CHARACTERS = 512
"""Length of each of the ``SLICES`` that are counted instead."""
SCATTER = 2_654_435_761  # 2**32 by the golden ratio: its multiples spread evenly
SURE = 2
"""Multiple of the window that a sample must indicate, since it is only a sample, counted in one vocabulary."""

# The estimate is a sum of weights per byte. One pass removes the frequent lower-case ASCII letters and most UTF-8
# continuation bytes, and replaces each other byte by its weight. The weights were fitted by least squares to some 2,600
# texts in 37 languages and 25 formats, none of which is in the documentation's table.
LETTER_WEIGHT = 156  # thousandths of an o200k token
UNIT = 25  # of ``WEIGHTS``, in thousandths of a token
RULE, DIGIT = 24, 49
WEIGHTS: Mapping[int, Iterable[int]] = {  # bytes by weight
    8: b'"#/;_`{}',  # mostly share a token with a neighbour
    10: b" ABCDEFGHIJKLMNOPQRSTUVWXYZ\xb8\xb9",  # the last two are second bytes of Thai
    23: b"bfjkqvwxz",  # rarer letters, frequent in languages with more tokens per word than English
    RULE: b"-=",
    26: b"\t\n",
    48: b"$:?",
    DIGIT: b"0123456789",
    11: range(0xD0, 0xD4),  # Cyrillic
    13: (0xCE, 0xCF, *range(0xD4, 0xE2)),  # Greek, Hebrew, Arabic, Indic, Thai, Georgian
    27: range(0xEA, 0xEE),  # Hangul
    29: (0xE3,),  # kana
    34: range(0xE4, 0xEA),  # Han
    43: (0xEE, 0xEF),  # full-width punctuation
    46: range(0xC3, 0xCE),  # accented Latin
    47: (0xC2, 0xE2),  # symbols and punctuation
    80: range(0xF0, 0xF8),  # emoji
}
REST_WEIGHT = 25  # of other ASCII punctuation, in units
# Corrections for runs of characters, in thousandths of a token.
DIGITS, DIGITS_WEIGHT = bytes([DIGIT]) * 2, -1_175
RULES, RULES_WEIGHT = bytes([RULE]) * 4, -2_375
SPACES, SPACES_WEIGHT = b" " * 8, -1_825


def _table(kinds: Mapping[bytes, Iterable[int]], rest: bytes) -> bytes:
    names = {byte: kind for kind, members in kinds.items() for byte in members}
    return b"".join(names.get(byte, rest) for byte in range(256))


_SINGLE = b"0123456789\t\n\r" + bytes(range(0x80, 0x100))
_LETTERS = b"acdeghilmnoprstuy\r" + bytes({*range(0x80, 0xC0)} - {0xB8, 0xB9})
_WEIGHTS = _table({bytes([weight]): members for weight, members in WEIGHTS.items()}, bytes([REST_WEIGHT]))
_SUMMED = 65_520 // max(_WEIGHTS)  # the sum of this many weights is below the modulus of Adler-32
# C2, E1, E2 and E3 also begin spaces, of which several can be in one token.
_WORD_LEADS = {*range(0xC3, 0xF8)} - {0xE1, 0xE2, 0xE3}
_WORDS = _table({b" ": b" \t\n\r\v\f", b"w": [*range(48, 58), *range(65, 91), *range(97, 123), *_WORD_LEADS]}, b".")


# Pre-tokens of unlimited length: letters and what may join them; symbols; spaces. Digits are split in threes.
_PUNCTUATION = r"!-/:-@\[-`{-~\u2000-\u206f\u3000-\u303f\uff00-\uff65"
_LONG_PIECE = re.compile(
    rf"[^\s\d{_PUNCTUATION}]{{{UNBROKEN_CHARACTERS // 2},}}|[^\w\s]{{{UNBROKEN_CHARACTERS // 2},}}"
    rf"|\s{{{UNBROKEN_CHARACTERS // 2},}}"
)


def prompt_texts(request: RouteRequest) -> list[str]:
    """All texts that count: contents, names, tool calls; tool declarations and the response schema as JSON."""
    texts: list[str] = []
    for message in request.messages:
        if isinstance(message.content, str):
            texts.append(message.content)
        elif message.content is not None:
            texts += [part.text for part in message.content if isinstance(part, TextPart)]
        if message.name is not None:
            texts.append(message.name)
        if message.tool_calls is not None:
            texts += [text for call in message.tool_calls for text in (call.function.name, call.function.arguments)]
    if request.tools is not None:
        texts += [_json(tool.function_spec) for tool in request.tools]
    if request.params is not None and request.params.response_format is not None:
        texts.append(_json(request.params.response_format))
    return texts


def count_overhead(request: RouteRequest) -> int:
    """Tokens of the chat format and tool declarations, beyond ``prompt_texts`` and images."""
    tokens = PRIMING_TOKENS + MESSAGE_TOKENS * len(request.messages)
    for message in request.messages:
        if message.name is not None:
            tokens += NAME_TOKENS
        if message.tool_calls is not None:
            tokens += TOOL_CALL_TOKENS * len(message.tool_calls)
        if message.role == "tool" and type(message.content) is list and images_of((message,)):
            tokens += SHOWN_TOKENS + len(_utf8(message.tool_call_id or ""))
    if request.tools is not None:
        tokens += TOOL_TOKENS * len(request.tools)
    return tokens


def bounds_of(request: RouteRequest) -> TokenBounds:
    """Bound the prompt's length without counting. Takes microseconds for short prompts, at most 1 to 2 ms.

    ``high``: a text has at most as many tokens as UTF-8 bytes, since no token is shorter than a byte. This holds for
    all vocabularies that fall back to bytes and do not rewrite the text. ``low``: no token is longer than
    ``LONGEST_TOKEN`` or begins two words.
    """
    # A count of tokens takes milliseconds, needs the model's own vocabulary and has to leave the event loop, for a
    # number that rarely matters: most prompts fit every window and budget by far. So decisions take bounds first and
    # ask for a count where it can change the outcome (contract 3). Bounds that are nearly always right would not do: a
    # budget that they let through by mistake is broken without a trace. These hold for every text, by facts about the
    # vocabularies and not by statistics: ``test_bounds_hold_for_any_text_in_both_vocabularies``,
    # ``test_the_lower_bound_rests_on_facts_of_the_tables``. The estimate may err, since it only scores.
    messages = request.messages
    texts: list[str] = []
    has_parts = False
    if request.tools is None and request.params is None:
        for message in messages:
            content = message.content
            if type(content) is not str or message.name is not None or message.tool_calls is not None:
                break
            if message.reasoning is not None:
                break
            texts.append(content)
    if len(texts) == len(messages):  # only plain text, the common case
        around = PRIMING_TOKENS + MESSAGE_TOKENS * len(texts)
    else:
        texts = prompt_texts(request)
        around = count_overhead(request)
        has_parts = any(type(message.content) is list or message.reasoning is not None for message in messages)
    text = texts[0] if len(texts) == 1 else "".join(texts)
    bounds = bounds_of_text(text, around) if len(text) <= WHOLE_CHARACTERS else _sampled(texts, len(text), around)
    if not has_parts:
        return bounds
    images = images_of(messages)
    return replace(bounds, estimate=bounds.estimate + estimate_of(images), images=images)


def bounds_of_text(text: str, around: int) -> TokenBounds:
    """``bounds_of`` for a plain text of up to ``WHOLE_CHARACTERS``. ``around``: tokens of the chat format."""
    data = text.encode("utf-8", "surrogatepass")
    high = len(data)
    low = -(-high // LONGEST_TOKEN)
    if high >= LONG_PROMPT:
        low = max(low, data.translate(_WORDS).count(b" w"))
    guess = estimate(len(text), data)
    return TokenBounds(low, high + around, (guess if guess > low else low) + around)


def estimate_text(text: str) -> int:
    """Estimate the o200k tokens of a text from its characters; within 15 % on most prose, code and JSON."""
    return estimate(len(text), _utf8(text))


def least_tokens(
    request: RouteRequest, bounds: TokenBounds, window: int, count: Callable[[RouteRequest], TokenBounds]
) -> int:
    """The fewest tokens of a prompt, as closely as needed to see that they exceed ``window``. ``count`` counts o200k
    tokens of a sample of a prompt above ``LONG_BYTES``, since no estimate from characters is good enough: 100 points of
    a table of contents are two tokens. Takes milliseconds."""
    if bounds.high <= LONG_BYTES or not bounds.low <= window < bounds.estimate:
        return bounds.low
    text = "".join(prompt_texts(request))
    least = max(bounds.low, _runs(text))
    if least > window:
        return least
    stratum = len(text) // SLICES
    # evenly spaced places could all meet the same part of a text that repeats itself
    offsets = (place * SCATTER % (stratum - SAMPLE_CHARACTERS) for place in range(SLICES))
    starts = (place * stratum + offset for place, offset in enumerate(offsets))
    sample = "\n".join(text[start : start + SAMPLE_CHARACTERS] for start in starts)
    sampled = RouteRequest(messages=[Message("user", sample)])
    tokens = count(sampled).o200k or 0
    tokens -= count_overhead(sampled) + 2 * SLICES  # a cut may split a token, and the line break is one
    return max(least, tokens * len(text) // len(sample) // SURE)


def _runs(text: str) -> int:
    """Runs of digits and of anything else, at least: no token of a counted vocabulary joins two of them."""
    is_digit = (np.frombuffer(_utf8(text), np.uint8) - ord("0")).astype(np.uint8) < 10
    return int(np.count_nonzero(is_digit[1:] != is_digit[:-1]))


def text_range(text: str) -> tuple[int, int]:
    """The fewest and most tokens of a text in any vocabulary that falls back to bytes."""
    size = len(_utf8(text))
    return -(-size // LONGEST_TOKEN), size


def count_request(
    counter: TokenCounter, request: RouteRequest, bounds: TokenBounds, encodings: Sequence[Vocabulary] = VOCABULARIES
) -> TokenBounds:
    """Count the text exactly and narrow its bounds. Long prompts take milliseconds: call it off the event loop.

    Sets ``o200k`` and ``cl100k``. With both, ``high`` drops to the most that other vocabularies need. ``estimate`` does
    not change, so that counting never changes a score. A text that would take seconds to count keeps its bounds. Raises
    ``ValueError`` if the counter returns anything but a count.
    """
    texts = prompt_texts(request)
    around = count_overhead(request)
    if any(map(_is_unbroken, texts)):
        return replace(bounds, counted=True)
    counts: dict[Vocabulary, int] = {}
    for encoding in encodings:
        tokens = around
        for text in texts:
            count: object = counter.count(text, encoding)
            if not isinstance(count, int) or count < 0:
                description = f"{counter!r} counted {count!r} tokens in {encoding}"
                raise ValueError(f"{description}; TokenCounter.count must return a whole number, 0 or more")
            tokens += int(count)
        counts[encoding] = min(max(tokens, bounds.low), bounds.high)  # a wrong counter must not break a budget
    counted = replace(bounds, o200k=counts.get("o200k_base"), cl100k=counts.get("cl100k_base"), single=0, counted=True)
    if counted.o200k is None or counted.cl100k is None:
        return counted
    data = _utf8("".join(texts))
    # bytes that a vocabulary may not merge: digits, tabs, line breaks, non-ASCII, repetitions
    packed = np.frombuffer(data.translate(None, _SINGLE), dtype=np.uint8)
    single = len(data) - len(packed) + int(np.count_nonzero(packed[1:] == packed[:-1]))
    counted = replace(counted, high=min(bounds.high, around + len(data)), single=single)
    return replace(counted, high=length(replace(counted, images=()), Measure(None, ANY_MARGIN, ()))[1])


def lengthen(bounds: TokenBounds, text_bounds: TokenBounds) -> TokenBounds:
    """The bounds after adding a text. Exact counts become upper bounds."""
    return replace(
        bounds,
        low=bounds.low + text_bounds.low,
        high=bounds.high + text_bounds.high,
        estimate=bounds.estimate + text_bounds.estimate,
        o200k=None if bounds.o200k is None else bounds.o200k + text_bounds.high,
        cl100k=None if bounds.cl100k is None else bounds.cl100k + text_bounds.high,
    )


@lru_cache(maxsize=4_096)
def measure_of(model: str, tokenizer: Vocabulary | None) -> Measure:
    """A model's measure, from its id and its vocabulary in the catalogue."""
    name = model.lower()
    margin = next((margin for marker, margin in MARGINS if marker in name), ANY_MARGIN)
    return Measure(tokenizer, margin, rule_of(name))


def length(bounds: TokenBounds, measure: Measure) -> Length:
    """The input's length for a model: its text, exact or bounded, plus its images."""
    # Two vocabularies can be counted, and models have dozens. Taking the count of the nearest one as it is would break
    # budgets by half again and more. Other models get the larger of both counts times a margin, measured for each
    # vendor on its worst text, and a surcharge for bytes that some vocabularies do not merge; never more than the
    # bytes, which bound every vocabulary (``test_each_vendor_s_bound_holds_in_its_real_vocabulary``). A window is
    # checked with the smaller margin of usual text: a prompt that is too long after all costs nothing and falls back.
    o200k = bounds.o200k
    cl100k = bounds.cl100k
    count = None
    if measure.tokenizer is not None:
        count = cl100k if measure.tokenizer == "cl100k_base" else o200k
    if count is not None:
        text = count, count, count
    elif o200k is None or cl100k is None:
        text = bounds.low, bounds.high, bounds.high
    else:
        larger = o200k if o200k > cl100k else cl100k
        high = -(-measure.margin.percent * larger // 100) + -(-measure.margin.quarters * bounds.single // 4)
        high = high if high < bounds.high else bounds.high
        filling = -(-measure.margin.window * larger // 100)
        text = bounds.low, high, filling if filling < high else high
    if not bounds.images:
        return text
    low, high = tokens_of(bounds.images, measure.images)
    return text[0] + low, text[1] + high, text[2] + filling_of(bounds.images, measure.images)


def within_window(input_length: Length, window: int | None) -> Length:
    """The length with unbounded attachments limited by the model's declared window."""
    if window is None or input_length[1] < UNBOUNDED:
        return input_length
    return input_length[0], max(window, input_length[2]), input_length[2]


def _is_unbroken(text: str) -> bool:
    """True if a pre-token of the text is too long to count. Scans little of the text."""
    for at in range(0, len(text) - UNBROKEN_CHARACTERS + 1, UNBROKEN_CHARACTERS):
        part = text[at : at + UNBROKEN_CHARACTERS]
        if len(part.split(None, 1)) < 2 and _LONG_PIECE.search(part):
            return True
    return False


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _utf8(text: str) -> bytes:
    # a lone surrogate becomes three bytes, like the U+FFFD that tokenisers replace it by
    return text.encode("utf-8", "surrogatepass")


def _sampled(texts: Sequence[str], characters: int, around: int) -> TokenBounds:
    """``bounds_of_text`` for a text too long to scan on the event loop."""
    if all(map(str.isascii, texts)):
        high = characters
    elif characters > ENCODED_CHARACTERS:
        high = characters * MOST_BYTES
    else:
        high = sum(len(_utf8(text)) for text in texts)
    # evenly spaced slices, joined by a character that begins no word
    slices: list[str] = []
    start = at = 0
    for text in texts:
        while at < start + len(text):
            slices.append(text[at - start : at - start + WHOLE_CHARACTERS // SLICES])
            at += characters // SLICES
        start += len(text)
    sample = ".".join(slices)
    data = _utf8(sample)
    low = max(-(-characters // LONGEST_TOKEN), data.translate(_WORDS).count(b" w"))
    guess = min(max(estimate(len(sample), data) * characters // len(sample), low), high)
    return TokenBounds(low, high + around, guess + around)


def estimate(characters: int, data: bytes) -> int:
    """``estimate_text`` of a text with this many characters and UTF-8 ``data``."""
    marks = data.translate(_WEIGHTS, _LETTERS)
    # started at 0, the lower half of Adler-32 is the sum of the bytes, many times faster than ``sum``
    units = adler32(marks, 0) & 0xFFFF if len(marks) <= _SUMMED else _sum(marks)
    total = LETTER_WEIGHT * (characters - len(marks)) + UNIT * units
    total += DIGITS_WEIGHT * marks.count(DIGITS) + RULES_WEIGHT * marks.count(RULES)
    total += SPACES_WEIGHT * data.count(SPACES)  # in ``data``: ``marks`` lacks the words between spaces
    tokens = -(-total // 1_000)
    return tokens if tokens < len(data) else len(data)


def _sum(weights: bytes) -> int:
    return sum([adler32(weights[at : at + _SUMMED], 0) & 0xFFFF for at in range(0, len(weights), _SUMMED)])
