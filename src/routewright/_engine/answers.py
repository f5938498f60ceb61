"""What comes from a coordination is checked here, whatever it is: an answer, in time and of its kind, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import NamedTuple, TypeVar

from routewright.loop import is_cancelled
from routewright.protocols import Clock
from routewright.wire import Denied, Heard, Notice, Take, Taken, WindowState

T = TypeVar("T")


class NoAnswer(NamedTuple):
    """There is none."""

    why: str
    """No more than the kind of what was raised, or given: its words may hold secrets."""


async def answer_of(ask: Callable[[], Awaitable[T]], clock: Clock, timeout_s: float) -> T | NoAnswer:
    """What it gives in time. Whatever it raises is no answer, and so is a cancellation that nobody asked for."""
    try:
        with clock.deadline(clock.monotonic() + timeout_s):
            return await ask()
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            raise
        return NoAnswer(type(error).__name__)
    return NoAnswer(f"no answer within {timeout_s:g} s")


def checked_take(said: object, takes: Sequence[Take]) -> Taken | Denied | NoAnswer:
    """What was said to somebody who wants to take, if it is that."""
    match said:
        case NoAnswer():
            return said
        case Taken(states=states) if _tell(states, takes):
            return said
        case Denied(by, wait_s, states) if by in range(len(takes)) and _is_size(wait_s) and _tell(states, takes):
            return said
    return _unfit(said)


def checked_news(said: object) -> Heard | NoAnswer:
    """What was said to somebody who listens, if it is that."""
    match said:
        case NoAnswer():
            return said
        case Heard(tuple(notices), int()) if all(isinstance(each, Notice) for each in notices):
            return said
    return _unfit(said)


def _tell(states: object, takes: Sequence[Take]) -> bool:
    """Whether they tell of each take how it stands."""
    if not isinstance(states, tuple) or len(states) != len(takes):
        return False
    return all(isinstance(each, WindowState) and _is_state(each) for each in states)


def _is_state(state: WindowState) -> bool:
    counts: tuple[object, ...] = (state.limit, state.remaining)
    return all(isinstance(count, int) for count in counts) and _is_size(state.reset_s)


def _is_size(number: object) -> bool:
    return isinstance(number, int | float) and 0 <= number < inf


def _unfit(said: object) -> NoAnswer:
    return NoAnswer(f"an answer that is none, of the kind {type(said).__name__}")
