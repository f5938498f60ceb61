"""Events are kept once, with their cause; incidents as they were told last."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from routewright._core.books import INCIDENTS, WEEK_S
from routewright._core.moment import timestamp
from routewright.errors import PreconditionFailed, UnsupportedWrite
from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Events,
    Incident,
    Incidents,
    PutEvent,
    PutIncident,
    PutTrace,
    StoredEvent,
    Written,
)

from .money import make_event
from .retention import NOW
from .samples import ODD_TEXTS, make_trace
from .suite import Suite


class Happenings(Suite):
    """Events and incidents."""

    async def test_an_event_is_kept_once_as_it_was(self, storage: Storage) -> None:
        data = {"metadata": {"team": ODD_TEXTS[5], "n": 2**53, "none": None, "deep": [1.5, {}]}}
        event = make_event(data=data, environment="sandbox")
        written = [await _put(storage, PutEvent(each)) for each in (event, replace(event, data={}))]
        assert written == [Written(created=True, events=(event,)), Written(created=False)]
        assert await _kept(storage) == [event]

    async def test_what_is_told_once_is_told_again_only_after_a_while(self, storage: Storage) -> None:
        times = [(100.0, True), (100.0, False), (399.999, False), (400.0, True), (699.0, False), (50.0, False)]
        for number, (at, told) in enumerate(times):
            written = await _put(storage, PutEvent(make_event(number), once="burst", quiet_s=300.0, at=at))
            assert written == (Written(created=True, events=(make_event(number),)) if told else Written(created=False))
        assert await _kept(storage) == [make_event(3), make_event(0)]

    async def test_each_says_itself_for_how_long_all_has_been_quiet(self, storage: Storage) -> None:
        for number, (quiet_s, told) in enumerate(((0.0, True), (10.0, False), (5.0, True), (0.0, True))):
            put = PutEvent(make_event(number), once="x", quiet_s=quiet_s, at=number * 3.0)
            assert (await _put(storage, put)).created is told

    async def test_each_account_and_each_once_is_quiet_for_itself(self, storage: Storage) -> None:
        for account in ("acme", "other", SYSTEM_ACCOUNT):
            for number, once in enumerate((*ODD_TEXTS, None, None)):
                event = make_event(number, account=account)
                (written,) = await storage.apply(account, [PutEvent(event, once=once, quiet_s=1e9, at=1.0)])
                assert written.created
        assert len(await _kept(storage)) == len(ODD_TEXTS) + 2

    async def test_an_event_is_kept_with_its_cause_or_not_at_all(self, storage: Storage) -> None:
        cause, event = PutTrace(make_trace(1)), PutEvent(make_event(), once="x", quiet_s=9.0)
        with pytest.raises(PreconditionFailed):
            await storage.apply("acme", [event, replace(cause, expect="present")])
        assert await _kept(storage) == []
        results = await storage.apply("acme", [event, cause])
        assert [result.created for result in results] == [True, True]

    async def test_a_walk_of_pages_visits_each_event_once_newest_first(self, storage: Storage) -> None:
        numbers = list(range(50))
        Random(1).shuffle(numbers)
        await storage.apply("acme", [PutEvent(make_event(number)) for number in numbers])
        await storage.apply("other", [PutEvent(make_event(99, account="other"))])
        expected = [make_event(number) for number in reversed(range(50))]
        for limit in (1, 7, 50, 100):
            assert await _kept(storage, limit) == expected
        assert await storage.scan("acme", Events(), after=None, limit=0) == []

    async def test_events_are_kept_for_a_week(self, storage: Storage) -> None:
        for account in ("acme", SYSTEM_ACCOUNT):
            events = [
                make_event(number, timestamp(NOW - age_s), account)
                for number, age_s in enumerate((WEEK_S + 0.001, WEEK_S, 0.0))
            ]
            await storage.apply(account, [PutEvent(event) for event in events])
        assert await storage.sweep(NOW) == 2
        for account in ("acme", SYSTEM_ACCOUNT):
            left = await storage.scan(account, Events(), after=None, limit=9)
            assert [event.id for event in left] == [make_event(2).id, make_event(1).id]
        assert await storage.sweep(NOW) == 0

    async def test_a_sweep_forgets_no_event_that_all_is_quiet_after(self, storage: Storage) -> None:
        long_s = 40 * 86_400.0
        await _put(storage, PutEvent(make_event(1), once="month", quiet_s=long_s, at=NOW))
        await storage.sweep(NOW + 30 * 86_400.0)
        for at, told in ((NOW + long_s - 1.0, False), (NOW + long_s, True)):
            put = PutEvent(make_event(2), once="month", quiet_s=long_s, at=at)
            assert (await _put(storage, put)).created is told

    async def test_an_incident_is_as_it_was_told_last_and_the_newest_come_first(self, storage: Storage) -> None:
        numbers = list(range(INCIDENTS + 5))
        Random(2).shuffle(numbers)
        for number in numbers:
            (written,) = await storage.apply(SYSTEM_ACCOUNT, [PutIncident(_incident(number))])
            assert written.created
        over = replace(_incident(7), resolved_at=timestamp(NOW), status_url="https://status.example/7")
        (written,) = await storage.apply(SYSTEM_ACCOUNT, [PutIncident(over, expect="present")])
        assert not written.created
        newest = [over if number == 7 else _incident(number) for number in reversed(range(5, INCIDENTS + 5))]
        assert await storage.read(SYSTEM_ACCOUNT, Incidents()) == newest
        with pytest.raises(PreconditionFailed):
            await storage.apply(SYSTEM_ACCOUNT, [PutIncident(over, expect="absent")])

    async def test_incidents_are_told_by_and_to_the_system_alone(self, storage: Storage) -> None:
        with pytest.raises(UnsupportedWrite):
            await storage.apply("acme", [PutIncident(_incident(1))])
        await storage.apply(SYSTEM_ACCOUNT, [PutIncident(_incident(1))])
        assert await storage.read("acme", Incidents()) == []


def _incident(number: int) -> Incident:
    return Incident(
        id=f"inc_{-number % 13}_{number}", title="slow", severity="major", started_at=timestamp(NOW + number)
    )


async def _put(storage: Storage, write: PutEvent) -> Written:
    (written,) = await storage.apply("acme", [write])
    return written


async def _kept(storage: Storage, limit: int = 100) -> list[StoredEvent]:
    """All events of ``acme``, page by page."""
    found: list[StoredEvent] = []
    while page := await storage.scan("acme", Events(), after=found[-1].id if found else None, limit=limit):
        assert len(page) <= limit
        found += page
    return found
