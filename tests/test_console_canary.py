"""No key and no secret is seen where nobody asked for it: not in errors, logs, files, nor in what objects show of
themselves, whatever is passed to a ``Console`` by mistake."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routewright import Console, RouterError, SqliteStorage
from routewright._core.account import new_key
from routewright.root_secret import secret_path
from routewright.testing import FakeClock
from routewright.wire import AllAccounts, Incidents, KeyByDigest, Keys, NewKey, Stands

from .engine.sightings import Watch
from .offices import Watched, bearer, holds

pytestmark = pytest.mark.anyio

STRAY = new_key("production", bytes(range(24)))
"""A key that somebody passes where none belongs."""
ROOT = "CanaryRootSecretCanaryRootSecret"
VALID: dict[str, dict[str, Any]] = {
    "create_account": {"name": "umbra", "plan": "pro", "limits": None, "prepaid": False, "monthly_limit_usd": 1},
    "change_account": {"name": "acme", "plan": "pro", "limits": None, "prepaid": False, "monthly_limit_usd": 1},
    "account": {"name": "acme"},
    "accounts": {},
    "credit": {"account": "acme", "usd": 1, "note": "", "id": None},
    "standing": {"account": "acme"},
    "create_key": {"account": "acme", "name": "x", "environment": "production", "scopes": None, "limits": None,
                   "budget_usd": None, "monthly_limit_usd": None},
    "keys": {"account": "acme"},
    "key": {"account": "acme", "key_id": "key_1"},
    "change_key": {"account": "acme", "key_id": "key_1", "name": "x", "scopes": None, "limits": None,
                   "budget_usd": None, "monthly_limit_usd": None},
    "revoke_key": {"account": "acme", "key_id": "key_1"},
    "authenticate": {"authorization": f"Bearer {STRAY}", "environment": None},
    "open_incident": {"title": "x", "severity": "minor", "status_url": None},
    "resolve_incident": {"id": "inc_1"},
    "incidents": {},
    "rotate_secret": {"force": False},
    "create_endpoint": {"account": "acme", "url": "https://hooks.example.com", "events": None,
                        "environment": "production", "profile": "service", "allow_loopback": False},
    "endpoints": {"account": "acme"},
    "disable_endpoint": {"account": "acme", "endpoint_id": "whe_1"},
    "enable_endpoint": {"account": "acme", "endpoint_id": "whe_1"},
    "delete_endpoint": {"account": "acme", "endpoint_id": "whe_1"},
    "rotate_endpoint": {"account": "acme", "endpoint_id": "whe_1", "overlap_s": 60.0},
    "deliveries": {"account": "acme", "endpoint_id": None, "state": None, "after": None, "limit": 50},
    "replay": {"account": "acme", "endpoint_id": "whe_1", "event_id": None},
    "test_endpoint": {"account": "acme", "endpoint_id": "whe_1", "transport": None, "allow_loopback": False},
}  # fmt: skip
"""All methods, and what each takes."""
STRAYS: dict[str, Any] = {
    "alone": STRAY, "in a text": f"the key is {STRAY}, keep it", "in a list": [STRAY], "in a dict": {STRAY: STRAY},
    "in bytes": STRAY.encode(), "cut": f"{'x' * 30}{STRAY}", "twice": STRAY * 2, "in a header": f"Bearer {STRAY}",
}  # fmt: skip


@pytest.fixture
def watch() -> Iterator[Watch]:
    with Watch([STRAY, STRAY[8:], STRAY[8:20], ROOT, ROOT[:16]]) as watching:
        yield watching
    assert watching.seen == []
    assert watching.looked


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
async def console(watched: Watched, clock: FakeClock) -> Console:
    console = Console(watched, clock=clock, secret=ROOT)
    await console.create_account("acme", prepaid=True)
    return console


async def tried(console: Console, method: str, given: dict[str, Any], watch: Watch) -> RouterError | None:
    """Look at what a call gives, or fails with."""
    try:
        result = await getattr(console, method)(**given)
    except RouterError as error:
        watch.look_at_error(method, error)
        return error
    watch.look_at(method, result)
    return None


def test_every_method_is_covered() -> None:
    waits = {name for name, _ in inspect.getmembers(Console, inspect.iscoroutinefunction) if not name.startswith("_")}
    assert set(VALID) == waits - {"aclose", "deliver"}
    for name in VALID:
        assert set(VALID[name]) == set(inspect.signature(getattr(Console, name)).parameters) - {"self"}


@pytest.mark.parametrize("stray", STRAYS.values(), ids=list(STRAYS))
@pytest.mark.parametrize("method", [name for name, takes in VALID.items() if takes])
async def test_a_key_passed_as_another_argument_is_not_shown(
    method: str, stray: Any, console: Console, watch: Watch
) -> None:
    for name in VALID[method]:
        error = await tried(console, method, VALID[method] | {name: stray}, watch)
        assert error is not None, f"{method}({name}=...) keeps a key"


@pytest.mark.parametrize("how", ["away", "read only", "cannot know"])
@pytest.mark.parametrize("method", VALID)
async def test_a_key_is_not_shown_if_the_storage_fails(
    method: str, how: str, console: Console, watched: Watched, watch: Watch
) -> None:
    watched.is_away = how == "away"
    watched.is_read_only = how == "read only"
    if how == "cannot know":
        watched.kept = None  # every call of it is a fault
    await tried(console, method, VALID[method], watch)


async def test_a_valid_key_is_shown_only_to_its_creator(clock: FakeClock, tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "traces.db", clock=clock)
    with Watch([]) as watch:
        console = Console(storage, clock=clock)
        await console.create_account("acme")
        new = await console.create_key("acme", name="x", budget_usd=1)
        text = new.secret.reveal()
        watch.words = [text, text[8:], text[12:24], secret_path(storage.path).read_text().strip()]
        for _ in range(2):
            assert await holds(console, new)
            for given in (new, new.key, console, console.blocking, await console.authenticate(bearer(new))):
                watch.look_at("what it gives", given)
            watch.look_at_pickle("the pickle", new)
            for method in ("keys", "standing", "accounts"):
                await tried(console, method, VALID[method], watch)
            for wrong in (f"Bearer {text}x", f"Bearer x{text}", f"Basic {text}", text, f"Bearer {text} {text}"):
                await tried(console, "authenticate", {"authorization": wrong}, watch)
            await tried(console, "authenticate", {"authorization": bearer(new), "environment": "sandbox"}, watch)
            await console.rotate_secret()
            words = secret_path(storage.path).read_text().split()
            watch.words = [*watch.words, *words]
            await tried(console, "rotate_secret", {"force": False}, watch)
        await console.revoke_key("acme", new.key.id)
        await tried(console, "authenticate", {"authorization": bearer(new)}, watch)
        await console.aclose()
        secret_path(storage.path).unlink()
        watch.look_at_files(tmp_path)
    assert watch.seen == []


async def test_a_new_key_is_neither_encoded_nor_copied(console: Console) -> None:
    new = await console.create_key("acme", name="x")
    text = new.secret.reveal()
    for encode in (msgspec.json.encode, msgspec.msgpack.encode, msgspec.to_builtins):
        with pytest.raises(TypeError, match="objects of type Secret"):
            encode(new)
    for each in (json.dumps({"key": new.secret}), f"{new.secret}{new}", repr(copy.deepcopy(new))):
        assert text not in each
    copied: NewKey = pickle.loads(pickle.dumps(new))
    assert copied.secret.reveal() == "***"
    assert copied.key == new.key


async def test_no_key_reaches_the_storage(console: Console, watched: Watched, watch: Watch) -> None:
    new = await console.create_key("acme", name="x")
    assert await holds(console, new)
    watch.words = [*watch.words, new.secret.reveal(), new.secret.reveal()[12:24]]
    for account, query in (("acme", Keys()), ("_system", AllAccounts()), ("_system", Incidents())):
        watch.look_at("what is stored", await watched.kept.read(account, query))
    found = await watched.kept.read("_system", KeyByDigest((new.key.digest,)))
    watch.look_at("what is stored", found)
    watch.look_at("what is stored", await watched.kept.read("acme", Stands("2026-11-22T00:00:00.000Z", new.key.id)))
