"""What every storage must keep, as tests: inherit the class, say how to make yours, and let pytest run it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from routewright._core.intake import RULES
from routewright.errors import PreconditionFailed, UnsupportedWrite
from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Candidate,
    CatalogueSnapshot,
    DecisionInput,
    DecisionSpan,
    FeedbackByTrace,
    HealthSnapshot,
    Model,
    ModelHealth,
    Policy,
    PolicySnapshot,
    Pricing,
    PutFeedback,
    PutSnapshot,
    PutTrace,
    Snapshot,
    SnapshotById,
    TokenBounds,
    Trace,
    TraceById,
    Traces,
)


def make_trace(number: int, **given: Any) -> Trace:
    """A trace whose id grows with ``number``."""
    facts: dict[str, Any] = {
        "id": f"tr_{number:026}",
        "status": "completed",
        "created_at": "2026-11-21T00:00:00.000Z",
        "duration_ms": 12.5,
        "environment": "production",
        "account": "default",
        "policy_version": "inline@2026-11-20",
        "goal": "cost",
        "strategy": "balanced",
        "metadata": {"team": "search", "nested": {"deep": [1, None, "é"]}},
        "decision_input": DecisionInput(
            rules=RULES,
            catalogue="cat_1",
            health="hea_1",
            as_of="2026-11-21",
            tokens=TokenBounds(1, 2, 1),
            models=("a/one",),
        ),
    }
    return Trace(**facts | given)


def _span() -> DecisionSpan:
    best = Candidate("a/one", 0.5, 0.5, 0.01, 1.0, 0.9, (0.5, 0.5, 0.5, 0.5))
    return DecisionSpan(id=1, name="decision", start_ms=0.0, candidates=[best], rejected={"budget": 1}, digest="d")


def _deface(trace: Trace) -> None:
    trace.metadata["nested"]["deep"].append("more")
    trace.metadata["more"] = 1
    (span,) = trace.spans
    assert isinstance(span, DecisionSpan)
    span.candidates.clear()
    span.rejected.clear()
    trace.spans.clear()
    trace.children.append("tr_more")


@pytest.mark.anyio
class StorageContract:
    """Inherit it and override ``make``.

    class TestMyStorage(StorageContract):
        def make(self):
            return MyStorage()
    """

    def make(self) -> Storage:
        """Make an empty storage."""
        raise NotImplementedError("override make() to return an empty storage of yours")

    async def test_a_trace_comes_back_as_it_was(self) -> None:
        storage, trace = self.make(), make_trace(1)
        await storage.apply("default", [PutTrace(trace)])
        assert await storage.read("default", TraceById(trace.id)) == trace
        await storage.aclose()

    async def test_what_becomes_of_a_trace_outside_changes_nothing_that_is_kept(self) -> None:
        storage, given, before = self.make(), make_trace(1, spans=[_span()]), make_trace(1, spans=[_span()])
        await storage.apply("default", [PutTrace(given)])
        _deface(given)
        for _ in range(2):
            found = await storage.read("default", TraceById(before.id))
            assert found == before
            _deface(found)
            (found,) = await storage.scan("default", Traces(), after=None, limit=5)
            assert found == before
            _deface(found)
        await storage.aclose()

    async def test_what_is_not_there_is_none(self) -> None:
        storage = self.make()
        assert await storage.read("default", TraceById("tr_none")) is None
        assert await storage.read("default", FeedbackByTrace("tr_none")) is None
        assert await storage.read(SYSTEM_ACCOUNT, SnapshotById("hea_none")) is None
        assert await storage.scan("default", Traces(), after=None, limit=5) == []
        await storage.aclose()

    async def test_one_account_never_sees_another(self) -> None:
        storage = self.make()
        await storage.apply("one", [PutTrace(make_trace(1, account="one")), PutFeedback(make_trace(1).id, 1, None, 0)])
        assert await storage.read("two", TraceById(make_trace(1).id)) is None
        assert await storage.read("two", FeedbackByTrace(make_trace(1).id)) is None
        assert await storage.scan("two", Traces(), after=None, limit=5) == []
        await storage.aclose()

    async def test_a_batch_is_applied_whole_or_not_at_all(self) -> None:
        storage = self.make()
        first, second = make_trace(1), make_trace(2)
        with pytest.raises(PreconditionFailed) as failed:
            await storage.apply("default", [PutTrace(first), PutTrace(second, expect="present")])
        assert failed.value.index == 1
        assert await storage.read("default", TraceById(first.id)) is None
        await storage.aclose()

    async def test_an_unknown_write_is_refused_and_nothing_applied(self) -> None:
        storage = self.make()
        unknown: Any = make_trace(3)
        with pytest.raises(UnsupportedWrite):
            await storage.apply("default", [PutTrace(make_trace(1)), unknown])
        assert await storage.read("default", TraceById(make_trace(1).id)) is None
        with pytest.raises(UnsupportedWrite):
            await storage.read("default", unknown)
        with pytest.raises(UnsupportedWrite):
            await storage.scan("default", unknown, after=None, limit=5)
        await storage.aclose()

    async def test_results_say_what_is_new(self) -> None:
        storage = self.make()
        results = await storage.apply("default", [PutTrace(make_trace(1)), PutTrace(make_trace(1, status="failed"))])
        assert [result.created for result in results] == [True, False]
        found = await storage.read("default", TraceById(make_trace(1).id))
        assert found is not None
        assert found.status == "failed"
        await storage.aclose()

    async def test_a_write_may_expect_what_the_batch_made_before_it(self) -> None:
        storage = self.make()
        trace = make_trace(1)
        said = PutFeedback(trace.id, 0.5, "so so", 1.0, expect="present")
        await storage.apply("default", [PutTrace(trace, expect="absent"), said])
        found = await storage.read("default", FeedbackByTrace(trace.id))
        assert found is not None
        assert (found.score, found.comment, found.at) == (0.5, "so so", 1.0)
        await storage.aclose()

    async def test_absent_means_absent(self) -> None:
        storage = self.make()
        await storage.apply("default", [PutTrace(make_trace(1))])
        with pytest.raises(PreconditionFailed):
            await storage.apply("default", [PutTrace(make_trace(1), expect="absent")])
        await storage.aclose()

    async def test_a_scan_gives_the_newest_first_and_goes_on_behind_a_key(self) -> None:
        storage = self.make()
        order = [3, 1, 5, 2, 4]
        await storage.apply("default", [PutTrace(make_trace(number)) for number in order])
        seen: list[str] = []
        after = None
        while page := await storage.scan("default", Traces(), after=after, limit=2):
            seen += [trace.id for trace in page]
            after = seen[-1]
        assert seen == [make_trace(number).id for number in (5, 4, 3, 2, 1)]
        await storage.aclose()

    async def test_a_scan_can_keep_to_one_environment(self) -> None:
        storage = self.make()
        await storage.apply("default", [PutTrace(make_trace(1)), PutTrace(make_trace(2, environment="sandbox"))])
        found = await storage.scan("default", Traces("sandbox"), after=None, limit=5)
        assert [trace.id for trace in found] == [make_trace(2).id]
        await storage.aclose()

    async def test_a_read_and_a_rating_can_keep_to_one_environment(self) -> None:
        storage, trace = self.make(), make_trace(1, environment="sandbox")
        await storage.apply("default", [PutTrace(trace)])
        assert await storage.read("default", TraceById(trace.id, "production")) is None
        assert await storage.read("default", TraceById(trace.id, "sandbox")) == trace
        said = PutFeedback(trace.id, 1.0, None, 0.0, expect="present", environment="production")
        with pytest.raises(PreconditionFailed):
            await storage.apply("default", [said])
        await storage.aclose()

    async def test_a_rating_keeps_to_the_environment_of_what_the_batch_made_before_it(self) -> None:
        storage, trace = self.make(), make_trace(1, environment="sandbox")
        said = PutFeedback(trace.id, 1.0, None, 0.0, expect="present", environment="production")
        with pytest.raises(PreconditionFailed) as failed:
            await storage.apply("default", [PutTrace(trace), said])
        assert failed.value.index == 1
        await storage.apply("default", [PutTrace(trace), replace(said, environment="sandbox")])
        await storage.aclose()

    @pytest.mark.parametrize(
        "snapshot",
        [
            CatalogueSnapshot("cat_1", "2026-11-21", (Model(id="a/one", pricing_per_1m=Pricing(1.0, 4.0)),)),
            PolicySnapshot("pos_1", "one@2026-11-21", Policy(name="one", models=["a/one"])),
            HealthSnapshot("hea_1", {"a/one": ModelHealth(stability=1)}),
        ],
        ids=lambda snapshot: type(snapshot).__name__,
    )
    async def test_a_snapshot_of_each_kind_comes_back_as_it_was(self, snapshot: Snapshot) -> None:
        storage = self.make()
        await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot)])
        assert await storage.read(SYSTEM_ACCOUNT, SnapshotById(snapshot.id)) == snapshot
        assert await storage.read("default", SnapshotById(snapshot.id)) is None
        await storage.aclose()

    async def test_a_snapshot_is_kept_once_and_comes_back(self) -> None:
        storage = self.make()
        snapshot = HealthSnapshot("hea_1", {"a/one": ModelHealth(stability=1)})
        results = await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot), PutSnapshot(snapshot)])
        assert [result.created for result in results] == [True, False]
        assert await storage.read(SYSTEM_ACCOUNT, SnapshotById("hea_1")) == snapshot
        await storage.aclose()

    async def test_writers_at_the_same_time_lose_nothing(self) -> None:
        storage = self.make()

        async def write(first: int) -> None:
            for number in range(first, first + 10):
                await storage.apply("default", [PutTrace(make_trace(number))])

        async with anyio.create_task_group() as group:
            for first in range(0, 50, 10):
                group.start_soon(write, first)
        assert len(await storage.scan("default", Traces(), after=None, limit=100)) == 50
        await storage.aclose()

    async def test_closing_twice_is_closing_once(self) -> None:
        storage = self.make()
        await storage.aclose()
        await storage.aclose()
