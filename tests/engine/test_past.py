"""Questions about the past: ``explain``, ``why_not`` and ``replay`` of answers, traces, inputs and trace ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from routewright import Agent, Answer, Caller, MemoryStorage, Policy, ProviderFault, Router
from routewright.errors import BudgetExceeded, NotFound, ValidationFailed
from routewright.storage import open_storage
from routewright.testing import Pause
from routewright.wire import Delta, Finish, LedgerRows, Trace, Usage

from .scripted_router import House, only_trace, said, traces_in

pytestmark = pytest.mark.anyio

FORMS: dict[str, Callable[[Answer], Any]] = {
    "an answer": lambda answer: answer,
    "a trace": lambda answer: answer.trace,
    "an item of a list": lambda answer: answer.trace.item,
    "a decision": lambda answer: answer.decision,
    "its input": lambda answer: answer.decision.input,
    "a trace id": lambda answer: answer.trace_id,
    "its alias": lambda answer: "trc_" + answer.trace_id.removeprefix("tr_"),
}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def rescued(**router: Any) -> House:
    """The good model fails with 401, and the spare one answers."""
    answer = said(Delta("words"), Usage(3, 2), Finish("stop"))
    return House([said(ProviderFault("auth", status=401))] * 9, [answer] * 9, **router)


@forms
async def test_every_form_of_a_decision_can_be_asked_about(form: Callable[[Answer], Any]) -> None:
    house = rescued()
    answer = await house.router.route("hi", goal="quality")
    past = form(answer)
    assert house.router.replay(past).digest == answer.decision.digest
    assert house.router.explain(past).startswith(answer.decision.reason)
    why = house.router.why_not(past, "spare/two")
    assert (why.chosen, why.place) == ("good/one", 2)
    assert why.changes


async def test_what_happened_is_explained_after_the_decision() -> None:
    house = rescued()
    answer = await house.router.route("hi", goal="quality")
    course = house.router.explain(answer).partition("then:\n")[2].splitlines()
    assert course == [
        "  good/one failed (auth) after 0 ms",
        "  spare/two answered after 0 ms: 3 + 2 tokens, $0.000022",
        "  spare/two, a fallback served the call; 0 ms, $0.000022 in all",
    ]
    assert house.router.explain(answer.trace_id) == house.router.explain(answer)
    assert "then:" not in house.router.explain(answer.decision)


async def test_a_hit_and_a_refusal_are_explained_too() -> None:
    house = rescued()
    await house.router.route("hi", cache={"mode": "exact"})
    hit = await house.router.route("hi", cache={"mode": "exact"})
    assert house.router.explain(hit).splitlines()[-2:] == [
        "  the cache had this answer (exact)",
        "  spare/two from the cache served the call; 0 ms in all",
    ]
    with pytest.raises(BudgetExceeded) as refusal:
        await house.router.route("hi", budget={"maxCostUsd": 1e-9})
    text = house.router.explain(refusal.value.trace_id or "")
    assert text.startswith(refusal.value.message)
    assert text.endswith("budget_exceeded with router.budget_exceeded; 0 ms in all")


def test_a_stored_trace_is_asked_about_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    first = Router.sandbox(storage=open_storage(url))
    answer = first.blocking.route("hi", goal="quality")
    first.blocking.close()
    later = Router.sandbox(storage=open_storage(url))
    assert later.replay(answer.trace_id).digest == answer.decision.digest
    assert later.why_not(answer.trace_id, "openai/gpt-6-luna").chosen == answer.decision.model
    later.blocking.close()


async def test_another_accounts_trace_is_as_unknown_as_none() -> None:
    house = rescued(storage=MemoryStorage())
    answer = await house.router.route("hi")
    other = house.router.as_caller(Caller("other"))
    for ask in (other.replay, other.explain, lambda id: other.why_not(id, "spare/two")):
        with pytest.raises(NotFound, match=answer.trace_id):
            ask(answer.trace_id)


def test_an_input_under_an_unknown_snapshot_is_refused() -> None:
    policy = Policy(name="thrifty", goal="cost", budget={"maxCostUsd": 0.5})  # type: ignore[arg-type]
    house = House(["x"], policies=[policy])
    decision_input = house.router.decide("hi", policy_id="thrifty").input
    assert house.router.replay(decision_input).input == decision_input
    for name in ("catalogue", "health", "policy"):
        with pytest.raises(NotFound, match=f"{name} snapshot 'nonsense' is not stored"):
            house.router.replay(replace(decision_input, **{name: "nonsense"}))


async def test_a_policy_of_the_past_is_named_in_what_would_admit_a_model() -> None:
    policies = [Policy(name="cheap", models=["good/one", "spare/two"], max_latency_ms=1)]
    house = House(["x"], policies=policies)
    with pytest.raises(Exception, match="no model") as refusal:
        await house.router.route("hi", policy_id="cheap")
    trace_id = getattr(refusal.value, "trace_id", "")
    assert "policy 'cheap'" in str(house.router.why_not(trace_id, "spare/two"))


async def test_a_prompt_that_is_no_trace_id_is_a_prompt_and_the_past_takes_no_options() -> None:
    house = rescued()
    assert house.router.why_not("tr_ansform this", "spare/two").chosen == "good/one"
    answer = await house.router.route("hi")
    with pytest.raises(ValidationFailed, match="cannot change a decision that was taken"):
        house.router.why_not(answer, "spare/two", goal="quality")
    with pytest.raises(ValidationFailed, match="has no decision; pass an Answer"):
        house.router.replay(7)  # type: ignore[arg-type]


async def test_a_cancelled_call_has_model_tokens_and_cost_and_agrees_with_the_ledger() -> None:
    storage = MemoryStorage()
    script = said(Delta("some words "), Pause(1.0), Delta("more"), Finish("stop"))
    house = House([script], storage=storage)
    async with house.router.stream("hi", goal="quality") as stream:
        async for _ in stream.text():
            break
    trace: Trace = await only_trace(storage)
    (row,) = await storage.scan("default", LedgerRows(), after=None, limit=10)
    assert (trace.status, trace.selected_model) == ("cancelled", "good/one")
    assert trace.tokens.input > 0 < trace.tokens.output
    assert (trace.tokens, trace.cost_usd) == (row.tokens, row.cost_nanos / 1e9)
    usage = (await house.router.traces.usage()).totals
    assert (usage.tokens, usage.cost_usd) == (trace.tokens, trace.cost_usd)
    assert "the caller left while good/one answered" in house.router.explain(stream.trace_id or "")


async def test_an_agent_run_names_the_calls_that_decided() -> None:
    router = Router.sandbox()
    run = await Agent(router).run("hi")
    (call,) = (await router.trace(run.trace_id)).children
    with pytest.raises(NotFound, match=f"decides with every model call: '{call}'"):
        router.explain(run.trace_id)
    assert "then:" in router.explain(call)
    assert len(await traces_in(router.storage)) == 2
    await router.aclose()
