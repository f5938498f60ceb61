"""Checks policies, publishes versions of them, and applies them to requests (contract 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple, TypeVar, get_args

from msgspec.structs import astuple, replace

from routewright import wire
from routewright.errors import Problem, ValidationFailed
from routewright.wire.conversion import rebuild
from routewright.wire.ids import ALPHABET
from routewright.wire.json_scan import quoted
from routewright.wire.problems import Problems, as_attribute, did_you_mean, listed, shown

from .catalogue.models import content_id
from .guardrails.custom import check_custom
from .model_selector import CAPABLE, Known, allowed, in_order
from .request import rules

N = TypeVar("N", int, float)


def policy_id(name: str) -> str:
    """Default id of a policy: ``pol_`` and 26 characters from the hash of its name."""
    number = int.from_bytes(blake2b(name.encode(), digest_size=17).digest(), "big")
    return "pol_" + "".join(ALPHABET[(number >> shift) & 31] for shift in range(0, 130, 5))


def checked_policy(policy: object, place: int) -> wire.Policy:
    """Check the types and values of a policy. Raises ``ValidationFailed`` with policy and field. Whether its models
    exist is checked on publication."""
    if not isinstance(policy, wire.Policy):
        raise ValidationFailed.at(f"policies[{place}]", f"{shown(policy)} is not a Policy", "pass Policy(...)")
    name: object = policy.name
    path = f"policies[{quoted(name) if isinstance(name, str) else place}]"
    policy = rebuild(policy, wire.Policy, path)
    found: Problems = []
    rules.check_text(f"{path}.name", policy.name, found)
    if "@" in policy.name:
        found.append(
            Problem(f"{path}.name", "contains '@', which separates name and date in policy_version", "remove it")
        )
    if policy.id:
        rules.check_text(f"{path}.id", policy.id, found)
    if policy.created_at is not None:
        rules.check_date(f"{path}.created_at", policy.created_at, found)
    _check_rules(path, policy, found)
    for number, each in enumerate(policy.classes or ()):
        _check_class(f"{path}.classes[{number}]", each, found)
    if found:
        raise ValidationFailed.of(*(as_attribute(each, f"{path}.") for each in found[: rules.MAX_PROBLEMS]))
    return policy


def _check_class(path: str, each: wire.PolicyClass, found: Problems) -> None:
    """Check a class: its conditions and rules."""
    if not each.match.metadata:
        hint = "set metadata; put rules for all requests into the policy itself"
        found.append(Problem(f"{path}.match", "matches every request", hint))
    _check_rules(path, each, found)


def _check_rules(path: str, policy: wire.PolicyRules, found: Problems) -> None:
    for place, region in enumerate(policy.regions or ()):
        rules.check_text(f"{path}.regions[{place}]", region, found)
    rules.check_whitelist(f"{path}.models", policy.models, found)
    rules.check_ids(f"{path}.exclude", policy.exclude or [], found)
    lists = {"models": policy.models or (), "exclude": policy.exclude or ()}
    for at, word in [(f"{path}.{name}[{place}]", word) for name in lists for place, word in enumerate(lists[name])]:
        kind, _, value = word.partition(":")
        if word and not rules.is_name(word):
            rules.check_text(at, word, found)
        elif kind == "capability" and value not in CAPABLE:  # matches no model of any catalogue
            problem = f"{quoted(word)} matches no model; capabilities are {', '.join(CAPABLE)}"
            found.append(Problem(at, problem, did_you_mean(value, CAPABLE) or "use one of them"))
    if policy.weights is not None:
        before = len(found)
        rules.check_numbers(wire.PolicyWeights, f"{path}.weights.", policy.weights, found)
        total = sum(astuple(policy.weights))
        if len(found) == before and total != 100:
            found.append(Problem(f"{path}.weights", f"add up to {total:g} percent", "make them add up to 100"))
        if both := [name for name in ("goal", "strategy") if getattr(policy, name) is not None]:
            problem = f"cannot be combined with {' and '.join(both)}"
            hint = "weights replace goal and strategy; keep one or the other"
            found.append(Problem(f"{path}.weights", problem, hint))
    rules.check_ids(f"{path}.prefer", policy.prefer or [], found)
    if policy.fallback is not None:
        rules.check_ids(f"{path}.fallback.models", policy.fallback.models or [], found)
        rules.check_numbers(wire.PolicyFallback, f"{path}.fallback.", policy.fallback, found)
    if policy.budget is not None:
        rules.check_numbers(wire.Budget, f"{path}.budget.", policy.budget, found)
    if isinstance(policy.cache, wire.CacheOpts):
        rules.check_cache(f"{path}.cache", policy.cache, found)
    for place, guardrail in enumerate(policy.guardrails or ()):
        _check_guardrail(f"{path}.guardrails[{place}]", guardrail, found)
    if policy.params is not None:
        own: Problems = []
        rules.check_params(policy.params, own)
        found += [each._replace(path=f"{path}.{each.path}") for each in own]
    rules.check_numbers(wire.Policy, f"{path}.", policy, found)


def _check_guardrail(path: str, guardrail: wire.PolicyGuardrail, found: Problems) -> None:
    if guardrail.patterns is None and guardrail.deny is None and guardrail.custom is None:
        found.append(Problem(path, "has nothing to look for", "set 'patterns', 'deny', 'custom', or several of them"))
    if guardrail.patterns is not None:
        rules.check_choice(f"{path}.patterns", guardrail.patterns, get_args(wire.PatternKind), found)
    if guardrail.deny is not None:
        rules.check_phrases(f"{path}.deny", guardrail.deny, found)
    if guardrail.custom is not None:
        check_custom(f"{path}.custom", guardrail.custom, found)
    if guardrail.stages is not None:
        rules.check_choice(f"{path}.stages", guardrail.stages, get_args(wire.Stage), found)


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


def by_key(published: Iterable[wire.PolicySnapshot]) -> dict[str, wire.PolicySnapshot]:
    """Policies by id and by name."""
    return {key: snapshot for snapshot in published for key in (snapshot.policy.id, snapshot.policy.name)}


def find_policy(key: str, policies: Mapping[str, wire.PolicySnapshot]) -> wire.PolicySnapshot:
    """Look up a policy in the result of ``by_key``. Raises ``ValidationFailed`` with a suggestion."""
    found = policies.get(key)
    if found is None:
        names = list(dict.fromkeys(snapshot.policy.name for snapshot in policies.values()))
        known = f"known: {listed(names)}" if names else "pass it to Router(policies=...)"
        hint = did_you_mean(key, policies) or known
        raise ValidationFailed.at("policy_id", f"unknown policy {quoted(key)}", hint)
    return found


def class_of(published: wire.PolicySnapshot, metadata: Mapping[str, object]) -> tuple[wire.PolicySnapshot, str]:
    """The policy for a request with this metadata: that of the first matching class, and the name of the class."""
    for each, made in zip(published.policy.classes or (), published.classes, strict=True):
        if _matches(each.match, metadata):
            return made, name_of(each)
    return published, ""


def _matches(match: wire.PolicyMatch, metadata: Mapping[str, object]) -> bool:
    for key, value in match.metadata.items():
        tag = metadata.get(key)
        if tag != value or isinstance(tag, bool) != isinstance(value, bool):  # since True == 1
            return False
    return True


def name_of(each: wire.PolicyClass) -> str:
    """Name of a class. Default: its conditions."""
    return each.name or " ".join(f"{key}={value}" for key, value in each.match.metadata.items())


class AppliedPolicy(NamedTuple):
    """A policy applied to a request."""

    published: wire.PolicySnapshot
    requested_models: Sequence[str] | None
    """Ids of the models named by the request itself."""


def under_policy(request: wire.RouteRequest, published: wire.PolicySnapshot) -> wire.RouteRequest:
    """Apply a policy to a request. ``models`` is empty if the lists have none in common. Raises
    ``ValidationFailed``."""
    policy = published.policy
    goal, strategy = request.goal, request.strategy
    if policy.goal is not None or policy.strategy is not None:  # both are the policy's, with its default for the other
        strategy = policy.strategy or "balanced"
        goal = policy.goal or ("quality" if strategy == "quality-first" else "cost")
    asked, params = request.params, policy.params
    if asked is None or params is None:
        params = asked or params
    else:  # the request's take precedence
        own = {name: value for name in wire.Params.__struct_fields__ if (value := getattr(asked, name)) is not None}
        own["max_output_tokens"] = _smaller(asked.max_output_tokens, params.max_output_tokens)
        if params.extra:
            more = {name: {**params.extra.get(name, {}), **each} for name, each in (asked.extra or {}).items()}
            own["extra"] = {**params.extra, **more}
        params = replace(params, **own)
    models = _common_models(request.models, published.models)
    budget, given = request.budget or policy.budget, policy.budget
    if budget is not None and given is not None:
        budget = wire.Budget(
            _smaller(budget.max_cost_usd, given.max_cost_usd), _smaller(budget.max_tokens, given.max_tokens)
        )
    return replace(
        request,
        params=params,
        goal=goal,
        strategy=strategy,
        models=models,
        budget=budget,
        timeout_ms=_smaller(request.timeout_ms, policy.timeout_ms),
        fallback=_fallback(request.fallback, published, models),
        cache=_narrower(request.cache, policy.cache),
        prefer=[*dict.fromkeys((*(request.prefer or ()), *published.prefer))] or None,
    )


def _common_models(asked: list[str] | None, given: Sequence[str] | None) -> list[str] | None:
    if given is None:
        return asked
    if asked is None:
        return [*given]
    allowed = set(given)
    return [model for model in asked if model in allowed]


def _smaller(first: N | None, second: N | None) -> N | None:
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def _fallback(
    asked: wire.Fallback | None, published: wire.PolicySnapshot, models: list[str] | None
) -> wire.Fallback | None:
    """The request's chain, else the policy's, limited to the common ``models``. Raises ``ValidationFailed`` if no model
    of the request's chain is allowed by the policy."""
    policy = published.policy
    given = policy.fallback
    if asked is None and given is None:
        return None
    asked, given = asked or wire.Fallback(), given or wire.PolicyFallback()
    chain, inside = published.chain if asked.models is None else asked.models, published.models
    if asked.models and inside is not None and not {*inside}.intersection(asked.models):
        problem = f"{listed(asked.models)} are outside the models of policy {policy.name!r}: {listed(inside)}"
        raise ValidationFailed.at("fallback.models", problem, "choose from these, or leave it out")
    return wire.Fallback(
        None if chain is None else _common_models([*chain], models),
        given.max_retries if asked.max_retries is None else asked.max_retries,
        asked.on_partial or given.on_partial,
    )


