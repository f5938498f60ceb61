"""A share takes its part of the callers, always the same ones, and a larger share keeps them."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import Policy
from routewright._core.model_selector import ModelIndex
from routewright._core.policy_table import PolicyTable, Publications, Share, compile_table
from routewright.wire import PolicyRecord, PolicySnapshot, PolicyVersion

MAIN = PolicySnapshot("pos_1", "desk@2026-11-20", Policy(name="desk", id="pol_desk"))
NEXT = PolicySnapshot("pos_2", "desk@2026-11-21", Policy(name="desk", id="pol_desk", goal="quality"))


def share(fraction: float, by: str = "account") -> Share:
    return Share(NEXT, fraction, by)


@given(account=st.text(), smaller=st.floats(0, 1), larger=st.floats(0, 1))
def test_a_larger_share_keeps_whom_a_smaller_one_had(account: str, smaller: float, larger: float) -> None:
    low, high = sorted([smaller, larger])
    before = share(low).choose(MAIN, account, None)
    after = share(high).choose(MAIN, account, None)
    assert before[1] == after[1], "the assignment does not depend on the share"
    assert before[0] is MAIN or after[0] is NEXT


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_a_share_takes_about_its_part_of_the_callers(fraction: float) -> None:
    taken = sum(share(fraction).choose(MAIN, f"account {number}", None)[0] is NEXT for number in range(10_000))
    assert taken / 10_000 == pytest.approx(fraction, abs=0.02)


def test_the_assignment_is_the_same_in_every_process_and_holds_no_text() -> None:
    assert share(0.1).choose(MAIN, "acme", None)[1] == "34aa866e3daf54f8"


@pytest.mark.parametrize("metadata", [None, {}, {"team": 7}, {"user": None}])
def test_requests_without_the_metadata_are_served_by_the_main_version(metadata: dict[str, Any] | None) -> None:
    assert share(1.0, "metadata.user").choose(MAIN, "acme", metadata) == (MAIN, "")


def test_requests_with_the_same_metadata_get_the_same_version_whoever_sends_them() -> None:
    by_user = share(0.5, "metadata.user")
    assert by_user.choose(MAIN, "acme", {"user": "7"}) == by_user.choose(MAIN, "other", {"user": "7", "team": 1})
    assert by_user.choose(MAIN, "acme", {"user": "7"}) != by_user.choose(MAIN, "acme", {"user": 7})


def test_a_shadow_is_the_draft_of_its_name_before_the_policy() -> None:
    desk = PolicySnapshot("pos_4", "desk@2026-11-20", Policy(name="desk", shadow="till"))
    till, draft = (PolicySnapshot(id, f"till@{id}", Policy(name="till")) for id in ("1", "2"))
    assert PolicyTable([desk, till], drafts={"till": draft}).shadow(desk) is draft
    assert PolicyTable([desk, till]).shadow(desk) is till
    assert PolicyTable([desk]).shadow(desk) is None
    assert PolicyTable([till]).shadow(till) is None


def published(*policies: Policy) -> Publications:
    versions = [PolicyVersion(policy.name, f"{policy.name}@2026-11-20", "2026-11-20", policy) for policy in policies]
    records = [PolicyRecord(name=policy.name, content=policy.name, changed_at="2026-11-20") for policy in policies]
    return Publications(records, {version.content: version for version in versions})


def test_an_id_has_one_policy() -> None:
    own = [PolicySnapshot("pos_1", "a@2026-11-20", Policy(name="a", id="pol_a"))]
    publications = published(Policy(name="b"), Policy(name="c", id="b"), Policy(name="d", id="pol_a"))
    table, problems = compile_table(own, publications, ModelIndex([], {}))
    assert [snapshot.policy.name for snapshot in table.policies] == ["a", "b"]
    assert problems == {
        "c@2026-11-20": "id: 'b' is that of 'b'; change one",
        "d@2026-11-20": "id: 'pol_a' is that of 'a'; change one",
    }


def test_the_work_grows_with_the_number_of_policies_and_no_faster() -> None:
    def calls(count: int) -> int:
        publications = published(*(Policy(name=f"p{number}") for number in range(count)))
        events = list[str]()
        sys.setprofile(lambda frame, event, arg: events.append(event))
        try:
            compile_table((), publications, ModelIndex([], {}))
        finally:
            sys.setprofile(None)
        return events.count("call")

    assert calls(80) < 2.2 * calls(40)
