"""The policies that requests can name, which a publication replaces as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from msgspec import json

from routewright.wire import PolicySnapshot

from .guardrails.screen import guardrails_of
from .policy import by_key

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
        text = json.encode([main.policy.name, value])
        assignment = blake2b(text, digest_size=_DIGEST_BITS // 8).hexdigest()
        is_shared = int(assignment, 16) < self.fraction * 2**_DIGEST_BITS
        return self.snapshot if is_shared else main, assignment


class PolicyTable:
    """Policies in force. Immutable, so that one assignment puts all of them in force."""

    def __init__(
        self,
        policies: Sequence[PolicySnapshot] = (),
        shares: Mapping[str, Share] | None = None,
        drafts: Mapping[str, PolicySnapshot] | None = None,
    ) -> None:
        """``shares`` by the name of their policy, ``drafts`` by their own."""
        self.policies = policies
        self.by_key = by_key(policies)
        self.shares = {self.by_key[name].id: share for name, share in (shares or {}).items()}
        """By the snapshot id of the version that serves the rest."""
        self.versions = (*policies, *(share.snapshot for share in self.shares.values()))
        self._drafts = drafts or {}
        snapshots = (snapshot for version in self.versions for snapshot in (version, *version.classes))
        self.guardrails = {
            snapshot.id: guardrails_of(snapshot.policy) for snapshot in snapshots if snapshot.policy.guardrails
        }
        """Compiled, by snapshot id."""

    def shadow(self, policy: PolicySnapshot) -> PolicySnapshot | None:
        """The policy's shadow: the draft of that name, else the policy. None: there is no such, or it is the same."""
        name = policy.policy.shadow or ""
        shadow = self._drafts.get(name) or self.by_key.get(name)
        return None if shadow is None or shadow.version == policy.version else shadow
