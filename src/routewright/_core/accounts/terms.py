"""Terms of accounts and keys: plans, and validation of settings, incidents and credit. A text that contains an API key
is refused without showing it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf, nan
from numbers import Real
from typing import Any, NamedTuple, TypeVar, get_args

from msgspec import UNSET
from msgspec.structs import asdict, replace

from routewright._core.money import budget_nanos
from routewright._core.request.rules import USD, Range, refuse
from routewright.errors import Problem, ValidationFailed
from routewright.wire import SYSTEM_ACCOUNT, Account, Environment, Key, PlanName, RateLimits, Severity, TagLimit
from routewright.wire.account import holds_key
from routewright.wire.json_scan import quoted
from routewright.wire.problems import EXACT, Problems, did_you_mean, listed, shown

from .keys import OPERATOR_SCOPES, SCOPES

Changed = TypeVar("Changed", Account, Key)

PLANS: dict[PlanName, RateLimits] = {
    "free": RateLimits(requests_per_min=60, tokens_per_min=60_000, concurrency=5),
    "pro": RateLimits(requests_per_min=600, tokens_per_min=600_000, concurrency=25),
    "team": RateLimits(requests_per_min=3_000, tokens_per_min=3_000_000, concurrency=100),
    "enterprise": RateLimits(),  # by contract, in Account.limits
    "unlimited": RateLimits(),
}
MAX_NAME_CHARS = 100  # name of a key
MAX_TEXT_CHARS = 200  # notes, titles of incidents, ids
MAX_URL_CHARS = 2_000
MAX_TAG_CHARS = 100  # key or value of a tag limit; longer values of requests are hashed
KEY_THERE = ("contains an API key, which must stay secret", "remove it, and revoke it if others have seen it")
"""Problem and hint for a text that contains an API key."""
_TOO_LITTLE = "is less than a nano-dollar"
_LIMIT = Range(0, EXACT, whole=True)
_CALL_ID = "tr_"


def limits_of(account: Account | None) -> RateLimits:
    """Rate limits of an account: its own, else those of its plan."""
    if account is None:
        return PLANS["unlimited"]
    own = {} if account.limits is None else asdict(account.limits)
    return replace(PLANS[account.plan], **{name: limit for name, limit in own.items() if limit is not None})


class CreditTerms(NamedTuple):
    """An addition to a balance."""

    nanos: int
    """Negative: a withdrawal."""
    note: str
    id: str | None


class SomeLimits(RateLimits, frozen=True, kw_only=True):
    """A change of the limits named in ``fields``; the others stay."""

    fields: frozenset[str]

    def within(self, current: RateLimits | None) -> RateLimits | None:
        """Apply the change. None: no limits are left."""
        limits = replace(current or RateLimits(), **{name: getattr(self, name) for name in self.fields})
        return None if limits == RateLimits() else limits


class _Invalid(Exception):
    """An invalid value: the problem, and a hint. The caller adds its path."""


Read = Callable[[Any], Any]
"""Validates a value. Raises ``_Invalid``."""


def change(current: Changed, terms: Mapping[str, Any]) -> Changed:
    """Apply validated settings to an account or key."""
    limits = terms.get("limits")
    if isinstance(limits, SomeLimits):
        terms = {**terms, "limits": limits.within(current.limits)}
    return replace(current, **terms)


def check_account(account: Account) -> Account:
    """Check that an account's settings are consistent. Raises ``ValidationFailed``."""
    if account.plan == "enterprise" and account.limits in (None, RateLimits()):
        problem = "are missing: the plan 'enterprise' has none of its own"
        raise ValidationFailed.of(Problem("limits", problem, "pass RateLimits(requests_per_min=..., ...)"))
    return account


def credit_of(usd: object, note: object, credit_id: object) -> CreditTerms:
    """Validate credit. Raises ``ValidationFailed``."""
    return CreditTerms(**_terms({"usd": usd, "note": note, "id": credit_id}, _CREDIT))


def key_terms(settings: Mapping[str, object], owner: object = None) -> dict[str, Any]:
    """Validate the settings of a key of an account or of ``SYSTEM_ACCOUNT``. Raises ``ValidationFailed``."""
    return _terms(settings, _OPERATOR_KEY if owner == SYSTEM_ACCOUNT else _KEY)


def describe(text: object) -> str:
    """Format a value for an error, with API keys hidden."""
    return "'sk_...'" if isinstance(text, str) and holds_key(text) else shown(text)


