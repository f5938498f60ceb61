"""The commands ``accounts``, ``keys``, ``incidents`` and ``secret``. Only ``keys create`` shows a key."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, get_args

from routewright._core.account import SCOPES, is_live, limits_of
from routewright._core.account_fields import SomeLimits
from routewright.console import Console
from routewright.wire import Account, Environment, Key, KeyStanding, PlanName, Purse, RateLimits, Scope, Severity

from .command import INTERRUPTED, OK, Parser, add, names, number_or, refused
from .show import Block, Line, Row, Screen, Style, Table, exact, facts, moment, percent, picked
from .store import add_store_options, existing_store, named_store

_LIMITS = {
    "requests_per_min": "requests a minute",
    "tokens_per_min": "tokens a minute",
    "concurrency": "calls at a time",
}
_ACCOUNT_TERMS = ("plan", "prepaid", "monthly_limit_usd")
_KEY_TERMS = ("name", "scopes", "budget_usd", "monthly_limit_usd")
_ACCOUNTS = ("account", "plan", "requests/min", "tokens/min", "at a time", "prepaid", "monthly limit", "since")
_KEYS = ("key", "name", "begins with", "environment", "for", "created", "")
_INCIDENTS = ("incident", "severity", "began (UTC)", "ended", "title")
_LIVE: tuple[Style, str] = ("plain", "")
_REVOKED: tuple[Style, str] = ("dim", "revoked")
_DAY, _MINUTE = len("2026-11-22"), len("2026-11-22T12:00")


def add_accounts(command: Parser) -> None:
    """Add the subcommands of ``accounts``."""
    create, ls = command.command("create NAME", _create_account), command.command("ls", _ls_accounts)
    show, change = command.command("show NAME", _show_account), command.command("change NAME", _change_account)
    credit = command.command("credit NAME USD", _credit)
    for each in (create, show, change, credit):
        add(each, "name NAME", "the account")
    plans = "free, pro, team, enterprise or unlimited"
    add(create, "--plan PLAN", f"{plans} (default: free)", choices=get_args(PlanName), default="free")
    add(change, "--plan PLAN", plans, choices=get_args(PlanName), default=argparse.SUPPRESS)
    for each in (create, change):
        _add_limits(each, "plan", "in place of the plan's: a number, or plan")
        prepaid = "calls are paid from its balance, which credit fills (default: they are not)"
        add(each, "--prepaid", prepaid, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS)
        _add_money(each, "--monthly-limit", "the most that it may be charged in a month, or none")
    add(credit, "usd USD", "how much", type=float)
    add(credit, "--note TEXT", "what it is for; kept in the ledger", default="")
    add(credit, "--id ID", "makes repeating safe, as the number of an invoice")
    add_store_options(create, ls, show, change, credit)


async def _create_account(args: Namespace, screen: Screen) -> None:
    """Set up an account.

    Creates the store if there is none yet."""
    async with Console(named_store(args) or existing_store(args)) as console:
        account = await console.create_account(args.name, **_given(args, _ACCOUNT_TERMS))
    screen.report(_account_json(account), facts(_account_terms(account)))


async def _ls_accounts(args: Namespace, screen: Screen) -> None:
    """List the accounts.

    Limits are those of the plan, or an account's own."""
    async with Console(existing_store(args)) as console:
        accounts = await console.accounts()
    rows = []
    for each in accounts:
        paid = ("yes" if each.prepaid else "", exact(each.monthly_nanos))
        rows.append(Row((each.name, each.plan, *_figures(limits_of(each)), *paid, each.created_at[:_DAY])))
    told = {"accounts": [_account_json(each) for each in accounts]}
    screen.report(told, Table(rows, _ACCOUNTS, frozenset({2, 3, 4, 6})), note="" if rows else "no account is set up")


async def _show_account(args: Namespace, screen: Screen) -> None:
    """Show an account: its terms, its balance, what was charged this month."""
    async with Console(existing_store(args)) as console:
        standing = await console.standing(args.name)
    balance = "" if standing.balance is None else exact(standing.balance.left_nanos)
    named = {**_account_terms(standing.account), "balance": balance, "this month": _spent(standing.month)}
    blocks: list[Block] = [facts(named)]
    if standing.keys:
        rows = []
        for each in standing.keys:
            style, note = _LIVE if is_live(each.key) else _REVOKED
            rows.append(Row((each.key.id, each.key.name, _spent(each.total), _spent(each.month), note), style))
        blocks += [Line(), Table(rows, ("key", "name", "in all", "this month", ""))]
    told = {
        **_account_json(standing.account),
        "balance_usd": None if standing.balance is None else standing.balance.left_usd,
        "month": _purse_json(standing.month),
        "keys": [{"id": each.key.id, "name": each.key.name, **_purses_json(each)} for each in standing.keys],
    }
    screen.report(told, *blocks)


