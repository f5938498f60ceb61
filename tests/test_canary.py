"""Canary words in prompts, answers, keys and secrets never appear in logs, errors, traces, files or reprs, unless
capture is on. It does not matter how a call ends, or what is passed to a ``Console`` by mistake."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from routewright import (
    Answer,
    BudgetExceeded,
    Catalogue,
    Console,
    DenyList,
    MemoryStorage,
    Message,
    NoCandidates,
    PatternGuardrail,
    Policy,
    ProviderFault,
    Router,
    RouteRequest,
    RouterError,
    Settings,
    SqliteStorage,
    Trace,
    ValidationFailed,
    wire,
)
from routewright._core.accounts.keys import new_key
from routewright._core.request.read import decode_request
from routewright._setup.root_secret import secret_path
from routewright.errors import WROTE, BlockedByPolicy, InternalError, RouterTimeoutError, UpstreamFailed
from routewright.protocols import Storage
from routewright.router import StepCall, StepDone, StepWait
from routewright.testing import SCENARIOS, FakeClock, Pause, Scenario, ScriptedProvider
from routewright.testing.faulty import Drip, Play, Repeat, Step
from routewright.testing.faulty.scenarios import good
from routewright.testing.provider import Line, Script

from .console_storage import Watched, bearer, holds
from .engine.chaos_matrix import BEFORE, GOOD, HEAVY, MODELS, NAMES, SPARE, Case, Pair, Position, Way
from .engine.leaks import Watch, canary
from .engine.test_cancellation_points import CancelAt

pytestmark = pytest.mark.anyio

SYSTEM, ASKED, PART, IMAGE, NAME, ARGUMENTS, RESULT = PROMPTS = [canary() for _ in range(7)]
SAID, CALLED = ANSWERS = [canary() for _ in range(2)]
REQUEST: list[dict[str, Any]] = [
    {"role": "system", "content": f"{SYSTEM} you are"},
    {"role": "user", "content": f"{ASKED} is what?", "name": NAME},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": f"{PART} here"},
            {"type": "image_url", "image_url": {"url": f"https://{IMAGE}.example/{IMAGE}.png"}},
        ],
    },
    {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": f'{{"{ARGUMENTS}": "{ARGUMENTS}"}}'}}],
    },
    {"role": "tool", "content": f'{{"{RESULT}": 1}}', "tool_call_id": "c1"},
]
ABLE = [replace(model, modalities=("text", "image", "tool"), structured_output=True) for model in MODELS]
ANSWER: list[Line] = [
    wire.Delta(f"{SAID} it is"),
    wire.ToolDelta(0, f'{{"{CALLED}', "c2", "look"),
    wire.ToolDelta(0, '": 1}'),
    wire.Usage(90, 9),
    wire.Finish("tool_calls"),
]
HALF: list[Line] = [*ANSWER[:2], wire.Usage(90, 3)]


@pytest.fixture
def watch() -> Iterator[Watch]:
    with Watch([*PROMPTS, *ANSWERS]) as watching:
        yield watching
    assert watching.seen == []
    assert watching.looked


class Scene:
    """A Router over two scripted providers and a file, all of whose hooks are watched."""

    def __init__(self, watch: Watch, good: Script, spare: Script = (), *, path: Path | None = None, **router: Any):
        self.watch = watch
        self.path = path
        self.clock = FakeClock()
        self.good = ScriptedProvider(good, models=ABLE[:1], clock=self.clock)
        self.spare = ScriptedProvider(spare, models=ABLE[1:], clock=self.clock)
        settings = Settings(clock=self.clock, **router.pop("settings", {}))
        self.storage: Storage = MemoryStorage() if path is None else SqliteStorage(path / "traces.db", clock=self.clock)
        self.router = Router(
            providers=[self.good, self.spare],
            catalogue=Catalogue(()),
            settings=settings,
            storage=self.storage,
            **router,
        )
        hear(self.router, watch)

    async def fails(self, kind: type[RouterError], ask: Ask | None = None, **options: Any) -> RouterError:
        """Ask, look at what is raised, and at what is left."""
        with pytest.raises(kind) as caught:
            await (ask or plain)(self.router, self.watch, **options)
        self.watch.look_at_error("the error", caught.value)
        await self.leave()
        return caught.value

    async def leave(self) -> None:
        """Look at what is left of all calls."""
        assert await look_at_traces(self.router, self.watch) > 0
        await self.router.aclose()
        if self.path is not None:
            self.watch.look_at_files(self.path)


def hear(router: Router, watch: Watch) -> None:
    router.on_trace(lambda trace: watch.look_at("a hook", trace))
    router.on_event(lambda event: watch.look_at("a hook", event))


async def look_at_traces(router: Router, watch: Watch) -> int:
    """All that can be read of what is stored. Gives the number of traces."""
    await router.flush()
    store, count = router.traces, 0
    async for trace in store.export():
        count += 1
        look_at_trace(watch, trace)
        watch.look_for("a trace", repr(await router.trace(trace.id)))
        if isinstance(router._parts.storage, MemoryStorage) and trace.selected_model is not None:
            watch.look_for("explain", router.explain(trace))
            watch.look_at("replay", router.replay(trace))
    pages = await store.query(), await store.query(limit=1)
    assert len(pages[0].data) == count
    watch.look_at("pages", pages)
    for report in (await store.usage(), await store.fallback_report(), await store.latency_report()):
        watch.look_at("a report", report)
    watch.look_at("the router", router)
    return count


def look_at_trace(watch: Watch, trace: Trace) -> None:
    assert trace.content is None
    watch.look_at("a trace", trace)
    watch.look_at("an item", trace.item)
    watch.look_at_pickle("a trace", trace)


def look_at_answer(watch: Watch, router: Router, answer: Answer) -> None:
    """An answer shows its own words where it is asked for them, and of the prompt nothing anywhere."""
    watch.look_for("the answer", repr(answer))
    watch.look_for("the answer", repr(answer.routing))
    watch.look_at("the answer", answer, PROMPTS)
    watch.look_at("the response", answer.response, PROMPTS)
    watch.look_at_pickle("the answer", answer, PROMPTS)
    watch.look_at("the decision", answer.decision)
    watch.look_at_pickle("the decision", answer.decision)
    watch.look_for("explain", router.explain(answer))
    look_at_trace(watch, answer.trace)


# --- the ways of asking

Ask = Callable[..., Coroutine[Any, Any, None]]


async def plain(router: Router, watch: Watch, **options: Any) -> None:
    look_at_answer(watch, router, await router.route(REQUEST, goal="quality", **options))


async def events(router: Router, watch: Watch, **options: Any) -> None:
    async with router.stream(REQUEST, goal="quality", **options) as stream:
        async for event in stream:
            speaks = isinstance(event, wire.OutputDelta | wire.ToolCallDelta | wire.RouteCompleted)
            watch.look_at("an event", event, PROMPTS if speaks else None)
            watch.look_at("the stream", stream)
    look_at_answer(watch, router, stream.result)


async def text(router: Router, watch: Watch, **options: Any) -> None:
    async with router.stream(REQUEST, goal="quality", **options) as stream:
        pieces = stream.text()
        async for _ in pieces:
            watch.look_at("the pieces", pieces)
    look_at_answer(watch, router, stream.result)


async def many(router: Router, watch: Watch, **options: Any) -> None:
    options.setdefault("budget", {"maxCostUsd": 1.0})
    results = await router.route_many([REQUEST, REQUEST], goal="quality", **options)
    for result in results:
        if isinstance(result, RouterError):
            watch.look_at_error("one of many", result)
            raise result
        look_at_answer(watch, router, result)


async def hosted(router: Router, watch: Watch, **options: Any) -> None:
    providers: Any = [each for each in router._parts.fleet("production").server if each is not None]
    with router.steps(REQUEST, goal="quality", **options) as steps:
        while not isinstance(step := steps.next(), StepDone):
            watch.look_at("a step", step)
            watch.look_at("the steps", steps)
            if isinstance(step, StepCall):
                (provider,) = [each for each in providers if step.model.startswith(each.name)]
                steps.feed(chunks_of(provider.turn(step.upstream)))
            else:
                assert isinstance(step, StepWait)
    look_at_answer(watch, router, steps.result)


def chunks_of(lines: Any) -> Iterator[wire.Chunk]:
    for line in lines:
        if isinstance(line, ProviderFault):
            raise line
        yield line


ALL: list[Ask] = [plain, events, text, many, hosted]
every_way = pytest.mark.parametrize("ask", ALL)


# --- every fault there is

LIGHT = sorted(set(NAMES) - HEAVY)
_LIKE: dict[object, str] = {}
for _name in LIGHT:
    _case = Case(_name, "events", "first")
    _LIKE.setdefault((_case.cell.plain.kind, _case.cell.streamed.kind, _case.play.finish, _case.speaks), _name)
SAMPLE = sorted(_LIKE.values())
"""One cell of each sort: what it is taken for, plain and streamed, how it ends, and whether it speaks before."""

_TOLD = {
    b"All": SAID.encode(),
    b'"arguments": "': b'"arguments": "' + CALLED.encode(),
    b'"message": "': b'"message": "' + ASKED.encode() + b" is not what we answer. ",
    b"<html>": b"<html>" + ASKED.encode(),
    b"Payload too large": ASKED.encode() + b" is too large",
    b"</html>": SAID.encode() + b"</html>",
    b": ping": b": " + SAID.encode(),
    b"{'choices'": b"{'" + SAID.encode() + b"'",
    b"a" * 64: SAID.encode() + b"a" * 53,
}
"""What vendors say in the matrix, and what they say here: answers hold a word, and errors quote the prompt."""


def telling(cell: Scenario) -> Scenario:
    """A fault in whose bytes stands what must not be seen."""
    return cell._replace(plain=_telling(cell.plain), streamed=_telling(cell.streamed))


def _telling(play: Play) -> Play:
    return play._replace(steps=[_step(step) for step in play.steps])


def _step(step: Step) -> Step:
    match step:
        case bytes():
            return _said(step)
        case Drip(data, every_s):
            return Drip(_said(data), every_s)
        case Repeat(piece, times, every_s):
            return Repeat(_said(piece), times, every_s)
        case _:
            return step


def _said(body: bytes) -> bytes:
    for before, now in _TOLD.items():
        body = body.replace(before, now, 1)
    return body


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "any_cell" in metafunc.fixturenames:
        full: list[tuple[str, Position]] = [(name, at) for at in ("first", "second") for name in NAMES]
        in_turn: list[tuple[str, Position]] = [(name, ("first", "second")[i % 2]) for i, name in enumerate(SAMPLE)]
        metafunc.parametrize(("any_cell", "position"), full if metafunc.config.getoption("--full") else in_turn)


def look_at_failure(watch: Watch, error: RouterError) -> None:
    """Look at an error, but at the vendors' own words only in the two places where the process may read them."""
    watch.look_for("the error over HTTP", repr(error.body))
    for attempt in error.detail.get("attempts", ()):
        attempt.pop("provider_message", None)
    if isinstance(error.__cause__, ProviderFault):
        watch.look_for("the fault", str(error.__cause__).partition(WROTE)[0])
        error.__cause__ = None
    watch.look_at_error("the error", error)


