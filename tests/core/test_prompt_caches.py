"""The expected state of vendors' prompt caches, and its value in a decision."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.eval_warm import played
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright import wire
from routewright._core.attempts.health import health_snapshot
from routewright._core.catalogue.models import snapshot
from routewright._core.catalogue.prices import HOUR_S, PromptCache, prices_of, prompt_cache_of, saved_nanos
from routewright._core.prompt_caches import MAX_PREFIXES, Prefixes, Prompt
from routewright._core.routing.board import Board
from routewright._core.routing.decision import Decision, decision_of, explain
from routewright._core.routing.forecast import Forecast
from routewright._core.routing.pool import Pool
from routewright._core.routing.request_options import RequestOptions
from routewright._core.routing.scoring import WEIGHTS, Columns, Ranking, RequestClass
from routewright.catalogue import bundled
from routewright.errors import NoCandidates
from tests.tables import table

from .pools import TODAY, board, healths, inputs, pools

USUAL = PromptCache(300.0)
TOKENS = 8_000
SYSTEM = wire.Message("system", "You keep a ledger. " * 500)
TURNS = [SYSTEM, wire.Message("user", "Whose ship is that? " * 500)]
NEXT = [*TURNS, wire.Message("assistant", "Hers."), wire.Message("user", "And that one?")]


def prompt(messages: list[wire.Message], *, account: str = "a", **fields: Any) -> Prompt:
    return Prompt(wire.RouteRequest(messages, **fields), account, repeats=False)


def tell(prefixes: Prefixes, sent: Prompt, cached: int = 0, model: str = "m/one", cache: PromptCache = USUAL) -> None:
    prefixes.learn(sent, model, cache, wire.Usage(TOKENS, 10, cached=cached), 0.0)


def found(prefixes: Prefixes, sent: Prompt, now: float = 1.0) -> dict[str, int]:
    return {each.model: each.tokens for each in prefixes.find(sent, now)}


@pytest.fixture
def prefixes() -> Prefixes:
    made = Prefixes()
    tell(made, prompt(TURNS))
    return made


def test_marks_and_text_form_do_not_change_a_prompts_prefixes(prefixes: Prefixes) -> None:
    sent = [SYSTEM, wire.Message("user", [wire.TextPart("Whose ship is that? " * 500)])]
    assert found(prefixes, prompt([*sent, *NEXT[2:]])) == {"m/one": TOKENS}


def test_a_different_prefix_is_not_warm(prefixes: Prefixes) -> None:
    other = [SYSTEM, wire.Message("user", "Whose ship was that? " * 500), *NEXT[2:]]
    system = len(SYSTEM.content or "") / sum(len(str(message.content)) for message in TURNS)
    assert found(prefixes, prompt(other))["m/one"] == pytest.approx(TOKENS * system, rel=0.01)
    assert found(prefixes, prompt([wire.Message("system", "You sing."), *NEXT[1:]])) == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [wire.Tool(name="look")]},
        {"params": wire.Params(reasoning="low")},
        {"params": wire.Params(response_format={"type": "json_object"})},
        {"tool_choice": "none"},
        {"account": "b"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_tools_and_options_are_part_of_the_prefix(prefixes: Prefixes, fields: dict[str, Any]) -> None:
    assert found(prefixes, prompt(NEXT, **fields)) == {}


def test_sampling_params_are_no_part_of_the_prefix(prefixes: Prefixes) -> None:
    assert found(prefixes, prompt(NEXT, params=wire.Params(temperature=0.5, max_output_tokens=5)))


def test_a_cache_expires_after_its_lifetime_and_each_use_renews_it(prefixes: Prefixes) -> None:
    assert found(prefixes, prompt(NEXT), now=299.0)
    assert not found(prefixes, prompt(NEXT), now=300.0)
    again = prompt(NEXT)
    prefixes.find(again, 200.0)
    prefixes.learn(again, "m/one", USUAL, wire.Usage(TOKENS + 100, 5, cached=TOKENS), 200.0)
    assert found(prefixes, prompt(TURNS), now=499.0)


def test_expected_cached_tokens_follow_the_vendors_reports() -> None:
    prefixes, beliefs = Prefixes(), []
    for cached in (0, 0, 0, TOKENS, TOKENS):
        tell(prefixes, prompt(TURNS))
        beliefs.append(found(prefixes, next_prompt := prompt(NEXT))["m/one"])
        tell(prefixes, next_prompt, cached)
    assert beliefs[0] == TOKENS
    assert beliefs[1] < 0.7 * TOKENS
    assert beliefs[:4] == sorted(beliefs[:4], reverse=True)
    assert beliefs[4] > beliefs[3]


def marked(message: wire.Message) -> wire.Message:
    return replace(message, content=[wire.TextPart(str(message.content), wire.CacheControl("ephemeral"))])


def test_vendors_with_marks_cache_and_find_marked_prefixes_only() -> None:
    prefixes, claude = Prefixes(), PromptCache(by_marks=True)
    tell(prefixes, prompt(TURNS), cache=claude)
    assert found(prefixes, prompt([*NEXT[:3], marked(NEXT[3])])) == {}
    sent = [SYSTEM, marked(TURNS[1])]
    tell(prefixes, prompt(sent), cache=claude)
    assert found(prefixes, prompt([*TURNS, NEXT[2], marked(NEXT[3])])) == {"m/one": TOKENS}
    assert found(prefixes, prompt(NEXT)) == {}


def test_the_number_of_prefixes_is_bounded() -> None:
    prefixes = Prefixes()
    for number in range(MAX_PREFIXES + 10):
        tell(prefixes, prompt([wire.Message("user", f"{number} ships")]))
    assert found(prefixes, prompt([wire.Message("user", "0 ships")])) != {"m/one": TOKENS}
    assert found(prefixes, prompt([wire.Message("user", f"{MAX_PREFIXES} ships")])) == {"m/one": TOKENS}


@table(
    ("provider", "model", "expected"),
    [
        ("openai", "gpt-4o", PromptCache(300.0)),
        ("openai", "gpt-5.6-sol", PromptCache(1_800.0)),
        ("openai", "gpt-5.1", PromptCache(300.0)),
        ("anthropic", "claude-haiku-4-5", PromptCache(300.0, 4_096, by_marks=True)),
        ("anthropic", "claude-sonnet-5", PromptCache(by_marks=True)),
        ("google", "gemini-2.5-pro", PromptCache(minimum=2_048)),
        ("google", "gemini-3.8-flash", PromptCache(minimum=4_096)),
        ("deepseek", "deepseek-chat", PromptCache(2 * HOUR_S)),
        ("mistral", "mistral-large", None),
        ("somebody", "else", PromptCache()),
    ],
)
def test_minimum_and_lifetime_follow_the_vendors_documentation(
    provider: str, model: str, expected: PromptCache | None
) -> None:
    assert prompt_cache_of(provider, model) == expected


def test_a_caches_saving_is_the_price_difference() -> None:
    prices = prices_of(wire.Pricing(2.0, 8.0, cached_input_usd=0.5))
    assert saved_nanos(prices, wire.Usage(10_000, 5, cached=8_000)) == 8_000 * 1_500
    assert saved_nanos((), wire.Usage(10_000, 5, cached=8_000)) == 0
    assert saved_nanos(prices_of(wire.Pricing(1.0, 8.0, cached_input_usd=2.0)), wire.Usage(100, 5, cached=80)) == 0


# The decision.


class Case:
    def __init__(self, pool: list[wire.Model], health: dict[str, wire.ModelHealth], given: wire.DecisionInput) -> None:
        self.pool, self.board, self.given = pool, board(pool, health), given

    def decide(self, *warm: wire.WarmPrefix) -> Decision | None:
        try:
            return decision_of(replace(self.given, warm=warm), self.board)
        except NoCandidates:
            return None


@st.composite
def cases(draw: st.DrawFn) -> Case:
    pool = draw(pools(2, 12))
    return Case(pool, draw(healths(pool)), draw(inputs(pool)))


def ranking(decision: Decision | None) -> list[str]:
    return [] if decision is None else [candidate.model for candidate in decision.candidates]


@given(cases(), st.data())
def test_more_warm_tokens_never_lower_a_rank_or_move_other_models(case: Case, data: st.DataObject) -> None:
    before = ranking(case.decide())
    if len(before) < 2:
        return
    chosen = data.draw(st.sampled_from(before))
    few, many = sorted(data.draw(st.tuples(*[st.integers(0, 20_000)] * 2)))
    others = [model for model in before if model != chosen]
    for tokens, least in ((few, before), (many, ranking(case.decide(wire.WarmPrefix(chosen, few))))):
        now = ranking(case.decide(wire.WarmPrefix(chosen, tokens)))
        assert now.index(chosen) <= least.index(chosen)
        assert [model for model in now if model != chosen] == others


@given(cases(), st.data())
def test_a_warm_prompt_changes_only_expected_cost(case: Case, data: st.DataObject) -> None:
    cold = case.decide()
    warm = tuple(wire.WarmPrefix(model.id, data.draw(st.integers(0, 20_000))) for model in case.pool)
    decided = case.decide(*warm)
    assert (cold is None) == (decided is None)
    if cold is None or decided is None:
        return
    assert sorted(ranking(cold)) == sorted(ranking(decided))
    assert cold.rejected == decided.rejected
    after = {each.model: each for each in decided.candidates}
    for each in cold.candidates:
        now = after[each.model]
        assert replace(now, cost_usd=each.cost_usd, score=each.score, terms=each.terms) == each
        assert (now.cost_usd or 0.0) <= (each.cost_usd or 0.0)
        assert now.score >= each.score


def of(name: str, usd: float, cached: float | None = None) -> wire.Model:
    pricing = wire.Pricing(usd, 4 * usd, cached_input_usd=cached)
    return wire.Model(
        id=name, provider=name.partition("/")[0], context_window=100_000, pricing_per_1m=pricing, quality=0.5
    )


def given_of(*warm: wire.WarmPrefix, tokens: int = 10_000, **fields: Any) -> wire.DecisionInput:
    bounds = wire.TokenBounds(tokens, tokens, tokens)
    return wire.DecisionInput(catalogue="c", health="h", as_of=TODAY, tokens=bounds, rules=2, warm=warm, **fields)


def one(*models: wire.Model) -> Board:
    return board([*models], {})


def test_a_warm_models_cost_is_lowered_by_its_cached_tokens() -> None:
    both = one(of("a/one", 2.0, 0.2), of("b/two", 1.5, 0.15))
    assert decision_of(given_of(), both).model == "b/two"
    warm = decision_of(given_of(wire.WarmPrefix("a/one", 9_000)), both)
    assert warm.model == "a/one"
    assert warm.candidates[0].cost_usd == pytest.approx(0.001 * 2 + 0.009 * 0.2 + 400 * 8e-6, rel=0.1)
    assert decision_of(given_of(wire.WarmPrefix("a/one", 300)), both).model == "b/two"


def test_budgets_ignore_expected_caches() -> None:
    both = one(of("a/one", 2.0, 0.2))
    worst = decision_of(given_of(), both)
    budget = round((0.02 + 256 * 8e-6) * 0.9e9)
    assert worst.model == "a/one"
    with pytest.raises(NoCandidates):
        decision_of(given_of(wire.WarmPrefix("a/one", 10_000), budget_nanos=budget), both)


def test_table_and_sentence_mention_warm_tokens() -> None:
    both = one(of("a/one", 2.0, 0.2), of("b/two", 1.5, 0.15))
    told = decision_of(given_of(wire.WarmPrefix("a/one", 9_000)), both)
    assert "with 9000 tokens in a cache" in told.reason
    assert "in a vendor's cache: a/one (9000 tokens)" in explain(told)
    assert "cache" not in explain(decision_of(given_of(), both))


def test_marked_prices_agree_by_row_and_by_column() -> None:
    models, as_of = bundled()
    plain = Pool(snapshot(models, as_of), as_of)
    pool = plain.with_dials(RequestOptions(marks=True))
    forecast, ranked = Forecast(pool, health_snapshot({})), Ranking(RequestClass(WEIGHTS["balanced"]["cost"], 40, None))
    columns = Columns(forecast, ranked.cls)
    rows, scores = columns.ranked(pool.quality)
    keys = [columns.key(row, scores[row], pool.qualities[row]) for row in rows.tolist()]
    assert keys == sorted(ranked.key(forecast, row) for row in range(len(pool)))


def test_simulated_agents_cost_less_than_without_it_at_about_the_same_quality() -> None:
    figure = played("agent", "cost", 4)
    assert figure["usd"]["warm"] < 0.9 * figure["usd"]["blind"]
    assert figure["quality"]["warm"] > figure["quality"]["blind"] - 0.05
