"""Checks policies, publishes versions of them, and applies them to requests (contract 2)."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar, get_args

from msgspec.structs import asdict, astuple, replace

from routewright import wire
from routewright.errors import Problem, ValidationFailed
from routewright.wire.conversion import rebuild
from routewright.wire.ids import policy_id
from routewright.wire.json_scan import quoted
from routewright.wire.problems import Problems, as_attribute, did_you_mean, listed, shown

from .catalogue.models import content_id
from .guardrails.custom import check_custom
from .model_selector import CAPABLE, ModelIndex, resolve_order, select_models
from .request import rules
from .routing.quality import micro

N = TypeVar("N", int, float)
_OF = "spent_of_"  # fields of ``PolicyWhen`` begin like this
_CONDITION = re.compile(r"(>=|<=|>|<) *(0(?:\.\d{1,6})?|1(?:\.0{1,6})?)")
_COMPARISONS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


def check_policy(policy: object, place: int) -> wire.Policy:
    """Check the types and values of a policy. Raises ``ValidationFailed`` with policy and field. Whether its models
    exist is checked on publication."""
    if not isinstance(policy, wire.Policy):
        raise ValidationFailed.at(f"policies[{place}]", f"{shown(policy)} is not a Policy", "pass Policy(...)")
    name: object = policy.name
    path = f"policies[{quoted(name) if isinstance(name, str) else place}]"
    policy = rebuild(policy, wire.Policy, path)
    problems: Problems = []
    rules.check_text(f"{path}.name", policy.name, problems)
    if "@" in policy.name:
        problem = "contains '@', which separates name and date in policy_version"
        problems.append(Problem(f"{path}.name", problem, "remove it"))
    if policy.id:
        rules.check_text(f"{path}.id", policy.id, problems)
    if policy.shadow is not None:
        rules.check_text(f"{path}.shadow", policy.shadow, problems)
    if policy.created_at is not None:
        rules.check_date(f"{path}.created_at", policy.created_at, problems)
    _check_rules(path, policy, problems)
    for number, entry in enumerate(policy.classes or ()):
        _check_class(f"{path}.classes[{number}]", entry, problems)
    rules.refuse([as_attribute(entry, f"{path}.") for entry in problems])
    return policy


def _check_class(path: str, policy_class: wire.PolicyClass, problems: Problems) -> None:
    """Check a class: its conditions and rules."""
    if not _conditions_of(policy_class):
        hint = "set its metadata, or 'when'; put rules for all requests into the policy itself"
        problems.append(Problem(f"{path}.match", "matches every request", hint))
    for period, text in _limits_of(policy_class.when):
        if _CONDITION.fullmatch(text) is None:
            hint = "compare with a share from 0 to 1, such as '>0.8', '>=0.5' or '<0.2'"
            problems.append(Problem(f"{path}.when.{_OF}{period}", f"is {quoted(text)}", hint))
    _check_rules(path, policy_class, problems)


def _check_rules(path: str, policy: wire.PolicyRules, problems: Problems) -> None:
    for place, region in enumerate(policy.regions or ()):
        rules.check_text(f"{path}.regions[{place}]", region, problems)
    rules.check_whitelist(f"{path}.models", policy.models, problems)
    rules.check_ids(f"{path}.exclude", policy.exclude or [], problems)
    lists = {"models": policy.models or (), "exclude": policy.exclude or ()}
    for at, word in [(f"{path}.{name}[{place}]", word) for name in lists for place, word in enumerate(lists[name])]:
        parts = word.split(":", 1)
        if word and not rules.is_name(word):
            rules.check_text(at, word, problems)
        elif parts[0] == "capability" and parts[-1] not in CAPABLE:  # matches no model of any catalogue
            problem = f"{quoted(word)} matches no model; capabilities are {', '.join(CAPABLE)}"
            problems.append(Problem(at, problem, did_you_mean(parts[-1], CAPABLE) or "use one of them"))
    if policy.weights is not None:
        before = len(problems)
        rules.check_numbers(wire.PolicyWeights, f"{path}.weights.", policy.weights, problems)
        total = sum(astuple(policy.weights))
        if len(problems) == before and total != 100:
            problems.append(Problem(f"{path}.weights", f"add up to {total:g} percent", "make them add up to 100"))
        if both := [name for name in ("goal", "strategy") if getattr(policy, name) is not None]:
            problem = f"cannot be combined with {' and '.join(both)}"
            hint = "weights replace goal and strategy; keep one or the other"
            problems.append(Problem(f"{path}.weights", problem, hint))
    rules.check_ids(f"{path}.prefer", policy.prefer or [], problems)
    if policy.fallback is not None:
        rules.check_ids(f"{path}.fallback.models", policy.fallback.models or [], problems)
        rules.check_numbers(wire.PolicyFallback, f"{path}.fallback.", policy.fallback, problems)
    if policy.budget is not None:
        rules.check_numbers(wire.Budget, f"{path}.budget.", policy.budget, problems)
    if isinstance(policy.cache, wire.CacheOpts):
        rules.check_cache(f"{path}.cache", policy.cache, problems)
    for place, guardrail in enumerate(policy.guardrails or ()):
        _check_guardrail(f"{path}.guardrails[{place}]", guardrail, problems)
    if policy.params is not None:
        own: Problems = []
        rules.check_params(policy.params, own)
        problems += [entry._replace(path=f"{path}.{entry.path}") for entry in own]
    rules.check_numbers(wire.Policy, f"{path}.", policy, problems)


def _check_guardrail(path: str, guardrail: wire.PolicyGuardrail, problems: Problems) -> None:
    if guardrail.patterns is None and guardrail.deny is None and guardrail.custom is None:
        hint = "set 'patterns', 'deny', 'custom', or several of them"
        problems.append(Problem(path, "has nothing to look for", hint))
    if guardrail.patterns is not None:
        rules.check_choice(f"{path}.patterns", guardrail.patterns, get_args(wire.PatternKind), problems)
    if guardrail.deny is not None:
        rules.check_phrases(f"{path}.deny", guardrail.deny, problems)
    if guardrail.custom is not None:
        check_custom(f"{path}.custom", guardrail.custom, problems)
    if guardrail.stages is not None:
        rules.check_choice(f"{path}.stages", guardrail.stages, get_args(wire.Stage), problems)


def check_apart(policies: Iterable[wire.Policy]) -> None:
    """Raise ``ValidationFailed`` if two policies share a name or id."""
    taken: set[str] = set()
    for place, policy in enumerate(policies):
        keys = (policy.name, policy.id or policy_id(policy.name))
        for key in keys:
            if key in taken:
                hint = "give each policy its own name and id"
                raise ValidationFailed.at(f"policies[{place}]", f"{quoted(key)} is used twice", hint)
        taken.update(keys)


def by_key(snapshots: Iterable[wire.PolicySnapshot]) -> dict[str, wire.PolicySnapshot]:
    """Policies by id and by name."""
    return {key: snapshot for snapshot in snapshots for key in (snapshot.policy.id, snapshot.policy.name)}


def find_policy(
    key: str, policies: Mapping[str, wire.PolicySnapshot], retired: Collection[str] = ()
) -> wire.PolicySnapshot:
    """Look up a policy in the result of ``by_key``. ``retired``: names that are no longer in force. Raises
    ``ValidationFailed`` with a suggestion."""
    if (policy := policies.get(key)) is None:
        if key in retired:
            hint = "Console.policies.roll_back() publishes it again"
            raise ValidationFailed.at("policy_id", f"the policy {quoted(key)} is retired", hint)
        names = list(dict.fromkeys(snapshot.policy.name for snapshot in policies.values()))
        known = f"known: {listed(names)}" if names else "pass it to Router(policies=...) or publish it in storage"
        raise ValidationFailed.at("policy_id", f"unknown policy {quoted(key)}", did_you_mean(key, policies) or known)
    return policy


def class_of(
    policy: wire.PolicySnapshot, metadata: Mapping[str, object], spent: wire.SpentShares | None = None
) -> tuple[wire.PolicySnapshot, str]:
    """The policy for a request with this metadata, of a caller that has ``spent`` so much: that of the first matching
    class, and the name of the class."""
    for policy_class, snapshot in zip(policy.policy.classes or (), policy.classes, strict=True):
        if _matches(policy_class.match, metadata) and _applies(policy_class.when, spent):
            return snapshot, name_of(policy_class)
    return policy, ""


def reads_limits(policy: wire.Policy, metadata: Mapping[str, object] | None = None) -> bool:
    """True if a class of the policy depends on what the caller has spent. ``metadata`` None: a class for any."""
    return any(
        policy_class.when is not None and (metadata is None or _matches(policy_class.match, metadata))
        for policy_class in policy.classes or ()
    )


def _matches(match: wire.PolicyMatch | None, metadata: Mapping[str, object]) -> bool:
    for key, value in () if match is None else match.metadata.items():
        tag = metadata.get(key)
        if tag != value or isinstance(tag, bool) != isinstance(value, bool):  # since True == 1
            return False
    return True


def _applies(when: wire.PolicyWhen | None, spent: wire.SpentShares | None) -> bool:
    for period, text in _limits_of(when):
        share = getattr(spent, period, None)
        condition = _CONDITION.fullmatch(text)
        if share is None or condition is None or not _COMPARISONS[condition[1]](share, micro(float(condition[2]))):
            return False
    return True


def _limits_of(when: wire.PolicyWhen | None) -> list[tuple[str, str]]:
    """The conditions on limits, by period."""
    fields = {} if when is None else asdict(when)
    return [(name.removeprefix(_OF), text) for name, text in fields.items() if text is not None]


def _conditions_of(policy_class: wire.PolicyClass) -> list[str]:
    match = policy_class.match
    tags = [f"{key}={value}" for key, value in match.metadata.items()] if match is not None else []
    return tags + [f"{_OF}{period}{text}" for period, text in _limits_of(policy_class.when)]


def name_of(policy_class: wire.PolicyClass) -> str:
    """Name of a class. Default: its conditions."""
    return policy_class.name or " ".join(_conditions_of(policy_class))


class AppliedPolicy(NamedTuple):
    """A policy applied to a request."""

    snapshot: wire.PolicySnapshot
    requested_models: Sequence[str] | None
    """Ids of the models named by the request itself."""
    requested: wire.Requested = wire.Requested()
    spent: wire.SpentShares | None = None
    """What its classes read of the caller's limits."""
    shadow: wire.PolicySnapshot | None = None
    """The policy that decides beside it."""


