"""Whom the Router admits and what it charges them: limits, keys, budgets, sandboxes, hosted calls."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from math import ceil
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from routewright import (
    Console,
    MemoryStorage,
    Pricing,
    ProviderFault,
    RateLimited,
    RouterError,
    ValidationFailed,
)
from routewright.errors import (
    AuthenticationFailed,
    IdempotencyKeyReused,
    InsufficientBalance,
    InternalError,
    NotFound,
    PermissionDenied,
    QuotaExhausted,
    RouterTimeoutError,
    UnsupportedWrite,
    UpstreamFailed,
)
from routewright.router import StepCall, StepDone
from routewright.testing import ScriptedProvider
from routewright.testing.provider import Line, Pause
from routewright.wire import (
    AddCredit,
    Caller,
    Delta,
    Events,
    Finish,
    LedgerRows,
    Left,
    OutputDelta,
    RateLimits,
    RevokeKey,
    RouteCompleted,
    Stands,
    Traces,
    Usage,
    Write,
)
from tests.tables import table

from .account_router import ACME, ANSWER, AT, CAP, COST, ONE, Bank, account, key
from .faulty_storage import Behind

pytestmark = pytest.mark.anyio


async def test_an_answer_is_charged_once_and_nothing_stays_reserved() -> None:
    bank = await Bank(terms=[account(monthly_nanos=10**9)]).open()
    answer = await bank.route()
    assert answer.routing.cost_usd == COST / 1e9
    assert await bank.purse() == (10**9, COST, 0)
    (row,) = await bank.rows()
    assert (row.request_id, row.attempt, row.cost_nanos, row.charge_nanos) == (answer.trace_id, 1, COST, COST)
    (trace,) = await bank.storage.scan("acme", Traces(), after=None, limit=10)
    assert trace.charged_usd == trace.cost_usd == COST / 1e9


async def test_a_running_call_reserves_its_worst_case() -> None:
    bank = await Bank([Pause(5.0), *ANSWER], terms=[account(monthly_nanos=10**9)]).open()
    async with anyio.create_task_group() as group:
        group.start_soon(bank.route)
        await bank.clock.sleep(1.0)
        _, spent, reserved = await bank.purse()
        assert spent == 0
        assert reserved >= 100 * 4_000, "all of its output, and its input"
    assert await bank.purse() == (10**9, COST, 0)


async def test_a_spent_budget_refuses_by_its_level_and_leaves_no_trace_or_reservation() -> None:
    bank = await Bank(terms=[account(monthly_nanos=COST)]).open()
    with pytest.raises(QuotaExhausted) as caught:
        await bank.route()
    detail = caught.value.detail
    assert (detail["level"], detail["limit_usd"], detail["spent_usd"]) == ("month", COST / 1e9, 0.0)
    assert str(caught.value) == (
        "this month has $0.0003 left of its $0.0003, and the cheapest model that could answer needs at least "
        "$0.000409; raise that limit, or ask for less, such as a smaller params.max_output_tokens"
    )
    assert detail["needed_usd"] == 0.000409
    assert caught.value.request_id is not None
    assert caught.value.trace_id is None
    assert await bank.purse() == (COST, 0, 0)
    assert await bank.storage.scan("acme", Traces(), after=None, limit=10) == []
    assert bank.good.calls == []


async def test_an_unknown_console_key_is_refused_and_a_hosts_own_key_is_not() -> None:
    bank = await Bank(ANSWER).open()
    stray = Caller("acme", key_id=f"key_{'0' * 26}")
    for _ in range(2):
        with pytest.raises(AuthenticationFailed, match="give the Router the storage of its Console"):
            await bank.route(caller=stray)
    assert (await bank.route(caller=Caller("acme", key_id="key_of_mine"))).output == "an answer"
    assert await bank.storage.scan("acme", Traces(), after=None, limit=10) != []


async def test_an_answer_has_rate_limit_headers_unless_it_is_replayed() -> None:
    bank = await Bank(ANSWER, ANSWER, terms=[account(limits=RateLimits(requests_per_min=10))]).open()
    first, again = [await bank.route(idempotency_key="k") for _ in range(2)]
    assert first.headers == {
        "X-RateLimit-Limit": "10",
        "X-RateLimit-Remaining": "9",
        "X-RateLimit-Reset": str(ceil(bank.clock.time() + 60)),
        "X-RateLimit-Resource": "requests",
    }
    assert (again.output, again.headers) == (first.output, {})
    assert first.usage.rate_limit_remaining == 9
    assert (await bank.route(caller=Caller())).headers == {}


async def test_a_prepaid_account_pays_from_its_balance() -> None:
    bank = await Bank(ANSWER, ANSWER, terms=[account(prepaid=True)]).open()
    with pytest.raises(InsufficientBalance, match=r"the balance of the account is \$0, "):
        await bank.route()
    await bank.storage.apply("acme", [AddCredit("cr_1", 10**6, AT)])
    await bank.route()
    assert await bank.purse("account") == (10**6, COST, 0)


async def test_a_cheaper_model_answers_if_the_balance_covers_no_other() -> None:
    bank = Bank([], spare=[ANSWER], terms=[account(monthly_nanos=10**6)])
    dear = replace(ONE, pricing_per_1m=Pricing(100.0, 400.0))
    bank.use(bank.storage, [ScriptedProvider([ANSWER], models=[dear], clock=bank.clock), bank.spare])
    await bank.open()
    answer = await bank.route(goal="quality")
    assert answer.routing.selected_model == "spare/two"


async def test_a_call_waits_for_reserved_money_until_its_deadline() -> None:
    bank = await Bank([Pause(5.0), *ANSWER], ANSWER, terms=[account(monthly_nanos=1_250_000)]).open()
    ended: dict[str, Any] = {}

    async def call(name: str, **options: Any) -> None:
        try:
            ended[name] = await bank.route(**options)
        except RouterError as error:
            ended[name] = error
        ended[f"{name} at"] = bank.clock.monotonic() - began

    began = bank.clock.monotonic()
    async with anyio.create_task_group() as group:
        for name, tokens in {"first": 200, "second": 200}.items():
            group.start_soon(partial(call, name, params={"max_output_tokens": tokens}))
            await bank.clock.sleep(0.1)
        group.start_soon(partial(call, "hurried", params={"max_output_tokens": 200}, timeout_ms=1_000))
    assert ended["first"].output == ended["second"].output == "an answer"
    assert ended["second at"] == pytest.approx(5.0, abs=0.2)
    assert isinstance(ended["hurried"], RateLimited)
    assert ended["hurried"].detail["level"] == "month"
    assert ended["hurried at"] == pytest.approx(1.2, abs=0.05)
    assert await bank.purse() == (1_250_000, 2 * COST, 0)


async def test_a_fallback_is_paid_from_the_rest_and_the_failed_attempt_counts() -> None:
    broken: list[Line] = [Delta("half an"), Usage(100, 10), ProviderFault("server")]
    bank = await Bank(broken, broken, spare=[ANSWER], terms=[account(monthly_nanos=10**9)]).open()
    answer = await bank.route(goal="quality")
    assert answer.routing.selected_model == "spare/two"
    rows = sorted(await bank.rows(), key=lambda row: row.attempt)
    assert [row.model for row in rows] == ["good/one", "good/one", "spare/two"]
    assert rows[-1].cost_nanos == 2 * COST, "at its own prices"
    total = sum(row.charge_nanos for row in rows)
    assert total == round(answer.routing.cost_usd * 1e9)
    assert await bank.purse() == (10**9, total, 0)


async def test_a_call_that_fails_costs_its_account_nothing_and_is_in_the_ledger() -> None:
    broken: list[Line] = [Delta("half an"), Usage(100, 10), ProviderFault("auth")]
    bank = await Bank(broken, terms=[account(monthly_nanos=10**9)]).open()
    with pytest.raises(UpstreamFailed):
        await bank.route()
    (row,) = await bank.rows()
    assert row.cost_nanos > 0
    assert row.charge_nanos == 0
    assert await bank.purse() == (10**9, 0, 0)


async def test_each_monthly_threshold_emits_one_event_with_the_call_that_crossed_it() -> None:
    bank = await Bank(*[ANSWER] * 12, terms=[account(monthly_nanos=10 * COST + 1)]).open()
    heard: list[Any] = []
    bank.router.on_event(heard.append)
    for _ in range(9):
        await bank.route()
    await bank.router.flush()
    assert [(event.data.threshold_percent, event.data.period) for event in heard] == [
        (50, bank.month[:7]),
        (80, bank.month[:7]),
    ]
    kept = await bank.storage.scan("acme", Events(), after=None, limit=10)
    assert [event.event for event in reversed(kept)] == heard


async def test_tokens_count_at_the_worst_case_and_are_corrected_at_the_end() -> None:
    bank = await Bank(*[ANSWER] * 9, terms=[account(limits=RateLimits(tokens_per_min=1_000))]).open()
    for _ in range(5):  # 150 each, as it turns out
        await bank.route(params={"max_output_tokens": 300})
    with pytest.raises(RateLimited) as caught:
        await bank.route(params={"max_output_tokens": 300})
    assert (caught.value.detail["resource"], caught.value.detail["limit_of"]) == ("tokens", "tokens_per_min")


async def test_a_key_is_limited_to_its_scopes() -> None:
    bank = await Bank(terms=[account()]).open()
    with pytest.raises(PermissionDenied, match="route"):
        await bank.route(caller=Caller("acme", scopes=("traces:read",)))
    assert (await bank.route(caller=Caller("acme", scopes=("route",)))).output == "an answer"


async def test_calls_with_one_idempotency_key_are_one_call() -> None:
    bank = await Bank([Pause(5.0), *ANSWER], terms=[account(monthly_nanos=10**9)]).open()
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(partial(bank.route, idempotency_key="k"))
    await bank.route(idempotency_key="k")
    answers = bank.answers
    assert len(bank.good.calls) == 1
    assert len({answer.trace_id for answer in answers}) == 1
    assert all(answer.response == answers[0].response for answer in answers)
    assert await bank.purse() == (10**9, COST, 0)
    assert answers[-1].decision.model == "good/one"
    assert answers[-1].trace.id == answers[0].trace_id
    assert [answer.replayed for answer in answers] == [False] + [True] * 20


async def test_a_key_cannot_be_reused_for_another_request() -> None:
    bank = await Bank(ANSWER, terms=[account()]).open()
    await bank.route("hi", idempotency_key="k")
    with pytest.raises(IdempotencyKeyReused):
        await bank.route("hello", idempotency_key="k")
    with pytest.raises(IdempotencyKeyReused):
        await bank.route("hi", idempotency_key="k", timeout_ms=99)


async def test_after_a_failure_the_next_call_with_the_key_runs() -> None:
    bank = await Bank([ProviderFault("auth")], ANSWER, terms=[account()]).open()
    with pytest.raises(UpstreamFailed):
        await bank.route(idempotency_key="k")
    assert (await bank.route(idempotency_key="k")).output == "an answer"
    assert len(bank.good.calls) == 2


async def test_a_waiting_call_takes_over_if_the_first_is_cancelled() -> None:
    bank = await Bank([Pause(100.0)], ANSWER, terms=[account(monthly_nanos=10**9)]).open()

    async def leave() -> None:
        with bank.clock.deadline(bank.clock.monotonic() + 1.0):
            await bank.route(idempotency_key="k")

    async with anyio.create_task_group() as group:
        group.start_soon(leave)
        await bank.clock.sleep(0.1)
        for _ in range(2):
            group.start_soon(partial(bank.route, idempotency_key="k"))
    assert [answer.output for answer in bank.answers] == ["an answer"] * 2
    assert len(bank.good.calls) == 2
    assert await bank.purse() == (10**9, COST, 0)


async def test_a_stream_is_replayed_as_a_stream() -> None:
    bank = await Bank(ANSWER, terms=[account(monthly_nanos=10**9)]).open()
    told: list[list[Any]] = []
    for _ in range(2):
        async with bank.router.stream("hi", caller=ACME, params=CAP, idempotency_key="k") as stream:
            told.append([event async for event in stream])
        assert stream.result.output == "an answer"
        assert stream.result.replayed is (len(told) == 2)
    first, again = told
    assert [event.event for event in first] == [event.event for event in again]
    assert isinstance(first[-1], RouteCompleted)
    assert first[-1].data == again[-1].data
    assert [event.data.text for event in again if isinstance(event, OutputDelta)] == ["an answer"]
    assert len(bank.good.calls) == 1
    assert await bank.purse() == (10**9, COST, 0)


async def test_a_stream_left_midway_is_charged_for_its_output_and_releases_the_rest() -> None:
    bank = await Bank(
        [Delta("some words"), Pause(100.0)],
        terms=[account(monthly_nanos=10**9, limits=RateLimits(concurrency=1))],
    ).open()
    async with bank.router.stream("hi", caller=ACME, params=CAP) as stream:
        async for event in stream:
            if isinstance(event, OutputDelta):
                break
    (row,) = await bank.rows()
    assert row.charge_nanos == row.cost_nanos > 0
    assert await bank.purse() == (10**9, row.charge_nanos, 0)
    with pytest.raises(UpstreamFailed):  # it has its slot back, so that it comes to the provider
        await bank.route()


async def test_sandbox_calls_are_limited_and_never_billed() -> None:
    bank = await Bank(terms=[account(prepaid=True, limits=RateLimits(requests_per_min=1))]).open()
    caller = Caller("acme", environment="sandbox")
    assert (await bank.route(caller=caller)).routing.cost_usd > 0
    with pytest.raises(RateLimited):
        await bank.route(caller=caller)
    assert await bank.rows() == []
    with pytest.raises(InsufficientBalance):
        await bank.route()


async def test_the_default_account_has_no_limits_and_its_calls_are_in_the_ledger() -> None:
    bank = await Bank().open()
    answer = await bank.route(caller=Caller())
    (row,) = await bank.storage.scan("default", LedgerRows(), after=None, limit=10)
    assert (row.request_id, row.cost_nanos, row.charge_nanos) == (answer.trace_id, COST, COST)


async def test_many_calls_are_admitted_one_by_one_and_a_refusal_leaves_room_for_others() -> None:
    bank = await Bank(*[ANSWER] * 3, terms=[account(limits=RateLimits(requests_per_min=2))]).open()
    ended = await bank.router.route_many(["a", "b", "c"], caller=ACME, params=CAP, budget={"maxCostUsd": 1.0})
    assert [type(each).__name__ for each in ended] == ["Answer", "Answer", "RateLimited"]
    assert await bank.charged() == 2 * COST


async def test_calls_of_route_many_may_have_idempotency_keys() -> None:
    bank = await Bank(ANSWER, terms=[account()]).open()
    request = {"messages": [{"role": "user", "content": "hi"}], "params": CAP, "idempotency_key": "k"}
    first, second = await bank.router.route_many([request, request], caller=ACME)
    assert not isinstance(first, RouterError)
    assert not isinstance(second, RouterError)
    assert first.response == second.response
    assert second.decision.model == "good/one"
    assert len(bank.good.calls) == 1


async def test_steps_are_limited_like_other_calls() -> None:
    terms: list[Write] = [account(monthly_nanos=1_000_000, limits=RateLimits(concurrency=1, requests_per_min=3))]
    bank = await Bank(terms=terms).open()
    for _ in range(2):
        with bank.router.steps("hi", caller=ACME, params=CAP) as steps:
            step = steps.next()
            assert isinstance(step, StepCall)
            _, _, reserved = await bank.purse()
            assert reserved > 400_000
            with pytest.raises(RateLimited):
                bank.router.steps("hi", caller=ACME, params=CAP)
            steps.feed([Delta("an answer"), Usage(100, 50), Finish("stop")])
            assert isinstance(steps.next(), StepDone)
        assert steps.result.output == "an answer"
        await bank.clock.sleep(60.0)
    assert await bank.purse() == (1_000_000, 2 * COST, 0)
    with pytest.raises(QuotaExhausted):
        bank.router.steps("hi", caller=ACME, params=CAP)


async def test_steps_do_not_wait_for_reserved_money() -> None:
    bank = await Bank(terms=[account(monthly_nanos=700_000)]).open()
    with bank.router.steps("hi", caller=ACME, params=CAP) as steps:
        steps.next()
        said = r"running calls have reserved all that this month has left, and steps\(\) does not wait for them; retry"
        with pytest.raises(RateLimited, match=said) as caught:
            bank.router.steps("hi", caller=ACME, params=CAP)
        assert caught.value.detail == {
            "level": "month", "resource": "requests", "limit_of": "money", "retry_after_seconds": 1,
        }  # fmt: skip


async def test_steps_replay_the_answer_of_their_key() -> None:
    bank = await Bank(terms=[account()]).open()
    answers = []
    for _ in range(2):
        with bank.router.steps("hi", caller=ACME, params=CAP, idempotency_key="k") as steps:
            while not isinstance(steps.next(), StepDone):
                with pytest.raises(RouterTimeoutError, match="is still running; retry with the same key"):
                    bank.router.steps("hi", caller=ACME, params=CAP, idempotency_key="k")
                steps.feed([Delta("an answer"), Usage(100, 50), Finish("stop")])
        answers.append(steps.result)
    assert answers[0].response == answers[1].response
    assert [answer.replayed for answer in answers] == [False, True]
    assert answers[1].decision.model == "good/one"
    assert await bank.charged() == COST


async def test_a_call_that_is_ending_is_settled_after_its_caller_left() -> None:
    bank = await Bank([Pause(5.0), *ANSWER], terms=[account(monthly_nanos=10**9)]).open()
    with bank.clock.deadline(bank.clock.monotonic() + 1.0) as limit:
        await bank.router.route_to_end("hi", caller=ACME, params=CAP, idempotency_key="k")
    assert limit.expired
    answer = await bank.router.route_to_end("hi", caller=ACME, params=CAP, idempotency_key="k")
    assert answer.output == "an answer"
    assert len(bank.good.calls) == 1
    assert await bank.purse() == (10**9, COST, 0)
    with pytest.raises(ValidationFailed, match="idempotency_key"):
        await bank.router.route_to_end("hi", caller=ACME)


async def test_deleting_an_account_deletes_kept_answers_but_not_the_ledger() -> None:
    bank = await Bank(ANSWER, ANSWER, terms=[account(monthly_nanos=10**9)]).open()
    await bank.route(idempotency_key="k")
    await bank.router.as_caller(ACME).traces.delete(filter="status=completed")
    again = await bank.route(idempotency_key="k")
    with pytest.raises(NotFound):
        _ = again.trace
    await bank.router.as_caller(ACME).traces.delete(everything=True)
    await bank.route(idempotency_key="k")
    assert len(bank.good.calls) == 2
    assert await bank.charged() == 2 * COST


async def test_an_answer_is_returned_only_once_it_is_settled() -> None:
    bank = await Bank(ANSWER, terms=[account(monthly_nanos=10**9)]).open()
    bank.behind().takes_s = 1.0
    await bank.route()
    assert await bank.purse() == (10**9, COST, 0)
    assert [row.charge_nanos for row in await bank.rows()] == [COST]


async def test_an_answer_is_replayed_only_for_an_authorized_caller() -> None:
    bank = await Bank(ANSWER, terms=[account(), key()]).open()
    caller = Caller("acme", key_id="key_1")
    await bank.route(caller=caller, idempotency_key="k")
    with pytest.raises(PermissionDenied):
        await bank.route(caller=Caller("acme", key_id="key_1", scopes=("models:read",)), idempotency_key="k")
    await bank.storage.apply("acme", [RevokeKey("key_1", bank.month)])
    with pytest.raises(AuthenticationFailed):
        await bank.route(caller=caller, idempotency_key="k")


# Tokens that count before the usage is known


async def asked(**options: Any) -> int:
    """How many tokens a call asks for, by its refusal."""
    bank = await Bank(ANSWER, terms=[account(limits=RateLimits(tokens_per_min=10))]).open()
    await bank.route()
    with pytest.raises(RateLimited) as refused:
        await bank.route(**options)
    assert refused.value.detail["resource"] == "tokens"
    return int(refused.value.detail["asked"])


async def test_a_call_counts_its_output_cap_or_256_tokens() -> None:
    least = await asked(params={"max_output_tokens": 1})
    assert await asked(params={"max_output_tokens": 900}) - least == 899
    assert await asked(params=None) - least == 255
    assert await asked(params={"temperature": 0.0}) - least == 255


async def test_a_call_counts_the_upper_bound_of_its_input_tokens() -> None:
    short, long = await asked(text="hi"), await asked(text="word " * 500)
    assert long - short > 500


@pytest.mark.parametrize(("answered", "admitted"), [(True, False), (False, True)])
async def test_a_call_of_unknown_usage_counts_all_its_estimated_tokens(answered: bool, admitted: bool) -> None:
    terms = [account(limits=RateLimits(tokens_per_min=1_000))]
    bank = await Bank([ProviderFault("auth", answered=answered)], ANSWER, terms=terms).open()
    with pytest.raises(UpstreamFailed):
        await bank.route(params={"max_output_tokens": 700})
    with nullcontext() if admitted else pytest.raises(RateLimited):
        await bank.route(params={"max_output_tokens": 400})
    assert len(bank.good.calls) == 1 + admitted


# Accounts created while their calls run


SLOW = [Pause(5.0), *ANSWER]


async def running(*script: Any, behind: bool = False, known: bool = True) -> Bank:
    """Of an account that nobody set up."""
    bank = Bank(*([ANSWER] if known else []), *script)
    if behind:
        bank.behind()
    if known:
        await bank.route()
    return bank


@table("key_id", [None, "key_1"])
@table("options", [{}, {"idempotency_key": "k"}])
@table("behind", [False, True])
@table("known", [False, True])
async def test_a_call_running_when_its_account_is_created_counts_in_its_month(
    options: dict[str, Any], key_id: str | None, behind: bool, known: bool
) -> None:
    bank = await running(SLOW, behind=behind, known=known)
    await bank.router.flush()
    async with anyio.create_task_group() as group:
        group.start_soon(partial(bank.route, caller=Caller("acme", key_id=key_id), **options))
        await bank.clock.sleep(1.0)
        await bank.storage.apply("acme", [account(monthly_nanos=10**9), key(monthly_nanos=10**9)])
    await bank.router.flush()
    assert await bank.purse() == (10**9, COST, 0)
    of_key = [purse.spent_nanos for purse in (await bank.standing("key_1")).purses if purse.level == "key"]
    assert of_key == [COST if key_id else 0] * 2


async def test_a_new_account_is_limited_at_once() -> None:
    bank = await running(ANSWER)
    await bank.storage.apply("acme", [account(monthly_nanos=1)])
    with pytest.raises(QuotaExhausted):
        await bank.route()
    assert len(bank.good.calls) == 1


async def test_a_new_account_is_limited_within_seconds_by_a_storage_without_memory() -> None:
    bank = await running(ANSWER, behind=True)
    storage = bank.router._parts.storage
    assert isinstance(storage, Behind)
    storage.forgets = True
    await bank.storage.apply("acme", [account(monthly_nanos=1)])
    with pytest.raises(QuotaExhausted):
        await bank.route()


@pytest.mark.parametrize("remembered", [None, 1, COST, 10**12])
async def test_cached_balances_neither_admit_nor_refuse(remembered: int | None) -> None:
    """The decision goes by old figures; what is taken, and what is refused, does not."""
    bank = await Bank(ANSWER, terms=[account(monthly_nanos=10**9)]).open()
    storage = bank.behind()
    storage.accounts.left = lambda *_: Left(account().account, None, remembered)  # type: ignore[method-assign]
    assert (await bank.route()).output == "an answer"
    assert await bank.purse() == (10**9, COST, 0)
    await bank.storage.apply("acme", [account(monthly_nanos=COST + 1)])
    with pytest.raises(QuotaExhausted) as refused:
        await bank.route()
    assert refused.value.detail["spent_usd"] == COST / 1e9
    assert await bank.purse() == (COST + 1, COST, 0)


# A storage without accounts


class TracesAlone:
    """A storage without ``accounts`` that keeps all else, or knows nothing of accounts."""

    def __init__(self, *, knows_accounts: bool = True) -> None:
        self.kept = MemoryStorage()
        self._knows_accounts = knows_accounts
        self.looks = 0

    def __getattr__(self, name: str) -> Any:
        if name in ("accounts", "keep"):
            raise AttributeError(name)
        return getattr(self.kept, name)

    async def read(self, account: str, query: Any) -> Any:
        if isinstance(query, Stands):
            self.looks += 1
            if not self._knows_accounts:
                raise UnsupportedWrite("no query Stands")
        return await self.kept.read(account, query)


NAMES_THE_SUITE = r"has no `accounts`, .* AccountsContract of tests/contracts$"


@pytest.mark.parametrize("knows", [True, False])
async def test_a_storage_without_accounts_serves_callers_without_limits_only(knows: bool) -> None:
    bank, storage = Bank(*[ANSWER] * 3), TracesAlone(knows_accounts=knows)
    bank.use(storage)
    assert (await bank.router.route("hi", budget={"maxCostUsd": 1.0})).output == "an answer"
    assert storage.looks == 0
    assert (await bank.route()).output == "an answer"
    assert (await bank.route()).output == "an answer"
    prepared = bank.router.prepare({"messages": [{"role": "user", "content": "hi"}]}, caller=ACME)
    assert (await prepared.count_tokens()).model == ONE.id
    assert storage.looks == 1
    for needs in ({"idempotency_key": "k"}, {"caller": replace(ACME, key_id=f"key_{'0' * 26}")}):
        with pytest.raises(InternalError, match=NAMES_THE_SUITE):
            await bank.route(**needs)
    await bank.router.aclose()


async def test_an_account_in_a_storage_without_accounts_is_refused_instead_of_served_without_limits() -> None:
    bank, storage = Bank(), TracesAlone()
    await storage.kept.apply("acme", [account(plan="free")])
    bank.use(storage)
    prepared = bank.router.prepare({"messages": [{"role": "user", "content": "hi"}]}, caller=ACME)
    for call in (bank.route, bank.route, prepared.count_tokens):
        with pytest.raises(InternalError, match=NAMES_THE_SUITE):
            await call()
    await bank.router.aclose()


async def test_an_account_created_later_is_noticed() -> None:
    bank, storage = Bank(*[ANSWER] * 2), TracesAlone()
    bank.use(storage)
    assert (await bank.route()).output == "an answer"
    await storage.kept.apply("acme", [account(plan="free")])
    await bank.clock.advance(3.0)
    with pytest.raises(InternalError, match=NAMES_THE_SUITE):
        await bank.route()
    await bank.router.aclose()


async def test_a_console_refuses_limits_that_the_storage_cannot_enforce() -> None:
    storage = TracesAlone()
    await storage.kept.apply("acme", [account()])
    console = Console(storage, secret="0123456789abcdef" * 4)
    for made in (console.create_account("umbra"), console.create_key("acme", name="x")):
        with pytest.raises(InternalError, match=NAMES_THE_SUITE):
            await made
