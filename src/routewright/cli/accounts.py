"""The command ``accounts``: ``create``, ``ls``, ``show``, ``change`` and ``credit``."""

from __future__ import annotations

import anyio

from .blocks import Line
from .console_page import account_json, account_page, accounts_page, credit_page, standing_json, standing_page
from .options import Arguments
from .place import opened_console
from .screen import Screen
from .terms import check_changes, given_changes, given_terms
from .wording import console_named

_TERMS = {"plan": "plan", "prepaid": "prepaid", "monthly_limit": "monthly_limit_usd"}
"""What a ``Console`` calls what is given, but for limits."""


def run_accounts(args: Arguments, screen: Screen) -> None:
    """Do what the command line says. Raises ``RouterError``."""
    with console_named():
        anyio.run(_TOPICS[args.topic], args, screen)


async def _create(args: Arguments, screen: Screen) -> None:
    async with opened_console(args, begins=True) as console:
        account = await console.create_account(args.name, **given_terms(args, _TERMS))
    if args.json:
        screen.json(account_json(account))
    else:
        screen.show(*account_page(account))


async def _ls(args: Arguments, screen: Screen) -> None:
    async with opened_console(args) as console:
        accounts = await console.accounts()
    if args.json:
        screen.json({"accounts": [account_json(each) for each in accounts]})
    elif accounts:
        screen.show(*accounts_page(accounts))
    else:
        screen.say(Line("no account is set up", "dim"))


async def _show(args: Arguments, screen: Screen) -> None:
    async with opened_console(args) as console:
        standing = await console.standing(args.name)
    if args.json:
        screen.json(standing_json(standing))
    else:
        screen.show(*standing_page(standing))


async def _change(args: Arguments, screen: Screen) -> None:
    check_changes(args, _TERMS)
    async with opened_console(args) as console:
        account = await console.change_account(args.name, **given_changes(args, _TERMS))
    if args.json:
        screen.json(account_json(account))
    else:
        screen.show(*account_page(account))


async def _credit(args: Arguments, screen: Screen) -> None:
    async with opened_console(args) as console:
        credit = await console.credit(args.name, args.usd, note=args.note, id=args.id)
    if args.json:
        told = {name: getattr(credit, name) for name in ("id", "usd", "created", "balance_usd")}
        screen.json(told)
        return
    screen.show(*credit_page(credit))


_TOPICS = {"create": _create, "ls": _ls, "show": _show, "change": _change, "credit": _credit}
