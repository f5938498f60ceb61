"""How publishing, sharing, rolling back and retiring change the record of a policy name, who owns a name, and how two
texts of a policy differ. Nothing here reads or writes a storage."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from msgspec import json, to_builtins
from msgspec.structs import replace

from routewright import wire
from routewright.errors import ValidationFailed
from routewright.wire.ids import policy_id
from routewright.wire.json_scan import quoted

from .policy import name_of, vary
from .request.rules import DEFAULT_GOAL
from .routing.scoring import WEIGHTS

T = TypeVar("T")
STORAGE = "storage"
"""Owner of the names that a ``Console`` publishes, and of free names."""
MAX_PREVIOUS = 50


def put_in_force(
    record: wire.PolicyRecord, content: str | None, share: wire.PolicyShare | None, at: str, by: str, note: str = ""
) -> wire.PolicyRecord:
    """Replace what is in force. The previous content is remembered."""
    previous = record.previous
    if record.content not in (None, content):
        previous = (*previous, record.content)[-MAX_PREVIOUS:]
    return replace(record, content=content, share=share, previous=previous, changed_at=at, changed_by=by, note=note)


def roll_back(record: wire.PolicyRecord, to: str | None, at: str, by: str) -> wire.PolicyRecord:
    """End a running share; without one, or to another content, return to the content before. Raises
    ``ValidationFailed`` if there is none."""
    if to is None and record.share is not None:
        return put_in_force(record, record.content, None, at, by)
    content = to or next(reversed(record.previous), None)
    if content is None:
        problem = f"is missing, and {quoted(record.name)} has no previous version"
        raise ValidationFailed.at("to", problem, "name the version to return to, or publish a draft")
    rolled_back = put_in_force(record, content, None, at, by)
    if content in record.previous and content != record.content:  # rolling back again goes further back
        older = record.previous[: -1 - record.previous[::-1].index(content)]
        rolled_back = replace(rolled_back, previous=older)
    return rolled_back


def find_change(
    before: wire.PolicyRecord, after: wire.PolicyRecord, versions: Mapping[str, wire.PolicyVersion]
) -> wire.PolicyChanged | None:
    """The event of a change. None: nothing was published or taken back. ``versions`` are those of the name, by
    content."""
    contents = [before.content, after.content]
    if before.content == after.content:  # a share has begun or ended, or nothing has changed
        contents = [record.content if record.share is None else record.share.content for record in (before, after)]
    old, new = (versions.get(content or "") for content in contents)
    if old == new:
        return None
    id = next((version.policy.id for version in (new, old) if version and version.policy), "") or policy_id(after.name)
    return wire.PolicyChanged(id, after.name, *(None if version is None else version.label for version in (old, new)))


def claim_names(
    owner: str, names: Collection[str], records: Iterable[wire.PolicyRecord], at: str
) -> list[wire.PutPolicyRecord]:
    """Claim names for ``code`` or ``file <path>``. It takes over names of other files and code, as a deployment from
    another folder does. Names that are gone from a file become free; those of code stay, since Routers may differ.
    Raises ``ValidationFailed`` for a name that the storage publishes."""
    known = {record.name: record for record in records}
    for name, old in known.items():
        if name in names and old.content is not None:
            problem = f"{quoted(name)} is published in the storage by {old.changed_by or 'somebody'}, {old.changed_at}"
            hint = f"take it out of the {owner.split()[0]}, or retire it there (routewright policies retire)"
            raise ValidationFailed.at(f"policies[{quoted(name)}]", problem, hint)
    lost = {record.name for record in known.values() if record.owner == owner != "code"}
    writes: list[wire.PutPolicyRecord] = []
    for name, new_owner in (dict.fromkeys(lost, STORAGE) | dict.fromkeys(names, owner)).items():
        before = known.get(name)
        if before is None or before.owner != new_owner:
            record = before or wire.PolicyRecord(name=name, changed_at=at)
            after = replace(record, owner=new_owner, changed_at=at, changed_by="")
            writes.append(wire.PutPolicyRecord(after, before or "absent"))
    return writes


def compare(version: wire.PolicyVersion | None, draft: wire.Policy) -> wire.PolicyDiff:
    """What a draft changes; without a version, in comparison with a policy without rules."""
    before = wire.Policy(name=draft.name) if version is None or version.policy is None else version.policy
    fields = sorted(_differing(_fields_of(before), _fields_of(draft)))
    weights = _differing(_weights_of(before), _weights_of(draft))
    return wire.PolicyDiff(
        draft.name,
        None if version is None else version.label,
        tuple(wire.PolicyDifference(*row) for row in fields),
        tuple(wire.WeightShift(*row) for row in weights),
    )


def _differing(old: Mapping[str, T], new: Mapping[str, T]) -> list[tuple[str, T | None, T | None]]:
    return [(name, old.get(name), new.get(name)) for name in {**new, **old} if old.get(name) != new.get(name)]


def _fields_of(policy: wire.Policy) -> dict[str, str]:
    """The fields that are set, as JSON by path. Classes go by their names, so that one more moves no other."""
    classes = {name_of(entry): to_builtins(entry) for entry in policy.classes or ()}
    # versions of files and code always have an id, and may have a date
    plain = replace(policy, classes=None, id=policy.id or policy_id(policy.name), created_at=None)
    fields = to_builtins(plain) | {f"classes[{name}]": entry for name, entry in classes.items()}
    if classes:
        fields["classes"] = [*classes]
    return _flatten(fields, "")


def _flatten(fields: Mapping[str, object], path: str) -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{path}{name}.")
        else:
            flat[path + name] = json.encode(value).decode()
    return flat


def _weights_of(policy: wire.Policy) -> dict[str, wire.PolicyWeights]:
    """Weights of a request that sets neither goal nor strategy, by class; of the policy itself under ``""``."""
    variants = {"": policy} | {name_of(entry): vary(policy, entry) for entry in policy.classes or ()}
    weights: dict[str, wire.PolicyWeights] = {}
    for name, variant in variants.items():
        strategy = variant.strategy or "balanced"
        goal = variant.goal or DEFAULT_GOAL[strategy]
        weights[name] = variant.weights or wire.PolicyWeights(**WEIGHTS[strategy][goal]._asdict())
    return weights
