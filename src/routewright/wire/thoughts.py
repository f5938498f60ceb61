"""Places of reasoning: our wire has one text and one list of calls, so an item of reasoning carries how many characters
and calls of its turn were before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from .plain import JsonObject

C = TypeVar("C")
AT = "at"
"""The numbers of characters and tool calls before an item. Missing if both are 0."""


def placed(item: JsonObject, chars: int, calls: int) -> JsonObject:
    """The item with its place."""
    return item | {AT: [chars, calls]} if chars or calls else item


def in_places(
    items: Iterable[JsonObject], text: str, calls: Sequence[C]
) -> Iterator[tuple[str, Sequence[C], JsonObject]]:
    """Every item after the text and the calls before it; at last an empty one, after those that are left."""
    # Vendors sign reasoning, and refuse a turn unless its items come back unchanged and in their order. The client
    # sends the places back and may have changed them. So a place only moves forward, and what is left follows at the
    # end: a forged place neither loses a text or a call nor repeats one, which could make a prompt of a few kilobytes
    # a hundred times as long as the one that was estimated and admitted. See
    # test_positions_out_of_order_repeat_nothing and test_a_forged_position_loses_and_repeats_nothing.
    chars = count = 0
    for item in items:
        start = chars
        first = count
        match item.get(AT):
            case [int(text_end), int(call_end)]:
                chars = max(chars, text_end)
                count = max(count, call_end)
        yield text[start:chars], calls[first:count], item
    yield text[chars:], calls[count:], {}