def apply_policy(request: wire.RouteRequest, snapshot: wire.PolicySnapshot) -> wire.RouteRequest:
    """Apply a policy to a request. ``models`` is empty if the lists have none in common. Raises
    ``ValidationFailed``."""
    policy = snapshot.policy
    goal, strategy = request.goal, request.strategy
    if policy.goal is not None or policy.strategy is not None:  # both are the policy's, with its default for the other
        strategy = policy.strategy or "balanced"
        goal = policy.goal or rules.DEFAULT_GOAL[strategy]
    params = request.params
    default = policy.params
    if params is None or default is None:
        params = params or default
    else:  # the request's take precedence
        own = {name: value for name in wire.Params.__struct_fields__ if (value := getattr(params, name)) is not None}
        own["max_output_tokens"] = _smaller(params.max_output_tokens, default.max_output_tokens)
        if default.extra:
            more = {name: {**default.extra.get(name, {}), **fields} for name, fields in (params.extra or {}).items()}
            own["extra"] = {**default.extra, **more}
        params = replace(default, **own)
    models = _common_models(request.models, snapshot.models)
    budget = request.budget or policy.budget
    if budget is not None and policy.budget is not None:
        cost_usd = _smaller(budget.max_cost_usd, policy.budget.max_cost_usd)
        budget = wire.Budget(cost_usd, _smaller(budget.max_tokens, policy.budget.max_tokens))
    return replace(
        request,
        params=params,
        goal=goal,
        strategy=strategy,
        models=models,
        budget=budget,
        timeout_ms=_smaller(request.timeout_ms, policy.timeout_ms),
        fallback=_fallback(request.fallback, snapshot, models),
        cache=_narrower(request.cache, policy.cache),
        prefer=[*dict.fromkeys((*(request.prefer or ()), *snapshot.prefer))] or None,
    )


