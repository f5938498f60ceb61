"""Captured prompts and answers in traces are exactly what the redactor returned, however a call is made and ends."""

from __future__ import annotations

import gc
import json
import pickle
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

from routewright import (
    BudgetExceeded,
    Caller,
    Capture,
    Console,
    DenyList,
    Event,
    MemoryStorage,
    Message,
    NoCandidates,
    PatternGuardrail,
    ProviderFault,
    Router,
    RouterError,
    Settings,
    SqliteStorage,
    Trace,
    TraceStore,
)
from routewright._core.guardrails.texts import PIECE_CHARS
from routewright._engine import capture
from routewright._engine.capture import Captured, Capturing, redacting
from routewright.backends.clock import SystemClock
from routewright.errors import BlockedByPolicy
from routewright.protocols import Storage
from routewright.router import StepCall, StepDone
from routewright.testing import FakeClock, Pause
from routewright.wire import (
    Content,
    Delta,
    Finish,
    FunctionCall,
    PutSnapshot,
    TextPart,
    ToolCall,
    ToolDelta,
    Usage,
    Write,
    Written,
)

from .scripted_router import House, said

pytestmark = pytest.mark.anyio

SECRET = "canary"
PROMPT = f"What is {SECRET}?"
ANSWER = f"It is {SECRET}, too."
ASKED, ANSWERED = "What is ***?", "It is ***, too."
CONTENT = Content(messages=[Message("user", ASKED)], output=ANSWERED)
WHOLE = said(Delta(ANSWER[:8]), Delta(ANSWER[8:]), Usage(10, 5), Finish("stop"))
ASKED_ALONE = Content(messages=CONTENT.messages)
STARRED = Content(messages=[Message("user", "*")], output="*")
NOTE = "[withheld: the redactor failed]"