WAYS: dict[Way, Ask] = {"plain": plain, "events": events, "text": text}


async def test_no_fault_shows_a_word_of_prompt_or_answer(
    any_cell: str, position: Position, watch: Watch, tmp_path: Path
) -> None:
    cell, others = telling(SCENARIOS[any_cell]), good(f"{SAID} from another.")
    first, second = (cell, others) if position == "first" else (telling(SCENARIOS[BEFORE]), cell)
    storage = SqliteStorage(tmp_path / "traces.db", clock=FakeClock())
    for way, ask in WAYS.items():
        case = Case(any_cell, way, position)
        pair, raised = Pair(first, second, models=ABLE, storage=storage), None
        hear(pair.router, watch)
        try:
            await ask(pair.router, watch)
        except RouterError as error:
            raised = error
            look_at_failure(watch, error)
        assert (None if raised is None else type(raised)) is case.error
        sent = pair.good.requests if position == "first" else pair.spare.requests
        assert all(word in sent[0].body.decode() for word in PROMPTS), "it was there to be seen"
        await look_at_traces(pair.router, watch)
    watch.look_at_files(tmp_path)
    await storage.aclose()
    watch.look_at_files(tmp_path)


# --- however a call ends


@every_way
async def test_an_answer_shows_nothing_but_itself(ask: Ask, watch: Watch, tmp_path: Path) -> None:
    scene = Scene(watch, [ANSWER] * 4, path=tmp_path)
    for _ in range(2):
        await ask(scene.router, watch)
    (trace, *_) = [trace async for trace in scene.router.traces.export()]
    await scene.router.feedback(trace.id, 1.0)
    watch.look_at("feedback", await scene.router.traces.feedback_of(trace.id))
    await scene.leave()
    assert {"the file traces.db", "the file traces.db.secret"} <= watch.looked


