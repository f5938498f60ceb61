"""The texts of a request or an answer that guardrails check, and how what is left of them is written back. JSON is
checked as what it says, not as it is written: no escape hides anything, and what is left is still JSON. Images are not
checked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

from msgspec.structs import replace

from routewright._core.structured_output import unfenced
from routewright.wire import FilePart, FunctionCall, Message, Redact, Redaction, RouteRequest, TextPart, Verdict

_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|-?\d[\d.eE+-]*+', re.DOTALL)
_ESCAPES = re.compile(r"(?:\\(?:u[0-9A-Fa-f]{4}|[\"\\/bfnrt]))+")
_BETWEEN = "\n"


def redacted(text: str, parts: Sequence[Redaction]) -> str:
    """A text without these parts, which stand in its order."""
    out, at = [], 0
    for part in parts:
        out += [text[at : part.start], part.replacement]
        at = part.end
    return "".join([*out, text[at:]])


def parts_of(verdict: Verdict, length: int) -> list[Redaction]:
    """The parts of a text to redact: in order, within its length, overlapping ones joined."""
    parts: list[Redaction] = []
    for part in sorted(verdict.parts, key=lambda part: part.start) if isinstance(verdict, Redact) else ():
        start, end = max(part.start, 0), min(part.end, length)
        if parts and start < parts[-1].end:
            before = parts[-1]
            parts[-1] = Redaction(before.start, max(end, before.end), before.rule, before.replacement)
        elif start < end:
            parts.append(Redaction(start, end, part.rule, part.replacement))
    return parts


class Passage(NamedTuple):
    """One text to check, perhaps of several parts, each on lines of its own."""

    parts: tuple[str, ...]
    written: tuple[str | None, ...]
    """How each part was written; None: it was changed."""
    between: tuple[str, ...]
    """What is written before, between and after the parts."""
    write: Callable[[str], str]
    """Writes a part that was changed."""

    @property
    def text(self) -> str:
        """The text to check."""
        return _BETWEEN.join(self.parts)

    def without(self, redactions: Sequence[Redaction]) -> Passage:
        """The passage with these parts of its text redacted."""
        made, written, at = [], [], 0
        for part, how in zip(self.parts, self.written, strict=True):
            end = at + len(part)
            # the replacement goes into the part in which a redaction begins
            left = redacted(
                part,
                [
                    Redaction(
                        max(each.start, at) - at,
                        min(each.end, end) - at,
                        each.rule,
                        each.replacement if each.start >= at else "",
                    )
                    for each in redactions
                    if each.start < end and each.end > at
                ],
            )
            made.append(left)
            written.append(how if left == part else None)
            at = end + len(_BETWEEN)
        return self._replace(parts=tuple(made), written=tuple(written))

    def __str__(self) -> str:
        """The text as it is written."""
        said = [self.write(part) if how is None else how for part, how in zip(self.parts, self.written, strict=True)]
        return "".join(chain.from_iterable(zip_longest(self.between, said, fillvalue="")))


def plain_passage(text: str) -> Passage:
    """A text that is checked as it is."""
    return Passage((text,), (text,), ("", ""), str)


def json_passage(text: str) -> Passage:
    """The keys, strings and numbers of a JSON text, fenced or not. Other text is plain, escapes resolved."""
    try:
        json.loads(unfenced(text), parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return Passage((_ESCAPES.sub(_unescaped, text),), (text,), ("", ""), str)
    tokens = [*_TOKEN.finditer(text)]
    ends = [0, *(token.end() for token in tokens)]
    starts = [*(token.start() for token in tokens), len(text)]
    between = tuple(text[end:start] for end, start in zip(ends, starts, strict=True))
    parts = tuple(json.loads(token[0]) if token[0][0] == '"' else token[0] for token in tokens)
    return Passage(parts, tuple(token[0] for token in tokens), between, json.dumps)


def _unescaped(escapes: re.Match[str]) -> str:
    """The characters that escapes stand for; a surrogate pair becomes one."""
    said: str = json.loads(f'"{escapes[0]}"')
    return said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def passages_of(request: RouteRequest) -> list[Passage]:
    """The texts of all messages, whatever their roles, in order: contents, text parts, arguments of tool calls."""
    found: list[Passage] = []
    for message in request.messages:
        content = message.content
        if isinstance(content, str):
            is_result = message.role == "tool" and content.lstrip()[:1] in ("{", "[")
            found.append(json_passage(content) if is_result else plain_passage(content))
        elif content is not None:
            found += [plain_passage(part.text) for part in content if isinstance(part, TextPart)]
            found += [plain_passage(part.file.filename or "") for part in content if isinstance(part, FilePart)]
        found += [json_passage(call.function.arguments) for call in message.tool_calls or ()]
    return found


def with_passages(request: RouteRequest, passages: Iterable[Passage]) -> RouteRequest:
    """The request with what is left of its ``passages_of``."""
    texts = map(str, passages)
    messages: list[Message] = []
    for message in request.messages:
        content, calls = message.content, message.tool_calls
        if isinstance(content, str):
            content = next(texts)
        elif content is not None:
            content = [replace(part, text=next(texts)) if isinstance(part, TextPart) else part for part in content]
            content = [
                replace(part, file=replace(part.file, filename=next(texts) or None))
                if isinstance(part, FilePart)
                else part
                for part in content
            ]
        if calls is not None:
            calls = [replace(call, function=FunctionCall(call.function.name, next(texts))) for call in calls]
        messages.append(replace(message, content=content, tool_calls=calls))
    return replace(request, messages=messages)