def _terms(settings: Mapping[str, object], fields: Mapping[str, Read]) -> dict[str, Any]:
    """Validate settings, and return them as fields of the record. ``UNSET`` values are left out. Raises
    ``ValidationFailed``."""
    problems: Problems = []
    terms: dict[str, Any] = {}
    for path, value in settings.items():
        if value is UNSET:
            continue
        try:
            terms[_STORED.get(path, path)] = fields[path](value)
        except _Invalid as error:
            problems.append(Problem(path, *error.args))
    refuse(problems)
    return terms


def _or_none(read: Read) -> Read:
    return lambda value: None if value is None else read(value)


def _one_of(words: Sequence[str]) -> Callable[[object], str]:
    def read(value: object) -> str:
        if isinstance(value, str) and value in words:
            return value
        near = did_you_mean(value, words) if isinstance(value, str) and not holds_key(value) else ""
        raise _Invalid(f"is {describe(value)}", f"{near} take {listed(words)}".lstrip())

    return read


def _fraction(value: object) -> float:
    if not 0 < _number(value) < 1:
        raise _Invalid(f"is {describe(value)}", "pass a number above 0 and below 1, such as 0.1")
    return _number(value)


def _assignment(value: object) -> str:
    text = _text(MAX_TEXT_CHARS)(value)
    if text != "account" and not (text.startswith("metadata.") and text != "metadata."):
        raise _Invalid(f"is {quoted(text)}", "take 'account', or 'metadata.' and a key")
    return text


def _text(most: int, *, minimum: int = 1) -> Callable[[object], str]:
    def read(value: object) -> str:
        if isinstance(value, str) and holds_key(value):
            raise _Invalid(*KEY_THERE)
        if not (isinstance(value, str) and value.isprintable() and minimum <= len(value.strip()) <= len(value) <= most):
            raise _Invalid(f"must be {minimum} to {most} printable characters, got {shown(value)}", "")
        return value

    return read


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _Invalid(f"is {describe(value)}", "pass True or False")
    return value


def _limits(value: object) -> RateLimits:
    if not isinstance(value, RateLimits):
        hint = "pass RateLimits(requests_per_min=..., tokens_per_min=..., concurrency=...)"
        raise _Invalid(f"is {describe(value)}", hint)
    for name in RateLimits.__struct_fields__:
        limit = getattr(value, name)
        if limit is not None and (type(limit) is not int or not _LIMIT.admits(limit)):
            raise _Invalid(f"has {name}={describe(limit)}", f"take {_LIMIT}, or None")
    return value


def _nanos(value: object) -> int:
    dollars = _dollars(value, _number(value))
    amount = budget_nanos(dollars)
    if dollars and not amount:
        raise _Invalid(_TOO_LITTLE, "use a larger amount, or 0 to allow nothing")
    return amount


def _credit(value: object) -> int:
    number = _number(value)
    amount = budget_nanos(_dollars(value, abs(number)))
    if amount == 0:
        raise _Invalid(_TOO_LITTLE, "use a larger amount")
    return -amount if number < 0 else amount


def _dollars(value: object, number: float) -> float:
    if not USD.admits(number):
        raise _Invalid(f"is {describe(value)}", f"take {USD}, in dollars")
    return number