async def _change_account(args: Namespace, screen: Screen) -> None:
    """Change the terms of an account.

    Terms that are not given stay as they are. Running servers follow within two seconds."""
    changes = _changes(args, _ACCOUNT_TERMS)
    async with Console(existing_store(args)) as console:
        account = await console.change_account(args.name, **changes)
    screen.report(_account_json(account), facts(_account_terms(account)))


async def _credit(args: Namespace, screen: Screen) -> None:
    """Add to the balance of a prepaid account.

    A negative amount takes back. Repeating an --id does nothing. Credit of an account that is not prepaid is kept,
    and used once it is."""
    async with Console(existing_store(args)) as console:
        credit = await console.credit(args.name, args.usd, note=args.note, id=args.id)
    unused = "none: credit is not used before 'accounts change --prepaid'"
    named = {
        "credit": f"{exact(credit.nanos)}{'' if credit.created else ', which was done before'}",
        "id": credit.id,
        "balance": unused if credit.balance_nanos is None else exact(credit.balance_nanos),
    }
    screen.report(picked(credit, "id usd created balance_usd"), facts(named))


def _account_terms(account: Account) -> dict[str, str]:
    return {
        "account": account.name,
        "plan": f"{account.plan}{'' if account.limits is None else ', with limits of its own'}",
        **_limits_says(limits_of(account), "without a limit"),
        "paid": "from its balance" if account.prepaid else "afterwards",
        "monthly limit": exact(account.monthly_nanos),
        "since": moment(account.created_at),
    }


def _account_json(account: Account) -> dict[str, Any]:
    """The terms of an account: ``limits`` are the effective ones, ``own_limits`` those that override the plan's."""
    limits = {"limits": _limits_json(limits_of(account)), "own_limits": _limits_json(account.limits)}
    return picked(account, "name created_at plan") | limits | picked(account, "prepaid monthly_limit_usd")


def add_keys(command: Parser) -> None:
    """Add the subcommands of ``keys``."""
    create, ls = command.command("create --name NAME ACCOUNT", _create_key), command.command("ls ACCOUNT", _ls_keys)
    show, change = command.command("show ACCOUNT ID", _show_key), command.command("change ACCOUNT ID", _change_key)
    revoke = command.command("revoke ACCOUNT ID", _revoke)
    for each in (create, ls):
        add(each, "account ACCOUNT", "whose they are")
    for each in (show, change, revoke):
        add(each, "account ACCOUNT", "whose it is")
        add(each, "key_id ID", "the key, as 'routewright keys ls' lists it")
    scopes, default = f"what it is for: {', '.join(get_args(Scope))}", argparse.SUPPRESS
    add(create, "--name NAME", "what its owner calls it", required=True)
    which = "production or sandbox (default: production)"
    add(create, "--environment", which, choices=get_args(Environment), default="production")
    add(create, "--scope SCOPE,...", f"{scopes} (default: all)", dest="scopes", action="extend", type=names)
    add(change, "--name NAME", "what its owner calls it", default=default)
    add(change, "--scope SCOPE,...", f"{scopes}, or all", dest="scopes", type=_scopes_or_all, default=default)
    for each in (create, change):
        _add_limits(each, "none", "besides those of the account: a number, or none")
        _add_money(each, "--budget", "the most that may ever be charged for its calls, or none")
        _add_money(each, "--monthly-limit", "the most that may be charged for them in a month, or none")
    revoke.add_argument("-y", "--yes", action="store_true", help="do not ask")
    add_store_options(create, ls, show, change, revoke)


async def _create_key(args: Namespace, screen: Screen) -> None:
    """Make a key for an account, and write it to standard output.

    The key is shown only once. All else goes to standard error:

      KEY=$(routewright keys create acme --name website)"""
    async with Console(existing_store(args)) as console:
        new = await console.create_key(args.account, **_given(args, (*_KEY_TERMS, "environment")))
    if args.json:
        screen.json({**_key_json(new.key), "key": new.secret.reveal()})
        return
    screen.text(f"{new.secret.reveal()}\n")
    said = f"{new.key.id} of {new.key.account}, {new.key.environment}"
    screen.note(f"{said}: keep the key now, it is not shown again")


