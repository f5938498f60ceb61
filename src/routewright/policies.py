"""Policies in files, which are reloaded when they change, and in the storage, where they are drafted and published."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from . import wire
from ._core import publication
from ._core.accounts.terms import describe, publication_terms
from ._core.catalogue.models import content_id
from ._core.model_selector import ModelIndex, select_models
from ._core.outcome import event_of
from ._core.policy import check_apart, check_policy, next_label, resolve, version_of
from ._core.publication import STORAGE
from ._engine.storage import GuardedStorage, read_accounts
from ._engine.webhooks import wake
from ._runtime.blocking import Closing, Twin, plain
from ._runtime.identity import Ids
from ._runtime.loop import in_thread
from ._setup.arguments import refuse_keys
from ._setup.input_file import path_of, read
from .catalogue import Catalogue
from .errors import NotFound, PreconditionFailed, Problem, RouterError, UnsupportedWrite, ValidationFailed, renaming
from .protocols import Clock, Storage
from .wire import SYSTEM_ACCOUNT, Policy, PolicyChanged, PolicyDiff, PolicyRecord, PolicyShare, PolicyVersion
from .wire.ids import policy_id
from .wire.problems import did_you_mean, listed, shown
from .wire.timestamps import timestamp

Reload = Callable[[Sequence[Policy] | None], list[PolicyChanged]]
"""Publishes policies; None: those now in the file."""

_log = logging.getLogger(__name__)


def read_policies(path: str | Path) -> list[Policy]:
    """Read policies from a TOML or JSON file. Raises ``ValidationFailed`` naming file and key.

    The Router checks if the models exist, since it also knows those of its providers."""
    from ._setup.config import policies_of  # loads pydantic

    document = read(path)
    with document.naming():
        return policies_of(document)


class PolicyFile:
    """Policies in a file, read at first use and again when it changes.

        router = Router(policies=PolicyFile("policies.toml"))

    An invalid file leaves the policies unchanged; ``problem`` and the log say why. Use it with one Router only."""

    def __init__(self, path: str | Path, *, every_s: float = 2.0) -> None:
        """Look for changes every ``every_s`` seconds. Raises ``ValidationFailed``."""
        self.path = path_of(path)
        seconds: object = every_s
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.05 <= seconds < inf:
            raise ValidationFailed.at("every_s", f"must be at least 0.05 seconds, got {shown(every_s)}", "such as 2")
        self.every_s = every_s
        self.problem: ValidationFailed | None = None
        """Why the present file was refused; None: it was not."""
        self._taken: tuple[int, int, int] | None = None

    def __repr__(self) -> str:
        return f"PolicyFile({str(self.path)!r})"

    @contextmanager
    def policies(self) -> Iterator[list[Policy]]:
        """The policies now in the file. A ``ValidationFailed`` raised in the block gets the file's name, and is kept as
        ``problem``."""
        from ._setup.config import policies_of  # loads pydantic

        self._taken = self._signature()  # before reading, so that a concurrent write counts as a change
        try:
            document = read(self.path)
            with document.naming():
                yield policies_of(document)
        except ValidationFailed as error:
            self.problem = error
            raise
        self.problem = None

    def has_changed(self) -> bool:
        """True if the file changed since it was last read."""
        return self._signature() != self._taken

    def _signature(self) -> tuple[int, int, int] | None:
        """Modification time, size and inode; at least one changes when the file is written."""
        with suppress(OSError, ValueError):
            status = os.stat(self.path)
            return status.st_mtime_ns, status.st_size, status.st_ino
        return None


async def watch(file: PolicyFile, reload: weakref.WeakMethod[Reload], clock: Clock) -> None:
    """Reload a file whenever it changes, as long as its Router lives. While it is refused, try it again every time,
    since what refuses it may have changed, such as the owner of a name in the storage."""
    while True:
        await clock.sleep(file.every_s)
        reload_now = reload()
        if reload_now is None:
            return
        before = file.problem
        try:
            if before is not None or file.has_changed():
                changes = await in_thread(clock, reload_now, None)
                _log.debug("policies of %s are in force: %s", file.path, changes)
        except RouterError as error:
            if str(error) != str(before):
                _log.warning("the policies stay unchanged: %s", error)
        del reload_now  # while it sleeps, nothing here may hold the Router


RECENT = 20
"""``check`` looks at this many traces of an account, and at this many accounts."""


class PolicyStore(Closing):
    """``console.policies``: policies in the storage, which its Routers use within five seconds.

        await console.policies.draft(Policy(name="desk", goal="quality"), by="ada")
        await console.policies.publish("desk", share=0.1)
        await console.policies.roll_back("desk")

    A name has one owner: the storage, or the file or the code of a Router, which then publishes it. ``by`` is the
    person who makes a change. Of two changes of a name at the same time, the second raises ``PreconditionFailed``. So
    does a change whose ``expect``, the record that it is based on, is not the stored one."""

    def __init__(self, storage: Storage, clock: Clock, ids: Ids, catalogue: Catalogue | None) -> None:
        self._storage = storage
        self._checked: Storage = GuardedStorage(storage)
        self._clock = clock
        self._ids = ids
        self._catalogue = catalogue

    async def list(self) -> Sequence[PolicyRecord]:
        """The records of all names, by name."""
        return await self._checked.read(SYSTEM_ACCOUNT, wire.PolicyRecords())

    async def get(self, name: str) -> PolicyRecord:
        """The record of a name: its owner, its draft, and what is in force. Raises ``NotFound``."""
        records = {record.name: record for record in await self.list()}
        if name not in records:
            hint = did_you_mean(name, records) or "draft it first"
            raise NotFound(f"there is no policy {describe(name)}; {hint}")
        return records[name]

    async def states(self) -> Sequence[wire.PolicyState]:
        """The records of all names, by name, with the versions that serve."""
        records = await self.list()
        shared = tuple(record.share.content for record in records if record.share is not None)
        query = wire.PolicyVersions((*shared, *(record.content for record in records if record.content is not None)))
        versions = {version.content: version for version in await self._checked.read(SYSTEM_ACCOUNT, query)}
        return [
            wire.PolicyState(
                record,
                versions.get(record.content or "") if record.owner == STORAGE else await self._in_force(record),
                None if record.share is None else versions.get(record.share.content),
            )
            for record in records
        ]

    async def versions(self, name: str) -> Sequence[PolicyVersion]:
        """All published versions of a name, newest first, also those of files and code."""
        return await self._checked.read(SYSTEM_ACCOUNT, wire.PolicyVersions(name=name))

    async def find(self, name: str) -> PolicyVersion:
        """The version of a label, such as ``desk@2026-11-22``; or of a name the draft, labelled ``draft``, else what is
        in force. Raises ``NotFound``."""
        if "@" in name:
            return _labelled(name, await self.versions(name.partition("@")[0]))
        record = await self.get(name)
        if record.draft is not None:
            return PolicyVersion("", "draft", record.drafted_at or "", record.draft, record.drafted_by)
        version = await self._in_force(record)
        if version is None:
            raise NotFound(f"{describe(name)} has neither a draft nor a version in force")
        return version

    async def draft(
        self, policy: Policy, by: str = "", *, expect: PolicyRecord | Literal["absent"] | None = None
    ) -> PolicyRecord:
        """Replace the draft of the policy's name. ``expect`` is the record that the draft is based on, or ``absent``
        for a new name: if it has changed since, raises ``PreconditionFailed``. Raises ``ValidationFailed``."""
        refuse_keys({"policy": policy})
        policy = replace(check_policy(policy, 0), created_at=None)  # that will be the time of the publication
        terms = publication_terms({"by": by})
        before = expect or next((record for record in await self.list() if record.name == policy.name), None)
        before = None if before == "absent" else before
        now = self._now()
        record = before or PolicyRecord(name=policy.name, changed_at=now)
        draft = {"draft": policy, "drafted_at": now, "drafted_by": terms["by"]}
        return await self._put(before, replace(record, name=policy.name, **draft), {})

    async def discard(self, name: str, *, expect: PolicyRecord | None = None) -> PolicyRecord:
        """Remove the draft, if there is one. Raises ``NotFound`` and ``PreconditionFailed``."""
        record = await self._expected(name, expect)
        return await self._put(record, _without_draft(record), {})

    async def check(self, name: str) -> Policy:
        """Check that all models of the draft are known, and return it. It knows the models of the bundled catalogue, of
        the Console's ``catalogue``, and those that recent traces were decided with. Raises ``ValidationFailed`` and
        ``NotFound``."""
        return await self._check(_draft_of(await self.get(name)))

    async def diff(self, name: str, against: str | None = None) -> PolicyDiff:
        """Compare the draft with what is in force, or with the version of a label. For a name that a file or code owns,
        its newest version counts as in force. Raises ``ValidationFailed`` and ``NotFound``."""
        record = await self.get(name)
        draft = _draft_of(record)
        version = await (self._in_force(record) if against is None else self.find(against))
        return publication.compare(version, draft)

    async def publish(
        self,
        name: str,
        *,
        by: str = "",
        note: str = "",
        share: float | None = None,
        share_by: str | None = None,
        expect: PolicyRecord | None = None,
    ) -> PolicyVersion:
        """Put the draft in force, and return its version. With ``share=0.1`` it serves a tenth of the traffic beside
        the version in force: by account, or by the value of ``share_by="metadata.<key>"``. While such a share runs,
        ``publish(name)`` puts that version in force for all, and another ``share`` changes its part; with a newer
        draft, both are refused. ``note``, the reason, stands in the record and in a new version.

        The draft is checked as by ``check``, and a share must differ from the version in force. Raises
        ``ValidationFailed``, also for a name that a file or code owns, ``NotFound`` and ``PreconditionFailed``."""
        terms = publication_terms({"by": by, "note": note, "share": share, "share_by": share_by})
        record = _own(await self._expected(name, expect))
        versions = await self._versions(name)
        at = self._now()
        running = record.share
        if share is None and share_by is not None:
            raise ValidationFailed.at("share_by", "is set without a share", "add one, such as 0.1, or leave it out")
        writes: Sequence[wire.Write] = ()
        if running is not None:
            version = versions[running.content]
            if record.drafted_at is not None:
                problem = f"a share of {version.label} runs, and {describe(name)} has a newer draft"
                raise ValidationFailed.at("name", problem, "roll_back() ends the share, discard() drops the draft")
        else:
            policy = await self._check(_draft_of(record))
            # the hash is that of the text alone, since every Router resolves its models with its own catalogue
            write = wire.PutPolicyVersion(content_id([policy]), name, at, policy, terms["by"], terms["note"])
            label = next_label(name, at, [version.label for version in versions.values()])
            version = versions.setdefault(write.content, version_of(write, label))
            writes = [write]
        part = None
        if share is not None:
            if record.content in (None, version.content):
                problem = f"{describe(name)} has no other version in force to share its traffic with"
                raise ValidationFailed.at("share", problem, "leave it out")
            share_by = terms["share_by"] or (running.by if running else "account")
            part = PolicyShare(version.content, terms["share"], share_by)
        in_force = version.content if part is None else record.content
        after = publication.put_in_force(_without_draft(record), in_force, part, at, terms["by"], terms["note"])
        await self._put(record, after, versions, *writes)
        return version

    async def roll_back(
        self, name: str, *, to: str | None = None, by: str = "", expect: PolicyRecord | None = None
    ) -> PolicyVersion:
        """End a running share; without one, return to the version in force before, or to the one with the label ``to``.
        Returns the version now in force. Takes back ``retire``, too. Raises ``ValidationFailed``, ``NotFound`` and
        ``PreconditionFailed``."""
        terms = publication_terms({"by": by})
        record = _own(await self._expected(name, expect))
        versions = await self._versions(name)
        content = None if to is None else _labelled(to, versions.values()).content
        after = publication.roll_back(record, content, self._now(), terms["by"])
        await self._put(record, after, versions)
        return versions[after.content or ""]

    async def retire(self, name: str, by: str = "", *, expect: PolicyRecord | None = None) -> PolicyRecord:
        """Take a policy out of force, and free its name, whoever owns it. A Router whose file or code still has the
        name claims it again when it starts. Raises ``NotFound`` and ``PreconditionFailed``."""
        terms = publication_terms({"by": by})
        record = await self._expected(name, expect)
        after = publication.put_in_force(replace(record, owner=STORAGE), None, None, self._now(), terms["by"])
        return await self._put(record, after, await self._versions(name))

    async def check_names(self, models: Sequence[str] | None, policies: Sequence[str] | None) -> None:
        """Check what a key may use: words that select known models (``check``), and names or ids of drafts and
        policies, also of files and code. Raises ``ValidationFailed``."""
        if models:
            index = await known_models(self._checked, self._catalogue)
            with renaming(lambda problem: explain_unknown(problem._replace(path=problem.path.lstrip(".")))):
                select_models(Policy(name="", models=[*models]), index, "")
        if not policies:
            return
        with suppress(UnsupportedWrite):  # a custom storage may have no policies
            names = [record.name for record in await self.list()]
            ids = {policy_id(name) for name in names}
            if not ids.union(names).issuperset(policies):  # then it is an id of its own, or unknown
                versions = [version for name in names for version in await self.versions(name)]
                ids |= {version.policy.id for version in versions if version.policy is not None}
            for place, name in enumerate(policies):
                _check_name(f"policies[{place}]", name, [*names, *ids])

    async def aclose(self) -> None:
        """Close the storage."""
        await self._storage.aclose()

    def _now(self) -> str:
        return timestamp(self._clock.time())

    async def _expected(self, name: str, expect: PolicyRecord | None) -> PolicyRecord:
        """The record of a name. Raises ``NotFound``, and ``PreconditionFailed`` if it is not as expected."""
        record = await self.get(name)
        if expect not in (None, record):
            raise PreconditionFailed(f"{name} has changed since it was read")
        return record

    async def _versions(self, name: str) -> dict[str, PolicyVersion]:
        return {version.content: version for version in await self.versions(name)}

    async def _in_force(self, record: PolicyRecord) -> PolicyVersion | None:
        versions = await self._versions(record.name)
        if record.owner != STORAGE:  # the record does not say: the newest that was not published here before
            return next((version for version in versions.values() if version.content not in record.previous), None)
        return versions.get(record.content or "")

    async def _put(
        self,
        before: PolicyRecord | None,
        after: PolicyRecord,
        versions: Mapping[str, PolicyVersion],
        *first: wire.Write,
    ) -> PolicyRecord:
        """Replace a record, and emit ``router.policy_changed`` if what is in force has changed."""
        # The storage assigns the label of a new version in this batch, which also stores the event that names it, so it
        # is predicted. That is safe: labels of a name are only assigned by those who replace its record, and the batch
        # fails if that was replaced since the labels were read. Test: test_racing_changes_leave_a_serial_history
        batch = [*first, wire.PutPolicyRecord(after, expect="absent" if before is None else before)]
        if before is not None and (change := publication.find_change(before, after, versions)) is not None:
            event = event_of(change, wire.Caller(SYSTEM_ACCOUNT), self._ids("evt_"), self._clock.time())
            batch.append(wire.PutEvent(event.stored))
        await self._checked.apply(SYSTEM_ACCOUNT, batch)
        wake(self._storage)
        return after

    async def _check(self, policy: Policy) -> Policy:
        """Raises ``ValidationFailed`` for unknown models, an unknown shadow, or an id of another policy."""
        with renaming(explain_unknown):
            resolve([policy], await known_models(self._checked, self._catalogue))
        records = await self.list()
        if policy.shadow is not None:
            _check_name(f"policies[{describe(policy.name)}].shadow", policy.shadow, [record.name for record in records])
        contents = tuple(record.content for record in records if record.content and record.name != policy.name)
        others = await self._checked.read(SYSTEM_ACCOUNT, wire.PolicyVersions(contents))
        check_apart([*(version.policy for version in others if version.policy is not None), policy])
        return policy


async def known_models(storage: Storage, catalogue: Catalogue | None) -> ModelIndex:
    """The models of the bundled catalogue, of ``catalogue``, and of those that recent traces were decided with."""
    catalogues = [Catalogue()] if catalogue is None else [Catalogue(), catalogue]
    models = {model.id: model for source in catalogues for model in source.models}
    aliases = {alias: id for source in catalogues for alias, id in source.aliases.items()}
    catalogue_ids = set[str]()
    for account in [*await read_accounts(storage)][: RECENT + 1]:
        records = await storage.scan(account, wire.Decisions(newest_first=True), after=None, limit=RECENT)
        catalogue_ids |= {record.decision_input.catalogue for record in records if record.decision_input is not None}
    for id in catalogue_ids:
        snapshot = await storage.read(SYSTEM_ACCOUNT, wire.SnapshotById(id))
        known = snapshot.models if isinstance(snapshot, wire.CatalogueSnapshot) else ()
        models = {model.id: model for model in known} | models
    return ModelIndex([*models.values()], aliases)


def explain_unknown(problem: Problem) -> Problem:
    """Say how models of one's own become known, if a model is unknown."""
    if "unknown model" not in problem.problem and "matches no model" not in problem.problem:
        return problem
    hint = "models of your own are known once a trace used them, or with Console(catalogue=...)"
    return problem._replace(hint=f"{problem.hint}; {hint}")


