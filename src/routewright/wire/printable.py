"""Text of strangers (providers, models, tool servers) without the characters that a terminal or a log obeys."""

from __future__ import annotations

DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that change the direction of writing: they can make one text look like another."""
_UNSEEN = dict.fromkeys([*range(9), *range(11, 32), *range(0x7F, 0xA0), *DIRECTIONS]) | {0x2028: "\n", 0x2029: "\n"}
"""Unicode's ends of lines and paragraphs become line breaks."""


def printable(text: str) -> str:
    """Remove control characters but newlines and tabs: on a terminal they could move, hide or forge text."""
    return text.translate(_UNSEEN)


def one_line(text: str) -> str:
    """The same on one line: a text that could end its line could forge the next one."""
    return text if text.isprintable() else printable(" ".join(text.splitlines()).replace("\t", " "))
