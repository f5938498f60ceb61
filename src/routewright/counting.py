"""Counts tokens exactly, with tables loaded on first use."""

from __future__ import annotations

from collections.abc import Sequence

from ._core.tokens.estimate import Vocabulary, count_request
from .fork import importing
from .protocols import TokenCounter
from .wire import RouteRequest, TokenBounds


class Counter:
    """Counts the tokens of requests."""

    def __init__(self, counter: TokenCounter | None) -> None:
        self._counter = counter

    def __call__(self, request: RouteRequest, bounds: TokenBounds, encodings: Sequence[Vocabulary]) -> TokenBounds:
        """Narrow the bounds of a request as far as counting can."""
        return count_request(self._made(), request, bounds, encodings)

    def load(self, encodings: Sequence[Vocabulary]) -> None:
        """Load these tables, if it has any, so that no count waits for them. It blocks."""
        load = getattr(self._made(), "load", None)
        if load is not None:
            for encoding in encodings:
                load(encoding)

    def _made(self) -> TokenCounter:
        if self._counter is None:
            with importing.lock:
                from .backends.tokens import PackedTokenCounter  # loads the tables' library

            self._counter = PackedTokenCounter()
        return self._counter
