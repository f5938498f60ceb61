"""Any order of calls, crashes, ends that come late and clocks that step: a key has one holder at a time, and one result
for a day."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from routewright.errors import PreconditionFailed
from routewright.wire import (
    SYSTEM_ACCOUNT,
    ClaimByKey,
    ClaimKey,
    DeleteResults,
    EndClaim,
    Environment,
    KeepLease,
    KeyClaim,
    Write,
    Written,
)

from .ledger_model import LATE_S
from .machines import Place, now, run

DAY_S = 86_400.0
A_BOOT_S = 1e6
ENVIRONMENTS: tuple[Environment, ...] = ("production", "sandbox")
keys, owners = st.sampled_from(("k1", "k2")), st.sampled_from(("a", "b", "c"))
environments, leases = st.sampled_from(ENVIRONMENTS), st.sampled_from((10.0, 30.0))


@dataclass
class Call:
    """One that asked for a key and got it."""

    number: int
    owner: str
    began_at: float
    until: float = 0.0
    result: bytes | None = None

    @property
    def name(self) -> str:
        return f"tr_{self.number}"


Key = tuple[Environment, str]


class ClaimModel:
    """Who has which key, in the words of contract 7."""

    def __init__(self) -> None:
        self.holders: dict[Key, Call] = {}
        self.kept: dict[str, tuple[float, float]] = {}
        self.last_clock = 0.0

    def speak(self, owner: str, lease_s: float, clock_s: float) -> None:
        self.kept[owner] = clock_s, lease_s
        self.last_clock = clock_s

    def lives(self, owner: str, clock_s: float) -> bool:
        spoke_at, lease_s = self.kept.get(owner, (0.0, 0.0))
        return spoke_at - LATE_S <= clock_s < spoke_at + lease_s

    def holder(self, key: Key, clock_s: float, at: float) -> Call | None:
        call = self.holders.get(key)
        if call is None:
            return None
        holds = self.lives(call.owner, clock_s) if call.result is None else at < call.until
        return call if holds else None

    def sweep(self, at: float) -> int:
        """Results that are past their time go, and calls of a day ago that nobody will end."""
        old = {
            key: call for key, call in self.holders.items()
            if (at >= call.until if call.result is not None
                else at >= call.began_at + DAY_S and not self.lives(call.owner, self.last_clock))
        }  # fmt: skip
        for key in old:
            del self.holders[key]
        return sum(call.result is not None for call in old.values())


class Machine(RuleBasedStateMachine):
    """One account's keys, and the model of them."""

    place: Place

    def __init__(self) -> None:
        super().__init__()
        self.storage = self.place.make()
        self.model = ClaimModel()
        self.clock_s, self.at = 100 * A_BOOT_S, 1_795_478_400.0
        self.begun: list[tuple[Key, Call]] = []

    @rule(key=keys, environment=environments, owner=owners, lease_s=leases)
    def ask(self, key: str, environment: Environment, owner: str, lease_s: float) -> None:
        name, call = (environment, key), Call(len(self.begun), owner, self.at)
        is_free = self.model.holder(name, self.clock_s, self.at) is None
        assert self._put(self._claim(name, call, lease_s)).created is is_free
        if is_free:
            self.model.speak(owner, lease_s, self.clock_s)
            self.model.holders[name] = call
            self.begun.append((name, call))

    @rule(data=st.data(), lease_s=leases)
    def ask_again(self, data: st.DataObject, lease_s: float) -> None:
        if not self.begun:
            return
        name, call = data.draw(st.sampled_from(self.begun))
        there = self.model.holders.get(name)
        runs = there is not None and there.name == call.name and there.result is None
        is_free = runs or self.model.holder(name, self.clock_s, self.at) is None
        assert self._put(self._claim(name, call, lease_s)).created is is_free
        if is_free:
            self.model.speak(call.owner, lease_s, self.clock_s)
            again = Call(call.number, call.owner, self.at)
            self.model.holders[name] = again
            self.begun.append((name, again))

    @rule(data=st.data(), succeeds=st.booleans(), kept_s=st.sampled_from((1.0, DAY_S)), tells=st.booleans())
    def end(self, data: st.DataObject, succeeds: bool, kept_s: float, tells: bool) -> None:
        if not self.begun:
            return
        name, call = data.draw(st.sampled_from(self.begun))
        result = call.name.encode() if succeeds else None
        write = EndClaim(
            key=name[1], environment=name[0], call=call.name, result=result, until=self.at + kept_s,
            durability="buffered", fingerprint=f"of {call.name}" if tells else None,
        )  # fmt: skip
        there = self.model.holders.get(name)
        is_its = there is not None and there.name == call.name
        if there is None and succeeds and tells:
            assert self._put(write) == Written(created=True)
            self.model.holders[name] = Call(call.number, call.owner, call.began_at, self.at + kept_s, result)
            return
        if succeeds and not is_its:
            with pytest.raises(PreconditionFailed):
                self._put(write)
            return
        assert self._put(write) == Written(created=False, count=int(is_its))
        if there is not None and is_its and there.result is None:
            there.result, there.until = result, self.at + kept_s
            if not succeeds:
                del self.model.holders[name]

    @rule(owner=owners, lease_s=leases)
    def keep(self, owner: str, lease_s: float) -> None:
        self.model.speak(owner, lease_s, self.clock_s)
        now(self.storage.apply(SYSTEM_ACCOUNT, [KeepLease(owner, lease_s, self.clock_s)]))

    @rule(seconds=st.sampled_from((1.0, 9.0, 10.0, 31.0, DAY_S)))
    def wait(self, seconds: float) -> None:
        self.clock_s += seconds
        self.at += seconds

    @rule(seconds=st.sampled_from((-DAY_S, -3_600.0, -1.0, 3_600.0, DAY_S)))
    def set_the_time(self, seconds: float) -> None:
        self.at += seconds

    @rule()
    def start_the_machine_anew(self) -> None:
        self.clock_s = (self.clock_s // A_BOOT_S - 1) * A_BOOT_S
        self.storage = self.place.again(self.storage)

    @rule()
    def sweep(self) -> None:
        assert now(self.storage.sweep(self.at)) == self.model.sweep(self.at)

    @rule(environment=st.none() | environments)
    def delete_results(self, environment: Environment | None) -> None:
        gone = [
            key for key, call in self.model.holders.items()
            if call.result is not None and environment in (None, key[0])
        ]  # fmt: skip
        for key in gone:
            del self.model.holders[key]
        assert self._put(DeleteResults(environment, durability="buffered")).count == len(gone)

    @invariant()
    def each_key_has_the_holder_that_it_should_have(self) -> None:
        for environment in ENVIRONMENTS:
            for key in ("k1", "k2"):
                found = now(self.storage.read("acme", ClaimByKey(key, environment, self.clock_s, self.at)))
                call = self.model.holder((environment, key), self.clock_s, self.at)
                expected = None if call is None else KeyClaim(f"of {call.name}", call.name, call.result)
                assert found == expected

    def teardown(self) -> None:
        self.place.close(self.storage)

    def _put(self, write: Write) -> Written:
        (written,) = now(self.storage.apply("acme", [write]))
        return written

    def _claim(self, name: Key, call: Call, lease_s: float) -> ClaimKey:
        return ClaimKey(
            key=name[1], environment=name[0], fingerprint=f"of {call.name}", call=call.name, owner=call.owner,
            lease_s=lease_s, clock_s=self.clock_s, at=self.at,
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_whatever_happens_a_key_has_one_holder(kind: str, tmp_path: Path, full: bool) -> None:
    run(type("Placed", (Machine,), {"place": Place(kind, tmp_path)}), full=full)
