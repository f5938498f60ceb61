"""Callers of accounts that the storage does not know: served while it knows none, refused once it knows some."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

from routewright import Agent, Console, MemoryStorage, Router, Settings, SqliteStorage, ValidationFailed
from routewright.errors import PermissionDenied, StorageUnavailable
from routewright.protocols import Storage
from routewright.storage import open_storage
from routewright.testing import FakeClock, ScriptedProvider
from routewright.wire import AllAccounts, Caller, PutAccount, Query, Traces, UnknownAccounts
from tests.contracts.storage.samples import make_account

from .scripted_router import GOOD

pytestmark = pytest.mark.anyio

ACME, TYPO = Caller("acme"), Caller("acmee")
HINT = "add it with Console.create_account or 'routewright accounts create', or set Settings(unknown_accounts='serve')"
REFUSED = f"the account 'acmee' is unknown; did you mean 'acme'? {HINT}"
SERVED = f"the account 'acmee' is unknown, so nothing limits its calls; {HINT}"
HIDDEN = "the account 'acmee' is unknown; ask the operator to add it"


def make_router(
    storage: Storage, clock: FakeClock, unknown_accounts: UnknownAccounts = "auto", **router: Any
) -> Router:
    settings = Settings(clock=clock, unknown_accounts=unknown_accounts)
    provider = ScriptedProvider(lambda call: "hello", models=[GOOD], clock=clock)
    return Router(providers=[provider], storage=storage, settings=settings, **router)


async def refusal(router: Router, caller: Caller = TYPO, **options: Any) -> str:
    """What a call is refused with; empty if it is served."""
    try:
        await router.route("hi", caller=caller, **options)
    except PermissionDenied as error:
        return str(error) if error.request_id else "a refusal without an id"
    return ""


async def add(storage: Storage, *names: str) -> None:
    for name in names:
        await Console(storage).create_account(name, plan="unlimited")


async def check_that_it_is_refused_once_there_are_accounts(mine: Storage, theirs: Storage, clock: FakeClock) -> None:
    """``theirs``: the storage as another process has it."""
    router = make_router(mine, clock)
    assert [await refusal(router) for _ in range(3)] == ["", "", ""]
    await theirs.apply("default", [PutAccount(make_account(name="default"))])
    await clock.advance(3.0)
    assert await refusal(router) == "", "the default account is no reason"
    await add(theirs, "acme")
    await clock.advance(3.0)
    assert await refusal(router) == REFUSED
    assert await refusal(router, idempotency_key="k") == REFUSED
    assert [await refusal(router, caller) for caller in (ACME, Caller())] == ["", ""]
    await add(theirs, "acmee")
    assert await refusal(router) == "", "known at once, since it is looked up before a refusal"
    await router.aclose()


async def test_an_unknown_account_is_refused_once_the_storage_has_accounts(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    await check_that_it_is_refused_once_there_are_accounts(storage, storage, clock)


async def test_in_a_file_too(clock: FakeClock, tmp_path: Path) -> None:
    mine, theirs = (SqliteStorage(tmp_path / "store.db", clock=clock) for _ in range(2))
    await check_that_it_is_refused_once_there_are_accounts(mine, theirs, clock)
    await theirs.aclose()


async def test_in_postgresql_too(clock: FakeClock, postgres: str) -> None:
    mine, theirs = (open_storage(postgres, clock=clock) for _ in range(2))
    await check_that_it_is_refused_once_there_are_accounts(mine, theirs, clock)
    await theirs.aclose()


@pytest.mark.parametrize(
    ("setting", "known", "refused"),
    [
        ("auto", (), False),
        ("auto", ("acme",), True),
        ("serve", (), False),
        ("serve", ("acme",), False),
        ("refuse", (), True),
        ("refuse", ("acme",), True),
    ],
)
async def test_the_setting_decides(
    setting: UnknownAccounts, known: Sequence[str], refused: bool, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    storage = MemoryStorage(clock=clock)
    await add(storage, *known)
    router = make_router(storage, clock, setting)
    for _ in range(3):
        assert bool(await refusal(router)) is refused
        assert await refusal(router, Caller()) == ""
        assert await refusal(router, Caller("acmee", "sandbox")) == "", "never billed"
        await clock.advance(3.0)
    assert [message for message in caplog.messages if "unknown" in message] == [SERVED] * (
        setting == "auto" and not known
    )
    assert await storage.scan("acmee", Traces(environment="production"), after=None, limit=9) == [] or not refused


async def test_a_sandbox_router_refuses_no_account(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    await add(storage, "acme")
    router = Router.sandbox(storage=storage, settings=Settings(clock=clock, unknown_accounts="refuse"))
    assert await refusal(router) == ""


@pytest.mark.parametrize("caller", [Caller("acmee", key_id="own"), Caller("acmee", scopes=("route",))])
async def test_callers_with_keys_do_not_learn_of_other_accounts(caller: Caller, clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    await add(storage, "acme")
    assert await refusal(make_router(storage, clock), caller) == HIDDEN


async def test_every_kind_of_call_is_refused(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    await add(storage, "acme")
    router = make_router(storage, clock)

    async def read() -> None:
        async with router.stream("hi", caller=TYPO) as stream:
            assert [text async for text in stream.text()] == []

    async def step() -> None:
        router.steps("hi", caller=TYPO)

    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "stream": read,
        "steps": step,
        "agent": lambda: Agent(router).run("hi", caller=TYPO),
        "prepared": lambda: router.prepare("hi", caller=TYPO).run(),
        "decide": lambda: router.prepare("hi", caller=TYPO).decide(),
        "count": lambda: router.prepare("hi", caller=TYPO).count_tokens(),
    }
    for call in calls.values():
        with pytest.raises(PermissionDenied, match="'acmee' is unknown") as refused:
            await call()
        assert refused.value.body["error"]["message"] == HIDDEN, "it names no other account to a client"


async def test_a_caller_served_before_is_served_while_the_storage_is_away(clock: FakeClock) -> None:
    class Gone(MemoryStorage):
        is_gone = False

        async def read(self, account: str, query: Query) -> Any:
            if self.is_gone and isinstance(query, AllAccounts):
                raise StorageUnavailable("gone")
            return await super().read(account, query)

    storage = Gone(clock=clock)
    router = make_router(storage, clock)
    assert await refusal(router) == ""
    storage.is_gone = True
    await clock.advance(3.0)
    assert await refusal(router) == ""
    with pytest.raises(StorageUnavailable):
        await router.route("hi", caller=Caller("new"))


def test_a_wrong_setting_is_refused() -> None:
    with pytest.raises(ValidationFailed, match=r"unknown_accounts.*take 'auto', 'serve' or 'refuse'"):
        Settings(unknown_accounts="no")  # type: ignore[arg-type]
    assert get_args(UnknownAccounts) == ("auto", "serve", "refuse")
