"""Requests that are tried at the page: in the sandbox and live, streamed, with faults, stopped."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from threading import Event

import anyio.to_thread
from playwright.sync_api import Page, expect

from routewright import (
    CallableProvider,
    Console,
    MemoryStorage,
    Model,
    Policy,
    Pricing,
    ProviderFault,
    Router,
    UpstreamCall,
)
from routewright.testing import ScriptedProvider

from .checks import axe, no_sideways_scroll
from .problems import Problems

OpenUi = Callable[..., Page]
LARGE = Model(id="mine/large", quality=0.9, pricing_per_1m=Pricing(2.0, 8.0), context_window=100_000)
SMALL = Model(id="mine/small", quality=0.7, pricing_per_1m=Pricing(0.2, 0.8), context_window=100_000)
HOSTILE = "<img src=x onerror=alert(1)> javascript:alert(1) \u202e " + "long" * 2_500 + "\nnext"
LIVE = "production"


def send(page: Page, prompt: str, **choices: str) -> None:
    page.get_by_label("Prompt", exact=True).fill(prompt)
    for label, choice in choices.items():
        page.get_by_label(label).select_option(choice)
    page.get_by_role("button", name="Send").click()


def test_the_sandbox_answers_by_default(open_ui: OpenUi) -> None:
    provider = ScriptedProvider([], models=[LARGE, SMALL])
    storage = MemoryStorage()
    Console(storage).blocking.policies.draft(Policy(name="desk", goal="quality"))
    Console(storage).blocking.policies.publish("desk")
    router = Router(providers=[provider], storage=storage)
    page = open_ui(router, at="try")
    expect(page.get_by_label("Prompt", exact=True)).to_be_focused()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Budget in US dollars").fill("0.5")
    page.get_by_label("Models, with commas").fill("mine/large mine/small")
    send(page, "Why is the sky blue?", Policy="desk", Strategy="quality-first")
    answer = page.get_by_role("region", name="Answer")
    expect(answer).to_have_text(re.compile("This is a canned answer in the name of mine/large"))
    expect(page.get_by_role("status").first).to_have_text("Done")
    expect(page.get_by_text(re.compile("^goal=quality .*mine/large scored")).first).to_be_visible()
    candidates = page.get_by_role("region", name="Candidates")
    expect(candidates.get_by_role("row").nth(1)).to_contain_text("mine/large")
    page.get_by_text("Explanation", exact=False).first.click()
    expect(page.get_by_role("region", name="Explanation")).to_contain_text("mine/large answered")
    assert not provider.calls
    (trace,) = router.blocking.traces.query(environment="sandbox").data
    assert (trace.policy_version or "").startswith("desk@")
    assert not router.blocking.traces.query(environment="production").data
    assert page.url.endswith(
        "#/try?policy_id=desk&strategy=quality-first&models=mine%2Flarge+mine%2Fsmall&place=sandbox"
    )
    axe(page)
    no_sideways_scroll(page)
    page.get_by_role("link", name="Its trace").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(trace.id)
    expect(page).to_have_url(re.compile("account=default&environment=sandbox"))
    page.go_back()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("Why is the sky blue?")
    expect(page.get_by_label("System prompt")).to_have_value("Be brief.")
    expect(page.get_by_label("Strategy")).to_have_value("quality-first")
    expect(answer).to_have_text(re.compile("This is a canned answer"))


def test_a_live_request_shows_its_fallback_and_hostile_text(open_ui: OpenUi, problems: Problems) -> None:
    provider = ScriptedProvider([["Half an answ", ProviderFault("server")], HOSTILE, HOSTILE], models=[LARGE, SMALL])
    router = Router(providers=[provider], max_retries=0)
    page = open_ui(router, at="try")
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Models, with commas").fill("mine/large, mine/small")
    page.get_by_label("cache").check()
    send(page, HOSTILE, Where=LIVE, Goal="quality")
    expect(page.get_by_role("status").first).to_have_text("Done")
    expect(page.get_by_text("mine/large failed (upstream_5xx): mine/small begins again")).to_be_visible()
    answer = page.get_by_role("region", name="Answer")
    expect(answer).to_contain_text("<img src=x onerror=alert(1)>")
    expect(answer).not_to_contain_text("Half an answ")
    expect(page.get_by_text("in place of mine/large")).to_be_visible()
    no_sideways_scroll(page)
    messages = [(message.role, message.content) for message in provider.calls[1].messages]
    assert messages == [("system", "Be brief."), ("user", HOSTILE)]
    (trace,) = router.blocking.traces.query().data
    assert (trace.model, trace.cost_usd and trace.cost_usd > 0) == ("mine/small", True)
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_text("from the cache", exact=True)).to_be_visible()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value(HOSTILE)
    assert len(provider.calls) == 2

    page.get_by_label("Budget in US dollars").fill("0.0000001")
    page.get_by_label("cache").uncheck()
    with problems.expect("api/try: 422"):
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("alert")).to_contain_text("budget")
    expect(page.get_by_role("status").first).to_have_text("Failed")
    page.get_by_label("Budget in US dollars").fill("1 dollar")
    with problems.expect("api/try: 400"):
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("alert")).to_contain_text("budget.maxCostUsd")


def test_a_stream_fails_and_another_is_stopped(open_ui: OpenUi) -> None:
    stops: list[UpstreamCall] = []
    is_read = Event()

    async def answer(call: UpstreamCall) -> AsyncIterator[str]:
        yield "Half an answ"
        if "fail" in str(call.messages[0].content):
            await anyio.to_thread.run_sync(is_read.wait)
            raise ProviderFault("server")
        try:
            await anyio.sleep_forever()
        finally:
            stops.append(call)

    router = Router(providers=[CallableProvider(answer, name="mine", models=[LARGE])], max_retries=0)
    page = open_ui(router, at="try")
    send(page, "Please fail.", Where=LIVE)
    expect(page.get_by_role("region", name="Answer")).to_have_text("Half an answ")
    is_read.set()
    expect(page.get_by_role("alert")).to_be_visible()  # by an event: the status was 200
    expect(page.get_by_role("status").first).to_have_text("Failed")
    expect(page.get_by_role("region", name="Answer")).to_have_text("Half an answ")
    send(page, "Tell me a long story.")
    expect(page.get_by_role("status").first).to_have_text("Streaming")
    expect(page.get_by_role("button", name="Working…")).to_be_disabled()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status").first).to_have_text("Stopped")
    expect(page.get_by_role("region", name="Answer")).to_have_text("Half an answ")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    page.get_by_role("link", name="Its trace").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("tr_")
    assert stops
    assert [trace.status for trace in router.blocking.traces.query().data] == ["cancelled", "failed"]