def _narrower(asked: bool | wire.CacheOpts | None, given: bool | wire.CacheOpts | None) -> bool | wire.CacheOpts | None:
    """A request may turn a policy's cache off or tighten it, never widen it."""
    if given is None or asked is False:
        return asked
    if given is False:
        return False
    if asked is None or asked is True:
        return given
    if given is True:
        return asked
    max_error, threshold = asked.max_error, asked.threshold
    if given.threshold is not None:  # the stricter of two limits of the same kind, else the policy's
        max_error, threshold = None, max(threshold or 0.0, given.threshold)
    elif given.max_error is not None:
        max_error, threshold = _smaller(max_error, given.max_error), None
    return replace(
        asked,
        mode="exact" if "exact" in (asked.mode, given.mode) else "semantic",
        ttl_seconds=min(asked.ttl_seconds, given.ttl_seconds),
        explore=max(asked.explore, given.explore),
        namespace="/".join(each for each in (given.namespace, asked.namespace) if each) or None,
        max_error=max_error,
        threshold=threshold,
    )


def drawn(policies: Iterable[wire.Policy], known: Known) -> list[wire.PolicySnapshot]:
    """Assign ids to policies and resolve their models, without versions. Raises ``ValidationFailed`` for a repeated
    name or id, for words that match no model, and for a chain outside the policy's own models."""
    found: list[wire.PolicySnapshot] = []
    policies = tuple(policies)
    check_apart(policies)
    for policy in policies:
        path = f"policies[{quoted(policy.name)}]"
        models = allowed(policy, known, path)
        fallbacks = None if policy.fallback is None else policy.fallback.models
        chain = in_order(fallbacks, models, known, path, "fallback.models")
        prefer = in_order(policy.prefer, models, known, path, "prefer") or ()
        full = replace(policy, id=policy.id or policy_id(policy.name))
        classes: list[wire.PolicySnapshot] = []
        for number, each in enumerate(policy.classes or ()):
            own = {
                name: value for name in wire.PolicyRules.__struct_fields__ if (value := getattr(each, name)) is not None
            }
            if each.weights is not None:  # weights replace both
                own |= {"goal": None, "strategy": None}
            elif each.goal or each.strategy:
                own["weights"] = None
            try:
                classes += drawn([replace(full, classes=None, **own)], known)
            except ValidationFailed as error:
                inside = f"{path}.classes[{number}]"
                problems = [each._replace(path=each.path.replace(path, inside, 1)) for each in error.problems]
                raise ValidationFailed.of(*problems) from None
        found.append(wire.PolicySnapshot("", "", full, models, chain, prefer, tuple(classes)))
    return found


