"""No change of an account or a key undoes another: what is written is what was read, changed, or it is read again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright import Console, MemoryStorage, RateLimits, SqliteStorage, ValidationFailed
from routewright._engine.storage import TRIES
from routewright.errors import PreconditionFailed
from routewright.protocols import Storage
from routewright.testing import FakeClock
from routewright.wire import NewKey, Stands, Written

from .console_storage import Watched, bearer, holds

pytestmark = pytest.mark.anyio

OLD, PRESENT = "an old secret that is long enough", "the present secret, also long enough"
LIMITS = RateLimits(requests_per_min=7)
Change = Callable[[], Awaitable[object]]


class Interrupted(Watched):
    """A storage in which others come between what is read and what is written."""

    def __init__(self, kept: Storage) -> None:
        super().__init__(kept)
        self.between: list[Change] = []
        """What they do, the last first."""

    async def read(self, account: str, query: Any) -> Any:
        found = await super().read(account, query)
        if isinstance(query, Stands) and self.between:
            await self.between.pop()()
        return found


class Shuffled(Watched):
    """A storage that lets other tasks go first, by chance."""

    chance = Random(0)

    async def read(self, account: str, query: Any) -> Any:
        await self._pause()
        found = await super().read(account, query)
        await self._pause()
        return found

    async def apply(self, account: str, writes: Any) -> list[Written]:
        await self._pause()
        return await super().apply(account, writes)

    async def _pause(self) -> None:
        for _ in range(self.chance.randrange(4)):
            await checkpoint()


@pytest.fixture(params=["memory", "sqlite"])
async def storage(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock
) -> AsyncIterator[MemoryStorage | SqliteStorage]:
    made = MemoryStorage() if request.param == "memory" else SqliteStorage(tmp_path / "traces.db", clock=clock)
    yield made
    await made.aclose()


@pytest.fixture
def interrupted(storage: Storage) -> Interrupted:
    return Interrupted(storage)


@pytest.fixture
def mine(interrupted: Interrupted, clock: FakeClock) -> Console:
    return Console(interrupted, clock=clock, secret=[PRESENT, OLD])


@pytest.fixture
def theirs(storage: Storage, clock: FakeClock) -> Console:
    """Another process's, where the secret was not changed yet."""
    return Console(storage, clock=clock, secret=OLD)


async def a_key(console: Console) -> NewKey:
    await console.create_account("acme", plan="pro", limits=LIMITS, monthly_limit_usd=5)
    return await console.create_key("acme", name="x", budget_usd=5)


async def test_terms_are_checked_together_with_concurrent_changes(
    mine: Console, theirs: Console, interrupted: Interrupted
) -> None:
    await a_key(theirs)
    interrupted.between = [lambda: theirs.change_account("acme", limits=None)]
    with pytest.raises(ValidationFailed, match="limits: are missing"):
        await mine.change_account("acme", plan="enterprise")
    assert (await theirs.account("acme")).plan == "pro"


async def test_a_key_revoked_during_a_change_is_revoked_and_changed(
    mine: Console, theirs: Console, interrupted: Interrupted
) -> None:
    key = (await a_key(theirs)).key
    interrupted.between = [lambda: theirs.revoke_key("acme", key.id)]
    changed = await mine.change_key("acme", key.id, name="y")
    assert changed == await theirs.key("acme", key.id)
    assert (changed.name, changed.revoked_at) == ("y", "2026-11-22T12:00:00.000Z")


async def test_a_key_changed_meanwhile_moves_to_the_new_secret_later(
    mine: Console, theirs: Console, interrupted: Interrupted, clock: FakeClock
) -> None:
    new = await a_key(theirs)
    interrupted.between = [lambda: theirs.change_key("acme", new.key.id, scopes=["models:read"], budget_usd=1)]
    assert await holds(mine, new)
    narrowed = replace(new.key, scopes=("models:read",), budget_nanos=10**9)
    assert await theirs.key("acme", new.key.id) == narrowed
    await clock.advance(2)
    assert (await mine.authenticate(bearer(new))).scopes == ("models:read",)
    went_over = await theirs.key("acme", new.key.id)
    assert went_over == replace(narrowed, digest=went_over.digest)
    assert went_over.digest != new.key.digest


async def test_a_key_revoked_while_it_moves_to_the_new_secret_stays_revoked(
    mine: Console, theirs: Console, interrupted: Interrupted, clock: FakeClock
) -> None:
    new = await a_key(theirs)
    interrupted.between = [lambda: theirs.revoke_key("acme", new.key.id)]
    assert await holds(mine, new)
    await clock.advance(2)
    assert not await holds(mine, new)
    assert (await theirs.key("acme", new.key.id)).digest == new.key.digest


@pytest.mark.parametrize("others", [TRIES - 1, TRIES])
async def test_a_change_that_always_loses_raises_precondition_failed(
    others: int, mine: Console, theirs: Console, interrupted: Interrupted
) -> None:
    key = (await a_key(theirs)).key

    def renamed(number: int) -> Change:
        return lambda: theirs.change_key("acme", key.id, name=f"name {number}")

    def reset(number: int) -> Change:
        return lambda: theirs.change_account("acme", monthly_limit_usd=number)

    for between, doing, what in (
        (renamed, mine.change_key("acme", key.id, budget_usd=1), f"key '{key.id}'"),
        (reset, mine.change_account("acme", plan="team"), "account 'acme'"),
    ):
        interrupted.between = [between(number) for number in range(others)]
        if others < TRIES:
            await doing
            continue
        with pytest.raises(PreconditionFailed) as failed:
            await doing
        assert str(failed.value) == f"{what} was not changed: 10 concurrent changes came first; try again"
    changed = (await theirs.key("acme", key.id)).budget_usd == 1, (await theirs.account("acme")).plan == "team"
    assert changed == (others < TRIES, others < TRIES)


