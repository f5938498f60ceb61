"""A policy file is reloaded as a whole when it changes; an invalid one changes nothing and is reported."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from routewright import Event, Policy, Router, RouterError, Settings, ValidationFailed
from routewright._setup.input_file import Document, read
from routewright.policies import PolicyFile
from routewright.testing import FakeClock
from routewright.wire import PolicyChanged

pytestmark = pytest.mark.anyio

FAST = '[[policies]]\nname = "desk"\nmodels = ["openai/gpt-4.1"]\n'
GOOD = '[[policies]]\nname = "desk"\nmodels = ["openai/gpt-6-luna"]\n'
BAD = '[[policies]]\nname = "desk"\nmodells = ["openai/gpt-4.1"]\n'
UNKNOWN = '[[policies]]\nname = "desk"\nmodels = ["openai/gpt-0"]\n'


def write(path: Path, text: str) -> None:
    """As editors do: another file under the same name."""
    aside = path.with_suffix(".new")
    aside.write_text(text)
    os.replace(aside, path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "policies.toml"
    write(found, FAST)
    return found


def router(path: Path, clock: FakeClock) -> Router:
    return Router.sandbox(policies=PolicyFile(path, every_s=2), settings=Settings(clock=clock))


def model(router: Router) -> str:
    return router.decide("Hello", policy_id="desk").model


async def test_a_change_is_in_force_within_its_time(path: Path) -> None:
    clock = FakeClock()
    async with router(path, clock) as desk:
        assert model(desk) == "openai/gpt-4.1"
        write(path, GOOD)
        await clock.advance(1.9)
        assert model(desk) == "openai/gpt-4.1"
        await clock.advance(0.2)
        assert model(desk) == "openai/gpt-6-luna"


@pytest.mark.parametrize(("text", "said"), [(BAD, "modells"), (UNKNOWN, "openai/gpt-0")])
async def test_an_invalid_file_keeps_the_old_policies_and_logs_why_once(
    path: Path, text: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    file = PolicyFile(path)
    async with Router.sandbox(policies=file, settings=Settings(clock=clock)) as desk:
        model(desk)
        write(path, text)
        with caplog.at_level(logging.WARNING):
            await clock.advance(10)
        assert model(desk) == "openai/gpt-4.1"
        assert [said in record.message and str(path) in record.message for record in caplog.records] == [True]
        assert file.problem is not None
        write(path, GOOD)
        await clock.advance(2.1)
        assert model(desk) == "openai/gpt-6-luna"
        assert not isinstance(file.problem, ValidationFailed)


async def test_a_missing_file_keeps_the_old_policies(path: Path) -> None:
    clock = FakeClock()
    async with router(path, clock) as desk:
        model(desk)
        os.unlink(path)
        await clock.advance(3)
        assert model(desk) == "openai/gpt-4.1"
        write(path, GOOD)
        await clock.advance(3)
        assert model(desk) == "openai/gpt-6-luna"


def test_closing_does_not_wait_for_a_file_that_is_being_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Router.sandbox(policies=PolicyFile(path, every_s=1e6))
    assert desk.policies()
    reading, go_on = threading.Event(), threading.Event()

    def read_slowly(path: Path) -> Document:
        reading.set()
        go_on.wait()
        return read(path)

    monkeypatch.setattr("routewright.policies.read", read_slowly)
    reader = threading.Thread(target=suppressed, args=[desk.reload_policies], daemon=True)
    closer = threading.Thread(target=desk.blocking.close, daemon=True)
    try:
        reader.start()
        assert reading.wait(10)
        closer.start()
        closer.join(10)
        assert not closer.is_alive()
    finally:
        go_on.set()
        reader.join(10)


def suppressed(call: Callable[[], object]) -> None:
    """A router that was closed meanwhile takes no policies."""
    with suppress(RouterError):
        call()


async def test_at_the_start_an_invalid_file_is_refused(path: Path) -> None:
    write(path, BAD)
    with pytest.raises(ValidationFailed, match="modells"):
        model(router(path, FakeClock()))


async def test_a_request_under_way_keeps_its_policy(path: Path) -> None:
    clock = FakeClock()
    async with router(path, clock) as desk, desk.stream("Hello", policy_id="desk") as stream:
        await anext(stream)
        write(path, GOOD)
        await clock.advance(3)
        async for _ in stream:
            pass
        assert stream.result.routing.selected_model == "openai/gpt-4.1"
        assert model(desk) == "openai/gpt-6-luna"


async def test_a_reload_applies_at_once_and_returns_the_changes(path: Path) -> None:
    desk = router(path, FakeClock(1_800_000_000))
    today = "2027-01-15"
    policy = desk.policies()[0]
    assert desk.reload_policies() == []
    write(path, GOOD + '[[policies]]\nname = "new"\n')
    assert desk.reload_policies() == [
        PolicyChanged(policy.id, "desk", f"desk@{today}", f"desk@{today}.2"),
        PolicyChanged(desk.policies()[1].id, "new", None, f"new@{today}"),
    ]
    write(path, BAD)
    with pytest.raises(ValidationFailed, match="modells"):
        desk.reload_policies()
    assert model(desk) == "openai/gpt-6-luna"


async def test_hooks_are_called_for_policy_changes(path: Path) -> None:
    clock, heard = FakeClock(), list[Event]()
    async with router(path, clock) as desk:
        desk.on_event(heard.append)
        model(desk)
        write(path, GOOD)
        await clock.advance(3)
        await desk.flush()
    ((event,),) = (heard,)
    assert (event.type, event.account, event.environment) == ("router.policy_changed", "_system", "sandbox")
    assert isinstance(event.data, PolicyChanged)
    assert event.data.name == "desk"


async def test_the_next_day_begins_anew() -> None:
    clock = FakeClock(1_800_000_000)
    desk = Router.sandbox(policies=[Policy(name="desk")], settings=Settings(clock=clock))
    desk.policies()
    await clock.advance(86_400)
    changed = desk.reload_policies([Policy(name="desk", goal="quality")])
    assert [change.to_version for change in changed] == ["desk@2027-01-16"]


def test_invalid_policies_change_nothing() -> None:
    desk = Router.sandbox(policies=[Policy(name="desk")])
    before = desk.policies()
    for wrong in ([Policy(name="desk", models=["a/b"])], ["desk"], "policies.toml", [Policy(name="a@b")]):
        with pytest.raises(ValidationFailed):
            desk.reload_policies(wrong)  # type: ignore[arg-type]
        assert desk.policies() == before


def test_a_router_with_a_policy_file_accepts_no_other_policies(path: Path) -> None:
    with pytest.raises(ValidationFailed, match=r"policies: come from .*policies\.toml; change the file"):
        router(path, FakeClock()).reload_policies([Policy(name="desk")])


@pytest.mark.parametrize("every_s", [0, -1, float("inf"), float("nan"), True, "2"])
def test_an_invalid_interval_is_refused(path: Path, every_s: float) -> None:
    with pytest.raises(ValidationFailed, match=r"every_s: must be at least 0\.05"):
        PolicyFile(path, every_s=every_s)


@pytest.mark.parametrize("changes", [False, True])
def test_a_dropped_router_stops_watching_its_file(changes: bool, path: Path) -> None:
    file = PolicyFile(path, every_s=0.05)
    desk = Router.sandbox(policies=file)
    assert model(desk) == "openai/gpt-4.1"
    if changes:
        write(path, GOOD)
        soon = time.monotonic() + 20
        while model(desk) != "openai/gpt-6-luna" and time.monotonic() < soon:
            time.sleep(0.01)
    dropped, soon = weakref.ref(desk._parts), time.monotonic() + 5
    del desk
    while dropped() is not None and time.monotonic() < soon:  # a reload may be ending
        gc.collect()
        time.sleep(0.01)
    assert dropped() is None