async def _ls_keys(args: Namespace, screen: Screen) -> None:
    """List the keys of an account, oldest first."""
    async with Console(existing_store(args)) as console:
        await console.account(args.account)
        keys = await console.keys(args.account)
    rows = []
    for each in keys:
        style, note = _LIVE if is_live(each) else _REVOKED
        rest = (f"{each.prefix}...", each.environment, _scopes(each), each.created_at[:_DAY])
        rows.append(Row((each.id, each.name, *rest, f"{note} {_minute(each.revoked_at or '')}".strip()), style))
    told = {"keys": [_key_json(each) for each in keys]}
    screen.report(told, Table(rows, _KEYS), note="" if rows else "it has no key")


async def _show_key(args: Namespace, screen: Screen) -> None:
    """Show a key: its terms, and what was charged for its calls, if it has a budget."""
    async with Console(existing_store(args)) as console:
        key = await console.key(args.account, args.key_id)
        standings = (await console.standing(args.account)).keys
    standing = next((each for each in standings if each.key.id == key.id), None)
    told = _key_json(key) if standing is None else {**_key_json(standing.key), **_purses_json(standing)}
    screen.report(told, _key_facts(key, standing))


async def _change_key(args: Namespace, screen: Screen) -> None:
    """Change the terms of a key.

    Terms that are not given stay as they are. Running servers follow within two seconds. A revoked key stays revoked.
    """
    changes = _changes(args, _KEY_TERMS)
    async with Console(existing_store(args)) as console:
        key = await console.change_key(args.account, args.key_id, **changes)
    screen.report(_key_json(key), _key_facts(key, None))


async def _revoke(args: Namespace, screen: Screen) -> int:
    """Revoke a key for ever.

    Running servers refuse it within two seconds. The traces of its calls in the last 24 hours are marked as
    compromised. A person is asked first; scripts need --yes."""
    async with Console(existing_store(args)) as console:
        if not args.yes:
            key = await console.key(args.account, args.key_id)
            said = f"the key {key.name!r}, {key.prefix}..., of {key.account}"
            if not screen.ask(f"revoke {said}, for ever?", otherwise=f"{said} would be revoked for ever"):
                screen.note("nothing is revoked")
                return INTERRUPTED
        key = await console.revoke_key(args.account, args.key_id)
    screen.report(_key_json(key), note=f"{key.id} of {key.account} is revoked")
    return OK


def _key_facts(key: Key, standing: KeyStanding | None) -> Table:
    named = {
        "key": key.id,
        "account": key.account,
        "name": key.name,
        "begins with": f"{key.prefix}...",
        "environment": key.environment,
        "for": _scopes(key),
        **_limits_says(key.limits or RateLimits(), "without a limit of its own"),
        "budget": exact(key.budget_nanos) or "none",
        "monthly limit": exact(key.monthly_nanos) or "none",
        "in all": "" if standing is None else _spent(standing.total),
        "this month": "" if standing is None else _spent(standing.month),
        "since": moment(key.created_at),
        "revoked": moment(key.revoked_at),
    }
    return facts(named)


def _key_json(key: Key) -> dict[str, Any]:
    told = picked(key, "id account environment name prefix created_at revoked_at budget_usd monthly_limit_usd")
    return {**told, "scopes": list(key.scopes or SCOPES), "limits": _limits_json(key.limits)}


def _scopes(key: Key) -> str:
    return "all" if key.scopes is None else ", ".join(key.scopes)


def _scopes_or_all(text: str) -> list[str] | None:
    return None if text == "all" else names(text)


def add_incidents(command: Parser) -> None:
    """Add the subcommands of ``incidents``."""
    begin, end = command.command("open TITLE", _open), command.command("resolve ID", _resolve)
    add(begin, "title TITLE", "what goes wrong")
    add(begin, "--severity", "how bad it is (default: major)", choices=get_args(Severity), default="major")
    add(begin, "--status-url URL", "where to read more about it")
    add(end, "id ID", "the incident, as 'routewright incidents ls' lists it")
    add_store_options(begin, end, command.command("ls", _ls_incidents))


async def _open(args: Namespace, screen: Screen) -> None:
    """Open an incident that concerns many callers.

    The event incident.created is emitted."""
    async with Console(existing_store(args)) as console:
        incident = await console.open_incident(args.title, severity=args.severity, status_url=args.status_url)
    screen.report(incident, note=f"opened: routewright incidents resolve {incident.id} ends it")


