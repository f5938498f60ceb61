"""The chaos matrix: expected outcomes of calls, derived only from the fault table and the contract."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, takewhile
from random import Random
from typing import Any, Literal, NamedTuple

from routewright import Catalogue, Model, Pricing, Router, RouterError, Settings
from routewright._core.attempts.faults import FAULTS
from routewright.backends.providers.http import ERROR_BODY_S
from routewright.errors import ContentRefused, RouterTimeoutError
from routewright.errors import UpstreamFailed as Failed
from routewright.testing import SCENARIOS, FakeClock, FaultyProvider, Scenario
from routewright.testing.faulty import Connection, Head, Step
from routewright.testing.provider import Pause
from routewright.wire import FallbackReason, FaultKind

GOOD, SPARE = "good/one", "spare/two"
MODELS = (
    Model(id=GOOD, quality=0.9, pricing_per_1m=Pricing(1.0, 4.0), context_window=100_000, ttft_s=1.0),
    Model(id=SPARE, quality=0.5, pricing_per_1m=Pricing(2.0, 8.0), context_window=200_000, ttft_s=1.0),
)
ANSWER = "From the spare."
HEAVY = {"endless", "gzip_bomb", "long_line", "many_events"}
NAMES = sorted(SCENARIOS)
BEFORE = "bad_request"
"""What the first of the chain does where the fault is the second's: over at once, nobody's blame, not billed."""

TIMEOUT_S = 60.0
FIRST_TOKEN_S = IDLE_S = 10.0
CONNECT_S = 10.0
RETRY_AFTER_S = 5.0
PAUSE_S = (0.1, 0.3)
FAREWELL_S = 0.5

Way = Literal["plain", "events", "text"]
Position = Literal["first", "second"]


class Try(NamedTuple):
    """One attempt."""

    model: str
    kind: FaultKind | None
    spoke: bool = False
    """Content had come."""


class Move(NamedTuple):
    """A ``route.fallback`` event."""

    from_model: str
    to_model: str
    reason: FallbackReason
    restart: bool


class Case:
    """One cell of the matrix: a fault for ever, met in one way, at one place of the chain."""

    def __init__(self, name: str, way: Way, position: Position) -> None:
        self.cell = SCENARIOS[name]
        self.way = way
        self.place = GOOD if position == "first" else SPARE
        self.streamed = way != "plain"
        self.play = self.cell.play(self.streamed)
        refused = FaultKind.REFUSED if self.play.finish == "content_filter" else None
        self.kind = self.play.kind or refused
        if Connection.MUTE in self.play.steps and self.streamed and position == "first":
            self.kind = FaultKind.TIMEOUT  # the time to the first token is over first
        self.rule = None if self.kind is None else FAULTS[self.kind]

    @property
    def speaks(self) -> bool:
        """Content reaches the caller before the fault."""
        if not self.streamed or self.kind is None:
            return False
        return self.cell.name in ("endless", "gzip_bomb") or any(map(_says, self._at_once))

    @property
    def began(self) -> bool:
        """The provider had begun to answer."""
        return any(isinstance(step, Head) and step.status == 200 for step in self._at_once)

    @property
    def stalls(self) -> bool:
        """Nothing but a time limit ends it."""
        return self.kind is FaultKind.TIMEOUT and self.cell.name != "request_timeout"

    @property
    def tells_usage(self) -> bool:
        """Usage comes before the fault."""
        told = ("null_content", "empty_parts", "content_filter", "abort", "no_finish_reason")
        return self.cell.name in told and (
            self.speaks or self.play.kind is not FaultKind.TRUNCATED or not self.streamed
        )

    @property
    def tries(self) -> list[Try]:
        """Every attempt, in order."""
        before = [Try(GOOD, FaultKind.REQUEST)] if self.place == SPARE else []
        if self.rule is None:
            return [*before, Try(self.place, None)]
        here = Try(self.place, self.kind, self.speaks)
        if self.speaks and self.way == "text":
            return [*before, here]
        told = self.cell.retry_after
        again = self.rule.retry and (told is None or told <= RETRY_AFTER_S)
        after = [Try(SPARE, None)] if self.rule.fall_back and self.place == GOOD else []
        return [*before, here, *([here] if again else []), *after]

    @property
    def is_left_alone(self) -> bool:
        """It asked for more patience than a call has."""
        told = self.cell.retry_after
        return self.rule is not None and self.rule.retry and told is not None and told > RETRY_AFTER_S

    @property
    def error(self) -> type[RouterError] | None:
        """What the caller is told; None: an answer."""
        if self.tries[-1].kind is None:
            return None
        if self.kind is FaultKind.REFUSED:
            return ContentRefused
        late = self.stalls and not self.speaks and self.place == SPARE
        return RouterTimeoutError if late else Failed

    @property
    def moves(self) -> list[Move]:
        """The events of the stream that tell of another start."""
        tries = self.tries
        moved = [
            Move(before.model, now.model, FAULTS[before.kind].reason, before.spoke)
            for before, now in pairwise(tries)
            if before.kind is not None
        ]
        return [move for move in moved if move.from_model != move.to_model or move.restart]

    def took_s(self, patience_s: float) -> tuple[float, float]:
        """The least and the most that it may take, where a model has so long until its first token."""
        if self.error is RouterTimeoutError:
            return TIMEOUT_S, TIMEOUT_S
        failed = sum(each.model == self.place and each.kind is not None for each in self.tries)
        spent = failed * self._spent_s(patience_s)
        least, most = PAUSE_S if failed > 1 else (0.0, 0.0)
        told = (self.cell.retry_after or 0.0) if failed > 1 else 0.0
        farewell = FAREWELL_S if self.cell.name == "stall_after_end" else 0.0
        return spent + max(told, least), spent + max(told, most) + farewell

    @property
    def _at_once(self) -> list[Step]:
        """What comes without being waited for."""
        return list(takewhile(lambda step: not isinstance(step, Pause), self.play.steps))

    def _spent_s(self, patience_s: float) -> float:
        """How long one attempt takes to fail."""
        if self.stalls:
            return IDLE_S if self.speaks else patience_s
        if Connection.MUTE in self.play.steps:
            return CONNECT_S
        return ERROR_BODY_S if self.cell.name == "error_body_stalls" else 0.0


class Pair:
    """A Router over two providers that fail on the wire: ``good/one`` is chosen, ``spare/two`` is its fallback."""

    def __init__(
        self, good: object = (), spare: object = (), *, models: Sequence[Model] = MODELS, **router: Any
    ) -> None:
        self.clock = FakeClock()
        self.good, self.spare = [
            FaultyProvider(faults, models=[model], clock=self.clock, answer=ANSWER)  # type: ignore[arg-type]
            for faults, model in zip((good, spare), models, strict=True)
        ]
        settings = Settings(clock=self.clock, rng=Random(7))
        self.router = Router(providers=[self.good, self.spare], catalogue=Catalogue(()), settings=settings, **router)

    @classmethod
    def of(cls, case: Case) -> Pair:
        """The one in which a case is met."""
        return cls(case.cell) if case.place == GOOD else cls(BEFORE, case.cell)

    @property
    def left_open(self) -> int:
        """Requests that were begun and never left."""
        return self.good.open_calls + self.spare.open_calls

    def stability(self, model: str) -> float | None:
        """How sure it is to answer; None: it is left alone."""
        candidates = self.router.decide("hi", goal="quality").candidates
        return next((each.stability for each in candidates if each.model == model), None)


def said_by(cell: Scenario) -> str | None:
    """The text of a cell that is an answer, if it is short."""
    if cell.name in ("broken_arguments", "duplicate_ids"):
        return ""
    if cell.name == "invalid_utf8":
        return "All is w\ufffdll."
    return None if cell.name == "long_line" else "All is well."


def _says(step: Step) -> bool:
    """Whether a piece of the body holds text that comes through."""
    return isinstance(step, bytes) and b'"content": "All' in step
