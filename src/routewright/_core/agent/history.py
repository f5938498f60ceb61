"""Keeps the history of a run inside a context window. Cuts are large and rare, so that the prompt keeps its beginning
for many steps and vendors' prompt caches stay warm. The oldest goes first: the results of tools, then whole rounds,
those of earlier runs of a conversation included."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from routewright._core.tokens.estimate import MESSAGE_TOKENS, estimate_text
from routewright.wire import Message

FULL = 0.8  # a history that fills more of the window is cut ...
KEPT = 0.5  # ... to this part of it
NEWEST = 4  # messages at the end that are never cut
CUT = "[left out: {} characters of an earlier result]"


def tokens_of(message: Message) -> int:
    """About how many tokens a message takes."""
    text = message.content if isinstance(message.content, str) else ""
    calls = "".join(call.function.arguments for call in message.tool_calls or ())
    return MESSAGE_TOKENS + estimate_text(text + calls)


def fitted(messages: Sequence[Message], window: int) -> list[Message]:
    """A copy cut to a window. System messages, the user's last message and the newest messages stay."""
    kept, sizes = list(messages), [tokens_of(message) for message in messages]
    total, most = sum(sizes), int(window * KEPT)
    if total <= window * FULL:
        return kept
    for place in range(len(kept) - NEWEST):
        message = kept[place]
        if total > most and message.role == "tool" and isinstance(message.content, str):
            kept[place] = replace(message, content=CUT.format(len(message.content)))
            total -= sizes[place] - tokens_of(kept[place])
    place = 0
    task = max((place for place, message in enumerate(kept) if message.role == "user"), default=-1)
    while total > most and place < len(kept) - NEWEST:
        end = place + 1
        while end < len(kept) and kept[end].role == "tool":  # an answer goes with its results
            end += 1
        if kept[place].role == "system" or place == task:
            place = end
            continue
        if end > len(kept) - NEWEST:
            break
        total -= sum(map(tokens_of, kept[place:end]))
        del kept[place:end]
        task -= end - place if place < task else 0
    return kept
