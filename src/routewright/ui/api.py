"""The operations behind the page: methods of ``Router``, ``TraceStore``, ``Console`` and ``PolicyStore`` by their own
names, called with the arguments of a JSON object. The methods check them, so nothing is checked twice."""

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
from routewright.cache import CacheExplanation
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
}
"""Structs among the arguments, by name."""
_PLAIN: dict[str, type[object]] = {"str": str, "int": int, "bool": bool}
"""Types of other arguments, by their annotation; those that may be None are like them."""
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
_READS = {
    "router": "status models",
    "traces": "usage usage_groups latency_report latency_by_day fallback_report cache_report query get feedback_of",
    "console": "accounts standing nearest_limits keys incidents endpoints deliveries compare simulate",
    "policies": "list states find versions check diff",
    "page": "explain why_not cache_stats cache_risk accounts choices policy_fields",
}
_CHANGES = {
    "traces": "feedback",
    "console": "create_account change_account credit create_key change_key revoke_key open_incident resolve_incident "
    "create_endpoint enable_endpoint disable_endpoint delete_endpoint rotate_endpoint test_endpoint replay",
    "policies": "draft discard publish roll_back retire",
    "page": "explain_cache",  # it shows stored questions of others, so it takes the right to write
}
_NOT_HERE = {"by", "transport", "allow_loopback"}
"""Arguments that the page does not choose."""
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

    method: Callable[..., object]
    changes: bool = False
    allow_loopback: bool = False
    """The operator may have webhooks sent to this machine."""

    async def __call__(self, arguments: object, operator: str) -> object:
        """Call it with a JSON object, and return JSON values. Raises ``ValidationFailed`` and what the method does."""
        parameters = signature(self.method).parameters
        expected = {name: parameters[name] for name in parameters if name not in _NOT_HERE}
        if not isinstance(arguments, dict):
            raise ValidationFailed.at("", "is not a JSON object", "send the arguments by name")
        values = dict(arguments)
        for name, value in values.items():
            if name not in expected:
                hint = did_you_mean(name, expected) or f"known: {listed([*expected])}"
                raise ValidationFailed.at(name, "is unknown", hint)
            shape = _SHAPES.get(name) or _PLAIN.get(str(expected[name].annotation).removesuffix(" | None"))
            if shape is not None and value is not None and value != "absent":
                values[name] = convert_value(value, shape, name)
        for name, parameter in expected.items():
            if parameter.default is parameter.empty and name not in values:
                raise ValidationFailed.at(name, "is missing", "send it")
        ours = {"by": operator, "allow_loopback": self.allow_loopback}
        values |= {name: ours[name] for name in ours if name in parameters}
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
            if value.__struct_config__.tag is not None:
                plain["type"] = value.__struct_config__.tag
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
            return {"left_usd": value.left_usd, "period": value.name.split(":")[-2] if value.level == "tag" else None}
        case wire.Delivery():
            return {"place": value.key}
        case wire.Endpoint():
            return {"old_secret_until": max((secret.expires_at or 0.0 for secret in value.secrets), default=0.0)}
    return {}


class Page:
    """What the views need that the public classes have in another form."""

    def __init__(self, router: Router, console: Console) -> None:
        self._router = router
        self._console = console

    async def explain(
        self, trace_id: str, account: str = wire.DEFAULT_ACCOUNT, environment: wire.Environment | None = None
    ) -> wire.JsonObject:
        """The decision of a trace once more, the explanation, and whether it is the stored one. Raises ``NotFound``."""
        trace = await self._router.traces.get(trace_id, account=account, environment=environment)
        return await anyio.to_thread.run_sync(self._replay, trace)

    def _replay(self, trace: wire.Trace) -> wire.JsonObject:
        explanation = self._router.explain(trace)
        stored = [span.digest for span in trace.spans if isinstance(span, wire.DecisionSpan)]
        try:
            decision = self._router.replay(trace)
        except NoCandidates as refusal:
            return {"explanation": explanation, "refusal": refusal.message, "is_same": not stored}
        return {
            "explanation": explanation,
            "decision": decision.to_dict(),
            "is_same": bool(stored) and decision.digest.startswith(stored[0]),
        }

    async def why_not(
        self,
        trace_id: str,
        model: str,
        account: str = wire.DEFAULT_ACCOUNT,
        environment: wire.Environment | None = None,
    ) -> wire.JsonObject:
        """What would have put another model first. Raises ``NotFound`` and ``ValidationFailed``."""
        trace = await self._router.traces.get(trace_id, account=account, environment=environment)
        return {"text": str(await anyio.to_thread.run_sync(partial(self._router.why_not, trace, model)))}

    async def cache_stats(self, account: str) -> wire.CacheStats:
        """What the response cache holds of an account, in both environments."""
        return await self._router.as_caller(wire.Caller(account)).cache.stats()

    async def explain_cache(
        self, request: str | wire.JsonObject, account: str, environment: wire.Environment
    ) -> CacheExplanation:
        """What the response cache would do with a request."""
        return await self._router.as_caller(wire.Caller(account, environment)).cache.explain(request)

    async def cache_risk(self, account: str, environment: wire.Environment) -> wire.JsonObject:
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

    async def accounts(self, contains: str = "", start: int = 0) -> wire.JsonObject:
        """A page of the accounts whose names contain a text, in any case, with their standing."""
        text = contains.casefold()
        names = [account.name for account in await self._console.accounts() if text in account.name.casefold()]
        rows = [await self._console.standing(name) for name in names[max(start, 0) :][:ROWS]]
        return {"count": len(names), "size": ROWS, "rows": rows}

    def choices(self) -> wire.JsonObject:
        """What the forms offer: plans with their rate limits, scopes, and the words of webhooks."""
        plans: tuple[wire.PlanName, ...] = get_args(wire.PlanName)
        return {
            "plans": {plan: limits_of(wire.Account(name=plan, created_at="", plan=plan)) for plan in plans},
            "scopes": SCOPES,
            "events": get_args(wire.EventType),
            "profiles": get_args(wire.SignatureProfile),
            "delivery_states": get_args(wire.DeliveryState),
        }

    def policy_fields(self) -> list[wire.JsonObject]:
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


def operations(router: Router, console: Console, *, allow_loopback: bool = False) -> dict[str, Operation]:
    """The operations by name, such as ``console.create_account``."""
    page = Page(router, console)
    owners = {"router": router, "traces": router.traces, "console": console, "policies": console.policies, "page": page}
    return {
        f"{owner}.{name}": Operation(getattr(owners[owner], name), changes, allow_loopback)
        for table, changes in ((_READS, False), (_CHANGES, True))
        for owner, names in table.items()
        for name in names.split()
    }
