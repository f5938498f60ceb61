"""What goes with a storage object, so that all who have that object in this process agree on it?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from .fork import Guard
from .protocols import Storage

T = TypeVar("T")


class Companions(Generic[T]):
    """One of a kind for each storage, for as long as that lives. To be used from any thread."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[Storage, T] = WeakKeyDictionary()
        self._guard = Guard()

    def of(self, storage: Storage, make: Callable[[], T]) -> T:
        """That of a storage, made where there is none. Of an object of the host's that cannot be told from others like
        it, or referred to weakly, there is a new one each time."""
        made = make()
        with self._guard.lock:
            try:
                return self._made.setdefault(storage, made)
            except TypeError:
                return made
