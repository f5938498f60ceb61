"""What is kept comes back as it was: traces, and what users thought of them."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    DecisionSpan,
    DeleteTraces,
    Environment,
    FeedbackByTrace,
    PutFeedback,
    PutTrace,
    SnapshotById,
    Trace,
    TraceById,
    TraceItem,
    TraceItems,
    Traces,
)

from .samples import (
    LONG_IDS,
    ODD_NAMES,
    ODD_TEXTS,
    all_items,
    decision_span,
    full_trace,
    make_trace,
    spans_of_each_kind,
)
from .suite import Suite


class Keeping(Suite):
    """Traces, and what users thought of them."""

    async def test_a_trace_comes_back_as_it_was(self, storage: Storage) -> None:
        trace = full_trace()
        await storage.apply("default", [PutTrace(trace)])
        assert await storage.read("default", TraceById(trace.id)) == trace
        assert await storage.scan("default", Traces(), after=None, limit=5) == [trace]

    async def test_an_item_is_the_trace_without_its_spans(self, storage: Storage) -> None:
        trace = make_trace(1, spans=spans_of_each_kind(), children=["tr_child"], error="router.upstream_failed")
        await storage.apply("default", [PutTrace(trace)])
        (item,) = await storage.scan("default", TraceItems(), after=None, limit=5)
        assert item == trace.item
        assert type(item) is TraceItem

    async def test_what_becomes_of_a_trace_outside_changes_nothing_that_is_kept(self, storage: Storage) -> None:
        given, before = (make_trace(1, spans=[decision_span()], content=full_trace().content) for _ in range(2))
        await storage.apply("default", [PutTrace(given)])
        _deface(given)
        for _ in range(2):
            found: Any = await storage.read("default", TraceById(before.id))
            assert found == before
            _deface(found)
            (found,) = await storage.scan("default", Traces(), after=None, limit=5)
            assert found == before
            _deface(found)
            (item,) = await storage.scan("default", TraceItems(), after=None, limit=5)
            assert item == before.item
            item.metadata.clear()

    async def test_what_is_not_there_is_none(self, storage: Storage) -> None:
        assert await storage.read("default", TraceById("tr_none")) is None
        assert await storage.read("default", FeedbackByTrace("tr_none")) is None
        assert await storage.read(SYSTEM_ACCOUNT, SnapshotById("hea_none")) is None
        assert await storage.scan("default", Traces(), after=None, limit=5) == []

    async def test_a_read_can_keep_to_one_environment(self, storage: Storage) -> None:
        trace = make_trace(1, environment="sandbox")
        await storage.apply("default", [PutTrace(trace)])
        assert await storage.read("default", TraceById(trace.id, "production")) is None
        assert await storage.read("default", TraceById(trace.id, "sandbox")) == trace

    async def test_a_trace_takes_the_place_of_an_earlier_one_of_its_id(self, storage: Storage) -> None:
        before = make_trace(1, status="running", metadata={"team": "search"})
        after = make_trace(1, created_at="2026-11-22T00:00:00.000Z", metadata={"team": "ads"})
        await storage.apply("default", [PutTrace(before), PutTrace(make_trace(2))])
        (written,) = await storage.apply("default", [PutTrace(after)])
        assert not written.created
        assert await storage.read("default", TraceById(before.id)) == after
        found = await storage.scan("default", Traces(), after=None, limit=5)
        assert [trace.id for trace in found] == [after.id, make_trace(2).id]

    async def test_feedback_comes_back_and_takes_the_place_of_what_was_said_before(self, storage: Storage) -> None:
        trace = make_trace(1)
        first, second = PutFeedback(trace.id, 0.0, None, 1.0), PutFeedback(trace.id, 0.5, ODD_TEXTS[0], 2.0)
        results = await storage.apply("default", [PutTrace(trace), first, second])
        assert [result.created for result in results] == [True, True, False]
        assert await _said(storage, trace) == (0.5, ODD_TEXTS[0], 2.0)
        (written,) = await storage.apply("default", [first])
        assert not written.created
        assert await _said(storage, trace) == (0.0, None, 1.0)

    async def test_feedback_can_be_asked_for_by_the_environment_of_its_trace(self, storage: Storage) -> None:
        trace = make_trace(1, environment="sandbox")
        unknown = PutFeedback("tr_none", 1.0, None, 1.0)
        await storage.apply("default", [PutTrace(trace), PutFeedback(trace.id, 0.5, None, 1.0), unknown])
        asked: tuple[tuple[Environment | None, bool], ...] = ((None, True), ("sandbox", True), ("production", False))
        for environment, found in asked:
            said = await storage.read("default", FeedbackByTrace(trace.id, environment))
            assert (said is not None) == found
            said = await storage.read("default", FeedbackByTrace("tr_none", environment))
            assert (said is not None) == (environment is None)

    async def test_feedback_stays_when_its_trace_is_kept_anew(self, storage: Storage) -> None:
        trace = make_trace(1, status="running")
        await storage.apply("default", [PutTrace(trace), PutFeedback(trace.id, 0.5, "so so", 1.0)])
        await storage.apply("default", [PutTrace(make_trace(1))])
        assert await _said(storage, trace) == (0.5, "so so", 1.0)

    @pytest.mark.parametrize("text", ODD_TEXTS, ids=ascii)
    async def test_any_text_comes_back_and_is_looked_for_as_it_is(self, storage: Storage, text: str) -> None:
        metadata = {"team": text, text: "search", "nested": {text: [text]}}
        trace = make_trace(1, selected_model=text, policy_id=text, error=text, metadata=metadata, strategy="balanced")
        await storage.apply("default", [PutTrace(trace), PutFeedback(trace.id, 1.0, text, 0.0)])
        assert await storage.read("default", TraceById(trace.id)) == trace
        assert await _said(storage, trace) == (1.0, text, 0.0)
        assert await storage.read("default", TraceById(text)) is None
        assert await storage.read("default", FeedbackByTrace(trace.id + text)) is None

    @pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
    async def test_any_printable_name_may_be_that_of_an_account_and_a_trace(self, storage: Storage, name: str) -> None:
        trace = make_trace(1, id=name, account=name)
        await storage.apply(name, [PutTrace(trace), PutFeedback(name, 1.0, None, 0.0, expect="present")])
        assert await storage.read(name, TraceById(name)) == trace
        assert await storage.scan(name, Traces(), after=None, limit=5) == [trace]
        assert await storage.scan(name, Traces(), after=trace.key, limit=5) == []
        assert await storage.read("default", TraceById(name)) is None

    async def test_ids_that_differ_in_their_last_character_are_those_of_different_traces(
        self, storage: Storage
    ) -> None:
        one, two = (make_trace(1, id=long, error=long) for long in LONG_IDS)
        results = await storage.apply("default", [PutTrace(one), PutTrace(two, expect="absent")])
        assert [result.created for result in results] == [True, True]
        await storage.apply("default", [PutFeedback(one.id, 0.5, None, 1.0), PutFeedback(two.id, 1.0, None, 1.0)])
        for trace, score in [(one, 0.5), (two, 1.0)]:
            assert await storage.read("default", TraceById(trace.id)) == trace
            assert await _said(storage, trace) == (score, None, 1.0)
        assert await all_items(storage, TraceItems(), limit=1) == [two.item, one.item]
        await storage.apply("default", [DeleteTraces(id=one.id)])
        assert await storage.scan("default", Traces(), after=None, limit=5) == [two]
        assert await _said(storage, two) == (1.0, None, 1.0)

    async def test_writers_at_the_same_time_lose_nothing(self, storage: Storage) -> None:
        async def write(first: int) -> None:
            for number in range(first, first + 10):
                await storage.apply("default", [PutTrace(make_trace(number))])

        async with anyio.create_task_group() as group:
            for first in range(0, 50, 10):
                group.start_soon(write, first)
        found = await storage.scan("default", TraceItems(), after=None, limit=100)
        assert [item.id for item in found] == [make_trace(number).id for number in reversed(range(50))]

    async def test_closing_twice_is_closing_once(self, storage: Storage) -> None:
        await storage.apply("default", [PutTrace(make_trace(1))])
        await storage.aclose()
        await storage.aclose()


async def _said(storage: Storage, trace: Trace) -> tuple[float, str | None, float]:
    found = await storage.read("default", FeedbackByTrace(trace.id))
    assert found is not None
    return found.score, found.comment, found.at


def _deface(trace: Trace) -> None:
    trace.metadata["nested"]["deep"].append("more")
    trace.metadata["more"] = 1
    (span,) = trace.spans
    assert isinstance(span, DecisionSpan)
    span.candidates.clear()
    span.rejected.clear()
    trace.spans.clear()
    trace.children.append("tr_more")
    assert trace.content is not None
    assert trace.content.messages is not None
    trace.content.messages.clear()
