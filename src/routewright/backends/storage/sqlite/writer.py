"""The writer thread of a process: batches all queued requests into one transaction.

Requests that arrive during a transaction form the next one, so under load more of them share a commit and a sync. The
thread starts with the first request, ends after a while without work, and starts again in a forked child.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from routewright._runtime.fork import Guard
from routewright._runtime.loop import Reply, give
from routewright.backends.storage.tables.ledger import ASK, SETTLE, WRITE, PendingAsk
from routewright.errors import RouterError, StorageUnavailable
from routewright.wire import Durability, Replay

from .background import BackgroundWork
from .connections import Connections
from .file import Connection
from .schema import check_version, latest
from .sync import Sync, fault_of, is_of_the_file, is_transient
from .transaction import AccountTransaction

IDLE_S = 2.0
"""The thread ends after this long without a request."""
MAX_BATCH = 64
"""Maximum requests in a transaction. Keeps the write lock short for other processes."""
LOOK_S = 0.05
"""Interval of checks whether another process has freed something that a waiting ask needs."""
GATHER_S = 0.0003
"""Under load, a transaction begins once no request has arrived for this long."""
LONGEST_PAUSE_S = 0.1
STALL_S = 0.02
"""Longest wait for a sync. After that, the writer continues without waiting."""
LOOK_AT_LOCK_S = 0.125
"""Interval of checks whether the process with the write lock still commits. If it does not, asks are refused."""
MAX_RELEASES = 10_000
"""Maximum releases kept for a retry. A dropped one is freed a lease after its call should have ended."""
_log = logging.getLogger(__name__)
T = TypeVar("T")
Work = Callable[[Connection], Any]
Scrub = Callable[[Any], bool]
Unsynced = SimpleQueue[tuple[Sequence[Reply[Any]], SimpleQueue[None]] | None]
"""Replies to give after the next sync, each batch with a queue that confirms it. None ends the sync thread."""


class Request(Reply[Any]):
    """Work for a transaction, and its result."""

    __slots__ = ("durability", "gentle", "order", "scrub", "work")

    def __init__(
        self,
        work: Work,
        order: int = WRITE,
        durability: Durability = "buffered",
        scrub: Scrub | None = None,
        *,
        gentle: bool = False,
        awaited: bool = False,
    ) -> None:
        super().__init__(awaited=awaited)
        self.work = work
        self.order = order
        self.durability = durability
        self.scrub = scrub
        """Called with the result. True if the removed rows must be scrubbed from the log and the file now."""
        self.gentle = gentle
        """Pause after it for as long as it took, so that other processes can write."""


class Writer:
    """Runs requests in transactions, settlements first. ``inline``: in the caller's thread."""

    def __init__(
        self, connections: Connections, make: Callable[[], AccountTransaction], keeper: BackgroundWork, *, inline: bool
    ) -> None:
        self._connections = connections
        self._make_transaction = make
        self._keeper = keeper
        self._inline = inline
        self._guard = Guard()
        connections.renewals.add(self)

    def renew(self) -> None:
        """Reset all state. After a fork, the queued requests belong to the parent."""
        self.transaction = self._make_transaction()
        self._requests: SimpleQueue[Request | PendingAsk] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.sync = Sync(self._connections.path)
        self._unsynced: Unsynced | None = None
        """Queue of the sync thread. None: there is no such thread."""
        self._is_stalled = False
        """True while a sync takes longer than ``STALL_S``."""
        self._connection: Connection | None = None
        self._is_busy = False
        """True if the last batch had several requests."""
        self._is_gentle = False
        """True if the last transaction had a gentle request."""
        self._releases: list[Request] = []
        """Releases to retry: the file could not be written to."""

    async def do(
        self,
        work: Callable[[Connection], T],
        durability: Durability = "buffered",
        scrub: Scrub | None = None,
        *,
        order: int = WRITE,
        gentle: bool = False,
    ) -> T:
        """Run ``work`` in a transaction. Returns its result after the commit, or after the sync if ``durability`` is
        ``committed``. Its errors pass through; then nothing was written."""
        request = Request(work, order, durability, scrub, gentle=gentle, awaited=not self._inline)
        self.put(request)
        result: T = await request.wait()
        return result

    async def drain(self) -> None:
        """Wait for all requests queued so far."""
        if self._thread is not None:
            await self.do(lambda _: None, "committed")

    def put(self, request: Request | PendingAsk) -> None:
        """Queue a request."""
        if self._inline:
            with self._guard.lock:
                self._run([request])
                while self.transaction.state.freed and len(self.transaction.queue):
                    self._run([])
            return
        self._requests.put(request)
        if self._thread is not None:
            return
        with self._guard.lock:
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._work, name="routewright-sqlite", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the next request tries again
                if not request.is_awaited:  # nobody waits for it: it runs once a thread can be started
                    return
                request.is_left = True
                if isinstance(request, Request):
                    request.work = lambda _: None
                raise StorageUnavailable(f"{self._connections.path} cannot be written to now: {error}") from error
            self._thread = thread

    def _work(self) -> None:
        # a separate thread syncs: a stalled disk must not stop admissions and the signs of life of this owner
        unsynced: Unsynced | None = Unsynced()
        name = "routewright-sqlite-sync"
        try:
            threading.Thread(target=self._sync_all, args=(unsynced,), name=name, daemon=True).start()
        except RuntimeError:
            unsynced = None
        self._unsynced = unsynced
        while (requests := self._take()) is not None:
            began = time.monotonic()
            transaction = self.transaction
            is_due = bool(requests or self._releases) or transaction.is_due
            if not is_due and len(transaction.queue):
                is_due = transaction.is_ready
                if not is_due:  # another process may have written; looking takes no lock
                    with suppress(Exception), self._connections.lock_writer() as connection:
                        is_due = transaction.log.has_news(connection)
            if is_due:
                releases = self._releases
                self._releases = []
                self._do([*releases, *requests])
                if self._is_gentle:
                    time.sleep(min(time.monotonic() - began, LONGEST_PAUSE_S))
            del requests  # keep no references to finished requests while idle
        if unsynced is not None:
            unsynced.put(None)

    def _sync_all(self, unsynced: Unsynced) -> None:
        while (batch := unsynced.get()) is not None:
            replies = [*batch[0]]
            waiting = [batch[1]]
            while not unsynced.empty() and (batch := unsynced.get()) is not None:
                replies += batch[0]
                waiting.append(batch[1])
            self._answer_synced(replies)
            self._is_stalled = False
            for synced in waiting:
                synced.put(None)
            if batch is None:
                return
            del batch, replies

    def _take(self) -> list[Request | PendingAsk] | None:
        """The next batch of requests; empty when only upkeep is due. None ends the thread."""
        waiting = self._requests
        transaction = self.transaction
        requests: list[Request | PendingAsk] = []
        timeout_s = min(IDLE_S, transaction.beat_s)
        if len(transaction.queue):  # waiting asks have deadlines
            timeout_s = max(0.0, min(LOOK_S, transaction.gives_up_in_s))
        try:
            requests.append(waiting.get(timeout=timeout_s))
            if self._is_busy:  # calls that were just answered are about to send their next request
                queued = -1
                while queued < waiting.qsize() < MAX_BATCH:
                    queued = waiting.qsize()
                    time.sleep(GATHER_S)
            while len(requests) < MAX_BATCH:
                requests.append(waiting.get_nowait())
        except Empty:
            while not requests and waiting.empty() and transaction.evict():
                pass
        if not requests and not (len(transaction.queue) or self._releases) and transaction.is_idle:
            with self._guard.lock:
                thread = self._thread
                self._thread = None
                if waiting.empty():  # checked last: put() queues first and checks the thread second
                    return None
                self._thread = thread
        self._is_busy = len(requests) > 1
        return requests

    def _do(self, requests: Sequence[Request | PendingAsk]) -> None:
        """Run requests. Unexpected errors fail the requests, but never the thread: all calls depend on it."""
        try:
            self._run(requests)
        except Exception as error:  # a defect, since `_run` answers what fails
            _log.exception("the writer of %s failed", self._connections.path)
            unanswered = [request for request in requests if not request.is_delivered]
            for request in unanswered:
                request.error = self._fault_of(error)
                request.result = None
                if isinstance(request, PendingAsk):  # its admission may be committed: release the hold
                    self._requests.put(Request(partial(self.transaction.leave, request, takes=request.takes), SETTLE))
            self.transaction.fail()
            self._answer(unanswered)

    def _run(self, requests: Sequence[Request | PendingAsk]) -> None:
        """Run requests in one transaction and answer them. If one breaks the transaction, run each in its own."""
        # Up to `MAX_BATCH` calls share a transaction, and a row that SQLite rejects would fail them all. So after such
        # an error each request is repeated in a transaction of its own, and only the faulty one fails
        # (`test_only_the_faulty_settlement_of_a_tick_fails`). Whatever the failed transaction answered is taken back
        # first by `transaction.fail` (`test_a_refused_call_is_not_admitted_when_the_transaction_then_fails`). If the
        # file is at fault, every repetition would wait for it again, so all fail at once. Releases have no caller who
        # could repeat them: they are retried here (`test_releases_on_a_full_disk_take_effect_once_it_has_space`).
        self.transaction.log.copy()
        by_order: tuple[list[Request | PendingAsk], ...] = [], [], []
        for request in requests:
            by_order[request.order].append(request)
        try:
            self.sync.check()
            with self._connections.lock_writer() as connection:
                try:
                    self._transact(connection, *by_order)
                except BaseException:
                    with suppress(sqlite3.Error):  # SQLite itself rolls back if the disk is full
                        connection.execute("ROLLBACK")
                    raise
        except Exception as error:  # of SQLite, the disk, or what the requests do: it fails them, one by one
            self.transaction.fail()
            unanswered = by_order[SETTLE] + by_order[WRITE] + by_order[ASK]  # without refused asks, which are answered
            if not self.transaction.is_careful and not is_of_the_file(error):
                self.transaction.is_careful = True  # only the faulty one fails then
                try:
                    for request in unanswered:
                        request.error = None
                        self._run([request])
                finally:
                    self.transaction.is_careful = False
                return
            for request in unanswered:
                request.error = self._fault_of(error)
                request.result = None
            if not self._inline and is_of_the_file(error):
                releases = [reply for reply in by_order[SETTLE] if not reply.is_awaited and isinstance(reply, Request)]
                self._releases = [*self._releases, *releases][:MAX_RELEASES]
            self.transaction.refuse(partial(self._fault_of, error))
            self._answer([*unanswered, *self.transaction.take_answered()])
            return
        self._finish(by_order[SETTLE] + by_order[WRITE] + by_order[ASK])

    def _begin(self, connection: Connection, by_order: Sequence[list[Request | PendingAsk]]) -> None:
        """Take the write lock, waiting for ``busy_s``. If its holder stops committing, the asks of this transaction and
        of the queue are refused, and the rest of the queue joins the transaction."""
        # A busy store and a stopped process look the same to SQLite: the lock is taken. `PRAGMA data_version` tells
        # them apart, because it changes with each commit of another process. While it changes, waiting is worth it
        # (`test_calls_wait_for_processes_that_write_all_the_time`); once it stands still, asks are refused soon so that
        # calls fail fast, and settlements keep waiting for `busy_s`
        # (`test_calls_wait_a_quarter_of_a_second_for_a_stopped_process_and_settlements_longer`).
        deadline = time.monotonic() + self._connections.busy_s
        version = -1
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.Error as error:
                if not is_transient(error) or time.monotonic() >= deadline:
                    raise
                last_version = version
                version = connection.execute("PRAGMA data_version").fetchone()[0]
                if version != last_version:
                    continue
                refused = by_order[ASK].copy()
                by_order[ASK].clear()
                for _ in range(self._requests.qsize()):
                    request = self._requests.get()
                    (refused if request.order == ASK else by_order[request.order]).append(request)
                for request in refused:
                    request.error = self._fault_of(error)
                self._answer(refused)

    def _transact(self, connection: Connection, *by_order: list[Request | PendingAsk]) -> None:
        if connection is not self._connection:
            self._connection = connection
            self._version = latest()
            self.sync.close()
            connection.execute(f"PRAGMA busy_timeout = {int(min(self._connections.busy_s, LOOK_AT_LOCK_S) * 1000)}")
        transaction = self.transaction
        self._begin(connection, by_order)
        if connection.execute("PRAGMA user_version").fetchone()[0] != self._version:  # upgraded in the meantime
            check_version(connection, self._connections.path)
        transaction.open(connection)
        asks: list[PendingAsk] = []
        for requests in by_order:
            for request in requests:
                if isinstance(request, PendingAsk):
                    asks.append(request)
                    continue
                try:
                    request.result = request.work(connection)
                except RouterError as error:  # raised before any change
                    request.error = error
        transaction.finish(connection, asks)
        connection.execute("COMMIT")

    def _finish(self, requests: Sequence[Request | PendingAsk]) -> None:
        """Answer after the commit. Requests with ``committed`` durability and replays are answered after the sync."""
        # Contract 7: a settlement is synced before its answer. A sync for each would limit the process to one call per
        # turn of the disk, and a sync inside the transaction would keep the write lock from other processes meanwhile.
        # So one sync covers all commits before it, in a thread of its own, while new requests gather for the next
        # transaction. The writer waits for it, since a fuller transaction is cheaper, but no longer than `STALL_S`: a
        # stalled disk must not stop admissions and signs of life (`test_a_stalled_disk_does_not_stop_admissions`).
        # Replays wait as well, because the row of their answer may be an unsynced commit of another process
        # (`test_no_answer_precedes_its_sync`).
        self._keeper.note_write()  # first: after its answer, a caller may close the file
        now: list[Reply[Any]] = []
        synced: list[Reply[Any]] = []
        is_scrub_due = self._is_gentle = False
        for request in requests:
            if isinstance(request, PendingAsk):
                continue  # answered below
            self._is_gentle = self._is_gentle or request.gentle
            failed = request.error is not None
            (synced if request.durability == "committed" and not failed else now).append(request)
            is_scrub_due = is_scrub_due or (request.scrub is not None and not failed and request.scrub(request.result))
        for pending in self.transaction.take_answered():  # a replayed answer is a row, which must be synced first
            (synced if isinstance(pending.result, Replay) else now).append(pending)
        self._answer(now)
        if is_scrub_due:
            self._keeper.scrub()
        if synced and self._unsynced is None:
            self._answer_synced(synced)
        elif synced and self._unsynced is not None:
            done: SimpleQueue[None] = SimpleQueue()
            self._unsynced.put((synced, done))
            if not self._is_stalled:  # else the next transaction fills up meanwhile
                try:
                    done.get(timeout=STALL_S)
                except Empty:
                    self._is_stalled = True

    def _answer_synced(self, replies: Sequence[Reply[Any]]) -> None:
        try:
            self.sync()
        except Exception as error:  # of the disk: nothing of this batch is certain
            for reply in replies:
                reply.error = self._fault_of(error)
        self._answer(replies)

    def _answer(self, replies: Sequence[Reply[Any]]) -> None:
        for reply in give(replies):
            if isinstance(reply, PendingAsk) and reply.takes:  # its loop is gone, so release its hold here
                self._requests.put(Request(partial(self.transaction.leave, reply), SETTLE))

    def _fault_of(self, error: Exception) -> RouterError:
        return fault_of(error, self._connections.path)