def _common_models(request_models: list[str] | None, policy_models: Sequence[str] | None) -> list[str] | None:
    if policy_models is None:
        return request_models
    if request_models is None:
        return [*policy_models]
    names = set(policy_models)
    return [model for model in request_models if model in names]


def _smaller(first: N | None, second: N | None) -> N | None:
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def _fallback(
    own: wire.Fallback | None, snapshot: wire.PolicySnapshot, models: list[str] | None
) -> wire.Fallback | None:
    """The request's chain, else the policy's, limited to the common ``models``. Raises ``ValidationFailed`` if no model
    of the request's chain is allowed by the policy."""
    policy = snapshot.policy
    default = policy.fallback
    if own is None and default is None:
        return None
    own = own or wire.Fallback()
    default = default or wire.PolicyFallback()
    chain = snapshot.chain if own.models is None else own.models
    if own.models and snapshot.models is not None and not {*snapshot.models}.intersection(own.models):
        problem = f"{listed(own.models)} are outside the models of policy {policy.name!r}: {listed(snapshot.models)}"
        raise ValidationFailed.at("fallback.models", problem, "choose from these, or leave it out")
    return wire.Fallback(
        None if chain is None else _common_models([*chain], models),
        default.max_retries if own.max_retries is None else own.max_retries,
        own.on_partial or default.on_partial,
    )