@pytest.mark.parametrize("ask", [plain, events, text, many])
@pytest.mark.parametrize("silent_s", [0.0, 15.0])
async def test_a_call_that_runs_out_of_time_shows_nothing(ask: Ask, silent_s: float, watch: Watch) -> None:
    slow: list[Line] = [Pause(silent_s), *HALF, Pause(1_000.0)]
    scene = Scene(watch, [slow] * 2, [slow] * 2)
    late = RouterTimeoutError if ask is not text or silent_s else UpstreamFailed
    await scene.fails(late, ask, timeout_ms=12_000, fallback={"maxRetries": 0})


@pytest.mark.parametrize("ask", [plain, events, text, many])
async def test_a_call_that_is_cancelled_anywhere_shows_nothing(ask: Ask, watch: Watch) -> None:
    async def watched(router: Router) -> None:
        try:
            await ask(router, watch)
        except RouterError as error:
            look_at_failure(watch, error)
        except BaseException as error:
            watch.look_at_error("the cancellation", error)
            raise

    cells = [telling(SCENARIOS[name]) for name in ("rate_limited_second", "stall_mid_answer")]
    at = waited = left = 0
    while waited >= at:
        at += 1
        pair = Pair([*cells, *cells], good(f"{SAID} from another."), models=ABLE)
        hear(pair.router, watch)
        with anyio.CancelScope() as scope:
            awaited = CancelAt(watched(pair.router), at, scope)
            await awaited
        waited = awaited.waited
        left += await look_at_traces(pair.router, watch)
        await pair.router.aclose()
    assert left > 5


