"""Idempotency keys: the first call with a key runs, the others wait for its answer."""

from __future__ import annotations

from typing import NamedTuple

from routewright._core.request.json_scan import quoted
from routewright.errors import IdempotencyKeyReused, RouterTimeoutError
from routewright.fork import Guard, renew_in_children
from routewright.loop import Signal
from routewright.protocols import Clock, Storage
from routewright.wire import Caller, ClaimByKey, ClaimKey, EndClaim, Environment, KeyClaim

from .leases import Leases
from .retry_queue import RetryQueue
from .storage import in_time

FIRST_LOOK_S, LONGEST_LOOK_S = 0.02, 0.5
"""Between two looks at a key that another process has: at first, and at last."""
AT_ONCE_S = 0.001


class Claim(NamedTuple):
    """An idempotency key that a call has taken."""

    caller: Caller
    key: str
    call: str
    fingerprint: str

    @property
    def scope(self) -> tuple[str, Environment, str]:
        """Where the key stands for one call."""
        return self.caller.account, self.caller.environment, self.key

    def ended(self, result: bytes | None, until: float = 0.0) -> EndClaim:
        """The write that ends it."""
        return EndClaim(
            key=self.key,
            environment=self.caller.environment,
            call=self.call,
            result=result,
            until=until,
            fingerprint=self.fingerprint,
        )


class _Running(NamedTuple):
    fingerprint: str
    ended: Signal


class Claims:
    """The idempotency keys of this process's calls. Safe to use from several loops and threads."""

    def __init__(self, storage: Storage, leases: Leases, retry_queue: RetryQueue, clock: Clock) -> None:
        self._storage = storage
        self._leases = leases
        self._retry_queue = retry_queue
        self._clock = clock
        self._guard = Guard()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with none: the parent's calls go on there."""
        self._running: dict[tuple[str, Environment, str], _Running] = {}

    async def take(self, claim: Claim, deadline: float, waits_until: float) -> bytes | None:
        """Take a key for a call. If another call has it, wait for that call's result and return it.

        Raises ``IdempotencyKeyReused`` for another request's, ``RouterTimeoutError`` where that takes too long, and
        ``StorageUnavailable``.
        """
        pause_s = FIRST_LOOK_S
        while True:
            running = self._running.get(claim.scope)
            if running is not None:
                _check(claim, running.fingerprint)
                self._check_time(waits_until, deadline)
                with self._clock.deadline(waits_until):
                    await running.ended.wait()
                continue
            now = self._clock.monotonic()
            found = await in_time(self._found(claim, now), self._clock, deadline)
            if found is None:
                if await in_time(self._claim(claim), self._clock, deadline):
                    return None
                self._check_time(waits_until, deadline)
                await self._clock.sleep(AT_ONCE_S)  # another was faster, who will be found
                continue
            _check(claim, found.fingerprint)
            if found.result is not None:
                return found.result
            self._check_time(waits_until, deadline)
            await self._clock.sleep(min(pause_s, waits_until - now))
            pause_s = min(pause_s * 2, LONGEST_LOOK_S)

    def _check_time(self, waits_until: float, deadline: float) -> None:
        """Raise ``RouterTimeoutError`` if the call may wait no longer."""
        if self._clock.monotonic() >= waits_until:
            said = "timeout_ms ran out while another call with the same idempotency key went on"
            if waits_until < deadline:
                said = "another call with the same idempotency key is still running, and steps() does not wait for it"
            raise RouterTimeoutError(f"{said}; ask again with it, to have its answer")

    def end(self, claim: Claim) -> None:
        """Wake the calls of this process that wait for the key."""
        with self._guard.lock:
            running = self._running.pop(claim.scope, None)
        if running is not None:
            running.ended.set()

    def give_up(self, claim: Claim) -> None:
        """Free the key of a call that has no result."""
        self._retry_queue.put(claim.caller.account, [claim.ended(None)])
        self.end(claim)

    async def _found(self, claim: Claim, now: float) -> KeyClaim | None:
        """The claim that holds the key, if any."""
        asked = ClaimByKey(claim.key, claim.caller.environment, now, self._clock.time())
        return await self._storage.read(claim.caller.account, asked)

    async def _claim(self, claim: Claim) -> bool:
        """Take the key. False: another call was faster."""
        write = ClaimKey(
            key=claim.key,
            environment=claim.caller.environment,
            fingerprint=claim.fingerprint,
            call=claim.call,
            owner=self._leases.id,
            lease_s=self._leases.lease_s,
            clock_s=self._clock.monotonic(),
            at=self._clock.time(),
        )
        try:
            (written,) = await self._storage.apply(claim.caller.account, [write])
        except BaseException:
            self._retry_queue.put(claim.caller.account, [claim.ended(None)])  # it may be taken, or be so in a moment
            raise
        if written.created:
            with self._guard.lock:
                self._running[claim.scope] = _Running(claim.fingerprint, Signal())
        return written.created


def _check(claim: Claim, theirs: str) -> None:
    if theirs != claim.fingerprint:
        raise IdempotencyKeyReused(
            f"the idempotency key {quoted(claim.key)} was used with another request in the last 24 hours: "
            "take a new key for a new request"
        )
