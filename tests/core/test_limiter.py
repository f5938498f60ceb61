"""The step over several limits at once: all or none, why not and for how long, slots, leases, and what it remembers."""

from __future__ import annotations

import gc
from itertools import count, pairwise
from math import nextafter
from random import Random
from typing import Any

import pytest

from routewright._core.limiter import Limiter
from routewright.errors import ValidationFailed
from routewright.wire import Denied, Take, Taken, WindowState
from tests.limits import one

LEASE_S = 30.0
ME, OTHER = "me", "another"


@pytest.fixture
def limiter() -> Limiter:
    return Limiter(LEASE_S)


def taken(result: Taken | Denied) -> Taken:
    assert isinstance(result, Taken), result
    return result


def denied(result: Taken | Denied) -> Denied:
    assert isinstance(result, Denied), result
    return result


def slots(name: str, limit: int) -> list[Take]:
    return [Take(name, "slots", limit)]


def tokens(name: str, limit: int, amount: int) -> list[Take]:
    return [Take(name, "tokens", limit, amount)]


# Windows


def test_a_window_is_open_at_its_beginning(limiter: Limiter) -> None:
    taken(limiter.take(one("a", 1), ME, 100.0))
    denied(limiter.take(one("a", 1), ME, nextafter(160.0, 0.0)))
    taken(limiter.take(one("a", 1), ME, 160.0))


def test_states_count_this_one_in(limiter: Limiter) -> None:
    takes = [Take("a", "requests", 3), Take("a", "tokens", 100, 30), Take("a", "slots", 2)]
    assert taken(limiter.take(takes, ME, 0.0)).states == (
        WindowState("requests", 3, 2, 60.0),
        WindowState("tokens", 100, 70, 60.0),
        WindowState("slots", 2, 1, 0.0),
    )


def test_a_refusal_says_how_things_stand_without_it(limiter: Limiter) -> None:
    limiter.take([Take("a", "requests", 2), Take("a", "tokens", 100, 30)], ME, 0.0)
    limiter.take([Take("a", "requests", 2), Take("a", "tokens", 100, 30)], ME, 10.0)
    refused = denied(limiter.take([Take("a", "tokens", 100, 30), Take("a", "requests", 2)], ME, 20.0))
    assert refused == Denied(1, 40.0, (WindowState("tokens", 100, 40, 50.0), WindowState("requests", 2, 0, 50.0)))


def test_a_limit_is_what_it_is_in_each_step(limiter: Limiter) -> None:
    for _ in range(3):
        taken(limiter.take(one("a", 3), ME, 0.0))
    refused = denied(limiter.take(one("a", 1), ME, 0.0))
    assert refused.states == (WindowState("requests", 1, 0, 60.0),)
    assert taken(limiter.take(one("a", 5), ME, 0.0)).states[0].remaining == 1


def test_it_waits_for_as_many_to_leave_as_stand_in_the_way(limiter: Limiter) -> None:
    for second in range(5):
        limiter.take(tokens("a", 100, 20), ME, float(second))
    assert denied(limiter.take(tokens("a", 100, 50), ME, 5.0)).retry_after_s == 57.0
    assert denied(limiter.take(tokens("a", 40, 20), ME, 5.0)).retry_after_s == 58.0
    assert denied(limiter.take(tokens("a", 40, 50), ME, 5.0)).retry_after_s == 59.0


def test_more_than_the_whole_limit_goes_alone(limiter: Limiter) -> None:
    taken(limiter.take(tokens("a", 100, 1), ME, 0.0))
    assert denied(limiter.take(tokens("a", 100, 500), ME, 1.0)).retry_after_s == 59.0
    state = taken(limiter.take(tokens("a", 100, 500), ME, 60.0)).states[0]
    assert state.remaining == 0
    assert denied(limiter.take(tokens("a", 100, 1), ME, 61.0)).retry_after_s == 59.0
    taken(limiter.take(tokens("a", 100, 1), ME, 120.0))


def test_a_limit_of_nothing_lets_nothing_in_and_says_to_come_back_in_a_window(limiter: Limiter) -> None:
    for takes in (one("a", 0), tokens("a", 0, 5), slots("a", 0)):
        assert denied(limiter.take(takes, ME, 0.0)).retry_after_s == 60.0


