"""Contract of webhook deliveries: endpoints receive the events they select, and each delivery is leased to one."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from routewright._core.webhooks.outbox import HISTORY_S
from routewright.errors import PreconditionFailed
from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    ClaimDeliveries,
    Claimed,
    DeleteEndpoint,
    DeleteResults,
    Deliveries,
    Delivery,
    DeliveryAttempt,
    DeliveryState,
    EndAttempt,
    Endpoint,
    Endpoints,
    PutEndpoint,
    PutEvent,
    ReplayDeliveries,
    SealedSecret,
    Write,
    Written,
)
from routewright.wire.timestamps import timestamp

from .samples import AT, NOW, make_event
from .traces import Suite

ENDPOINT = Endpoint(
    id="whe_1",
    account="acme",
    url="https://hooks.example/in",
    events=("router.error_burst", "incident.created"),
    created_at=AT,
    secrets=(SealedSecret("c2VhbGVk"),),
)
OTHER = replace(ENDPOINT, id="whe_2", account="other", created_at=timestamp(NOW + 1))
FAILED = DeliveryAttempt(timestamp(NOW), 12.5, 503)


class Outgoing(Suite):
    """``PutEvent`` and settlements start deliveries, claims lease them, ``EndAttempt`` records the outcome."""

    async def test_an_endpoint_is_replaced_by_the_last_put_of_its_account(self, storage: Storage) -> None:
        second, changed = replace(ENDPOINT, id="whe_0", created_at=OTHER.created_at), replace(ENDPOINT, url="https://b")
        assert (await _put(storage, ENDPOINT)).created
        assert (await _put(storage, second)).created
        assert not (await _put(storage, changed, expect=ENDPOINT)).created
        with pytest.raises(PreconditionFailed):
            await _put(storage, ENDPOINT, expect=ENDPOINT)
        await _put(storage, OTHER, expect="absent")
        with pytest.raises(PreconditionFailed):
            await _put(storage, replace(OTHER, account="acme"))
        assert await storage.read("acme", Endpoints()) == [changed, second]
        assert await storage.read("other", Endpoints()) == [OTHER]
        assert await storage.read("other", Endpoints(of_all=True)) == [OTHER]
        assert await storage.read(SYSTEM_ACCOUNT, Endpoints(of_all=True)) == [changed, second, OTHER]
        assert (await storage.apply("other", [DeleteEndpoint(second.id)]))[0].count == 0
        assert (await storage.apply("acme", [DeleteEndpoint(second.id)]))[0].count == 1
        assert await storage.read("acme", Endpoints()) == [changed]

    async def test_deliveries_go_with_their_endpoint(self, storage: Storage) -> None:
        await _put(storage, ENDPOINT)
        await _emit(storage, 0)
        assert len(await _deliveries(storage)) == 1
        await storage.apply("acme", [DeleteEndpoint(ENDPOINT.id)])
        assert await _deliveries(storage) == []

    async def test_an_endpoint_receives_the_events_that_it_selects(self, storage: Storage) -> None:
        for endpoint in (ENDPOINT, OTHER, replace(ENDPOINT, id="whe_3", environment="sandbox")):
            await _put(storage, endpoint)
        told = [("acme", "router.error_burst", "production"), ("acme", "cache.evicted", "production")]
        told += [("acme", "router.error_burst", "sandbox"), (SYSTEM_ACCOUNT, "incident.created", "production")]
        for number, (account, kind, environment) in enumerate(told):
            await _emit(storage, number, account, type=kind, environment=environment)
        await _emit(storage, 0, "acme", type=told[0][1])  # the same event again
        claimed = await _claim(storage)
        found = sorted((each.endpoint.id, int(each.event.id[4:])) for each in claimed.deliveries)
        assert found == [("whe_1", 0), ("whe_1", 3), ("whe_2", 3), ("whe_3", 2), ("whe_3", 3)]
        assert {each.event.id: each.event.type for each in claimed.deliveries}[make_event(3).id] == "incident.created"
        assert [each.key for each in await _deliveries(storage, "other")] == [f"{make_event(3).id}/whe_2"]

    async def test_a_delivery_is_leased_to_one_process_at_a_time(self, storage: Storage) -> None:
        await _put(storage, ENDPOINT)
        await _emit(storage, 1)
        first = await _claim(storage, lease="a", until=NOW + 30)
        assert [(each.event, each.endpoint, each.tries) for each in first.deliveries] == [
            (make_event(1, type="router.error_burst"), ENDPOINT, 0)
        ]
        assert await _claim(storage, lease="b", at=NOW + 29.999) == Claimed((), NOW + 30)
        assert len((await _claim(storage, lease="c", at=NOW + 30, until=NOW + 60)).deliveries) == 1
        assert (await _end(storage, 1, "a", "delivered")).count == 0  # no longer its holder
        assert (await _state(storage)).state == "in_flight"
        assert (await _end(storage, 1, "c", "delivered")).count == 1
        assert await _claim(storage, at=NOW + 1e6) == Claimed()

    async def test_attempts_are_counted_until_a_replay(self, storage: Storage) -> None:
        await _put(storage, ENDPOINT)
        await _emit(storage, 1)
        await _claim(storage)
        await _end(storage, 1, "a", "waiting", next_at=NOW + 60, attempt=None)  # handed back
        await _claim(storage, at=NOW + 60)
        await _end(storage, 1, "a", "waiting", next_at=NOW + 120)
        assert (await _state(storage)).next_attempt_at == timestamp(NOW + 120)
        (claimed,) = (await _claim(storage, at=NOW + 120)).deliveries
        assert claimed.tries == 1
        await _end(storage, 1, "a", "failed_delivery", at=NOW + 130)
        ended = await _state(storage)
        assert (ended.state, ended.attempts, ended.ended_at) == ("failed_delivery", (FAILED,) * 2, timestamp(NOW + 130))
        for at, account, count in ((130 + HISTORY_S, "acme", 0), (200, "other", 0), (200, "acme", 1)):
            (written,) = await storage.apply(account, [ReplayDeliveries("whe_1", at=NOW + at)])
            assert written.count == count
        assert (await _state(storage)).next_attempt_at == timestamp(NOW + 200)
        (claimed,) = (await _claim(storage, at=NOW + 200)).deliveries
        assert claimed.tries == 0
        await _end(storage, 1, "a", "delivered", at=NOW + 210)
        assert len((await _state(storage)).attempts) == 3
        assert (await storage.apply("acme", [ReplayDeliveries("whe_1", at=NOW + 211)]))[0].count == 0
        for event_id, count in ((None, 0), ("evt_x", 0), (make_event(1).id, 1)):
            (written,) = await storage.apply("acme", [ReplayDeliveries("whe_1", event_id, NOW + 220)])
            assert written.count == count

    async def test_a_replay_restarts_waiting_and_rejected_deliveries(self, storage: Storage) -> None:
        await _put(storage, ENDPOINT)
        for number in range(4):
            await _emit(storage, number)
        await _claim(storage, per_endpoint=3)
        await _end(storage, 0, "a", "rejected")
        await _end(storage, 1, "a", "waiting", next_at=NOW + 900)
        assert (await storage.apply("acme", [ReplayDeliveries("whe_1", at=NOW + 1)]))[0].count == 3
        claimed = await _claim(storage, lease="b", at=NOW + 1)
        assert sorted((int(each.event.id[4:]), each.tries) for each in claimed.deliveries) == [(0, 0), (1, 0), (3, 0)]

    async def test_a_claim_takes_the_earliest_due_within_its_limits(self, storage: Storage) -> None:
        for endpoint in (ENDPOINT, OTHER, replace(ENDPOINT, id="whe_3")):
            await _put(storage, endpoint)
        for number in range(9):
            await _emit(storage, number, SYSTEM_ACCOUNT, type="incident.created")
        claimed = await _claim(storage, lease="a", per_endpoint=2, room={"whe_1": 0, "whe_2": 5}, limit=6)
        counts = [sum(each.endpoint.id == id for each in claimed.deliveries) for id in ("whe_1", "whe_2", "whe_3")]
        assert (sum(counts), counts[0]) == (6, 0)
        assert 1 <= counts[2] <= 2
        assert [each.event.id for each in claimed.deliveries if each.endpoint.id == "whe_2"] == sorted(
            make_event(number).id for number in range(counts[1])
        )
        assert (claimed.next_at or 0.0) <= NOW  # more is due

    async def test_no_account_has_more_than_its_share_while_others_wait(self, storage: Storage) -> None:
        ours = [replace(ENDPOINT, id=f"whe_a{number}") for number in range(9)]
        for endpoint in (*ours, replace(OTHER, id="whe_b1"), replace(OTHER, id="whe_b2")):
            await _put(storage, endpoint)

        async def shares(lease: str, **limits: Any) -> tuple[int, int]:
            claimed = (await _claim(storage, lease=lease, limit=8, per_account=2, **limits)).deliveries
            accounts = [delivery.endpoint.account for delivery in claimed]
            return accounts.count("acme"), accounts.count("other")

        await _emit(storage, 1)
        assert await shares("a", account_room={"acme": 1}) == (6, 0)  # alone; two are left for others
        await _emit(storage, 2)
        await _emit(storage, 2, "other")
        assert await shares("b", account_room={"acme": -4}) == (0, 2)
        assert await shares("c", account_room={"other": 0}) == (6, 0)

    async def test_a_disabled_endpoint_receives_nothing_and_its_deliveries_fail(self, storage: Storage) -> None:
        await _put(storage, ENDPOINT)
        await _emit(storage, 1)
        await _put(storage, replace(ENDPOINT, disabled_at=AT), at=NOW)
        await _emit(storage, 2)
        assert await _claim(storage) == Claimed()
        assert [(each.event_id, each.state) for each in await _deliveries(storage)] == [
            (make_event(1).id, "failed_delivery")
        ]
        assert (await storage.apply("acme", [ReplayDeliveries("whe_1", at=NOW)]))[0].count == 0
        await _put(storage, ENDPOINT)
        assert (await storage.apply("acme", [ReplayDeliveries("whe_1", at=NOW)]))[0].count == 1

    async def test_deliveries_are_listed_by_endpoint_and_state_newest_first(self, storage: Storage) -> None:
        for endpoint in (ENDPOINT, replace(ENDPOINT, id="whe_3")):
            await _put(storage, endpoint)
        for number in range(5):
            await _emit(storage, number)
        await _claim(storage, per_endpoint=5, room={"whe_3": 0})
        await _end(storage, 2, "a", "rejected")
        everything = [f"{make_event(number).id}/{id}" for number in (4, 3, 2, 1, 0) for id in ("whe_3", "whe_1")]
        for limit in (1, 3, 10):
            assert [each.key for each in await _deliveries(storage, limit=limit)] == everything
        assert len(await _deliveries(storage, endpoint_id="whe_3")) == 5
        assert [each.key for each in await _deliveries(storage, state="rejected")] == [f"{make_event(2).id}/whe_1"]

    async def test_ended_deliveries_go_after_a_day_or_with_the_account_results(self, storage: Storage) -> None:
        for endpoint in (ENDPOINT, OTHER):
            await _put(storage, endpoint)
        for number in range(3):
            await _emit(storage, number)
            await _emit(storage, number, "other")
        await _claim(storage)
        await _end(storage, 1, "a", "delivered", at=NOW)
        await storage.sweep(NOW + HISTORY_S - 0.001)
        assert len(await _deliveries(storage)) == 3
        await storage.sweep(NOW + HISTORY_S)
        assert len(await _deliveries(storage)) == 2
        await storage.apply("acme", [DeleteResults("sandbox")])
        assert len(await _deliveries(storage)) == 2
        await storage.apply("acme", [DeleteResults()])
        assert await _deliveries(storage) == []
        assert len(await _deliveries(storage, "other")) == 3
        assert [each.endpoint.id for each in (await _claim(storage, at=NOW + 30)).deliveries] == [OTHER.id] * 3


async def _put(storage: Storage, endpoint: Endpoint, **given: Any) -> Written:
    return await _apply(storage, endpoint.account, PutEndpoint(endpoint, **given))


async def _emit(storage: Storage, number: int, account: str = "acme", **given: Any) -> None:
    event = make_event(number, account=account, **{"type": "router.error_burst"} | given)
    await storage.apply(account, [PutEvent(event)])


async def _claim(storage: Storage, *, lease: str = "a", at: float = NOW, **given: Any) -> Claimed:
    asked = {"until": at + 30.0, "limit": 100, "per_endpoint": 8} | given
    claimed = (await _apply(storage, SYSTEM_ACCOUNT, ClaimDeliveries(lease=lease, at=at, **asked))).claimed
    assert claimed is not None
    return claimed


async def _end(storage: Storage, number: int, lease: str, state: DeliveryState, **given: Any) -> Written:
    said: dict[str, Any] = {"attempt": FAILED, "at": NOW} | given
    end = EndAttempt(endpoint_id="whe_1", event_id=make_event(number).id, lease=lease, state=state, **said)
    return await _apply(storage, SYSTEM_ACCOUNT, end)


async def _apply(storage: Storage, account: str, write: Write) -> Written:
    (written,) = await storage.apply(account, [write])
    return written


async def _deliveries(storage: Storage, account: str = "acme", limit: int = 100, **which: Any) -> list[Delivery]:
    found: list[Delivery] = []
    while page := await storage.scan(account, Deliveries(**which), after=found[-1].key if found else None, limit=limit):
        found += page
    return found


async def _state(storage: Storage) -> Delivery:
    (found,) = await _deliveries(storage)
    return found
