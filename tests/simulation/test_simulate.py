"""``Console.simulate`` and ``what_if`` over the traces of a Router."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from routewright import Catalogue, Console, MemoryStorage, Policy, Pricing, Router, SqliteStorage
from routewright._setup import simulate
from routewright.errors import NotFound, ValidationFailed
from routewright.testing import FakeClock, ScriptedProvider
from routewright.testing.provider import Line, Pause
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Budget,
    Caller,
    PolicyClass,
    PolicyMatch,
    PolicyRecord,
    PolicyWhen,
    PriceChange,
    PutPolicyRecord,
    UpstreamCall,
)

from .traffic import BIG, DRAFT, LIVE, MODELS, SMALL, TINY, Lengths, router_of, serve

pytestmark = pytest.mark.anyio
BUNDLED = next(model for model in Catalogue().models if model.id == "openai/gpt-4.1")

NO_MATCH = "no stored production request of 'default' matches; the sandbox is left out"


async def console_over(
    *batches: tuple[int, dict[str, object]], factor: float = 1.0, policy: Policy = LIVE
) -> tuple[Console, float]:
    """A Console over the traces of some requests, and what these cost."""
    clock = FakeClock()
    storage = MemoryStorage()
    router = router_of(storage, Lengths(1, factor), clock, [policy])
    costs = [await serve(router, clock, count, 1, **options) for count, options in batches]
    await router.aclose()
    return Console(storage, clock=clock), sum(costs)


async def test_a_draft_is_decided_over_stored_requests() -> None:
    console, cost_usd = await console_over((100, {}))
    report = await console.simulate(DRAFT)
    assert (report.requests, report.skipped, report.rerouted) == (100, 0, 100)
    assert [(each.from_model, each.to_model, each.requests) for each in report.reroutes] == [(BIG.id, SMALL.id, 100)]
    assert report.actual_cost_usd == pytest.approx(cost_usd)
    assert report.expectations == [SMALL.id]
    assert report.cost_change is not None
    assert report.cost_change.high < -0.5
    assert report.examples[0].after.startswith("goal=cost strategy=balanced: small/two scored")


async def test_five_requests_are_shown_and_different_changes_first() -> None:
    console, _ = await console_over((20, {}), (2, {"models": [TINY.id]}))
    examples = (await console.simulate(DRAFT)).examples
    assert [each.from_model for each in examples] == [BIG.id, TINY.id, BIG.id, BIG.id, BIG.id]
    assert len({each.trace_id for each in examples}) == 5


async def test_reports_are_made_in_a_worker_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of many accounts take long."""
    names: list[str] = []

    def observe(name: str) -> None:
        real = getattr(simulate, name)

        def observed(*args: object) -> object:
            names.append(threading.current_thread().name)
            return real(*args)

        monkeypatch.setattr(simulate, name, observed)

    for name in ("_drifts", "_daily", "_blocked", "_costlier"):
        observe(name)
    storage = MemoryStorage()
    async with Router(providers=[ScriptedProvider(["Hi"] * 40, models=[BIG])], storage=storage) as router:
        for _ in range(40):
            await router.route("Hello")
        console = Console(storage)
        assert (await console.simulate(LIVE)).problem is None
        await console.what_if()
    assert len(names) == 5
    assert threading.current_thread().name not in names


class Slow(Lengths):
    def turn(self, call: UpstreamCall) -> Sequence[Line]:
        return [Pause(1.0), *super().turn(call)]


class RealClock(FakeClock):
    virtual = False


@pytest.mark.parametrize("report", ["simulate", "what_if", "compare"])
async def test_other_tasks_run_while_requests_are_read(report: str) -> None:
    console, _ = await console_over((60, {}))
    console = Console(console._storage, clock=RealClock())
    reports: dict[str, Callable[[], Awaitable[Any]]] = {
        "simulate": partial(console.simulate, DRAFT),
        "what_if": console.what_if,
        "compare": partial(console.compare, "live"),
    }
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as group:
        group.start_soon(count)
        assert (await reports[report]()).to_dict()
        group.cancel_scope.cancel()
    assert turns > 2


