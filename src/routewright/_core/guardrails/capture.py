"""Captured content of a call: its texts after a redactor. A text is replaced by a note if the redactor raises or
returns anything but text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from routewright._core.request.json_scan import is_unicode
from routewright.protocols import Redactor
from routewright.wire import AudioPart, Content, FilePart, FunctionCall, ImagePart, Message, Redact, TextPart, ToolCall

from .detectors import PATTERNS, Found
from .screen import STAGES, Ruled
from .texts import redacted

WITHHELD = "[withheld: the redactor failed]"
_NAMED = {ImagePart: "[image]", AudioPart: "[recording]", FilePart: "[file]"}

_patterns = Ruled("redactor", [*PATTERNS.values()], "redact", STAGES)


def without_patterns(text: str, rest: Callable[[], object] | None = None) -> str:
    """The default redactor: removes e-mail addresses, telephone and card numbers, IBANs and API keys.

    ``rest`` is called between two pieces of a long text."""
    findings = list[Found]()
    for number, piece in enumerate(_patterns.pieces(text)):
        if number > 0 and rest is not None:
            rest()
        findings += piece
    verdict = _patterns.verdict(findings)
    return redacted(text, verdict.parts) if isinstance(verdict, Redact) else text


def kept(
    redact: Redactor,
    messages: Sequence[Message] | None,
    output: str | None,
    tool_calls: Sequence[ToolCall] | None,
) -> Content:
    """Redact a prompt and an answer. Images, audio, files and reasoning are dropped."""
    return Content(
        messages=None if messages is None else [_message(redact, message) for message in messages],
        output=None if output is None else _text(redact, output),
        tool_calls=None if not tool_calls else [_call(redact, call) for call in tool_calls],
    )


def _message(redact: Redactor, message: Message) -> Message:
    content = message.content
    if isinstance(content, list):
        content = [
            TextPart(_text(redact, part.text) if isinstance(part, TextPart) else _NAMED[type(part)]) for part in content
        ]
    elif content is not None:
        content = _text(redact, content)
    calls, answers, name = message.tool_calls, message.tool_call_id, message.name
    return replace(
        message,
        content=content,
        tool_calls=None if calls is None else [_call(redact, call) for call in calls],
        tool_call_id=None if answers is None else _text(redact, answers),
        name=None if name is None else _text(redact, name),
        reasoning=None,
    )


def _call(redact: Redactor, call: ToolCall) -> ToolCall:
    """Redact a tool call, also its id and function name, which a model or caller wrote."""
    function = FunctionCall(_text(redact, call.function.name), _text(redact, call.function.arguments))
    return replace(call, id=_text(redact, call.id), function=function)


def _text(redact: Redactor, text: str) -> str:
    try:
        given: object = redact(text)
    except KeyboardInterrupt:
        raise
    except BaseException:  # even an exit must not end the thread that writes traces
        return WITHHELD
    if not isinstance(given, str):
        return WITHHELD
    bare = str.__str__(given)  # a subclass may carry the original text in attributes
    return bare if is_unicode(bare) else WITHHELD