def _narrower(own: bool | wire.CacheOpts | None, outer: bool | wire.CacheOpts | None) -> bool | wire.CacheOpts | None:
    """A request may turn a policy's cache off or tighten it, never widen it."""
    if outer is None or own is False:
        return own
    if outer is False:
        return False
    if own is None or own is True:
        return outer
    if outer is True:
        return own
    max_error, threshold = own.max_error, own.threshold
    if outer.threshold is not None:  # the stricter of two limits of the same kind, else the policy's
        max_error, threshold = None, max(threshold or 0.0, outer.threshold)
    elif outer.max_error is not None:
        max_error, threshold = _smaller(max_error, outer.max_error), None
    return replace(
        own,
        mode="exact" if "exact" in (own.mode, outer.mode) else "semantic",
        ttl_seconds=min(own.ttl_seconds, outer.ttl_seconds),
        explore=max(own.explore, outer.explore),
        namespace="/".join(name for name in (outer.namespace, own.namespace) if name) or None,
        max_error=max_error,
        threshold=threshold,
    )


def resolve(policies: Iterable[wire.Policy], index: ModelIndex) -> list[wire.PolicySnapshot]:
    """Assign ids to policies and resolve their models, without versions. Raises ``ValidationFailed`` for a repeated
    name or id, for words that match no model, and for a chain outside the policy's own models."""
    snapshots: list[wire.PolicySnapshot] = []
    policies = tuple(policies)
    check_apart(policies)
    for policy in policies:
        path = f"policies[{quoted(policy.name)}]"
        models = select_models(policy, index, path)
        fallbacks = None if policy.fallback is None else policy.fallback.models
        chain = resolve_order(fallbacks, models, index, path, "fallback.models")
        prefer = resolve_order(policy.prefer, models, index, path, "prefer") or ()
        full = replace(policy, id=policy.id or policy_id(policy.name))
        classes: list[wire.PolicySnapshot] = []
        for number, variant in enumerate(policy.classes or ()):
            try:
                classes += resolve([vary(full, variant)], index)
            except ValidationFailed as error:
                inside = f"{path}.classes[{number}]"
                problems = [entry._replace(path=entry.path.replace(path, inside, 1)) for entry in error.problems]
                raise ValidationFailed.of(*problems) from None
        snapshots.append(wire.PolicySnapshot("", "", full, models, chain, prefer, tuple(classes)))
    return snapshots


def vary(policy: wire.Policy, policy_class: wire.PolicyClass) -> wire.Policy:
    """The policy for the requests of one of its classes."""
    fields = {name: getattr(policy_class, name) for name in wire.PolicyRules.__struct_fields__}
    own = {name: value for name, value in fields.items() if value is not None}
    if policy_class.weights is not None:  # weights replace both
        own |= {"goal": None, "strategy": None}
    elif policy_class.goal or policy_class.strategy:
        own["weights"] = None
    return replace(policy, classes=None, **own)


