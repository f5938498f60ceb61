"""What a key may use: models and policies (contract 12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from routewright.errors import PermissionDenied
from routewright.wire import Caller, Key, PolicySnapshot, RouteRequest
from routewright.wire.json_scan import quoted
from routewright.wire.problems import listed


def narrow(caller: Caller, key: Key) -> Caller:
    """The caller, limited to what its key may use unless it is limited already."""
    return replace(caller, models=caller.models or key.models, policies=caller.policies or key.policies)


def permits(caller: Caller, policy: PolicySnapshot) -> bool:
    """True if the caller may use a policy."""
    return caller.policies is None or policy.policy.name in caller.policies or policy.policy.id in caller.policies


def permit(
    request: RouteRequest, caller: Caller, models: Sequence[str], policies: Mapping[str, PolicySnapshot]
) -> RouteRequest:
    """The request, limited to what its caller may use; ``models`` are the ids of its models. Raises
    ``PermissionDenied`` if the request names anything else, or does not name one of several policies."""
    # A whitelist alone would turn "you may not" into "no model fits", and would skip a preferred model silently. So
    # what the request names is refused, and only what it leaves open is limited. The policy is applied afterwards, and
    # can only shorten the whitelist, its fallback chain and its preferred models included.
    # test_a_key_calls_no_model_but_its_own
    allowed = caller.policies
    name = request.policy_id
    if allowed is not None:
        if name is None and len(allowed) > 1:
            raise PermissionDenied(f"the API key needs a policy; set policy_id to one of {listed(allowed)}")
        name = name or allowed[0]
        if name not in allowed and not (name in policies and permits(caller, policies[name])):
            raise PermissionDenied(f"the API key may not use the policy {quoted(name)}; it may use {listed(allowed)}")
        request = replace(request, policy_id=name)
    if caller.models is None:
        return request
    if not models:
        raise PermissionDenied(f"the API key may use no model but {listed(caller.models)}, and this router has none")
    chain = None if request.fallback is None else request.fallback.models
    named = dict.fromkeys((*(request.models or ()), *(request.prefer or ()), *(chain or ())))
    if outside := [model for model in named if model not in models]:
        raise PermissionDenied(f"the API key may not use {listed(outside)}; it may use {listed(caller.models)}")
    return request if request.models is not None else replace(request, models=[*models])
