"""How a provider's figures compare with the ledger's: figure by figure, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import Catalogue, ValidationFailed
from routewright.contrib.invoices import Compared, Reconciliation, Scope, reconciled
from routewright.contrib.usage_exports import ExportLine, UsageExport
from routewright.wire import LedgerSum, Tokens

MODELS = Catalogue().models
GPT, MINI, CLAUDE = "openai/gpt-4.1", "openai/gpt-4o-mini", "anthropic/claude-haiku-4-5"
DOLLAR = 10**9


def line(model: str = "gpt-4.1", usd: float | None = 1.0, **given: Any) -> ExportLine:
    cost = None if usd is None else round(usd * DOLLAR)
    return ExportLine(**{"day": "2026-11-20", "model": model, "cost_nanos": cost} | given)


def sums(model: str = GPT, usd: float = 1.0, **given: Any) -> LedgerSum:
    nanos, provider = round(usd * DOLLAR), given.pop("provider", model.partition("/")[0])
    facts: dict[str, Any] = {"day": "2026-11-20", "kind": "attempt", "rows": 1, "tokens": Tokens(100, 50, 10)}
    facts |= {"cost_nanos": nanos, "charge_nanos": nanos, "credit_nanos": 0, "least_nanos": nanos, "most_nanos": nanos}
    return LedgerSum(model=model, provider=provider, **facts | given)


def compared(
    lines: Sequence[ExportLine], ours: Sequence[LedgerSum], provider: str | None = "openai", **given: Any
) -> Reconciliation:
    export = UsageExport(first="2026-11-20", last="2026-11-22", lines=tuple(lines), provider=provider)
    asked: dict[str, Any] = {"first": "2026-11-20", "last": "2026-11-22", "tolerance": 0.01, "provider": None}
    scope = Scope(**asked | given)
    return reconciled(export, ours, MODELS, {"fast": MINI}, scope)


# The figures


def test_each_figure_has_both_sides_and_the_drift() -> None:
    told = line(usd=1.25, requests=4, input_tokens=120, output_tokens=50, cached_tokens=0)
    (model,) = compared([told], [sums(usd=1.0, rows=5)]).models
    assert (model.model, model.names) == (GPT, ["gpt-4.1"])
    assert model.cost_usd == Compared(1.25, 1.0, 0.25, 20.0)
    assert model.requests == Compared(4, 5, -1, -25.0)
    assert model.input_tokens == Compared(120, 100, 20, 16.6667)
    assert model.output_tokens == Compared(50, 50, 0, 0.0)
    assert model.cached_tokens == Compared(0, 10, -10, None)


def test_figures_missing_in_the_export_are_not_compared() -> None:
    (model,) = compared([line(usd=1.0)], [sums()]).models
    assert model.requests == Compared(None, 1, None, None)
    assert model.input_tokens == Compared(None, 100, None, None)


def test_a_model_missing_in_the_export_counts_as_zero() -> None:
    found = compared([line(usd=1.0)], [sums(), sums(MINI, 0.5)])
    assert {each.model: each for each in found.models}[MINI].cost_usd == Compared(0.0, 0.5, -0.5, None)


def test_corrections_count_for_the_model_they_correct() -> None:
    more = sums(usd=0.25, kind="correction", tokens=Tokens(5, 0, 0))
    (model,) = compared([line(usd=1.25, requests=1)], [sums(), more]).models
    assert (model.cost_usd.drift, model.requests.ours, model.input_tokens.ours) == (0.0, 1, 105)


def test_credits_are_not_compared() -> None:
    found = compared([line()], [sums(), sums("", 0.0, kind="credit", credit_nanos=99)])
    assert [each.model for each in found.models] == [GPT]


def test_the_total_includes_unmatched_names() -> None:
    found = compared([line(usd=1.0), line("web search", 0.5), line(MINI, 0.25)], [sums(), sums(MINI, 0.25)])
    assert found.total.cost_usd == Compared(1.75, 1.25, 0.5, 28.5714)
    assert sum(each.cost_usd.theirs or 0 for each in found.models) == 1.25
    (other,) = found.unmatched
    assert (other.name, other.cost_usd, other.requests) == ("web search", 0.5, None)


def test_several_names_of_one_model_are_added_up() -> None:
    (model,) = compared([line("gpt-4.1"), line("gpt-4.1-2025-04-14", 2.0)], [sums(usd=3.0)]).models
    assert (model.names, model.cost_usd.theirs) == (["gpt-4.1", "gpt-4.1-2025-04-14"], 3.0)


def test_the_largest_drift_comes_first() -> None:
    lines = [line("gpt-4.1", 1.0), line("gpt-4o-mini", 5.0), line("o3", 0.0)]
    found = compared(lines, [sums(usd=1.5), sums(MINI, 1.0), sums("openai/o3", 2.0)])
    assert [each.model for each in found.models] == [MINI, "openai/o3", GPT]


# Whose calls


def test_only_calls_of_the_exports_provider_are_compared() -> None:
    found = compared([line()], [sums(), sums(CLAUDE, 9.0), sums(GPT, 5.0, provider="litellm")])
    assert (found.providers, found.total.cost_usd.ours) == (["openai"], 1.0)


def test_a_table_is_compared_with_the_providers_of_its_models() -> None:
    found = compared([line(), line("claude-haiku-4-5", 2.0)], [sums(), sums(CLAUDE, 2.0), sums("x/y", 7.0)], None)
    assert (found.providers, found.agrees) == (["anthropic", "openai"], True)


def test_the_provider_can_be_given() -> None:
    found = compared([line()], [sums(usd=3.0), sums(GPT, 1.0, provider="litellm")], provider=None)
    assert (found.providers, found.total.cost_usd.ours) == (["litellm", "openai"], 4.0)
    export = UsageExport(first="2026-11-20", last="2026-11-20", lines=(line(),), provider="openai")
    ours = [sums(usd=3.0), sums(GPT, 1.0, provider="litellm")]
    scope = Scope("2026-11-20", "2026-11-20", 0.01, "litellm")
    assert reconciled(export, ours, MODELS, {}, scope).agrees
    with pytest.raises(ValidationFailed, match=r"^provider: unknown provider 'opanai'; did you mean 'openai'\?$"):
        reconciled(export, ours, MODELS, {}, scope._replace(provider="opanai"))


def test_a_table_that_names_no_known_model_is_compared_with_nothing() -> None:
    found = compared([line("mystery")], [sums()], None)
    assert (found.providers, found.models, found.agrees) == ([], [], False)
    assert [each.name for each in found.unmatched] == ["mystery"]


def test_catalogue_aliases_match_names() -> None:
    (model,) = compared([line("fast")], [sums(MINI)]).models
    assert model.model == MINI


# What only one has


def test_models_and_days_that_only_one_side_has_are_listed() -> None:
    lines = [line(), line("gpt-4o-mini", 0.5, day="2026-11-21"), line(usd=0.0, day="2026-11-22")]
    found = compared(lines, [sums(), sums("openai/o3", 0.1, day="2026-11-22")])
    assert (found.only_theirs, found.only_ours) == ([MINI], ["openai/o3"])
    assert (found.days_only_theirs, found.days_only_ours) == (["2026-11-21"], ["2026-11-22"])


def test_days_out_of_range_are_ignored_on_both_sides() -> None:
    lines = [line(), line(day="2026-11-21", usd=5.0)]
    found = compared(lines, [sums()], last="2026-11-20")
    assert (found.agrees, found.last, found.total.cost_usd.theirs) == (True, "2026-11-20", 1.0)


def test_without_model_names_only_the_total_is_compared() -> None:
    found = compared([line("", 1.5)], [sums(), sums(MINI, 0.5)])
    assert (found.models, found.only_ours, found.agrees) == ([], [], True)
    assert [each.name for each in found.unmatched] == [""]


# What is said of it


@pytest.mark.parametrize(
    ("theirs", "ours", "tolerance", "agreement"),
    [
        (100.0, 100.0, 0.0, "agrees"),
        (100.0, 99.0, 0.01, "agrees"),
        (100.0, 98.9, 0.01, "drifts"),
        (100.0, 101.0, 0.01, "agrees"),
        (100.0, 101.1, 0.01, "drifts"),
        (100.0, 50.0, 0.5, "agrees"),
        (0.0, 1.0, 1.0, "drifts"),
        (1.0, 0.0, 1.0, "agrees"),
        (0.010, 0.001, 0.0, "agrees"),  # less than a cent
        (0.011, 0.001, 0.0, "drifts"),
    ],
)
def test_drifts_within_the_tolerance_agree(theirs: float, ours: float, tolerance: float, agreement: str) -> None:
    found = compared([line(usd=theirs)], [sums(usd=ours)], tolerance=tolerance)
    assert [each.agreement for each in (found.total, *found.models)] == [agreement] * 2
    assert found.agrees == (agreement == "agrees")


@pytest.mark.parametrize(
    ("theirs", "agreement"),
    [(1.0, "agrees"), (0.5, "explained"), (2.0, "explained"), (0.49, "drifts"), (2.1, "drifts")],
)
def test_a_drift_within_the_uncertain_costs_is_explained(theirs: float, agreement: str) -> None:
    unsure = sums(usd=1.0, least_nanos=DOLLAR // 2, most_nanos=2 * DOLLAR)
    found = compared([line(usd=theirs)], [unsure])
    (model,) = found.models
    assert (model.least_usd, model.most_usd) == (0.5, 2.0)
    assert (model.agreement, found.total.agreement) == (agreement, agreement)
    assert found.agrees == (agreement != "drifts")


def test_expired_calls_may_explain_the_total_only() -> None:
    lost = sums("", 0.0, kind="expired", most_nanos=DOLLAR, provider="")
    found = compared([line(usd=1.5)], [sums(), lost])
    assert (found.total.agreement, found.models[0].agreement) == ("explained", "drifts")
    assert (found.expired_most_usd, found.agrees) == (1.0, False)


@pytest.mark.parametrize(
    ("told", "agreement"),
    [
        ({"input_tokens": 100, "output_tokens": 50, "cached_tokens": 10}, "agrees"),
        ({"input_tokens": 100, "output_tokens": 50}, "agrees"),
        ({"input_tokens": 101, "output_tokens": 50}, "agrees"),
        ({"input_tokens": 102, "output_tokens": 50}, "drifts"),
        ({"input_tokens": 100, "output_tokens": 50, "requests": 9}, "agrees"),
        ({"requests": 1}, "agrees"),
        ({"requests": 2}, "drifts"),
    ],
)
def test_agreement_is_judged_by_cost_then_tokens_then_requests(told: dict[str, Any], agreement: str) -> None:
    found = compared([line(usd=None, **told)], [sums()])
    assert (found.models[0].agreement, found.total.agreement) == (agreement, agreement)


def test_one_drifting_model_is_a_disagreement() -> None:
    found = compared([line(usd=2.0), line("gpt-4o-mini", 1.0)], [sums(usd=1.0), sums(MINI, 2.0)])
    assert (found.total.agreement, found.agrees) == ("agrees", False)


def test_an_empty_export_agrees_with_an_empty_ledger() -> None:
    found = compared([], [])
    assert (found.agrees, found.models, found.total.cost_usd) == (True, [], Compared(None, 0.0, None, None))


_CALL = st.tuples(
    st.sampled_from([GPT, MINI, CLAUDE]), st.integers(1, 3), st.integers(0, 10**12), st.integers(0, 10**6)
)


@given(st.lists(_CALL, max_size=12))
def test_a_ledger_agrees_with_an_export_of_itself(calls: list[tuple[str, int, int, int]]) -> None:
    ours = [
        sums(model, nanos / DOLLAR, day=f"2026-11-{19 + day}", tokens=Tokens(tokens, 1, 0))
        for model, day, nanos, tokens in calls
    ]
    lines = [
        ExportLine(
            day=each.day,
            model=each.model,
            requests=each.rows,
            input_tokens=each.tokens.input,
            output_tokens=each.tokens.output,
            cached_tokens=each.tokens.cached,
            cost_nanos=each.cost_nanos,
        )
        for each in ours
    ]
    found = compared(lines, ours, None, tolerance=0.0)
    assert found.agrees
    assert (found.unmatched, found.only_ours, found.only_theirs) == ([], [], [])
    assert (found.days_only_ours, found.days_only_theirs) == ([], [])
    assert {each.cost_usd.drift for each in found.models} <= {0.0}