@every_way
@pytest.mark.parametrize(
    ("options", "kind"),
    [({"budget": {"maxCostUsd": 0.0}}, BudgetExceeded), ({"params": {"stop": "x"}}, NoCandidates)],
    ids=["budget", "none"],
)
async def test_a_refusal_shows_nothing(ask: Ask, options: Any, kind: type[RouterError], watch: Watch) -> None:
    scene = Scene(watch, [])
    for provider in (scene.good, scene.spare):
        models = [replace(model, unsupported=("stop",)) for model in provider.models()]
        provider.models = lambda models=models: models  # type: ignore[method-assign,misc]
    await scene.fails(kind, ask, **options)


# --- answers of a type


# --- guardrails

STAGES: tuple[wire.Stage, wire.Stage] = ("input", "output")


def as_any(value: Any) -> Any:
    """Hide a wrong type from the type checker."""
    return value


@every_way
async def test_the_finding_of_a_guardrail_is_not_shown(ask: Ask, watch: Watch) -> None:
    words, actions = [ASKED, ARGUMENTS, SAID, CALLED], ("redact", "block")
    for action, stage in product(actions, STAGES):
        guardrails = [DenyList(words, action=as_any(action), stages=[stage]), PatternGuardrail("email")]
        scene = Scene(watch, [ANSWER] * 2, [ANSWER] * 2, guardrails=guardrails)
        if action == "block":
            await scene.fails(BlockedByPolicy, ask)
        else:
            await ask(scene.router, watch)
            await scene.leave()


