"""What providers do in a script: good answers and every kind of fault, as lists of plain lines."""

from __future__ import annotations

from typing import Any

from .randomness import Dice

Turn = list[list[Any]]
"""Lines: ``[kind, *values]``, as ``bench.line_of`` reads them."""

FOREVER_S = 100_000.0
FAULTS = (
    "connect local timeout reset rate_limited server auth request model_not_found refused context_overflow malformed"
    " truncated"
).split()
STATUSES = [
    ("request", 400), ("auth", 401), ("auth", 403), ("model_not_found", 404), ("timeout", 408),
    ("context_overflow", 413), ("rate_limited", 429), ("server", 500), ("server", 502), ("server", 503),
    ("server", 529), ("malformed", 200), ("server", 200),
]  # fmt: skip
RETRY_AFTER_S = [None, 0.0, 0.3, 1.0, 2.5, 4.9, 5.0, 5.1, 20.0, 60.0, 86_400.0]
CELLS = (
    "bad_certificate bad_gateway bad_request broken_arguments byte_dribble comments connect_refused content_filter"
    " context_overflow dns_failure duplicate_ids empty_body empty_choices empty_parts endless error_body_stalls"
    " error_event error_in_200 forbidden gzip_bomb handshake_stall interim invalid_json invalid_utf8 long_line"
    " malformed_chunk many_events moderation no_end_marker no_finish_reason not_found null_content odd_finish_reason"
    " overloaded rate_limited rate_limited_date rate_limited_day rate_limited_eternity rate_limited_garbage"
    " rate_limited_negative rate_limited_second rate_limited_zero redirect request_timeout reset_before_headers"
    " reset_mid_body server_error short_body silent slow_first_token slow_loris stall_after_end stall_after_headers"
    " stall_mid_answer too_large trailing_garbage truncated unauthorized unavailable usage_float usage_huge"
    " usage_missing usage_negative wrong_content_type"
).split()
HEAVY = ("endless", "gzip_bomb", "long_line", "many_events")
"""Cells of millions of bytes; they are played against a small limit."""
WORDS = (
    "The sky is blue since short waves scatter more. Write to anna@example.com or call +49 30 901820 about Project"
    " Nightjar, card 4111 1111 1111 1111."
).split()
TYPED = ['{"x": 1, "y": 2}', '{"x": 7}', '{"x": "one"}', "No JSON here.", '{"x": 1, "y"', '{"y": 3}']
"""Answers to ``output_type``: two that fit, and some that do not."""


def words(dice: Dice, most: int = 12) -> str:
    """A text; now and then one that a guardrail finds something in."""
    start = dice.between(0, len(WORDS) - 1)
    return " ".join(WORDS[start : start + dice.between(1, most)])


def answer(dice: Dice, text: str | None = None, *, quick: bool = False) -> Turn:
    """A whole answer: in pieces, with or without usage, at once or slowly."""
    said = (words(dice) if text is None else text).split(" ")
    lines: Turn = [] if quick or dice.chance(0.5) else [["pause", dice.seconds(0.05, 4)]]
    if dice.chance(0.4):
        drip = 0.0 if quick or dice.chance(0.5) else dice.seconds(0.01, 1.5)
        for place, word in enumerate(said):
            lines += [["pause", drip]] * (drip > 0 and place > 0) + [["text", word if place == 0 else f" {word}"]]
    else:
        lines.append(["text", " ".join(said)])
    if dice.chance(0.8):
        lines.append(usage(dice))
    return [*lines, ["finish", dice.of(["stop"] * 8 + ["length"])]]


def usage(dice: Dice) -> list[Any]:
    """Tokens as a provider counts them; now and then of an odd kind."""
    used, made = dice.between(1, 900), dice.between(1, 300)
    if dice.chance(0.2):
        return ["usage", used, made, dice.between(0, used), dice.between(0, made), 0]
    return dice.of([["usage", used, made]] * 8 + [["usage", 0, 0], ["usage", -3, made], ["usage", used, 10**9]])


def tool_call(dice: Dice) -> Turn:
    """An answer that wants a tool called, in pieces."""
    arguments = dice.of(['{"at": "home"}', "{}", '{"at": '])
    cut = dice.between(0, len(arguments))
    first: Turn = [["text", "Let me see."]] if dice.chance(0.3) else []
    pieces: Turn = [["tool", 0, arguments[:cut], "call_1", "look"], ["tool", 0, arguments[cut:], "", ""]]
    second: Turn = [["tool", 1, "{}", "call_2", "look"]] if dice.chance(0.3) else []
    return [*first, *pieces, *second, usage(dice), ["finish", "tool_calls"]]


def fault(dice: Dice, kind: str | None = None, *, before: bool | None = None) -> Turn:
    """One way to fail: by a status, before or during an answer, with or without a Retry-After."""
    if kind is None and dice.chance(0.4):
        kind, status = dice.of(STATUSES)
    else:
        kind, status = kind or dice.of(FAULTS), None
    told: dict[str, Any] = {"status": status} if status else {}
    if kind == "rate_limited" or dice.chance(0.1):
        told["retry_after"] = dice.of(RETRY_AFTER_S)
    if dice.chance(0.15):
        told["answered"] = True
    early = dice.chance(0.6) if before is None else before
    said: Turn = [] if early else [["text", words(dice, 4)], *([usage(dice)] if dice.chance(0.3) else [])]
    waits: Turn = [["pause", dice.seconds(0.01, 3)]] if dice.chance(0.4) else []
    return [*waits, *said, ["fault", kind, told]]


def stall(dice: Dice) -> Turn:
    """Silence: before the first piece, during an answer, or just short of the limit."""
    drip: Turn = [["pause", dice.seconds(1, 9)], ["text", " so"]] * dice.between(3, 12)
    made: list[Turn] = [
        [["pause", FOREVER_S]],
        [["text", words(dice, 4)], ["pause", FOREVER_S]],
        [["pause", dice.seconds(8, 13)], *answer(dice)],
        [["text", words(dice, 4)], ["pause", dice.seconds(7, 13)], *answer(dice)],
        [*drip, ["finish", "stop"]],
        [["tool", 0, "{", "call_1", "look"], ["pause", FOREVER_S]],
    ]
    return dice.of(made)


def oddity(dice: Dice) -> Turn:
    """An answer that ends as it should not, or says nothing."""
    text = ["text", words(dice, 6)]
    return dice.of(
        [
            [text],
            [],
            [text, usage(dice), ["finish", "content_filter"]],
            [["finish", "stop"]],
            [text, ["finish", dice.of(["abort", "error", "timeout", "cancelled", "tired"])]],
            [usage(dice), ["finish", "content_filter"]],
            [["text", ""], usage(dice), ["finish", "stop"]],
            [text, ["finish", "stop"], ["text", " and more"]],
            [text, ["raise"]],
            [["raise"]],
        ]
    )


def anything(dice: Dice, good: float = 0.4) -> Turn:
    """A turn of any kind."""
    if dice.chance(good):
        return answer(dice)
    made = dice.share()
    return fault(dice) if made < 0.6 else stall(dice) if made < 0.8 else oddity(dice)
