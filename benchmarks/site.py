"""A Router on loopback, in a process of its own.

    python -m benchmarks.site everything http://127.0.0.1:8001/short FOLDER

The first word says what is on (``TERMS``), the second where the models are: ``in-process``, or the base of an
upstream's address.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal, get_args

from routewright import Catalogue, Console, MemoryStorage, Router, SqliteStorage
from routewright.protocols import Provider, Storage
from routewright.server import App, create_app
from routewright.wire import Caller

from .accounts import WIDE
from .doubles import Instant
from .loopback import openai
from .serve import IN_PROCESS, serve

Terms = Literal["bare", "limits", "everything"]
"""``bare``: a function says who calls. ``limits``: keys of a Console with limits of the account and the key, in memory.
``everything``: the same in SQLite, with a limit a month."""
TERMS: tuple[Terms, ...] = get_args(Terms)
MONTHLY_USD = 1e6


def application(terms: Terms, models: str, folder: Path) -> tuple[App, dict[str, str]]:
    """The application, and the headers that its callers need."""
    provider: Provider = Instant()
    if models != IN_PROCESS:
        from routewright.backends.transport.aiohttp import AiohttpTransport  # which takes 10 MB

        provider = openai(models, AiohttpTransport())
    if terms == "bare":
        return create_app(_router(provider, MemoryStorage()), authenticate=lambda scope: Caller()), {}
    everything = terms == "everything"
    storage: Storage = SqliteStorage(folder / "store.db") if everything else MemoryStorage()
    router = _router(provider, storage)
    console = Console(storage, secret="a secret that is long enough for one")
    key = _open_account(console, MONTHLY_USD if everything else None)
    return create_app(router, console), {"authorization": f"Bearer {key}"}


def _router(provider: Provider, storage: Storage) -> Router:
    return Router(providers=[provider], catalogue=Catalogue(()), storage=storage)


def _open_account(console: Console, monthly_usd: float | None) -> str:
    """An account and a key that never come to their limits. Gives the key."""
    doing = console.blocking
    doing.create_account("acme", plan="enterprise", limits=WIDE, monthly_limit_usd=monthly_usd)
    return doing.create_key("acme", name="bench", limits=WIDE).secret.reveal()


if __name__ == "__main__":
    terms, models, folder = sys.argv[1:]
    assert terms in TERMS, f"{terms}: take one of {TERMS}"
    serve(*application(terms, models, Path(folder)))
