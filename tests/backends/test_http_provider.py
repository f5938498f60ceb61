"""What every HTTP provider guarantees, in any protocol: answers, faults, connections, keys and requests."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import Catalogue, ExecutionLimits, OpenAIProvider, Router, Settings
from routewright.backends.providers.answer import SLICE_BYTES, decode_stream
from routewright.backends.providers.environment import providers_from_environment
from routewright.backends.providers.faults import BODY_CHARS
from routewright.backends.providers.http import REFUSED_S, HttpProvider
from routewright.errors import ProviderFault, UpstreamFailed, ValidationFailed
from routewright.router import StepCall, StepDone
from routewright.testing import FakeClock
from routewright.wire import Delta, Finish, Model, UpstreamCall, Usage
from routewright.wire.account import Secret
from tests.upstream import Answer, Cut, Gate, Request, Upstream, of_json

from .conversations import calls, conversations, scraps
from .provider_calls import (
    EVENTS,
    JSON,
    AtOnce,
    bytes_of,
    call,
    chunks_of,
    fault_after,
    fault_of,
    read_streamed,
    summary_of,
    text_from,
    without_signs_of_life,
    written,
)
from .vendors import BAD_ADDRESSES, KEY, OPENAI, PASSWORD, USAGE, VENDORS, Vendor

pytestmark = pytest.mark.anyio
KEYS = ["sk-Canary-one-0123456789", "sk-Canary-two-0123456789", "sk-Canary-3-0123456789"]
both = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])
"""For what is decided after the transport, which the event loop does not change."""


@pytest.fixture
async def several_keys(vendor: Vendor, server: Upstream, anyio_backend: str) -> AsyncIterator[HttpProvider]:
    """A provider with several keys."""
    made = vendor.make(KEYS, base_url=server.url, clock=FakeClock(autojump=False))
    yield made
    await made.aclose()


def event(document: Any, name: str = "message") -> bytes:
    return f"event: {name}\ndata: {json.dumps(document)}\n\n".encode()


# --- what comes back


async def test_plain_answer_is_text_usage_and_finish(vendor: Vendor, provider: HttpProvider) -> None:
    assert await chunks_of(provider, call("say this", stream=False)) == vendor.plain("say this")


async def test_streamed_answer_is_deltas_usage_and_finish(
    vendor: Vendor, server: Upstream, provider: HttpProvider
) -> None:
    server.answers = [vendor.streamed("a", "b", "c")]
    assert await chunks_of(provider, call()) == [*vendor.begun, *map(Delta, "abc"), USAGE, Finish("stop")]


async def test_stream_is_read_as_it_arrives(vendor: Vendor, server: Upstream, provider: HttpProvider) -> None:
    gate = Gate()
    server.answers = [vendor.streamed("first", gate, "last")]
    async with provider.open(call()) as chunks:
        assert await text_from(chunks) == "first"
        gate.open()
        assert without_signs_of_life([chunk async for chunk in chunks]) == [Delta("last"), USAGE, Finish("stop")]


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
@given(data=st.data())
def test_stream_cut_at_any_bytes_is_the_same(vendor: Vendor, data: st.DataObject) -> None:
    sent = bytes_of(vendor.stream(*vendor.long, *vendor.long_ending))
    cuts = data.draw(st.sets(st.integers(1, len(sent) - 1)))
    pieces = [sent[start:end] for start, end in pairwise([0, *sorted(cuts), len(sent)])]
    assert read_streamed(vendor.reader(), *pieces) == vendor.long_read


@both
async def test_a_server_may_stream_or_not_regardless_of_the_request(
    vendor: Vendor, server: Upstream, provider: HttpProvider, stream: bool
) -> None:
    server.answers = [vendor.whole("all at once"), vendor.streamed("all at once")]
    assert await chunks_of(provider, call(stream=stream)) == vendor.plain("all at once")
    assert summary_of(await chunks_of(provider, call(stream=stream))) == ("all at once", [], USAGE, "stop")


async def test_a_stream_may_lack_its_end_mark_after_the_finish_reason(
    vendor: Vendor, server: Upstream, provider: HttpProvider
) -> None:
    server.answers = [vendor.broken("x", *vendor.ending)]
    assert await chunks_of(provider, call()) == [*vendor.begun, Delta("x"), USAGE, Finish("stop")]


async def test_a_stream_is_drained_so_that_its_connection_is_reused(
    vendor: Vendor, server: Upstream, provider: HttpProvider
) -> None:
    gate, ended = Gate(), anyio.Event()
    server.answers = [vendor.streamed("x")]
    server.answers[0].pieces = [*server.answers[0].pieces, gate]

    async def read() -> None:
        assert await chunks_of(provider, call())
        ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await anyio.to_thread.run_sync(gate.reached.wait)
        await anyio.wait_all_tasks_blocked()
        assert not ended.is_set()
        gate.open()
    await chunks_of(provider, call())
    assert server.opened == 1


def test_invalid_usage_is_ignored(vendor: Vendor) -> None:
    wrongs: tuple[Any, ...] = (-1, 1.5, True, "x", "", "nan", 10**12, float("inf"), [], {})
    for wrong in wrongs:
        assert vendor.read_usage(vendor.counts(1, 1) | vendor.details(wrong)) == Usage(1, 1)
        assert vendor.read_usage(vendor.counts(wrong, 1)) in (None, Usage(0, 1))
        assert vendor.read_usage(vendor.counts(1, wrong)) in (None, Usage(1, 0))
        for usage in (vendor.counts(wrong, wrong), vendor.counts(0, 0), wrong, None):
            assert vendor.read_usage(usage) is None
    for whole in (3, 3.0, "3", "3.0"):
        assert vendor.read_usage(vendor.counts(whole, whole)) == Usage(3, 3)


@pytest.mark.parametrize("noise", [b":\n\n", b"\n", b"event: ping\n\n", b": comment "])
async def test_a_stream_without_events_lets_other_tasks_run(noise: bytes) -> None:
    vendor, size, turns = OPENAI, 256 << 10, 0
    quiet = AtOnce(noise * (size // len(noise)), b"\n\n" + bytes_of(vendor.streamed("x")))

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as group:
        group.start_soon(count)
        read = [chunk async for chunk in decode_stream(vendor.reader(), quiet, str)]
        group.cancel_scope.cancel()
    assert without_signs_of_life(read) == [*vendor.begun, Delta("x"), USAGE, Finish("stop")]
    assert turns >= size // SLICE_BYTES - 2


# --- what is not an answer

BOOM = {"error": {"message": "boom"}}
MALFORMED: dict[str, Callable[[Vendor], Answer]] = {
    "nothing": lambda vendor: of_json({}),
    "nothing in it": lambda vendor: of_json({vendor.content: []}),
    "null in it": lambda vendor: of_json({vendor.content: None}),
    "wrong shape": lambda vendor: of_json({vendor.content: "none"}),
    "another shape within": lambda vendor: of_json({vendor.content: ["none"]}),
    "a list": lambda vendor: of_json([]),
    "error body": lambda vendor: of_json(BOOM),
    "error text": lambda vendor: of_json({"error": "boom"}),
    "empty body": lambda vendor: Answer([b""], headers=JSON),
    "broken JSON": lambda vendor: Answer([f'{{"{vendor.content}": ['.encode()], headers=JSON),
    "trailing garbage": lambda vendor: Answer([b"{}{}"], headers=JSON),
    "deep nesting": lambda vendor: Answer([vendor.deep + b"[" * 100_000], headers=JSON),
    "invalid UTF-8": lambda vendor: Answer([f'{{"{vendor.content}": "\xff"}}'.encode("latin-1")], headers=JSON),
    "HTML": lambda vendor: Answer([b"<html>"], headers={"content-type": "text/html"}),
    "redirect": lambda vendor: Answer([b""], 302, {"location": "https://elsewhere.example/"}),
    "no content": lambda vendor: Answer([b""], 204),
}


@on_asyncio
@both
async def test_invalid_complete_answer_is_malformed(
    vendor: Vendor, server: Upstream, provider: HttpProvider, stream: bool
) -> None:
    for case, make in MALFORMED.items():
        server.answers = [make(vendor)]
        assert (await fault_of(provider, call(stream=stream))).kind == "malformed", case
        assert await chunks_of(provider, call("abc", stream=stream))


@on_asyncio
@both
async def test_usage_is_given_before_a_fault(
    vendor: Vendor, server: Upstream, provider: HttpProvider, stream: bool
) -> None:
    none: list[dict[str, Any]] = [BOOM, {vendor.content: []}, {}]
    for document in none:
        server.answers = [of_json(document | {vendor.usage: vendor.counts(9, 3)})]
        came, fault = await fault_after(provider, call(stream=stream))
        assert (came, fault.kind) == ([USAGE], "malformed")


STRAY = json.dumps({"error": {"code": 503, "status": "UNAVAILABLE", "message": "Overloaded."}}, indent=2).encode()
BROKEN: dict[str, tuple[bytes | Cut, str]] = {
    "ended": (b"\n", "truncated"),
    "cut": (Cut(), "reset"),
    "broken JSON": (b"data: {\n\n", "malformed"),
    "invalid UTF-8": (b"data: \xff\n\n", "malformed"),
    "a list": (event([]), "malformed"),
    "long line": (b"data: " + b"x" * ((1 << 20) + 1), "malformed"),
    "error event": (event(BOOM), "malformed"),
    "named error event": (event({"message": "boom"}, "error"), "malformed"),
    "error with a status": (event({"error": {"code": 429, "message": "slow down"}}), "rate_limited"),
    "error with a type": (event({"error": {"type": "overloaded_error"}}), "server"),
    "error in a field": (b'error: {"type": "exceed_context_size_error"}\n\n', "context_overflow"),
    "error in plain JSON": (b'{"error": {"message": "over capacity", "code": 429}}', "rate_limited"),
    "error in plain JSON of many lines": (STRAY, "server"),
    "error in plain JSON that ends": (STRAY + b"\n", "server"),
    "other plain JSON": (b'{"other": 1}', "truncated"),
}


@on_asyncio
async def test_broken_stream_gives_the_chunks_before_the_fault(
    vendor: Vendor, server: Upstream, provider: HttpProvider
) -> None:
    for case, (broken, kind) in BROKEN.items():
        for texts in ([], ["half"]):
            server.answers = [vendor.broken(*texts, broken)]
            came, fault = await fault_after(provider)
            assert (fault.kind, fault.answered) == (kind, True), case
            assert came == [*vendor.begun, *map(Delta, texts)], case
        assert await chunks_of(provider, call("abc")), case


@on_asyncio
async def test_stream_that_ends_before_its_reason_is_truncated(
    vendor: Vendor, server: Upstream, provider: HttpProvider
) -> None:
    for kept in range(len(vendor.long) + 1):
        server.answers = [vendor.stream(*vendor.long[:kept]), vendor.stream(*vendor.long[:kept], Cut())]
        for kind in ("truncated", "reset"):
            came, fault = await fault_after(provider)
            assert (fault.kind, fault.answered) == (kind, True)
            assert came == vendor.long_read[: len(came)]


@both
async def test_a_fault_in_the_body_is_marked_as_answered(
    server: Upstream, provider: HttpProvider, stream: bool
) -> None:
    server.answers = [Answer([b'{"a"', Cut()], headers=EVENTS if stream else JSON, chunked=True)]
    fault = await fault_of(provider, call(stream=stream))
    assert (fault.kind, fault.answered) == ("reset", True)


@on_asyncio
async def test_an_unexpected_content_type_is_shown_shortened(
    vendor: Vendor, server: Upstream, provider: HttpProvider
) -> None:
    for said, shown in (("text/html; charset=utf-8", "'text/html'"), ("x" * 1000, repr("x" * 40))):
        server.answers = [Answer([b"<html>"], headers={"content-type": said})]
        assert (await fault_of(provider)).message == f"{vendor.name} answered with the content type {shown}"


STATUSES: list[tuple[int, Any, str]] = [
    (400, "plain text", "request"),
    (400, [{"error": {"message": "in a list"}}], "request"),
    (400, [{"error": {"message": "maximum context length"}}], "context_overflow"),
    (401, {}, "auth"),
    (402, {}, "auth"),
    (403, {}, "auth"),
    (404, "<html>no such page</html>", "request"),
    (408, {}, "timeout"),
    (409, {}, "server"),
    (413, "too large", "context_overflow"),
    (422, {"detail": [{"loc": ["body", "x"], "msg": "Extra inputs are not permitted"}]}, "request"),
    (429, "", "rate_limited"),
    (500, {"error": {"message": "maximum context length"}}, "server"),
    (502, "<html>bad gateway</html>", "server"),
    (503, None, "server"),
    (504, {}, "server"),
    (529, {}, "server"),
]


@on_asyncio
@both
async def test_status_and_body_determine_the_kind_of_fault(
    vendor: Vendor, server: Upstream, provider: HttpProvider, stream: bool
) -> None:
    for status, body, kind in STATUSES:
        server.answers = [of_json(body, status, retry_after="7")]
        fault = await fault_of(provider, call(stream=stream))
        assert (fault.kind, fault.status, fault.retry_after, fault.answered) == (kind, status, 7.0, False)
        assert (fault.message, fault.body) == (f"{vendor.name} answered {status}", json.dumps(body))
    server.answers = [Answer([b"x" * (1 << 20)], 500)]
    assert (await fault_of(provider)).body == "x" * BODY_CHARS


@pytest.mark.parametrize(("status", "kind"), [(429, "rate_limited"), (500, "server")])
async def test_error_with_an_incomplete_body_is_still_the_error(
    server: Upstream, provider: HttpProvider, status: int, kind: str
) -> None:
    server.answers = [Answer([b'{"error": ', Cut()], status, chunked=True)]
    fault = await fault_of(provider)
    assert (fault.kind, fault.answered) == (kind, False)


# --- leaving early


async def test_leaving_a_stream_frees_its_connection(vendor: Vendor, server: Upstream, provider: HttpProvider) -> None:
    server.answers = [vendor.broken("first", Gate())]
    async with provider.open(call()) as chunks:
        assert await text_from(chunks) == "first"
    assert await anyio.to_thread.run_sync(server.wait_connected, 0)
    for _ in range(100):
        assert await chunks_of(provider, call("abc"))
    assert server.connected == 1


@pytest.fixture
async def hasty(vendor: Vendor, server: Upstream, anyio_backend: str) -> AsyncIterator[HttpProvider]:
    """A provider with a timeout, on a manual clock."""
    made = vendor.make(KEY, base_url=server.url, clock=FakeClock(autojump=False), timeout=2.5, max_retries=3)
    yield made
    await made.aclose()


@both
async def test_a_timeout_ends_a_wait_for_an_answer(server: Upstream, hasty: HttpProvider, stream: bool) -> None:
    gate, clock = Gate(), hasty._clock
    assert isinstance(clock, FakeClock)
    server.answers = [Answer([gate], headers=EVENTS if stream else JSON, chunked=True)]
    async with anyio.create_task_group() as group:

        async def ask() -> None:
            fault = await fault_of(hasty, call(stream=stream))
            assert (fault.kind, str(fault)) == ("timeout", "timeout: no data for 2.5 s, the provider's timeout")
            assert hasty._clock.monotonic() == 2.5

        group.start_soon(ask)
        await anyio.to_thread.run_sync(gate.reached.wait)
        await clock.advance(2.4)
        assert server.connected == 1
        await clock.advance(0.1)
    assert await anyio.to_thread.run_sync(server.wait_connected, 0)
    assert await chunks_of(hasty, call("abc", stream=stream)) == await chunks_of(hasty, call("abc", stream=stream))


async def test_a_timeout_applies_to_each_wait_of_a_stream(
    vendor: Vendor, server: Upstream, hasty: HttpProvider
) -> None:
    first, second, clock = Gate(), Gate(), hasty._clock
    assert isinstance(clock, FakeClock)
    server.answers = [vendor.broken("first", first, "second", second)]
    async with hasty.open(call()) as chunks:
        assert await text_from(chunks) == "first"
        await clock.advance(2.4)  # the reader's own time
        first.open()
        assert await text_from(chunks) == "second"
        async with anyio.create_task_group() as group:
            group.start_soon(clock.advance, 2.5)
            with pytest.raises(ProviderFault, match=r"no data for 2\.5 s"):
                await anext(chunks)


def test_wrong_timeouts_and_retries_are_refused(vendor: Vendor) -> None:
    wrong: list[dict[str, Any]] = [{"timeout": 0}, {"timeout": "5"}, {"max_retries": 6}, {"max_retries": True}]
    for argument in wrong:
        with pytest.raises(ValidationFailed, match=next(iter(argument))):
            vendor.make(KEY, **argument)


async def test_context_may_be_exited_in_another_task(vendor: Vendor, server: Upstream, provider: HttpProvider) -> None:
    server.answers = [vendor.broken("first", Gate())]
    running = provider.open(call())

    async def enter() -> None:
        await anext(await running.__aenter__())

    async with anyio.create_task_group() as group:
        group.start_soon(enter)
    async with anyio.create_task_group() as group:
        group.start_soon(running.__aexit__, None, None, None)
    assert await anyio.to_thread.run_sync(server.wait_connected, 0)


async def test_closing_is_idempotent_and_leaves_a_given_transport_open(vendor: Vendor, server: Upstream) -> None:
    owner = vendor.make(KEY, base_url=server.url)
    guest = vendor.make(KEY, base_url=server.url, transport=owner._transport)
    await chunks_of(owner, call())
    await guest.aclose()
    await chunks_of(owner, call())
    assert server.opened == 1
    await owner.aclose()
    await owner.aclose()
    assert await anyio.to_thread.run_sync(server.wait_connected, 0)


# --- what must not be seen of keys


def repeating(vendor: Vendor, status: int, field: str) -> Callable[[Request], Answer]:
    """Repeat the key in a message, at the cut of the body, and as a code."""

    def answer(request: Request) -> Answer:
        key = vendor.key_of(request)
        said = f"wrong: {key} {request.headers['x-secret']} "
        said += "x" * (BODY_CHARS - len('{"error": {"message": "') - len(said) - 10) + key
        named = {"details": [{field: key}]} if field in ("reason", "error_code") else {field: key}
        return of_json({"error": {"message": said, **named}}, status)

    return answer


@on_asyncio
async def test_key_is_hidden_if_the_server_repeats_it(vendor: Vendor, server: Upstream) -> None:
    other = "another-secret"
    provider = vendor.make(KEY, base_url=server.url, headers={"X-Secret": other})
    fields = ("code", "type", "status", "reason", "error_code")
    for status, field in product((200, 302, 400, 401, 429, 500), fields):
        server.answer = repeating(vendor, status, field)
        for stream in (False, True):
            text = written(await fault_of(provider, call(stream=stream))) + f"{provider!r} {provider} {vars(provider)}"
            assert "canary" not in text.lower()
            assert other not in text
    assert {request.headers["x-secret"] for request in server.requests} == {other}
    await provider.aclose()


@on_asyncio
async def test_key_is_hidden_in_the_fault_of_a_broken_answer(
    vendor: Vendor, server: Upstream, provider: HttpProvider
) -> None:
    broken: list[Callable[[str, Vendor], Answer]] = [
        lambda key, vendor: Answer([f"{key} {{".encode()], headers=JSON),
        lambda key, vendor: Answer([key.encode()], headers={"content-type": key}),
        lambda key, vendor: Answer([b"{}"], headers=JSON | {"content-encoding": key}),
        lambda key, vendor: Answer([b"{}"], headers=JSON | {"content-encoding": f"x{key * 9}"}),
        lambda key, vendor: Answer([b"{}"], headers={"content-type": f"text/{'x' * 30}{key}"}),
        lambda key, vendor: Answer([f"{key} \xff".encode("latin-1")], headers=JSON),
        lambda key, vendor: vendor.broken(f"data: {key}\n\n".encode()),
        lambda key, vendor: vendor.broken(f"data: {key} \xff\n\n".encode("latin-1")),
        lambda key, vendor: vendor.broken(event({"error": {"type": key, "message": key}})),
        lambda key, vendor: vendor.broken(event({"error": {"type": key, "message": key}}, "error")),
        lambda key, vendor: vendor.broken(json.dumps({"error": {"type": key, "message": key}}).encode()),
        lambda key, vendor: Answer([key.encode()], raw=True),
        lambda key, vendor: Answer([f"HTTP/1.1 {key}\r\n\r\n".encode()], raw=True),
    ]
    for make in broken:
        server.answers = [make(KEY, vendor)]
        assert "canary" not in written(await fault_of(provider)).lower()


SPELLINGS: tuple[Callable[[str], str], ...] = (
    str,
    str.upper,
    lambda key: "".join(f"\\u{ord(letter):04x}" for letter in key),
    lambda key: "".join(f"\\u{ord(letter):04X}" if at % 2 else letter for at, letter in enumerate(key)),
)


@on_asyncio
async def test_key_is_hidden_in_any_spelling(vendor: Vendor, server: Upstream) -> None:
    key = KEYS[0]
    provider = vendor.make(key, base_url=server.url)
    for spell, status in product(SPELLINGS, (200, 401)):
        body = f'{{"error": {{"code": "{spell(key)}", "message": "no {spell(key)} at all"}}}}'
        server.answers = [Answer([body.encode()], status, JSON)]
        fault = await fault_of(provider, call(stream=False))
        assert key.lower() not in written(fault).lower()
        assert key.lower() not in json.dumps(json.loads(fault.body)).lower()
        assert fault.body.endswith(' at all"}}')
    await provider.aclose()


@on_asyncio
@both
async def test_all_keys_are_hidden_whichever_the_server_repeats(
    server: Upstream, several_keys: HttpProvider, stream: bool
) -> None:
    for status in (200, 400, 401, 429, 500):
        error = of_json({"error": {"message": f"bad: {KEYS}", "code": KEYS[1]}}, status)
        server.answer = lambda request, error=error: error  # type: ignore[misc]
        assert "canary" not in written(await fault_of(several_keys, call(stream=stream))).lower()
    assert "Canary" not in repr(several_keys) + repr(vars(several_keys)) + repr(vars(several_keys._keys))


def test_a_provider_cannot_be_copied(vendor: Vendor) -> None:
    for dump in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be copied or pickled, since it has a key; create another one"):
            dump(vendor.make(KEY))


# --- which keys are asked


def tried(vendor: Vendor, server: Upstream) -> list[int]:
    """The positions of the received keys."""
    came = [KEYS.index(vendor.key_of(request)) for request in server.requests]
    server.requests.clear()
    return came


def refuse_keys(vendor: Vendor, server: Upstream, refusals: dict[str, Answer]) -> None:
    """Refuse some keys with these answers."""
    well = server.answer
    server.answer = lambda request: refusals.get(vendor.key_of(request)) or well(request)


@on_asyncio
@both
@pytest.mark.parametrize(
    ("status", "body"), [(401, {}), (402, {}), (403, {}), (429, {}), (400, {"error": "Incorrect API key provided"})]
)
async def test_a_call_continues_with_the_next_key_if_one_is_refused(
    vendor: Vendor, server: Upstream, several_keys: HttpProvider, status: int, body: Any, stream: bool
) -> None:
    refuse_keys(vendor, server, dict.fromkeys(KEYS[:2], of_json(body, status)))
    for expected in ([0, 1, 2], [2], [2]):
        assert await chunks_of(several_keys, call("abc", stream=stream))
        assert tried(vendor, server) == expected


@on_asyncio
async def test_a_fault_unrelated_to_the_key_is_raised_at_once(
    vendor: Vendor, server: Upstream, several_keys: HttpProvider
) -> None:
    for status, body in ((403, {"error": "Your input was flagged"}), (404, {}), (422, {}), (498, {}), (500, {})):
        server.answers = [of_json(body, status)]
        assert (await fault_of(several_keys)).status == status
        assert tried(vendor, server) == [0]


@on_asyncio
async def test_if_all_keys_are_limited_the_soonest_retry_is_reported(
    vendor: Vendor, server: Upstream, several_keys: HttpProvider
) -> None:
    refuse_keys(vendor, server, {key: of_json({}, 429, retry_after=str(9 - place)) for place, key in enumerate(KEYS)})
    fault = await fault_of(several_keys)
    assert (fault.kind, fault.status, fault.retry_after) == ("rate_limited", 429, 7.0)
    assert tried(vendor, server) == [0, 1, 2]
    await fault_of(several_keys)
    assert tried(vendor, server) == [2], "the one due soonest, alone"


@on_asyncio
async def test_faults_of_a_single_key_are_raised_unchanged(vendor: Vendor, server: Upstream) -> None:
    provider = vendor.make(KEYS[:1], base_url=server.url)
    server.answer = lambda request: of_json({}, 429)
    for _ in range(3):
        assert (await fault_of(provider)).retry_after is None
    assert tried(vendor, server) == [0, 0, 0]
    await provider.aclose()


@on_asyncio
async def test_one_refused_key_of_several_is_logged_once_and_degrades_its_models(
    vendor: Vendor, server: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    well, clock = server.answer, FakeClock(autojump=False)
    refuse_keys(vendor, server, {KEYS[0]: of_json({}, 401)})
    models = [Model(id=f"{vendor.name}/gpt-x", quality=0.5)]
    provider = vendor.make(KEYS, base_url=server.url, models=models, clock=clock)
    router = Router(providers=[provider], catalogue=Catalogue(()))
    for _ in range(2):
        await router.route("hi")
    clock._now += REFUSED_S
    provider._keys._place = 0
    await router.route("hi")
    assert [record.getMessage() for record in caplog.records if record.name.startswith("routewright")] == [
        f"{vendor.name} refused key 1 of 3 (status 401): calls use the other 2"
    ]
    assert "Canary" not in caplog.text
    assert (provider.refused_keys, router.status().providers[0].keys_refused) == (1, 1)
    assert [model.availability.status for model in router.models()] == ["degraded"]

    server.answer = well
    clock._now += REFUSED_S
    provider._keys._place = 0
    await router.route("hi")
    assert router.status().providers[0].keys_refused == 0
    assert [model.availability.status for model in router.models()] == ["available"]
    await router.aclose()


# --- what vendors say besides


@on_asyncio
@pytest.mark.parametrize(("status", "word", "requests"), [(400, "true", 2), (500, "false", 1), (500, "maybe", 2)])
async def test_the_router_retries_as_the_vendor_says(
    vendor: Vendor, server: Upstream, status: int, word: str, requests: int
) -> None:
    server.answer = lambda request: of_json({}, status, x_should_retry=word)
    models = [Model(id=f"{vendor.name}/gpt-x", quality=0.5)]
    provider = vendor.make(KEY, base_url=server.url, models=models)
    settings = Settings(execution=ExecutionLimits(backoff_s=0.0))
    router = Router(providers=[provider], catalogue=Catalogue(()), settings=settings)
    with pytest.raises(UpstreamFailed):
        await router.route("hi")
    assert len(server.requests) == requests
    await router.aclose()


USED_UP = {
    "openai": ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens", "1m30s"),
    "anthropic": (
        "anthropic-ratelimit-input-tokens-remaining",
        "anthropic-ratelimit-input-tokens-reset",
        "2026-11-26T12:01:30Z",
    ),
}


limiting = pytest.mark.parametrize("vendor", USED_UP, indirect=True)
"""For the vendors whose answers tell what is left of a limit."""


def used_up(vendor: Vendor) -> Answer:
    """A good answer whose limit is used up for 90 seconds."""
    rest, reset, until = USED_UP[vendor.name]
    answer = vendor.whole("hello")
    return replace(answer, headers={**answer.headers, "date": "Thu, 26 Nov 2026 12:00:00 GMT", rest: "0", reset: until})


@limiting
@on_asyncio
@both
async def test_a_single_used_up_key_is_still_used(vendor: Vendor, server: Upstream, stream: bool) -> None:
    provider = vendor.make(KEY, base_url=server.url)
    server.answers = [used_up(vendor)]
    for _ in range(2):  # a reset is when all of a limit is back, not when the next call passes
        assert await chunks_of(provider, call(stream=stream))
    await provider.aclose()


@limiting
@on_asyncio
async def test_a_used_up_key_is_replaced_for_that_model(
    vendor: Vendor, server: Upstream, several_keys: HttpProvider
) -> None:
    server.answers = [used_up(vendor)]
    for model in ("x/gpt-x", "x/gpt-x", "x/other"):
        assert await chunks_of(several_keys, call(model=model))
    assert tried(vendor, server) == [0, 1, 1]


# --- where keys and addresses come from


def revealed(provider: HttpProvider) -> list[str]:
    return [key.reveal() for key in provider._keys.keys]


def test_keys_are_read_from_the_environment_separated_by_commas(vendor: Vendor) -> None:
    for variable in vendor.variables:
        environ = {variable: f" {KEYS[0]}, {KEYS[1]},,{KEYS[0]} ,\n"}
        provider = vendor.make(environ=environ)
        environ.clear()
        assert revealed(provider) == KEYS[:2]
    assert revealed(vendor.make(Secret(KEY))) == [KEY]
    assert revealed(vendor.make([Secret(KEYS[0]), KEYS[2]])) == [KEYS[0], KEYS[2]]


def test_environment_creates_the_provider_if_it_has_a_key(vendor: Vendor) -> None:
    elsewhere = {vendor.url_variable: "https://proxy.example/v1/"}
    assert providers_from_environment({}) == providers_from_environment(elsewhere) == []
    for variable in vendor.variables:
        keys = {variable: f"{KEYS[0]},{KEYS[1]}"}
        for environ, base_url in ((keys, vendor.base_url), (keys | elsewhere, "https://proxy.example/v1")):
            (provider,) = providers_from_environment(environ)
            assert isinstance(provider, HttpProvider)
            assert repr(provider) == f"{vendor.make.__name__}(name={vendor.name!r}, base_url={base_url!r})"
            assert revealed(provider) == KEYS[:2]
            assert Router(providers=[provider]).decide("hi").model.startswith(f"{vendor.name}/")


def test_missing_key_names_the_variables(vendor: Vendor) -> None:
    said = f"{vendor.name} needs a key; set {' or '.join(vendor.variables)}, or pass api_key="
    for environ in ({}, dict.fromkeys(vendor.variables, " ")):
        with pytest.raises(ValidationFailed, match=said):
            vendor.make(environ=environ)


def test_invalid_key_is_refused_without_being_shown(vendor: Vendor) -> None:
    variable = vendor.variables[0]
    for bad in ("sk-Canary a", "sk-Canary\na", "sk-Canäry", "sk-Canary\x7f"):
        with pytest.raises(ValidationFailed, match=f"{variable}: is not a key") as caught:
            vendor.make(environ={variable: bad})
        assert "sk-Can" not in written(caught.value)
        with pytest.raises(ValidationFailed, match="'x-a' cannot be sent") as caught:
            vendor.make(KEY, headers={"x-a": bad.replace(" ", "\r")})
        assert "sk-Can" not in written(caught.value)


def test_invalid_lists_of_keys_are_refused_without_being_shown(vendor: Vendor) -> None:
    lists: list[tuple[Any, str]] = [
        ([], "api_key: {name} needs a key; set {variables}, or pass api_key=..."),
        ([KEY, None], "api_key[1]: must be a string, got NoneType; leave it out"),
        ([KEY, " "], "api_key[1]: is empty; leave it out"),
        ([KEY, "sk-Canary x"], "api_key: is not a key; a key is printable ASCII without spaces"),
        (b"sk-Canary", "api_key: must be a string or a list of them, got bytes; pass the key as its vendor shows it"),
        (
            {"sk-Canary": 1},
            "api_key: must be a string or a list of them, got dict; pass the key as its vendor shows it",
        ),
        (4921, "api_key: must be a string or a list of them, got int; pass the key as its vendor shows it"),
    ]
    for keys, why in lists:
        with pytest.raises(ValidationFailed) as caught:
            vendor.make(keys, environ={})
        assert str(caught.value) == why.format(name=vendor.name, variables=" or ".join(vendor.variables))
        assert "Canary" not in written(caught.value)


def test_arguments_of_a_wrong_type_are_refused_without_being_shown(vendor: Vendor) -> None:
    arguments: list[tuple[dict[str, Any], str]] = [
        ({"base_url": 4921}, "base_url: must be a string, got int; write 'https://host/path'"),
        ({"name": 4921}, "name: must be a string, got int; name the provider"),
        (
            {"name": "a\x1b", "base_url": "http://x"},
            "name: must be 1 to 200 printable characters, got 'a\\x1b'; use a short name on one line",
        ),
        ({"headers": "4921"}, 'headers: must be a mapping, got str; write {"x-org": "..."}'),
        ({"headers": {"x-org": 4921}}, "headers: 'x-org' must be a string, got int; leave out headers without a value"),
        ({"headers": {5: "4921"}}, "headers: 5 cannot be sent; use printable ASCII"),
        ({"models": None}, "models: None is not a list of Model; leave it out, or pass [Model(id=...)]"),
    ]
    for wrong, why in arguments:
        with pytest.raises(ValidationFailed) as caught:
            vendor.make(KEY, environ={}, **wrong)
        assert str(caught.value) == why


def test_a_custom_server_has_a_name_an_address_and_models(vendor: Vendor) -> None:
    mine = vendor.make(KEY, name="mine", base_url="https://llm.example.com/v1/", models=[Model(id="mine/x")])
    assert repr(mine) == f"{vendor.make.__name__}(name='mine', base_url='https://llm.example.com/v1')"
    assert [model.id for model in mine.models()] == ["mine/x"]


def test_an_invalid_address_is_refused_without_its_credentials(vendor: Vendor) -> None:
    for url in ("llm.example.com", "ftp://x/", "https://"):
        with pytest.raises(ValidationFailed, match=f"^base_url: '{url}' is not an address; write https://host/path"):
            vendor.make(KEY, base_url=url)
    with pytest.raises(ValidationFailed, match=r"https://x\.example/v1 contains a user") as caught:
        vendor.make(KEY, base_url=f"https://user:{PASSWORD}@x.example/v1")
    assert PASSWORD not in written(caught.value)


def test_an_invalid_address_shows_no_credentials(vendor: Vendor) -> None:
    in_code: list[dict[str, Any]] = [{"base_url": url} for url in BAD_ADDRESSES]
    for way in [*in_code, *({"environ": {vendor.url_variable: url}} for url in BAD_ADDRESSES)]:
        with pytest.raises(ValidationFailed, match=f"^(base_url|{vendor.url_variable}): ") as caught:
            vendor.make(KEY, **way)
        assert PASSWORD not in written(caught.value)


# --- requests


@on_asyncio
@both
async def test_a_request_over_tcp_has_its_path_key_and_form(
    vendor: Vendor, server: Upstream, provider: HttpProvider, stream: bool
) -> None:
    await chunks_of(provider, call("abc", stream=stream))
    (request,) = server.requests
    method = ":streamGenerateContent?alt=sse" if stream else ":generateContent"
    assert request.method == "POST"
    assert request.path.removeprefix("/v1") == vendor.path.replace(":generateContent", method).removeprefix("/v1")
    assert vendor.sign(KEY).items() <= request.headers.items()
    assert request.headers["content-type"] == "application/json"
    assert ("authorization" in request.headers) == (vendor.name == "openai")
    assert KEY not in request.path
    plain: dict[str, Any] = json.loads(provider.request(call("abc", stream=False)).body)
    usage = {"stream_options": {"include_usage": True}} if str(vendor) == "openai" else {}
    option = {} if vendor.name == "google" else {"stream": True, **usage}
    assert request.body == plain | (option if stream else {})


def test_every_request_is_valid_by_the_official_types_or_refused(vendor: Vendor) -> None:
    provider = vendor.make(KEY)

    @given(calls(conversations() | scraps, *vendor.models))
    def prove(upstream: UpstreamCall) -> None:
        try:
            said = vendor.problems(provider._body(upstream))
        except ProviderFault as fault:
            said = [] if fault.kind == "request" else [str(fault)]
        assert said == []

    prove()


def test_a_request_is_what_the_provider_would_send_with_its_key_hidden(vendor: Vendor) -> None:
    request = vendor.make(KEY, headers={"X-Org": "Canary-org"}).request(call("abc"))
    assert (request.method, request.url) == ("POST", vendor.base_url + vendor.path)
    assert request.reveal() == vendor.sign(KEY) | {
        "content-type": "application/json",
        "accept": "application/json",
        "x-org": "Canary-org",
    }
    assert vendor.problems(request.body) == []
    assert "stream" not in json.loads(request.body)
    assert "gpt-x" in f"{request.url} {request.body!r}"
    for shown in (repr(request), str(request), repr(request.headers), json.dumps(request.headers)):
        assert "Canary" not in shown
    assert "abc" not in repr(request)


def test_custom_headers_override_all_others(vendor: Vendor) -> None:
    own = {vendor.key_header.title(): "Canary-own", "Accept": "application/x-own"}
    sent = vendor.make(KEY, headers=own).request(call()).reveal()
    ours = {"content-type": "application/json"} | vendor.headers
    assert sent == ours | {name.lower(): value for name, value in own.items()}


def test_an_answer_fetched_by_the_caller_is_read_into_chunks(vendor: Vendor) -> None:
    provider = vendor.make(KEY)
    for headers in ({"Content-Type": "application/json; charset=utf-8"}, {}):
        body = bytes_of(vendor.whole("hello"))
        assert provider.read(provider.request(call()), 200, headers, body) == vendor.plain("hello")


FETCHED: list[tuple[int, dict[str, str], bytes, str, bool]] = [
    (200, {}, b"{}", "malformed", True),
    (200, {"content-type": "text/html"}, b"<html>", "malformed", True),
    (200, {}, b'{"error": {"code": 429}}', "rate_limited", True),
    (429, {"Retry-After": "3"}, b"", "rate_limited", False),
    (401, {}, b"\xff" + KEY.encode(), "auth", False),
    (500, {}, b"", "server", False),
]


def test_a_fault_fetched_by_the_caller_is_classified_like_the_providers_own(vendor: Vendor) -> None:
    provider = vendor.make(KEY)
    for status, headers, body, kind, answered in FETCHED:
        with pytest.raises(ProviderFault) as caught:
            provider.read(provider.request(call()), status, headers, body)
        fault = caught.value
        assert (fault.kind, fault.status, fault.answered) == (kind, status, answered)
        assert fault.retry_after == (3.0 if headers.get("Retry-After") else None)
        assert "Canary" not in written(fault)


def test_a_refused_key_is_in_no_request_for_a_while(vendor: Vendor) -> None:
    provider = vendor.make(KEYS, clock=FakeClock())
    first = provider.request(call())
    with pytest.raises(ProviderFault):
        provider.read(first, 401, {}, b"")
    assert [request.key.reveal() for request in (first, provider.request(call()))] == KEYS[:2]


# --- the whole way


@both
async def test_a_router_routes_through_it(provider: HttpProvider, stream: bool) -> None:
    router = Router(providers=[provider])
    if stream:
        async with router.stream("say this") as running:
            assert "".join([text async for text in running.text()]) == "say this"
        answer = running.result
    else:
        answer = await router.route("say this")
    assert (answer.output, answer.routing.tokens.input, answer.routing.tokens.output) == ("say this", 9, 3)


def test_steps_use_a_provider_whose_requests_the_caller_sends(vendor: Vendor) -> None:
    provider = vendor.make(KEY)
    answers = [(404, b"{}"), (200, bytes_of(vendor.calling))]
    tools: Any = [{"type": "function", "name": "f"}]
    models = ["openai/gpt-4.1", "openai/gpt-5.2"] if vendor is OPENAI else None  # newer ones go over another API
    with Router(providers=[provider]).steps("hi", tools=tools, models=models) as steps:
        while isinstance(step := steps.next(), StepCall):
            request = provider.request(step.upstream)
            assert vendor.problems(request.body) == []
            status, body = answers.pop(0)
            try:
                steps.feed(provider.read(request, status, {}, body))
            except ProviderFault as fault:
                steps.feed(fault)
        assert isinstance(step, StepDone)
    assert steps.result.output == "hello"
    assert [made.function.arguments for made in steps.result.tool_calls or ()] == ['{"a":1}']
    assert answers == []


@on_asyncio
async def test_an_unknown_host_is_asked_for_usage_until_it_refuses() -> None:
    refused = of_json({"error": {"message": "Unrecognized request argument supplied: stream_options"}}, 400)
    other = of_json({"error": {"message": "Unrecognized request argument supplied: seed"}}, 400)
    with OPENAI.serve() as server:
        provider = OpenAIProvider(KEY, name="mine", base_url=server.url, models=[Model(id="mine/x")])
        server.answers = [OPENAI.streamed("a"), other, refused]
        assert USAGE in await chunks_of(provider, call())
        assert (await fault_of(provider)).status == 400, "what it refuses besides is not sent again"
        assert Delta("h") in await chunks_of(provider, call())
        assert Delta("h") in await chunks_of(provider, call())
        assert ["stream_options" in request.body for request in server.requests] == [True] * 3 + [False] * 2
        again = OpenAIProvider(KEY, name="mine", base_url=server.url, models=[Model(id="mine/x")])
        server.answers = [refused, refused]
        assert (await fault_of(again)).status == 400
        assert len(server.requests) == 5 + 2, "it is retried once"
        await provider.aclose()
        await again.aclose()