async def test_the_same_policy_changes_nothing() -> None:
    console, cost_usd = await console_over((100, {}))
    report = await console.simulate(Policy(name="live", goal="quality", strategy="quality-first"))
    assert (report.rerouted, report.expectations, report.examples) == (0, [], [])
    assert report.cost_after_usd is not None
    assert report.cost_after_usd.value == pytest.approx(cost_usd)


async def test_a_new_policy_takes_the_requests_without_one() -> None:
    console, _ = await console_over((40, {}), (60, {"policy_id": None, "goal": "quality"}))
    assert (await console.simulate(replace(DRAFT, name="new"))).requests == 60
    assert (await console.simulate(replace(DRAFT, name="new"), filter='policy_id!=""')).requests == 40


async def test_classes_apply_by_the_metadata_of_the_trace() -> None:
    console, _ = await console_over((40, {"metadata": {"tier": "free"}}), (60, {"metadata": {"tier": "gold"}}))
    gold = PolicyClass(match=PolicyMatch(metadata={"tier": "gold"}), models=[TINY.id])
    report = await console.simulate(Policy(name="live", models=[SMALL.id, TINY.id], goal="quality", classes=[gold]))
    assert {each.to_model: each.requests for each in report.reroutes} == {SMALL.id: 40, TINY.id: 60}


async def test_new_refusals_are_counted_by_constraint() -> None:
    console, _ = await console_over((60, {}))
    report = await console.simulate(replace(DRAFT, budget=Budget(max_cost_usd=0.0000001)))
    assert [(each.constraint, each.new, each.gone) for each in report.refusals] == [("budget_cost", 60, 0)]
    assert (report.problem, report.cost_after_usd) == ("every request would be refused", None)


async def test_a_refusal_is_no_saving() -> None:
    """The requests that are still served cost what they did."""
    console, _ = await console_over((40, {"metadata": {"tier": "free"}}), (40, {"metadata": {"tier": "gold"}}))
    free = PolicyClass(match=PolicyMatch(metadata={"tier": "free"}), budget=Budget(max_cost_usd=0.0000001))
    report = await console.simulate(replace(LIVE, classes=[free]))
    assert report.refusals[0].new == 40
    assert report.cost_change is not None
    assert report.cost_change.value == pytest.approx(0)


async def test_no_latency_is_claimed_of_models_without_outcomes() -> None:
    console, _ = await console_over((60, {}))
    report = await console.simulate(DRAFT)
    assert report.cost_change is not None
    assert (report.latency_before_ms, report.latency_change) == (None, None)
    problem = "60 of the requests would go to 'small/two', with fewer than 30 outcomes on such requests"
    assert (report.problem, report.latency_problem) == (None, problem)


async def test_a_draft_of_the_storage_is_simulated_by_its_name() -> None:
    console, _ = await console_over((40, {}))
    record = PolicyRecord(name="live", draft=DRAFT, changed_at="2026-01-01T00:00:00.000Z")
    await console._storage.apply(SYSTEM_ACCOUNT, [PutPolicyRecord(record, None)])
    assert (await console.simulate("live")).rerouted == 40
    with pytest.raises(NotFound, match="there is no policy 'lvie'; did you mean 'live'"):
        await console.simulate("lvie")


async def test_limits_that_would_have_blocked_are_named() -> None:
    clock = FakeClock()
    storage = MemoryStorage()
    console = Console(storage, clock=clock)
    router = router_of(storage, Lengths(1), clock, [DRAFT])
    await console.create_account("acme", plan="unlimited")
    caller = Caller("acme")
    cost_usd = await serve(router, clock, 40, 1, caller=caller)
    limit_usd = 2 * cost_usd
    await console.change_account("acme", monthly_limit_usd=limit_usd)
    report = await console.simulate(Policy(name="live", models=[BIG.id]), account="acme")
    (blocked,) = report.blocked
    assert (blocked.account, blocked.period, blocked.start) == ("acme", "month", "2026-01-01")
    assert blocked.limit_usd == pytest.approx(limit_usd)
    assert blocked.expected_usd > limit_usd
    assert 0 < blocked.requests < 40
    (costlier,) = report.costlier
    assert (costlier.account, costlier.requests) == ("acme", 40)
    assert costlier.before_usd == pytest.approx(cost_usd)
    assert report.to_dict()["costlier"][0]["before_usd"] == costlier.before_usd
    await router.aclose()