class Judge:
    """A guardrail of one's own."""

    name = "judge"
    holds = None

    def __init__(self, say: Callable[[str], Any], stage: wire.Stage) -> None:
        self.stages = (stage,)
        self._say = say

    def check(self, text: str, stage: wire.Stage) -> Any:
        return self._say(text)


# --- parts that fail of themselves


def failing(text: str) -> Any:
    raise ValueError(text)


class Counter:
    def count(self, text: str, encoding: str) -> int:
        raise ValueError(text)


class Predictor:
    def predict(self, request: RouteRequest, models: Any) -> Any:
        raise ValueError(repr(request))


@pytest.mark.parametrize(
    ("router", "options"),
    [
        ({"guardrails": [Judge(failing, "input")]}, {}),
        ({"guardrails": [Judge(failing, "output")]}, {}),
        ({"settings": {"tokens": Counter()}}, {"budget": {"maxTokens": 5_000}}),
        ({"settings": {"predictor": Predictor()}}, {}),
    ],
    ids=["input guardrail", "output guardrail", "counter", "predictor"],
)
@every_way
async def test_text_of_a_custom_part_stays_in_its_own_error(ask: Ask, router: Any, options: Any, watch: Watch) -> None:
    scene = Scene(watch, [ANSWER] * 2, **router)
    with pytest.raises(InternalError) as caught:
        await ask(scene.router, Watch([]), **options)
    cause = caught.value.__cause__
    assert isinstance(cause, ValueError), "who wrote it has to see where it failed"
    watch.look_at_error("the error", caught.value, but=cause)
    watch.look_at_pickle("the error", caught.value)
    await scene.leave()


def junk(call: wire.UpstreamCall) -> Any:
    raise ValueError(repr(call))


class Weird(ProviderFault):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise ValueError(SAID)


INVALID: list[Any] = [
    SAID.encode(),
    {SAID: SAID},
    wire.Delta([SAID]),  # type: ignore[arg-type]
    wire.Delta(SAID + "\ud800"),
    wire.Finish(SAID * 100),
    Weird("server", SAID),
    ProviderFault("server", body=SAID),
]


@every_way
async def test_an_invalid_chunk_of_a_provider_is_not_shown(ask: Ask, watch: Watch) -> None:
    for line in INVALID:
        lines = [*HALF, line]
        scene = Scene(watch, [lines] * 4, [lines] * 4)
        await scene.fails(UpstreamFailed, ask)


async def test_the_exception_of_a_provider_is_not_shown(watch: Watch) -> None:
    for ask in (plain, events, text, many):
        await Scene(watch, junk, junk).fails(UpstreamFailed, ask)


# --- without a call


async def test_decisions_and_explanations_before_a_call_show_nothing(watch: Watch) -> None:
    policies = [Policy(name="cheap", goal="cost"), Policy(name="best", goal="quality")]
    scene = Scene(watch, [], policies=policies)
    router = scene.router
    decision = router.decide(REQUEST)
    for thing in (decision, router.replay(decision), router.why_not(REQUEST, SPARE), router.why_not(REQUEST, GOOD)):
        watch.look_at("before", thing)
        watch.look_at_pickle("before", thing)
    for check in router.check_policies(REQUEST):
        watch.look_at("a check", check)
    watch.look_for("explain", router.explain(decision))
    with router.steps(REQUEST, goal="quality") as steps:
        step = steps.next()
        assert isinstance(step, StepCall)
        assert ASKED in str(step.upstream.messages), "it is there to be asked for"
        watch.look_at("a step", step)
    await scene.leave()


def user(content: Any, **more: Any) -> list[Any]:
    return [{"role": "user", "content": content, **more}]


