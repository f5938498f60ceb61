"""What every storage must keep, as tests: inherit the class, say how to make yours, and let pytest run it.

``StorageContract`` is about traces, which every storage keeps. ``BooksContract`` is about accounts, keys, credit,
events and what processes agree on: a storage keeps all of that, or refuses it with ``UnsupportedWrite``.
``AccountsContract`` is about what calls take of all that (``protocols.LimitingStorage``).

A test's name is the promise. ``samples.py`` makes what is stored. ``NaiveAccounts`` says what limits, budgets and keys
are, in as few words as possible; ``AccountsWalk`` holds a storage to it.
"""

from .accounts import AccountsAndKeys, AgentStates, Bookkeeping, Happenings
from .admission import Budgets, Queues, Windows
from .analytics import Counting, Snapshots
from .basics import Aging, Batches, Deletion, Isolation, Keeping, Selecting
from .ledger import Accounting
from .naive import AccountsWalk, NaiveAccounts
from .outbox import Outgoing
from .owners import Agreeing, Owners
from .samples import make_ask, make_facts, make_trace
from .settlement import Histories, Idempotency, Settling
from .walk import Loads

__all__ = [
    "AccountsContract", "AccountsWalk", "BooksContract", "NaiveAccounts", "StorageContract", "make_ask", "make_facts",
    "make_trace",
]  # fmt: skip


class StorageContract(Keeping, Batches, Selecting, Deletion, Counting, Aging, Snapshots, Isolation, Loads):
    """Inherit it and override ``make``. Each test makes a storage of its own, uses it in one event loop, one of them
    in threads besides, and closes it.

    class TestMyStorage(StorageContract):
        def make(self):
            return MyStorage()

    The tests run with anyio's plug-in of pytest, which comes with anyio, on asyncio, and on trio where it is installed.
    """


class BooksContract(AccountsAndKeys, AgentStates, Happenings, Outgoing, Bookkeeping, Agreeing):
    """The same for accounts, keys, credit, events and webhooks. One that keeps them inherits both.

    class TestMyStorage(StorageContract, BooksContract):
        def make(self):
            return MyStorage()
    """


class AccountsContract(Windows, Budgets, Queues, Settling, Idempotency, Accounting, Histories, Owners):
    """The same for its ``accounts``: rate limits, budgets and idempotency keys.

    class TestMyAccounts(AccountsContract):
        def make(self, clock):
            return MyStorage(clock=clock)

    Time is the clock's that ``make`` is given. Where several processes share what is stored, ``other`` opens what
    ``make`` made as another process does; ``lease_s`` says for how long one may be silent.
    """