def version_asked(snapshot: wire.PolicySnapshot, today: str) -> wire.PutPolicyVersion:
    """The write that assigns a version to a policy's content. ``today`` is the default date."""
    policy = snapshot.policy
    drawn_up: list[object] = [policy, snapshot.models, snapshot.chain, snapshot.prefer]
    for each in snapshot.classes:  # without classes the hash is the same as before classes existed
        drawn_up += [each.models, each.chain, each.prefer]
    content = content_id(drawn_up)
    return wire.PutPolicyVersion(content, policy.name, policy.created_at or f"{today}T00:00:00Z")


def published(snapshot: wire.PolicySnapshot, version: wire.PolicyVersion) -> wire.PolicySnapshot:
    """The policy with its version."""
    policy = replace(snapshot.policy, created_at=version.created_at)
    content: list[object] = [version.label, policy, snapshot.models, snapshot.chain]
    if snapshot.prefer:  # without it the id is the same as before ``prefer`` existed
        content.append(snapshot.prefer)
    classes = tuple([published(each, version) for each in snapshot.classes])
    id = "pos_" + content_id(content)
    return replace(snapshot, id=id, version=version.label, policy=policy, classes=classes)


def next_label(name: str, created_at: str, taken: Iterable[str]) -> str:
    """Label of a policy's new content: ``name@date``, or ``name@date.2`` if that is taken, and so on."""
    first = f"{name}@{created_at[:10]}"
    numbers = (label.removeprefix(first) for label in taken if label == first or label.startswith(first + "."))
    last = max((int(number[1:] or 1) for number in numbers if not number or number[1:].isdigit()), default=0)
    return f"{first}.{last + 1}" if last else first