def test_nothing_always_fits(limiter: Limiter) -> None:
    taken(limiter.take(tokens("a", 10, 10), ME, 0.0))
    nothing = taken(limiter.take(tokens("a", 10, 0), ME, 1.0))
    assert nothing.states == (WindowState("tokens", 10, 0, 59.0),)
    limiter.end(nothing.id, 5)
    assert denied(limiter.take(tokens("a", 12, 1), ME, 2.0)).retry_after_s == 58.0


def test_requests_may_weigh_more_than_one(limiter: Limiter) -> None:
    taken(limiter.take(one("a", 5), ME, 0.0))
    taken(limiter.take(one("a", 5, 3), ME, 10.0))
    assert denied(limiter.take(one("a", 5, 2), ME, 20.0)).retry_after_s == 40.0
    taken(limiter.take(one("a", 5), ME, 20.0))
    assert denied(limiter.take(one("a", 5, 2), ME, 60.0)).retry_after_s == 10.0


@pytest.mark.parametrize("resource", ["requests", "tokens", "slots"])
def test_less_than_nothing_is_refused_and_nothing_is_taken(limiter: Limiter, resource: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"takes\[1\].amount: is -1; take 0 or more"):
        limiter.take([Take("a", "requests", 1), Take("b", resource, 5, -1)], ME, 0.0)
    step = taken(limiter.take([Take("a", "requests", 1), Take("b", "tokens", 5, 5)], ME, 0.0)).id
    with pytest.raises(ValidationFailed, match="tokens: is -2; take 0 or more"):
        limiter.end(step, -2)


def test_windows_are_told_apart_by_name_and_by_what_they_count(limiter: Limiter) -> None:
    for name in ("account:a", "key:a"):
        for take in (Take(name, "requests", 1), Take(name, "tokens", 1), Take(name, "slots", 1)):
            taken(limiter.take([take], ME, 0.0))


# All or none


def test_what_is_refused_by_one_takes_none(limiter: Limiter) -> None:
    taken(limiter.take(one("key", 1), ME, 0.0))
    all_three = [Take("account", "requests", 2), Take("account", "tokens", 10, 10), Take("account", "slots", 1)]
    assert denied(limiter.take([*all_three, *one("key", 1)], ME, 0.0)).by == 3
    taken(limiter.take(all_three, ME, 0.0))
    taken(limiter.take(one("account", 2), ME, 0.0))


def test_of_several_that_refuse_the_one_is_named_that_is_to_be_waited_for_longest(limiter: Limiter) -> None:
    taken(limiter.take(one("a", 1), ME, 0.0))
    taken(limiter.take(one("b", 1), ME, 30.0))
    taken(limiter.take(slots("c", 1), ME, 30.0))
    refused = denied(limiter.take([*one("a", 1), *one("b", 1), *slots("c", 1), *one("d", 1)], ME, 40.0))
    assert (refused.by, refused.retry_after_s) == (1, 50.0)
    assert denied(limiter.take([*slots("c", 1), *one("a", 1)], ME, 59.5)).by == 0


def test_a_limit_that_is_named_twice_holds_all_the_same(limiter: Limiter) -> None:
    refused = denied(limiter.take([*one("a", 1), *one("a", 1)], ME, 0.0))
    assert refused.retry_after_s > 0
    assert refused.states[0].remaining == 1
    taken(limiter.take([*one("a", 2), *one("a", 2)], ME, 0.0))
    denied(limiter.take(one("a", 2), ME, 0.0))


# Corrections


def test_tokens_are_corrected_at_the_time_at_which_they_were_taken(limiter: Limiter) -> None:
    step = taken(limiter.take([Take("a", "tokens", 100, 80), Take("b", "tokens", 50, 40)], ME, 0.0)).id
    denied(limiter.take(tokens("a", 100, 60), ME, 30.0))
    limiter.end(step, 45)
    assert taken(limiter.take(tokens("a", 100, 55), ME, 30.0)).states[0].remaining == 0
    assert denied(limiter.take(tokens("a", 100, 45), ME, 59.0)).retry_after_s == 1.0
    assert denied(limiter.take(tokens("b", 50, 6), ME, 59.0)).retry_after_s == 1.0
    taken(limiter.take(tokens("a", 100, 45), ME, 60.0))