def _check_name(path: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        hint = did_you_mean(name, known) or "draft it first, or start the Router whose code or file has it"
        raise ValidationFailed.at(path, f"there is no draft or policy {describe(name)}", hint)


def _own(record: PolicyRecord) -> PolicyRecord:
    """Raises ``ValidationFailed`` for a name of a file or code."""
    if record.owner != STORAGE:
        hint = "change it there, or free the name with retire()"
        raise ValidationFailed.at("name", f"{describe(record.name)} is owned by {record.owner}", hint)
    return record


def _draft_of(record: PolicyRecord) -> Policy:
    if record.draft is None:
        raise ValidationFailed.at("name", f"{describe(record.name)} has no draft", "draft(policy) first")
    return record.draft


def _without_draft(record: PolicyRecord) -> PolicyRecord:
    return replace(record, draft=None, drafted_at=None, drafted_by="")


def _labelled(label: str, versions: Iterable[PolicyVersion]) -> PolicyVersion:
    """The version with a label. Raises ``NotFound``, also for one from before texts were stored."""
    known = {version.label: version for version in versions if version.policy is not None}
    if label not in known:
        hint = did_you_mean(label, known) or (f"known: {listed([*known])}" if known else "none is published")
        raise NotFound(f"there is no version {describe(label)}; {hint}")
    return known[label]


class BlockingPolicyStore(Twin[PolicyStore]):
    """``console.blocking.policies``: the methods of ``PolicyStore`` as plain functions."""

    list = plain(PolicyStore.list)
    states = plain(PolicyStore.states)
    get = plain(PolicyStore.get)
    find = plain(PolicyStore.find)
    check_names = plain(PolicyStore.check_names)
    versions = plain(PolicyStore.versions)
    draft = plain(PolicyStore.draft)
    discard = plain(PolicyStore.discard)
    check = plain(PolicyStore.check)
    diff = plain(PolicyStore.diff)
    publish = plain(PolicyStore.publish)
    roll_back = plain(PolicyStore.roll_back)
    retire = plain(PolicyStore.retire)
