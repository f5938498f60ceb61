"""A policy file meets the sixteen situations: what survives, what does not, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from routewright import Budget, Policy, ValidationFailed
from routewright.testing import SITUATIONS, NotSurvived, situations
from routewright.wire import PolicyFallback, PolicyGuardrail

Run = Callable[..., list[str]]
CUT = ("stream_cut", "stream_stalled", "malformed_chunk", "missing_end", "cut_not_continued", "usage_after_fallback")
"""Situations in which a stream ends in the middle."""


def lost(policy: Policy, *only: str, **options: Any) -> dict[str, str]:
    """The messages of the situations, or of some, that a policy does not survive."""
    said = {}
    for case in situations([policy], **options):
        if only and case.situation.name not in only:
            continue
        try:
            case.check()
        except NotSurvived as error:
            said[case.situation.name] = str(error)
    return said


def test_a_policy_with_several_providers_survives_all_sixteen_situations() -> None:
    assert len(SITUATIONS) == 16
    assert lost(Policy(name="any")) == {}


def test_one_provider_alone_does_not_survive_its_outage() -> None:
    said = lost(Policy(name="one", models=["provider:openai"]))
    assert {"unavailable_for_ever", "silent", "stream_cut", "flapping"} <= set(said)
    assert not {"server_error_once", "reset", "rate_limited", "moderation"} & set(said)
    assert said["silent"].startswith("policy 'one' does not survive 'silent' (plain; openai/")
    assert "takes every call and says nothing): the caller got RouterTimeoutError (504); 4 calls" in said["silent"]
    assert said["silent"].endswith("served by openai: let 'models' or 'fallback.models' allow another")


def test_without_retries_and_fallbacks_nothing_is_survived() -> None:
    said = lost(Policy(name="bare", fallback=PolicyFallback(models=[], max_retries=0)))
    told = {"moderation", "context_overflow"}
    assert set(said) == {situation.name for situation in SITUATIONS} - told
    assert "'fallback.models' is empty" in said["reset"]
    assert said["reset"].endswith("or let 'fallback.max_retries' be 1")
    assert not said["silent"].endswith("be 1")


def test_a_policy_that_serves_nobody_is_not_survived() -> None:
    said = lost(Policy(name="poor", budget=Budget(max_cost_usd=1e-9)), "reset")
    assert said["reset"].startswith("policy 'poor' cannot serve the request even without a fault: ")


def test_a_policy_may_route_around_refusals_and_report_cuts() -> None:
    assert lost(Policy(name="asks on", fallback=PolicyFallback(on_refusal="fallback")), "moderation") == {}
    assert lost(Policy(name="tells", fallback=PolicyFallback(on_partial="error")), *CUT) == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([5], r"policies\[0\]: 5 is not a Policy"),
        (["any"], r"policies\[0\]: 'any' is not a Policy"),
        ([Policy(name="a", timeout_ms=-1)], "policies.*timeout_ms"),
        (Policy(name="any"), "is not a list of policies"),
        ([], "policies: there is no policy; write the policy to test"),
        ((), "policies: there is no policy; write the policy to test"),
    ],
    ids=str,
)
def test_invalid_policies_are_refused_before_they_are_tried(given: Any, said: str) -> None:
    with pytest.raises(ValidationFailed, match=said):
        situations(given)


def test_a_policy_that_blocks_the_request_says_so() -> None:
    policy = Policy(name="strict", guardrails=[PolicyGuardrail(deny=["hello"], action="block")])
    said = lost(policy, "reset", "flapping")
    assert len(said) == 2
    blocks = "its guardrail 'deny_list' blocks the request itself, by its rule 'deny_list'"
    assert set(said.values()) == {f"policy 'strict' cannot be tried: {blocks}; pass another 'request='"}
    assert lost(policy, "reset", request="Good day") == {}


def test_an_invalid_request_is_refused_at_once() -> None:
    nothing: Any = 42
    with pytest.raises(ValidationFailed, match="42 is not a request; pass a string"):
        situations([Policy(name="any")], request=nothing)


@pytest.mark.anyio
async def test_check_in_an_async_test_is_refused() -> None:
    case = situations([Policy(name="any")])[0]
    with pytest.raises(RuntimeError, match="call it from a plain test"):
        case.check()


def test_not_survived_has_no_frames_of_the_library() -> None:
    case = situations([Policy(name="poor", budget=Budget(max_cost_usd=1e-9))])[0]
    with pytest.raises(NotSurvived) as told:
        case.check()
    assert [entry.name for entry in told.traceback.filter(told)] == [told.traceback[0].name]
    assert f"{NotSurvived.__module__}.{NotSurvived.__qualname__}" == "routewright.testing.NotSurvived"


# --- the plug-in

FILE = """
[[policies]]
name = "any"

