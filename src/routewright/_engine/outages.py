"""Outages at providers, for log and metrics: open circuits, refused credentials, rescues by other models."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from math import inf

from msgspec import Struct

from routewright._core.outage import Outage, period
from routewright.wire import FaultKind, Model

SINGLY = 3
"""Open circuits of a provider that have a line of their own. Further ones share one."""
PAUSES_S = 60.0, 3600.0, 6 * 3600.0
"""Times between two lines about the rescues from a provider. After an hour without a rescue the next is a first one."""

_log = logging.getLogger(__name__)


class _Rescues(Struct):
    """Rescues from a provider since its last line."""

    since: float
    kinds: Counter[FaultKind]
    pause: int = 0
    """The index of ``PAUSES_S``."""

    @property
    def due(self) -> float:
        return self.since + PAUSES_S[self.pause]

    def count(self, now: float) -> str:
        """Their number as text; empty if there were none."""
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.kinds.most_common())
        number = self.kinds.total()
        calls = f"{number} more call{'s' * (number > 1)} in the last {period(now - self.since)}"
        return kinds and f"other models answered {calls} ({kinds})"


class Outages:
    """The outages at one fleet's providers. Use it under the fleet's lock, but ``log`` outside of it."""

    def __init__(self) -> None:
        self.rescues = Counter[tuple[str, FaultKind]]()
        """Calls that another model answered, by the provider that failed first and the kind of its fault."""
        self.lines = deque[str]()
        """What is to be logged once the lock is released, since a handler may be slow."""
        self.due = inf
        """When ``look`` has something to do."""
        self.parts: dict[str, Outage] = {}
        """By model or provider."""
        self._open = defaultdict[str, dict[str, str]](dict)
        """The part of every model with an open circuit, by provider."""
        self._waiting: dict[str, _Rescues] = {}

    def open_circuit(self, model: Model, kind: FaultKind, due_s: float, now: float, *, keys: int = 0) -> None:
        """The circuit of a model, or of its credential, is open, and lets a probe pass in ``due_s`` seconds. ``keys``:
        refused ones, which the provider has logged."""
        if kind is FaultKind.AUTH:
            what = f"circuit of {model.provider}'s credential"
            text = f"{what} opened (auth): no call goes to its models but a probe; renew the credential"
            return self._begin(model.provider, f"{what} closed", text, now, log=str if keys else self.lines.append)
        open_models = self._open[model.provider]
        name = model.id if len(open_models) < SINGLY else f"{model.provider}/*"
        name = open_models.setdefault(model.id, name)
        what = f"circuit of {model.id}"
        text = f"{what} opened ({kind}): calls go to other models, and the first probe in {period(due_s)}"
        if name != model.id:
            what = f"circuits of further {model.provider} models"
            text = f"{what} opened, that of {model.id} first ({kind}): calls go to other models"
        return self._begin(name, f"{what} closed", text, now, self.lines.append)

    def close(self, model: Model, now: float) -> None:
        """A model answered a probe."""
        provider = model.provider
        open_models = self._open[provider]
        name = open_models.pop(model.id, None)
        parts = [] if name is None or name in open_models.values() else [self.parts[name]]
        if (credential := self.parts.get(provider)) is not None:
            parts.append(credential)
        waiting = self._waiting.get(provider)
        note = "" if waiting is None else waiting.count(now)
        before = len(self.lines)
        for part in parts:
            part.end(now, note and f"; {note}")
        if waiting is not None and not any(part.flaps for part in parts):
            if note and len(self.lines) == before:
                self.lines.append(f"{provider} failed: {note}")
            self._waiting[provider] = _Rescues(now, Counter(), waiting.pause)

    def close_all(self, now: float) -> None:
        """All circuits start closed in another fleet."""
        self._open.clear()
        for part in self.parts.values():
            part.end(now)

    def count_rescue(self, provider: str, kind: FaultKind, model: str, now: float) -> None:
        """A model answered a call after a provider had failed."""
        self.rescues[provider, kind] += 1
        if (waiting := self._waiting.get(provider)) is not None:
            waiting.kinds[kind] += 1
            return
        self._waiting[provider] = waiting = _Rescues(now, Counter())
        self.due = min(self.due, waiting.due)
        self.lines.append(f"{provider} failed ({kind}): {model} answered the call; further rescues are counted")

    def look(self, now: float) -> None:
        """Write the lines that are due."""
        for part in self.parts.values():
            part.settle(now)
        for provider, waiting in [*self._waiting.items()]:
            if now < waiting.due:
                continue
            if note := waiting.count(now):
                self.lines.append(f"{provider} failed: {note}")
            elif now - waiting.since >= PAUSES_S[1]:
                del self._waiting[provider]
                continue
            self._waiting[provider] = _Rescues(now, Counter(), min(waiting.pause + 1, len(PAUSES_S) - 1))
        steady = (part.steady_at for part in self.parts.values())
        self.due = min((*steady, *(waiting.due for waiting in self._waiting.values())), default=inf)

    def log(self) -> None:
        """Log what is waiting. Call it without the fleet's lock."""
        with suppress(IndexError):  # another thread may take the last one
            while True:
                _log.warning(self.lines.popleft())

    def _begin(self, name: str, works: str, text: str, now: float, log: Callable[[str], object]) -> None:
        part = self.parts.setdefault(name, Outage(log, works))
        part.begin(now, text)
        self.due = min(self.due, part.steady_at)
