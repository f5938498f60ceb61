"""``DeleteTraces``: what is removed is gone, with what was said of it, and is no longer counted."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import asdict

from routewright._core.trace.filter import selects
from routewright.protocols import Storage
from routewright.wire import (
    DeleteTraces,
    FeedbackByTrace,
    PutFeedback,
    PutTrace,
    RollupKeys,
    Term,
    Trace,
    TraceById,
    TraceItems,
    Traces,
)

from .rollups import answers, expected_answers
from .samples import ROLLUP_KEYS, all_items, make_trace, newest_first, random_trace
from .suite import Suite

SELECTIONS = (
    TraceItems(environment="sandbox"),
    TraceItems(since="2026-11-20T00:00:00.000Z"),
    TraceItems(until="2026-11-20T13:30:00.000Z"),
    TraceItems(terms=(Term("status", "=", "failed"),)),
    TraceItems(terms=(Term("status", "!=", "completed"), Term("cost_usd", ">=", 0.01))),
    TraceItems(terms=(Term("metadata.team", "=", "search"),)),
    TraceItems(terms=(Term("metadata.team", "!=", "search"), Term("model", "=", ""))),
    TraceItems(terms=(Term("metadata.team", "<", 2.0),), environment="production", since="2026-11-19T12:00:00.000Z"),
    TraceItems(),
)


class Deletion(Suite):
    """Deleting."""

    async def test_one_trace_is_deleted_by_its_id_with_what_was_said_of_it(self, storage: Storage) -> None:
        one, other = make_trace(1), make_trace(2)
        said = [PutFeedback(trace.id, 1.0, None, 0.0) for trace in (one, other)]
        await storage.apply("default", [PutTrace(one), PutTrace(other), *said])
        assert await _delete(storage, DeleteTraces(id=one.id)) == 1
        assert await storage.read("default", TraceById(one.id)) is None
        assert await storage.read("default", FeedbackByTrace(one.id)) is None
        assert await storage.read("default", TraceById(other.id)) == other
        assert await storage.read("default", FeedbackByTrace(other.id)) is not None
        assert await _delete(storage, DeleteTraces(id=one.id)) == 0

    async def test_an_id_is_deleted_only_if_the_rest_holds_of_it_too(self, storage: Storage) -> None:
        trace = make_trace(1)
        await storage.apply("default", [PutTrace(trace)])
        for other in (
            DeleteTraces(id=trace.id, environment="sandbox"),
            DeleteTraces(id=trace.id, until=trace.created_at),
            DeleteTraces(id=trace.id, terms=(Term("status", "=", "failed"),)),
            DeleteTraces(id=trace.id, terms=(Term("metadata.team", "=", "ads"),)),
            DeleteTraces(id=trace.id + "0"),
            DeleteTraces(id=""),
        ):
            assert await _delete(storage, other) == 0
        term = Term("metadata.team", "=", "search")
        assert await _delete(storage, DeleteTraces(id=trace.id, environment="production", terms=(term,))) == 1

    @pytest.mark.parametrize("query", SELECTIONS, ids=range(len(SELECTIONS)))
    async def test_exactly_what_is_selected_goes_and_leaves_no_trace_in_the_roll_ups(
        self, storage: Storage, query: TraceItems
    ) -> None:
        rng = Random(3)
        puts = [PutTrace(random_trace(rng, number), rollup_keys=ROLLUP_KEYS) for number in range(40)]
        await storage.apply("default", puts)
        gone = [put for put in puts if selects(query, put.trace)]
        left = [put for put in puts if put not in gone]
        assert gone
        assert await _delete(storage, DeleteTraces(**asdict(query))) == len(gone)
        found = await all_items(storage, TraceItems())
        assert [item.id for item in found] == [trace.id for trace in newest_first([put.trace for put in left])]
        assert await answers(storage, "default") == expected_answers(left)
        if not left:
            assert await storage.read("default", RollupKeys()) == []

    async def test_the_oldest_go_first_and_at_most_so_many(self, storage: Storage) -> None:
        rng = Random(4)
        traces = newest_first([random_trace(rng, number) for number in range(20)])
        await storage.apply("default", [PutTrace(trace) for trace in traces])
        assert await _delete(storage, DeleteTraces(limit=8)) == 8
        assert await _left(storage) == [trace.id for trace in traces[:12]]
        sandbox = [trace for trace in traces[:12] if trace.environment == "sandbox"]
        assert len(sandbox) > 2
        assert await _delete(storage, DeleteTraces(environment="sandbox", limit=2)) == 2
        gone = sandbox[-2:]
        assert await _left(storage) == [trace.id for trace in traces[:12] if trace not in gone]

    @pytest.mark.parametrize("limit", [0, -1, -500])
    async def test_a_limit_below_1_finds_and_deletes_nothing(self, storage: Storage, limit: int) -> None:
        await storage.apply("default", [PutTrace(make_trace(number)) for number in range(3)])
        for term in (), (Term("metadata.team", "=", "search"),):
            assert await storage.scan("default", TraceItems(terms=term), after=None, limit=limit) == []
            assert await storage.scan("default", Traces(terms=term), after=None, limit=limit) == []
            assert await _delete(storage, DeleteTraces(terms=term, limit=limit)) == 0
        assert await _delete(storage, DeleteTraces(id=make_trace(1).id, limit=limit)) == 0
        assert len(await _left(storage)) == 3

    async def test_a_deleted_trace_may_be_kept_anew(self, storage: Storage) -> None:
        trace: Trace = make_trace(1)
        await storage.apply("default", [PutTrace(trace), PutFeedback(trace.id, 1.0, None, 0.0)])
        await _delete(storage, DeleteTraces(id=trace.id))
        (written,) = await storage.apply("default", [PutTrace(trace, expect="absent")])
        assert written.created
        assert await storage.read("default", FeedbackByTrace(trace.id)) is None
        assert await answers(storage, "default") == expected_answers([PutTrace(trace)])

    async def test_what_is_deleted_in_pieces_is_all_gone(self, storage: Storage) -> None:
        await storage.apply("default", [PutTrace(make_trace(number)) for number in range(10)])
        assert [await _delete(storage, DeleteTraces(limit=4)) for _ in range(4)] == [4, 4, 2, 0]
        assert await _left(storage) == []


async def _delete(storage: Storage, which: DeleteTraces) -> int:
    (written,) = await storage.apply("default", [which])
    assert not written.created
    return written.count


async def _left(storage: Storage) -> list[str]:
    return [item.id for item in await all_items(storage, TraceItems())]