async def test_limits_of_days_and_weeks_that_would_have_blocked_are_named() -> None:
    clock = FakeClock()  # begins on Thursday, 2026-01-01
    console = Console(storage := MemoryStorage(), clock=clock)
    router = router_of(storage, Lengths(1), clock, [DRAFT])
    await console.create_account("acme", plan="unlimited")
    for days in (4, 1, 0):
        await serve(router, clock, 40, 1, caller=Caller("acme"))
        await clock.advance(86_400 * days)
    draft = Policy(name="live", models=[BIG.id])
    (cost,) = (await console.simulate(draft)).costlier
    day_usd = cost.after_usd / 3
    await console.change_account("acme", daily_limit_usd=0.7 * day_usd, weekly_limit_usd=1.5 * day_usd)
    blocked = (await console.simulate(draft)).blocked
    assert [(limit.period, limit.start) for limit in blocked] == [
        ("day", "2026-01-01"),
        ("day", "2026-01-05"),
        ("day", "2026-01-06"),
        ("week", "2026-01-05"),
    ]
    assert blocked[-1].expected_usd == pytest.approx(blocked[1].expected_usd + blocked[2].expected_usd)
    await router.aclose()


async def test_new_refusals_are_in_no_cost_of_an_account() -> None:
    clock = FakeClock()
    console = Console(storage := MemoryStorage(), clock=clock)
    router = router_of(storage, Lengths(1), clock, [DRAFT])
    await console.create_account("acme", plan="unlimited")
    costs = [
        await serve(router, clock, 40, 1, caller=Caller("acme"), metadata={"tier": tier}) for tier in ("free", "gold")
    ]
    free = PolicyClass(match=PolicyMatch(metadata={"tier": "free"}), budget=Budget(max_cost_usd=0.0000001))
    draft = Policy(name="live", models=[BIG.id], classes=[free])
    (cost,) = (await console.simulate(draft)).costlier
    assert cost.requests == 40
    assert cost.before_usd == pytest.approx(costs[1], rel=0.3)
    await console.change_account("acme", monthly_limit_usd=cost.after_usd + costs[0] / 2)
    assert (await console.simulate(draft)).blocked == []  # nothing is charged for a refusal
    await console.change_account("acme", monthly_limit_usd=0.9 * cost.after_usd)
    (limit,) = (await console.simulate(draft)).blocked
    assert limit.expected_usd == pytest.approx(cost.after_usd, rel=0.1)
    await router.aclose()


@pytest.mark.parametrize("days", [0, 3])
async def test_other_requests_of_the_account_use_up_its_limits(days: int) -> None:
    """Those that the draft does not concern, and those from before the simulated time."""
    clock = FakeClock()
    storage = MemoryStorage()
    console = Console(storage, clock=clock)
    router = router_of(storage, Lengths(1), clock, [DRAFT])
    await console.create_account("acme", plan="unlimited")
    other_usd = await serve(router, clock, 40, 1, caller=Caller("acme"), policy_id=None, models=[BIG.id])
    await clock.advance(86_400 * days)
    cost_usd = await serve(router, clock, 40, 1, caller=Caller("acme"))
    await router.aclose()
    draft = Policy(name="live", models=[BIG.id])
    (cost,) = (await console.simulate(draft, since="1d")).costlier
    limit_usd = other_usd + 0.9 * cost.after_usd
    assert cost_usd < 0.8 * cost.after_usd < limit_usd
    await console.change_account("acme", monthly_limit_usd=limit_usd)
    (blocked,) = (await console.simulate(draft, since="1d")).blocked
    assert blocked.expected_usd == pytest.approx(other_usd + cost.after_usd, rel=0.1)
    assert 0 < blocked.requests < 40
    await console.change_account("acme", monthly_limit_usd=other_usd + 1.1 * cost.after_usd)
    assert (await console.simulate(draft, since="1d")).blocked == []


