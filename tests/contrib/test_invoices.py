"""``Ledger.reconcile``: the files of each provider beside a ledger of several accounts, to the cent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from routewright import Catalogue, Ledger, MemoryStorage, Model, ValidationFailed
from routewright.contrib.usage_exports import ExportLine, UsageExport
from routewright.protocols import Storage
from routewright.testing import FakeClock
from routewright.wire import LedgerRow, Tokens
from tests import billing
from tests.billing import NOON, make_storage

pytestmark = pytest.mark.anyio

EXPORTS = Path(__file__).parent.parent / "data" / "exports"
GPT, MINI = "openai/gpt-4.1", "openai/gpt-4o-mini"
HAIKU, SONNET = "anthropic/claude-haiku-4-5", "anthropic/claude-sonnet-4-6"
ROUTED = "openrouter/openai/gpt-4.1"


class Calls(NamedTuple):
    """What calls of one model on one day came to."""

    day: int
    model: str
    requests: int
    tokens: Tokens
    nanos: int


OPENAI = (
    Calls(20, GPT, 40, Tokens(120_000, 30_000, 20_000), 450_000_000),
    Calls(20, MINI, 3, Tokens(9_000, 1_000, 0), 1_950_000),
    Calls(21, GPT, 20, Tokens(60_000, 10_000, 0), 200_000_000),
)
ANTHROPIC = (
    Calls(20, HAIKU, 9, Tokens(100_000, 20_000, 15_000), 186_500_000),
    Calls(21, SONNET, 1, Tokens(10_000, 2_000, 0), 60_000_000),
)
OPENROUTER = (
    Calls(20, ROUTED, 2, Tokens(2_150, 1_000, 100), 12_300_000),
    Calls(21, "openrouter/z-ai/glm-4.7", 1, Tokens(9_000, 700, 0), 500_000_000),
)
OURS: dict[str, Sequence[Calls]] = {
    "openai_usage.json": OPENAI,
    "openai_costs.json": OPENAI,
    "anthropic_usage.json": ANTHROPIC,
    "anthropic_costs.json": ANTHROPIC,
    "anthropic_console_usage.csv": ANTHROPIC,
    "anthropic_console_costs.csv": ANTHROPIC,
    "openrouter_activity.json": OPENROUTER,
    "openrouter_activity.csv": OPENROUTER,
    "table.csv": OPENAI,
}
"""What a ledger has that saw all of it, by file."""


@pytest.fixture(params=["memory", "sqlite"])
async def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ledger]:
    clock = FakeClock(NOON)
    ledger = Ledger(make_storage(request.param, tmp_path, clock), clock=clock)
    yield ledger
    await ledger.aclose()


async def book(storage: Storage, calls: Sequence[Calls], *accounts: str) -> None:
    """Have calls booked, one after the other by each of the accounts; all cost the same but the first, which has what
    does not part."""
    number = 0
    for each in calls:
        parts = [_part(each, place) for place in range(each.requests)]
        for tokens, nanos in parts:
            account, number = accounts[number % len(accounts)], number + 1
            row = LedgerRow(
                request_id=f"tr_{number:05}", attempt=1, at=f"2026-11-{each.day}T12:00:00.000Z", model=each.model,
                provider=each.model.partition("/")[0], tokens=tokens, cost_nanos=nanos,
            )  # fmt: skip
            await billing.book(storage, account, row)


def _part(calls: Calls, place: int) -> tuple[Tokens, int]:
    whole = (calls.tokens.input, calls.tokens.output, calls.tokens.cached, calls.nanos)
    share = [each // calls.requests + (each % calls.requests if place == 0 else 0) for each in whole]
    return Tokens(*share[:3]), share[3]


@pytest.mark.parametrize("name", OURS)
async def test_a_complete_ledger_agrees_with_the_bill(ledger: Ledger, name: str) -> None:
    await book(ledger._storage, OURS[name], "one", "two", "default")
    await book(ledger._storage, [Calls(20, "elsewhere/x", 3, Tokens(9, 9, 9), 10**9)], "three")
    found = await ledger.reconcile(EXPORTS / name)
    assert found.agrees, found
    assert {each.model for each in found.models} == {each.model for each in OURS[name]}
    assert (found.only_theirs, found.only_ours, found.days_only_theirs, found.days_only_ours) == ([], [], [], [])
    for each in found.models:
        theirs = [each.input_tokens, each.output_tokens, each.cached_tokens]
        assert all(figure.drift in (0, None) for figure in theirs)
        assert abs(each.cost_usd.drift or 0.0) < 0.01
    assert found.total.requests.drift in (0, None)


async def test_unmatched_names_are_listed_and_count_in_the_total(ledger: Ledger) -> None:
    await book(ledger._storage, OPENAI, "one")
    found = await ledger.reconcile(EXPORTS / "openai_costs.json")
    assert [(each.name, each.cost_usd) for each in found.unmatched] == [("assistants api | file search", 0.002)]
    assert found.total.cost_usd.drift == 0.002


@pytest.mark.parametrize("name", ["openai_usage.json", "openai_costs.json", "table.csv"])
async def test_a_call_missing_in_the_ledger_is_a_drift_of_its_model(ledger: Ledger, name: str) -> None:
    await book(ledger._storage, [OPENAI[0]._replace(nanos=350_000_000, tokens=Tokens(90_000, 30_000, 0))], "one")
    await book(ledger._storage, OPENAI[1:], "two")
    found = await ledger.reconcile(EXPORTS / name)
    assert not found.agrees
    first = found.models[0]
    assert (first.model, first.agreement, found.total.agreement) == (GPT, "drifts", "drifts")
    assert first.cost_usd.drift in (0.1, None)
    assert (await ledger.reconcile(EXPORTS / name, tolerance=1)).agrees


async def test_the_days_can_be_given(ledger: Ledger) -> None:
    await book(ledger._storage, OPENAI[:2], "one")
    name = EXPORTS / "table.csv"
    found = await ledger.reconcile(name)
    assert (found.first, found.last, found.days_only_theirs) == ("2026-11-20", "2026-11-21", ["2026-11-21"])
    assert (await ledger.reconcile(name, last="2026-11-20")).agrees
    later = await ledger.reconcile(name, first="2026-11-21", last="2026-11-30")
    assert (later.first, later.last, later.total.cost_usd.theirs) == ("2026-11-21", "2026-11-30", 0.2)


async def test_a_catalogue_adds_own_models(ledger: Ledger) -> None:
    mine = Model(id="host/quick", provider_model_id="Quick-7B-Instruct")
    await book(ledger._storage, [Calls(20, "host/quick", 2, Tokens(10, 10, 0), 10**9)], "one")
    line = ExportLine(day="2026-11-20", model="Quick-7B-Instruct", cost_nanos=10**9)
    export = UsageExport(first="2026-11-20", last="2026-11-20", lines=(line,), provider="host")
    assert [each.name for each in (await ledger.reconcile(export)).unmatched] == ["Quick-7B-Instruct"]
    found = await ledger.reconcile(export, catalogue=Catalogue([mine]))
    assert (found.agrees, found.unmatched) == (True, [])


async def test_all_accounts_are_compared(ledger: Ledger) -> None:
    await book(ledger._storage, OPENAI, "one", "two")
    assert (await ledger.as_account("one").reconcile(EXPORTS / "table.csv")).agrees


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"tolerance": -0.1}, r"^tolerance: must be a number from 0 to 1, got -0.1; 0.01 is 1 %$"),
        ({"tolerance": 2}, "^tolerance: must be a number"),
        ({"tolerance": "1%"}, "^tolerance: must be a number"),
        ({"tolerance": True}, "^tolerance: must be a number"),
        ({"provider": "nobody"}, "^provider: unknown provider 'nobody'"),
        ({"provider": 5}, "^provider: is 5; pass its name, or leave it out$"),
        ({"catalogue": "x"}, r"^catalogue: is str; pass Catalogue.load\(path\) or a Catalogue$"),
        ({"catalogue": 0}, "^catalogue: is int"),
        (
            {"first": "2026-11-22", "last": "2026-11-21"},
            "^first: is 2026-11-22, after 2026-11-21, the last; swap them$",
        ),
        ({"first": "2026-12-01"}, "^first: is 2026-12-01, after 2026-11-21, the last; swap them$"),
        ({"last": "soon"}, "^last: is 'soon'; write YYYY-MM-DD$"),
        ({"export": "none.csv"}, "^none.csv: cannot be read: No such file"),
        ({"export": 7}, "^path: 7 is not the path of a file"),
        ({"export": UsageExport(first="x", last="y", lines=())}, "^export.first: must be a day, got 'x'"),
    ],
)
async def test_invalid_arguments_are_refused(ledger: Ledger, asked: dict[str, Any], said: str) -> None:
    given = {"export": EXPORTS / "table.csv"} | asked
    with pytest.raises(ValidationFailed, match=said):
        await ledger.reconcile(**given)


async def test_a_file_is_read_in_a_thread_on_the_real_clock() -> None:
    ledger = Ledger(MemoryStorage())
    await book(ledger._storage, OPENAI, "one")
    assert (await ledger.reconcile(EXPORTS / "table.csv")).agrees


def test_the_blocking_ledger_reconciles_too() -> None:
    with Ledger("memory:").blocking as ledger:
        found = ledger.reconcile(EXPORTS / "table.csv", tolerance=0.5, last="2026-11-20")
    assert (found.agrees, found.only_theirs) == (False, [GPT, MINI])
