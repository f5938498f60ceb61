"""Delivers webhooks: leases due deliveries, posts them, and records the outcome (contract 11).

Any number of processes may deliver from one storage; a lease gives each delivery to one at a time."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from secrets import token_bytes, token_hex
from weakref import WeakSet

import anyio
import anyio.abc

from routewright import wire
from routewright._core.crypto import NONCE
from routewright._core.outage import Outage
from routewright._core.webhooks.endpoint import OpenSecrets, build_headers, open_secrets, unreadable
from routewright._core.webhooks.outbox import ATTEMPT_S, DELAYS_S, MAX_ATTEMPTS, after_attempt, body_of
from routewright._runtime.fork import Guard
from routewright._runtime.loop import Signal
from routewright.errors import RouterClosed, RouterError, StorageUnavailable, UnsupportedWrite
from routewright.protocols import BaseStorage, Clock, ImmediateStorage, Storage, WebhookTransport, options_of
from routewright.wire.printable import one_line
from routewright.wire.timestamps import timestamp

from .storage import GuardedStorage

LEASE_S = 30.0
"""After a crash another process takes a delivery over when its lease ends."""
POLL_S = 5.0
"""Poll interval for events of other processes; those of this process are delivered at once."""
LONGEST_WAIT_S = 600.0
"""Pause after a failure of a storage that no other process uses."""
IN_FLIGHT = 256
"""Concurrent attempts."""
PER_ENDPOINT = 8
"""Concurrent attempts per endpoint whose last attempt succeeded. Others have one, so that a dead endpoint delays no
other."""
PER_ACCOUNT = IN_FLIGHT // 4
"""Concurrent attempts per account; so many remain for others, if nothing of theirs is due and it has more."""
RETRY_S = 1.0
"""Pause after a storage failure."""
LONGEST_ERROR = 200
MOST_KNOWN = 10_000
"""Endpoints whose last outcome is remembered."""
BATCH = 64
"""Outcomes per write."""

Start = Callable[[Callable[[], Awaitable[None]]], None]
"""Starts a background task that never returns."""

_log = logging.getLogger(__name__)
_dispatchers: WeakSet[Dispatcher] = WeakSet()
_registering = Guard()


def wake(storage: Storage) -> None:
    """Make the dispatchers of this process look for deliveries in a storage now."""
    with _registering.lock:
        dispatchers = [dispatcher for dispatcher in _dispatchers if dispatcher.storage is storage]
    for dispatcher in dispatchers:
        dispatcher.wake()


async def post(
    transport: WebhookTransport, clock: Clock, endpoint: wire.Endpoint, event: wire.StoredEvent, secrets: Sequence[str]
) -> tuple[wire.DeliveryAttempt, float | None]:
    """Send an event to an endpoint once. Returns the outcome, and the seconds of a ``Retry-After``."""
    at = clock.time()
    began = clock.monotonic()
    body = body_of(event)
    status = retry_after_s = None
    error: str | None = f"no answer within {ATTEMPT_S:g} s"
    try:
        with clock.deadline(began + ATTEMPT_S):
            answer = await transport.post(endpoint.url, build_headers(endpoint, event, body, secrets, at), body)
            status, retry_after_s = answer.status, answer.retry_after_s
            error = None
    except (OSError, RouterError) as fault:
        error = str(fault).encode(errors="replace").decode()[:LONGEST_ERROR]
    except Exception:  # a custom transport may raise anything; the attempt has failed
        _log.exception("the webhook transport failed")
        error = "internal error"
    took_ms = round((clock.monotonic() - began) * 1000, 3)
    return wire.DeliveryAttempt(timestamp(at), took_ms, status, error), retry_after_s


class Dispatcher:
    """Delivers the webhooks of one storage, as a background task. Only ``wake`` is thread-safe."""

    def __init__(
        self,
        storage: Storage,
        transport: Callable[[], WebhookTransport],
        keys: Callable[[], Sequence[bytes]],
        clock: Clock,
        *,
        start: Callable[[], Start | None] | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        poll_s: float = POLL_S,
    ) -> None:
        """``transport`` is called in the loop of ``run``. ``keys`` returns the keys that seal signing secrets, one per
        live root secret. ``start`` returns a function that starts ``run`` in the background, once there may be
        something to deliver; without it the caller awaits ``run``."""
        self.storage = storage
        self._own = options_of(storage, BaseStorage)
        self._guarded = GuardedStorage(storage)
        self._make_transport = transport
        self._keys = keys
        self._clock = clock
        self._max_attempts = max_attempts
        is_shared = not (clock.virtual or isinstance(storage, ImmediateStorage))
        self._poll_s = poll_s if is_shared else inf  # infinite if no other process uses it
        self._start = start
        self._starting = Guard()
        self.is_stopping = False
        """No more deliveries are claimed."""
        self.renew()
        with _registering.lock:
            _dispatchers.add(self)

    def renew(self) -> None:
        """Start without attempts: after a fork they are the parent's."""
        self._transport: WebhookTransport | None = None
        """Opened for the first attempt, since it loads a library."""
        self._in_flight: dict[str, int] = {}
        """Running attempts by endpoint."""
        self._by_account = Counter[str]()
        """Running attempts by account."""
        self.attempts = Counter[wire.DeliveryState]()
        """Attempts by the state of the delivery after them."""
        self._successes: dict[str, bool] = {}
        """True if the last attempt succeeded, by endpoint."""
        self._outages: dict[str, Outage] = {}
        """By endpoint."""
        self._storage_outage = Outage(_log.warning, "webhooks no longer wait for the storage")
        self._outcomes: list[wire.EndAttempt] = []
        """Outcomes to be stored."""
        self._room: dict[str, int] = {}
        """The ``room`` of the last claim."""
        self._size = BATCH
        """Outcomes per write; reduced while the storage refuses one of them."""
        self._is_full = False
        self._is_storing = False
        self._woken = Signal()
        self._idle = Signal()

    @property
    def outages(self) -> dict[str, Outage]:
        """Those of the storage and of endpoints, by name."""
        return {"webhooks": self._storage_outage} | {f"webhook endpoint {id}": o for id, o in [*self._outages.items()]}

    def wake(self) -> None:
        """Look for deliveries now. From any thread; nearly free while no endpoint is registered."""
        if self._start is not None and self._own.has_endpoints:
            self._begin()
        self._woken.set()

    def _begin(self) -> None:
        with self._starting.lock:
            start, self._start = self._start, None
        begin = None if start is None else start()
        if begin is not None:
            with suppress(RouterClosed):
                begin(self.run)

    async def run(self) -> None:
        """Deliver until cancelled. Attempts in flight are then returned for another process."""
        try:
            async with anyio.create_task_group() as attempts:
                while True:
                    self._woken = woken = Signal()
                    with self._clock.deadline(self._clock.monotonic() + await self._start_due(attempts)):
                        await woken.wait()
        finally:
            with self._clock.deadline(self._clock.monotonic() + RETRY_S, shield=True):
                await self._store()
                if self._transport is not None:
                    await self._transport.aclose()

    def stop(self, start: Start) -> None:
        """Claim nothing more; ``start`` ``drain`` if attempts are in flight."""
        self._start, self.is_stopping = None, True
        if self._in_flight or self._outcomes:
            start(self.drain)

    async def drain(self) -> None:
        """Claim nothing more, and wait until attempts in flight have ended and are stored."""
        self.is_stopping = True
        while self._in_flight or self._outcomes:
            self._idle = idle = Signal()
            await idle.wait()

    async def _start_due(self, attempts: anyio.abc.TaskGroup) -> float:
        """Start due attempts; returns the seconds until there may be more."""
        limit = IN_FLIGHT - sum(self._in_flight.values())
        self._is_full = limit <= 0
        if self.is_stopping or self._is_full:
            return self._poll_s
        now = self._clock.time()
        lease = token_hex(8)
        counts = self._in_flight
        successes = self._successes
        self._room = {id: (PER_ENDPOINT if successes.get(id) else 1) - count for id, count in counts.items()}
        failing = frozenset(id for id, is_fine in successes.items() if not is_fine)
        claim = wire.ClaimDeliveries(
            lease=lease,
            at=now,
            until=now + LEASE_S,
            limit=limit,
            per_endpoint=1,
            room=self._room,
            failing=failing,
            failing_limit=IN_FLIGHT // 2 - sum(counts.get(id, 0) for id in failing),
            per_account=PER_ACCOUNT,
            account_room={account: PER_ACCOUNT - count for account, count in self._by_account.items()},
        )
        try:
            (written,) = await self._apply(wire.SYSTEM_ACCOUNT, claim)
        except UnsupportedWrite:
            return inf
        except RouterError as error:
            self._note(error)
            return max(POLL_S, min(self._poll_s, LONGEST_WAIT_S))
        self._storage_outage.end(self._clock.monotonic())
        claimed = written.claimed
        if claimed is None:
            return self._poll_s
        self._is_full = len(claimed.deliveries) >= limit
        for delivery in claimed.deliveries:
            self._in_flight[delivery.endpoint.id] = self._in_flight.get(delivery.endpoint.id, 0) + 1
            self._by_account[delivery.endpoint.account] += 1
            attempts.start_soon(self._attempt, delivery, claim)
        if claimed.next_at is None or (claimed.next_at <= now and not claimed.deliveries):
            return self._poll_s  # due deliveries wait for an attempt to end
        return max(0.0, min(self._poll_s, claimed.next_at - now))

    async def _attempt(self, claimed: wire.ClaimedDelivery, claim: wire.ClaimDeliveries) -> None:
        endpoint, event = claimed.endpoint, claimed.event
        state: wire.DeliveryState = "waiting"  # stays so if cancelled: another process makes the attempt
        attempt: wire.DeliveryAttempt | None = None
        next_at = self._clock.time()
        try:
            if next_at > claim.until - ATTEMPT_S:  # the claim took so long that the lease would end first
                return
            secrets = await self._secrets(endpoint)
            if not secrets:  # a process with the root secret can deliver it
                next_at += DELAYS_S[0]
                return
            self._transport = self._transport or self._make_transport()
            attempt, retry_after_s = await post(self._transport, self._clock, endpoint, event, secrets)
            state, delay_s = after_attempt(claimed.tries + 1, attempt.status, retry_after_s, self._max_attempts)
            next_at = self._clock.time() + (delay_s or 0.0)
            self.attempts[state] += 1
            self._learn(endpoint, state, attempt)
        except Exception:  # of a custom transport, or an unreadable root secret; other deliveries go on
            _log.exception("an attempt at webhook endpoint %s failed", endpoint.id)
            next_at += DELAYS_S[0]
        finally:
            self._in_flight[endpoint.id] -= 1
            if not self._in_flight[endpoint.id]:
                del self._in_flight[endpoint.id]
            has_all_of_its_share = self._by_account[endpoint.account] >= PER_ACCOUNT
            self._by_account[endpoint.account] -= 1
            self._by_account = +self._by_account
            self._outcomes.append(
                wire.EndAttempt(
                    endpoint_id=endpoint.id,
                    event_id=event.id,
                    lease=claim.lease,
                    state=state,
                    attempt=attempt,
                    next_at=next_at if state == "waiting" else None,
                    at=self._clock.time(),
                )
            )
            await self._store()
            was_alone = endpoint.id not in self._room and self._successes.get(endpoint.id)
            if attempt is None or self._is_full or has_all_of_its_share or not was_alone:
                self.wake()  # it is due again, or others waited for its end

    def _learn(self, endpoint: wire.Endpoint, state: wire.DeliveryState, attempt: wire.DeliveryAttempt) -> None:
        """Remember if an endpoint works, and log changes."""
        if len(self._successes) > MOST_KNOWN:
            self._successes.clear()
            self._outages.clear()
        self._successes[endpoint.id] = is_fine = state == "delivered"
        answer = f"it answered {attempt.status}" if attempt.error is None else attempt.error
        if is_fine:
            self._outage_of(endpoint).end(self._clock.monotonic())
        else:
            text = one_line(f"webhook endpoint {endpoint.id} of {endpoint.account} fails: {answer}")
            self._outage_of(endpoint).begin(self._clock.monotonic(), text)

    def _outage_of(self, endpoint: wire.Endpoint) -> Outage:
        works = f"webhook endpoint {endpoint.id} of {endpoint.account} works again"
        return self._outages.setdefault(endpoint.id, Outage(_log.warning, works))

    async def _secrets(self, endpoint: wire.Endpoint) -> list[str]:
        """The live signing secrets. After a rotation of the root secret they are sealed anew, to survive the next
        one."""
        keys = self._keys()
        lack = unreadable(endpoint.id)
        try:
            opened = open_secrets(endpoint, keys, self._clock.time(), partial(token_bytes, NONCE))
        except ModuleNotFoundError as error:
            opened = OpenSecrets([], None)
            lack = str(error)
        if not opened.secrets:
            self._successes[endpoint.id] = False
            self._outage_of(endpoint).begin(self._clock.monotonic(), lack)
        if opened.endpoint is not None:
            write = wire.PutEndpoint(opened.endpoint, expect=endpoint, at=self._clock.time())
            with suppress(RouterError):  # changed meanwhile, or the storage is unavailable: next time
                await self._apply(endpoint.account, write)
        return opened.secrets

    async def _store(self) -> None:
        """Store all queued outcomes; failed writes are tried again."""
        if self._is_storing:
            return
        self._is_storing = True
        try:
            while self._outcomes:
                batch = self._outcomes[: self._size]
                try:
                    await self._apply(wire.SYSTEM_ACCOUNT, *batch)
                except StorageUnavailable as error:
                    self._note(error)
                    await self._clock.sleep(RETRY_S)
                except RouterError as error:  # refuses one of them, which is delivered again when its lease ends
                    self._note(error)
                    if len(batch) == 1:
                        del self._outcomes[0]
                    self._size = max(1, len(batch) // 2)
                else:
                    del self._outcomes[: len(batch)]
                    self._size = BATCH
        finally:
            self._is_storing = False
        self._idle.set()

    async def _apply(self, account: str, *writes: wire.Write) -> list[wire.Written]:
        return await self._guarded.apply(account, writes)

    def _note(self, error: RouterError) -> None:
        """Log the first of several storage failures."""
        self._storage_outage.begin(self._clock.monotonic(), f"webhooks wait for the storage: {error}")
