"""Captured content of a call: its texts after a redactor. A text is replaced by a note if the redactor raises or
returns anything but text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from routewright import wire
from routewright.protocols import Redactor
from routewright.wire.json_scan import is_unicode

from .detectors import PATTERNS
from .screen import STAGES, RuleGuardrail
from .texts import redact_parts

WITHHELD = "[withheld: the redactor failed]"
_NAMED = {wire.ImagePart: "[image]", wire.AudioPart: "[recording]", wire.FilePart: "[file]"}


class Texts(Protocol):
    """The texts of a call, redacted when first read."""

    size: int
    """Approximate size in bytes."""
    is_slow: bool
    """Redacting them keeps a processor busy."""

    @property
    def is_redacted(self) -> bool:
        """True once the redactor has run."""

    @property
    def content(self) -> wire.Content:
        """The redacted texts."""


_patterns = RuleGuardrail("redactor", [*PATTERNS.values()], "redact", STAGES)


def redact_patterns(text: str, rest: Callable[[], object] | None = None) -> str:
    """The default redactor: removes e-mail addresses, telephone and card numbers, IBANs and API keys.

    ``rest`` is called between two pieces of a long text."""
    findings = list[wire.Redaction]()
    for number, piece in enumerate(_patterns.pieces(text)):
        if number > 0 and rest is not None:
            rest()
        findings += piece
    return redact_parts(text, findings)


def content_of(
    redact: Redactor,
    messages: Sequence[wire.Message] | None,
    output: str | None,
    tool_calls: Sequence[wire.ToolCall] | None,
) -> wire.Content:
    """Redact a prompt and an answer. Images, audio, files and reasoning are dropped."""
    return wire.Content(
        messages=None if messages is None else [_message(redact, message) for message in messages],
        output=None if output is None else _text(redact, output),
        tool_calls=None if not tool_calls else [_call(redact, call) for call in tool_calls],
    )


def _message(redact: Redactor, message: wire.Message) -> wire.Message:
    content = message.content
    if isinstance(content, list):
        content = [
            wire.TextPart(_text(redact, part.text) if isinstance(part, wire.TextPart) else _NAMED[type(part)])
            for part in content
        ]
    elif content is not None:
        content = _text(redact, content)
    return replace(
        message,
        content=content,
        tool_calls=None if message.tool_calls is None else [_call(redact, call) for call in message.tool_calls],
        tool_call_id=None if message.tool_call_id is None else _text(redact, message.tool_call_id),
        name=None if message.name is None else _text(redact, message.name),
        reasoning=None,
    )


def _call(redact: Redactor, call: wire.ToolCall) -> wire.ToolCall:
    """Redact a tool call, also its id and function name, which a model or caller wrote."""
    function = wire.FunctionCall(_text(redact, call.function.name), _text(redact, call.function.arguments))
    return replace(call, id=_text(redact, call.id), function=function)


def _text(redact: Redactor, text: str) -> str:
    try:
        result: object = redact(text)
    except KeyboardInterrupt:
        raise
    except BaseException:  # even an exit must not end the thread that writes traces
        return WITHHELD
    if not isinstance(result, str):
        return WITHHELD
    bare = str.__str__(result)  # a subclass may carry the original text in attributes
    return bare if is_unicode(bare) else WITHHELD