class Censor:
    """Takes the secret out, and remembers what it was shown."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, text: str) -> str:
        self.seen.append(text)
        return text.replace(SECRET, "***")


def captured(redactor: Callable[[str], str] | None = None, **which: bool) -> Capture:
    return Capture(redactor=redactor or Censor(), **which)


def keeping(good: Any, spare: Any = (), **house: Any) -> House:
    """A house that keeps what is said, behind a censor if not behind another."""
    house.setdefault("capture", captured())
    return House(good, spare, **house)


async def only_trace(house: House) -> Trace:
    (trace,) = [trace async for trace in house.router.traces.export()]
    assert SECRET not in msgspec.json.encode(trace).decode()
    return trace


# --- however a call is made

Ask = Callable[[Router], Coroutine[Any, Any, None]]


async def plain(router: Router) -> None:
    await router.route(PROMPT, goal="quality")


async def events(router: Router) -> None:
    async with router.stream(PROMPT, goal="quality") as stream:
        async for _ in stream:
            pass


async def text(router: Router) -> None:
    async with router.stream(PROMPT, goal="quality") as stream:
        async for _ in stream.text():
            pass


async def many(router: Router) -> None:
    await router.route_many([PROMPT], goal="quality", budget={"maxCostUsd": 1.0})


async def hosted(router: Router) -> None:
    with router.steps(PROMPT, goal="quality") as steps:
        assert isinstance(steps.next(), StepCall)
        steps.feed([line for line in WHOLE if not isinstance(line, str | Pause | ProviderFault)])
        assert steps.next() == StepDone()


every_way = pytest.mark.parametrize("ask", [plain, events, text, many, hosted])


@every_way
async def test_the_trace_has_the_text_as_redacted(ask: Ask) -> None:
    house = keeping([WHOLE])
    await ask(house.router)
    assert (await only_trace(house)).content == CONTENT


@every_way
async def test_prompts_or_answers_alone_can_be_kept_and_the_redactor_sees_nothing_else(ask: Ask) -> None:
    for which, content in (
        ({"answers": False}, ASKED_ALONE),
        ({"prompts": False}, Content(output=ANSWERED)),
        ({"prompts": False, "answers": False}, Content()),
    ):
        censor = Censor()
        house = keeping([WHOLE], capture=captured(censor, **which))
        await ask(house.router)
        assert (await only_trace(house)).content == content
        assert censor.seen == [PROMPT] * (content.messages is not None) + [ANSWER] * (content.output is not None)


@every_way
async def test_without_capture_no_text_is_kept(ask: Ask) -> None:
    house, heard = House([WHOLE], storage=MemoryStorage()), list[Trace]()
    house.router.on_trace(heard.append)
    await ask(house.router)
    await house.router.flush()
    trace = await only_trace(house)
    read = [trace, await house.router.trace(trace.id), await house.router.traces.get(trace.id), *heard]
    assert [each.content for each in read] == [None] * 4
    assert b'"content":null' in msgspec.json.encode(trace)


async def test_without_a_custom_redactor_the_built_in_patterns_are_removed() -> None:
    house = House(["Ask anna@example.com."], capture=Capture())
    answer = await house.router.route("I am ben@example.com. Who knows?", goal="quality")
    assert answer.output == "Ask anna@example.com."
    assert answer.trace.content == Content(
        messages=[Message("user", "I am [email]. Who knows?")], output="Ask [email]."
    )


# --- however it ends


@pytest.mark.parametrize("ask", [plain, events, text])
async def test_the_prompt_of_a_cancelled_call_is_kept(ask: Ask) -> None:
    house = keeping([said(Delta(f"half an answer of {SECRET}"), Pause(30.0))])
    async with anyio.create_task_group() as group:
        group.start_soon(ask, house.router)
        await house.clock.advance(1.0)
        group.cancel_scope.cancel()
    trace = await only_trace(house)
    assert (trace.status, trace.content) == ("cancelled", ASKED_ALONE)


@pytest.mark.parametrize(
    ("options", "error"),
    [({"budget": {"maxCostUsd": 0.0}}, BudgetExceeded), ({"tools": [{"type": "function", "name": "f"}]}, NoCandidates)],
)
async def test_the_prompt_of_a_call_without_candidates_is_kept(
    options: dict[str, Any], error: type[RouterError]
) -> None:
    house = keeping([])
    with pytest.raises(error) as refused:
        await house.router.route(PROMPT, **options)
    trace = await only_trace(house)
    assert (trace.id, trace.content) == (refused.value.trace_id, ASKED_ALONE)


# --- behind the guardrails


MAIL = "anna@example.com"
MAILS = PatternGuardrail("email")


async def test_text_removed_by_guardrails_is_not_shown_to_the_redactor() -> None:
    censor = Censor()
    house = keeping([f"Write to {MAIL}."], guardrails=[MAILS], capture=captured(censor))
    answer = await house.router.route(f"Who is {MAIL}?", goal="quality")
    assert censor.seen == []
    assert answer.trace.content == Content(messages=[Message("user", "Who is [email]?")], output="Write to [email].")
    assert censor.seen == ["Who is [email]?", "Write to [email]."]


@pytest.mark.parametrize("ask", [Router.route, Router.steps])
async def test_the_prompt_of_a_blocked_request_is_kept_as_redacted(ask: Any) -> None:
    house = keeping([], guardrails=[MAILS, DenyList(["forbidden"])])
    with pytest.raises(BlockedByPolicy):
        await ask(house.router, [Message("system", f"You are {MAIL}."), Message("user", "forbidden")])
    content = Content(messages=[Message("system", "You are [email]."), Message("user", "forbidden")])
    assert (await only_trace(house)).content == content


async def test_a_blocked_answer_is_not_kept() -> None:
    house = keeping([ANSWER], guardrails=[DenyList([SECRET], action="block", stages=["output"])])
    with pytest.raises(BlockedByPolicy):
        await house.router.route(PROMPT, goal="quality", fallback={"models": []})
    assert (await only_trace(house)).content == ASKED_ALONE


# --- whatever is said


async def test_tool_calls_their_results_and_images_are_kept_in_their_places() -> None:
    calls = said(ToolDelta(0, '{"of": "can', "c2", "look"), ToolDelta(0, 'ary"}'), Usage(10, 5), Finish("tool_calls"))
    house = keeping([calls])
    conversation: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": PROMPT}], "name": SECRET},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": '{"of": "canary"}'}}],
        },
        {"role": "tool", "content": SECRET, "tool_call_id": "c1"},
    ]
    answer = await house.router.route(conversation, goal="quality")
    assert answer.tool_calls == [ToolCall("c2", FunctionCall("look", '{"of": "canary"}'))]
    assert (await only_trace(house)).content == Content(
        messages=[
            Message("user", [TextPart(ASKED)], name="***"),
            Message("assistant", tool_calls=[ToolCall("c1", FunctionCall("look", '{"of": "***"}'))]),
            Message("tool", "***", tool_call_id="c1"),
        ],
        output="",
        tool_calls=[ToolCall("c2", FunctionCall("look", '{"of": "***"}'))],
    )


# --- the redactor harms no call


@every_way
async def test_a_failing_redactor_withholds_the_text_and_fails_no_call(ask: Ask) -> None:
    def at_answers(text: str) -> str:
        if text == ANSWER:
            raise SystemExit(text)
        return text.replace(SECRET, "***")

    house, heard = keeping([WHOLE], capture=captured(at_answers)), list[Trace]()
    house.router.on_trace(heard.append)
    await ask(house.router)
    await house.router.flush()
    trace = await only_trace(house)
    assert (trace.status, trace.content) == ("completed", Content(messages=CONTENT.messages, output=NOTE))
    assert (heard, house.router.hook_counts.failed) == ([trace], 0)


def raising(kind: type[BaseException]) -> Callable[[str], str]:
    def redactor(text: str) -> str:
        raise kind(text)

    return redactor


@pytest.mark.parametrize(
    ("redactor", "what"),
    [
        (raising(ValueError), "raised ValueError"),
        (raising(SystemExit), "raised SystemExit"),
        (str.encode, "returned bytes instead of a text"),
        (lambda text: None, "returned NoneType instead of a text"),
    ],
)
async def test_the_log_names_a_redactors_failure_once_without_the_text(
    redactor: Any, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    house = keeping([WHOLE, WHOLE], capture=captured(redactor))
    with caplog.at_level("DEBUG", logger="routewright"):
        for _ in range(2):
            answer = await house.router.route(PROMPT, goal="quality")
            assert answer.output == ANSWER
            assert answer.trace.content == Content(messages=[Message("user", NOTE)], output=NOTE)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == [f"the redactor {what}: such texts are withheld (logged once)"]
    assert SECRET not in caplog.text


def test_an_interrupt_during_redaction_is_not_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    def interrupted(text: str) -> str:
        raise KeyboardInterrupt

    words = Capturing(interrupted, prompts=True, answers=True).of([Message("user", PROMPT)], None)
    with pytest.raises(KeyboardInterrupt):
        _ = words.content
    assert caplog.records == []


class Words(str):
    """A text whose end can be seen."""


class Said(list[Any]):
    """Messages or tool calls whose end can be seen."""


def test_the_original_text_is_dropped_after_redaction() -> None:
    said = Said([Message("user", PROMPT)]), Words(ANSWER), Said([ToolCall("c1", FunctionCall("look", "{}"))])
    ends = [weakref.ref(each) for each in said]
    words = Captured(lambda text: text.replace(SECRET, "***"), *said)
    del said
    gc.collect()
    assert None not in [end() for end in ends], "nobody asked yet"
    for _ in range(2):
        assert words.content.output == ANSWERED
        gc.collect()
        assert [end() for end in ends] == [None] * 3
    assert words.size > 0


async def test_a_slow_redactor_delays_no_answer(tmp_path: Path) -> None:
    began, go_on = threading.Event(), threading.Event()
    seen: list[tuple[str, int]] = []

    def slow(text: str) -> str:
        seen.append((text, threading.get_ident()))
        began.set()
        assert go_on.wait(60)
        return "*"

    storage = SqliteStorage(tmp_path / "traces.db")
    async with Router.sandbox(storage=storage, settings=Settings(capture=Capture(redactor=slow))) as router:
        first = await router.route("one")
        assert await anyio.to_thread.run_sync(began.wait, 60)
        others = [await router.route(each) for each in ("two", "three")]
        assert [text for text, _ in seen] == ["one"], "the answers are there, and it is still with the first"
        go_on.set()
        await router.flush()
        assert seen[0][1] != threading.get_ident()
        for answer in (first, *others):
            assert (await router.trace(answer.trace_id)).content == STARRED


class HeldUp(MemoryStorage):
    """Traces wait for it, and are not even made ready, until it may go on."""

    keep = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        if isinstance(writes[0], PutSnapshot):
            await anyio.to_thread.run_sync(self.go_on.wait, 10, abandon_on_cancel=True)
        return await super().apply(account, writes)


HELD_S = 10.0


class Held:
    """A redactor that works until it may end. What keeps an event loop from saying so is a fault of its caller."""

    def __init__(self) -> None:
        self.began, self.end = threading.Event(), threading.Event()
        self.seen: list[str] = []

    def __call__(self, text: str) -> str:
        self.seen.append(text)
        self.began.set()
        return "*" if self.end.wait(HELD_S) else "the loop stood still"


READS: list[Callable[[Router, str], Coroutine[Any, Any, object]]] = [
    lambda router, trace_id: router.trace(trace_id),
    lambda router, trace_id: router.traces.get(trace_id),
    lambda router, trace_id: router.feedback(trace_id, 1.0),
]


@pytest.mark.parametrize("read", READS, ids=["trace", "traces.get", "feedback"])
async def test_reading_a_queued_trace_does_not_block_the_loop_for_its_redactor(
    read: Callable[[Router, str], Coroutine[Any, Any, object]],
) -> None:
    storage, redactor = HeldUp(), Held()
    async with Router.sandbox(storage=storage, settings=Settings(capture=Capture(redactor=redactor))) as router:
        answer = await router.route("one")
        async with anyio.create_task_group() as group:
            group.start_soon(read, router, answer.trace_id)
            assert await anyio.to_thread.run_sync(redactor.began.wait, 60)
            redactor.end.set()
        assert (await router.trace(answer.trace_id)).content == answer.trace.content == STARRED
        assert len(redactor.seen) == 2
        storage.go_on.set()


async def test_a_slow_redactor_does_not_block_the_background(tmp_path: Path) -> None:
    redactor = Held()
    settings = Settings(capture=Capture(redactor=redactor))
    async with Router.sandbox(storage=SqliteStorage(tmp_path / "traces.db"), settings=settings) as router:
        first = await router.route("one")
        assert await anyio.to_thread.run_sync(redactor.began.wait, 60)
        second = await anyio.to_thread.run_sync(router.blocking.route, "two")  # which runs there
        redactor.end.set()
        await router.flush()
        for answer in (first, second):
            assert (await router.traces.get(answer.trace_id)).content == STARRED


async def test_a_call_with_limits_waits_for_a_redactor_only_until_its_deadline(tmp_path: Path) -> None:
    storage, redactor = SqliteStorage(tmp_path / "traces.db"), Held()
    async with Console(storage, secret="0123456789abcdef" * 4) as console:
        await console.create_account("acme", plan="team")
    async with Router.sandbox(storage=storage, settings=Settings(capture=Capture(redactor=redactor))) as router:
        began = time.perf_counter()
        answer = await router.route("one", caller=Caller("acme"), timeout_ms=600)
        assert time.perf_counter() - began < HELD_S / 2
        redactor.end.set()
        await router.flush()
        traces = router.as_caller(Caller("acme")).traces
        assert (await traces.get(answer.trace_id)).content == STARRED


async def test_long_texts_are_redacted_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = 0, list[int]()
    guard = threading.Lock()

    def redact(text: str) -> str:
        nonlocal running
        with guard:
            running += 1
            most.append(running)
        max(range(200_000))  # long enough for another thread to begin
        with guard:
            running -= 1
        return "*"

    monkeypatch.setattr(capture, "_built_in", redact)
    await redact_long_texts(redact, 8)
    assert (len(most), max(most)) == (8, 1)


async def test_a_hosts_redactor_waits_for_no_other() -> None:
    together = threading.Barrier(2)

    def redact(text: str) -> str:
        together.wait(60)
        return "*"

    await redact_long_texts(redact, 2)


async def redact_long_texts(redact: Callable[[str], str], number: int) -> None:
    async def read(words: Captured) -> None:
        assert (await redacting(lambda: words.content, [words], SystemClock())).messages == [Message("user", "*")]

    async with anyio.create_task_group() as group:
        for _ in range(number):
            group.start_soon(read, Captured(redact, [Message("user", "a" * (PIECE_CHARS + 1))], None, None))


async def test_a_trace_is_redacted_in_place_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    captured = Captured(Censor(), [Message("user", PROMPT)], ANSWER, None)
    monkeypatch.setattr(anyio.to_thread, "run_sync", fail)
    assert await redacting(lambda: captured.content, [captured], SystemClock()) == CONTENT


# --- where it comes back

Make = Callable[[Path, FakeClock], Storage]
storages = pytest.mark.parametrize(
    "make",
    [lambda path, clock: MemoryStorage(), lambda path, clock: SqliteStorage(path / "traces.db", clock=clock)],
    ids=["memory", "sqlite"],
)


@pytest.fixture
async def kept(make: Make, tmp_path: Path) -> AsyncIterator[Kept]:
    kept = Kept(make, tmp_path)
    yield kept
    await kept.router.aclose()


class Kept:
    """A Router over a storage, that keeps what is said."""

    def __init__(self, make: Make, path: Path) -> None:
        clock = FakeClock()
        self.censor = Censor()
        self.storage = make(path, clock)
        self.traces: list[Trace] = []
        self.events: list[Event] = []
        settings = Settings(clock=clock, capture=captured(self.censor))
        faults = {"openai/gpt-4o": "server"}
        answers = {PROMPT: ANSWER}
        self.router = Router.sandbox(answers, faults, storage=self.storage, settings=settings)
        self.router.on_trace(self.traces.append)
        self.router.on_event(self.events.append)

    async def ask(self) -> Any:
        models = ["openai/gpt-4o", "openai/gpt-4o-mini"]
        return await self.router.route(PROMPT, models=models, goal="quality", fallback={"models": models[1:]})


@storages
async def test_every_reader_of_a_trace_sees_the_captured_text(kept: Kept) -> None:
    answer = await kept.ask()
    before = await kept.router.trace(answer.trace_id)
    await kept.router.flush()
    router = kept.router
    read = [
        answer.trace,
        before,
        await router.trace(answer.trace_id),
        await router.traces.get(answer.trace_id),
        *[trace async for trace in router.traces.export()],
        *[trace async for trace in router.traces.export(filter="status=completed")],
        *kept.traces,
    ]
    assert [trace.content for trace in read] == [CONTENT] * 7


@storages
async def test_the_redactor_is_shown_each_text_once_however_often_it_is_read(kept: Kept) -> None:
    answer = await kept.ask()
    for _ in range(3):
        assert answer.trace.content == CONTENT
        await kept.router.flush()
        await kept.router.trace(answer.trace_id)
    assert kept.censor.seen == [PROMPT, ANSWER]


@storages
async def test_lists_events_and_reports_have_no_captured_text(kept: Kept) -> None:
    answer = await kept.ask()
    await kept.router.flush()
    page = await kept.router.traces.query()
    reports = [await kept.router.traces.usage(), await kept.router.traces.fallback_report()]
    told = json.dumps([msgspec.to_builtins(each) for each in (page, reports, kept.events, answer.trace.item)])
    assert len(page.data) == len(kept.events) == 1
    for word in (SECRET, "***", "content"):
        assert word not in told


@storages
async def test_changing_a_trace_changes_no_other_copy(kept: Kept) -> None:
    answer = await kept.ask()
    for trace in (answer.trace, await kept.router.trace(answer.trace_id), answer.trace.copy()):
        assert trace.content is not None
        assert trace.content.messages is not None
        trace.content.messages.clear()
    await kept.router.flush()
    assert answer.trace.content == (await kept.router.trace(answer.trace_id)).content == CONTENT


async def test_a_pickled_answer_has_only_the_redacted_prompt() -> None:
    house = keeping([WHOLE], capture=captured(lambda text: text.replace("What is", "WHAT")))
    answer = await house.router.route(PROMPT, goal="quality")
    pickled = pickle.dumps(answer)
    assert PROMPT.encode() not in pickled
    again = pickle.loads(pickled)
    assert (again.output, again.trace) == (ANSWER, answer.trace)
    assert again.trace.content.messages == [Message("user", "WHAT canary?")]


def written(path: Path) -> dict[str, bytes]:
    """All files beside the storage, byte by byte."""
    return {each.name: each.read_bytes() for each in sorted(path.iterdir())}


async def test_the_file_has_only_redacted_text(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "traces.db")
    settings = Settings(capture=captured())
    async with Router.sandbox({PROMPT: ANSWER}, storage=storage, settings=settings) as router:
        await router.route([Message("system", f"Say {SECRET}"), Message("user", PROMPT)])
        await router.traces.query()
        await router.flush()
        files = written(tmp_path)
        assert {"traces.db", "traces.db-wal", "traces.db-shm"} <= {*files}
        assert ANSWERED.encode() in b"".join(files.values()), "it is looked for in the right place"
        assert not any(SECRET.encode() in each for each in files.values())
    files = written(tmp_path)
    assert ANSWERED.encode() in b"".join(files.values())  # in the log still, if the sweep reads while it is closed
    assert not any(SECRET.encode() in each for each in files.values())
    store = TraceStore(f"sqlite:///{tmp_path / 'traces.db'}")
    async for trace in store.export():
        assert trace.content == Content(
            messages=[Message("system", "Say ***"), Message("user", ASKED)], output=ANSWERED
        )
    assert await store.delete(everything=True) == 1
    await store.aclose()
    assert not any(b"***" in each for each in written(tmp_path).values()), "what is deleted is gone from the file"