WRONG: dict[str, Any] = {
    "a message that is a text": [ASKED],
    "messages that are a text": {"messages": ASKED},
    "no role": [{"content": ASKED}],
    "an unknown role": [{"role": "nobody", "content": ASKED}],
    "another field of the request": {"messages": user(ASKED), "max_tokens": 5},
    "content in a list": user([ASKED]),
    "content in bytes": user(ASKED.encode()),
    "content that is an object": user(Watch([ASKED])),
    "half of a surrogate pair": user(f"{ASKED} \ud800"),
    "half of a surrogate pair in a part": user([{"type": "text", "text": f"{PART}\udfff"}]),
    "a part with more": user([{"type": "text", "text": PART, "cache_control": {}}]),
    "an image that is a text": user([{"type": "image_url", "image_url": IMAGE}]),
    "an image of another scheme": user([{"type": "image_url", "image_url": {"url": f"{IMAGE}:{IMAGE}"}}]),
    "arguments that are a dict": [
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"a": ARGUMENTS}}}]}
    ],
    "a result of no call": [{"role": "tool", "content": RESULT}],
    "a message too many": [Message("user", ASKED)] * 1_001,
    "a struct of wrong types": RouteRequest([Message("user", [ASKED])]),  # type: ignore[list-item]
    "a struct with bytes": RouteRequest([Message("user", ASKED.encode())]),  # type: ignore[arg-type]
    "what contains itself": user(ASKED),
}
WRONG["what contains itself"][0]["tool_calls"] = WRONG["what contains itself"]


async def test_an_invalid_request_is_reported_without_its_text(watch: Watch) -> None:
    router = Router.sandbox()
    for case, wrong in WRONG.items():
        for say in (router.decide, router.steps, router.check_policies):
            with pytest.raises(ValidationFailed) as caught:
                say(wrong)
            watch.look_at_error(case, caught.value)
        for wait in (router.route, lambda asked: anext(router.stream(asked))):
            with pytest.raises(ValidationFailed) as caught:
                await wait(wrong)
            watch.look_at_error(case, caught.value)
        (result,) = await router.route_many([wrong])
        assert isinstance(result, ValidationFailed)
        watch.look_at_error(case, result)


BODIES = [
    f'{{"messages": "{ASKED}"}}',
    f'{{"messages": [{{"role": "user", "content": "{ASKED}"}}], "messages": []}}',
    f'{{"messages": [{{"role": "user", "content": "{ASKED}\\ud800"}}]}}',
    f'{{"messages": [{{"role": "user", "content": "{ASKED}"',
    f'{{"messages": [{{"role": "user", "content": "{ASKED}"}}], "timeout_ms": NaN}}',
    f'{{"messages": [{{"role": "user", "content": ["{ASKED}"]}}]}}',
    f'{{"messages": [{{"role": "user", "content": {"[" * 70}"{ASKED}"{"]" * 70}}}]}}',
    ASKED,
]


def test_an_invalid_body_is_reported_without_its_text(watch: Watch) -> None:
    for body, encoding in product(BODIES, ("utf-8", "utf-16", "latin-1")):
        tail = "" if encoding == "utf-8" else "\xe9"
        with pytest.raises(ValidationFailed) as caught:
            decode_request((body + tail).encode(encoding))
        watch.look_at_error("the error", caught.value)


# --- in earnest: a real clock, threads, a file


# --- keys and secrets

