"""Policies in the storage of a Router: versions of its own policies, and those that are published there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from weakref import WeakMethod

from routewright import wire
from routewright._core.model_selector import ModelIndex
from routewright._core.outage import Outage
from routewright._core.policy import Versions, own_version
from routewright._core.policy_table import PolicyTable, Publications, compile_table
from routewright._core.publication import claim_names
from routewright._runtime.loop import at_once, in_new_loop
from routewright.errors import InternalError, RouterError, StorageUnavailable, UnsupportedWrite, ValidationFailed
from routewright.protocols import Clock, LocalStorage, Storage
from routewright.wire.timestamps import timestamp

from .storage import GuardedStorage, storage_faults, unhindered

ASK_S = 1.0
"""How long a Router's first use, or a reload of policies, waits for the storage."""
LONGEST_S = 10.0
"""Time-out of a read in the background."""
EVERY_S = 2.0
"""How often publications are read. They are in force everywhere in under five seconds."""
MOST_VIRTUAL = 200
"""Reads of a Router on virtual time."""
_WHAT = "the owner of the policies"
Ask = Callable[[], Coroutine[object, object, list[wire.PolicyVersion]]]
Refresh = Callable[[], Coroutine[object, object, None]]

_log = logging.getLogger(__name__)


class StoredPolicies:
    """Names, versions and publications of policies, which all processes of a store share."""

    def __init__(self, storage: Storage, clock: Clock, owner: str | None) -> None:
        """``owner`` of the Router's own policies: ``code`` or ``file <path>``. None: nobody else uses the storage."""
        self._storage = GuardedStorage(storage)
        self._path = storage.path if isinstance(storage, LocalStorage) else None
        self._clock = clock
        self._owner = owner
        self._own: Versions | None = None
        """Versions made here, for a storage that keeps none."""
        self._publications = self._in_force = Publications()
        self.provisional: Sequence[wire.PutPolicyVersion] = ()
        """Policies with provisional versions of this process, because the storage was unavailable."""
        self.outage = Outage(_log.warning, "the policies of the storage are in force again")
        self.refused: dict[str, Outage] = {}
        """Policies of the storage that cannot be used with this Router's models, by version."""

    def load(self, writes: list[wire.PutPolicyVersion]) -> list[wire.PolicyVersion]:
        """Claim the names of the Router's own policies, read the storage's, and return the versions of the own ones.
        Blocks for at most two seconds. Raises ``ValidationFailed`` for a name that the storage publishes."""
        versions: list[wire.PolicyVersion] = []
        if writes or self._owner is not None:
            try:
                versions = self._ask_now(partial(self._ask, writes, is_claiming=True))
            except ValidationFailed:  # what was in force stays, with provisional versions if it had them
                raise
            except RouterError as error:
                if writes or not isinstance(error.__cause__, RuntimeError):  # else only virtual time stands still
                    self._fail(error, writes)
                self.provisional = writes
                return [*map(own_version, writes)]
            self.outage.end(self._clock.monotonic())
        self.provisional = ()
        return versions

    async def refresh(self) -> list[wire.PolicyVersion] | None:
        """Read the storage again. Returns the versions of the provisional policies, as far as it has them; None:
        nothing changed."""
        unnamed = self.provisional
        versions: list[wire.PolicyVersion] = []
        try:
            versions = await self._in_time(partial(self._ask, unnamed, is_claiming=bool(unnamed)), LONGEST_S)
        except RouterError as error:  # publications may have been read before it
            self._fail(error, unnamed)
        else:
            self.outage.end(self._clock.monotonic())
        return versions if versions or self._publications is not self._in_force else None

    def _fail(self, error: RouterError, unnamed: Collection[object]) -> None:
        effect = "policies have provisional versions" if unnamed else "policies of the storage are as they were read"
        text = f"{effect}: {error}"
        self.outage.begin(self._clock.monotonic(), text)
        self.outage.text = text  # the cause may be another one by now

    async def _ask(self, writes: Sequence[wire.PutPolicyVersion], *, is_claiming: bool) -> list[wire.PolicyVersion]:
        """Read what is published, and the versions of the Router's own policies; new ones are written in one batch with
        the claims on their names."""
        if not writes and self._path is not None and not self._path.exists():  # a decision does not create the file
            return []
        claims: Sequence[wire.Write] = ()
        if self._owner is not None:
            with suppress(UnsupportedWrite):  # of a custom storage
                records = await self._storage.read(wire.SYSTEM_ACCOUNT, wire.PolicyRecords())
                if records != [*self._publications.records]:
                    await self._read_versions(records)
                if is_claiming:
                    names = [write.name for write in writes]
                    claims = claim_names(self._owner, names, records, timestamp(self._clock.time()))
        if self._own is None:
            with suppress(UnsupportedWrite):
                return await self._versions_of(writes, claims)
            self._own = Versions()
        return [self._own.put(write)[0] for write in writes]

    async def _read_versions(self, records: Sequence[wire.PolicyRecord]) -> None:
        """Read the versions that changed records name."""
        contents = {record.content for record in records} | {record.share.content for record in records if record.share}
        contents |= {content for record in records for content in record.previous[-1:]}
        versions = {key: version for key, version in self._publications.versions.items() if key in contents}
        query = wire.PolicyVersions(tuple(content for content in contents if content and content not in versions))
        versions |= {version.content: version for version in await self._storage.read(wire.SYSTEM_ACCOUNT, query)}
        self._publications = Publications(records, versions)

    async def _versions_of(
        self, writes: Sequence[wire.PutPolicyVersion], claims: Sequence[wire.Write]
    ) -> list[wire.PolicyVersion]:
        if not writes and not claims:
            return []
        query = wire.PolicyVersions(tuple(write.content for write in writes))
        read = partial(self._storage.read, wire.SYSTEM_ACCOUNT, query)
        versions = {version.content: version for version in await read()}
        new = [write for write in writes if write.content not in versions]
        if new or claims:
            await self._storage.apply(wire.SYSTEM_ACCOUNT, [*claims, *new])
            versions = {version.content: version for version in await read()}
        if len(versions) < len(writes):
            raise InternalError("the storage did not keep the policy versions that were written")
        return [versions[content] for content in query.contents]

    def table(self, own: Sequence[wire.PolicySnapshot], index: ModelIndex) -> PolicyTable:
        """The Router's own policies together with the published ones. Logs which of these it cannot use, and why."""
        self._in_force = self._publications
        table, problems = compile_table(own, self._in_force, index)
        table.outage = self.outage
        refused = {label: self.refused.get(label) or Outage(_log.warning, "") for label in problems}
        for label, problem in problems.items():
            refused[label].begin(self._clock.monotonic(), f"{label} is not used: {problem}")
        self.refused = refused
        return table

    async def _in_time(self, ask: Ask, longest_s: float) -> list[wire.PolicyVersion]:
        with self._clock.deadline(self._clock.monotonic() + longest_s), storage_faults:
            return await unhindered(ask, _WHAT)
        raise StorageUnavailable(f"the storage did not answer within {longest_s:g} s")

    def _ask_now(self, ask: Ask) -> list[wire.PolicyVersion]:
        """``_in_time`` for plain code. In a new loop, since this thread may be the worker's."""
        if self._storage.is_immediate or self._clock.virtual:
            try:
                return at_once(unhindered(ask, _WHAT))
            except RuntimeError as error:
                raise StorageUnavailable("the storage waits, but virtual time stands still in plain code") from error
        try:
            return in_new_loop(partial(self._in_time, ask, ASK_S), ASK_S + 1.0)
        except TimeoutError as error:
            raise StorageUnavailable(f"the storage blocked its event loop for {ASK_S + 1.0:g} s") from error


async def watch_storage(refresh: WeakMethod[Refresh], clock: Clock) -> None:
    """Keep a Router's policies as its storage publishes them, as long as it lives."""
    reads = 0
    while not clock.virtual or reads < MOST_VIRTUAL:  # virtual time that nobody stops would read for ever
        reads += 1
        await clock.sleep(EVERY_S)
        refresh_now = refresh()
        if refresh_now is None:
            return
        await refresh_now()
        del refresh_now
