"""Tags apply to awaited calls, child tasks and copied contexts of the scope that sets them, and nowhere else."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import Answer, Caller, Router, ValidationFailed
from tests.tables import table

pytestmark = pytest.mark.anyio


def metadata(router: Router, options: Any) -> dict[str, Any] | None:
    """Of a request that is made here."""
    return router._read("hi", options).request.metadata


words = st.dictionaries(st.sampled_from("abc"), st.integers() | st.text(max_size=3), max_size=3)


async def heard(router: Router, **options: Any) -> dict[str, Any]:
    """The metadata in the trace of a call that is made here."""
    answer: Answer = await router.route("hi", **options)
    return answer.trace.metadata


async def test_requests_inside_get_the_tags_and_those_outside_do_not() -> None:
    router = Router.sandbox()
    assert await heard(router) == {}
    with router.tags(team="support", self=1):
        assert await heard(router) == {"team": "support", "self": 1}
        stream = router.stream("hi")
    assert await heard(router) == {}
    async for _ in stream:
        pass
    assert stream.result.trace.metadata == {"team": "support", "self": 1}


@given(outer=words, inner=words, own=st.none() | words)
def test_inner_tags_override_outer_ones_and_the_requests_own_override_both(
    outer: dict[str, Any], inner: dict[str, Any], own: dict[str, Any] | None
) -> None:
    router = Router.sandbox()
    with router.tags(**outer):
        with router.tags(**inner):
            assert (metadata(router, {"metadata": own}) or {}) == {**outer, **inner, **(own or {})}
        assert (metadata(router, {}) or {}) == outer
    assert metadata(router, {}) is None


async def test_tags_apply_in_tasks_started_inside_and_each_task_has_its_own() -> None:
    router = Router.sandbox()
    seen: dict[int, dict[str, Any]] = {}
    both_in = anyio.Event()

    async def ask(number: int) -> None:
        with router.tags(number=number):
            if len(seen) or number:
                both_in.set()
            await both_in.wait()
            seen[number] = await heard(router)

    with router.tags(batch="b"):
        async with anyio.create_task_group() as group:
            group.start_soon(ask, 0)
            group.start_soon(ask, 1)
    assert seen == {0: {"batch": "b", "number": 0}, 1: {"batch": "b", "number": 1}}


async def test_views_share_the_tags_and_other_routers_do_not() -> None:
    router, other = Router.sandbox(), Router.sandbox()
    with router.as_caller(Caller("anna")).tags(a=1), other.tags(b=2):
        assert await heard(router) == {"a": 1}
        assert await heard(router.as_caller(Caller("ben"))) == {"a": 1}
        assert await heard(other) == {"b": 2}


async def test_a_thread_has_the_tags_of_the_context_that_it_was_given() -> None:
    router = Router.sandbox()

    def ask() -> dict[str, Any]:
        return router.blocking.route("hi").trace.metadata

    with router.tags(a=1), ThreadPoolExecutor(1) as pool:
        assert await anyio.to_thread.run_sync(ask) == {"a": 1}
        assert pool.submit(contextvars.copy_context().run, ask).result() == {"a": 1}
        assert pool.submit(ask).result() == {}
    router.blocking.close()


@table("wrong", [{"a": object()}, {"a": b"x"}, {"a": float("nan")}, {"a": "\ud800"}])
def test_a_tag_that_is_not_json_is_refused_at_once_with_its_path(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationFailed) as told:
        Router.sandbox().tags(**wrong)
    (problem,) = told.value.problems
    assert problem.path == "tags.a"


def test_too_long_tags_are_refused_at_once_by_name() -> None:
    router = Router.sandbox()
    with pytest.raises(ValidationFailed, match=r"^tags: takes 17008 bytes as JSON; at most 16384"):
        router.tags(a="x" * 17_000)
    with router.tags(a="x" * 10_000):
        with pytest.raises(
            ValidationFailed, match=r"^tags: takes 18015 bytes .* together with the outer tags, which take 10008"
        ):
            router.tags(b="x" * 8_000).__enter__()
        assert metadata(router, {"metadata": {"b": 1}})
        for size, path in ((7_000, "tags"), (12_000, "metadata")):
            said = rf"^{path}: takes \d+ bytes .* together: {size + 8} for the request's metadata, 10008 for the tags"
            with pytest.raises(ValidationFailed, match=said):
                router.decide("hi", metadata={"b": "x" * size})
        assert metadata(router, {"metadata": {"a": "x" * 16_000}}) == {"a": "x" * 16_000}


def test_a_scope_may_be_left_in_another_context_than_it_was_entered() -> None:
    router = Router.sandbox()

    @contextmanager
    def fixture() -> Iterator[None]:
        with router.tags(a=1):
            yield

    manager = fixture()
    contextvars.copy_context().run(manager.__enter__)
    contextvars.copy_context().run(manager.__exit__, None, None, None)
    assert router._parts.tags.here() == {}
