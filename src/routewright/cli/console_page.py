"""What a person is shown of accounts, keys and incidents, and a script as JSON. Neither holds a key, nor a digest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from routewright._core.account import SCOPES, is_live, limits_of
from routewright.wire import Account, AccountStanding, Credit, Incident, Key, KeyStanding, Purse, RateLimits

from .blocks import Block, Line, Row, Table, facts
from .figures import exact, percent

_ACCOUNTS = ("account", "plan", "requests/min", "tokens/min", "at a time", "prepaid", "monthly limit", "since")
_KEYS = ("key", "name", "begins with", "environment", "for", "created", "")
_SPENT = ("key", "name", "in all", "this month", "")
_NO_LIMIT = "without a limit of its own"
_INCIDENTS = ("incident", "severity", "began (UTC)", "ended", "title")
_UNUSED = "none: credit is not used before 'accounts change --prepaid'"
_DAY = len("2026-11-22")
_MINUTE = len("2026-11-22T12:00")


def accounts_page(accounts: Sequence[Account]) -> list[Block]:
    """Accounts, one line each."""
    rows = [Row((each.name, each.plan, *_limits(each), _yes(each), exact(each.monthly_nanos), each.created_at[:_DAY]))
            for each in accounts]  # fmt: skip
    return [Table(rows, _ACCOUNTS, frozenset({2, 3, 4, 6}))]


def account_page(account: Account) -> list[Block]:
    """The terms of an account."""
    return [facts(_terms(account))]


def credit_page(credit: Credit) -> list[Block]:
    """What was given, and the balance."""
    given = exact(credit.nanos) if credit.created else f"{exact(credit.nanos)}, which was done before"
    balance = _UNUSED if credit.balance_nanos is None else exact(credit.balance_nanos)
    return [facts({"credit": given, "id": credit.id, "balance": balance})]


def standing_page(standing: AccountStanding) -> list[Block]:
    """The terms of an account, and how it stands; below, its keys that have budgets."""
    balance = "" if standing.balance is None else exact(standing.balance.left_nanos)
    named = {**_terms(standing.account), "balance": balance, "this month": _spent(standing.month)}
    if not standing.keys:
        return [facts(named)]
    rows = [Row(_key_spent(each), "plain" if is_live(each.key) else "dim") for each in standing.keys]
    return [facts(named), Line(), Table(rows, _SPENT)]


def keys_page(keys: Sequence[Key]) -> list[Block]:
    """Keys, one line each."""
    rows = [Row(_key(each), "plain" if is_live(each) else "dim") for each in keys]
    return [Table(rows, _KEYS)]


def key_page(key: Key, standing: KeyStanding | None) -> list[Block]:
    """The terms of a key, and how it stands, if it has budgets."""
    limits = key.limits or RateLimits()
    named = {
        "key": key.id,
        "account": key.account,
        "name": key.name,
        "begins with": f"{key.prefix}...",
        "environment": key.environment,
        "for": _scopes(key),
        "requests": _NO_LIMIT if limits.requests_per_min is None else f"{limits.requests_per_min:,} a minute",
        "tokens": _NO_LIMIT if limits.tokens_per_min is None else f"{limits.tokens_per_min:,} a minute",
        "calls": _NO_LIMIT if limits.concurrency is None else f"{limits.concurrency:,} at a time",
        "budget": exact(key.budget_nanos) or "none",
        "monthly limit": exact(key.monthly_nanos) or "none",
        "in all": "" if standing is None else _spent(standing.total),
        "this month": "" if standing is None else _spent(standing.month),
        "since": _moment(key.created_at),
        "revoked": _moment(key.revoked_at or ""),
    }
    return [facts(named)]


def incidents_page(incidents: Sequence[Incident]) -> list[Block]:
    """Incidents, one line each."""
    rows = [
        Row((each.id, each.severity, _minute(each.started_at), _minute(each.resolved_at or ""), each.title),
            "bad" if each.resolved_at is None else "dim")
        for each in incidents
    ]  # fmt: skip
    return [Table(rows, _INCIDENTS)]


def account_json(account: Account) -> dict[str, Any]:
    """The terms of an account: ``limits`` are those that hold, ``own_limits`` what it has in place of its plan's."""
    return {
        "name": account.name,
        "created_at": account.created_at,
        "plan": account.plan,
        "limits": _limits_json(limits_of(account)),
        "own_limits": _limits_json(account.limits),
        "prepaid": account.prepaid,
        "monthly_limit_usd": account.monthly_limit_usd,
    }


