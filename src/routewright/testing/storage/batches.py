"""A batch is applied whole or not at all, and only if its writes find what they expect."""

from __future__ import annotations

from typing import Any, get_args

import anyio
import pytest

from routewright.errors import PreconditionFailed, UnsupportedWrite
from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    CatalogueSnapshot,
    DeleteTraces,
    Durability,
    Expect,
    FeedbackByTrace,
    PutFeedback,
    PutSnapshot,
    PutTrace,
    SetRetention,
    SnapshotById,
    TraceById,
    TraceItems,
    UsageCounts,
    Write,
)

from .samples import make_trace
from .suite import Suite

TRACE = make_trace(1)
SANDBOX = make_trace(1, environment="sandbox")
EMPTY = CatalogueSnapshot("cat_empty", "2026-11-21", ())


def said(expect: Expect | None, environment: Any = None) -> PutFeedback:
    """What somebody thought of the one trace."""
    return PutFeedback(TRACE.id, 0.5, "so so", 1.0, expect=expect, environment=environment)


class Batches(Suite):
    """All or none, and preconditions."""

    async def test_results_say_what_is_new(self, storage: Storage) -> None:
        failed = make_trace(1, status="failed")
        results = await storage.apply("default", [PutTrace(TRACE), PutTrace(make_trace(2)), PutTrace(failed)])
        assert [result.created for result in results] == [True, True, False]
        assert await storage.read("default", TraceById(TRACE.id)) == failed
        (again,) = await storage.apply("default", [PutTrace(TRACE)])
        assert not again.created

    async def test_a_batch_of_nothing_does_nothing(self, storage: Storage) -> None:
        assert await storage.apply("default", []) == []

    @pytest.mark.parametrize("durability", get_args(Durability))
    async def test_what_was_applied_is_there_for_the_next_read(self, storage: Storage, durability: Durability) -> None:
        for number in range(5):
            trace = make_trace(number)
            await storage.apply("default", [PutTrace(trace, durability=durability)])
            assert await storage.read("default", TraceById(trace.id)) == trace
            (newest,) = await storage.scan("default", TraceItems(), after=None, limit=1)
            assert newest.id == trace.id

    async def test_a_batch_is_applied_whole_or_not_at_all(self, storage: Storage) -> None:
        await storage.apply("default", [PutTrace(make_trace(5, status="running"))])
        before = await _seen(storage)
        batch: list[Write] = [
            PutTrace(make_trace(5)),
            PutTrace(TRACE, rollup_keys=("team",)),
            said(None),
            PutTrace(make_trace(2), expect="present"),
            PutTrace(make_trace(3)),
        ]
        with pytest.raises(PreconditionFailed) as failed:
            await storage.apply("default", batch)
        assert failed.value.index == 3
        assert await _seen(storage) == before
        assert await storage.read("default", FeedbackByTrace(TRACE.id)) is None

    async def test_an_unknown_kind_is_refused_and_nothing_applied(self, storage: Storage) -> None:
        unknown: Any = make_trace(3)
        with pytest.raises(UnsupportedWrite):
            await storage.apply("default", [PutTrace(TRACE), unknown])
        assert await storage.read("default", TraceById(TRACE.id)) is None
        with pytest.raises(UnsupportedWrite):
            await storage.read("default", unknown)
        with pytest.raises(UnsupportedWrite):
            await storage.scan("default", unknown, after=None, limit=5)

    async def test_a_deletion_is_the_one_write_of_its_batch(self, storage: Storage) -> None:
        await storage.apply("default", [PutTrace(TRACE)])
        with pytest.raises(UnsupportedWrite):
            await storage.apply("default", [PutTrace(make_trace(2)), DeleteTraces()])
        assert [item.id for item in await storage.scan("default", TraceItems(), after=None, limit=5)] == [TRACE.id]

    @pytest.mark.parametrize(
        "write", [PutSnapshot(EMPTY), SetRetention(production_s=1.0)], ids=["snapshot", "retention"]
    )
    async def test_what_belongs_to_no_account_is_said_under_none(self, storage: Storage, write: Write) -> None:
        with pytest.raises(UnsupportedWrite):
            await storage.apply("default", [PutTrace(TRACE), write])
        assert await storage.read("default", TraceById(TRACE.id)) is None
        await storage.apply(SYSTEM_ACCOUNT, [write])

    @pytest.mark.parametrize(
        ("there", "write", "holds"),
        [
            ([], PutTrace(TRACE, expect="absent"), True),
            ([], PutTrace(TRACE, expect="present"), False),
            ([PutTrace(TRACE)], PutTrace(TRACE, expect="absent"), False),
            ([PutTrace(TRACE)], PutTrace(TRACE, expect="present"), True),
            ([], said("present"), False),
            ([], said("absent"), True),
            ([PutTrace(TRACE)], said("absent"), False),
            ([PutTrace(TRACE)], said("present"), True),
            ([PutTrace(TRACE)], said("present", "production"), True),
            ([PutTrace(TRACE)], said("present", "sandbox"), False),
            ([PutTrace(TRACE)], said("absent", "sandbox"), True),
            ([PutTrace(SANDBOX)], said("present", "sandbox"), True),
            ([PutTrace(SANDBOX)], said("present", "production"), False),
            ([PutTrace(SANDBOX)], PutTrace(TRACE), False),
            ([PutTrace(TRACE)], PutTrace(SANDBOX, expect="present"), False),
            ([PutTrace(TRACE, rollup_keys=("team",))], PutTrace(SANDBOX), False),
            ([PutTrace(make_trace(2)), said(None)], said("present"), False),
        ],
    )
    @pytest.mark.parametrize("at_once", [True, False], ids=["in one batch", "in two"])
    async def test_a_write_is_held_to_what_it_expects_of_what_was_there_or_made_before_it(
        self, storage: Storage, there: list[Write], write: Write, holds: bool, at_once: bool
    ) -> None:
        if not at_once:
            await storage.apply("default", there)
        batch = [*there, write] if at_once else [make_other(), write]
        if holds:
            assert len(await storage.apply("default", batch)) == len(batch)
            return
        before = await _seen(storage)
        with pytest.raises(PreconditionFailed) as failed:
            await storage.apply("default", batch)
        assert failed.value.index == len(batch) - 1
        assert await _seen(storage) == before

    @pytest.mark.parametrize("at_once", [True, False], ids=["in one batch", "in two"])
    async def test_a_snapshot_is_held_to_it_too(self, storage: Storage, at_once: bool) -> None:
        put = PutSnapshot(EMPTY)
        with pytest.raises(PreconditionFailed):
            await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(EMPTY, expect="present")])
        if not at_once:
            await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(EMPTY, expect="absent")])
        with pytest.raises(PreconditionFailed) as failed:
            await storage.apply(SYSTEM_ACCOUNT, [*[put] * at_once, PutSnapshot(EMPTY, expect="absent")])
        assert failed.value.index == int(at_once)
        assert (await storage.read(SYSTEM_ACCOUNT, SnapshotById(EMPTY.id)) is None) == at_once
        await storage.apply(SYSTEM_ACCOUNT, [*[put] * at_once, PutSnapshot(EMPTY, expect="present")])

    async def test_a_trace_that_names_a_snapshot_does_not_make_it_present(self, storage: Storage) -> None:
        await storage.apply("default", [PutTrace(TRACE)])
        named = CatalogueSnapshot("cat_1", "2026-11-21", ())
        assert await storage.read(SYSTEM_ACCOUNT, SnapshotById("cat_1")) is None
        with pytest.raises(PreconditionFailed):
            await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(named, expect="present")])
        (written,) = await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(named, expect="absent")])
        assert written.created

    async def test_of_many_who_expect_a_trace_to_be_absent_one_succeeds(self, storage: Storage) -> None:
        succeeded = []

        async def put(number: int) -> None:
            try:
                await storage.apply("default", [PutTrace(make_trace(1, error=str(number)), expect="absent")])
            except PreconditionFailed:
                return
            succeeded.append(str(number))

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(put, number)
        found = await storage.read("default", TraceById(TRACE.id))
        assert found is not None
        assert succeeded == [found.error]


def make_other() -> Write:
    """A write that no precondition speaks of."""
    return PutTrace(make_trace(9))


async def _seen(storage: Storage) -> object:
    usage = UsageCounts(first="2026-11-01", last="2026-11-30", group_by="model")
    return await storage.scan("default", TraceItems(), after=None, limit=20), await storage.read("default", usage)