async def test_answers_of_the_cache_are_no_outcomes_of_a_model() -> None:
    console, _ = await console_over((5, {}), (200, {"cache": {"mode": "exact"}}))
    for report in (await console.what_if(), await console.simulate(LIVE)):
        assert (report.requests, report.rerouted, report.drifts) == (205, 0, [])
        assert report.problem == "requests with an outcome: 8; at least 30 are needed"
        assert (report.cost_before_usd, report.latency_before_ms) == (None, None)
    assert (await console.what_if()).hits == 197


async def test_a_hit_that_becomes_a_call_is_no_reroute() -> None:
    clock = FakeClock()
    storage = MemoryStorage()
    router = router_of(storage, Slow(1), clock)
    cost_usd = await serve(router, clock, 40, 1)
    cost_usd += await serve(router, clock, 60, 1, cache={"mode": "exact"})
    await router.aclose()
    report = await Console(storage, clock=clock).what_if(cache=False)
    assert (report.hits, report.rerouted, report.reroutes) == (57, 0, [])
    assert report.cost_before_usd is not None
    assert report.cost_after_usd is not None
    assert report.cost_before_usd.value == pytest.approx(cost_usd)
    assert report.cost_after_usd.value > 1.5 * cost_usd
    assert report.latency_before_ms is not None
    assert report.latency_after_ms is not None
    assert report.latency_before_ms.value == pytest.approx(430)  # 43 calls of a second, 57 hits
    assert report.latency_after_ms.value == pytest.approx(1_000)


async def test_an_unknown_price_is_no_saving() -> None:
    console, _ = await console_over((60, {}))
    unpriced = Catalogue([replace(TINY, pricing_per_1m=None), replace(BIG, pricing_per_1m=None)])
    report = await console.what_if(only=[TINY.id], prices=unpriced)
    assert (report.rerouted, report.cost_after_usd, report.cost_change) == (60, None, None)
    assert report.problem == "the cost of 60 of the requests is unknown: 'tiny/three' without a price"
    assert (await console.what_if(prices=unpriced)).problem == (
        "the cost of 60 of the requests is unknown: 'big/one' without a price"
    )


async def test_a_model_without_a_price_that_stays_changes_no_cost() -> None:
    clock = FakeClock()
    storage = MemoryStorage()
    router = router_of(storage, Lengths(1), clock, models=[replace(BIG, pricing_per_1m=None), SMALL])
    await serve(router, clock, 40, 1)
    cost_usd = await serve(router, clock, 40, 1, models=[SMALL.id])
    await router.aclose()
    report = await Console(storage, clock=clock).simulate(LIVE)
    assert (report.rerouted, report.problem) == (0, None)
    assert report.cost_after_usd is not None
    assert report.cost_after_usd.value == pytest.approx(cost_usd)


async def test_a_damaged_trace_is_skipped(tmp_path: Path) -> None:
    clock = FakeClock()
    storage = SqliteStorage(tmp_path / "traces.db", clock=clock)
    router = router_of(storage, Lengths(1), clock)
    await serve(router, clock, 40, 1)
    await router.aclose()
    with closing(sqlite3.connect(storage.path)) as connection, connection:
        connection.execute("UPDATE body SET trace = x'00' WHERE n IN (1, 20, 40)")
    report = await Console(SqliteStorage(storage.path, clock=clock), clock=clock).simulate(DRAFT)
    assert (report.requests, report.skipped, report.problem) == (37, 3, None)


