"""The first start of a server: an account and its keys, made once, whoever else starts at the same moment."""

from __future__ import annotations

import secrets

from routewright.backends.storage.memory import MemoryStorage
from routewright.console import Console
from routewright.errors import ValidationFailed
from routewright.wire import Environment, Key

from .building import storage_of
from .plan import ACCOUNT, Begun, Plan, Seed

KEY_NAME = "first"


async def begin(plan: Plan) -> Begun:
    """Make the store, and on the first start an account with the plan ``unlimited`` and a key an environment. The first
    start is the one that finds no account. Raises ``RouterError``."""
    storage = storage_of(plan)
    secret = secrets.token_hex(32) if isinstance(storage, MemoryStorage) else None
    async with Console(storage, secret=secret) as console:
        known = [account.name for account in await console.accounts()]
        if known or not await _is_first(console):
            return Begun({}, account=known[0] if known and ACCOUNT not in known else ACCOUNT)
        shown: dict[Environment, str] = {}
        kept: list[Key] = []
        for environment in plan.environments:
            new = await console.create_key(ACCOUNT, name=KEY_NAME, environment=environment)
            shown[environment] = new.secret.reveal()
            kept.append(new.key)
        account = await console.account(ACCOUNT)
    return Begun(shown, None if secret is None else Seed(account, tuple(kept), secret))


async def _is_first(console: Console) -> bool:
    """Set the account up. False: another start was faster, in the moment since it was looked for."""
    try:
        await console.create_account(ACCOUNT, plan="unlimited")
    except ValidationFailed:
        await console.account(ACCOUNT)
        return False
    return True