def version_write(snapshot: wire.PolicySnapshot, today: str) -> wire.PutPolicyVersion:
    """The write that assigns a version to a policy's content. ``today`` is the default date."""
    policy = snapshot.policy
    drawn_up: list[object] = [policy, snapshot.models, snapshot.chain, snapshot.prefer]
    for class_snapshot in snapshot.classes:  # without classes the hash is the same as before classes existed
        drawn_up += [class_snapshot.models, class_snapshot.chain, class_snapshot.prefer]
    created_at = policy.created_at or f"{today}T00:00:00Z"
    return wire.PutPolicyVersion(content_id(drawn_up), policy.name, created_at, policy)


def with_version(snapshot: wire.PolicySnapshot, version: wire.PolicyVersion) -> wire.PolicySnapshot:
    """The policy with its version."""
    policy = replace(snapshot.policy, created_at=version.created_at)
    content: list[object] = [version.label, policy, snapshot.models, snapshot.chain]
    if snapshot.prefer:  # without it the id is the same as before ``prefer`` existed
        content.append(snapshot.prefer)
    classes = tuple([with_version(class_snapshot, version) for class_snapshot in snapshot.classes])
    return replace(snapshot, id="pos_" + content_id(content), version=version.label, policy=policy, classes=classes)


def next_label(name: str, created_at: str, taken: Iterable[str]) -> str:
    """Label of a policy's new content: ``name@date``, or ``name@date.2`` if that is taken, and so on."""
    first = f"{name}@{created_at[:10]}"
    numbers = (label.removeprefix(first) for label in taken if label == first or label.startswith(first + "."))
    last = max((int(number[1:] or 1) for number in numbers if not number or number[1:].isdigit()), default=0)
    return f"{first}.{last + 1}" if last else first


def own_version(write: wire.PutPolicyVersion) -> wire.PolicyVersion:
    """Version of a policy while the storage is unavailable. Its label is derived from the content."""
    return version_of(write, f"{write.name}@{write.created_at[:10]}.x{write.content[:10]}")


def version_of(write: wire.PutPolicyVersion, label: str) -> wire.PolicyVersion:
    """The version with its label."""
    return wire.PolicyVersion(write.content, label, write.created_at, write.policy, write.by, write.note)


def in_order(version: wire.PolicyVersion) -> tuple[str, int, str]:
    """Sort key of a name's versions: those of a moment by the number in the label."""
    return version.created_at, len(version.label), version.label


class Versions:
    """Versions of policies. They are never removed, so that no label is assigned twice."""

    def __init__(self) -> None:
        self._by_content: dict[str, wire.PolicyVersion] = {}
        self._labels: dict[str, list[str]] = {}  # by policy name

    def put(self, write: wire.PutPolicyVersion) -> tuple[wire.PolicyVersion, bool]:
        """Version of a content, and whether it is new."""
        if (version := self._by_content.get(write.content)) is not None:
            return version, False
        labels = self._labels.setdefault(write.name, [])
        labels.append(next_label(write.name, write.created_at, labels))
        self._by_content[write.content] = version = version_of(write, labels[-1])
        return version, True

    def find(self, query: wire.PolicyVersions) -> list[wire.PolicyVersion]:
        """The answer to a query."""
        if query.name is None:
            return [self._by_content[content] for content in query.contents if content in self._by_content]
        labels = self._labels.get(query.name, ())
        return sorted((item for item in self._by_content.values() if item.label in labels), key=in_order, reverse=True)


def find_changes(before: Iterable[wire.PolicySnapshot], now: Iterable[wire.PolicySnapshot]) -> list[wire.PolicyChanged]:
    """Changes made by a publication, in order of the policies, removed ones last."""
    old = {snapshot.policy.name: snapshot for snapshot in before}
    new = {snapshot.policy.name: snapshot for snapshot in now}
    changes: list[wire.PolicyChanged] = []
    for name in (*new, *(name for name in old if name not in new)):
        was, now_is = old.get(name), new.get(name)
        versions = None if was is None else was.version, None if now_is is None else now_is.version
        if versions[0] != versions[1]:
            changes.append(wire.PolicyChanged((now_is or old[name]).policy.id, name, *versions))
    return changes