async def test_a_change_without_a_difference_succeeds(mine: Console, theirs: Console) -> None:
    key = (await a_key(theirs)).key
    assert await mine.change_key("acme", key.id) == key
    assert await mine.change_key("acme", key.id, name=key.name) == key


KEY_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "name": st.sampled_from(["a", "b", "c"]),
    "scopes": st.sampled_from([None, ["route"], ["models:read", "route"]]),
    "limits": st.sampled_from([None, LIMITS, RateLimits(concurrency=1)]),
    "budget_usd": st.sampled_from([None, 0, 1, 2.5]),
    "monthly_limit_usd": st.sampled_from([None, 0, 1, 2.5]),
}
ACCOUNT_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "plan": st.sampled_from(["free", "pro", "team"]),
    "limits": st.sampled_from([None, LIMITS, RateLimits(concurrency=1)]),
    "prepaid": st.booleans(),
    "monthly_limit_usd": st.sampled_from([None, 0, 1, 2.5]),
}


def _named(name: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return values.map(lambda value: {name: value})


def _round() -> st.SearchStrategy[list[tuple[int, str, dict[str, Any]]]]:
    """Changes of different fields, each by one of two consoles."""
    one = [
        st.tuples(st.integers(0, 1), st.just(kind), _named(name, values))
        for kind, some in (("key", KEY_FIELDS), ("account", ACCOUNT_FIELDS))
        for name, values in some.items()
    ]
    return st.tuples(*one).flatmap(st.permutations).flatmap(lambda all_: st.integers(1, 9).map(lambda n: all_[:n]))


@given(st.lists(_round(), min_size=1, max_size=4), st.integers(0, 2**32), st.booleans())
def test_every_concurrent_change_is_kept(
    rounds: list[list[tuple[int, str, dict[str, Any]]]], seed: int, revoked: bool
) -> None:
    anyio.run(_all_stick, Shuffled(), rounds, seed, revoked)


@pytest.mark.parametrize("seed", range(3))
async def test_every_concurrent_change_through_two_storages_is_kept(seed: int, tmp_path: Path) -> None:
    chance = Random(seed)
    every: list[tuple[str, dict[str, Any]]] = [
        *(("key", {"name": f"name {seed}"}), ("key", {"budget_usd": seed}), ("key", {"scopes": ["route"]})),
        *(("key", {"limits": LIMITS}), ("account", {"plan": "team"}), ("account", {"prepaid": True})),
    ]
    storages = [SqliteStorage(tmp_path / "traces.db") for _ in range(2)]
    rounds = [[(chance.randrange(2), *each) for each in chance.sample(every, len(every))] for _ in range(5)]
    await _all_stick(storages[0], rounds, seed, revoked=True, other=storages[1])
    for storage in storages:
        await storage.aclose()


async def _all_stick(
    storage: Storage,
    rounds: list[list[tuple[int, str, dict[str, Any]]]],
    seed: int,
    revoked: bool,
    other: Storage | None = None,
) -> None:
    """Make the changes of each round at once, while the key is used after a change of the secret."""
    Shuffled.chance = Random(seed)
    old, consoles = Console(storage, secret=OLD), [
        Console(each, secret=[PRESENT, OLD], recheck_s=0) for each in (storage, other or storage)
    ]  # fmt: skip
    new = await a_key(old)
    key, account = new.key, await old.account("acme")

    async def made(who: int, kind: str, terms: dict[str, Any]) -> None:
        console = consoles[who]
        if kind == "key":
            await console.change_key("acme", key.id, **terms)
        else:
            await console.change_account("acme", **terms)

    for number, changes in enumerate(rounds):
        async with anyio.create_task_group() as tasks:
            for change in changes:
                tasks.start_soon(made, *change)
            tasks.start_soon(consoles[number % 2].authenticate, bearer(new))
        for _, kind, terms in changes:
            if kind == "key":
                key = replace(key, **_as_kept(terms))
            else:
                account = replace(account, **_as_kept(terms))
        there = await old.key("acme", key.id)
        assert there == replace(key, digest=there.digest)
        assert await old.account("acme") == account
    await consoles[0].authenticate(bearer(new))
    assert (await old.key("acme", key.id)).digest != key.digest
    if revoked:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consoles[0].revoke_key, "acme", key.id)
            tasks.start_soon(made, 1, "key", {"name": "at last"})
        last = await old.key("acme", key.id)
        assert (last.name, last.revoked_at is None) == ("at last", False)


def _as_kept(terms: dict[str, Any]) -> dict[str, Any]:
    ((name, value),) = terms.items()
    match name:
        case "budget_usd" | "monthly_limit_usd":
            return {name.split("_")[0] + "_nanos": None if value is None else round(value * 10**9)}
        case "scopes":
            return {name: None if value is None else tuple(sorted(value, reverse=True))}
    return terms
