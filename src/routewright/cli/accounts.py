"""The commands ``accounts``, ``keys``, ``incidents`` and ``secret``. Only ``keys create`` shows a key."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Sequence

from routewright.console import SCOPES, Console, SomeLimits, limits_of
from routewright.wire import Account, Environment, JsonObject, Key, PlanName, RateLimits, Severity, TagLimit
from routewright.wire.account import SYSTEM_ACCOUNT

from .command import ABSENT, CATALOGUE, YES, Declaration, arg, flag, number_or, refused, separated, several, unconfirmed
from .show import Line, Screen, Table, dim_after, fields, listing, pick
from .store import new_store, store_verb

_LIMITS = {"requests_per_min": "requests a minute", "tokens_per_min": "tokens a minute", "concurrency": "calls at once"}
_PERIODS = ("daily_limit_usd", "weekly_limit_usd", "monthly_limit_usd")
_ACCOUNT_TERMS = ("plan", "prepaid", *_PERIODS, "tag_limits")
_KEY_TERMS = ("name", "scopes", "budget_usd", *_PERIODS, "models", "policies")
_ACCOUNTS = """name plan limits.requests_per_min limits.tokens_per_min limits.concurrency prepaid monthly_limit_usd
    created_at"""
_STANDING = """id name revoked_at total.spent_usd total.limit_usd month.spent_usd month.limit_usd month.reserved_usd
    day.spent_usd? day.limit_usd? week.spent_usd? week.limit_usd? models? policies?"""
_PURSE = "spent_usd limit_usd reserved_usd percent"
_KEYS = """id name prefix environment created_at revoked_at scopes models? policies? budget_usd? daily_limit_usd?
    weekly_limit_usd? monthly_limit_usd?"""


def _limits(word: str, scope: str) -> list[Declaration]:
    return [
        arg(f"--{name.replace('_', '-')} N", f"{label}, {scope}", number_or(word, int), ABSENT)
        for name, label in _LIMITS.items()
    ]


def _names_or_all(text: str) -> list[str] | None:
    return None if text == "all" else separated(text)


def _money(option: str, text: str) -> Declaration:
    dest = f"{option[2:].replace('-', '_')}_usd"
    return arg(f"{option} USD", f"{text}, or none", number_or("none"), ABSENT, dest=dest)


def _period_limits(text: str) -> list[Declaration]:
    periods = {"daily": "day", "weekly": "week, from Monday", "monthly": "month"}
    return [_money(f"--{name}-limit", f"{text} per {period} (UTC)") for name, period in periods.items()]


def _tag_limit(text: str) -> list[dict[str, str | float]]:
    """An argument type: the limits of a tag, or none."""
    if text == "none":
        return []
    tag, amounts = text.rpartition(":")[::2]
    key, value = tag.partition("=")[::2]
    try:
        limits = {
            f"{period}_limit_usd": float(usd) for period, _, usd in (a.partition("=") for a in amounts.split(","))
        }
    except ValueError:
        limits = {}
    if not key or not limits.keys() <= {*_PERIODS} or not limits:
        raise argparse.ArgumentTypeError(f"{text!r} is not like team:daily=10,monthly=100 or team=search:weekly=50")
    return [{"key": key, **({"value": value} if "=" in tag else {}), **limits}]


_TAG_LIMIT = "limits of metadata, as team:daily=10,monthly=100 or team=search:weekly=50, or none; replaces all others"
_NAME = arg("name NAME", "name of the account")
_PLANS = "plan of the account: free, pro, team, enterprise or unlimited"
_OTHER_TERMS = (
    *_limits("plan", "instead of the plan's: a number, or plan"),
    arg("--prepaid", "pay for calls from a prepaid balance", default=ABSENT, action=argparse.BooleanOptionalAction),
    *_period_limits("maximum charge"),
    arg("--tag-limit TAG", _TAG_LIMIT, _tag_limit, ABSENT, action="extend", dest="tag_limits"),
)
_OWNER = "or _system for the keys of operators"
_ACCOUNT = arg("account ACCOUNT", f"account that owns the key, {_OWNER}")
_KEY = (_ACCOUNT, arg("key_id ID", "id of the key, as 'routewright keys ls' lists it"))
_MODELS = "models that its calls may use: ids, aliases, 'openai/*', provider:openai"
_POLICIES = "policies of which its calls must use one; a single one applies by itself"
_SCOPES = f"permissions: {', '.join(SCOPES)}"
_KEY_LIMITS = (
    *_limits("none", "in addition to the account's: a number, or none"),
    _money("--budget", "maximum charge for all its calls"),
    *_period_limits("maximum charge for its calls"),
)


@store_verb(
    Console, "accounts create", _NAME, arg("--plan PLAN", _PLANS, PlanName, "free"), *_OTHER_TERMS, store=new_store
)
async def _create_account(args: Namespace, screen: Screen, console: Console) -> None:
    """Create an account.

    This also creates the store if there is none."""
    account = await console.create_account(args.name, **_terms_of(args, _ACCOUNT_TERMS))
    screen.report(_account_json(account), fields(_account_json(account)))


@store_verb(Console, "accounts ls")
async def _ls_accounts(args: Namespace, screen: Screen, console: Console) -> None:
    """List the accounts.

    Limits are those of the plan, or an account's own."""
    accounts = await console.accounts()
    screen.listing("accounts", map(_account_json, accounts), _ACCOUNTS, "there is no account")


