"""What notebooks show: whatever texts and numbers come, the page is whole, harmless, and says what there is to say."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any, NamedTuple, cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright._core.routing.decision import Decision, decision_of
from routewright._core.routing.inputs import RULES
from routewright.contrib.html import Html, element, percent
from routewright.contrib.notebook import (
    CALLS_SHOWN,
    CANDIDATES_SHOWN,
    DECISIONS_SHOWN,
    METADATA_SHOWN,
    OUTPUT_SHOWN,
    SPANS_SHOWN,
    answer_html,
    trace_html,
)
from routewright.wire import (
    CacheSpan,
    Candidate,
    DecisionInput,
    DecisionSpan,
    FallbackSpan,
    FunctionCall,
    GuardrailSpan,
    Message,
    Model,
    ModelSpan,
    Pricing,
    Reason,
    RouteResponse,
    Routing,
    Span,
    Stage,
    TokenBounds,
    Tokens,
    ToolCall,
    Trace,
    WindowUsage,
)
from routewright.wire.analytics import time_short
from routewright.wire.trace import Content
from tests.core.pools import TODAY, board
from tests.core.traces import USUAL

TAGS = set("div span style table thead tbody tr th td details summary".split())
ATTRIBUTES = {
    "class": re.compile(r"(routewright|rw-[a-z]+)( rw-[a-z]+)*"),
    "style": re.compile(r"((padding-left|left|width):\d+(\.\d+)?(em|%);?)+"),
    "scope": re.compile("col"),
    "role": re.compile("group"),
    "aria-hidden": re.compile("true"),
    "aria-label": re.compile(".*", re.DOTALL),
}
ATTACKS = (
    "</style><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "' style='position:fixed",
    "</div></td></table><!--",
    "<![CDATA[ ]]><?php ?>",
    "&lt;b&gt; &amp; &#0;",
    "\x00\x1b[31m\u202e\ud800",
)
texts = st.text(max_size=20) | st.sampled_from(ATTACKS)
numbers = st.floats(width=32) | st.sampled_from([0.0, 1e-9, 1.0, 1e308])
ids = st.integers(0, 9)


class Page(HTMLParser):
    """Reads a page strictly: only known tags and attributes, each closed where it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.looks: list[dict[str, str]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        assert self.open or not self.tags, "one element holds all"
        for name, value in attrs:
            assert ATTRIBUTES[name].fullmatch(value or ""), f"{name}={value!r}"
        self.looks.append({name: value or "" for name, value in attrs})
        self.open.append(tag)
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        assert self.open
        if self.open[-1] != "style":
            self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError("a comment")

    def handle_decl(self, decl: str) -> None:
        raise AssertionError("a declaration")

    def unknown_decl(self, data: str) -> None:
        raise AssertionError("a declaration")

    def handle_pi(self, data: str) -> None:
        raise AssertionError("an instruction")

    def styles(self, kind: str) -> list[str]:
        return [look["style"] for look in self.looks if kind in look.get("class", "").split()]


class _Choice(NamedTuple):
    """A decision of any words."""

    model: str
    chain: list[str]
    reason: str
    candidates: list[Candidate]
    rejected_counts: dict[Reason, int]
    output_cap: int | None
    fallback_affordable: bool


def a_choice(*given: Any) -> Decision:
    return cast("Decision", _Choice(*given))


@st.composite
def candidates(draw: st.DrawFn) -> Candidate:
    terms = draw(st.tuples(numbers, numbers, numbers, numbers))
    figures = (draw(numbers), draw(numbers), draw(st.none() | numbers), draw(numbers), draw(numbers))
    return Candidate(draw(texts), *figures, terms, draw(st.booleans()))


@st.composite
def spans(draw: st.DrawFn) -> Span:
    shared: dict[str, Any] = {
        "id": draw(ids),
        "parent_id": draw(st.none() | ids),
        "name": draw(texts),
        "start_ms": draw(numbers),
        "duration_ms": draw(numbers),
        "status": draw(st.sampled_from(["ok", "error", "cancelled"])),
    }
    match draw(st.integers(0, 4)):
        case 0:
            rejected = draw(st.dictionaries(texts, ids, max_size=3))
            found = draw(st.lists(candidates(), max_size=3))
            return DecisionSpan(**shared, candidates=found, rejected=rejected, digest=draw(texts))
        case 1:
            kept: dict[str, Any] = {name: draw(st.none() | numbers) for name in ("similarity", "age_s", "saved_usd")}
            return CacheSpan(
                **shared, hit=draw(st.booleans()), mode=draw(st.sampled_from((None, "exact", "semantic"))), **kept
            )
        case 2:
            way: dict[str, Any] = {name: draw(texts) for name in ("from_model", "to_model", "reason")}
            return FallbackSpan(**shared, used=draw(st.booleans()), **way)
        case 3:
            stage = draw(st.sampled_from(get_args(Stage)))
            return GuardrailSpan(**shared, rule=draw(texts), stage=stage, action="redact", count=draw(ids))
    return ModelSpan(
        **shared,
        model=draw(texts),
        provider=draw(texts),
        attempt=draw(ids),
        latency_ms=draw(numbers),
        ttft_ms=draw(st.none() | numbers),
        tokens=draw(st.none() | st.builds(Tokens, ids, ids, ids)),
        usage_estimated=draw(st.booleans()),
        cost_usd=draw(numbers),
        cost_range_usd=draw(st.none() | st.tuples(numbers, numbers)),
        finish_reason=draw(st.none() | texts),
        error=draw(st.none() | texts),
        hedge=draw(st.booleans()),
    )


json = st.recursive(
    st.none() | st.booleans() | numbers | texts, lambda inner: st.lists(inner, max_size=3), max_leaves=5
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    said: dict[str, Any] = {
        name: draw(texts) for name in ("id", "created_at", "account", "policy_version", "goal", "strategy")
    }
    return Trace(
        **said,
        status=draw(st.sampled_from(["running", "completed", "partial", "failed", "budget_exceeded", "cancelled"])),
        environment=draw(st.sampled_from(["sandbox", "production"])),
        duration_ms=draw(numbers),
        selected_model=draw(st.none() | texts),
        fallback_used=draw(st.booleans()),
        cost_usd=draw(numbers),
        metadata=draw(st.dictionaries(texts, json, max_size=3)),
        error=draw(st.none() | texts),
        children=draw(st.lists(texts, max_size=2)),
        spans=draw(st.lists(spans(), max_size=8)),
    )


@st.composite
def choices(draw: st.DrawFn) -> Decision:
    return a_choice(
        draw(texts),
        draw(st.lists(texts, max_size=3)),
        draw(texts),
        draw(st.lists(candidates(), max_size=4)),
        draw(st.dictionaries(st.sampled_from(Reason), ids, max_size=4)),
        draw(st.none() | ids),
        draw(st.booleans()),
    )


def response(
    output: str = "Because of the air.", word: str = "a", calls: list[ToolCall] | None = None
) -> RouteResponse:
    routing = Routing(word, [word], word, word, 0.0021, 812.0, False, Tokens(10, 20))
    return RouteResponse(
        trace_id=word,
        output=output,
        routing=routing,
        usage=WindowUsage(1, 1),
        primary_model=word,
        fallback_model=word,
        cache_hit=False,
        tool_calls=calls,
        finish_reason=word,
    )


def attempt(number: int, start_ms: float, duration_ms: float, **more: Any) -> ModelSpan:
    start = ModelSpan(
        id=number, name="a/b", start_ms=start_ms, model="a/b", provider="a", attempt=number, latency_ms=duration_ms
    )
    return replace(start, duration_ms=duration_ms, **more)


def trace(*found: Span, **more: Any) -> Trace:
    facts = USUAL | {"account": "default", "policy_version": "inline@2026-11-22", "duration_ms": 1000}
    return Trace(**(facts | {"spans": list(found)} | more))


PLAIN = a_choice("a", [], "", [], {}, None, True)
CHOSEN = Candidate("a/b", 0.71, 0.5, 0.002, 1.5, 0.9, (0.25, 0.5, 0.75, 1.0))


@given(traces())
def test_no_trace_injects_html(drawn: Trace) -> None:
    html = trace_html(drawn)
    Page(html)
    assert html == trace_html(drawn)
    html.encode("utf-8")


@given(texts, texts, choices(), traces())
def test_no_answer_injects_html(said: str, word: str, choice: Decision, at: Trace) -> None:
    calls = [ToolCall(word, FunctionCall(word, said))]
    Page(answer_html(response(said, word, calls), choice, at))


@given(st.text(min_size=1) | st.sampled_from(ATTACKS))
def test_text_does_not_change_the_pages_elements(said: str) -> None:
    choice = a_choice(said, [said], said, [replace(CHOSEN, model=said)], {}, 5, False)
    plain = a_choice("a", ["a"], "a", [replace(CHOSEN, model="a")], {}, 5, False)
    theirs = Page(answer_html(response(said, said), choice, trace()))
    ours = Page(answer_html(response("a"), plain, trace()))
    assert (theirs.tags, theirs.styles("rw-fill")) == (ours.tags, ours.styles("rw-fill"))


@given(st.text(st.characters(codec="utf-8", min_codepoint=32), min_size=1))
def test_the_answer_is_shown_verbatim(said: str) -> None:
    shown = said.replace("\x7f", "\ufffd")
    assert Page(answer_html(response(said), PLAIN, trace())).text.startswith(shown)


def test_an_answers_whitespace_is_kept() -> None:
    html = answer_html(response("a\n\n    b"), PLAIN, trace())
    assert ">a\n\n    b<" in html
    assert "white-space:pre-wrap" in html


def test_a_long_answer_is_cut_with_a_note() -> None:
    lengths = OUTPUT_SHOWN, OUTPUT_SHOWN + 1200
    whole, cut = (Page(answer_html(response("x" * n), PLAIN, trace())).text for n in lengths)
    assert "x" * OUTPUT_SHOWN in whole
    assert "more character" not in whole
    assert "x" * (OUTPUT_SHOWN + 1) not in cut
    assert "and 1,200 more characters in answer.output" in cut


def test_tool_calls_are_shown() -> None:
    calls = [ToolCall(str(n), FunctionCall("weather", '{"city":"Bonn"}')) for n in range(CALLS_SHOWN + 2)]
    text = Page(answer_html(response("", calls=calls), PLAIN, trace())).text
    assert text.count('calls weather({"city":"Bonn"})') == CALLS_SHOWN
    assert "and 2 more calls" in text


def test_decision_and_trace_of_an_answer_are_folded() -> None:
    page = Page(answer_html(response(), a_choice("a/b", [], "", [CHOSEN], {}, None, True), trace(attempt(1, 0, 1000))))
    assert page.tags.count("details") == page.tags.count("summary") == 2
    assert page.tags.count("style") == 1
    assert "Decision: a/b, of 1 that fit" in page.text
    assert "Trace: 1 span, 1.0 s" in page.text


def test_a_traces_head_shows_the_outcome() -> None:
    shown = trace(
        selected_model="a/b",
        fallback_used=True,
        cost_usd=0.00214,
        charged_usd=0.00214,
        tokens=Tokens(1200, 30, 1000),
        metadata={"team": "support", "n": [1, 2]},
    )
    text = Page(trace_html(shown)).text
    for said in (
        "completed route tr_1",
        "a/b · by a fallback · 1.0 s · $0.0021 · 1,200 tokens in (1,000 cached), 30 out",
        "goal cost · strategy balanced · policy inline@2026-11-22 · production · account default",
        "team = support n = [1, 2]",
        "no spans",
    ):
        assert said in text


@pytest.mark.parametrize("status", ["failed", "budget_exceeded"])
def test_failures_are_shown_in_words_and_in_red(status: str) -> None:
    page = Page(trace_html(trace(status=status, error="router.no_candidates")))
    assert status in page.text
    assert "no model" in page.text
    assert "error router.no_candidates" in page.text
    assert "rw-chip rw-bad" in [look.get("class") for look in page.looks]


def test_bars_match_their_spans_in_time() -> None:
    page = Page(trace_html(trace(attempt(1, 0, 250), attempt(2, 500, 500))))
    assert page.styles("rw-bar") == ["left:0.00%;width:25.00%", "left:50.00%;width:50.00%"]


def test_the_first_token_is_marked_inside_the_bar() -> None:
    page = Page(trace_html(trace(attempt(1, 0, 400, ttft_ms=100))))
    assert page.styles("rw-wait") == ["width:25.00%"]
    assert "first token 100 ms" in page.text
    assert "until the first token" in page.text


def test_the_sandbox_has_no_first_token() -> None:
    page = Page(trace_html(trace(attempt(1, 0, 400, ttft_ms=0.2, provider="sandbox"))))
    assert not page.styles("rw-wait")
    assert "token 0.2" not in page.text


def test_a_span_without_duration_is_visible() -> None:
    html = trace_html(trace(attempt(1, 1000, 0)))
    (style,) = Page(html).styles("rw-bar")
    assert style == "left:98.80%;width:0.00%"
    assert re.search(r"\.rw-bar\{[^}]*min-width:3px", html)


@given(traces())
def test_bars_stay_inside_the_track(drawn: Trace) -> None:
    for style in Page(trace_html(drawn)).styles("rw-bar"):
        left, width = map(float, re.findall(r"[\d.]+", style))
        assert left + width <= 100.01


def test_spans_are_sorted_by_start_and_nested() -> None:
    late = GuardrailSpan(id=3, parent_id=2, name="deny", start_ms=9, rule="word", stage="output", action="block")
    page = Page(trace_html(trace(late, attempt(2, 5, 4), attempt(1, 0, 5, error="timeout", status="error"))))
    first, second, third = page.text.index("attempt 1"), page.text.index("attempt 2"), page.text.index("word: block")
    assert first < second < third
    assert "└ guardrail deny" in page.text
    assert [look["style"] for look in page.looks if "padding" in look.get("style", "")][-1] == "padding-left:1.2em"
    assert "error timeout" in page.text


def test_cyclic_parents_do_no_harm() -> None:
    text = Page(trace_html(trace(attempt(1, 0, 1, parent_id=2), attempt(2, 0, 1, parent_id=1)))).text
    assert "attempt 1" in text
    assert "attempt 2" in text


def test_each_span_says_what_happened() -> None:
    text = Page(
        trace_html(
            trace(
                CacheSpan(id=1, name="cache", start_ms=0, hit=True, mode="semantic", similarity=0.931, age_s=12),
                attempt(2, 1, 2, cost_usd=0.5, cost_range_usd=(0.25, 1.5), tokens=Tokens(3, 4), usage_estimated=True),
                FallbackSpan(
                    id=3, name="fallback", start_ms=3, used=False, from_model="a/b", to_model="c/d", reason="budget"
                ),
                attempt(4, 3, 2, finish_reason="length", hedge=True, status="cancelled"),
            )
        )
    ).text
    for said in (
        "hit · semantic · similarity 0.931 · 12.0 s old",
        "attempt 2 at a · 3 tokens in, 4 out · estimated · $0.5 ($0.25 to $1.50)",
        "a/b → c/d · budget · brought no answer",
        "cancelled attempt 4 at a · hedge · finish length",
    ):
        assert said in text


def test_a_long_trace_is_cut_with_a_note() -> None:
    page = Page(trace_html(trace(*(attempt(n, n, 1) for n in range(1, SPANS_SHOWN + 1201)))))
    assert len(page.styles("rw-bar")) == SPANS_SHOWN
    assert "and 1,200 more spans" in page.text


def test_much_metadata_and_many_decisions_are_cut() -> None:
    choice = DecisionSpan(id=1, name="decision", start_ms=0, candidates=[CHOSEN], rejected={}, digest="")
    metadata = {f"key{n}": "v" * 1000 for n in range(METADATA_SHOWN + 3)}
    text = Page(trace_html(trace(*[choice] * (DECISIONS_SHOWN + 1), metadata=metadata))).text
    assert "and 3 more keys" in text
    assert "v" * 200 not in text
    assert "and 1 more decision" in text


def test_a_trace_shows_its_candidates_with_score_and_terms() -> None:
    second = replace(CHOSEN, model="c/d", cost_usd=None, late=True)
    span = DecisionSpan(
        id=1, name="decision", start_ms=0, candidates=[CHOSEN, second], rejected={"budget_cost": 7}, digest=""
    )
    page = Page(trace_html(trace(span, selected_model="c/d")))
    for said in ("chosen0.7100.500.25$0.0020.501.5 s0.750.901.00", "runner-up, served", "unknown", "1.5 s late"):
        assert said in page.text
    assert page.styles("rw-fill")[:4] == ["width:25.0%", "width:50.0%", "width:75.0%", "width:100.0%"]
    assert "Rejected: 7budget_cost 7" in page.text


def test_a_decision_shows_model_reason_and_alternatives() -> None:
    pool = [
        Model(id=f"a/m{n}", quality=0.9 - n / 20, modalities=("text",), pricing_per_1m=Pricing(1.0, 4.0))
        for n in range(CANDIDATES_SHOWN + 3)
    ]
    asked = DecisionInput(catalogue="c", health="h", as_of=TODAY, tokens=TokenBounds(40, 40, 20), rules=RULES)
    asked = replace(asked, models=tuple(each.id for each in pool[:-1]), max_output_tokens=100)
    decision = decision_of(asked, board(pool, {}))
    page = Page(decision._repr_html_())
    assert (
        f"{' → '.join([decision.model, *decision.chain])} · {len(pool) - 1} of {len(pool) - 1} models fit" in page.text
    )
    assert decision.reason in page.text
    assert "output cap: 100 tokens" in page.text
    assert f"{decision.model}chosen" in page.text
    assert f"{decision.front[1].model}runner-up" in page.text
    assert f"{decision.chain[1]}fallback 2" in page.text
    assert "and 2 more models that fit" in page.text
    assert "Rejected: 1whitelist 1" in page.text
    assert len(page.styles("rw-fill")) == 4 * CANDIDATES_SHOWN


def test_captured_content_is_not_shown() -> None:
    content = Content(messages=[Message(role="user", content="canary-of-the-prompt")], output="canary-of-the-answer")
    assert "canary" not in trace_html(trace(attempt(1, 0, 1), content=content))


def test_a_page_loads_nothing_and_styles_only_itself() -> None:
    html = trace_html(trace(attempt(1, 0, 1)))
    (style,) = re.findall("<style>(.*?)</style>", html, re.DOTALL)
    assert not re.search(r"url\(|@import|https?:|src=|href=|\bid=|<script|color-mix", html)
    for selectors in re.findall(r"([^{}]+)\{", style):
        assert all(each.strip().startswith(".routewright") for each in selectors.split(","))


@pytest.mark.parametrize("kind", ["decision", "cache", "model", "fallback", "guardrail"])
def test_every_kind_of_span_has_a_colour(kind: str) -> None:
    assert f".rw-{kind}{{background:rgba(" in trace_html(trace())


def test_text_is_escaped_unless_it_is_html_already() -> None:
    assert element("td", "<b>", Html("<i></i>"), class_='"') == '<td class="&quot;">&lt;b&gt;<i></i></td>'


def test_percentages_stay_between_0_and_100() -> None:
    assert percent(1, 4) == 25
    assert percent(-1, 4) == percent(1, 0) == percent(1, float("inf")) == percent(float("nan"), 1) == 0
    assert percent(1e308, 1e-308) == percent(float("inf"), 1) == 100
    assert percent(float("inf"), float("inf")) == percent(1, float("nan")) == 0


def test_times_are_milliseconds_below_a_second() -> None:
    times = [time_short(ms) for ms in (0, 0.249, 9.94, 9.96, 812.4, 999.6, 1000, 15_000.2, 3_600_000)]
    assert times == ["0 ms", "0.2 ms", "9.9 ms", "10 ms", "812 ms", "1.0 s", "1.0 s", "15.0 s", "3,600.0 s"]