@pytest.mark.parametrize("since", [7, "1 week", "week"])
async def test_a_wrong_start_is_answered_with_the_form_of_an_age(since: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"since: is .*; write an age such as 7d, or a timestamp as 2026-"):
        await Console(MemoryStorage()).simulate(DRAFT, since=since)


async def test_what_if_without_a_model() -> None:
    console, cost_usd = await console_over((60, {}))
    report = await console.what_if(without=[BIG.id])
    assert [(each.from_model, each.to_model, each.requests) for each in report.reroutes] == [(BIG.id, SMALL.id, 60)]
    assert (await console.what_if(only=[TINY.id])).reroutes[0].to_model == TINY.id
    with pytest.raises(ValidationFailed, match="did you mean 'big/one'"):
        await console.what_if(without=["big/on"])
    assert report.actual_cost_usd == pytest.approx(cost_usd)
    with pytest.raises(ValidationFailed, match="without: leaves no model"):
        await console.what_if(only=[BIG.id], without=[BIG.id])
    with pytest.raises(ValidationFailed, match="without: is 'big/one'; pass a list of model ids"):
        await console.what_if(without=BIG.id)
    with pytest.raises(ValidationFailed, match=r"prices: is 'f\.toml'; pass a Catalogue"):
        await console.what_if(prices=cast("Catalogue", "f.toml"))


async def test_the_problem_says_that_the_sandbox_is_left_out() -> None:
    console, _ = await console_over((40, {"caller": Caller(environment="sandbox")}))
    for filter in ("", "environment=sandbox"):
        for report in (await console.simulate(LIVE, filter=filter), await console.what_if(filter=filter)):
            assert (report.requests, report.problem) == (0, NO_MATCH)


async def test_an_unknown_account_is_an_error() -> None:
    console, _ = await console_over((40, {"caller": Caller("tenant")}))
    await console.create_account("acme")
    assert (await console.simulate(LIVE, account="tenant")).requests == 40  # not created, but it has traces
    assert (await console.what_if(account="acme")).requests == 0
    with pytest.raises(ValidationFailed, match="account: unknown account 'acne'; did you mean 'acme'"):
        await console.simulate(LIVE, account="acne")
    with pytest.raises(ValidationFailed, match="account: unknown account 'zzz'; known: 'default', 'acme'"):
        await console.what_if(account="zzz")


@pytest.mark.parametrize(("gold", "unknown"), [(0, 0), (5, 0), (40, 40)])
async def test_nothing_is_claimed_if_what_callers_had_spent_is_unknown(gold: int, unknown: int) -> None:
    console, _ = await console_over(
        (100 - gold, {"metadata": {"tier": "free"}}), (gold, {"metadata": {"tier": "gold"}})
    )
    saving = PolicyClass(
        match=PolicyMatch(metadata={"tier": "gold"}), when=PolicyWhen(spent_of_month=">0.5"), models=[SMALL.id]
    )
    report = await console.simulate(replace(LIVE, classes=[saving]))
    assert report.unknown_spent == gold
    claims = report.rerouted_share, report.refused_share, report.cost_change
    assert [claim is None for claim in claims] == [bool(unknown)] * 3
    problem = "for 40 of the requests it is unknown how much of its limits the caller had spent, which 'when' needs; "
    assert (report.problem or "").startswith(problem if unknown else "")
    assert (report.problem is not None) == bool(unknown)


async def test_a_price_of_an_unknown_model_is_an_error() -> None:
    console, _ = await console_over((40, {}))
    misspelt = Catalogue().overlaid([{"id": "big/oen", "pricing_per_1m": Pricing(10.0, 40.0)}])
    with pytest.raises(ValidationFailed, match="prices: unknown model 'big/oen'; did you mean 'big/one'"):
        await console.what_if(prices=misspelt)
    assert (await console.what_if(prices=Catalogue())).problem is None  # bundled models that no request could take