@store_verb(
    Console, "accounts show", _NAME, several("--tag KEY=VALUE,...", "metadata whose limits to show", dest="tags")
)
async def _show_account(args: Namespace, screen: Screen, console: Console) -> None:
    """Show an account: its terms, its balance, and its charges of this day, week and month."""
    if any("=" not in tag for tag in args.tags or ()):
        raise refused("--tag", f"has no value: {', '.join(args.tags)}", "write it as team=search")
    standing = await console.standing(args.name, tags=dict(tag.partition("=")[::2] for tag in args.tags or ()))
    record = {
        **_account_json(standing.account),
        "balance_usd": None if standing.balance is None else standing.balance.left_usd,
        **{period: _purse_json(getattr(standing, period)) for period in ("day", "week", "month")},
    }
    tag_rows = [{"tag": purse.name.removeprefix("tag:"), **pick(purse, _PURSE)} for purse in standing.tags]
    keys = [
        pick(key.key, "id name revoked_at models policies")
        | {of: _purse_json(getattr(key, of)) for of in ("total", "month", "day", "week")}
        for key in standing.keys
    ]
    tags: list[Line | Table] = [Line(), listing(tag_rows, f"tag {_PURSE}")] if tag_rows else []
    key_table = listing(keys, _STANDING, dim_after("revoked_at"))
    screen.report({**record, "tags": tag_rows, "keys": keys}, fields(record), *tags, Line(), key_table)


@store_verb(Console, "accounts change", _NAME, arg("--plan PLAN", _PLANS, PlanName, ABSENT), *_OTHER_TERMS)
async def _change_account(args: Namespace, screen: Screen, console: Console) -> None:
    """Change the terms of an account.

    Terms that are not given stay as they are. Running servers follow within two seconds."""
    changes = _changes(args, _ACCOUNT_TERMS)
    account = await console.change_account(args.name, **changes)
    note = "all tag limits are replaced" if "tag_limits" in changes else ""
    screen.report(_account_json(account), fields(_account_json(account)), note=note)


