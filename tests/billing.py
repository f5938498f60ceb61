"""What tests of the ledger as its owner reads it build on: a firm whose calls cost known amounts, in any storage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from routewright import (
    Ledger,
    MemoryStorage,
    Model,
    Pricing,
    ProviderFault,
    Router,
    RouterError,
    Settings,
    SqliteStorage,
    TraceStore,
)
from routewright.protocols import Facts, Storage
from routewright.testing import FakeClock, ScriptedProvider
from routewright.testing.provider import Turn
from routewright.wire import (
    Account,
    AddCredit,
    Ask,
    Caller,
    Delta,
    Finish,
    Grant,
    Key,
    LedgerRow,
    ModelSpan,
    PutAccount,
    PutKey,
    Standing,
    Stands,
    Trace,
    UpstreamCall,
    Usage,
)
from routewright.wire.money import nanos_of
from routewright.wire.timestamps import timestamp

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
SET_UP = "2026-11-01T00:00:00.000Z"
ACME = Caller("acme")
ONE = Model(
    id="good/one", quality=0.9, pricing_per_1m=Pricing(1.0, 4.0, 0.1), context_window=100_000, max_output_tokens=400
)
TWO = Model(
    id="spare/two", quality=0.5, pricing_per_1m=Pricing(2.0, 8.0), context_window=100_000, max_output_tokens=400
)
TOLD: Turn = [Delta("an answer"), Usage(100, 50), Finish("stop")]
COST = 100 * 1_000 + 50 * 4_000
"""Of it, in nano-dollars."""
SILENT: Turn = [Delta("an answer"), Finish("stop")]
"""The provider does not say what was used."""
FAILS = ProviderFault("server")
BROKEN: Turn = [Delta("an answer"), Usage(100, 50), ProviderFault("reset")]
"""Something came, and was billed, before it failed."""


def account(name: str = "acme", **terms: Any) -> PutAccount:
    return PutAccount(Account(name=name, **{"plan": "unlimited", "created_at": SET_UP, **terms}))


def key(key_id: str = "key_1", **terms: Any) -> PutKey:
    facts: dict[str, Any] = {"account": "acme", "environment": "production", "name": "mine", "created_at": SET_UP}
    return PutKey(Key(id=key_id, prefix="sk_live_abcd", digest=key_id, **facts, **terms))


class Firm:
    """A Router over two scripted models, on virtual time, and the ledger of its account ``acme``.

    ``good/one`` is chosen, ``spare/two`` is its fallback. Without a script each says what it used.
    """

    def __init__(
        self,
        storage: Storage,
        clock: FakeClock,
        good: Sequence[Turn] | Callable[[UpstreamCall], Turn] = lambda _: TOLD,
        spare: Sequence[Turn] | Callable[[UpstreamCall], Turn] = lambda _: TOLD,
    ) -> None:
        self.storage, self.clock = storage, clock
        providers = [
            ScriptedProvider(good, models=[ONE], clock=clock),
            ScriptedProvider(spare, models=[TWO], clock=clock),
        ]
        self.router = Router(providers=providers, storage=storage, settings=Settings(clock=clock, rng=Random(7)))
        self.ledger = Ledger(storage, clock=clock).as_account("acme")
        self.traces = TraceStore(storage, clock=clock).as_account("acme")

    async def set_up(self, credit: int = 0, **terms: Any) -> Firm:
        await self.storage.apply("acme", [account(**terms)])
        if credit:
            await self.storage.apply("acme", [AddCredit("cr_1", credit, SET_UP)])
        return self

    async def call(self, caller: Caller = ACME, **options: Any) -> Trace:
        """The trace of a call, however it ended."""
        try:
            answer = await self.router.route("hi", caller=caller, params={"max_output_tokens": 100}, **options)
            trace_id: str | None = answer.trace_id
        except RouterError as error:
            trace_id = error.trace_id
        await self.router.flush()
        assert trace_id is not None
        return await self.traces.get(trace_id, account=caller.account)

    async def purses(self, **of: Any) -> dict[str, int]:
        """What is spent, by purse."""
        standing: Standing = await self.storage.read("acme", Stands(timestamp(self.clock.time()), **of))
        return {purse.name: purse.spent_nanos for purse in standing.purses}

    async def close(self) -> None:
        await self.router.aclose()
        await self.storage.aclose()


def make_storage(kind: str, folder: Path, clock: FakeClock) -> Storage:
    return MemoryStorage(clock=clock) if kind == "memory" else SqliteStorage(folder / "calls.db", clock=clock)


async def book(storage: Any, account: str, *rows: LedgerRow, key_id: str | None = None) -> None:
    """Settle calls that were not reserved for, one a row."""
    for row in rows:
        caller = Caller(account, key_id=key_id)
        await storage.accounts.settle(None, Facts(row.request_id, caller, row.at, rows=(row,)))


async def hold(storage: Any, call: str, nanos: int, at: str, caller: Caller = ACME, lasts_s: float = 60.0) -> None:
    """Reserve money for a call that runs."""
    came = datetime.fromisoformat(at).timestamp()
    found = await storage.accounts.admit(Ask(id=call, caller=caller, at=came, lasts_s=lasts_s, nanos=nanos))
    assert isinstance(found, Grant)


def skip_days(clock: FakeClock, days: float) -> None:
    """Let the calendar go on, and nothing that waits."""
    clock._start += days * 24 * 3600.0


def attempts(trace: Trace) -> list[ModelSpan]:
    return [span for span in trace.spans if isinstance(span, ModelSpan)]


async def check_identity(firm: Firm) -> None:
    """Rows, sums, traces and analytics say the same, to the nano-dollar."""
    rows = [row async for row in firm.ledger.rows()]
    sums = await firm.ledger.sums("2026-10-01", "2027-03-31")
    traces = [trace async for trace in firm.traces.export()]
    usage = (await firm.traces.usage("2026-10-01", "2027-03-31")).totals
    costs = {
        "rows": sum(row.cost_nanos for row in rows),
        "sums": sum(each.cost_nanos for each in sums),
        "traces": sum(nanos_of(trace.cost_usd) for trace in traces),
        "spans": sum(nanos_of(span.cost_usd) for trace in traces for span in attempts(trace)),
        "analytics": nanos_of(usage.cost_usd),
    }
    assert len(set(costs.values())) == 1, costs
    charges = {
        "rows": sum(row.charge_nanos for row in rows),
        "sums": sum(each.charge_nanos for each in sums),
        "traces": sum(nanos_of(trace.charged_usd) for trace in traces),
        "analytics": nanos_of(usage.charged_usd),
    }
    assert len(set(charges.values())) == 1, charges
    ends = [nanos_of(end) for trace in traces for end in (trace.cost_range_usd or (trace.cost_usd, trace.cost_usd))]
    assert sum(each.least_nanos for each in sums if each.kind != "expired") == sum(ends[::2])
    assert sum(each.most_nanos for each in sums if each.kind != "expired") == sum(ends[1::2])
