"""Whose books or traces are meant? Where an account has none, the names that there are."""

from __future__ import annotations

from contextlib import aclosing

from routewright._core.request.problems import listed
from routewright._core.terms import told
from routewright.errors import NotFound
from routewright.ledger import Ledger
from routewright.trace import TraceStore
from routewright.wire import DEFAULT_ACCOUNT

from .options import Arguments
from .place import opened_console

NAMED = 5
"""More names than so many are not read in a line."""


async def hint_of(ledger: Ledger, args: Arguments) -> str:
    """What helps whoever named no account and finds nothing; else nothing. Raises ``NotFound`` for an account that
    nobody set up and that has no books."""
    async with aclosing(ledger.rows(account=args.account)) as rows:
        async for _ in rows:
            return ""
    names = await _names(args)
    if args.account in names:
        return ""
    hint = _others(names)
    if args.account != DEFAULT_ACCOUNT:
        raise NotFound(f"no account {told(args.account)}, and nothing is booked there{hint}")
    return hint


async def lack_of_traces(store: TraceStore, args: Arguments) -> str:
    """What is said of an account that has no trace, with what helps; nothing of one that has some. Calls need no
    account that was set up, so that none is unknown."""
    if (await store.query(account=args.account, limit=1)).data:
        return ""
    names = await _names(args)
    hint = "" if args.account in names else _others(names)
    return f"the account {told(args.account)} has no trace there{hint}"


async def _names(args: Arguments) -> list[str]:
    async with opened_console(args) as console:
        return [account.name for account in await console.accounts()]


def _others(names: list[str]) -> str:
    if not names:
        return ""
    found = listed(names) if len(names) <= NAMED else f"'routewright accounts ls' lists {len(names)}"
    return f"; name another with --account: {found}"