async def _resolve(args: Namespace, screen: Screen) -> None:
    """Resolve an incident: it is over."""
    async with Console(existing_store(args)) as console:
        incident = await console.resolve_incident(args.id)
    screen.report(incident, note=f"{incident.id} is over")


async def _ls_incidents(args: Namespace, screen: Screen) -> None:
    """List the last hundred incidents, newest first."""
    async with Console(existing_store(args)) as console:
        incidents = await console.incidents()
    rows = []
    for each in incidents:
        times = (_minute(each.started_at), _minute(each.resolved_at or ""))
        style: Style = "bad" if each.resolved_at is None else "dim"
        rows.append(Row((each.id, each.severity, *times, each.title), style))
    screen.report({"incidents": incidents}, Table(rows, _INCIDENTS), note="" if rows else "there was none")


def add_secret(command: Parser) -> None:
    """Add the subcommand of ``secret``."""
    rotate = command.command("rotate", _rotate)
    add(rotate, "--force", "end live keys that were not used since the last change", action="store_true")
    add_store_options(rotate)


async def _rotate(args: Namespace, screen: Screen) -> None:
    """Change the root secret beside the store.

    The previous one stays valid until the next change. A key moves to the new one when it is used; while some have
    not, the secret cannot be changed again."""
    async with Console(existing_store(args)) as console:
        await console.rotate_secret(force=args.force)
    said = "the secret is changed; the one before it holds until the next change, and keys go over as they are used"
    screen.report({"rotated": True}, note=said)


def _add_limits(command: Parser, none: str, more: str) -> None:
    for name, what in _LIMITS.items():
        kept = {"type": number_or(none, int), "default": argparse.SUPPRESS}
        add(command, f"--{name.replace('_', '-')} N", f"{what}, {more}", **kept)


def _add_money(command: Parser, option: str, what: str) -> None:
    dest = f"{option[2:].replace('-', '_')}_usd"
    add(command, f"{option} USD", what, dest=dest, type=number_or("none"), default=argparse.SUPPRESS)


def _given(args: Namespace, terms: Sequence[str]) -> dict[str, Any]:
    limits = RateLimits(**{name: getattr(args, name) for name in _LIMITS if name in args})
    given = {name: getattr(args, name) for name in terms if name in args}
    return given if limits == RateLimits() else {**given, "limits": limits}


def _changes(args: Namespace, terms: Sequence[str]) -> dict[str, Any]:
    """The changes given as options. Limits that are not given stay as they are.

    Raises ``ValidationFailed`` if nothing is given, because a variable in a script may have been empty."""
    given = {name: getattr(args, name) for name in terms if name in args}
    limits = {name: getattr(args, name) for name in _LIMITS if name in args}
    if not given and not limits:
        options = ", ".join(args.parser.spelling()[name] for name in (*terms, *_LIMITS))
        raise refused("", "nothing is given that would change", f"give some of {options}")
    return {**given, "limits": SomeLimits(**limits, told=frozenset(limits))} if limits else given


def _figures(limits: RateLimits) -> list[str]:
    return ["" if limit is None else f"{limit:,}" for limit in _limits_json(limits).values()]


def _limits_says(limits: RateLimits, without: str) -> dict[str, str]:
    units = {"requests": "a minute", "tokens": "a minute", "calls": "at a time"}
    figures = zip(units.items(), _figures(limits), strict=True)
    return {name: f"{figure} {unit}" if figure else without for (name, unit), figure in figures}


def _spent(purse: Purse) -> str:
    """The amount charged, the limit, and the amount reserved by running calls."""
    said = exact(purse.spent_nanos)
    if purse.limit_nanos is not None:
        share = "" if purse.percent is None else f" ({percent(purse.percent / 100)})"
        said += f" of {exact(purse.limit_nanos)}{share}"
    return f"{said}, {exact(purse.reserved_nanos)} reserved" if purse.reserved_nanos else said


def _purses_json(standing: KeyStanding) -> dict[str, Any]:
    return {"total": _purse_json(standing.total), "month": _purse_json(standing.month)}


def _purse_json(purse: Purse) -> dict[str, float | None]:
    return picked(purse, "spent_usd limit_usd reserved_usd percent")


def _limits_json(limits: RateLimits | None) -> Any:
    return None if limits is None else picked(limits, "requests_per_min tokens_per_min concurrency")


def _minute(timestamp: str) -> str:
    return timestamp[:_MINUTE].replace("T", " ")
