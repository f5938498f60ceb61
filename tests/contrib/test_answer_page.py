"""An answer in a notebook: its own words, how it was served, and never a word of the prompt."""

from __future__ import annotations

import pytest

from routewright import Router
from routewright.contrib.notebook import decision_html, trace_html

pytestmark = pytest.mark.anyio
PROMPT = "canary-of-the-prompt"


async def test_an_answer_page_shows_the_text_and_how_it_was_served() -> None:
    async with Router.sandbox(answers={PROMPT: "It is <b>bold</b>\n & brave."}) as router:
        answer = await router.route(PROMPT, metadata={"team": "support"})
    html = answer._repr_html_()
    assert ">It is &lt;b&gt;bold&lt;/b&gt;\n &amp; brave.<" in html
    for said in (answer.routing.selected_model, answer.trace_id, "finish stop", "sandbox", "team = support"):
        assert said in html
    assert html.count("<style>") == 1


async def test_no_page_contains_the_prompt() -> None:
    faults = {"openai/gpt-4.1": "server"}
    async with Router.sandbox(faults=faults, answers={PROMPT: "fine"}) as router:
        answer = await router.route(PROMPT, models=["openai/gpt-4.1", "openai/gpt-4o"], goal="quality")
    assert "in place of openai/gpt-4.1, which failed" in answer._repr_html_()
    for html in (answer._repr_html_(), decision_html(answer.decision), trace_html(answer.trace)):
        assert PROMPT not in html


async def test_decisions_and_traces_have_their_own_pages() -> None:
    async with Router.sandbox() as router:
        answer = await router.route("Hello")
    assert answer.decision._repr_html_() == decision_html(answer.decision)
    assert answer.trace._repr_html_() == trace_html(answer.trace)
    for html in (answer.decision._repr_html_(), answer.trace._repr_html_()):
        assert html.count("<style>") == 1
