"""Contract of traces and feedback: stored, selected, deleted and swept, with accounts isolated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from typing import Any, get_args

import anyio
import pytest
from msgspec import to_builtins
from msgspec.json import decode
from msgspec.structs import asdict, replace

from routewright._core.trace.filter import KEYS, selects
from routewright.errors import PreconditionFailed, UnsupportedWrite
from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    CatalogueSnapshot,
    CurrentRetention,
    DecisionRecord,
    Decisions,
    DecisionSpan,
    DeleteTraces,
    Durability,
    Environment,
    Expect,
    FeedbackByTrace,
    FeedbackByTraces,
    LatencyCounts,
    PutFeedback,
    PutSnapshot,
    PutTrace,
    RollupKeys,
    SetRetention,
    SnapshotById,
    Term,
    Trace,
    TraceById,
    TraceItem,
    TraceItems,
    Traces,
    UsageCounts,
    Write,
)
from routewright.wire.timestamps import timestamp

from .samples import (
    ALIKE,
    DAY_S,
    FOR_EVER,
    HOUR_S,
    NOW,
    ODD_TEXTS,
    ROLLUP_KEYS,
    all_items,
    all_terms,
    answer,
    answers,
    counted_anew,
    decision_span,
    expected_answers,
    full_trace,
    make_trace,
    newest_first,
    plain,
    random_trace,
)

TRACE, OTHER = make_trace(1), make_trace(9)
SANDBOX = make_trace(1, environment="sandbox")
EMPTY = CatalogueSnapshot("cat_empty", "2026-11-21", ())
TEAM = Term("metadata.team", "=", "search")
TERMS = all_terms()
SELECTIONS = (
    TraceItems(environment="sandbox"),
    TraceItems(since="2026-11-20T00:00:00.000Z"),
    TraceItems(until="2026-11-20T13:30:00.000Z"),
    TraceItems(terms=(Term("status", "=", "failed"),)),
    TraceItems(terms=(Term("status", "!=", "completed"), Term("cost_usd", ">=", 0.01))),
    TraceItems(terms=(TEAM,)),
    TraceItems(terms=(Term("metadata.team", "!=", "search"), Term("model", "=", ""))),
    TraceItems(terms=(Term("metadata.team", "<", 2.0),), environment="production", since="2026-11-19T12:00:00.000Z"),
    TraceItems(),
)


def said(expect: Expect | None, environment: Environment | None = None) -> PutFeedback:
    """Feedback on ``TRACE``."""
    return PutFeedback(TRACE.id, 0.5, "so so", 1.0, expect=expect, environment=environment)


def aged(number: int, age_s: float, environment: Environment = "production", account: str = "default") -> PutTrace:
    """A trace with an age at ``NOW``."""
    trace = make_trace(number, created_at=timestamp(NOW - age_s), environment=environment, account=account)
    return PutTrace(plain(trace), rollup_keys=ROLLUP_KEYS)


EXPECTATIONS: tuple[tuple[list[Write], Write, bool], ...] = (
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
)
"""What is there, a write that expects something, and whether it finds that."""
MONTH: dict[str, Any] = {"first": "2026-11-01", "last": "2026-11-30"}
USED, TOOK = UsageCounts(group_by="model", **MONTH), LatencyCounts(**MONTH)
AGES = (0.5 * HOUR_S, DAY_S, 3 * DAY_S)
RETENTIONS: tuple[tuple[SetRetention, list[int]], ...] = (
    (SetRetention(production_s=2 * DAY_S, sandbox_s=HOUR_S), [0, 1, 3]),
    (SetRetention(production_s=HOUR_S, sandbox_s=2 * DAY_S), [0, 3, 4]),
    (SetRetention(production_s=None, sandbox_s=HOUR_S), [0, 1, 2, 3]),
    (SetRetention(production_s=HOUR_S, sandbox_s=None), [0, 3, 4, 5]),
    (SetRetention(production_s=0.0, sandbox_s=0.0), []),
    (SetRetention(production_s=DAY_S, sandbox_s=3 * DAY_S - 0.001), [0, 1, 3, 4]),
    (FOR_EVER, [0, 1, 2, 3, 4, 5]),
)
"""Retentions, and which traces they keep: 0 to 2 of production, 3 to 5 of the sandbox, by ``AGES``."""


@pytest.mark.anyio
class Suite:
    """Base of tests of a storage. Each test has a new one."""

    def make(self) -> Storage:
        """Make an empty storage."""
        raise NotImplementedError("override make() to return an empty storage")

    @pytest.fixture
    async def storage(self) -> AsyncIterator[Storage]:
        """An empty storage, closed afterwards, twice."""
        storage = self.make()
        yield storage
        await storage.aclose()
        await storage.aclose()


class Keeping(Suite):
    """Stored things come back unchanged."""

    async def test_a_trace_comes_back_as_it_was(self, storage: Storage) -> None:
        trace = full_trace()
        await storage.apply("default", [PutTrace(trace)])
        assert await storage.read("default", TraceById(trace.id)) == trace
        assert await storage.scan("default", Traces(), after=None, limit=5) == [trace]
        (item,) = await storage.scan("default", TraceItems(), after=None, limit=5)
        assert item == trace.item
        assert type(item) is TraceItem

    async def test_changing_a_trace_outside_does_not_change_the_stored_one(self, storage: Storage) -> None:
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

    async def test_a_miss_is_none(self, storage: Storage) -> None:
        assert await storage.read("default", TraceById("tr_none")) is None
        assert await storage.read("default", FeedbackByTrace("tr_none")) is None
        assert await storage.read(SYSTEM_ACCOUNT, SnapshotById("hea_none")) is None
        assert await storage.scan("default", Traces(), after=None, limit=5) == []
        assert await storage.apply("default", []) == []

    async def test_reads_and_scans_can_be_limited_to_one_environment(self, storage: Storage) -> None:
        trace = make_trace(1, environment="sandbox")
        feedback = [PutFeedback(trace_id, 0.5, None, 1.0) for trace_id in (trace.id, "tr_none")]
        await storage.apply("default", [PutTrace(trace), *feedback])
        asked: tuple[tuple[Environment | None, bool], ...] = ((None, True), ("sandbox", True), ("production", False))
        for environment, there in asked:
            assert await storage.read("default", TraceById(trace.id, environment)) == (trace if there else None)
            page = await storage.scan("default", Traces(environment=environment), after=None, limit=5)
            assert page == [trace] * there
            found = await storage.read("default", FeedbackByTrace(trace.id, environment))
            assert (found is not None) == there
            found = await storage.read("default", FeedbackByTrace("tr_none", environment))
            assert (found is not None) == (environment is None)

    async def test_feedback_is_read_for_many_traces_at_once(self, storage: Storage) -> None:
        feedback = [PutFeedback(f"tr_{n}", n / 1000, None, 1.0) for n in range(0, 1000, 7)]
        await storage.apply("default", feedback)
        ids = tuple(f"tr_{n}" for n in range(1000))
        found = await storage.read("default", FeedbackByTraces(ids))
        assert sorted(found, key=lambda rating: rating.score) == feedback
        assert await storage.read("default", FeedbackByTraces(())) == []
        assert await storage.read("other", FeedbackByTraces(ids)) == []

    async def test_any_text_comes_back_and_is_found_unchanged(self, storage: Storage) -> None:
        for text in ODD_TEXTS:
            facts: dict[str, Any] = {"metadata": {"team": text, text: "here", "nested": {text: [text]}}}
            odd = make_trace(1, selected_model=text, policy_id=text, error=text, **facts)
            other = make_trace(2, metadata={"team": text + "x", text + "x": "here"}, error=text.lower() + text.upper())
            await storage.apply("default", [PutTrace(odd), PutTrace(other), PutFeedback(odd.id, 1.0, text, 0.0)])
            assert await storage.read("default", TraceById(odd.id)) == odd
            assert await _said(storage, odd) == (1.0, text, 0.0)
            assert await storage.read("default", TraceById(text)) is None
            assert await storage.read("default", FeedbackByTrace(odd.id + text)) is None
            if len(text) < 1_000:  # longer metadata cannot be filtered by
                asked = {
                    "metadata.team": text,
                    f"metadata.{text}": "here",
                    "model": text,
                    "error": text,
                    "policy_id": text,
                }
                for key, value in asked.items():
                    assert await all_items(storage, TraceItems(terms=(Term(key, "=", value),))) == [odd.item]
            await storage.apply("default", [DeleteTraces()])

    async def test_concurrent_writers_lose_nothing_and_one_of_them_is_first(self, storage: Storage) -> None:
        succeeded = list[str]()

        async def write(first: int) -> None:
            try:
                await storage.apply("default", [PutTrace(make_trace(99, error=str(first)), expect="absent")])
                succeeded.append(str(first))
            except PreconditionFailed:
                pass
            for number in range(first, first + 10):
                await storage.apply("default", [PutTrace(make_trace(number))])

        async with anyio.create_task_group() as group:
            for first in range(0, 50, 10):
                group.start_soon(write, first)
        found = await storage.scan("default", TraceItems(), after=None, limit=100)
        assert [item.id for item in found] == [make_trace(number).id for number in (99, *reversed(range(50)))]
        assert [found[0].error] == succeeded


class Batches(Suite):
    """A batch is applied completely or not at all, and only if the expectations of its writes hold."""

    @pytest.mark.parametrize("durability", get_args(Durability))
    async def test_a_read_sees_every_applied_write(self, storage: Storage, durability: Durability) -> None:
        for number in range(5):
            trace = make_trace(number)
            await storage.apply("default", [PutTrace(trace, durability=durability)])
            assert await storage.read("default", TraceById(trace.id)) == trace
            (newest,) = await storage.scan("default", TraceItems(), after=None, limit=1)
            assert newest.id == trace.id

    @pytest.mark.parametrize("wrong", [make_trace(3), DeleteTraces(), PutSnapshot(EMPTY), SetRetention()])
    async def test_an_unknown_or_misplaced_write_is_refused_with_its_batch(self, storage: Storage, wrong: Any) -> None:
        await storage.apply("default", [PutTrace(OTHER)])
        with pytest.raises(UnsupportedWrite):
            await storage.apply("default", [PutTrace(TRACE), wrong])
        assert await storage.scan("default", Traces(), after=None, limit=5) == [OTHER]

    async def test_an_unknown_query_is_refused(self, storage: Storage) -> None:
        unknown: Any = TRACE
        with pytest.raises(UnsupportedWrite):
            await storage.read("default", unknown)
        with pytest.raises(UnsupportedWrite):
            await storage.scan("default", unknown, after=None, limit=5)

    async def test_a_batch_is_applied_only_if_each_write_finds_what_it_expects(self, storage: Storage) -> None:
        for number, (there, write, holds) in enumerate(EXPECTATIONS):
            for at_once in (True, False):  # what is there may come from the same batch
                account, first = f"{number} {at_once}", there if at_once else [PutTrace(OTHER)]
                batch = [*first, write, PutTrace(make_trace(8))]
                await storage.apply(account, [] if at_once else there)
                if holds:
                    assert len(await storage.apply(account, batch)) == len(batch), account
                    continue
                before = await _seen(storage, account)
                with pytest.raises(PreconditionFailed) as failed:
                    await storage.apply(account, batch)
                assert failed.value.index == len(batch) - 2, account
                assert await _seen(storage, account) == before, account

    async def test_a_snapshot_is_present_once_it_is_put_and_not_when_a_trace_names_it(self, storage: Storage) -> None:
        one, two = (CatalogueSnapshot(name, "2026-11-21", ()) for name in ("cat_1", "cat_2"))
        absent, present = PutSnapshot(one, expect="absent"), PutSnapshot(one, expect="present")
        await storage.apply("default", [PutTrace(TRACE)])  # names cat_1
        assert await storage.read(SYSTEM_ACCOUNT, SnapshotById("cat_1")) is None
        with pytest.raises(PreconditionFailed):
            await storage.apply(SYSTEM_ACCOUNT, [present])
        for batch, created in (([absent, present], [True, False]), ([present], [False])):
            assert [written.created for written in await storage.apply(SYSTEM_ACCOUNT, batch)] == created
        for refused in ([absent], [PutSnapshot(two), PutSnapshot(two, expect="absent")]):
            with pytest.raises(PreconditionFailed):
                await storage.apply(SYSTEM_ACCOUNT, refused)
        assert await storage.read(SYSTEM_ACCOUNT, SnapshotById("cat_2")) is None


class Selecting(Suite):
    """Scans: which traces, in which order, page by page. ``_core/trace/filter.py`` says what each term means."""

    @pytest.mark.parametrize("terms", [(), (TEAM,)], ids=["all", "tagged"])
    async def test_writes_between_pages_show_no_trace_twice_and_hide_no_other(
        self, storage: Storage, terms: tuple[Term, ...]
    ) -> None:
        old = [make_trace(number, created_at=f"2026-11-21T00:{number:02}:00.000Z") for number in range(0, 40, 2)]
        await storage.apply("default", [PutTrace(trace) for trace in old])
        rng, seen, after = Random(1), list[str](), None
        while page := await storage.scan("default", TraceItems(terms=terms), after=after, limit=3):
            seen += [item.id for item in page]
            after = page[-1].key
            number = rng.randrange(1, 40, 2)  # between the old ones, before and behind the page
            new = make_trace(number, created_at=f"2026-11-21T00:{number:02}:00.000Z")
            await storage.apply("default", [PutTrace(new), PutTrace(replace(old[-1], status="failed"))])
        assert seen == sorted(set(seen), reverse=True)
        assert {trace.id for trace in old} <= set(seen)

    async def test_decisions_come_oldest_first_with_what_a_simulation_needs(self, storage: Storage) -> None:
        rng = Random(20261130)
        traces = [random_trace(rng, number) for number in range(20)]
        await storage.apply("default", [PutTrace(trace) for trace in traces])
        seen: list[DecisionRecord] = []
        while page := await storage.scan("default", Decisions(), after=seen[-1].key if seen else None, limit=7):
            seen += page
        assert [record.id for record in seen] == [trace.id for trace in reversed(newest_first(traces))]
        newest = await storage.scan("default", Decisions(newest_first=True), after=seen[7].key, limit=3)
        assert newest == seen[6:3:-1]
        by_id = {trace.id: trace for trace in traces}
        for record in seen:
            trace = by_id[record.id]
            assert (record.decision_input, record.hit) == (trace.decision_input, trace.cache_hit)
            assert record.duration_ms == trace.duration_ms
            assert record.cost_nanos == pytest.approx(trace.cost_usd * 1e9, abs=1)
            assert decode(record.metadata or b"{}") == to_builtins(trace.metadata)
            if record.output_tokens is not None:
                assert record.output_tokens == trace.tokens.output
        query = Decisions(terms=(Term("status", "=", "failed"),))
        expected = [trace.id for trace in reversed(newest_first(traces)) if selects(query, trace)]
        assert [record.id for record in await storage.scan("default", query, after=None, limit=99)] == expected

    async def test_a_scan_selects_exactly_by_its_terms_and_bounds(self, storage: Storage) -> None:
        rng = Random(20261121)
        traces = [random_trace(rng, number) for number in range(40)]
        await storage.apply("default", [PutTrace(trace) for trace in traces])
        assert {term.key for term in TERMS if "." not in term.key} == set(KEYS)
        queries = [TraceItems(terms=(term,)) for term in TERMS]
        times = [None, None, *(trace.created_at for trace in traces[:5]), "2026-11-20T00:00:00.000Z"]
        for _ in range(25):
            query = TraceItems(
                environment=rng.choice((None, None, "production", "sandbox")),
                since=rng.choice(times),
                until=rng.choice(times),
                terms=tuple(rng.sample(TERMS, rng.randrange(4))),
            )
            queries.append(query)
        for query in queries:
            expected = [trace.item for trace in newest_first(traces) if selects(query, trace)]
            assert await storage.scan("default", query, after=None, limit=100) == expected, query
            if len(expected) > 2:
                place = len(expected) // 2
                behind = await storage.scan("default", query, after=expected[place].key, limit=2)
                assert behind == expected[place + 1 : place + 3], query


class Deletion(Suite):
    """``DeleteTraces``: removed traces are gone, with their feedback, and are no longer counted."""

    async def test_a_deleted_trace_takes_its_feedback_along_and_may_be_put_again(self, storage: Storage) -> None:
        one, other = make_trace(1), make_trace(2)
        feedback = [PutFeedback(trace.id, 1.0, None, 0.0) for trace in (one, other)]
        await storage.apply("default", [PutTrace(one), PutTrace(other), *feedback])
        assert await _delete(storage, DeleteTraces(id=one.id)) == 1
        assert await storage.read("default", FeedbackByTrace(one.id)) is None
        (written,) = await storage.apply("default", [PutTrace(one, expect="absent")])
        assert written.created
        assert await storage.read("default", FeedbackByTrace(one.id)) is None
        assert await _said(storage, other) == (1.0, None, 0.0)

    async def test_an_id_is_deleted_only_if_the_other_conditions_hold(self, storage: Storage) -> None:
        await storage.apply("default", [PutTrace(TRACE)])
        for other in (
            DeleteTraces(id=TRACE.id, environment="sandbox"),
            DeleteTraces(id=TRACE.id, until=TRACE.created_at),
            DeleteTraces(id=TRACE.id, terms=(Term("status", "=", "failed"),)),
            DeleteTraces(id=TRACE.id, terms=(Term("metadata.team", "=", "ads"),)),
            DeleteTraces(id=TRACE.id, limit=0),
            DeleteTraces(id=TRACE.id, limit=-1),
            DeleteTraces(id=TRACE.id + "0"),
            DeleteTraces(id=""),
        ):
            assert await _delete(storage, other) == 0
        assert await _delete(storage, DeleteTraces(id=TRACE.id, environment="production", terms=(TEAM,))) == 1

    async def test_exactly_the_selected_traces_go_and_are_not_counted(self, storage: Storage) -> None:
        rng = Random(3)
        puts = [PutTrace(random_trace(rng, number), rollup_keys=ROLLUP_KEYS) for number in range(25)]
        for query in SELECTIONS:
            await storage.apply("default", puts)
            left = [put for put in puts if not selects(query, put.trace)]
            assert len(left) < len(puts)
            assert await _delete(storage, DeleteTraces(**asdict(query))) == len(puts) - len(left), query
            assert await _left(storage) == [trace.id for trace in newest_first([put.trace for put in left])], query
            assert await answers(storage) == expected_answers(left), query
        assert not left
        assert await storage.read("default", RollupKeys()) == []


class Aging(Suite):
    """Retention: what ``sweep`` removes and keeps."""

    async def test_the_last_retention_holds(self, storage: Storage) -> None:
        for retention in (SetRetention(production_s=30 * DAY_S), SetRetention(sandbox_s=0.5), FOR_EVER):
            (written,) = await storage.apply(SYSTEM_ACCOUNT, [retention])
            assert not written.created
            assert await storage.read(SYSTEM_ACCOUNT, CurrentRetention()) == retention

    async def test_a_trace_goes_when_it_is_older_than_its_environment_keeps_it(self, storage: Storage) -> None:
        puts = [aged(number, age, "production") for number, age in enumerate(AGES)]
        puts += [aged(number, age, "sandbox") for number, age in enumerate(AGES, start=len(AGES))]
        by_age = newest_first([put.trace for put in puts])
        for retention, left in RETENTIONS:
            await storage.apply("default", puts)
            await storage.apply(SYSTEM_ACCOUNT, [retention])
            assert await storage.sweep(0.0) == 0, "before time began"
            assert await storage.sweep(NOW) == len(puts) - len(left), retention
            kept = {make_trace(number).id for number in left}
            assert await _left(storage) == [trace.id for trace in by_age if trace.id in kept], retention
            assert await storage.sweep(NOW) == 0

    async def test_swept_traces_stay_counted_and_take_their_feedback_along(self, storage: Storage) -> None:
        await storage.apply(SYSTEM_ACCOUNT, [SetRetention(production_s=DAY_S, sandbox_s=DAY_S)])
        accounts = ("one", "two", "three's", SYSTEM_ACCOUNT)
        puts: dict[str, list[PutTrace]] = {}
        for place, account in enumerate(accounts):  # what is old in one account has the id of what is new in the next
            ages = [3 * DAY_S, HOUR_S] if place % 2 else [HOUR_S, 3 * DAY_S]
            puts[account] = [aged(number, age, account=account) for number, age in enumerate(ages)]
            feedback = [PutFeedback(put.trace.id, 1.0, None, 0.0) for put in puts[account]]
            await storage.apply(account, [*puts[account], *feedback])
        assert await storage.sweep(NOW) == len(accounts)
        for place, account in enumerate(accounts):
            kept = [puts[account][place % 2].trace]
            assert await storage.scan(account, Traces(), after=None, limit=5) == kept
            found = [await storage.read(account, FeedbackByTrace(put.trace.id)) for put in puts[account]]
            assert [each is not None for each in found] == [put.trace in kept for put in puts[account]]
            assert await answers(storage, account) == expected_answers(puts[account])

    async def test_a_sweep_removes_more_traces_than_fit_a_transaction(self, storage: Storage) -> None:
        await storage.apply(SYSTEM_ACCOUNT, [SetRetention(production_s=DAY_S)])
        await storage.apply("default", [aged(number, 3 * DAY_S) for number in range(350)])
        assert await storage.sweep(NOW) == 350
        assert await _left(storage) == []


class Isolation(Suite):
    """No query, scan, deletion or roll-up crosses accounts, whatever their names."""

    async def test_accounts_with_similar_names_are_separate(self, storage: Storage) -> None:
        puts: dict[str, list[PutTrace]] = {}
        for place, account in enumerate(ALIKE):  # with an id that all have, and one of its own
            facts: dict[str, Any] = {"account": account, "decision_input": None, "duration_ms": 1.0 + place}
            puts[account] = [PutTrace(make_trace(1, **facts), rollup_keys=ROLLUP_KEYS)]
            puts[account].append(PutTrace(make_trace(1, id=account[:100], **facts)))
            feedback = [PutFeedback(put.trace.id, 1.0, account, 0.0, expect="present") for put in puts[account]]
            await storage.apply(account, [*puts[account], *feedback])
        for account in ALIKE:
            traces = newest_first([put.trace for put in puts[account]])
            assert await storage.scan(account, Traces(), after=None, limit=100) == traces
            assert await storage.scan(account, Traces(), after=traces[0].key, limit=100) == traces[1:]
            for trace in traces:
                assert await storage.read(account, TraceById(trace.id)) == trace
                found = await storage.read(account, FeedbackByTrace(trace.id))
                assert found is not None
                assert found.comment == account
            counted = counted_anew(puts[account])
            for report in (USED, TOOK):
                assert await storage.read(account, report) == answer(counted, report)
        for nobody in ("nobody", SYSTEM_ACCOUNT):
            for query in (TraceById(make_trace(1).id), TraceById(make_trace(1).id, "production")):
                assert await storage.read(nobody, query) is None
            assert await storage.read(nobody, FeedbackByTrace(make_trace(1).id)) is None
            assert await storage.read(nobody, RollupKeys()) == []
            assert await storage.scan(nobody, Traces(terms=(TEAM,)), after=None, limit=5) == []
            assert await storage.scan(nobody, TraceItems(), after="9999", limit=5) == []
            assert await answers(storage, nobody) == expected_answers([])


async def _said(storage: Storage, trace: Trace) -> tuple[float, str | None, float]:
    """The feedback on a trace."""
    found = await storage.read(trace.account, FeedbackByTrace(trace.id))
    assert found is not None
    return found.score, found.comment, found.at


async def _seen(storage: Storage, account: str) -> object:
    """Everything that a batch of these tests could change."""
    reads: list[Any] = [USED, FeedbackByTrace(TRACE.id), SnapshotById(EMPTY.id)]
    items = await storage.scan(account, TraceItems(), after=None, limit=20)
    return items, [await storage.read(account, query) for query in reads]


async def _delete(storage: Storage, which: DeleteTraces) -> int:
    (written,) = await storage.apply("default", [which])
    assert not written.created
    return written.count


async def _left(storage: Storage) -> list[str]:
    return [item.id for item in await all_items(storage, TraceItems())]


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
