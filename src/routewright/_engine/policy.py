"""The policies in force, and what one of them says of how a request is carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from routewright._core.call import Rules
from routewright._core.guardrail import guardrails_of
from routewright.protocols import Guardrail
from routewright.wire import OnPartial, PolicyFallback, PolicySnapshot

from .entry import Entry


class Published(NamedTuple):
    """The policies in force, replaced as a whole: a request keeps the one that it found."""

    snapshots: Sequence[PolicySnapshot]
    by_key: Mapping[str, PolicySnapshot]
    guardrails: Mapping[str, Sequence[Guardrail]]
    """Of each policy, by its snapshot's id: made once, since long lists take their time."""

    def guardrails_of(self, published: PolicySnapshot) -> Sequence[Guardrail]:
        """Those of a policy, which need not be in force any more."""
        if not published.policy.guardrails:
            return ()
        found = self.guardrails.get(published.id)
        return guardrails_of(published.policy) if found is None else found


def is_hedged(entry: Entry) -> bool:
    """Whether a second model may be asked beside one that shows no life."""
    rules = _policy_fallback(entry)
    return rules is not None and rules.hedge


def rules_of(entry: Entry, on_partial: OnPartial | None) -> Rules:
    """How a request is carried out; ``on_partial`` holds in place of what it says."""
    asked, given = entry.request.fallback, _policy_fallback(entry)
    if asked is None and given is None and on_partial is None:
        return entry.fleet.rules
    return Rules(
        entry.fleet.limits,
        on_partial or (None if asked is None else asked.on_partial) or "restart",
        on_refusal_fall_back=given is not None and given.on_refusal == "fallback",
        hedged=given is not None and given.hedge,
    )


def _policy_fallback(entry: Entry) -> PolicyFallback | None:
    return None if entry.laid is None else entry.laid.published.policy.fallback
