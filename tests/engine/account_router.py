"""A Router on virtual time with an account, for tests of admission and settlement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from routewright import (
    Catalogue,
    MemoryStorage,
    Router,
    Settings,
)
from routewright.testing import FakeClock, ScriptedProvider
from routewright.testing.provider import Line
from routewright.wire import (
    Account,
    Caller,
    Delta,
    Finish,
    Key,
    LedgerRow,
    LedgerRows,
    ParamsDict,
    PutAccount,
    PutKey,
    Standing,
    Stands,
    Usage,
    Write,
)
from routewright.wire.timestamps import timestamp

from . import scripted_router
from .faulty_storage import Behind

ONE, SPARE = scripted_router.GOOD, scripted_router.SPARE
ANSWER: list[Line] = [Delta("an answer"), Usage(100, 50), Finish("stop")]
COST = 100 * 1_000 + 50 * 4_000
"""Of it, in nano-dollars."""
ACME = Caller("acme")
CAP: ParamsDict = {"max_output_tokens": 100}
AT = "2026-11-01T00:00:00.000Z"


class Bank:
    """A Router on virtual time whose account ``acme`` has terms."""

    def __init__(self, *script: Any, spare: Sequence[Any] = (), terms: Sequence[Write] = ()) -> None:
        self.clock = FakeClock()
        self.storage = MemoryStorage(clock=self.clock)
        self.good = ScriptedProvider(script or [ANSWER], models=[ONE], clock=self.clock)
        self.spare = ScriptedProvider(spare, models=[SPARE], clock=self.clock)
        self._providers = [self.good, self.spare] if spare else [self.good]
        self.terms = terms
        self.answers: list[Any] = []
        """What was routed, as it came."""
        self.use(self.storage)

    def use(self, storage: Any, providers: Any = None) -> None:
        """Route with these. Callers of other accounts are served, too."""
        settings = Settings(clock=self.clock, unknown_accounts="serve")
        self.router = Router(
            providers=providers or self._providers, catalogue=Catalogue(()), storage=storage, settings=settings
        )

    def behind(self) -> Behind:
        """Route with the storage, behind one that can fail."""
        storage = Behind(self.storage, self.clock)
        self.use(storage)
        return storage

    async def open(self) -> Bank:
        if self.terms:
            await self.storage.apply("acme", list(self.terms))
        return self

    async def route(self, text: str = "hi", caller: Caller = ACME, **options: Any) -> Any:
        self.answers.append(await self.router.route(text, caller=caller, **{"params": CAP, **options}))
        return self.answers[-1]

    async def standing(self, key_id: str | None = None) -> Standing:
        found: Standing = await self.storage.read("acme", Stands(self.month, key_id))
        return found

    async def purse(self, level: str = "month") -> tuple[int | None, int, int]:
        """Limit, spent, reserved."""
        found = await self.storage.read("acme", Stands(self.month, None))
        (purse,) = [each for each in found.purses if each.level == level]
        return purse.limit_nanos, purse.spent_nanos, purse.reserved_nanos

    @property
    def month(self) -> str:
        return timestamp(self.clock.time())

    async def rows(self) -> list[LedgerRow]:
        found: list[LedgerRow] = await self.storage.scan("acme", LedgerRows(), after=None, limit=1_000)
        return found

    async def charged(self) -> int:
        return sum(row.charge_nanos for row in await self.rows())


def account(**terms: Any) -> PutAccount:
    return PutAccount(Account(name="acme", created_at=AT, **{"plan": "unlimited", **terms}))


def key(key_id: str = "key_1", **terms: Any) -> PutKey:
    return PutKey(
        Key(
            id=key_id, account="acme", environment="production", name="mine", prefix="sk_live_abcd", digest=key_id,
            created_at=AT, **terms,
        )
    )  # fmt: skip
