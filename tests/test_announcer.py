"""Who hears of a change: all who share the file beside a store, without being told where it is."""

from __future__ import annotations

import asyncio
import os
from math import inf
from pathlib import Path

import pytest

from routewright import (
    AuthenticationFailed,
    Console,
    MemoryCoordination,
    MemoryStorage,
    Router,
    Settings,
    SqliteCoordination,
    SqliteStorage,
    StorageUnavailable,
)
from routewright.coordination import ANNOUNCE_S, limits_path
from routewright.testing import FakeClock
from routewright.wire import Notice

from .offices import bearer, fake_clock

pytestmark = pytest.mark.anyio
HIDDEN = "redis://:password@host"


@pytest.fixture
def clock() -> FakeClock:
    return fake_clock()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "traces.db"


def files(store: Path) -> list[str]:
    """Beside a store."""
    return sorted(path.name for path in store.parent.iterdir())


async def test_a_change_is_told_in_the_file_beside_the_store(store: Path, clock: FakeClock) -> None:
    listening = SqliteCoordination(limits_path(store), clock=clock)
    last = (await listening.hear(None)).last
    async with Console(SqliteStorage(store, clock=clock), clock=clock) as console:
        await console.create_account("acme")
        assert (await listening.hear(last)).notices == (Notice("account", "acme"),)
    await listening.aclose()


async def test_where_nobody_listens_no_file_is_made(store: Path, clock: FakeClock) -> None:
    console = Console(SqliteStorage(store, clock=clock), clock=clock)
    assert files(store) == []
    await console.create_account("acme")
    await console.aclose()
    assert files(store) == ["traces.db"]


async def test_nothing_is_opened_before_there_is_something_to_tell(store: Path, clock: FakeClock) -> None:
    async with Console(SqliteStorage(store, clock=clock), clock=clock) as console:
        await console.create_account("acme")
        limits_path(store).write_bytes(b"")
        assert (await console.account("acme")).name == "acme"
        assert limits_path(store).read_bytes() == b""
        await console.change_account("acme", plan="pro")
        assert limits_path(store).read_bytes() != b""


async def test_who_was_given_a_coordination_tells_it_alone_and_leaves_it_open(store: Path, clock: FakeClock) -> None:
    class Given(MemoryCoordination):
        closed = 0

        async def aclose(self) -> None:
            self.closed += 1

    given = Given(clock=clock)
    limits_path(store).write_bytes(b"")
    last = (await given.hear(None)).last
    async with Console(SqliteStorage(store, clock=clock), coordination=given, clock=clock) as console:
        await console.create_account("acme")
    assert (await given.hear(last)).notices == (Notice("account", "acme"),)
    assert given.closed == 0
    assert limits_path(store).read_bytes() == b""


class Odd(MemoryCoordination):
    """Its announcing fails, or never ends."""

    def __init__(self, clock: FakeClock, fault: BaseException | None) -> None:
        super().__init__(clock=clock)
        self._waits, self._fault = clock, fault

    async def announce(self, notice: Notice) -> None:
        if self._fault is not None:
            raise self._fault
        await self._waits.sleep(inf)


ODD = [ConnectionError(HIDDEN), StorageUnavailable(HIDDEN), asyncio.CancelledError(HIDDEN), KeyError(HIDDEN), None]


@pytest.mark.parametrize("fault", ODD, ids=lambda fault: type(fault).__name__)
async def test_a_new_key_is_shown_whatever_becomes_of_announcing_it(
    fault: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    storage, clock = MemoryStorage(), FakeClock()
    console = Console(storage, coordination=Odd(clock, fault), secret="s" * 40, clock=clock)
    await console.create_account("acme")
    caplog.clear()
    began = clock.monotonic()
    new = await console.create_key("acme", name="x", environment="sandbox")
    assert clock.monotonic() - began == (ANNOUNCE_S if fault is None else 0)
    assert (await console.authenticate(bearer(new), "sandbox")).key_id == new.key.id
    why = "no answer within 0.25 s" if fault is None else type(fault).__name__
    assert caplog.messages == [f"a change was not announced ({why}): it holds within 2 s"]


async def test_credit_counts_once_whatever_becomes_of_the_file_beside_the_store(
    store: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> Path:
        raise PermissionError(HIDDEN)

    async with Console(SqliteStorage(store, clock=clock), clock=clock) as console:
        await console.create_account("acme", prepaid=True)
        monkeypatch.setattr("routewright.coordination.limits_path", refuse)
        assert (await console.credit("acme", 5)).balance_usd == 5
    assert caplog.messages == ["a change was not announced (PermissionError): it holds within 2 s"]


async def test_one_who_is_cancelled_while_he_tells_is_cancelled() -> None:
    clock = FakeClock()
    console = Console(MemoryStorage(), coordination=Odd(clock, None), clock=clock)
    with clock.deadline(clock.monotonic() + ANNOUNCE_S / 2) as deadline:
        await console.create_account("acme")
    assert deadline.expired
    assert (await console.account("acme")).name == "acme"


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="nobody says here which files are open")
async def test_what_it_opened_itself_is_closed_with_it_and_opened_again(store: Path, clock: FakeClock) -> None:
    def is_open() -> bool:
        links = (path for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
        return any(os.readlink(link).startswith(str(limits_path(store))) for link in links if link.is_symlink())

    listening = SqliteCoordination(limits_path(store), clock=clock)
    await listening.hear(None)
    await listening.aclose()
    console = Console(SqliteStorage(store, clock=clock), clock=clock)
    assert not is_open()
    await console.create_account("acme")
    for plan in ("pro", "team"):
        assert is_open()
        await console.aclose()
        assert not is_open()
        await console.change_account("acme", plan=plan)
    await console.aclose()


async def test_a_router_of_the_same_file_hears_at_once_that_a_key_was_revoked(store: Path, clock: FakeClock) -> None:
    console = Console(SqliteStorage(store, clock=clock), clock=clock)
    await console.create_account("acme")
    new = await console.create_key("acme", name="x", environment="sandbox")
    caller = await console.authenticate(bearer(new), "sandbox")
    router = Router.sandbox(storage=SqliteStorage(store, clock=clock), settings=Settings(clock=clock))
    assert (await router.route("hi", caller=caller)).trace.key_id == new.key.id
    for _ in range(20):  # it begins to listen
        await clock.sleep(0.0)
    await console.revoke_key("acme", new.key.id)
    await clock.advance(0.25)  # it looks so often
    for _ in range(20):
        await clock.sleep(0.0)
    with pytest.raises(AuthenticationFailed):
        await router.route("hi", caller=caller)
    await router.aclose()
    await console.aclose()
