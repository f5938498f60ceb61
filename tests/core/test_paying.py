"""A call comes by its money, waits for it, or is refused: never for what is not known to be so by now."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.paying import Choose, Free, Look, Paying, PayStep, Queue, Refuse, Wait
from routewright.wire import Purse, Standing


def purse(name: str, left: int | None) -> Purse:
    """One of which so much is left; None: it has no limit."""
    limit = None if left is None else 100
    return Purse(name=name, level="key", limit_nanos=limit, spent_nanos=0 if left is None else 100 - left)


KEY, ACCOUNT, OPEN = purse("key", 40), purse("account", 90), purse("month", None)
SPENT = purse("key", 1)


def paying(*purses: Purse, behind: Purse | None = None) -> Paying:
    return Paying(Standing(None, None, purses), behind)


def after(machine: Paying, *said: Callable[[Paying], None]) -> PayStep:
    for each in said:
        each(machine)
    return machine.next


def looks(*purses: Purse) -> Callable[[Paying], None]:
    return lambda machine: machine.looked(Standing(None, None, purses))


def held(of: Purse) -> Callable[[Paying], None]:
    return lambda machine: machine.held(of)


def first(of: Purse) -> Callable[[Paying], None]:
    return lambda machine: machine.first(of)


def full(of: Purse) -> Callable[[Paying], None]:
    return lambda machine: machine.full(of)


BOTH = looks(KEY, ACCOUNT, OPEN)


@pytest.mark.parametrize(
    ("said", "then"),
    [
        ([], Choose(KEY)),
        ([looks(OPEN)], Free()),
        ([looks()], Free()),
        ([Paying.short], Look()),
        ([Paying.short, BOTH], Choose(KEY)),
        ([Paying.short, BOTH, Paying.short], Refuse(KEY)),
        ([full(SPENT)], Choose(SPENT)),
        ([full(SPENT), Paying.short], Refuse(SPENT)),
        ([full(purse("account", 50)), Paying.short], Look()),
        ([full(purse("account", 5)), Paying.short], Refuse(purse("account", 5))),
        ([held(KEY)], Queue(KEY)),
        ([held(KEY), first(KEY)], Look()),
        ([held(KEY), first(KEY), BOTH, held(KEY)], Wait(KEY)),
        ([held(KEY), first(KEY), BOTH, held(KEY), Paying.waited], Look()),
        ([held(KEY), first(KEY), BOTH, held(ACCOUNT)], Queue(ACCOUNT)),
        ([held(KEY), first(KEY), BOTH, held(ACCOUNT), first(ACCOUNT), BOTH, held(KEY)], Queue(KEY)),
    ],
)
def test_what_follows_is_what_the_table_says(said: list[Callable[[Paying], None]], then: PayStep) -> None:
    assert after(paying(KEY, ACCOUNT, OPEN), *said) == then


def test_a_call_stands_behind_those_who_wait_for_what_it_needs_before_it_asks() -> None:
    assert paying(KEY, ACCOUNT, behind=ACCOUNT).next == Queue(ACCOUNT)
    assert after(paying(KEY, ACCOUNT, behind=ACCOUNT), first(ACCOUNT)) == Look()


SOME = st.lists(
    st.builds(purse, st.sampled_from(["key", "account", "month"]), st.none() | st.integers(0, 100)),
    max_size=3,
    unique_by=lambda each: each.name,
)


@given(SOME, st.lists(st.tuples(SOME, st.sampled_from(["short", "held", "full"])), min_size=1))
def test_it_is_refused_only_by_the_tightest_purse_and_only_by_what_was_heard_since(
    begins: list[Purse], news: list[tuple[list[Purse], str]]
) -> None:
    machine, known, heard = paying(*begins), {each.name: each for each in begins}, set[str]()
    for purses, said in news:
        match machine.next:
            case Free():
                assert all(each.limit_nanos is None for each in known.values())
                return
            case Refuse(by):
                assert by.name in heard
                assert by == known[by.name]
                return
            case Look():
                machine.looked(Standing(None, None, tuple(purses)))
                known = {each.name: each for each in purses}
                heard = set(known)
            case Queue(of):
                machine.first(of)
            case Wait():
                machine.waited()
            case Choose(within):
                limited = [each.left_nanos or 0 for each in known.values() if each.limit_nanos is not None]
                assert within.left_nanos == min(limited)
                if said == "short":
                    machine.short()
                elif said == "held":
                    machine.held(within)
                else:
                    machine.full(within)
                    heard.add(within.name)
