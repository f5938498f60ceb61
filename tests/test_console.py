"""``Console``: accounts and their terms, credit, keys, incidents; what it refuses, and how it says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from fractions import Fraction
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import astuple, replace

from routewright import (
    Caller,
    Console,
    MemoryStorage,
    RateLimited,
    RateLimits,
    Router,
    Settings,
    SqliteStorage,
    TraceStore,
    ValidationFailed,
)
from routewright._core.accounts.terms import PLANS
from routewright.errors import AuthenticationFailed, NotFound, StorageUnavailable
from routewright.protocols import Storage
from routewright.testing import FakeClock
from routewright.wire import SYSTEM_ACCOUNT, Account, Events, LedgerRow, LedgerRows
from routewright.wire.timestamps import timestamp
from tests.contracts.storage.samples import make_row, make_trace

from .billing import book, hold
from .console_storage import START, Watched, bearer, holds

pytestmark = pytest.mark.anyio

LIMITS = RateLimits(requests_per_min=7)


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Storage:
    return (
        MemoryStorage(clock=clock) if request.param == "memory" else SqliteStorage(tmp_path / "traces.db", clock=clock)
    )


@pytest.fixture
async def console(storage: Storage, clock: FakeClock) -> AsyncIterator[Console]:
    async with Console(storage, clock=clock) as console:
        yield console


async def said(doing: Any) -> str:
    """What somebody is told whose input is not valid."""
    with pytest.raises(ValidationFailed) as failed:
        await doing
    return str(failed.value)


def contents(folder: Path) -> list[bytes]:
    """Of all files."""
    return [path.read_bytes() for path in folder.iterdir()]


# Making one


def test_the_docstring_states_the_limits_of_every_plan() -> None:
    said = " ".join(str(Console.__doc__).split())
    for plan, limits in PLANS.items():
        told = [f"{each:,}" for each in astuple(limits) if each is not None]
        assert (f"{plan} ({', '.join(told)})" if told else plan) in said


@pytest.mark.parametrize("seconds", [-1, 2.1, nan, True, "1", None])
def test_recheck_s_is_at_most_two_seconds(seconds: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"^recheck_s: is .*; take seconds from 0 to 2$"):
        Console("memory:", recheck_s=seconds)


def test_the_blocking_twin_does_the_same(tmp_path: Path) -> None:
    with Console(f"sqlite:///{tmp_path}/traces.db").blocking as console:
        console.create_account("acme", plan="pro")
        new = console.create_key("acme", name="website")
        assert console.authenticate(bearer(new)).account == "acme"
        assert [key.id for key in console.keys("acme")] == [new.key.id]
        assert repr(console) == f"Console(SqliteStorage('{tmp_path}/traces.db')).blocking"


# Accounts


async def test_an_account_is_stored_as_created(console: Console) -> None:
    plain = await console.create_account("acme")
    assert plain == Account(name="acme", created_at="2026-11-22T12:00:00.000Z", plan="free")
    full = await console.create_account("Ünal & Co.", plan="team", limits=LIMITS, prepaid=True, monthly_limit_usd=12.5)
    assert (full.plan, full.limits, full.prepaid, full.monthly_nanos) == ("team", LIMITS, True, 12_500_000_000)
    assert full.monthly_limit_usd == 12.5
    assert plain.monthly_limit_usd is None
    assert await console.account("Ünal & Co.") == full
    assert await console.accounts() == [plain, full]


async def test_a_change_affects_only_the_given_terms(console: Console) -> None:
    first = await console.create_account("acme", plan="pro", limits=LIMITS, prepaid=True, monthly_limit_usd=5)
    assert await console.change_account("acme") == first
    changed = await console.change_account("acme", plan="team")
    assert changed == replace(first, plan="team")
    changed = await console.change_account("acme", limits=None, monthly_limit_usd=None)
    assert changed == replace(first, plan="team", limits=None, monthly_nanos=None)
    changed = await console.change_account("acme", prepaid=False, monthly_limit_usd=0)
    assert changed == await console.account("acme") == replace(changed, prepaid=False, monthly_nanos=0)


async def test_an_account_is_created_once_and_changed_only_if_it_exists(console: Console) -> None:
    await console.create_account("acme", plan="pro")
    assert await said(console.create_account("acme")) == (
        "name: 'acme' exists already; change_account() changes its terms"
    )
    assert await said(console.create_account(" acme")) == (
        "name: must not begin or end with a blank, got ' acme'; remove it"
    )
    assert (await console.account("acme")).plan == "pro"
    for doing in (console.account("umbra"), console.change_account("umbra", plan="pro"), console.standing("umbra")):
        with pytest.raises(NotFound, match=r"^no account 'umbra'$"):
            await doing


@pytest.mark.parametrize("name", ["default", "_system", "two\nlines", 7])
async def test_a_reserved_name_is_refused_by_every_method(name: Any, console: Console) -> None:
    for path, doing in {
        "name": console.create_account(name),
        "account": console.account(name),
        "account ": console.change_account(name),
        "account    ": console.standing(name),
        "account     ": console.credit(name, 1),
    }.items():
        assert (await said(doing)).startswith(f"{path.strip()}: ")
    if name != SYSTEM_ACCOUNT:
        assert (await said(console.create_key(name, name="x"))).startswith("account: ")
        assert (await said(console.keys(name))).startswith("account: ")
        assert (await said(console.key(name, "key_1"))).startswith("account: ")


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ({"plan": "Pro"}, "plan: is 'Pro'; did you mean 'pro'?"),
        ({"plan": "enterprise"}, "limits: are missing: the plan 'enterprise' has none of its own; pass RateLimits("),
        ({"prepaid": 1}, "prepaid: is 1; pass True or False"),
        ({"limits": RateLimits(requests_per_min=-1)}, "limits: has requests_per_min=-1; take a whole number"),
        ({"monthly_limit_usd": nan}, "monthly_limit_usd: is nan; take a number"),
        ({"monthly_limit_usd": -0.01}, "monthly_limit_usd: is -0.01; take a number"),
        (
            {"monthly_limit_usd": 1e-12},
            "monthly_limit_usd: is less than a nano-dollar; use a larger amount, or 0 to al",
        ),
        ({"monthly_limit_usd": Fraction(10**400)}, "monthly_limit_usd: is Fraction; take a number"),
    ],
    ids=str,
)
async def test_invalid_terms_are_refused_with_a_hint(terms: dict[str, Any], problem: str, console: Console) -> None:
    assert (await said(console.create_account("acme", **terms))).startswith(problem)
    await console.create_account("acme")
    assert (await said(console.change_account("acme", **terms))).startswith(problem)


@pytest.mark.parametrize("number", [float, np.float32, Fraction])
async def test_amounts_may_be_any_kind_of_number(number: Any, console: Console) -> None:
    account = await console.create_account("acme", prepaid=True, monthly_limit_usd=number(1.5))
    assert account.monthly_nanos == 1_500_000_000
    new = await console.create_key("acme", name="x", budget_usd=number(0.25), monthly_limit_usd=number(0))
    assert (new.key.budget_nanos, new.key.monthly_nanos) == (250_000_000, 0)
    assert (await console.credit("acme", number(2.5))).nanos == 2_500_000_000
    assert (await console.credit("acme", -number(2.5))).nanos == -2_500_000_000


# Credit and standing


async def test_credit_with_the_same_id_is_booked_once(console: Console, storage: Storage) -> None:
    await console.create_account("acme", prepaid=True)
    assert (await console.credit("acme", 10, id="invoice 7", note="paid")).created
    again = await console.credit("acme", 10, id="invoice 7")
    assert (again.created, again.balance_usd) == (False, 10.0)
    assert await said(console.credit("acme", 11, id="invoice 7")) == (
        "id: 'invoice 7' was used for $10; pass another id for another amount"
    )
    rows: list[LedgerRow] = await storage.scan("acme", LedgerRows(), after=None, limit=10)
    assert [(row.request_id, row.kind, row.credit_nanos, row.note) for row in rows] == [
        ("invoice 7", "credit", 10**10, "paid")
    ]
    await console.create_account("umbra", prepaid=True)
    assert (await console.credit("umbra", 3, id="invoice 7")).balance_usd == 3.0


async def test_credit_counts_once_the_account_becomes_prepaid(console: Console) -> None:
    await console.create_account("acme")
    assert (await console.credit("acme", 10)).balance_usd is None
    assert (await console.standing("acme")).balance is None
    await console.change_account("acme", prepaid=True)
    balance = (await console.standing("acme")).balance
    assert balance is not None
    assert balance.left_usd == 10.0


@pytest.mark.parametrize(
    ("usd", "more", "problem"),
    [
        (0, {}, "usd: is less than a nano-dollar"),
        (nan, {}, "usd: is nan; take a number"),
        (2e9, {}, "usd: is 2000000000; take"),
        (1, {"note": 7}, "note: must be 0 to 200 printable characters, got 7"),
        (1, {"id": "tr_1"}, "id: is 'tr_1', which looks like a trace id"),
    ],
    ids=str,
)
async def test_invalid_credit_is_refused(usd: Any, more: dict[str, Any], problem: str, console: Console) -> None:
    await console.create_account("acme", prepaid=True)
    assert (await said(console.credit("acme", usd, **more))).startswith(problem)
    with pytest.raises(NotFound):
        await console.credit("umbra", 1)


@pytest.mark.parametrize("sign", [1, -1])
async def test_total_credit_has_a_limit(sign: int, console: Console) -> None:
    await console.create_account("acme", prepaid=True)
    for number in range(1, 10):
        credit = await console.credit("acme", sign * 1_000_000_000, id=f"invoice {number}")
        assert credit.balance_usd == sign * number * 1e9
    assert await said(console.credit("acme", sign * 0.01)) == (
        "usd: would exceed $9000000000, the most credit that an account may have in all; pass a smaller amount"
    )
    assert not (await console.credit("acme", sign * 1_000_000_000, id="invoice 9")).created
    assert (await console.credit("acme", sign * -1)).balance_usd == sign * (9e9 - 1)


async def test_the_nearest_limits_are_those_used_most(console: Console, storage: Storage) -> None:
    for name, limit_usd, spent_usd in (("half", 10, 5), ("full", 4, 5), ("idle", 1, 0), ("free", None, 3)):
        await console.create_account(name, plan="pro", monthly_limit_usd=limit_usd)
        row = make_row(f"of {name}", charge=spent_usd * 10**9, at=timestamp(console._clock.time()))
        await book(storage, name, row)
    await console.create_account("poor", plan="pro", prepaid=True)
    entries = await console.nearest_limits()
    assert [(entry.account, entry.purse.level) for entry in entries] == [
        ("poor", "account"), ("full", "month"), ("half", "month"), ("idle", "month"),
    ]  # fmt: skip
    assert entries[1].purse.percent == 125
    for number in range(10):
        await console.create_account(f"new{number}", prepaid=True)
    assert [entry.account for entry in await console.nearest_limits()] == [*(f"new{n}" for n in range(10))]
    assert await console.nearest_limits("default") == []  # it has no limits
    assert await console.nearest_limits(account="half") == entries[2:3]
    assert await console.nearest_limits(account="nobody") == []


async def test_the_standing_has_charges_reservations_and_balance(console: Console, storage: Storage) -> None:
    await console.create_account("acme", prepaid=True, monthly_limit_usd=4)
    await console.credit("acme", 10)
    limited = (await console.create_key("acme", name="a", budget_usd=2, monthly_limit_usd=1)).key
    free = (await console.create_key("acme", name="b")).key
    at, day = "2026-11-22T11:00:00.000Z", "2026-10-22T11:00:00.000Z"
    for call, when, key, charge in (("c1", at, limited, 1_000_000_000), ("c2", day, limited, 500_000_000),
                                    ("c3", at, free, 250_000_000)):  # fmt: skip
        await book(storage, "acme", make_row(call, charge=charge, at=when), key_id=key.id)
    await hold(storage, "c4", 125_000_000, at, Caller("acme", key_id=free.id))
    standing = await console.standing("acme")
    assert standing.balance is not None
    assert (standing.balance.limit_usd, standing.balance.spent_usd, standing.balance.left_usd) == (10.0, 1.75, 8.25)
    assert (standing.month.spent_usd, standing.month.limit_usd, standing.month.percent) == (1.25, 4.0, 31.25)
    assert standing.month.reserved_usd == 0.125
    (stands,) = standing.keys
    assert stands.key == limited
    assert (stands.total.spent_usd, stands.total.limit_usd, stands.total.percent) == (1.5, 2.0, 75.0)
    assert (stands.month.spent_usd, stands.month.limit_usd, stands.month.left_usd) == (1.0, 1.0, 0.0)


async def test_the_standing_tells_days_from_weeks(console: Console) -> None:
    await console.create_account("acme", daily_limit_usd=1, weekly_limit_usd=2)
    await console.create_key("acme", name="k", daily_limit_usd=3, weekly_limit_usd=4)
    standing = await console.standing("acme")
    (key,) = standing.keys
    purses = standing.day, standing.week, key.day, key.week
    assert [purse and purse.limit_nanos for purse in purses] == [10**9, 2 * 10**9, 3 * 10**9, 4 * 10**9]


async def test_the_standing_of_a_tag_takes_values_as_a_call_does(console: Console) -> None:
    with pytest.raises(ValidationFailed, match="tag_limits: has 'ky', 'daily_limit_usd'; pass a list such as"):
        await console.create_account("acme", tag_limits=[{"ky": "team", "daily_limit_usd": 2}])
    with pytest.raises(ValidationFailed, match="tag_limits: has no limit for 'team'"):
        await console.create_account("acme", tag_limits=[{"key": "team"}])
    await console.create_account("acme", tag_limits=[{"key": "team", "daily_limit_usd": 2}])
    for value, text in (("a:b", "a:b"), (1.0, "1"), (True, "true"), ("x" * 101, "sha256:")):
        (purse,) = (await console.standing("acme", tags={"team": value, "other": "x"})).tags
        assert purse.name.startswith(f"tag:team={text}")
    assert not (await console.standing("acme", tags={"team": ["a"]})).tags


# Keys


async def test_a_key_is_shown_once_and_stored_as_a_digest(console: Console, tmp_path: Path) -> None:
    await console.create_account("acme")
    new = await console.create_key("acme", name="website", scopes=["traces:read", "route", "route"], limits=LIMITS,
                                   budget_usd=5, monthly_limit_usd=0.5)  # fmt: skip
    text, key = new.secret.reveal(), new.key
    assert text.startswith("sk_live_")
    assert key.id.startswith("key_")
    assert (key.account, key.name, key.environment, key.prefix) == ("acme", "website", "production", text[:12])
    assert key.scopes == ("route", "traces:read")
    assert (key.limits, key.budget_usd, key.monthly_limit_usd, key.revoked_at) == (LIMITS, 5.0, 0.5, None)
    assert await console.keys("acme") == [key]
    assert await console.key("acme", key.id) == key
    for shown in (repr(new), str(new), repr(key), repr(console)):
        assert text not in shown
    await console.aclose()
    assert not any(text.encode() in content for content in contents(tmp_path))


async def test_a_foreign_key_and_an_unknown_one_raise_the_same_error(console: Console) -> None:
    await console.create_account("acme")
    await console.create_account("umbra")
    hers = (await console.create_key("umbra", name="x")).key
    for key_id in (hers.id, "key_0123456789ABCDEFGHJKMNPQRS"):
        for doing in (
            console.key("acme", key_id),
            console.change_key("acme", key_id),
            console.revoke_key("acme", key_id),
        ):
            with pytest.raises(NotFound) as failed:
                await doing
            assert str(failed.value) == f"no key '{key_id}'"
    assert await console.key("umbra", hers.id) == hers


@pytest.mark.parametrize("key_id", ["\ud800", "x" * 100_000, 7, "sk_live_abcdefgh"])
async def test_an_invalid_key_id_is_refused_by_every_method(key_id: Any, console: Console) -> None:
    await console.create_account("acme")
    for doing in (
        console.key("acme", key_id),
        console.change_key("acme", key_id, name="y"),
        console.revoke_key("acme", key_id),
    ):
        problem = await said(doing)
        assert problem.startswith(("key_id: must be a string of 1 to 200 printable", "key_id: is an API key, not its"))
        assert "abcdefgh" not in problem
        assert len(problem) < 200


async def test_a_key_change_affects_only_the_given_terms(console: Console) -> None:
    await console.create_account("acme")
    new = await console.create_key("acme", name="x", scopes=["route"], limits=LIMITS, budget_usd=5)
    assert await console.change_key("acme", new.key.id) == new.key
    changed = await console.change_key("acme", new.key.id, name="y", scopes=["models:read"])
    assert changed == replace(new.key, name="y", scopes=("models:read",))
    changed = await console.change_key(
        "acme", new.key.id, scopes=None, limits=None, budget_usd=None, monthly_limit_usd=1
    )
    assert (changed.scopes, changed.limits, changed.budget_usd, changed.monthly_limit_usd) == (None, None, None, 1.0)
    assert await console.key("acme", new.key.id) == changed
    assert await holds(console, new)


async def test_a_revoked_key_stays_revoked_and_its_traces_are_marked(
    console: Console, storage: Storage, clock: FakeClock
) -> None:
    await console.create_account("acme")
    new = await console.create_key("acme", name="x")
    store = TraceStore(storage, clock=clock)
    ages = {1: "2026-11-22T11:00:00Z", 2: "2026-11-21T12:00:00Z", 3: "2026-11-21T11:59:59Z"}
    for number, created_at in ages.items():
        await store.record(make_trace(number, account="acme", key_id=new.key.id, created_at=created_at))
    revoked = await console.revoke_key("acme", new.key.id)
    assert revoked.revoked_at == "2026-11-22T12:00:00.000Z"
    await clock.advance(60)
    assert await console.revoke_key("acme", new.key.id) == revoked
    assert (await console.change_key("acme", new.key.id, name="y")).revoked_at is not None
    assert not await holds(console, new)
    found = await store.query(account="acme")
    assert [item.compromised for item in sorted(found.data, key=lambda item: item.created_at)] == [False, True, True]


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ({"name": ""}, "name: must be 1 to 100 printable characters, got ''"),
        ({"name": "  "}, "name: must be 1 to 100 printable characters"),
        ({"environment": "live"}, "environment: is 'live'; take 'production', 'sandbox'"),
        ({"scopes": "route"}, "scopes: is 'route'; pass a list of 'route', 'agents', "),
        ({"scopes": ["routes"]}, "scopes: is 'routes'; did you mean 'route'?"),
        ({"scopes": ["console:read"]}, "scopes: is 'console:read', which is for operators; create a key of '_system'"),
        ({"budget_usd": 9e-10}, "budget_usd: is less than a nano-dollar; use a larger amount, or 0 to allow nothing"),
    ],
    ids=str,
)
async def test_invalid_keys_are_refused_with_a_hint(terms: dict[str, Any], problem: str, console: Console) -> None:
    await console.create_account("acme")
    assert (await said(console.create_key("acme", **{"name": "x"} | terms))).startswith(problem)
    assert await console.keys("acme") == []
    if "environment" not in terms:
        key = (await console.create_key("acme", name="x")).key
        assert (await said(console.change_key("acme", key.id, **terms))).startswith(problem)


async def test_an_operators_key_is_administered_like_another(console: Console, storage: Storage) -> None:
    new = await console.create_key("_system", name="ada", scopes=["console:read"])
    assert new.key.scopes == ("console:read",)
    assert await console.keys("_system") == [new.key] == [await console.key("_system", new.key.id)]
    changed = await console.change_key("_system", new.key.id, name="lovelace", scopes=["console:write"])
    assert (changed.name, changed.scopes) == ("lovelace", ("console:read", "console:write"))
    assert await console.accounts() == []
    with pytest.raises(ValidationFailed, match="'_system' is the Router's own"):
        await console.account("_system")
    assert await storage.scan(SYSTEM_ACCOUNT, LedgerRows(), after=None, limit=1) == []
    signed_out = await console.end_sessions(new.key.id)
    assert signed_out.signed_out_at is not None
    assert replace(signed_out, signed_out_at=None) == changed
    assert (await console.authenticate_operator(f"Bearer {new.secret.reveal()}")).key_id == new.key.id
    with pytest.raises(NotFound, match="no key"):
        await console.end_sessions(f"key_{'0' * 26}")
    assert (await console.revoke_key("_system", new.key.id)).revoked_at is not None
    assert [key.revoked_at is None for key in await console.keys("_system")] == [False]


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ({"scopes": None}, "scopes: are missing for an operator's key; pass a list of 'console:read', 'console:write'"),
        ({"scopes": ["console:read", "route"]}, "scopes: is 'route', which an operator's key cannot have; pass a list"),
        ({"environment": "sandbox"}, "environment: is 'sandbox'; take 'production'"),
        ({"limits": LIMITS}, "limits: cannot be set for an operator's key; leave it out"),
        ({"models": ["openai/*"]}, "models: cannot be set for an operator's key; leave it out"),
    ],
    ids=str,
)
async def test_an_operators_key_has_no_terms_of_an_account(
    terms: dict[str, Any], problem: str, console: Console
) -> None:
    good: dict[str, Any] = {"name": "x", "scopes": ["console:write"]}
    assert (await said(console.create_key("_system", **good | terms))).startswith(problem)
    assert await console.keys("_system") == []
    if "environment" not in terms:
        key = (await console.create_key("_system", **good)).key
        assert (await said(console.change_key("_system", key.id, **terms))).startswith(problem)
        assert await console.keys("_system") == [key]


async def test_no_key_is_created_without_a_persistent_secret(clock: FakeClock) -> None:
    storage = Watched()
    console = Console(storage, clock=clock)
    await console.create_account("acme")
    with pytest.raises(
        StorageUnavailable, match=r"keys would become invalid when this process ends; set ROUTEWRIGHT_SECRET, or pass s"
    ):
        await console.create_key("acme", name="x")
    told = Console(storage, clock=clock, secret="0123456789abcdef" * 4)
    assert await holds(told, await told.create_key("acme", name="x"))


# Incidents


async def test_an_incident_is_stored_with_its_event_and_resolved_once(
    console: Console, storage: Storage, clock: FakeClock
) -> None:
    first = await console.open_incident("Answers are slow", severity="minor")
    await clock.advance(60)
    second = await console.open_incident("Nothing works", severity="critical", status_url="https://status.example/7")
    assert first.id.startswith("inc_")
    assert (first.started_at, first.resolved_at, first.status_url) == ("2026-11-22T12:00:00.000Z", None, None)
    assert await console.incidents() == [second, first]
    events = await storage.scan(SYSTEM_ACCOUNT, Events(), after=None, limit=10)
    assert [(event.type, event.created_at, event.environment) for event in events] == [
        ("incident.created", each.started_at, "production") for each in (second, first)
    ]
    assert events[0].data == {
        "incident_id": second.id,
        "title": "Nothing works",
        "severity": "critical",
        "started_at": "2026-11-22T12:01:00.000Z",
        "status_url": "https://status.example/7",
    }
    await clock.advance(60)
    resolved = await console.resolve_incident(first.id)
    assert resolved == replace(first, resolved_at="2026-11-22T12:02:00.000Z")
    await clock.advance(60)
    assert await console.resolve_incident(first.id) == resolved
    assert await console.incidents() == [second, resolved]
    with pytest.raises(NotFound, match=r"^no incident 'inc_1'$"):
        await console.resolve_incident("inc_1")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"severity": "huge"}, "severity: is 'huge'; take 'minor', 'major', 'critical'"),
        ({"status_url": "javascript:alert(1)"}, "status_url: is 'javascript:alert(1)'; start it with https://"),
    ],
    ids=str,
)
async def test_an_invalid_incident_is_refused(given: dict[str, Any], problem: str, console: Console) -> None:
    assert (await said(console.open_incident(**{"title": "x", "severity": "minor"} | given))).startswith(problem)
    assert await console.incidents() == []


# What others hear of it


async def test_a_change_applies_at_once_to_routers_of_the_same_storage_object() -> None:
    clock = FakeClock(autojump=False)
    storage = MemoryStorage(clock=clock)
    console, router = Console(storage, clock=clock), Router.sandbox(storage=storage, settings=Settings(clock=clock))
    await console.create_account("acme", plan="unlimited")
    await router.route("hi", caller=Caller("acme"))
    await console.change_account("acme", limits=RateLimits(requests_per_min=0))
    with pytest.raises(RateLimited):
        await router.route("hi", caller=Caller("acme"))
    assert clock.monotonic() < 1.0
    await router.aclose()


async def test_a_router_refuses_a_revoked_key_at_once(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    console = Console(storage, clock=clock)
    await console.create_account("acme")
    new = await console.create_key("acme", name="x", environment="sandbox", scopes=["route"])
    caller = await console.authenticate(bearer(new), "sandbox")
    router = Router.sandbox(storage=storage, settings=Settings(clock=clock))
    assert (await router.route("hi", caller=caller)).trace.key_id == new.key.id
    await console.revoke_key("acme", new.key.id)
    with pytest.raises(AuthenticationFailed):
        await router.route("hi", caller=caller)
    assert clock.time() == START.timestamp()
    await router.aclose()
