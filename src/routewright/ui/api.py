"""The operations behind the page: methods of ``Router``, ``TraceStore`` or ``Console``, called with the
arguments of a JSON object. The methods check them, so nothing is checked twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from functools import partial
from inspect import isawaitable, signature
from typing import get_args

import anyio.to_thread
import msgspec
from msgspec import Struct

from routewright import wire
from routewright.cache import CacheExplanation, ResponseCache
from routewright.console import SCOPES, Console, limits_of
from routewright.errors import NoCandidates, ValidationFailed
from routewright.router import Router
from routewright.wire.conversion import convert_value
from routewright.wire.docstrings import field_docs, prose
from routewright.wire.money import in_usd
from routewright.wire.problems import did_you_mean, listed

_SHAPES: dict[str, type[object]] = {
    "limits": wire.RateLimits,
    "policy": wire.Policy,
    "expect": wire.PolicyRecord,
    "contains": str,
    "start": int,
}
"""Structs among the arguments, and arguments of the methods below, by name."""
_POLICY_PARTS: dict[str, type[Struct]] = {
    "": wire.Policy,
    "weights": wire.PolicyWeights,
    "fallback": wire.PolicyFallback,
    "budget": wire.Budget,
    "cache": wire.CacheOpts,
    "params": wire.Params,
    "guardrails[]": wire.PolicyGuardrail,
    "classes[]": wire.PolicyClass,
    "classes[].match": wire.PolicyMatch,
    "classes[].when": wire.PolicyWhen,
}
Method = Callable[..., object]
MOST_TRACES = 500
"""Traces that the risk of the cache is read from."""
_STORED_ONLY = {"digest", "secrets"}
"""Fields of keys and endpoints that leave the server with nobody."""
_NOT_LISTED = {"decision_input"}
"""Fields that a trace has, but not as an item of a list: half of its bytes, which no list shows."""
ROWS = 25
"""Accounts on a page."""


class Operation(Struct, frozen=True):
    """A method that the page can call."""

    method: Method
    changes: bool = False

    async def __call__(self, arguments: object, operator: str) -> object:
        """Call it with a JSON object, and return JSON values. Raises ``ValidationFailed`` and what the method does."""
        expected = signature(self.method).parameters
        if not isinstance(arguments, dict):
            raise ValidationFailed.at("", "is not a JSON object", "send the arguments by name")
        values = dict(arguments)
        if "by" in expected:
            values["by"] = operator
        for name, value in values.items():
            if name not in expected:
                raise ValidationFailed.at(
                    name, "is unknown", did_you_mean(name, expected) or f"known: {listed([*expected])}"
                )
            if name in _SHAPES and value is not None and value != "absent":
                values[name] = convert_value(value, _SHAPES[name], name)
        for name, parameter in expected.items():
            if parameter.default is parameter.empty and name not in values:
                raise ValidationFailed.at(name, "is missing", "send it")
        result = self.method(**values)
        return shown(await result if isawaitable(result) else result)


def shown(value: object) -> object:
    """A result as JSON values: dollars for nano-dollars, and new secrets in clear text, which only this answer has."""
    if isinstance(value, wire.NewKey):
        return {"secret": value.secret.reveal(), "key": shown(value.key)}
    if isinstance(value, wire.Policy):
        return msgspec.to_builtins(value)  # what is set, as people write it
    if isinstance(value, wire.NewEndpoint):
        return {"secret": value.secret.reveal(), "endpoint": shown(value.endpoint)}
    hidden = _STORED_ONLY if isinstance(value, wire.Key | wire.Endpoint) else set()
    hidden = _NOT_LISTED if type(value) is wire.TraceItem else hidden
    match value:
        case list() | tuple():
            return [shown(item) for item in value]
        case Mapping():
            return {name: shown(item) for name, item in value.items()}
        case msgspec.Struct():
            names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
            plain = {name: getattr(value, field) for name, field in names if field not in hidden}
            plain |= _computed(value)
            tag = value.__struct_config__.tag
            if tag is not None:
                plain["type"] = tag
            return {
                name.replace("nanos", "usd"): in_usd(item) if name.endswith("nanos") else shown(item)
                for name, item in plain.items()
                if item is not msgspec.UNSET
            }
    return value


def _computed(value: object) -> dict[str, object]:
    """What is shown of a struct besides its fields."""
    match value:
        case wire.Account():
            return {"limits_in_force": limits_of(value)}
        case wire.Purse():
            return {"left_usd": value.left_usd}
        case wire.Delivery():
            return {"place": value.key}
        case wire.Endpoint():
            return {"old_secret_until": max((secret.expires_at or 0.0 for secret in value.secrets), default=0.0)}
    return {}


class Past:
    """What was decided in a trace, replayed from its stored input."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._traces = router.traces

    async def explain(
        self, trace_id: str, account: str = wire.DEFAULT_ACCOUNT, environment: wire.Environment | None = None
    ) -> wire.JsonObject:
        """The decision once more, the explanation, and whether it is the stored one. Raises ``NotFound``."""
        trace = await self._traces.get(trace_id, account=account, environment=environment)
        return await anyio.to_thread.run_sync(self._replay, trace)

    def _replay(self, trace: wire.Trace) -> wire.JsonObject:
        stored = next((span.digest for span in trace.spans if isinstance(span, wire.DecisionSpan)), None)
        try:
            decision = self._router.replay(trace)
        except NoCandidates as refusal:
            return {"explanation": self._router.explain(trace), "refusal": refusal.message}
        return {
            "explanation": self._router.explain(trace),
            "decision": decision.to_dict(),
            "is_same": stored is not None and decision.digest.startswith(stored),
        }

    async def why_not(
        self,
        trace_id: str,
        model: str,
        account: str = wire.DEFAULT_ACCOUNT,
        environment: wire.Environment | None = None,
    ) -> wire.JsonObject:
        """What would have put another model first. Raises ``NotFound`` and ``ValidationFailed``."""
        trace = await self._traces.get(trace_id, account=account, environment=environment)
        reasons = await anyio.to_thread.run_sync(partial(self._router.why_not, trace, model))
        return {"text": str(reasons), "reasons": msgspec.to_builtins(reasons)}


