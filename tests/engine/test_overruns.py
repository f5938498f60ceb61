"""Providers that bill more than a call was admitted with: booked as billed, said once, and covered from then on."""

from __future__ import annotations

import logging
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright import Agent, Catalogue, Model, Router, RouterError, Settings
from routewright._core.attempts.health import SharedHealth
from routewright._core.attempts.statistics import added
from routewright._core.catalogue.models import snapshot
from routewright._core.routing.pool import Pool
from routewright._engine.context import RunScope, inside_run
from routewright.errors import QuotaExhausted
from routewright.testing import FakeClock, ScriptedProvider
from routewright.testing.provider import Line, Pause
from routewright.wire import Delta, Finish, Learned, Overrun, ToolDelta, UpstreamCall, Usage

from .account_router import ACME, CAP, ONE, Bank, account

pytestmark = pytest.mark.anyio
PRICES = 1_000, 4_000
"""Nano-dollars of a token of input and output."""


class Biller:
    """Bills ``extra`` tokens beside ``factor`` times the prompt, which has a token for so many bytes, and at least
    ``least`` or ``factor`` times the cap."""

    def __init__(self, factor: float = 1.0, extra: int = 0, least: int = 0, size: int = 1) -> None:
        self.factor = factor
        self.extra = extra
        self.least = least
        self.size = size
        self.billed: list[Usage] = []

    def __call__(self, call: UpstreamCall) -> list[Any]:
        (message,) = call.messages
        assert isinstance(message.content, str)
        output = max(self.least, int((call.max_output_tokens or 0) * self.factor))
        usage = Usage(int((len(message.content) // self.size + 7) * self.factor) + self.extra, output)
        self.billed.append(usage)
        return [Pause(1.0 + len(self.billed) % 3), Delta("an answer"), usage, Finish("stop")]

    @property
    def nanos(self) -> int:
        return sum(usage.input * PRICES[0] + usage.output * PRICES[1] for usage in self.billed)


def reserve_of(input_tokens: int, output_tokens: int) -> int:
    """Nano-dollars."""
    return input_tokens * PRICES[0] + output_tokens * PRICES[1]


async def bank_of(biller: Biller, model: Model = ONE, **terms: Any) -> Bank:
    bank = Bank(terms=[account(**terms)])
    bank.good = ScriptedProvider(biller, models=[model], clock=bank.clock)
    bank.use(bank.storage, providers=[bank.good])
    return await bank.open()


async def reserved(bank: Bank, **options: Any) -> int:
    """What is reserved while a call runs."""
    async with anyio.create_task_group() as group:
        group.start_soon(partial(bank.route, **options))
        await bank.clock.sleep(0.5)
        _, _, nanos = await bank.purse()
    return nanos


async def test_an_overrun_is_booked_said_once_and_reserved_from_then_on(caplog: pytest.LogCaptureFixture) -> None:
    bank = await bank_of(Biller(3.0), monthly_nanos=10**9)
    before = await reserved(bank)
    assert await reserved(bank) == reserve_of(35, 300), "27 tokens were billed for a prompt of 7 to 9"
    await bank.route()
    assert await bank.purse() == (10**9, 9 * before, 0)
    assert [row.overrun_nanos for row in reversed(await bank.rows())] == [2 * before, 0, 0]
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "good/one billed 18 input and 200 output tokens more than were admitted" in record.getMessage()


async def test_the_warning_names_only_what_was_exceeded(caplog: pytest.LogCaptureFixture) -> None:
    bank = await bank_of(Biller(extra=1_350), monthly_nanos=10**9)
    await bank.route()
    await bank.route("hi " * 1_000)
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "good/one billed 1,350 input tokens more than were admitted" in record.getMessage()


@pytest.mark.parametrize(
    ("biller", "cap", "tokens"),
    [
        pytest.param(Biller(least=1_000), 10, (9, 1_000), id="a host that ignores the cap"),
        pytest.param(Biller(2.0), 500, (24, 1_000), id="a host that bills twice as much"),
        pytest.param(Biller(extra=70), 200, (102, 200), id="a host that adds a system prompt"),
    ],
)
async def test_smaller_and_larger_calls_are_covered_too(biller: Biller, cap: int, tokens: tuple[int, int]) -> None:
    bank = await bank_of(biller, monthly_nanos=10**9)
    await bank.route()
    assert await reserved(bank, params={"max_output_tokens": cap}) == reserve_of(*tokens)


PROSE = "word " * 1_000
"""5,007 bytes in the chat format, in fact 1,007 tokens."""


@pytest.mark.parametrize(
    ("tokenizer", "after"),
    [pytest.param(None, 6_299, id="unknown vocabulary"), pytest.param("o200k_base", 6_697, id="known, not counted")],
)
async def test_a_large_call_ends_the_overestimate(tokenizer: Any, after: int) -> None:
    """Claude adds a prompt of about 350 tokens to a call with tools: for a small call that is a large factor."""
    bank = await bank_of(Biller(extra=350, size=5), replace(ONE, tokenizer=tokenizer), monthly_nanos=10**10)
    await bank.route()
    assert await reserved(bank, text=PROSE) > reserve_of(200_000, 100)
    assert await reserved(bank, text=PROSE) == reserve_of(after, 100)
    assert await reserved(bank) < reserve_of(600, 100)
    assert await reserved(bank, text=PROSE * 10) < reserve_of(2 * 50_007, 100)


async def test_after_a_counted_call_a_budget_of_its_bill_is_enough() -> None:
    bank = await bank_of(Biller(extra=350, size=5), replace(ONE, tokenizer="o200k_base"), monthly_nanos=10**10)
    await bank.route(budget={"maxTokens": 150})
    await bank.route(PROSE, budget={"maxTokens": 120_000})
    with pytest.raises(RouterError, match="budget"):
        await bank.route(PROSE, budget={"maxTokens": 1_458})
    await bank.route(PROSE, budget={"maxTokens": 1_459})


async def test_only_an_answer_that_its_cap_ended_shows_what_the_cap_costs() -> None:
    bank = await bank_of(Biller(), monthly_nanos=10**10)
    usual = await reserved(bank, params={"max_output_tokens": 4_000})
    bills = [(300, "stop"), (50, "stop"), (4_200, "length"), (50, "stop")]
    script: list[list[Line]] = [
        [Pause(1.0), Delta("an answer"), Usage(9, output), Finish(reason)] for output, reason in bills
    ]
    bank.use(bank.storage, providers=[ScriptedProvider(script, models=[ONE], clock=bank.clock)])
    await bank.route()
    for output in (12_000, 12_000, 4_200):  # the host thinks beside the cap, or bills three times as much
        extra = await reserved(bank, params={"max_output_tokens": 4_000}) - usual
        assert extra == (output - 4_000) * PRICES[1]


@pytest.mark.parametrize(
    ("text", "usage", "before", "after"),
    [
        pytest.param("yes", Usage(9, 1_084), 64_000, 6_195, id="a host that thinks beside the cap"),
        pytest.param("yes", Usage(9, 20_000), 64_000, 64_000, id="a long answer with far more thoughts"),
        pytest.param("yes", None, 64_000, 64_000, id="an estimate is no bill"),
        pytest.param("word " * 300, Usage(9, 1_084), 100_000, 100_000, id="a host that ignores the cap"),
    ],
)
async def test_a_long_answer_ends_the_overestimate(text: str, usage: Usage | None, before: int, after: int) -> None:
    """For a small cap a few hundred tokens are a large factor; and a longer answer is hardly ever cut."""
    bank = await bank_of(Biller(), monthly_nanos=10**10)
    usual = await reserved(bank, params={"max_output_tokens": 4_000})
    answer: list[Line] = [Pause(1.0), Delta("words " * 700), *([usage] if usage else []), Finish("stop")]
    script: list[list[Line]] = [[Delta(text), Usage(9, 400), Finish("stop")], answer, answer]
    bank.use(bank.storage, providers=[ScriptedProvider(script, models=[ONE], clock=bank.clock)])
    await bank.route(params={"max_output_tokens": 25})
    for output in (before, after):
        extra = await reserved(bank, params={"max_output_tokens": 4_000}) - usual
        assert extra == (output - 4_000) * PRICES[1]


async def test_a_text_longer_than_the_cap_shows_that_the_host_ignores_it() -> None:
    bank = await bank_of(Biller(), monthly_nanos=10**10)
    answer: list[Line] = [Delta("word " * 300), Usage(9, 300), Finish("stop")]
    provider = ScriptedProvider([answer, [Pause(1.0), *answer]], models=[ONE], clock=bank.clock)
    bank.use(bank.storage, providers=[provider])
    await bank.route()
    assert await reserved(bank) >= 100_000 * PRICES[1], "the longest answer that the model can write"


async def test_a_call_that_waited_for_money_is_covered_by_what_it_waited_for() -> None:
    bank = await bank_of(Biller(), monthly_nanos=5_900_000)
    answer: list[Line] = [Pause(1.0), Delta("an answer"), Usage(2_009, 10), Finish("stop")]
    provider = ScriptedProvider([answer] * 2, models=[ONE], clock=bank.clock)
    bank.use(bank.storage, providers=[provider])
    async with anyio.create_task_group() as group:
        group.start_soon(partial(bank.route, params={"max_output_tokens": 1_000}))
        await bank.clock.sleep(0.1)
        with pytest.raises(QuotaExhausted):  # the rest pays for this prompt and answer, but not for 2,000 tokens more
            await bank.route(params={"max_output_tokens": 500})
    assert len(provider.calls) == 1


async def test_a_run_ends_after_its_call_was_billed_above_the_budget() -> None:
    clock = FakeClock()

    def script(call: UpstreamCall) -> list[Any]:
        return [ToolDelta(0, '{"a": 1}', "call_1", "add"), Usage(900, 2_000), Finish("tool_calls")]

    def add(a: int) -> int:
        """Adds one."""
        return a + 1

    able = replace(ONE, modalities=("text", "tool"))
    provider = ScriptedProvider(script, models=[able], clock=clock)
    router = Router(providers=[provider], catalogue=Catalogue(()), settings=Settings(clock=clock))
    result = await Agent(router, tools=[add], total_budget_usd=0.004, params=CAP).run("go")
    assert (result.status, len(provider.calls)) == ("budget_exceeded", 1)
    assert result.summary.total_cost_usd == pytest.approx(0.0089)
    trace = await router.trace(result.trace_id)
    assert trace.cost_usd == result.summary.total_cost_usd
    await router.aclose()


async def test_a_decision_after_an_overrun_replays() -> None:
    clock = FakeClock()
    spare = Bank(spare=[["x"]]).spare
    provider = ScriptedProvider(Biller(50.0), models=[ONE], clock=clock)
    router = Router(providers=[provider, spare], catalogue=Catalogue(()), settings=Settings(clock=clock))
    budget: Any = {"maxCostUsd": 0.004}
    first = await router.route("hi", goal="quality", params=CAP, budget=budget)
    spare._turns = iter([[Delta("x"), Usage(1, 1), Finish("stop")]])
    second = await router.route("hi", goal="quality", params=CAP, budget=budget)
    assert (first.routing.selected_model, second.routing.selected_model) == ("good/one", "spare/two")
    for answer in (first, second):
        trace = await router.trace(answer.trace_id)
        assert router.replay(trace).model == answer.routing.selected_model
    with pytest.raises(RouterError) as refused:
        await router.route("hi", params=CAP, budget={"maxCostUsd": 0.0001})
    costs = {
        rejected["model"]: rejected["estimated_cost_usd"] for rejected in refused.value.detail["rejected_candidates"]
    }
    assert costs["good/one"] == pytest.approx(reserve_of(579, 5_000) / 1e9)
    await router.aclose()


def test_processes_of_one_store_share_overruns() -> None:
    pool = Pool(snapshot((ONE,), "2026-11-28"), "2026-11-28")
    mine, other = SharedHealth(pool), SharedHealth(pool)
    mine.record_overrun(0, Overrun(output=((100, 300),)))
    mine.record_fault(0, 0.0)
    stored = added("good/one", None, mine.take(0.0, 1.0)["good/one"])
    stored = added("good/one", stored, Learned(2.0, overrun=Overrun(((9, 79),), ((100, 310),))))
    other.know([stored], 10)
    (figures,) = other.publish(20.0, {}).values()
    assert figures.overrun == Overrun(((9, 79),), ((100, 310),))


async def test_what_a_vendor_adds_to_some_calls_stays_covered() -> None:
    """It adds 350 tokens to calls with tools; one without them must not hide that from the next of its size."""

    def bill(call: UpstreamCall) -> list[Any]:
        prompt = call.messages[-1].content or ""
        return [Delta("an answer"), Usage(len(prompt) + 7 + 350 * ("tool" in prompt), 10), Finish("stop")]

    bank = await bank_of(Biller(), monthly_nanos=10**9)
    bank.good = ScriptedProvider(bill, models=[ONE], clock=bank.clock)
    bank.use(bank.storage, providers=[bank.good])
    await bank.open()
    for prompt in ("tool", "plain " * 400, "tool " * 480):
        await bank.route(prompt, params={"max_output_tokens": 10})
    assert [row.overrun_nanos > 0 for row in reversed(await bank.rows())] == [True, False, False]


async def test_two_calls_that_widen_at_once_do_not_wait_for_each_other() -> None:
    """Both are admitted by an old bound, and learn of the overrun together."""
    bank = await bank_of(Biller(1, 0, 200), monthly_nanos=4_296_680)

    async def call(size: int, cap: int, at: float) -> None:
        await bank.clock.sleep(at)
        with suppress(RouterError):
            await bank.route("x" * size, params={"max_output_tokens": cap})

    async with anyio.create_task_group() as group:
        for size, cap, at in [(1, 245, 0), (191, 238, 0), (320, 55, 0), (114, 373, 0.25), (214, 1, 0.25), (1, 1, 0.5)]:
            group.start_soon(call, size, cap, at)
    assert bank.clock.monotonic() < 10
    assert (await bank.purse())[2] == 0


HABITS = [
    (1, 0, 0),
    (2, 0, 0),
    (9, 0, 0),
    (1, 1, 0),
    (1, 70, 0),
    (1, 2_000, 0),
    (3, 70, 0),
    (1, 0, 200),
    (1, 0, 3_000),
    (1, 70, 0, 4),
    (6, 0, 0, 4),
]
"""Of a ``Biller``."""
CALLS = st.lists(st.tuples(st.integers(1, 400), st.integers(1, 400), st.integers(0, 20)), min_size=4, max_size=25)


@settings(max_examples=20)
@given(
    habit=st.sampled_from(HABITS),
    limit=st.integers(200_000, 60_000_000),
    calls=CALLS,
    level=st.sampled_from(["account", "request", "run"]),
)
def test_no_call_admitted_after_an_overrun_exceeds_its_budget(
    habit: tuple[Any, ...], limit: int, calls: list[tuple[int, int, int]], level: str
) -> None:
    """Prompts and caps of all sizes, at once and one after the other; under the budget of each request, of an account,
    or of a run whose tool makes the calls."""
    biller = Biller(*habit)

    async def play() -> None:
        bank = await bank_of(biller, monthly_nanos=limit if level == "account" else 10**12)
        own: Any = {"budget": {"maxCostUsd": limit / 1e9}} if level == "request" else {}
        later: set[str] = set()
        is_known = False

        async def call(size: int, cap: int, at: int) -> None:
            nonlocal is_known
            await bank.clock.sleep(at / 4)
            was_known = is_known
            with suppress(RouterError):
                answer = await bank.route("x" * size, params={"max_output_tokens": cap}, **own)
                usage = answer.routing.tokens
                is_known = is_known or usage.input > size + 7 or usage.output > cap
                later.update([answer.trace_id] * was_known)

        scope = RunScope(bank.router.engine.ids, ACME, "agents", id="tr_run", cap_nanos=limit, has_purse=True)
        with inside_run(scope, 1) if level == "run" else nullcontext():
            async with anyio.create_task_group() as group:
                for size, cap, at in calls:
                    group.start_soon(call, size, cap, at)
        rows = await bank.rows()
        spent = sum(row.cost_nanos for row in rows)
        assert not [row for row in rows if row.request_id in later and row.overrun_nanos]
        if level != "request":
            assert spent <= limit + sum(row.overrun_nanos for row in rows)
        assert spent == biller.nanos == sum(row.charge_nanos for row in rows)
        assert (await bank.purse())[1:] == (spent, 0)
        traces = [await bank.router.trace(row.request_id, caller=ACME) for row in rows]
        assert sum(round(trace.cost_usd * 1e9) for trace in traces) == spent
        report = await bank.router.as_caller(ACME).traces.usage()
        assert round(report.totals.cost_usd * 1e9) == spent
        await bank.router.aclose()

    anyio.run(play)