def test_a_correction_upwards_counts_though_it_goes_over_the_limit(limiter: Limiter) -> None:
    step = taken(limiter.take(tokens("a", 100, 10), ME, 0.0)).id
    limiter.end(step, 150)
    refused = denied(limiter.take(tokens("a", 100, 1), ME, 1.0))
    assert (refused.states[0].remaining, refused.retry_after_s) == (0, 59.0)


def test_a_correction_of_what_has_left_changes_nothing(limiter: Limiter) -> None:
    step = taken(limiter.take(tokens("a", 100, 10), ME, 0.0)).id
    other = taken(limiter.take(tokens("a", 100, 10), ME, 61.0)).id
    limiter.end(step, 1_000)
    assert taken(limiter.take(tokens("a", 100, 90), ME, 62.0)).states[0].remaining == 0
    limiter.end(other, 0)


def test_an_end_without_a_number_leaves_the_tokens_and_twice_is_once(limiter: Limiter) -> None:
    step = taken(limiter.take(tokens("a", 100, 60), ME, 0.0)).id
    limiter.end(step)
    limiter.end(step, 0)
    denied(limiter.take(tokens("a", 100, 50), ME, 1.0))
    second = taken(limiter.take(tokens("b", 100, 60), ME, 0.0)).id
    limiter.end(second, 50)
    limiter.end(second, 0)
    denied(limiter.take(tokens("b", 100, 60), ME, 1.0))


def test_requests_stay_whatever_is_ended(limiter: Limiter) -> None:
    step = taken(limiter.take(one("a", 1), ME, 0.0)).id
    limiter.end(step, 0)
    denied(limiter.take(one("a", 1), ME, 1.0))


# Slots


def test_a_slot_comes_back_when_it_is_given_once(limiter: Limiter) -> None:
    first, second = (taken(limiter.take(slots("a", 2), ME, 0.0)).id for _ in range(2))
    refused = denied(limiter.take(slots("a", 2), ME, 1.0))
    assert (refused.retry_after_s, refused.states[0]) == (1.0, WindowState("slots", 2, 0, 0.0))
    limiter.end(first)
    limiter.end(first)
    taken(limiter.take(slots("a", 2), ME, 1.0))
    denied(limiter.take(slots("a", 2), ME, 1.0))
    limiter.end(second)


def test_slots_are_free_again_when_their_owner_was_not_heard_of_for_a_lease(limiter: Limiter) -> None:
    taken(limiter.take(slots("a", 2), ME, 0.0))
    taken(limiter.take(slots("a", 2), OTHER, 10.0))
    denied(limiter.take(slots("a", 2), OTHER, nextafter(30.0, 0.0)))
    assert taken(limiter.take(slots("a", 2), OTHER, 30.0)).states[0].remaining == 0


def test_a_slot_is_kept_by_renewal_and_by_taking_another(limiter: Limiter) -> None:
    taken(limiter.take(slots("a", 1), ME, 0.0))
    limiter.renew(ME, 29.0)
    denied(limiter.take(slots("a", 1), OTHER, 58.0))
    taken(limiter.take(slots("b", 1), ME, 58.0))
    denied(limiter.take(slots("a", 1), OTHER, 87.0))
    taken(limiter.take(slots("a", 1), OTHER, 88.0))


def test_what_is_lost_is_not_renewed_and_its_end_frees_nobody_elses(limiter: Limiter) -> None:
    lost = taken(limiter.take([*slots("a", 1), *tokens("a", 10, 10)], ME, 0.0)).id
    limiter.renew(ME, 31.0)
    taken(limiter.take(slots("a", 1), OTHER, 31.0))
    limiter.end(lost, 3)
    denied(limiter.take(slots("a", 1), ME, 32.0))
    taken(limiter.take(tokens("a", 10, 7), ME, 32.0))


