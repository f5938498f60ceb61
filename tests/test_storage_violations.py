"""What a storage of the host's own gives or raises, and may not, comes out of ``Console``, ``Ledger`` and
``TraceStore`` as an ``InternalError`` that names it, and none of its words."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

from routewright import (
    CallableProvider,
    Caller,
    Console,
    Ledger,
    MemoryStorage,
    Model,
    Policy,
    Pricing,
    Router,
    RouterError,
    SqliteStorage,
    Trace,
    TraceStore,
    ValidationFailed,
)
from routewright._engine.storage import _declared
from routewright.errors import InternalError, StorageUnavailable
from routewright.settings import Retention
from routewright.wire import NewKey, Query, Scan, WebhookAnswer
from tests.tables import table

pytestmark = pytest.mark.anyio

GARBAGE = [5, "garbage", [None], {}, {"a": 1}, True, b"x", [[]], (1, 2), object()]
"""What no query and no write is answered with."""
DOORS = ("read", "scan", "apply")


class Odd:
    """A storage that gives or raises one thing at one door, from ``odd`` on."""

    def __init__(self) -> None:
        self._inner = MemoryStorage()
        self.odd: str | None = None
        self.thing: Any = None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        return self._given if name == self.odd else method

    async def _given(self, *asked: Any, **rest: Any) -> Any:
        if isinstance(self.thing, Exception):
            raise self.thing
        return self.thing


class Place(NamedTuple):
    """A storage with one of everything."""

    storage: Odd
    new: NewKey
    operator: NewKey
    trace: Trace
    incident_id: str
    endpoint_id: str


async def place_in() -> Place:
    storage: Any = Odd()
    console = Console(storage, secret="0123456789abcdef" * 4, recheck_s=0)
    await console.create_account("acme", plan="pro", prepaid=True, monthly_limit_usd=5)
    new = await console.create_key("acme", name="website", budget_usd=1)
    operator = await console.create_key("_system", name="ada", scopes=["console:read"])
    await console.credit("acme", 5)
    incident = await console.open_incident("slow", severity="major")
    await console.policies.draft(Policy(name="desk"))
    await console.policies.publish("desk")
    endpoint = (await console.create_endpoint("acme", "https://hooks.example.com", events=["cache.evicted"])).endpoint
    model = Model(id="mine/one", pricing_per_1m=Pricing(1, 1))
    router = Router(providers=[CallableProvider(lambda call: "x", name="mine", models=[model])], storage=storage)
    caller = Caller("acme", "production", new.key.id)
    answer = await router.route("hi", caller=caller, policy_id="desk", params={"max_output_tokens": 50})
    trace = await router.trace(answer.trace_id, caller=caller)
    await router.flush()
    return Place(storage, new, operator, trace, incident.id, endpoint.id)


class NoTransport:
    """Reaches nobody."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> WebhookAnswer:
        raise OSError("nobody is there")

    async def aclose(self) -> None:
        """Nothing is open."""


def console_calls(place: Place) -> dict[str, Callable[[], Awaitable[object]]]:
    console = Console(place.storage, secret="0123456789abcdef" * 4, recheck_s=0)
    key_id = place.new.key.id
    return {
        "create_account": lambda: console.create_account("umbra"),
        "change_account": lambda: console.change_account("acme", plan="team"),
        "account": lambda: console.account("acme"),
        "accounts": console.accounts,
        "credit": lambda: console.credit("acme", 1, id="x"),
        "standing": lambda: console.standing("acme"),
        "nearest_limits": console.nearest_limits,
        "create_key": lambda: console.create_key("acme", name="other"),
        "keys": lambda: console.keys("acme"),
        "key": lambda: console.key("acme", key_id),
        "change_key": lambda: console.change_key("acme", key_id, name="other"),
        "revoke_key": lambda: console.revoke_key("acme", key_id),
        "end_sessions": lambda: console.end_sessions(place.operator.key.id),
        "authenticate": lambda: console.authenticate(f"Bearer {place.new.secret.reveal()}"),
        "authenticate_operator": lambda: console.authenticate_operator(f"Bearer {place.operator.secret.reveal()}"),
        "incidents": console.incidents,
        "open_incident": lambda: console.open_incident("slow", severity="major"),
        "resolve_incident": lambda: console.resolve_incident(place.incident_id),
        "create_endpoint": lambda: console.create_endpoint("acme", "https://hooks.example.com"),
        "endpoints": lambda: console.endpoints("acme"),
        "disable_endpoint": lambda: console.disable_endpoint("acme", place.endpoint_id),
        "enable_endpoint": lambda: console.enable_endpoint("acme", place.endpoint_id),
        "delete_endpoint": lambda: console.delete_endpoint("acme", place.endpoint_id),
        "rotate_endpoint": lambda: console.rotate_endpoint("acme", place.endpoint_id),
        "deliveries": lambda: console.deliveries("acme"),
        "replay": lambda: console.replay("acme", place.endpoint_id),
        "test_endpoint": lambda: console.test_endpoint("acme", place.endpoint_id, transport=NoTransport()),
        "simulate": lambda: console.simulate("desk"),
        "what_if": lambda: console.what_if(without=["mine/one"]),
        "compare": lambda: console.compare("desk"),
    }


