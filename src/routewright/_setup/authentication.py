"""Authenticates API keys. Results are cached for two seconds, after which a revoked key is refused."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import replace

from routewright._core.accounts.keys import Pepper, is_live, parse_authorization, unknown_key_error
from routewright._core.crypto import derive, same
from routewright.errors import RouterError, ValidationFailed
from routewright.protocols import Clock, Storage
from routewright.wire import SYSTEM_ACCOUNT, Caller, Environment, KeyByDigest, PutKey, Stands
from routewright.wire.problems import shown
from routewright.wire.timestamps import timestamp

from .coordination import RECHECK_S
from .root_secret import RootSecret

PURPOSE = "key pepper"
MAX_CACHED = 10_000
CHANGE_OVER_S = 0.25
"""How long a call waits for its key to be moved to the new secret; after that the next call tries."""

_log = logging.getLogger(__name__)


class _CacheEntry(NamedTuple):
    caller: Caller
    until: float
    """On the monotonic scale."""


class Authenticator:
    """Finds callers by their keys. Safe to use from any thread.

    Refusals are not cached. Unknown and revoked keys take the same path."""

    def __init__(self, storage: Storage, secret: RootSecret, clock: Clock, recheck_s: float) -> None:
        seconds: object = recheck_s
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= RECHECK_S:
            raise ValidationFailed.at("recheck_s", f"is {shown(seconds)}", f"take seconds from 0 to {RECHECK_S:g}")
        self._storage = storage
        self._secret = secret
        self._clock = clock
        self._recheck_s = recheck_s
        self._roots: tuple[bytes, ...] = ()
        self._peppers: tuple[Pepper, ...] = ()
        self._cache: OrderedDict[str, _CacheEntry] = OrderedDict()

    def load_peppers(self) -> tuple[Pepper, ...]:
        """What keys are digested with: first that of the present secret, then that of the previous one."""
        roots = self._secret.derive_keys(PURPOSE)
        if roots is not self._roots:
            self._peppers = tuple(map(Pepper, roots))
            self._roots = roots
        return self._peppers

    async def find_caller(self, authorization: object, environment: Environment | None) -> Caller:
        """The caller of a key. Raises ``AuthenticationFailed``, which does not show the key, and
        ``StorageUnavailable``."""
        # A cached key is trusted for ``recheck_s`` from the moment *before* its read, so that a key revoked during a
        # slow read is refused in time (P12); a refusal is not cached, or a new key would stay unknown. A key is found
        # by its digest across all accounts, which is the only such read: all else goes by the account it names, and its
        # digest is compared again, since an error of the storage must not let a stranger in (P10). Unknown and revoked
        # keys raise the same error, which does not tell which keys once existed.
        # Tests: test_results_are_cached_for_two_seconds, test_refusals_are_not_cached,
        # test_a_wrong_key_from_the_storage_is_refused,
        # test_unknown_and_revoked_keys_take_the_same_path_to_the_same_error.
        sent_key = parse_authorization(authorization, environment)
        if self._peppers:
            cached = self._cache.get(self._peppers[0].digest(sent_key.key))
            if cached is not None and self._clock.monotonic() < cached.until:
                return cached.caller
        began = self._clock.monotonic()
        digests = tuple(pepper.digest(sent_key.key) for pepper in self.load_peppers())
        record = await self._storage.read(SYSTEM_ACCOUNT, KeyByDigest(digests))
        if record is None or not is_live(record):
            raise unknown_key_error()
        standing = await self._storage.read(record.account, Stands(timestamp(self._clock.time()), record.id))
        key = standing.key
        is_known = standing.account is not None or record.account == SYSTEM_ACCOUNT  # which has no terms
        if not is_known or key is None or not is_live(key) or key.environment != sent_key.environment:
            raise unknown_key_error()
        is_same = [same(key.digest.encode(), digest.encode()) for digest in digests]
        if not any(is_same):  # a storage's match is not trusted
            raise unknown_key_error()
        if not is_same[0]:
            # store the key's digest by the present secret, so that it survives the next rotation
            write = PutKey(replace(key, digest=digests[0]), expect=key, durability="buffered")
            try:
                with self._clock.deadline(self._clock.monotonic() + CHANGE_OVER_S):
                    await self._storage.apply(key.account, [write])
            except RouterError as error:
                _log.debug("the key %s is still digested with the previous secret (%s)", key.id, type(error).__name__)
        caller = Caller(key.account, key.environment, key.id, key.scopes, key.models, key.policies)
        self._cache[digests[0]] = _CacheEntry(caller, began + self._recheck_s)
        if len(self._cache) > MAX_CACHED:
            with suppress(KeyError):  # another thread took the last
                self._cache.popitem(last=False)
        return caller

    def count_strangers(self, digests: Sequence[str]) -> int:
        """Number of keys that are refused because they were made with another secret. Makes no secret."""
        peppers = [Pepper(derive(root, PURPOSE)) for root in self._secret.load_existing()] if digests else []
        return sum(not any(pepper.matches(digest) for pepper in peppers) for digest in digests)

    def forget(self, account: str) -> None:
        """Drop an account's keys from the cache after a change."""
        for digest, entry in [*self._cache.items()]:
            if entry.caller.account == account:
                self._cache.pop(digest, None)
