"""The words of a call on their way into its trace: nothing leaves here that the redactor has not seen."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import anyio.to_thread

from routewright._core.attempt import Attempt
from routewright._core.guardrails.capture import kept, without_patterns
from routewright.fork import Guard
from routewright.protocols import Clock, Redactor
from routewright.wire import Content, Message, TextPart, ToolCall
from routewright.wire.trace import copied

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Captured:
    """What was said in one call. It is redacted when it is first asked for, and the words themselves are forgotten."""

    __slots__ = ("_content", "_guard", "_messages", "_output", "_redactor", "_tool_calls", "size")

    def __init__(
        self,
        redactor: Redactor,
        messages: Sequence[Message] | None,
        output: str | None,
        tool_calls: Sequence[ToolCall] | None,
    ) -> None:
        self._redactor = redactor
        self._messages = messages
        self._output = output
        self._tool_calls = tool_calls
        self._content: Content | None = None
        self._guard = Guard()
        self.size = sum(map(_size_of, messages or ())) + len(output or "") + _calls_size(tool_calls)
        """About how many bytes it takes."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle or a copy holds what may be kept and nothing else."""
        return _redacted, (self.content,)

    @property
    def is_redacted(self) -> bool:
        """The redactor has seen all of it, and is not asked again."""
        return self._content is not None

    @property
    def content(self) -> Content:
        """What may be kept."""
        with self._guard.lock:
            if self._content is None:
                self._content = kept(self._redactor, self._messages, self._output, self._tool_calls)
                self._messages = self._output = self._tool_calls = None
            return copied(self._content)


async def redacting(make: Callable[[], T], of: Iterable[Captured | None], clock: Clock) -> T:
    """Make something of calls: in a worker thread where a redactor is still to be asked, which may take its time."""
    if clock.virtual or all(captured is None or captured.is_redacted for captured in of):
        return make()
    try:
        return await anyio.to_thread.run_sync(make, abandon_on_cancel=True)  # it may go on for who asks next
    except RuntimeError:  # no thread can be started: a loop that waits is better than a trace that is lost
        return make()


def _redacted(content: Content) -> Captured:
    """What was said in a call whose words were forgotten."""
    captured = Captured(without_patterns, None, None, None)
    captured._content = content
    return captured


def _size_of(message: Message) -> int:
    content = message.content
    if isinstance(content, list):
        size = sum(len(part.text) if isinstance(part, TextPart) else len(part.image_url.url) for part in content)
    else:
        size = len(content or "")
    return size + _calls_size(message.tool_calls)


def _calls_size(calls: Sequence[ToolCall] | None) -> int:
    return sum(len(call.function.arguments) for call in calls or ())


class _Heard:
    """A redactor of whose failures the log hears: nobody sees otherwise that all words are withheld."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._told: set[str] = set()

    def __call__(self, text: str) -> str:
        try:
            given: object = self._redactor(text)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an exit, say, withholds words too
            self._tell(f"raised {type(error).__name__}")
            raise
        if not isinstance(given, str):
            self._tell(f"gave {type(given).__name__}, no text")
        return given  # type: ignore[return-value]  # which is looked at where it is used

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            _log.warning("the redactor %s: what it fails at is withheld (this is said once)", what)


class Capturing:
    """Takes the words of calls."""

    def __init__(self, redactor: Redactor | None, *, prompts: bool, answers: bool) -> None:
        self._redactor = without_patterns if redactor is None else _Heard(redactor)
        self._prompts = prompts
        self._answers = answers

    def of(self, messages: Sequence[Message], served: Attempt | None) -> Captured:
        """What was said in a call; ``served`` brought its answer, and still has it."""
        answer = served if self._answers else None
        return Captured(
            self._redactor,
            messages if self._prompts else None,
            None if answer is None else answer.answer,
            None if answer is None else answer.answer_calls,
        )