def ledger_calls(place: Place) -> dict[str, Callable[[], Awaitable[object]]]:
    ledger = Ledger(place.storage).as_account("acme")

    async def rows() -> None:
        async for _ in ledger.rows():
            pass

    return {
        "rows": rows,
        "sums": ledger.sums,
    }


def trace_calls(place: Place) -> dict[str, Callable[[], Awaitable[object]]]:
    store = TraceStore(place.storage).as_account("acme")
    trace_id = place.trace.id

    async def export() -> None:
        async for _ in store.export():
            pass

    return {
        "record": lambda: store.record(place.trace),
        "get": lambda: store.get(trace_id),
        "query": store.query,
        "export": export,
        "delete": lambda: store.delete(trace_id=trace_id),
        "retain": lambda: store.retain(Retention()),
        "retention": store.retention,
        "feedback": lambda: store.feedback(trace_id, 1),
        "feedback_of": lambda: store.feedback_of(trace_id),
        "usage": lambda: store.usage(group_by="metadata.team"),
        "cache_report": store.cache_report,
        "fallback_report": store.fallback_report,
        "latency_report": store.latency_report,
        "latency_by_day": store.latency_by_day,
        "usage_groups": store.usage_groups,
    }


CALLS = {Console: console_calls, Ledger: ledger_calls, TraceStore: trace_calls}
KINDS = pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)


@KINDS
def test_it_takes_a_storage_or_its_url(kind: Any, tmp_path: Path) -> None:
    storage = MemoryStorage()
    assert kind(storage)._storage is storage
    assert repr(kind(storage)) == f"{kind.__name__}({storage!r})"
    assert isinstance(kind("memory:")._storage, MemoryStorage)
    assert isinstance(kind(f"sqlite:///{tmp_path}/traces.db")._storage, SqliteStorage)
    assert list(tmp_path.iterdir()) == []


@KINDS
@table("given", [None, 7, MemoryStorage, object(), "traces.db", "mysql://host/db", "sqlite:"])
def test_anything_but_a_storage_is_refused(kind: Any, given: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"storage|url"):
        kind(given)


async def met(place: Place, call: Callable[[], Awaitable[object]], door: str, thing: object) -> RouterError | None:
    """What a call raises while one door of its storage is odd."""
    place.storage.odd, place.storage.thing = door, thing
    try:
        await call()
    except RouterError as error:
        return error
    finally:
        place.storage.odd = None
    return None


@pytest.mark.parametrize("door", DOORS)
@KINDS
async def test_a_wrong_result_is_an_error_that_names_the_storage(kind: type, door: str, tmp_path: Path) -> None:
    place = await place_in()
    for name, call in CALLS[kind](place).items():
        for thing in [*GARBAGE, None, []]:
            error = await met(place, call, door, thing)
            if isinstance(error, InternalError) and not isinstance(error, StorageUnavailable):
                assert str(error).startswith(f"Odd.{door} must return "), (name, error)
                assert str(error).endswith(f", got {type(thing).__name__}"), (name, error)


@KINDS
async def test_every_method_notices_a_wrong_result(kind: type, tmp_path: Path) -> None:
    place = await place_in()
    found: dict[str, set[str]] = {}
    for name, call in CALLS[kind](place).items():
        found[name] = {door for door in DOORS for thing in GARBAGE if await met(place, call, door, thing)}
    assert all(found.values()), found


@KINDS
async def test_an_error_of_the_storage_is_named_by_its_type_alone(kind: type, tmp_path: Path) -> None:
    place = await place_in()
    for name, call in CALLS[kind](place).items():
        for door in DOORS:
            error = await met(place, call, door, ValueError("canary"))
            assert "canary" not in str(error), (name, door)


@KINDS
async def test_every_method_is_tested(kind: type, tmp_path: Path) -> None:
    asks = {
        name
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and (inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method))
    }
    assert asks - {"aclose", "rotate_secret", "deliver"} == set(CALLS[kind](await place_in()))


def test_every_query_has_a_declared_result() -> None:
    asked: Sequence[type] = [*get_args(Query), *get_args(Scan)]
    assert {*_declared("read"), *_declared("scan")} == set(asked)
