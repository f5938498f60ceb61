"""Contract suites of storages: inherit a class, override ``make``, and run pytest.

``StorageContract`` covers traces, which every storage keeps. ``BooksContract`` covers accounts, keys, credit, events
and data shared by processes: a storage keeps all of these, or refuses them with ``UnsupportedWrite``.
``AccountsContract`` covers limits, budgets and idempotency keys of calls (``protocols.LimitingStorage``).

``AccountsWalk`` of ``accounts_model.py`` compares a storage with a simple model of limits, budgets and keys.
"""

from .accounts import AccountsAndKeys, AgentStates, Bookkeeping, Happenings
from .admission import Budgets, Queues, Windows
from .analytics import Counting, Snapshots
from .outbox import Outgoing
from .owners import Agreeing, Owners
from .settlement import Accounting, Histories, Idempotency, Settling
from .traces import Aging, Batches, Deletion, Isolation, Keeping, Selecting
from .walk import Loads


class StorageContract(Keeping, Batches, Selecting, Deletion, Counting, Aging, Snapshots, Isolation, Loads):
    """Inherit it and override ``make``. Each test makes a storage, uses it in one event loop (one test also in
    threads), and closes it.

    class TestMyStorage(StorageContract):
        def make(self):
            return MyStorage()

    The tests use anyio's pytest plug-in, on asyncio, and on trio if it is installed.
    """


class BooksContract(AccountsAndKeys, AgentStates, Happenings, Outgoing, Bookkeeping, Agreeing):
    """Contract for accounts, keys, credit, events and webhooks, in addition to ``StorageContract``.

    class TestMyStorage(StorageContract, BooksContract):
        def make(self):
            return MyStorage()
    """


class AccountsContract(Windows, Budgets, Queues, Settling, Idempotency, Accounting, Histories, Owners):
    """Contract for ``storage.accounts``: rate limits, budgets and idempotency keys.

    class TestMyAccounts(AccountsContract):
        def make(self, clock):
            return MyStorage(clock=clock)

    Time is that of the clock passed to ``make``. If processes can share the storage, ``other`` opens it a second time;
    ``lease_s`` is the time without a call after which a process counts as dead.
    """