async def test_a_draft_names_what_a_check_accepts() -> None:
    console, _ = await console_over((40, {}))
    unused = replace(TINY, id="mine/unused")
    catalogue = Catalogue([*MODELS, unused], aliases={"fast": SMALL.id})
    own = Console(console._storage, clock=console._clock, catalogue=catalogue)
    draft = Policy(name="live", models=[unused.id, "fast"], prefer=[unused.id])
    await own.policies.draft(draft)
    assert await own.policies.check("live") == draft
    assert (await own.simulate("live")).reroutes[0].to_model == SMALL.id
    assert (await own.what_if(only=["fast"])).reroutes[0].to_model == SMALL.id
    with pytest.raises(
        ValidationFailed, match=r"unknown model 'mine/unused'.*; models of your own .* Console\(catalogue="
    ):
        await console.simulate(draft)


async def test_a_draft_selects_models_by_the_properties_that_requests_knew() -> None:
    """A Router's facts about a bundled model can differ from the bundled ones."""
    clock = FakeClock()
    storage = MemoryStorage()
    tagged = replace(BUNDLED, tags=("mine",))
    router = router_of(storage, Lengths(1), clock, models=[BIG, tagged])
    await serve(router, clock, 40, 1)
    await router.aclose()
    report = await Console(storage, clock=clock).simulate(Policy(name="live", models=["tag:mine"]))
    assert report.reroutes[0].to_model == tagged.id


async def test_without_a_request_the_report_names_the_accounts_that_it_read() -> None:
    """Accounts that were not created are not listed anywhere, so they need their name."""
    clock = FakeClock()
    storage = MemoryStorage()
    router = router_of(storage, Lengths(1), clock)
    await serve(router, clock, 40, 1, caller=Caller("tenant-1"))
    await router.aclose()
    console = Console(storage, clock=clock)
    await console.create_account("acme")
    report = await console.simulate(Policy(name="live", goal="cost"))
    assert (report.requests, report.problem) == (0, NO_MATCH.replace("'default'", "'default', 'acme'"))
    assert (await console.what_if()).problem == report.problem
    assert (await console.simulate(DRAFT, account="tenant-1")).rerouted == 40


async def test_what_if_at_other_prices() -> None:
    console, cost_usd = await console_over((60, {}))
    dearer = [replace(model, pricing_per_1m=Pricing(10.0, 40.0)) for model in MODELS[:1]]
    report = await console.what_if(prices=Catalogue(dearer))
    assert report.cost_after_usd is not None
    assert report.rerouted == 0
    assert report.cost_after_usd.value == pytest.approx(2 * cost_usd, rel=0.01)


async def test_a_price_replaces_the_stored_one_and_its_changes() -> None:
    clock = FakeClock()
    storage = MemoryStorage()
    changed = replace(BIG, price_changes=(PriceChange("2026-01-01", Pricing(2.5, 10.0)),))
    router = router_of(storage, Lengths(1), clock, models=[changed])
    cost_usd = await serve(router, clock, 60, 1)
    await router.aclose()
    prices = Catalogue([replace(BIG, pricing_per_1m=Pricing(10.0, 40.0))])
    report = await Console(storage, clock=clock).what_if(prices=prices)
    assert report.cost_after_usd is not None
    assert report.cost_after_usd.value == pytest.approx(4 * cost_usd, rel=0.01)


async def test_a_price_file_changes_the_prices_that_it_names_alone(tmp_path: Path) -> None:
    """A price of one's own stays, although the file overlays the bundled list prices."""
    clock = FakeClock()
    storage = MemoryStorage()
    router = router_of(storage, Lengths(1), clock, models=[replace(BUNDLED, pricing_per_1m=Pricing(1.0, 4.0))])
    await serve(router, clock, 60, 1)
    await router.aclose()
    for model, change in (("openai/gpt-4.1-mini", 0.0), (BUNDLED.id, 2.0)):
        path = tmp_path / "prices.toml"
        path.write_text(f'[prices]\n"{model}" = {{ input_usd = 3, output_usd = 12 }}\n')
        report = await Console(storage, clock=clock).what_if(prices=Catalogue.load(path))
        assert report.cost_change is not None
        assert report.cost_change.value == pytest.approx(change, abs=0.01)