[[policies]]
name = "one"
models = ["provider:openai"]
"""
TEST = """
import pytest


@pytest.mark.routewright("policies.toml")
def test_our_policies_survive(situation):
    situation.check()


@pytest.mark.routewright("policies.toml", policy="any")
def test_this_one_does(situation):
    situation.check()
"""


@pytest.fixture
def run_pytest(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a test file in the folder ``tests``, with the plug-in. Returns what pytest prints, line by line."""
    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    folder = pytester.mkdir("tests")
    pytester.makeini("[pytest]")
    (folder / "conftest.py").write_text('pytest_plugins = ["routewright.testing.plugin"]')

    def run(test: str) -> list[str]:
        (folder / "test_policies.py").write_text(test)
        return pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider", "--strict-markers", folder).outlines

    return run


def test_the_plugin_runs_a_test_for_each_policy_and_situation(pytester: pytest.Pytester, run_pytest: Run) -> None:
    (pytester.path / "tests" / "policies.toml").write_text(FILE)
    said = run_pytest(TEST)
    *failed, summary = [line for line in said if line.startswith("FAILED") or " passed" in line]
    assert "test_our_policies_survive[one-silent]" in " ".join(failed)
    assert all("test_our_policies_survive[one-" in line and "NotSurvived: policy 'one'" in line for line in failed)
    assert summary.startswith(f"{len(failed)} failed, {48 - len(failed)} passed")
    assert [line for line in said if ".py:" in line and "test_policies.py:" not in line] == []


HEAD = "import pytest\n\n\n"
FAULTY = f"""{HEAD}
@pytest.mark.routewright("polices.toml")
def test_file(situation): ...


@pytest.mark.routewright("policies.toml", policy="onne")
def test_policy(situation): ...


@pytest.mark.routewright
def test_bare(situation): ...


@pytest.mark.routewright("policies.toml", polcy="one")
def test_keyword(situation): ...


def test_unmarked(situation): ...


def test_of_something_else(): ...
"""


def test_each_mistake_in_a_marker_is_one_error_of_its_test(pytester: pytest.Pytester, run_pytest: Run) -> None:
    root = pytester.path
    (root / "policies.toml").write_text(FILE)
    said = run_pytest(FAULTY)
    errors = dict(line.removeprefix("ERROR tests/test_policies.py::").split(" - ", 1) for line in said[-6:-1])
    takes = "write routewright(policies, policy=None, *, catalogue=None, request='Hello')"
    wrong = "Failed: @pytest.mark.routewright: "
    assert errors == {
        "test_file[unusable]": f"Failed: polices.toml: is not in {root}/tests, nor in {root}; check the path",
        "test_policy[unusable]": "Failed: policy: there is no policy 'onne'; did you mean 'one'?",
        "test_bare[unusable]": f"{wrong}missing a required argument: 'policies'; {takes}",
        "test_keyword[unusable]": f"{wrong}got an unexpected keyword argument 'polcy'; {takes}",
        "test_unmarked": "Failed: 'situation' comes with the marker: "
        "write @pytest.mark.routewright('policies.toml') above the test",
    }
    assert said[-1].startswith("1 passed, 5 errors")
    assert "pluggy" not in "".join(said)


ONE = f"""{HEAD}
@pytest.mark.routewright(policies="policies.toml")
def test_name(situation):
    assert situation.situation.name != "silent"
"""


def test_a_file_is_searched_beside_the_test_then_at_the_start_then_in_the_root(
    pytester: pytest.Pytester, run_pytest: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, start = pytester.path, pytester.mkdir("start")
    monkeypatch.chdir(start)
    for folder in (root, start, root / "tests"):
        (folder / "policies.toml").write_text(f'[[policies]]\nname = "of-{folder.name}"')
        said = run_pytest(ONE)
        assert f"FAILED ../tests/test_policies.py::test_name[of-{folder.name}-silent]" in " ".join(said)
