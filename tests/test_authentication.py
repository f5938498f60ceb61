"""``Console.authenticate``: whose a key is, for how long that is believed, and what becomes of keys when the root
secret changes."""

from __future__ import annotations

import random
import string
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from routewright import Caller, Console, MemoryStorage, Router, SqliteStorage, ValidationFailed
from routewright._core.accounts.keys import new_key, unknown_key_error
from routewright._core.crypto import derive, mac
from routewright._setup.root_secret import BEFORE, SECRET, SecretFile
from routewright.errors import AuthenticationFailed, PermissionDenied, StorageUnavailable
from routewright.protocols import Storage
from routewright.testing import FakeClock
from routewright.wire import Environment, KeyByDigest, NewKey, PutKey, Stands

from .console_storage import Watched, bearer, holds
from .engine.leaks import Watch

pytestmark = pytest.mark.anyio

OLD, PRESENT, NEW = (f"the {name} secret, which is long enough" for name in ("old", "present", "new"))


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def console(watched: Watched, clock: FakeClock) -> Console:
    return Console(watched, clock=clock, secret=PRESENT)


async def a_key(console: Console, **given: Any) -> NewKey:
    """A key of an account that is set up for it."""
    if not await console.accounts():
        await console.create_account("acme")
    return await console.create_key("acme", **{"name": "x"} | given)


async def refused(console: Console, header: Any, environment: Environment | None = None) -> str:
    with pytest.raises(AuthenticationFailed) as failed:
        await console.authenticate(header, environment)
    return str(failed.value)


# Whose it is


async def test_a_caller_has_the_account_environment_and_scopes_of_its_key(console: Console) -> None:
    live = await a_key(console, scopes=["route", "models:read"])
    test = await a_key(console, environment="sandbox")
    expected = Caller("acme", "production", live.key.id, ("route", "models:read"))
    assert await console.authenticate(bearer(live)) == expected
    assert await console.authenticate(bearer(live), "production") == expected
    assert await console.authenticate(bearer(live).replace("Bearer", "bearer"), "production") == expected
    assert await console.authenticate(bearer(test), "sandbox") == Caller("acme", "sandbox", test.key.id, None)


async def test_an_operators_key_and_an_accounts_are_taken_at_their_own_doors(
    console: Console, clock: FakeClock
) -> None:
    theirs = await a_key(console)
    ours = await console.create_key("_system", name="ada", scopes=["console:read"])
    for _ in range(2):  # from the storage, and from the cache
        expected = Caller("_system", "production", ours.key.id, ("console:read",))
        assert await console.authenticate_operator(bearer(ours)) == expected
        with pytest.raises(PermissionDenied) as failed:
            await console.authenticate(bearer(ours), "production")
        told = "the API key is an operator's, for the page of the server; use one of an account"
        assert str(failed.value) == told
        assert await holds(console, theirs)
        with pytest.raises(PermissionDenied) as failed:
            await console.authenticate_operator(bearer(theirs))
        command = "'routewright keys create _system --name NAME --scope console:read'"
        assert str(failed.value) == f"the API key is not an operator's; make one with {command}"
    for header in (None, "", "Bearer x", "Bearer sk_live_" + "0" * 33, bearer(ours)[:-1]):
        with pytest.raises(AuthenticationFailed):
            await console.authenticate_operator(header)
    with pytest.raises(ValidationFailed, match=r"caller.account: '_system' is the Router's own"):
        Router.sandbox().as_caller(expected)


@pytest.mark.parametrize("place", ["memory", "sqlite"])
async def test_a_revoked_key_of_an_operator_is_refused_at_once_here_and_within_two_seconds_elsewhere(
    place: str, tmp_path: Path, clock: FakeClock
) -> None:
    storage: Storage = MemoryStorage() if place == "memory" else SqliteStorage(tmp_path / "traces.db", clock=clock)
    here, there = (Console(storage, clock=clock, secret=PRESENT) for _ in range(2))
    new = await here.create_key("_system", name="ada", scopes=["console:write"])
    for console in (here, there):
        await console.authenticate_operator(bearer(new))
    await here.revoke_key("_system", new.key.id)
    with pytest.raises(AuthenticationFailed):
        await here.authenticate_operator(bearer(new))
    await clock.advance(2)
    with pytest.raises(AuthenticationFailed):
        await there.authenticate_operator(bearer(new))
    assert not await holds(there, new)
    await here.aclose()


