"""Large requests are parsed in a worker thread, small ones inline, and all inline on a virtual clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from routewright import Message, Router, Settings, ValidationFailed
from routewright._core.request.read import as_request
from routewright._core.tokens.estimate import bounds_of_text
from routewright._engine import request_input
from routewright._engine.request_input import LARGE_CHARACTERS, LARGE_ITEMS, RawRequest
from routewright.testing import FakeClock
from routewright.wire import RouteRequest, Tool
from tests.tables import table

LONG = "word " * (LARGE_CHARACTERS // 5 + 1)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * LARGE_CHARACTERS}}
LARGE: dict[str, tuple[Any, dict[str, Any]]] = {
    "a string": (LONG, {}),
    "a message": ([{"role": "user", "content": LONG}], {}),
    "two halves": ([{"role": "user", "content": LONG[: len(LONG) // 2 + 1]}] * 2, {}),
    "a part": ([{"role": "user", "content": [{"type": "text", "text": LONG}]}], {}),
    "an image": ([{"role": "user", "content": [IMAGE]}], {}),
    "a struct": (RouteRequest([Message("user", LONG)]), {}),
    "a dict": ({"messages": [{"role": "user", "content": LONG}]}, {}),
    "tools": ("hi", {"tools": [TOOL] * (LARGE_ITEMS + 1)}),
    "tools in a dict": ({"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL] * (LARGE_ITEMS + 1)}, {}),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": "x"}] * (LARGE_ITEMS + 1)}], {}),
}
SMALL: list[Any] = ["hi", [], None, 7, b"x", {"messages": 7}, [7, None], [{"content": [7, {"image_url": None}]}], {}]


@table("kind", LARGE)
def test_requests_that_take_long_to_read_are_large(kind: str) -> None:
    assert RawRequest(*LARGE[kind]).is_large


@table("request_", SMALL, ids=repr)
def test_short_and_invalid_requests_are_small(request_: Any) -> None:
    assert not RawRequest(request_, {}).is_large
    assert not RawRequest(request_, {"tools": [Tool(name="f")]}).is_large


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each reading was done on the loop's thread."""
    loop, seen = threading.get_ident(), list[bool]()

    def noting(read: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any) -> Any:
            seen.append(threading.get_ident() == loop)
            return read(*given)

        return noted

    monkeypatch.setattr(request_input, "as_request", noting(as_request))  # of most
    monkeypatch.setattr(request_input, "bounds_of_text", noting(bounds_of_text))  # of plain turns
    return seen


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("clock", "request_", "inline"), [(None, LONG, False), (None, "hi", True), ("fake", LONG, True)]
)
async def test_only_large_requests_are_read_in_a_thread(
    threads: list[bool], clock: str | None, request_: str, inline: bool
) -> None:
    router = Router.sandbox(settings=Settings(clock=FakeClock()) if clock else None)
    await router.route(request_)
    async with router.stream(request_) as stream:
        async for _ in stream.text():
            pass
    assert threads == [inline, inline]


@pytest.mark.anyio
async def test_an_invalid_large_request_is_refused_by_route_and_stream() -> None:
    router, wrong = Router.sandbox(), [{"role": "nobody", "content": LONG}]
    with pytest.raises(ValidationFailed, match="nobody"):
        await router.route(wrong)
    with pytest.raises(ValidationFailed, match="nobody"):
        async with router.stream(wrong) as stream:
            await anext(stream)