@store_verb(
    Console,
    "accounts credit",
    _NAME,
    arg("usd USD", "amount; negative to take back", float),
    arg("--note TEXT", "reason, written to the ledger", default=""),
    arg("--id ID", "id that makes repeating safe, such as an invoice number"),
)
async def _credit(args: Namespace, screen: Screen, console: Console) -> None:
    """Add to the balance of a prepaid account.

    A negative amount takes back. Repeating an --id does nothing. Credit of an account that is not prepaid is used once
    it is."""
    credit = await console.credit(args.name, args.usd, note=args.note, id=args.id)
    record = pick(credit, "id usd created balance_usd")
    note = "" if credit.created else "this id was credited before; nothing is added"
    if credit.balance_nanos is None:
        note = "the account is not prepaid; the credit is used after 'accounts change --prepaid'"
    screen.report(record, fields(record), note=note)


def _account_json(account: Account) -> JsonObject:
    """The terms of an account: ``limits`` are the effective ones, ``own_limits`` those that override the plan's."""
    limits = {"limits": _limits_json(limits_of(account)), "own_limits": _limits_json(account.limits)}
    terms = pick(account, f"prepaid {' '.join(_PERIODS)}") | {"tag_limits": [*map(_tag_text, account.tag_limits)]}
    return pick(account, "name created_at plan") | limits | terms


def _tag_text(limit: TagLimit) -> str:
    """A limit as ``--tag-limit`` takes it."""
    tag = limit.key if limit.value is None else f"{limit.key}={limit.value}"
    amounts = {name.partition("_")[0]: getattr(limit, name) for name in _PERIODS}
    return f"{tag}:{','.join(f'{period}={usd:.9g}' for period, usd in amounts.items() if usd is not None)}"


@store_verb(
    Console,
    "keys create",
    arg("--name NAME", "name of the key", required=True),
    _ACCOUNT,
    arg("--environment", "environment of its calls", Environment, "production"),
    several("--scope SCOPE,...", f"{_SCOPES} (default: all)", dest="scopes"),
    several("--models ID,...", f"{_MODELS} (default: all)"),
    several("--policies NAME,...", f"{_POLICIES} (default: any or none)"),
    *_KEY_LIMITS,
    CATALOGUE,
)
async def _create_key(args: Namespace, screen: Screen, console: Console) -> None:
    """Create a key for an account, and write it to standard output.

    The key is shown only once. Everything else goes to standard error:

      KEY=$(routewright keys create acme --name website)

    A key of _system is an operator's: it opens the page of the server, and nothing else. Its --scope is console:read,
    or console:write to change things too."""
    new = await console.create_key(args.account, **_terms_of(args, (*_KEY_TERMS, "environment")))
    owner = f"{new.key.id} of {new.key.account}, {new.key.environment}"
    screen.secret(_key_json(new.key), "key", new.secret.reveal(), owner)


@store_verb(Console, "keys ls", arg("account ACCOUNT", f"account that owns the keys, {_OWNER}"))
async def _ls_keys(args: Namespace, screen: Screen, console: Console) -> None:
    """List the keys of an account, oldest first."""
    if args.account != SYSTEM_ACCOUNT:
        await console.account(args.account)
    keys = await console.keys(args.account)
    screen.listing("keys", map(_key_json, keys), _KEYS, "the account has no key", dim_after("revoked_at"))


@store_verb(
    Console,
    "keys change",
    *_KEY,
    arg("--name NAME", "name of the key", default=ABSENT),
    arg("--scope SCOPE,...", f"{_SCOPES}, or all", _names_or_all, ABSENT, dest="scopes"),
    arg("--models ID,...", f"{_MODELS}, or all", _names_or_all, ABSENT),
    arg("--policies NAME,...", f"{_POLICIES}, or all", _names_or_all, ABSENT),
    *_KEY_LIMITS,
    CATALOGUE,
)
async def _change_key(args: Namespace, screen: Screen, console: Console) -> None:
    """Change the terms of a key.

    Terms that are not given stay as they are. Running servers follow within two seconds. A revoked key stays revoked.
    An operator's key, of _system, has only --name and --scope console:read or console:write."""
    changes = _changes(args, _KEY_TERMS)
    key = await console.change_key(args.account, args.key_id, **changes)
    screen.report(_key_json(key), note=f"{key.id} of {key.account} is changed")


