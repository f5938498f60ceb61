"""What every storage must keep, as tests: inherit the class, say how to make yours, and let pytest run it.

``StorageContract`` is about traces, which every storage keeps. ``BooksContract`` is about accounts, keys, money,
idempotency keys and events: a storage keeps all of that, or refuses it with ``UnsupportedWrite``.

A test's name is the promise. ``samples.py`` makes what is stored.
"""

from .accounts import AccountsAndKeys, Bookkeeping, Claims, Happenings
from .analytics import Counting, Snapshots
from .basics import Aging, Batches, Deletion, Isolation, Keeping, Selecting
from .ledger import Accounting, Alerting, Leasing, Reserving, Settling
from .samples import make_trace
from .walk import Loads

__all__ = ["BooksContract", "StorageContract", "make_trace"]


class StorageContract(Keeping, Batches, Selecting, Deletion, Counting, Aging, Snapshots, Isolation, Loads):
    """Inherit it and override ``make``. Each test makes a storage of its own, uses it in one event loop, one of them
    in threads besides, and closes it.

    class TestMyStorage(StorageContract):
        def make(self):
            return MyStorage()

    The tests run with anyio's plug-in of pytest, which comes with anyio, on asyncio, and on trio where it is installed.
    """


class BooksContract(
    AccountsAndKeys, Reserving, Leasing, Settling, Alerting, Accounting, Claims, Happenings, Bookkeeping
):
    """The same for all that a storage may keep besides traces. One that does inherits both.

    class TestMyStorage(StorageContract, BooksContract):
        def make(self):
            return MyStorage()
    """
