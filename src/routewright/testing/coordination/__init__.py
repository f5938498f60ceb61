"""What every coordination must keep, as tests: inherit the class, say how to make yours, and let pytest run it.

Each file holds the promises about one thing; ``model.py`` says what rate limits are, in as few words as there are. A
test's name is the promise.
"""

from __future__ import annotations

from .model import NaiveLimiter
from .news import News
from .slots import Slots
from .steps import Steps
from .threads import Threads
from .tokens import Tokens
from .walk import Walk, Walking
from .windows import Windows

__all__ = ["CoordinationContract", "NaiveLimiter", "Walk"]


class CoordinationContract(Windows, Tokens, Slots, Steps, News, Threads, Walking):
    """Inherit it and override ``make``. Each test makes a coordination of its own, uses it in one event loop, one of
    them in threads besides, and closes it.

    class TestMyCoordination(CoordinationContract):
        def make(self, clock):
            return MyCoordination(clock=clock)

    Time is the clock's that ``make`` is given; ``lease_s`` says how long a lease is. The tests run with anyio's plug-in
    of pytest, which comes with anyio, on asyncio, and on trio where it is installed.
    """