class Answers:
    """The response cache of an account."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def _of(self, account: str, environment: wire.Environment) -> ResponseCache:
        return self._router.as_caller(wire.Caller(account, environment)).cache

    async def stats(
        self, account: str = wire.DEFAULT_ACCOUNT, environment: wire.Environment = "production"
    ) -> wire.CacheStats:
        """What it holds, in both environments."""
        return await self._of(account, environment).stats()

    async def explain(
        self,
        request: str | wire.JsonObject,
        account: str = wire.DEFAULT_ACCOUNT,
        environment: wire.Environment = "production",
    ) -> CacheExplanation:
        """What it would do with a request."""
        return await self._of(account, environment).explain(request)

    async def risk(
        self, account: str = wire.DEFAULT_ACCOUNT, environment: wire.Environment = "production"
    ) -> wire.JsonObject:
        """How the look-ups in the newest traces keep to their bounds on wrong answers."""
        count = 0
        spans: list[wire.CacheSpan] = []
        async with aclosing(self._router.traces.export(account=account, environment=environment)) as traces:
            async for trace in traces:
                count += 1
                spans += [span for span in trace.spans if isinstance(span, wire.CacheSpan)]
                if count == MOST_TRACES:
                    break
        risks = [span.risk or 0.0 for span in spans if span.hit]
        return {
            "traces": count,
            "lookups": len(spans),
            "hits": len(risks),
            "explored": sum(span.explored for span in spans),
            "max_errors": sorted({span.max_error for span in spans if span.max_error is not None}),
            "wrong_share": sum(risks) / len(spans) if spans else None,
        }


def policy_fields() -> list[wire.JsonObject]:
    """The fields of a policy and of the objects in it: what they mean, and their choices."""
    return [
        {
            "path": f"{path}.{field.encode_name}".lstrip("."),
            "meaning": prose(field_docs(kind).get(field.name, "")).replace("`", ""),
            "choices": _choices(field.type),
        }
        for path, kind in _POLICY_PARTS.items()
        for field in msgspec.structs.fields(kind)
        if path != "classes[]" or field.name not in wire.Policy.__struct_fields__
    ]


def _choices(kind: object) -> list[str]:
    return [word for part in get_args(kind) for word in ([part] if isinstance(part, str) else _choices(part))]


class Accounts:
    """What the views of accounts and webhooks call that ``Console`` has in another form."""

    def __init__(self, console: Console) -> None:
        self._console = console

    async def page(self, contains: str = "", start: int = 0) -> wire.JsonObject:
        """A page of the accounts whose names contain a text, in any case, with their standing."""
        text = contains.casefold()
        names = [account.name for account in await self._console.accounts() if text in account.name.casefold()]
        rows = [await self._console.standing(name) for name in names[max(start, 0) :][:ROWS]]
        return {"count": len(names), "size": ROWS, "rows": rows}

    async def test_endpoint(
        self, account: str, endpoint_id: str, allow_loopback: bool = False
    ) -> dict[wire.EventType, wire.DeliveryAttempt]:
        """``Console.test_endpoint`` over its own transport."""
        return await self._console.test_endpoint(account, endpoint_id, allow_loopback=allow_loopback)

    @staticmethod
    def choices() -> wire.JsonObject:
        """What the forms offer: plans with their rate limits, scopes, and the words of webhooks."""
        plans: tuple[wire.PlanName, ...] = get_args(wire.PlanName)
        return {
            "plans": {plan: limits_of(wire.Account(name=plan, created_at="", plan=plan)) for plan in plans},
            "scopes": SCOPES,
            "operator_scopes": [scope for scope in get_args(wire.Scope) if scope not in SCOPES],
            "events": get_args(wire.EventType),
            "profiles": get_args(wire.SignatureProfile),
            "delivery_states": get_args(wire.DeliveryState),
        }


def operations(router: Router, console: Console) -> dict[str, Operation]:
    """The operations by name: those that read, and those that change."""
    traces = router.traces
    past = Past(router)
    answers = Answers(router)
    accounts = Accounts(console)
    reads: dict[str, Method] = {
        "status": router.status,
        "models": router.models,
        "usage": traces.usage,
        "usage-groups": traces.usage_groups,
        "latency": traces.latency_report,
        "latency-by-day": traces.latency_by_day,
        "fallback": traces.fallback_report,
        "cache": traces.cache_report,
        "traces": traces.query,
        "trace": traces.get,
        "feedback": traces.feedback_of,
        "explain": past.explain,
        "why-not": past.why_not,
        "cache-stats": answers.stats,
        "cache-explain": answers.explain,
        "cache-risk": answers.risk,
        "accounts": console.accounts,
        "account-page": accounts.page,
        "choices": accounts.choices,
        "standing": console.standing,
        "nearest-limits": console.nearest_limits,
        "keys": console.keys,
        "incidents": console.incidents,
        "endpoints": console.endpoints,
        "deliveries": console.deliveries,
        "policies": console.policies.list,
        "policy-states": console.policies.states,
        "policy-fields": policy_fields,
        "policy": console.policies.find,
        "policy-versions": console.policies.versions,
        "policy-check": console.policies.check,
        "policy-diff": console.policies.diff,
        "policy-compare": console.compare,
        "policy-simulate": console.simulate,
    }
    changes: dict[str, Method] = {
        "feedback-give": traces.feedback,
        "account-create": console.create_account,
        "account-change": console.change_account,
        "account-credit": console.credit,
        "key-create": console.create_key,
        "key-change": console.change_key,
        "key-revoke": console.revoke_key,
        "incident-open": console.open_incident,
        "incident-resolve": console.resolve_incident,
        "endpoint-create": console.create_endpoint,
        "endpoint-enable": console.enable_endpoint,
        "endpoint-disable": console.disable_endpoint,
        "endpoint-delete": console.delete_endpoint,
        "endpoint-rotate": console.rotate_endpoint,
        "endpoint-test": accounts.test_endpoint,
        "delivery-replay": console.replay,
        "policy-draft": console.policies.draft,
        "policy-discard": console.policies.discard,
        "policy-publish": console.policies.publish,
        "policy-roll-back": console.policies.roll_back,
        "policy-retire": console.policies.retire,
    }
    return {name: Operation(method) for name, method in reads.items()} | {
        name: Operation(method, changes=True) for name, method in changes.items()
    }
