"""What every storage must keep, as tests: inherit the class, say how to make yours, and let pytest run it.

``StorageContract`` is about traces, which every storage keeps. ``BooksContract`` is about accounts, keys, money,
idempotency keys and events: a storage keeps all of that, or refuses it with ``UnsupportedWrite``.

Each file holds the promises about one thing; ``samples.py`` and ``money.py`` make what is stored. A test's name is the
promise.
"""

from __future__ import annotations

from .accounting import Accounting
from .accounts import AccountsAndKeys, Revoking
from .batches import Batches
from .books import Bookkeeping
from .claims import Claims
from .deletion import Deletion
from .events import Happenings
from .isolation import Isolation
from .keeping import Keeping
from .reserving import Leasing, Reserving
from .retention import Aging
from .rollups import Counting
from .samples import make_trace
from .selection import Selecting
from .settling import Alerting, Settling
from .snapshots import Snapshots
from .threads import Threads

__all__ = ["BooksContract", "StorageContract", "make_trace"]


class StorageContract(Keeping, Batches, Selecting, Deletion, Counting, Aging, Snapshots, Isolation, Threads):
    """Inherit it and override ``make``. Each test makes a storage of its own, uses it in one event loop, one of them
    in threads besides, and closes it.

    class TestMyStorage(StorageContract):
        def make(self):
            return MyStorage()

    The tests run with anyio's plug-in of pytest, which comes with anyio, on asyncio, and on trio where it is installed.
    """


class BooksContract(
    AccountsAndKeys, Revoking, Reserving, Leasing, Settling, Alerting, Accounting, Claims, Happenings, Bookkeeping
):
    """The same for all that a storage may keep besides traces. One that does inherits both.

    class TestMyStorage(StorageContract, BooksContract):
        def make(self):
            return MyStorage()
    """
