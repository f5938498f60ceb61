"""Content capture: the texts of a call reach its trace only through the redactor."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, TypeVar

import anyio.to_thread

from routewright._core.attempts.record import Attempt
from routewright._core.guardrails.capture import Texts, content_of, redact_patterns
from routewright._core.guardrails.texts import PIECE_CHARS
from routewright._runtime.fork import Guard
from routewright._runtime.loop import Threads, this_loop
from routewright.protocols import Clock, Redactor
from routewright.wire import Content, Message, ToolCall, text_of
from routewright.wire.trace import copied

REST_S = 0.001
"""Between two pieces of a long text. Merely giving way to other tasks is not enough: they wait for threads, such as the
one of a SQLite file, and a thread waits for the end of a piece each time it needs Python's lock."""
T = TypeVar("T")

_long_texts = Threads("redacting long texts", 1)  # more would only wait for each other
_log = logging.getLogger(__name__)


class Captured:
    """The texts of one call. They are redacted when first read; then the originals are dropped."""

    __slots__ = ("_content", "_guard", "_raw", "is_slow", "size")

    def __init__(
        self,
        redactor: Redactor,
        messages: Sequence[Message] | None,
        output: str | None,
        tool_calls: Sequence[ToolCall] | None,
    ) -> None:
        self._raw = redactor, messages, output, tool_calls
        self._content: Content | None = None
        self._guard = Guard()
        self.size = sum(map(_size_of, messages or ())) + len(output or "") + _calls_size(tool_calls)
        """Approximate size in bytes."""
        self.is_slow = redactor is _built_in and self.size > PIECE_CHARS
        """The built-in redactor keeps a processor busy with it, so that two at a time are no faster."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles and copies hold the redacted content only."""
        return _redacted, (self.content,)

    @property
    def is_redacted(self) -> bool:
        """True once the redactor has run; it is not called again."""
        return self._content is not None

    @property
    def content(self) -> Content:
        with self._guard.lock:
            if self._content is None:
                self._content = content_of(*self._raw)
                self._raw = redact_patterns, None, None, None
            return copied(self._content)


class Capturing:
    """Captures the texts of calls according to the settings."""

    def __init__(self, redactor: Redactor | None, *, prompts: bool, answers: bool) -> None:
        self._redactor = _built_in if redactor is None else _logging(redactor)
        self._prompts = prompts
        self._answers = answers

    def of(self, messages: Sequence[Message], served: Attempt | None) -> Captured:
        answer = served if self._answers else None
        return Captured(
            self._redactor,
            messages if self._prompts else None,
            None if answer is None else answer.answer,
            None if answer is None else answer.answer_calls,
        )


async def redacting(make: Callable[[], T], of: Iterable[Texts | None], clock: Clock) -> T:
    """Call ``make``; in a worker thread if a redactor has to run, since that may be slow."""
    left = [captured for captured in of if captured is not None and not captured.is_redacted]
    if clock.virtual or not left:
        return make()
    try:  # a cancelled caller abandons the thread; its redacted content stays
        if any(captured.is_slow for captured in left):
            return await _long_texts.run(make)
        return await anyio.to_thread.run_sync(make, abandon_on_cancel=True)
    except RuntimeError:  # no thread can be started: better block the loop than lose a trace
        return make()


def _rest() -> None:
    """In a worker thread, leave Python's lock to others for a moment; they would wait for it after each piece."""
    if this_loop() is None:
        time.sleep(REST_S)


_built_in: Redactor = partial(redact_patterns, rest=_rest)


def _redacted(content: Content) -> Captured:
    captured = Captured(redact_patterns, None, None, None)
    captured._content = content
    return captured


def _size_of(message: Message) -> int:
    content = message.content
    size = sum(len(text_of(part)) for part in content) if isinstance(content, list) else len(content or "")
    return size + _calls_size(message.tool_calls)


def _calls_size(calls: Sequence[ToolCall] | None) -> int:
    return sum(len(call.function.arguments) for call in calls or ())


def _logging(redactor: Redactor) -> Redactor:
    """The redactor, with one warning per kind of failure, since its texts are then withheld."""

    @cache
    def log(fault: str) -> None:
        _log.warning("the redactor %s: such texts are withheld (logged once)", fault)

    def redact(text: str) -> str:
        try:
            result = redactor(text)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # such as SystemExit: withhold the text as well
            log(f"raised {type(error).__name__}")
            raise
        if not isinstance(result, str):
            log(f"returned {type(result).__name__} instead of a text")
        return result  # the user of the text checks its type

    return redact