@store_verb(Console, "keys revoke", *_KEY, YES)
async def _revoke(args: Namespace, screen: Screen, console: Console) -> None:
    """Revoke a key permanently.

    Running servers refuse it within two seconds. The traces of its calls in the last 24 hours are marked as
    compromised. Nothing is revoked without --yes."""
    if not args.yes:
        key = await console.key(args.account, args.key_id)
        raise unconfirmed(f"the key {key.name!r}, {key.prefix}..., of {key.account} would be revoked permanently")
    key = await console.revoke_key(args.account, args.key_id)
    screen.report(_key_json(key), note=f"{key.id} of {key.account} is revoked")


def _key_json(key: Key) -> JsonObject:
    record = pick(key, f"id account environment prefix created_at revoked_at {' '.join(_KEY_TERMS)}")
    return {**record, "scopes": list(key.scopes or SCOPES), "limits": _limits_json(key.limits)}


@store_verb(
    Console,
    "incidents open",
    arg("title TITLE", "one line on what fails"),
    arg("--severity", "severity", Severity, "major"),
    arg("--status-url URL", "page with more about it"),
)
async def _open(args: Namespace, screen: Screen, console: Console) -> None:
    """Open an incident that concerns many callers.

    The event incident.created is emitted."""
    incident = await console.open_incident(args.title, severity=args.severity, status_url=args.status_url)
    screen.report(incident, note=f"{incident.id} is open; 'routewright incidents resolve {incident.id}' ends it")


@store_verb(Console, "incidents resolve", arg("id ID", "id of the incident, as 'routewright incidents ls' lists it"))
async def _resolve(args: Namespace, screen: Screen, console: Console) -> None:
    """Resolve an incident."""
    incident = await console.resolve_incident(args.id)
    screen.report(incident, note=f"{incident.id} is resolved")


@store_verb(Console, "incidents ls")
async def _ls_incidents(args: Namespace, screen: Screen, console: Console) -> None:
    """List the last hundred incidents, newest first."""
    incidents = await console.incidents()
    columns = "id severity started_at resolved_at title"
    screen.listing("incidents", incidents, columns, "there is no incident", dim_after("resolved_at"))


@store_verb(Console, "secret rotate", flag("--force", "end live keys that have not been used since the last change"))
async def _rotate(args: Namespace, screen: Screen, console: Console) -> None:
    """Change the root secret beside the store.

    The previous one stays valid until the next change. A key moves to the new one when it is used; while some have
    not, the secret cannot be changed again."""
    await console.rotate_secret(force=args.force)
    note = "the secret is changed; the previous one stays valid until the next change, and keys move over when used"
    screen.report({"rotated": True}, note=note)


def _terms_of(args: Namespace, names: Sequence[str]) -> JsonObject:
    limits = RateLimits(**{name: getattr(args, name) for name in _LIMITS if name in args})
    values = {name: getattr(args, name) for name in names if name in args}
    return values if limits == RateLimits() else {**values, "limits": limits}


def _changes(args: Namespace, names: Sequence[str]) -> JsonObject:
    """The changes given as options. Limits that are not given stay as they are.

    Raises ``ValidationFailed`` if nothing is given, because a variable in a script may have been empty."""
    values = {name: getattr(args, name) for name in names if name in args}
    limits = {name: getattr(args, name) for name in _LIMITS if name in args}
    if not values and not limits:
        options = ", ".join(args.parser.spelling()[name] for name in (*names, *_LIMITS))
        raise refused("", "no change is given", f"give at least one of {options}")
    return {**values, "limits": SomeLimits(**limits, fields=frozenset(limits))} if limits else values


def _purse_json(purse: object) -> JsonObject | None:
    return None if purse is None else pick(purse, _PURSE)


def _limits_json(limits: RateLimits | None) -> object:
    return None if limits is None else pick(limits, "requests_per_min tokens_per_min concurrency")
