"""Do chunks hold what they should? Nobody else checks: the structs take any value, and what they hold goes far."""

from __future__ import annotations

from routewright._core.money import MOST_TOKENS
from routewright.wire import Chunk, Finish, ToolDelta, Usage

_COUNTS = {int}
MAX_REASON_CHARS = 200
"""Of a finish reason, which stands in every trace."""


def are_counts(usage: Usage) -> bool:
    """Whether a usage holds whole numbers that a call can come to."""
    counts = (usage.input, usage.output, usage.cached, usage.reasoning, usage.written)
    return {*map(type, counts)} == _COUNTS and max(counts) <= MOST_TOKENS


def is_reason(reason: object) -> bool:
    """Whether it is a short text."""
    return is_text(reason) and len(str(reason)) <= MAX_REASON_CHARS


def is_piece(piece: ToolDelta) -> bool:
    """Whether a piece of a tool call holds what it should."""
    return type(piece.index) is int and all(map(is_text, (piece.arguments, piece.id, piece.name)))


def is_text(text: object) -> bool:
    """Whether it is a text that can be written as UTF-8: half of a surrogate pair cannot."""
    return isinstance(text, str) and (text.isascii() or _encodes(text))


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def named(chunk: object) -> str:
    """What an unsound one is, without a word of it."""
    name = type(chunk).__name__
    if isinstance(chunk, Usage):
        return f"a {name} whose counts are not whole numbers up to {MOST_TOKENS:,}"
    if isinstance(chunk, Finish) and is_text(chunk.reason):
        return f"a {name} whose reason is over {MAX_REASON_CHARS} characters"
    return f"a {name} that holds no text" if isinstance(chunk, Chunk) else f"a {name}, which is no chunk"