def own_version(asked: wire.PutPolicyVersion) -> wire.PolicyVersion:
    """Version of a policy while the storage is unavailable. Its label is derived from the content."""
    label = f"{asked.name}@{asked.created_at[:10]}.x{asked.content[:10]}"
    return wire.PolicyVersion(asked.content, label, asked.created_at)


class Versions:
    """Versions of policies. They are never removed, so that no label is assigned twice."""

    def __init__(self) -> None:
        self._by_content: dict[str, wire.PolicyVersion] = {}
        self._labels: dict[str, list[str]] = {}  # by policy name

    def put(self, asked: wire.PutPolicyVersion) -> tuple[wire.PolicyVersion, bool]:
        """Version of a content, and whether it is new."""
        found = self._by_content.get(asked.content)
        if found is not None:
            return found, False
        labels = self._labels.setdefault(asked.name, [])
        labels.append(next_label(asked.name, asked.created_at, labels))
        found = self._by_content[asked.content] = wire.PolicyVersion(asked.content, labels[-1], asked.created_at)
        return found, True

    def of(self, contents: Iterable[str]) -> list[wire.PolicyVersion]:
        """Versions of those contents that have one."""
        return [self._by_content[each] for each in contents if each in self._by_content]


def changes_between(
    before: Iterable[wire.PolicySnapshot], now: Iterable[wire.PolicySnapshot]
) -> list[wire.PolicyChanged]:
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
