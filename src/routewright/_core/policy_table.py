"""The policies that requests can name, which a publication replaces as a whole."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from msgspec import json

from routewright.errors import StorageUnavailable, ValidationFailed
from routewright.wire import PolicyRecord, PolicySnapshot, PolicyVersion
from routewright.wire.json_scan import quoted

from .guardrails.screen import guardrails_of
from .model_selector import ModelIndex
from .outage import Outage
from .policy import by_key, check_policy, find_policy, resolve, with_version
from .publication import STORAGE

_DIGEST_BITS = 64


class Share(NamedTuple):
    """A version that serves a part of a policy's traffic (``wire.PolicyShare``)."""

    snapshot: PolicySnapshot
    fraction: float
    by: str

    def choose(
        self, main: PolicySnapshot, account: str, metadata: Mapping[str, object] | None
    ) -> tuple[PolicySnapshot, str]:
        """The version for a caller's request, and its assignment: the digest of the value that this depends on, or
        nothing for a request without that metadata, which ``main`` serves."""
        # The digest depends on the policy's name and the value alone. So all processes agree, a value keeps its version
        # as long as the share runs, and a larger share keeps the values that a smaller one had. Two policies divide
        # their callers differently. test_a_larger_share_keeps_whom_a_smaller_one_had
        key = self.by.removeprefix("metadata.")
        value = account if key == self.by else (metadata or {}).get(key)
        if value is None:
            return main, ""
        assignment = blake2b(json.encode([main.policy.name, value]), digest_size=_DIGEST_BITS // 8).hexdigest()
        is_shared = int(assignment, 16) < self.fraction * 2**_DIGEST_BITS
        return self.snapshot if is_shared else main, assignment


class PolicyTable:
    """Policies in force. Immutable, so that one assignment puts all of them in force."""

    outage: Outage | None = None
    """Of the storage that publishes policies. While it lasts, an unknown name may be one that was published."""

    def __init__(
        self,
        policies: Sequence[PolicySnapshot] = (),
        shares: Mapping[str, Share] | None = None,
        drafts: Mapping[str, PolicySnapshot] | None = None,
        retired: Collection[str] = (),
    ) -> None:
        """``shares`` by the name of their policy, ``drafts`` by their own. ``retired``: names that were in force."""
        self.policies = policies
        self.by_key = by_key(policies)
        self.shares = {self.by_key[name].id: share for name, share in (shares or {}).items()}
        """By the snapshot id of the version that serves the rest."""
        self.versions = (*policies, *(share.snapshot for share in self.shares.values()))
        self.drafts = drafts or {}
        self.retired = retired
        snapshots = (snapshot for version in self.versions for snapshot in (version, *version.classes))
        self.guardrails = {
            snapshot.id: guardrails_of(snapshot.policy) for snapshot in snapshots if snapshot.policy.guardrails
        }
        """Compiled, by snapshot id."""

    def choose(self, key: str, account: str, metadata: Mapping[str, object] | None) -> tuple[PolicySnapshot, str]:
        """The version of a policy, by name or id, for a caller's request, and its assignment (``Share.choose``). Raises
        ``ValidationFailed``, and ``StorageUnavailable`` for a name that the storage may know."""
        if key not in self.by_key and self.outage is not None and self.outage.is_on:
            raise StorageUnavailable(f"the storage cannot be read, and may know the policy {quoted(key)}; try again")
        policy = find_policy(key, self.by_key, self.retired)
        if self.shares and (share := self.shares.get(policy.id)) is not None:
            return share.choose(policy, account, metadata)
        return policy, ""

    def shadow(self, policy: PolicySnapshot) -> PolicySnapshot | None:
        """The policy's shadow: the draft of that name, else the policy. None: no shadow, or the policy itself."""
        name = policy.policy.shadow or ""
        shadow = self.drafts.get(name) or self.by_key.get(name)
        return None if shadow is None or shadow.version == policy.version else shadow


class Publications(NamedTuple):
    """What a storage publishes."""

    records: Sequence[PolicyRecord] = ()
    versions: Mapping[str, PolicyVersion] = {}
    """Versions that the records name, by content."""


def compile_table(
    own: Sequence[PolicySnapshot], publications: Publications, index: ModelIndex
) -> tuple[PolicyTable, dict[str, str]]:
    """The table of a Router's ``own`` policies and the published ones; and by version, why it cannot use some of these
    with its models. The previous version, if it can use that, stays in force for them."""
    policies = [*own]
    shares: dict[str, Share] = {}
    drafts: dict[str, PolicySnapshot] = {}
    results: dict[str, PolicySnapshot | str] = {}
    owners = {key: snapshot.policy.name for key, snapshot in by_key(own).items()}
    published = [record for record in publications.records if record.content and owners.get(record.name) != record.name]
    for record in published:
        # no older ones: a process that has just started has not read them, and all must serve the same version
        for version in filter(None, map(publications.versions.get, (record.content or "", *record.previous[-1:]))):
            snapshot = results[version.label] = _draw(version, owners, index)
            if isinstance(snapshot, PolicySnapshot):
                policies.append(snapshot)
                owners |= dict.fromkeys(by_key([snapshot]), record.name)
                break
    for record in published:
        if (share := record.share) and (shared := publications.versions.get(share.content)):
            snapshot = results[shared.label] = _draw(shared, owners, index)
            if isinstance(snapshot, PolicySnapshot) and owners.get(record.name) == record.name:
                shares[record.name] = Share(snapshot, share.fraction, share.by)
    shadows = {snapshot.policy.shadow for snapshot in (*policies, *(share.snapshot for share in shares.values()))}
    for record in publications.records:
        if record.draft is not None and record.name in shadows:
            draft = PolicyVersion("", record.name, record.drafted_at or record.changed_at, record.draft)
            snapshot = results[record.name] = _draw(draft, owners, index)
            if isinstance(snapshot, PolicySnapshot):
                drafts[record.name] = snapshot
    free = [record for record in publications.records if record.content is None and record.owner == STORAGE]
    table = PolicyTable(policies, shares, drafts, {record.name for record in free if record.previous})
    problems = {label: result for label, result in results.items() if isinstance(result, str)}
    for name in shadows - {None} - table.by_key.keys() - results.keys():
        problems[f"shadow {quoted(name or '')}"] = "there is no draft or policy of this name"
    return table, problems


def _draw(version: PolicyVersion, owners: Mapping[str, str], index: ModelIndex) -> PolicySnapshot | str:
    """The policy of a version, or why it cannot be used. ``owners``: names of policies in force, by name and id."""
    if version.policy is None:
        return "its text is missing, or a later version of this library wrote it"
    try:  # another version of this library, or another program, may have written it
        (snapshot,) = resolve([check_policy(version.policy, 0)], index)
    except ValidationFailed as error:
        return str(error)
    for key in by_key([snapshot]):
        if owners.get(key, snapshot.policy.name) != snapshot.policy.name:
            return f"id: {quoted(key)} is that of {quoted(owners[key])}; change one"
    return with_version(snapshot, version)