STRAY = new_key("production", bytes(range(24)))
"""A key that somebody passes where none belongs."""
ROOT = "CanaryRootSecretCanaryRootSecret"
PERIODS = {"daily_limit_usd": 1, "weekly_limit_usd": 2, "monthly_limit_usd": 3}
VALID: dict[str, dict[str, Any]] = {
    "create_account": {"name": "umbra", "plan": "pro", "limits": None, "prepaid": False, **PERIODS, "tag_limits": []},
    "change_account": {"name": "acme", "plan": "pro", "limits": None, "prepaid": False, **PERIODS, "tag_limits": []},
    "account": {"name": "acme"},
    "accounts": {},
    "credit": {"account": "acme", "usd": 1, "note": "", "id": None},
    "standing": {"account": "acme"},
    "nearest_limits": {"account": "acme"},
    "create_key": {"account": "acme", "name": "x", "environment": "production", "scopes": None, "limits": None,
                   "budget_usd": None, **PERIODS, "models": None, "policies": None},
    "keys": {"account": "acme"},
    "key": {"account": "acme", "key_id": "key_1"},
    "change_key": {"account": "acme", "key_id": "key_1", "name": "x", "scopes": None, "limits": None,
                   "budget_usd": None, **PERIODS, "models": None, "policies": None},
    "revoke_key": {"account": "acme", "key_id": "key_1"},
    "end_sessions": {"key_id": "key_1"},
    "authenticate": {"authorization": f"Bearer {STRAY}", "environment": None},
    "authenticate_operator": {"authorization": f"Bearer {STRAY}"},
    "open_incident": {"title": "x", "severity": "minor", "status_url": None},
    "resolve_incident": {"id": "inc_1"},
    "incidents": {},
    "rotate_secret": {"force": False},
    "create_endpoint": {"account": "acme", "url": "https://hooks.example.com", "events": None,
                        "environment": "production", "profile": "service", "allow_loopback": False},
    "endpoints": {"account": "acme"},
    "disable_endpoint": {"account": "acme", "endpoint_id": "whe_1"},
    "enable_endpoint": {"account": "acme", "endpoint_id": "whe_1"},
    "delete_endpoint": {"account": "acme", "endpoint_id": "whe_1"},
    "rotate_endpoint": {"account": "acme", "endpoint_id": "whe_1", "overlap_s": 60.0},
    "deliveries": {"account": "acme", "endpoint_id": None, "state": None, "after": None, "limit": 50},
    "replay": {"account": "acme", "endpoint_id": "whe_1", "event_id": None},
    "test_endpoint": {"account": "acme", "endpoint_id": "whe_1", "transport": None, "allow_loopback": False},
    "simulate": {"draft": "desk", "since": "7d", "filter": "", "account": None},
    "what_if": {"since": "7d", "without": [], "only": [], "prices": None, "cache": True, "filter": "", "account": None},
    "compare": {"name": "desk", "since": "7d", "account": None, "environment": "production"},
}  # fmt: skip
"""All methods, and what each takes."""
STRAYS: dict[str, Any] = {
    "alone": STRAY, "in a text": f"the key is {STRAY}, keep it", "in a list": [STRAY], "in a dict": {STRAY: STRAY},
    "in bytes": STRAY.encode(), "cut": f"{'x' * 30}{STRAY}", "twice": STRAY * 2, "in a header": f"Bearer {STRAY}",
}  # fmt: skip


@pytest.fixture
def guard() -> Iterator[Watch]:
    with Watch([STRAY, STRAY[8:], STRAY[8:20], ROOT, ROOT[:16]]) as watching:
        yield watching
    assert watching.seen == []
    assert watching.looked


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
async def console(watched: Watched, clock: FakeClock) -> Console:
    console = Console(watched, clock=clock, secret=ROOT)
    await console.create_account("acme", prepaid=True)
    return console


async def tried(console: Console, method: str, given: dict[str, Any], watch: Watch) -> RouterError | None:
    """Look at what a call gives, or fails with."""
    try:
        result = await getattr(console, method)(**given)
    except RouterError as error:
        watch.look_at_error(method, error)
        return error
    watch.look_at(method, result)
    return None


def test_every_method_is_covered() -> None:
    waits = {name for name, _ in inspect.getmembers(Console, inspect.iscoroutinefunction) if not name.startswith("_")}
    assert set(VALID) == waits - {"aclose", "deliver"}
    for name in VALID:
        assert set(VALID[name]) == set(inspect.signature(getattr(Console, name)).parameters) - {"self", "tags"}


@pytest.mark.parametrize("method", [name for name, takes in VALID.items() if takes])
async def test_a_key_passed_as_another_argument_is_not_shown(method: str, console: Console, guard: Watch) -> None:
    for name, (case, stray) in product(VALID[method], STRAYS.items()):
        error = await tried(console, method, VALID[method] | {name: stray}, guard)
        assert error is not None, f"{method}({name}=...) keeps a key {case}"