def _number(value: object) -> float:
    """Convert a real number, numpy's included, to float. NaN if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return nan
    try:
        return float(value)
    except OverflowError:
        return inf


def _filled(value: object, hint: str) -> Sequence[object]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _Invalid(f"is {describe(value)}", hint)
    if not value:
        raise _Invalid("is empty", hint)
    return value


def _scopes(value: object) -> tuple[str, ...]:
    value = _filled(value, f"pass a list of {listed(SCOPES)}, or None for all")
    for word in value:
        if word in OPERATOR_SCOPES:
            raise _Invalid(f"is {quoted(word)}, which is for operators", f"create a key of {SYSTEM_ACCOUNT!r} with it")
        _one_of(SCOPES)(word)
    return tuple(scope for scope in SCOPES if scope in value)


def _operator_scopes(value: object) -> tuple[str, ...]:
    hint = f"pass a list of {listed(OPERATOR_SCOPES)}"
    if value is None:
        raise _Invalid("are missing for an operator's key", hint)
    value = _filled(value, hint)
    for word in value:
        if word not in OPERATOR_SCOPES:
            raise _Invalid(f"is {describe(word)}, which an operator's key cannot have", hint)
    return OPERATOR_SCOPES if "console:write" in value else OPERATOR_SCOPES[:1]  # write includes read


def _none(value: object) -> None:
    if value is not None:
        raise _Invalid("cannot be set for an operator's key", "leave it out")


def _names(value: object) -> tuple[str, ...]:
    words = _filled(value, "pass a list with a name or more, or None for all")
    return tuple(dict.fromkeys(map(_text(MAX_TEXT_CHARS), words)))


def _credit_id(value: object) -> str:
    text = _text(MAX_TEXT_CHARS)(value)
    if text.startswith(_CALL_ID):
        raise _Invalid(f"is {quoted(text)}, which looks like a trace id", "use another id, such as an invoice number")
    return text


def _url(value: object) -> str:
    text = _text(MAX_URL_CHARS)(value)
    if not text.startswith(("https://", "http://")):
        raise _Invalid(f"is {quoted(text)}", "start it with https://")
    return text


def _tag_key(value: object) -> str:
    text = _text(MAX_TAG_CHARS)(value)
    if "=" in text or text.startswith("metadata."):
        raise _Invalid(f"is {quoted(text)}", "limit a metadata key, without 'metadata.' and without '='")
    return text


def _tag_limits(value: object) -> tuple[TagLimit, ...]:
    hint = "pass a list such as [{'key': 'team', 'daily_limit_usd': 10}]"
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _Invalid(f"is {describe(value)}", hint)
    limits: dict[tuple[str, str | None], TagLimit] = {}
    for item in value:
        if not isinstance(item, TagLimit):
            if not isinstance(item, Mapping) or "key" not in item or not item.keys() <= _TAG.keys():
                parts = item if isinstance(item, Mapping) and item else [item]
                raise _Invalid(f"has {', '.join(map(describe, parts))}", hint)
            item = TagLimit(**_terms(item, _TAG))
        _terms({"key": item.key, "value": item.value}, _TAG)  # of a ``TagLimit``, too
        if not all(nanos is None or (type(nanos) is int and _LIMIT.admits(nanos)) for nanos in item.period_nanos):
            amounts = ", ".join(map(describe, item.period_nanos))
            raise _Invalid(f"has {amounts} for {describe(item.key)}", f"take {_LIMIT} nano-dollars, or None")
        if all(nanos is None for nanos in item.period_nanos):
            raise _Invalid(f"has no limit for {describe(item.key)}", hint)
        if limits.setdefault((item.key, item.value), item) is not item:
            raise _Invalid(f"limits {shown(item.key)} twice for one value", "pass one limit for a key and value")
    return tuple(limits.values())


_STORED = {
    "daily_limit_usd": "daily_nanos", "weekly_limit_usd": "weekly_nanos", "monthly_limit_usd": "monthly_nanos",
    "budget_usd": "budget_nanos", "usd": "nanos",
}  # fmt: skip
"""Names of stored fields, where they differ."""
_usd = _or_none(_nanos)
_rates = _or_none(_limits)
_PERIODS: dict[str, Read] = {"daily_limit_usd": _usd, "weekly_limit_usd": _usd, "monthly_limit_usd": _usd}
_TAG: dict[str, Read] = {"key": _tag_key, "value": _or_none(_text(MAX_TAG_CHARS, minimum=0)), **_PERIODS}
_ACCOUNT: dict[str, Read] = {
    "plan": _one_of([*PLANS]), "limits": _rates, "prepaid": _flag, "tag_limits": _tag_limits, **_PERIODS,
}  # fmt: skip
_KEY: dict[str, Read] = {
    "name": _text(MAX_NAME_CHARS),
    "environment": _one_of(get_args(Environment)),
    "scopes": _or_none(_scopes),
    "limits": _rates,
    "budget_usd": _usd,
    **_PERIODS,
    "models": _or_none(_names),
    "policies": _or_none(_names),
}
_OPERATOR_KEY: dict[str, Read] = dict.fromkeys(_KEY, _none) | {
    "name": _KEY["name"],
    "environment": _one_of(["production"]),
    "scopes": _operator_scopes,
}
_INCIDENT: dict[str, Read] = {
    "title": _text(MAX_TEXT_CHARS),
    "severity": _one_of(get_args(Severity)),
    "status_url": _or_none(_url),
}
_CREDIT: dict[str, Read] = {"usd": _credit, "note": _text(MAX_TEXT_CHARS, minimum=0), "id": _or_none(_credit_id)}
_BY: dict[str, Read] = {"by": _text(MAX_NAME_CHARS, minimum=0), "note": _text(MAX_TEXT_CHARS, minimum=0)}
_PUBLICATION = _BY | {"share": _or_none(_fraction), "share_by": _or_none(_assignment)}
account_terms = partial(_terms, fields=_ACCOUNT)
incident_terms = partial(_terms, fields=_INCIDENT)
publication_terms = partial(_terms, fields=_PUBLICATION)
