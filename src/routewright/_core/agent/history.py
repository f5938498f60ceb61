"""Keeps the history of a run inside a context window.

Cuts are large and rare, so that the prompt keeps its beginning for many steps and vendors' prompt caches stay warm.
The oldest goes first: the results of tools, then whole rounds. The task and what stands before it stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from routewright._core.tokens.estimate import MESSAGE_TOKENS, estimate_text
from routewright.wire import Message

FULL = 0.8
"""A history that fills more of the window is cut ..."""
KEPT = 0.5
"""... to this part of it."""
NEWEST = 4
"""Messages at the end that are never cut."""
CUT = "[left out: {} characters of an earlier result]"


def tokens_of(message: Message) -> int:
    """About how many tokens a message takes."""
    text = message.content if isinstance(message.content, str) else ""
    calls = "".join(call.function.arguments for call in message.tool_calls or ())
    return MESSAGE_TOKENS + estimate_text(text + calls)


def fitted(messages: Sequence[Message], window: int, prefix: int) -> list[Message]:
    """The messages that fit a window of so many tokens; the first ``prefix`` stay. The same list if all do."""
    sizes = [tokens_of(message) for message in messages]
    total, most = sum(sizes), int(window * KEPT)
    if total <= window * FULL:
        return list(messages)
    kept = list(messages)
    for place in range(prefix, max(prefix, len(kept) - NEWEST)):
        message = kept[place]
        if total <= most:
            return kept
        if message.role == "tool" and isinstance(message.content, str):
            kept[place] = replace(message, content=CUT.format(len(message.content)))
            total -= sizes[place] - tokens_of(kept[place])
    while total > most:
        end = prefix + 1
        while end < len(kept) and kept[end].role == "tool":  # an answer goes with its results
            end += 1
        if end > len(kept) - NEWEST:
            break
        total -= sum(map(tokens_of, kept[prefix:end]))
        del kept[prefix:end]
    return kept
