"""What a person is shown of the words of a call, where they were kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from routewright.wire import Content, ImagePart, Message, Part, ToolCall

from .blocks import Block, Line

INDENT = "  "
"""Stands before each line, so that no text is taken for a part of the page."""


def content_page(content: Content) -> Iterator[Block]:
    """Prompt and answer, as the redactor left them."""
    for message in content.messages or ():
        yield Line()
        yield Line(message.role if message.name is None else f"{message.role} {message.name}", "title")
        yield from _lines(_text(message))
        yield from _calls(message.tool_calls or ())
    if content.output is not None or content.tool_calls:
        yield Line()
        yield Line("answer", "title")
        yield from _lines(content.output or "")
        yield from _calls(content.tool_calls or ())


def _text(message: Message) -> str:
    said = message.content
    return said if isinstance(said, str) else "\n".join(map(_part, said or ()))


def _part(part: Part) -> str:
    return "[an image]" if isinstance(part, ImagePart) else part.text


def _calls(calls: Iterable[ToolCall]) -> Iterator[Line]:
    for call in calls:
        yield from _lines(f"{call.function.name}({call.function.arguments})")


def _lines(text: str) -> Iterator[Line]:
    yield from (Line(f"{INDENT}{line}") for line in text.splitlines())