async def test_a_key_of_the_other_environment_is_refused_with_a_hint(console: Console) -> None:
    live, test = await a_key(console), await a_key(console, environment="sandbox")
    assert await refused(console, bearer(live), "sandbox") == (
        "this address takes sk_test_... keys; send the sk_live_... key to the production address"
    )
    assert await refused(console, bearer(test), "production") == (
        "this address takes sk_live_... keys; send the sk_test_... key to the sandbox address"
    )
    with pytest.raises(ValidationFailed, match="environment"):
        await console.authenticate(bearer(live), "live")  # type: ignore[arg-type]


async def test_unknown_and_revoked_keys_take_the_same_path_to_the_same_error(
    console: Console, watched: Watched
) -> None:
    revoked = await a_key(console)
    await console.revoke_key("acme", revoked.key.id)
    unknown = new_key("production", random.Random(7).randbytes(24))
    ways = []
    for header in (f"Bearer {unknown}", bearer(revoked)):
        watched.asked.clear()
        ways.append((await refused(console, header), dict(watched.asked)))
    assert ways == [(str(unknown_key_error()), {"KeyByDigest": 1})] * 2


async def test_malformed_keys_are_refused_without_a_storage_read(console: Console, watched: Watched) -> None:
    for header in (None, "", "Bearer x", "Bearer sk_live_short", "Basic eDp5", 7, b"Bearer x"):
        await refused(console, header)
    assert not watched.asked


async def test_a_key_whose_account_is_gone_is_unknown(console: Console, watched: Watched) -> None:
    new = await a_key(console)
    await watched.kept.apply("umbra", [PutKey(replace(new.key, account="umbra", id="key_2", digest="x"))])
    other = new_key("production", random.Random(7).randbytes(24))
    digest = console._authenticator.load_peppers()[0].digest(other)
    await watched.kept.apply("umbra", [PutKey(replace(new.key, account="umbra", id="key_3", digest=digest))])
    assert await refused(console, f"Bearer {other}") == str(unknown_key_error())
    assert await holds(console, new)


async def test_a_wrong_key_from_the_storage_is_refused(clock: FakeClock) -> None:
    class Mistaken(MemoryStorage):
        async def read(self, account: str, query: Any) -> Any:
            return new.key if isinstance(query, KeyByDigest) else await super().read(account, query)

    console = Console(Mistaken(), clock=clock, secret=PRESENT)
    new = await a_key(console)
    unknown = new_key("production", random.Random(7).randbytes(24))
    assert await refused(console, f"Bearer {unknown}") == str(unknown_key_error())
    unknown = new_key("sandbox", random.Random(7).randbytes(24))
    assert await refused(console, f"Bearer {unknown}") == str(unknown_key_error())
    assert await holds(console, new)


# How long it is believed


async def test_results_are_cached_for_two_seconds(console: Console, watched: Watched, clock: FakeClock) -> None:
    new = await a_key(console)
    await holds(console, new)
    watched.asked.clear()
    await clock.advance(1.999)
    assert await holds(console, new)
    assert not watched.asked
    await clock.advance(0.001)
    assert await holds(console, new)
    assert watched.asked == {"KeyByDigest": 1, "Stands": 1}


@pytest.mark.parametrize("how", ["revoke_key", "change_key"])
async def test_changes_of_this_console_apply_at_once(how: str, console: Console) -> None:
    new = await a_key(console)
    assert await holds(console, new)
    if how == "revoke_key":
        await console.revoke_key("acme", new.key.id)
        assert not await holds(console, new)
    else:
        await console.change_key("acme", new.key.id, scopes=["models:read"])
        assert (await console.authenticate(bearer(new))).scopes == ("models:read",)


async def test_refusals_are_not_cached(console: Console, watched: Watched, clock: FakeClock) -> None:
    new = await a_key(console)
    behind = Console(Watched(), clock=clock, secret=PRESENT)
    assert not await holds(behind, new)
    behind._authenticator._storage = watched
    assert await holds(behind, new)


async def test_without_storage_only_cached_keys_are_accepted_until_they_expire(
    console: Console, watched: Watched, clock: FakeClock
) -> None:
    known, unmet = await a_key(console), await a_key(console)
    assert await holds(console, known)
    watched.is_away = True
    await clock.advance(1.999)
    assert await holds(console, known)
    with pytest.raises(StorageUnavailable):
        await holds(console, unmet)
    await clock.advance(0.001)
    for _ in range(3):
        with pytest.raises(StorageUnavailable):
            await holds(console, known)
    watched.is_away = False
    assert await holds(console, known)
    assert await holds(console, unmet)


