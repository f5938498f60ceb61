"""``Router.why_not``: the core rule applied to a request."""

from __future__ import annotations

from typing import Any

import pytest

from routewright import Catalogue, Model, Policy, Pricing, Router, ValidationFailed
from routewright.wire import PolicyClass, PolicyMatch
from tests.tables import table

CHEAP = Model(id="a/cheap", quality=0.5, pricing_per_1m=Pricing(0.1, 0.4))
DEAR = Model(id="b/dear", quality=0.7, pricing_per_1m=Pricing(2, 8))


def router(*policies: Policy) -> Router:
    catalogue = Catalogue([CHEAP, DEAR], aliases={"best": "b/dear"})
    return Router.sandbox(catalogue=catalogue, policies=policies)


def test_the_suggested_price_makes_the_model_win() -> None:
    why = router().why_not("Hello", "best")
    share = next(change.value for change in why.changes if change.what == "prices")
    assert share is not None
    cheaper = Catalogue([CHEAP, Model(id="b/dear", quality=0.7, pricing_per_1m=Pricing(2 * share, 8 * share))])
    assert (why.chosen, Router.sandbox(catalogue=cheaper).decide("Hello").model) == ("a/cheap", "b/dear")


def test_an_unknown_model_is_named_with_the_nearest() -> None:
    with pytest.raises(ValidationFailed, match="model: unknown model 'b/deer'; did you mean 'b/dear'"):
        router().why_not("Hello", "b/deer")


@table("wrong", [None, 5, ["b/dear"]])
def test_a_name_that_is_not_text_is_refused(wrong: Any) -> None:
    with pytest.raises(ValidationFailed, match="model: must be an id or alias, got"):
        router().why_not("Hello", wrong)


def test_a_policy_that_sets_the_goal_is_the_suggested_change() -> None:
    frugal = Policy(name="frugal", strategy="cost-optimized")
    said = str(router(frugal).why_not("Hello", "b/dear", policy_id="frugal"))
    assert "policy 'frugal' asks for goal=quality" in said
    assert "the request asks for goal=quality" in str(router().why_not("Hello", "b/dear"))
    silent = Policy(name="silent", models=["a/*", "b/*"])
    assert "the request asks" in str(router(silent).why_not("Hello", "b/dear", policy_id="silent"))


def test_a_class_that_sets_the_goal_is_the_suggested_change() -> None:
    frugal = PolicyClass(match=PolicyMatch(metadata={"tier": "free"}), strategy="cost-optimized")
    desk = router(Policy(name="desk", goal="quality", strategy="quality-first", classes=[frugal]))
    text = str(desk.why_not("Hello", "b/dear", policy_id="desk", metadata={"tier": "free"}))
    assert "class 'tier=free' of policy 'desk' asks for goal=quality" in text


def test_a_model_outside_the_policy_is_admitted_by_both() -> None:
    narrow = Policy(name="narrow", models=["a/cheap"])
    why = router(narrow).why_not("Hello", "b/dear", policy_id="narrow")
    assert why.admission == "add 'b/dear' to models of policy 'narrow'"
