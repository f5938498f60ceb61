"""Signals to a server from its first moment on, in their order. The supervisor obeys them once it runs."""

from __future__ import annotations

import signal
from types import TracebackType
from typing import Any, Self

HANDLED = [
    getattr(signal, f"SIG{name}") for name in ("TERM", "INT", "HUP", "QUIT", "BREAK") if hasattr(signal, f"SIG{name}")
]
FORCED: dict[str, int] = {name: 128 + getattr(signal, name) for name in ("SIGINT", "SIGQUIT") if hasattr(signal, name)}
"""What a server ends with that was not left the time to end what it had begun."""


class Signals:
    """Notes them inside the ``with``; as long as nothing was made, one that is to end the server does so at once."""

    def __init__(self) -> None:
        self.noted: list[int] = []
        self._ends_at_once = True
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {each: signal.signal(each, self._note) for each in HANDLED}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hold(self) -> None:
        """From now on note those that end a server, too. What came before has ended it."""
        self._ends_at_once = False

    def _note(self, number: int, _: object) -> None:
        name = name_of(number)
        if self._ends_at_once and name != "SIGHUP":
            self.hold()  # it ends already
            raise SystemExit(FORCED.get(name, 0))
        self.noted.append(number)


def name_of(number: int) -> str:
    """As ``SIGTERM``."""
    return signal.Signals(number).name
