"""Key rotation: a key is used until refused, then the next; if all are refused, the one that is due soonest."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import OpenAIProvider
from routewright.backends.providers.http import LIMITED_S, LONGEST_S, MAX_KEYS, REFUSED_S, KeyRing, pause_of
from routewright.errors import ProviderFault
from routewright.testing import FakeClock
from routewright.wire.account import Secret
from tests.tables import table

UNKNOWN = ProviderFault("auth", status=401)
MODEL = "x/gpt-x"


def limited(seconds: float | None) -> ProviderFault:
    return ProviderFault("rate_limited", status=429, retry_after=seconds)


class Keys:
    """A ring of named keys on virtual time."""

    def __init__(self, names: str) -> None:
        self.clock = FakeClock()
        self.ring = KeyRing([Secret(name) for name in names], self.clock, "test", "api_key")

    def turn(self) -> str:
        """The keys that a call would try if all refused."""
        return "".join(key.reveal() for key in self.ring.choose(MODEL))

    def refuse(self, name: str, fault: ProviderFault) -> None:
        assert self.ring.refuse(self[name], fault)

    def __getitem__(self, name: str) -> Secret:
        return next(key for key in self.ring.keys if key.reveal() == name)

    def call(self, outcomes: dict[str, ProviderFault]) -> tuple[str, ProviderFault | None]:
        """Try the keys like a provider. Returns the tried ones and the fault."""
        asked, faults = "", {}
        for key in self.ring.choose(MODEL):
            asked += key.reveal()
            fault = outcomes.get(key.reveal())
            if fault is None:
                return asked, None
            assert self.ring.refuse(key, fault)
            faults[key] = fault
        return asked, self.ring.fault_of(faults)

    def pass_time(self, seconds: float) -> None:
        self.clock._now += seconds


@table(
    ("fault", "seconds"),
    [
        (ProviderFault("auth", status=401), REFUSED_S),
        (ProviderFault("auth", status=402), REFUSED_S),
        (ProviderFault("auth", status=403), REFUSED_S),
        (ProviderFault("auth", status=400), REFUSED_S),  # some hosts say so of an invalid key
        (ProviderFault("refused", status=403), None),  # the content, not the key
        (ProviderFault("model_not_found", status=403), None),
        (limited(None), LIMITED_S),
        (limited(0.0), 0.0),
        (limited(7.0), 7.0),
        (limited(86_400.0), LONGEST_S),
        (ProviderFault("rate_limited", status=498), None),  # the host's own capacity
        (ProviderFault("server", status=503), None),
        (ProviderFault("connect"), None),
    ],
)
def test_only_faults_of_the_key_suspend_it(fault: ProviderFault, seconds: float | None) -> None:
    keys = Keys("ab")
    assert pause_of(fault) == seconds
    assert keys.ring.refuse(keys["a"], fault) == (seconds is not None)


def test_a_key_is_used_until_refused_and_then_its_successor() -> None:
    keys = Keys("abc")
    assert keys.call({}) == keys.call({}) == ("a", None)
    assert keys.call({"a": UNKNOWN}) == ("ab", None)
    keys.pass_time(REFUSED_S)
    assert keys.call({}) == ("b", None), "its prompt cache is warm"


def test_a_refused_key_is_tried_again_after_its_time() -> None:
    keys = Keys("ab")
    keys.call({"a": limited(3.0)})
    keys.pass_time(2.9)
    assert keys.call({"b": UNKNOWN}) == ("ba", None), "due soonest"
    keys.pass_time(0.2)
    assert keys.call({}) == ("a", None)


def test_a_key_that_became_available_meanwhile_needs_no_wait() -> None:
    keys, first, second = Keys("ab"), limited(1.0), limited(9.0)
    keys.refuse("a", first)
    keys.pass_time(2.0)
    keys.refuse("b", second)
    assert keys.ring.fault_of({keys["a"]: first, keys["b"]: second}) is first
    assert first.retry_after == 0.0


def test_a_fault_other_than_a_limit_is_unchanged() -> None:
    fault = ProviderFault("auth", status=401)
    assert Keys("ab").call({"a": fault, "b": ProviderFault("auth", status=402)}) == ("ab", fault)
    assert fault.retry_after is None


def test_a_key_freed_by_another_thread_leaves_the_last_fault() -> None:
    keys = Keys("ab")
    fault = ProviderFault("auth", status=401)
    keys.refuse("b", fault)
    assert keys.ring.fault_of({keys["b"]: fault}) is fault


def test_concurrent_refusals_are_not_lost() -> None:
    keys = Keys("abcdefgh")
    threads = [threading.Thread(target=lambda: keys.call(dict.fromkeys("abcdefg", UNKNOWN))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert keys.call({}) == ("h", None)


def test_one_call_tries_a_bounded_number_of_keys() -> None:
    keys = Keys("abcdefghijkl")
    asked, _ = keys.call(dict.fromkeys("abcdefghijkl", UNKNOWN))
    assert asked == "abcdefgh"
    assert len(asked) == MAX_KEYS
    assert keys.call({})[0] == "i", "the next call goes on behind them"


FAULTS = st.sampled_from([UNKNOWN, limited(None), limited(0.0), limited(2.0), limited(45.0), limited(9_999.0)])
CALLS = st.tuples(st.dictionaries(st.sampled_from("abcd"), FAULTS), st.sampled_from([0.0, 0.5, 5.0, 50.0, 500.0]))


@given(st.integers(1, 4), st.lists(CALLS, max_size=12))
def test_each_key_is_tried_once_a_call_available_ones_first(
    count: int, calls: Sequence[tuple[dict[str, ProviderFault], float]]
) -> None:
    keys = Keys("abcd"[:count])
    due = dict.fromkeys("abcd"[:count], 0.0)
    for outcomes, pause_s in calls:
        now = keys.clock.monotonic()
        free = {name for name in due if due[name] <= now}
        aside = {
            name: pause_of(refusal) or 0.0 for name, refusal in outcomes.items()
        }  # the one that is told is changed
        asked, fault = keys.call(outcomes)
        for name in asked:
            if name in outcomes:
                due[name] = now + aside[name]
        assert len(set(asked)) == len(asked) >= 1
        assert (fault is None) == (asked[-1] not in outcomes)
        assert all(name in outcomes for name in asked[:-1])
        assert free.issubset(asked) or fault is None, "no fault while a key was free"
        assert set(asked[: len(free)]) <= free, "those aside come last"
        assert len(set(asked) - free) <= 1, "and one of them at most"
        if fault is not None and fault.kind == "rate_limited":
            assert fault.retry_after == pytest.approx(min(due.values()) - now)
        keys.pass_time(pause_s)


# --- limits that an answer used up


def test_a_used_up_key_comes_last_until_the_reset_or_five_minutes() -> None:
    keys = Keys("abc")
    keys.ring.accept(keys["a"], MODEL, 3_600.0)
    assert next(keys.ring.choose("x/other")).reveal() == "a"
    assert keys.turn() == "bca", "it is due soonest, so it is asked where no other is left"
    keys.pass_time(LONGEST_S - 1.0)
    assert keys.ring.due_at(keys["a"], MODEL) - keys.clock.monotonic() == pytest.approx(1.0)
    keys.pass_time(1.0)
    assert keys.ring.due_at(keys["a"], MODEL) == keys.clock.monotonic()


def test_each_key_is_logged_when_it_is_refused_and_when_it_works_again(caplog: pytest.LogCaptureFixture) -> None:
    keys = Keys("abc")
    for _ in range(100):
        keys.refuse("a", UNKNOWN)
    keys.refuse("b", ProviderFault("auth"))
    keys.refuse("c", limited(None))  # this is no refusal
    keys.refuse("c", ProviderFault("auth", status=402))
    keys.pass_time(7200.0)
    for _ in range(100):
        keys.ring.accept(keys["b"], MODEL, None)
    assert [record.getMessage() for record in caplog.records] == [
        "test refused key 1 of 3 (status 401): calls use the other 2",
        "test refused key 2 of 3 (auth): calls use the other one",
        "test refused key 3 of 3 (status 402): none is left for its models; renew api_key",
        "test accepts key 2 of 3, after 2 h",
    ]


def test_a_lone_key_is_logged_with_its_variable(caplog: pytest.LogCaptureFixture) -> None:
    provider = OpenAIProvider(environ={"OPENAI_API_KEY": "sk-canary-key"})
    assert provider._keys.sole is not None
    provider._keys.refuse(provider._keys.sole, UNKNOWN)
    assert (provider.refused_keys, caplog.messages) == (
        1,
        ["openai refused key 1 of 1 (status 401): none is left for its models; renew OPENAI_API_KEY"],
    )


def test_a_key_that_serves_one_model_and_not_another_is_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    keys = Keys("ab")
    for _ in range(500):
        keys.refuse("a", ProviderFault("auth", status=403))
        keys.pass_time(15.0)
        keys.ring.accept(keys["a"], MODEL, None)
        keys.pass_time(15.0)
    assert len(caplog.records) == 3
    assert "it flaps" in caplog.messages[-1]
