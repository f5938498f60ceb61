"""What looks at the words of a request or an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Sequence
from typing import Protocol, runtime_checkable

from routewright.wire import (
    Model,
    RouteRequest,
    Stage,
    Verdict,
)


@runtime_checkable
class Guardrail(Protocol):
    """Looks at what goes to a model or comes from one, and says what may pass.

    One object serves many calls at once, from any event loop and thread. Verdicts and names of rules never hold what
    was found. What ``check`` raises, or gives that is no verdict, fails the call with ``InternalError``: what cannot be
    checked does not pass.
    """

    @property
    def name(self) -> str:
        """What its spans are called."""
        ...

    @property
    def stages(self) -> Collection[Stage]:
        """Where it is asked: ``input``, ``output`` or both."""
        ...

    @property
    def holds(self) -> int | None:
        """The most characters that a finding in an answer can have, and so what a stream holds back for it. None: only
        a whole answer can be judged, so a stream gives nothing before its end."""
        ...

    def check(self, text: str, stage: Stage) -> Verdict | Awaitable[Verdict]:
        """Say what may pass of one text: ``Allow()``, ``Redact`` with its parts, or ``Block``. Where it has to wait, it
        may be ``async``. Of a streamed answer it is shown windows, one after the other, which begin with a word."""
        ...


class Redactor(Protocol):
    """Makes of a text of a prompt or an answer what may be kept of it. Called in any thread, once for each text.

    What it raises, or gives that is no text, keeps the text out of the trace, and harms no call.
    """

    def __call__(self, text: str, /) -> str:
        """Give what may be kept."""
        ...


class TokenCounter(Protocol):
    """Counts tokens of the vocabularies ``o200k_base`` and ``cl100k_base``, in any thread."""

    def count(self, text: str, encoding: str) -> int:
        """Exact number of tokens of ``text``, special tokens taken as plain text. One that no text of these bytes can
        have is taken for the nearest that it can."""
        ...


class QualityPredictor(Protocol):
    """Says how well each model would answer one request. The default is the catalogue's column."""

    def predict(self, request: RouteRequest, models: Sequence[Model]) -> Sequence[float] | None:
        """One quality in 0..1 per model, in order; None: use the catalogue's. Called on the hot path: no I/O.

        What it raises fails the call with ``InternalError``: to fall back on the catalogue, return None.
        """
        ...