async def test_the_cache_is_bounded(console: Console, watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("routewright._setup.authentication.MAX_CACHED", 3)
    made = [await a_key(console) for _ in range(5)]
    for new in made:
        assert await holds(console, new)
    assert len(console._authenticator._cache) == 3
    watched.asked.clear()
    assert await holds(console, made[4])
    assert not watched.asked
    assert await holds(console, made[0])
    assert watched.asked["KeyByDigest"] == 1


# Whatever is sent


def headers(chance: random.Random, real: str) -> Any:
    """What somebody might send: nothing like a key, nearly one, one that was made up, a real one that was damaged."""
    shape = chance.randrange(8)
    if shape == 0:
        return "".join(map(chr, chance.choices(range(0x3000), k=chance.randrange(300))))
    if shape == 1:
        return chance.randbytes(chance.randrange(200)).decode("latin-1")
    if shape == 2:
        return f"Bearer {''.join(chance.choices(string.printable, k=chance.randrange(100)))}"
    if shape == 3:
        return f"Bearer {new_key(chance.choice(['production', 'sandbox']), chance.randbytes(24))}"
    place = chance.randrange(len(real))
    if shape == 4:
        return f"Bearer {real[:place]}{chance.choice(string.printable)}{real[place:]}"
    if shape == 5:
        return f"Bearer {real[:place]}{chance.choice(string.ascii_letters)}{real[place + 1 :]}"
    if shape == 6:
        return chance.choice(["Basic ", "bearer ", "Token ", "", "BEARER  ", "Bearer\t"]) + real[:place]
    return chance.choice([None, 7, 1.5, b"Bearer " + real.encode(), [real], {"key": real}, ("Bearer", real), object()])


async def test_any_invalid_header_is_refused_and_never_shown(console: Console, full: bool) -> None:
    chance, new = random.Random(20261122), await a_key(console)
    real = new.secret.reveal()
    with Watch([real, real[8:20]]) as watch:
        for number in range(100_000 if full else 700):
            header = headers(chance, real)
            if isinstance(header, str) and header.split()[1:] == [real]:
                continue  # it was not damaged
            environment: Any = chance.choice([None, "production", "sandbox"])
            with pytest.raises(AuthenticationFailed) as failed:
                await console.authenticate(header, environment)
            said = str(failed.value)
            assert not isinstance(header, str) or len(header) < 12 or header not in said
            if number % 100 == 0:
                watch.look_at_error("the error", failed.value)
            watch.look_for("the error", said)
    assert watch.seen == []
    assert await holds(console, new)


# When the root secret changes


@pytest.mark.parametrize("place", ["memory", "sqlite"])
async def test_a_key_in_use_survives_any_number_of_rotations(place: str, tmp_path: Path, clock: FakeClock) -> None:
    storage: Storage = MemoryStorage() if place == "memory" else SqliteStorage(tmp_path / "traces.db", clock=clock)
    one, other = Console(storage, clock=clock), Console(storage, clock=clock)
    new = await a_key(one)
    digests = {new.key.digest}
    for _ in range(4):
        await one.rotate_secret()
        for console in (other, one, other):
            assert await holds(console, new)
        digests.add((await one.key("acme", new.key.id)).digest)
        await clock.advance(2)
        assert await holds(other, new)
    assert len(digests) == 5
    await one.aclose()


async def test_an_unused_key_blocks_the_next_rotation_unless_forced(clock: FakeClock) -> None:
    console = Console(MemoryStorage(), clock=clock)
    used, idle, gone = [await a_key(console, name=name) for name in ("used", "idle", "gone")]
    await console.rotate_secret()
    assert await holds(console, used)
    await console.revoke_key("acme", gone.key.id)
    with pytest.raises(ValidationFailed) as failed:
        await console.rotate_secret()
    assert str(failed.value) == (
        "force: 1 live key was not used since the last rotation: 'idle of acme'; use or revoke them, "
        "or pass force=True to invalidate them"
    )
    late = await a_key(console, name="late")
    assert await holds(console, used)
    await console.rotate_secret(force=True)
    assert not await holds(console, idle)
    assert await holds(console, used)
    assert await holds(console, late)
    await console.rotate_secret()


async def test_keys_of_sessions_follow_the_root_secret(tmp_path: Path, clock: FakeClock) -> None:
    assert Console(Watched(), secret=[PRESENT, OLD]).session_keys() == (
        derive(PRESENT.encode(), "ui session"), derive(OLD.encode(), "ui session"),
    )  # fmt: skip
    storage = SqliteStorage(tmp_path / "traces.db", clock=clock)
    here, there = Console(storage, clock=clock), Console(storage, clock=clock)
    (before,) = here.session_keys()
    assert there.session_keys() == (before,)
    await there.rotate_secret()
    new, previous = here.session_keys()
    assert previous == before != new
    other = Watched()  # without a durable secret: that of this process
    assert Console(other).session_keys() == Console(other).session_keys() != Console(Watched()).session_keys()


async def test_a_key_created_after_a_rotation_elsewhere_is_valid(tmp_path: Path, clock: FakeClock) -> None:
    storage = SqliteStorage(tmp_path / "traces.db", clock=clock)
    here = Console(storage, clock=clock)
    await here.create_account("acme")
    early = await a_key(here)
    file = SecretFile(storage.path)
    file.rotate(file.load()[0])  # another process does it
    late = await a_key(here)
    assert here._authenticator.load_peppers()[0].matches(late.key.digest)
    for new in (early, late):
        assert await holds(Console(storage, clock=clock), new)
    await here.aclose()


async def test_a_process_with_only_the_previous_secret_finds_moved_keys(tmp_path: Path, clock: FakeClock) -> None:
    storage = SqliteStorage(tmp_path / "traces.db", clock=clock)
    behind, ahead = Console(storage, clock=clock), Console(storage, clock=clock)
    new = await a_key(behind)
    assert await holds(behind, new)
    await ahead.rotate_secret()
    assert await holds(ahead, new)
    assert (await ahead.key("acme", new.key.id)).digest != new.key.digest
    await clock.advance(2)
    assert await holds(behind, new)
    await behind.aclose()


async def test_a_key_of_the_previous_secret_is_valid_if_the_storage_is_read_only(
    watched: Watched, clock: FakeClock
) -> None:
    new = await a_key(Console(watched, clock=clock, secret=OLD))
    console = Console(watched, clock=clock, secret=[PRESENT, OLD])
    watched.is_read_only = True
    assert await holds(console, new)
    assert (await console.key("acme", new.key.id)) == new.key
    watched.is_read_only = False
    await clock.advance(2)
    assert await holds(console, new)
    assert (await console.key("acme", new.key.id)).digest != new.key.digest


async def test_a_slow_write_delays_authentication_by_at_most_a_quarter_of_a_second(clock: FakeClock) -> None:
    class Slow(MemoryStorage):
        slow = False

        async def apply(self, account: str, writes: Any) -> Any:
            if self.slow:
                await clock.sleep(60)
            return await super().apply(account, writes)

    clock = FakeClock(clock.time())
    storage = Slow()
    new = await a_key(Console(storage, clock=clock, secret=OLD))
    storage.slow = True
    began = clock.monotonic()
    assert await holds(Console(storage, clock=clock, secret=[PRESENT, OLD]), new)
    assert clock.monotonic() - began == pytest.approx(0.25)


@pytest.mark.parametrize("steps", [[(PRESENT, NEW), (NEW, PRESENT), (NEW, "")]])
async def test_a_staggered_change_of_the_variables_refuses_no_key(
    steps: list[tuple[str, str]], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = MemoryStorage()

    def started(secret: str, before: str) -> Console:
        monkeypatch.setenv(SECRET, secret)
        monkeypatch.setenv(BEFORE, before)
        console = Console(storage, clock=clock, recheck_s=0)
        console._secret.load()
        return console

    old = started(PRESENT, "")
    new = await a_key(old)
    for secret, before in steps:
        restarted = started(secret, before)
        for console in (restarted, old, restarted, old, restarted):
            assert await holds(console, new)
        old = restarted
    with pytest.raises(ValidationFailed, match=f"{SECRET}: sets the root secret, which only you can change"):
        await old.rotate_secret()


def test_digests_name_the_pepper_derived_from_the_root_secret(clock: FakeClock) -> None:
    text = new_key("production", bytes(24))
    console = Console(MemoryStorage(), clock=clock, secret=[NEW, PRESENT])
    newest, before = console._authenticator.load_peppers()
    mark, _, digest = before.digest(text).partition(":")
    assert digest == mac(derive(PRESENT.encode(), "key pepper"), text.encode()).hex()
    assert len(mark) == 8
    assert before.matches(f"{mark}:{digest}")
    assert not newest.matches(f"{mark}:{digest}")
    assert PRESENT not in repr(vars(console._authenticator) | {"peppers": [repr(newest), repr(before)]})


async def test_the_second_read_is_of_the_account_of_the_key(console: Console, watched: Watched) -> None:
    """A storage is asked across accounts once; all else goes by the account that it named."""
    new = await a_key(console)
    asked: list[tuple[str, type]] = []

    async def read(account: str, query: Any) -> Any:
        asked.append((account, type(query)))
        return await watched.kept.read(account, query)

    watched.read = read  # type: ignore[method-assign]
    await console.authenticate(bearer(new))
    assert asked == [("_system", KeyByDigest), ("acme", Stands)]