def standing_json(standing: AccountStanding) -> dict[str, Any]:
    """The terms of an account, and how it stands."""
    keys = [{"id": each.key.id, "name": each.key.name, **_purses_json(each)} for each in standing.keys]
    balance = None if standing.balance is None else standing.balance.left_usd
    return {
        **account_json(standing.account),
        "balance_usd": balance,
        "month": _purse_json(standing.month),
        "keys": keys,
    }


def key_json(key: Key) -> dict[str, Any]:
    """What is to be known of a key."""
    told = ("id", "account", "environment", "name", "prefix", "created_at", "revoked_at", "budget_usd")
    return {
        **{name: getattr(key, name) for name in told},
        "monthly_limit_usd": key.monthly_limit_usd,
        "scopes": list(key.scopes or SCOPES),
        "limits": _limits_json(key.limits),
    }


def key_standing_json(standing: KeyStanding) -> dict[str, Any]:
    """The same, and how it stands."""
    return {**key_json(standing.key), **_purses_json(standing)}


def _terms(account: Account) -> dict[str, str]:
    requests, tokens, concurrency = _limits(account)
    own = "" if account.limits is None else ", with limits of its own"
    return {
        "account": account.name,
        "plan": f"{account.plan}{own}",
        "requests": f"{requests} a minute" if requests else "without a limit",
        "tokens": f"{tokens} a minute" if tokens else "without a limit",
        "calls": f"{concurrency} at a time" if concurrency else "without a limit",
        "paid": "from its balance" if account.prepaid else "afterwards",
        "monthly limit": exact(account.monthly_nanos),
        "since": _moment(account.created_at),
    }


def _limits(account: Account) -> tuple[str, str, str]:
    found = limits_of(account)
    requests, tokens, concurrency = (
        "" if limit is None else f"{limit:,}"
        for limit in (found.requests_per_min, found.tokens_per_min, found.concurrency)
    )
    return requests, tokens, concurrency


def _key(key: Key) -> tuple[str, ...]:
    revoked = "" if key.revoked_at is None else f"revoked {_minute(key.revoked_at)}"
    return (key.id, key.name, f"{key.prefix}...", key.environment, _scopes(key), key.created_at[:_DAY], revoked)


def _key_spent(standing: KeyStanding) -> tuple[str, ...]:
    key = standing.key
    return (key.id, key.name, _spent(standing.total), _spent(standing.month), "" if is_live(key) else "revoked")


def _spent(purse: Purse) -> str:
    """What was charged, of how much, and what calls that run hold."""
    said = exact(purse.spent_nanos)
    if purse.limit_nanos is not None:
        share = "" if purse.percent is None else f" ({percent(purse.percent / 100)})"
        said += f" of {exact(purse.limit_nanos)}{share}"
    return f"{said}, {exact(purse.reserved_nanos)} reserved" if purse.reserved_nanos else said


def _purses_json(standing: KeyStanding) -> dict[str, Any]:
    return {"total": _purse_json(standing.total), "month": _purse_json(standing.month)}


def _purse_json(purse: Purse) -> dict[str, float | None]:
    return {name: getattr(purse, name) for name in ("spent_usd", "limit_usd", "reserved_usd", "percent")}


def _limits_json(limits: object) -> dict[str, Any] | None:
    return None if limits is None else {
        name: getattr(limits, name) for name in ("requests_per_min", "tokens_per_min", "concurrency")
    }  # fmt: skip


def _yes(account: Account) -> str:
    return "yes" if account.prepaid else ""


def _scopes(key: Key) -> str:
    return "all" if key.scopes is None else ", ".join(key.scopes)


def _moment(timestamp: str) -> str:
    return timestamp.replace("T", " ").replace("Z", " UTC")


def _minute(timestamp: str) -> str:
    return timestamp[:_MINUTE].replace("T", " ")
