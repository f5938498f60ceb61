"""What every storage must keep, as tests: inherit the class, say how to make yours, and let pytest run it.

Each file holds the promises about one thing; ``samples.py`` makes what is stored. A test's name is the promise.
"""

from __future__ import annotations

from .batches import Batches
from .deletion import Deletion
from .isolation import Isolation
from .keeping import Keeping
from .retention import Aging
from .rollups import Counting
from .samples import make_trace
from .selection import Selecting
from .snapshots import Snapshots
from .threads import Threads

__all__ = ["StorageContract", "make_trace"]


class StorageContract(Keeping, Batches, Selecting, Deletion, Counting, Aging, Snapshots, Isolation, Threads):
    """Inherit it and override ``make``. Each test makes a storage of its own, uses it in one event loop, one of them
    in threads besides, and closes it.

    class TestMyStorage(StorageContract):
        def make(self):
            return MyStorage()

    The tests run with anyio's plug-in of pytest, which comes with anyio, on asyncio, and on trio where it is installed.
    """
