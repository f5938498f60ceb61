"""Things by their names, of which the oldest are forgotten, but none that is in use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from itertools import chain
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Newest(Generic[K, T]):
    """Those that were put last, and all that are in use. One thread at a time."""

    def __init__(self, newest: int, is_used: Callable[[T], bool]) -> None:
        self._newest = newest
        self._is_used = is_used
        self._used: dict[K, T] = {}
        self._rest: OrderedDict[K, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._used) + len(self._rest)

    def items(self) -> Iterator[tuple[K, T]]:
        """All that is kept, with its names."""
        return chain(self._used.items(), self._rest.items())

    def get(self, name: K) -> T | None:
        """What has a name."""
        return self._used[name] if name in self._used else self._rest.get(name)

    def put(self, name: K, thing: T) -> None:
        """Keep it as the newest; forget the oldest that is not in use, if there are too many of those."""
        self.pop(name)
        if self._is_used(thing):
            self._used[name] = thing
            return
        self._rest[name] = thing
        if len(self._rest) > self._newest:
            self._rest.popitem(last=False)

    def pop(self, name: K) -> T | None:
        """Forget it, and give it."""
        return self._used.pop(name) if name in self._used else self._rest.pop(name, None)