async def test_a_key_passed_as_a_term_of_an_operators_key_is_not_shown(console: Console, guard: Watch) -> None:
    new = await console.create_key("_system", name="ada", scopes=["console:write"])
    for stray in (*STRAYS.values(), [STRAY]):
        for name in VALID["change_key"].keys() - {"account", "key_id"}:
            terms: dict[str, Any] = {"name": "x", "scopes": ["console:read"]} | {name: stray}
            assert await tried(console, "create_key", {"account": "_system", **terms}, guard) is not None
            assert await tried(console, "change_key", {"account": "_system", "key_id": new.key.id, **terms}, guard)


async def test_a_key_passed_to_policies_is_not_shown(console: Console, guard: Watch) -> None:
    policies = console.policies
    await policies.draft(Policy(name="desk"))
    await policies.publish("desk")
    for text in (STRAY, f"Bearer {STRAY}"):
        for call in (
            policies.draft(Policy(name=text)),
            policies.draft(Policy(name="desk", models=[text])),
            policies.draft(Policy(name="desk"), by=text),
            policies.get(text),
            policies.publish(text),
            policies.publish("desk", note=text),
            policies.diff("desk", text),
            policies.roll_back("desk", to=text),
        ):
            with pytest.raises(RouterError) as caught:
                await call
            guard.look_at_error("policies", caught.value)
    guard.look_at("the records", await policies.list())


@pytest.mark.parametrize("how", ["away", "read only", "cannot know"])
async def test_a_key_is_not_shown_if_the_storage_fails(
    how: str, console: Console, watched: Watched, guard: Watch
) -> None:
    kept = watched.kept
    for method, arguments in VALID.items():
        watched.is_away, watched.is_read_only = how == "away", how == "read only"
        watched.kept = None if how == "cannot know" else kept  # every call of it is a fault
        await tried(console, method, arguments, guard)


async def test_a_valid_key_is_shown_only_to_its_creator(clock: FakeClock, tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "traces.db", clock=clock)
    with Watch([]) as watch:
        console = Console(storage, clock=clock)
        await console.create_account("acme")
        new = await console.create_key("acme", name="x", budget_usd=1)
        text = new.secret.reveal()
        watch.words = [text, text[8:], text[12:24], secret_path(storage.path).read_text().strip()]
        for _ in range(2):
            assert await holds(console, new)
            for given in (new, new.key, console, console.blocking, await console.authenticate(bearer(new))):
                watch.look_at("what it gives", given)
            watch.look_at_pickle("the pickle", new)
            for method in ("keys", "standing", "accounts"):
                await tried(console, method, VALID[method], watch)
            for wrong in (f"Bearer {text}x", f"Bearer x{text}", f"Basic {text}", text, f"Bearer {text} {text}"):
                await tried(console, "authenticate", {"authorization": wrong}, watch)
            await tried(console, "authenticate", {"authorization": bearer(new), "environment": "sandbox"}, watch)
            await console.rotate_secret()
            words = secret_path(storage.path).read_text().split()
            watch.words = [*watch.words, *words]
            await tried(console, "rotate_secret", {"force": False}, watch)
        await console.revoke_key("acme", new.key.id)
        await tried(console, "authenticate", {"authorization": bearer(new)}, watch)
        await console.aclose()
        secret_path(storage.path).unlink()
        watch.look_at_files(tmp_path)
    assert watch.seen == []


async def test_no_key_reaches_the_storage(console: Console, watched: Watched, guard: Watch) -> None:
    new = await console.create_key("acme", name="x")
    assert await holds(console, new)
    guard.words = [*guard.words, new.secret.reveal(), new.secret.reveal()[12:24]]
    for account, query in (("acme", wire.Keys()), ("_system", wire.AllAccounts()), ("_system", wire.Incidents())):
        guard.look_at("what is stored", await watched.kept.read(account, query))
    found = await watched.kept.read("_system", wire.KeyByDigest((new.key.digest,)))
    guard.look_at("what is stored", found)
    guard.look_at(
        "what is stored", await watched.kept.read("acme", wire.Stands("2026-11-22T00:00:00.000Z", new.key.id))
    )


# --- the watch itself