def test_one_who_takes_no_slots_has_no_lease_to_renew(limiter: Limiter) -> None:
    taken(limiter.take(one("a", 1), ME, 0.0))
    limiter.renew(ME, 1.0)
    assert len(limiter) == 1


def test_more_slots_than_there_are_go_alone(limiter: Limiter) -> None:
    step = taken(limiter.take([Take("a", "slots", 2, 3)], ME, 0.0)).id
    denied(limiter.take(slots("a", 2), ME, 0.0))
    limiter.end(step)
    taken(limiter.take(slots("a", 2), ME, 0.0))
    denied(limiter.take([Take("a", "slots", 2, 3)], ME, 0.0))


# What it remembers


@pytest.mark.parametrize("resource", ["requests", "tokens", "slots"])
def test_memory_does_not_grow_with_names_that_were_used_once(limiter: Limiter, resource: Any, full: bool) -> None:
    sizes = []
    for number in range(1_000_000 if full else 50_000):
        step = taken(limiter.take([Take(f"key:{number}", resource, 10)], ME, number / 10)).id
        limiter.end(step, 1)
        sizes.append(len(limiter))
    assert max(sizes) <= 2 * 600 + 4
    assert max(sizes[len(sizes) // 2 :]) <= max(sizes[: len(sizes) // 2]) + 4


def test_names_that_are_used_no_more_are_dropped_though_no_new_ones_come(limiter: Limiter) -> None:
    for number in range(1_000):
        limiter.take(one(f"key:{number}", 10), ME, 0.0)
    for _ in range(20_000):
        limiter.take(one("key:0", 10**6), ME, 61.0)
    assert len(limiter) == 1


def test_steps_that_are_never_ended_are_forgotten(limiter: Limiter) -> None:
    for second in range(5_000):
        taken(limiter.take(tokens("a", 100, 1), ME, float(second)))
    assert len(limiter) <= 1 + 60


def test_refusals_leave_nothing_behind(limiter: Limiter) -> None:
    taken(limiter.take(one("full", 1), ME, 0.0))
    for number in range(10_000):
        denied(limiter.take([*tokens(f"key:{number}", 5, 1), *slots(f"key:{number}", 5), *one("full", 1)], ME, 1.0))
    assert len(limiter) < 10


def test_steps_are_numbered_upwards_from_where_another_left_off() -> None:
    before = Limiter(LEASE_S)
    ids = [taken(before.take(one("a", 9), ME, 0.0)).id for _ in range(3)]
    after = Limiter(LEASE_S, before.next)
    ids += [taken(after.take(slots("a", 9), ME, 0.0)).id for _ in range(3)]
    assert all(first < second for first, second in pairwise(ids))
    after.end(ids[0])
    assert taken(after.take(slots("a", 9), ME, 0.0)).states[0].remaining == 5


# Finalisers


class Finalised:
    """Garbage that ends a step when it is collected, at any allocation."""

    def __init__(self, limiter: Limiter, step: int, tokens: int) -> None:
        self.limiter, self.step, self.tokens, self.myself = limiter, step, tokens, self

    def __del__(self) -> None:
        self.limiter.end(self.step, self.tokens)


def test_a_finaliser_that_ends_a_step_in_the_midst_of_another_leaves_the_sums_right(full: bool) -> None:
    rng = Random(7)
    limiter, clock = Limiter(LEASE_S), count()
    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(20_000 if full else 3_000):
            now = next(clock) / 8
            name = f"key:{rng.randrange(5)}"
            takes = [*tokens(name, 200, rng.randrange(20)), *slots(name, 12), *tokens("all", 900, 7), *one(name, 70, 2)]
            result = limiter.take(takes, f"owner:{rng.randrange(3)}", now)
            if isinstance(result, Taken):
                Finalised(limiter, result.id, rng.randrange(20))
    finally:
        gc.set_threshold(*threshold)
        gc.collect()
    for resource, windows in limiter._windows.items():
        for window in windows.values():
            counted = sum((window.weights or [])[window.head :])
            assert window.used == (0 if resource == "slots" else counted)
            assert len(window.times) == len(window.weights or [])
    assert not limiter._owners
