"""The command ``keys``: ``create``, ``ls``, ``show``, ``change`` and ``revoke``."""

from __future__ import annotations

import anyio

from routewright.console import Console
from routewright.errors import Problem, ValidationFailed

from .blocks import Line
from .console_page import key_json, key_page, key_standing_json, keys_page
from .exits import INTERRUPTED, OK
from .options import Arguments
from .place import opened_console
from .screen import Screen
from .terms import check_changes, given_changes, given_terms
from .wording import console_named

_CHANGES = {"name": "name", "scope": "scopes", "budget": "budget_usd", "monthly_limit": "monthly_limit_usd"}
_TERMS = {**_CHANGES, "environment": "environment"}
"""What a ``Console`` calls what is given, but for limits."""


def run_keys(args: Arguments, screen: Screen) -> int:
    """Do what the command line says, and give the exit code. Raises ``RouterError``."""
    with console_named("--name"):
        return anyio.run(_TOPICS[args.topic], args, screen)


async def _create(args: Arguments, screen: Screen) -> int:
    async with opened_console(args) as console:
        new = await console.create_key(args.account, **given_terms(args, _TERMS))
    if args.json:
        screen.json({**key_json(new.key), "key": new.secret.reveal()})
        return OK
    screen.text(f"{new.secret.reveal()}\n")
    said = f"{new.key.id} of {new.key.account}, {new.key.environment}"
    screen.say(Line(f"{said}: keep the key now, it is not shown again", "dim"))
    return OK


async def _ls(args: Arguments, screen: Screen) -> int:
    async with opened_console(args) as console:
        await console.account(args.account)
        keys = await console.keys(args.account)
    if args.json:
        screen.json({"keys": [key_json(each) for each in keys]})
    elif keys:
        screen.show(*keys_page(keys))
    else:
        screen.say(Line("it has no key", "dim"))
    return OK


async def _show(args: Arguments, screen: Screen) -> int:
    async with opened_console(args) as console:
        key = await console.key(args.account, args.key_id)
        standings = (await console.standing(args.account)).keys
    standing = next((each for each in standings if each.key.id == key.id), None)
    if args.json:
        screen.json(key_json(key) if standing is None else key_standing_json(standing))
    else:
        screen.show(*key_page(key, standing))
    return OK


async def _change(args: Arguments, screen: Screen) -> int:
    check_changes(args, _CHANGES)
    async with opened_console(args) as console:
        key = await console.change_key(args.account, args.key_id, **given_changes(args, _CHANGES))
    if args.json:
        screen.json(key_json(key))
    else:
        screen.show(*key_page(key, None))
    return OK


async def _revoke(args: Arguments, screen: Screen) -> int:
    async with opened_console(args) as console:
        if not args.yes and not await _confirmed(console, args, screen):
            screen.say(Line("nothing is revoked", "dim"))
            return INTERRUPTED
        key = await console.revoke_key(args.account, args.key_id)
    if args.json:
        screen.json(key_json(key))
    else:
        screen.say(Line(f"{key.id} of {key.account} is revoked", "dim"))
    return OK


async def _confirmed(console: Console, args: Arguments, screen: Screen) -> bool:
    """Ask a person. Raises ``ValidationFailed`` where nobody can be asked, and ``NotFound`` for an unknown id."""
    key = await console.key(args.account, args.key_id)
    said = f"the key {key.name!r}, {key.prefix}..., of {key.account}"
    if not screen.asks:
        raise ValidationFailed.of(Problem("", f"{said} would be revoked for ever", "give --yes to have it done"))
    return screen.ask(f"revoke {said}, for ever?")


_TOPICS = {"create": _create, "ls": _ls, "show": _show, "change": _change, "revoke": _revoke}
