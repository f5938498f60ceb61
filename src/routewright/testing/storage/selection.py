"""Scans: which traces, in which order, page by page. ``_core/trace/filter.py`` says what each term means."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from routewright._core.trace.filter import KEYS, selects
from routewright.protocols import Storage
from routewright.wire import PutTrace, Span, Term, Trace, TraceItems, Traces

from .samples import ODD_TEXTS, all_items, all_terms, make_trace, model_span, newest_first, random_trace
from .suite import Suite

TERMS = all_terms()


def chance_traces(many: int = 40) -> list[Trace]:
    """The same traces each time."""
    rng = Random(20261121)
    return [random_trace(rng, number) for number in range(many)]


class Selecting(Suite):
    """Scans."""

    async def test_a_scan_gives_the_newest_first_by_key_whenever_they_came(self, storage: Storage) -> None:
        traces = chance_traces()
        for place in range(0, len(traces), 8):
            await storage.apply("default", [PutTrace(trace) for trace in traces[place : place + 8]])
        found = await storage.scan("default", Traces(), after=None, limit=100)
        assert found == newest_first(traces)
        assert len({trace.created_at for trace in traces}) < len(traces), "some were made in one millisecond"

    @pytest.mark.parametrize("limit", [1, 2, 7, 40, 41])
    async def test_a_walk_over_pages_meets_each_trace_once(self, storage: Storage, limit: int) -> None:
        traces = chance_traces()
        await storage.apply("default", [PutTrace(trace) for trace in traces])
        found = await all_items(storage, TraceItems(), limit=limit)
        assert [item.id for item in found] == [trace.id for trace in newest_first(traces)]

    async def test_a_page_begins_behind_its_key_even_if_there_is_no_such_trace(self, storage: Storage) -> None:
        await storage.apply("default", [PutTrace(make_trace(number)) for number in (1, 3)])
        for key, expected in [
            (make_trace(4).key, [3, 1]),
            (make_trace(3).key, [1]),
            (make_trace(2).key, [1]),
            (make_trace(1).key, []),
            ("2026-11-22T00:00:00.000Z", [3, 1]),
            ("2026-11-21T00:00:00.000Z", []),
        ]:
            found = await storage.scan("default", TraceItems(), after=key, limit=5)
            assert [item.id for item in found] == [make_trace(number).id for number in expected]

    @pytest.mark.parametrize("terms", [(), (Term("metadata.team", "=", "search"),)], ids=["all", "tagged"])
    async def test_what_comes_and_goes_between_pages_shows_none_twice_and_hides_no_other(
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
        assert len(seen) == len(set(seen))
        assert seen == sorted(seen, reverse=True)
        assert {trace.id for trace in old} <= set(seen)

    async def test_every_term_keeps_exactly_what_it_says(self, storage: Storage) -> None:
        traces = chance_traces()
        await storage.apply("default", [PutTrace(trace) for trace in traces])
        assert {term.key for term in TERMS if "." not in term.key} == set(KEYS)
        for term in TERMS:
            await _check(storage, traces, TraceItems(terms=(term,)))

    async def test_all_terms_and_bounds_have_to_hold_at_once(self, storage: Storage) -> None:
        traces = chance_traces()
        await storage.apply("default", [PutTrace(trace) for trace in traces])
        rng = Random(7)
        times = [None, None, *(trace.created_at for trace in traces[:5]), "2026-11-20T00:00:00.000Z"]
        for _ in range(150):
            query = TraceItems(
                environment=rng.choice((None, None, "production", "sandbox")),
                since=rng.choice(times),
                until=rng.choice(times),
                terms=tuple(rng.sample(TERMS, rng.randrange(4))),
            )
            await _check(storage, traces, query)

    async def test_a_scan_can_keep_to_one_environment(self, storage: Storage) -> None:
        await storage.apply("default", [PutTrace(make_trace(1)), PutTrace(make_trace(2, environment="sandbox"))])
        found = await storage.scan("default", Traces(environment="sandbox"), after=None, limit=5)
        assert [trace.id for trace in found] == [make_trace(2).id]

    async def test_a_trace_is_of_the_model_that_served_else_of_the_last_that_was_tried(self, storage: Storage) -> None:
        tried: list[Span] = [model_span("a/one", "error"), model_span("b/two", "error")]
        served = make_trace(1, selected_model="a/one", spans=[*tried[:1], model_span("a/one")])
        failed = make_trace(2, selected_model=None, status="failed", spans=tried)
        refused = make_trace(3, selected_model=None, status="failed")
        await storage.apply("default", [PutTrace(trace) for trace in (served, failed, refused)])
        asked = {"model": ("a/one", "b/two", ""), "provider": ("a", "b", "")}
        for key, values in asked.items():
            for value, trace in zip(values, (served, failed, refused), strict=True):
                found = await all_items(storage, TraceItems(terms=(Term(key, "=", value),)))
                assert [item.id for item in found] == [trace.id], (key, value)

    async def test_since_is_inclusive_and_until_is_not(self, storage: Storage) -> None:
        traces = [make_trace(number, created_at=f"2026-11-21T00:00:00.00{number}Z") for number in range(4)]
        await storage.apply("default", [PutTrace(trace) for trace in traces])
        query = TraceItems(since=traces[1].created_at, until=traces[3].created_at)
        assert [item.id for item in await all_items(storage, query)] == [traces[2].id, traces[1].id]

    @pytest.mark.parametrize("text", [text for text in ODD_TEXTS if len(text) < 1_000], ids=ascii)
    async def test_any_text_is_found_as_it_is(self, storage: Storage, text: str) -> None:
        odd = make_trace(1, metadata={"team": text, text: "here"}, selected_model=text, error=text, policy_id=text)
        other = make_trace(2, metadata={"team": text + "x", text + "x": "here"}, error=text.lower() + text.upper())
        await storage.apply("default", [PutTrace(odd), PutTrace(other)])
        for key, value in [("team", text), (text, "here")]:
            (found,) = await all_items(storage, TraceItems(terms=(Term(f"metadata.{key}", "=", value),)))
            assert found.id == odd.id
        for key in ("model", "error", "policy_id"):
            (found,) = await all_items(storage, TraceItems(terms=(Term(key, "=", text),)))
            assert found.id == odd.id

    @pytest.mark.parametrize("later", ["2026-11-21T00:00:00.000Z", "2026-11-22T00:00:00.000Z"])
    async def test_a_filter_asks_for_what_a_trace_holds_now(self, storage: Storage, later: str) -> None:
        before = make_trace(1, status="running", metadata={"team": "search", "tier": 1})
        after = make_trace(1, created_at=later, metadata={"team": "ads"})
        await storage.apply("default", [PutTrace(before)])
        await storage.apply("default", [PutTrace(after)])
        gone = Term("status", "=", "running"), Term("metadata.team", "=", "search"), Term("metadata.tier", ">", 0.0)
        for term in gone:
            assert await all_items(storage, TraceItems(terms=(term,))) == []
        assert len(await all_items(storage, TraceItems(terms=(Term("metadata.team", "=", "ads"),)))) == 1


async def _check(storage: Storage, traces: list[Trace], query: TraceItems) -> None:
    expected = [trace.item for trace in newest_first(traces) if selects(query, trace)]
    found = await storage.scan("default", query, after=None, limit=100)
    assert found == expected, query
    if len(expected) > 2:
        middle = expected[len(expected) // 2]
        behind = await storage.scan("default", query, after=middle.key, limit=2)
        assert behind == [item for item in expected if item.key < middle.key][:2], query
