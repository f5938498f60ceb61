"""What the options of a model object and of one call come to."""

from __future__ import annotations

from typing import Any

import pytest

from routewright import Fallback, Params, Router, ValidationFailed
from routewright.integrations.options import check_options, merge_options


@pytest.mark.parametrize(
    ("model", "routing"),
    [
        ("auto", {}),
        ("auto:quality", {"goal": "quality"}),
        ("policy:house", {"policy_id": "house"}),
        ("openai/gpt-4.1", {"models": ["openai/gpt-4.1"]}),
    ],
)
def test_a_name_stands_for_its_field_of_the_request(model: str, routing: dict[str, Any]) -> None:
    assert merge_options(model, 1) == routing


@pytest.mark.parametrize("fallback", [{"models": ["b/y", "a/x"]}, Fallback(models=["b/y", "a/x"])])
def test_a_named_model_is_followed_by_its_fallbacks(fallback: Any) -> None:
    merged = merge_options("a/x", 1, {"fallback": fallback})
    assert merged == {"fallback": fallback, "models": ["a/x", "b/y"], "prefer": "a/x"}


def test_a_call_overrides_the_model_object_and_joins_metadata_and_params() -> None:
    own = {"goal": "cost", "metadata": {"team": "a", "env": "x"}, "params": {"seed": 1}}
    call = {"goal": "quality", "metadata": {"team": "b"}, "params": {"top_p": 0.5}}
    assert merge_options("auto", 1, own, {"metadata": None}, call) == {
        "goal": "quality",
        "metadata": {"team": "b"},
        "params": {"seed": 1, "top_p": 0.5},
    }
    assert merge_options("auto", 1, own, call)["metadata"] == {"team": "b", "env": "x"}


def test_each_turn_of_a_run_has_an_idempotency_key_of_its_own() -> None:
    keys = [merge_options("auto", turns, {"idempotency_key": "run-7"})["idempotency_key"] for turns in (1, 3, 1)]
    assert keys == ["run-7.1", "run-7.3", "run-7.1"]


def test_a_call_overrides_what_the_model_stands_for() -> None:
    assert merge_options("auto:quality", 1, {"goal": "cost"}) == {"goal": "cost"}
    assert merge_options("a/x", 1, {"models": ["b/y"], "fallback": {"models": ["c/z"]}})["models"] == ["b/y"]


def test_params_of_two_kinds_do_not_join() -> None:
    assert merge_options("auto", 1, {"params": Params(seed=1)}, {"params": {"top_p": 0.5}})["params"] == {"top_p": 0.5}


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            "auto:best",
            {},
            "model: names the unknown goal 'best'; take auto, or auto:cost, auto:quality",
        ),
        ("auto:cost", {"goal": "quality"}, "model: is 'auto:cost', but goal differs; set only one; with goal the"),
        ("policy:a", {"policy_id": "b"}, "model: is 'policy:a', but policy_id differs"),
        ("a/x", {"models": ["b/y"]}, "model: is 'a/x', but models differs"),
        ("auto", {"metdata": {}}, "metdata: is not an option; did you mean 'metadata'?"),
    ],
)
def test_a_model_object_refuses_options_that_are_wrong(model: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        check_options(Router.sandbox(), model, options)
    assert str(refused.value).startswith(message)


def test_a_model_object_takes_a_router_and_a_call_a_dict_of_options() -> None:
    with pytest.raises(ValidationFailed, match="router: is not a Router, got BlockingRouter"):
        check_options(Router.sandbox().blocking, "auto", {})
    with pytest.raises(ValidationFailed, match="routewright: is 'fast'; pass a dict"):
        merge_options("auto", 1, "fast")  # type: ignore[arg-type]
