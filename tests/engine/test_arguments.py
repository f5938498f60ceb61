"""Invalid arguments other than requests: providers, callers, ids. The errors say how to fix them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

from routewright import (
    CallableProvider,
    Caller,
    Catalogue,
    Limits,
    MemoryStorage,
    Message,
    Model,
    OpenAIProvider,
    Policy,
    Pricing,
    Router,
    RouteRequest,
    RouterError,
    Settings,
    TraceStore,
    ValidationFailed,
)
from routewright.backends.coordination.memory import MemoryCoordination
from routewright.backends.transport import AutoTransport
from routewright.errors import InternalError, NotFound
from routewright.policies import read_policies
from routewright.testing import FakeClock, Pause, ScriptedProvider
from routewright.wire import UpstreamCall
from tests.tables import table

from .scripted_router import House, traces_in

pytestmark = pytest.mark.anyio

MINE = Model(id="mine/one", pricing_per_1m=Pricing(0.1, 0.1))
MAKERS: list[Callable[[Any], object]] = [
    Catalogue,
    lambda models: CallableProvider(lambda call: "x", models=models),
    lambda models: ScriptedProvider([], models=models),
    lambda models: OpenAIProvider("k", models=models),
]


def wrong(value: Any) -> Any:
    """Hide a wrong type from the type checker: callers have none."""
    return value


def refusal(what: Callable[[], object]) -> str:
    with pytest.raises(ValidationFailed) as refused:
        what()
    return str(refused.value)


LIST = "pass [OpenAIProvider(...)], or leave it out to use those of the environment"
ONE = "pass an object with name, models, open and aclose, such as an OpenAIProvider"


@table(
    ("providers", "said"),
    [
        ("openai", f"providers: 'openai' is not a list of providers; {LIST}"),
        (5, f"providers: 5 is not a list of providers; {LIST}"),
        ([None], f"providers[0]: None is not a provider; {ONE}"),
        ([ScriptedProvider([]), "openai"], f"providers[1]: 'openai' is not a provider; {ONE}"),
        (
            ScriptedProvider([]),
            "providers: ScriptedProvider is one provider, not a list; pass a list",
        ),
    ],
)
def test_an_invalid_list_of_providers_gets_a_hint(providers: Any, said: str) -> None:
    assert refusal(lambda: Router(providers=providers)) == said


@table(
    ("models", "said"),
    [
        ([wrong("mine/one")], "models: 'mine/one' is not a Model; pass Model(id=...)"),
        ([Model(id="mine/one", quality=wrong("high"))], "models['mine/one'].quality: must be a number, got 'high'"),
        ([Model(id="mine")], "models: id 'mine' is not a provider and model; write it as 'provider/name', without"),
    ],
)
def test_what_a_provider_declares_is_checked_like_a_file(models: list[Model], said: str) -> None:
    provider = ScriptedProvider([], name="mine")
    provider.models = lambda: models  # type: ignore[method-assign]
    assert refusal(lambda: Router(providers=[provider]).decide("hi")).startswith(said)


def test_a_provider_whose_models_are_not_a_list_is_named() -> None:
    provider = ScriptedProvider([], name="mine")
    provider.models = wrong(lambda: None)  # type: ignore[method-assign]
    said = "providers: models() of 'mine' returned None; return a list of Model"
    assert refusal(lambda: Router(providers=[provider]).decide("hi")) == said


def mine_whose_models_are(models: Callable[[], Any]) -> Router:
    provider = ScriptedProvider(["x"], name="mine")
    provider.models = models  # type: ignore[method-assign]
    return Router(providers=[provider], catalogue=Catalogue(()))


def test_a_provider_whose_models_fail_is_named_without_its_message() -> None:
    def fail() -> list[Model]:
        raise KeyError("canary")

    async def later() -> list[Model]:
        return [MINE]

    failed = "providers: models() of 'mine' failed with KeyError; see the chained exception"
    assert refusal(lambda: mine_whose_models_are(fail).decide("hi")) == failed
    assert refusal(lambda: mine_whose_models_are(fail).models()) == failed
    waits = "providers: models() of 'mine' is a coroutine; make it a plain function"
    assert refusal(lambda: mine_whose_models_are(later).decide("hi")) == waits
    twice = "providers: models() of 'mine' returned 'mine/one' twice; return it once"
    assert refusal(lambda: mine_whose_models_are(lambda: [MINE, MINE]).decide("hi")) == twice


class Particular(ScriptedProvider):
    """Says of itself what it is told to."""

    said: Any = ()
    region: Any = None
    whole: Any = False

    def unsupported(self, model: Model) -> Any:
        return self.said() if callable(self.said) else self.said


class Shy:
    """Cannot be asked for its truth."""

    def __bool__(self) -> bool:
        raise KeyError("canary")


def test_attributes_of_a_provider_are_checked_without_showing_its_message() -> None:
    def fail() -> Any:
        raise KeyError("canary")

    def refused(**said: Any) -> str:
        provider = Particular([], models=[MINE], name="mine")
        for name, value in said.items():
            setattr(provider, name, value)
        return refusal(lambda: Router(providers=[provider]).decide("hi"))

    assert refused(said=None).startswith("providers: unsupported() of 'mine' returned None; return some of")
    assert refused(said="seed").startswith("providers: unsupported() of 'mine' returned 'seed'; return some of")
    assert refused(said=["sneed"]).startswith("providers: unsupported() of 'mine' returned ")
    assert refused(said=[[]]).startswith("providers: unsupported() of 'mine' returned ")
    assert refused(said=fail).startswith("providers: unsupported() of 'mine' failed with KeyError; see the")
    assert refused(region=5) == "providers: region of 'mine' is 5; make it a string, or None"
    assert refused(whole=Shy()).startswith("providers: whole of 'mine' failed with KeyError")


def test_a_provider_is_asked_once_for_its_models() -> None:
    said = iter([[MINE]])
    assert mine_whose_models_are(lambda: next(said)).decide("hi").model == "mine/one"


def test_an_invalid_part_of_a_router_gets_a_hint() -> None:
    assert refusal(lambda: Router(storage=wrong("memory:"))) == (
        "storage: 'memory:' is not a storage; pass SqliteStorage(path), MemoryStorage() or open_storage(url)"
    )
    hint = "pass MemoryCoordination(), or leave it out"
    assert refusal(lambda: Router(coordination=wrong("x"))) == f"coordination: 'x' is not a coordination; {hint}"
    assert refusal(lambda: Router.sandbox(coordination=wrong(MemoryCoordination))) == (
        f"coordination: type is not a coordination; {hint}"
    )
    assert refusal(lambda: Router(settings=wrong({"limits": 1}))) == (
        "settings: a dict is not Settings; pass Settings(...)"
    )
    assert refusal(lambda: MemoryStorage(newest=0)) == "MemoryStorage.newest: is 0; use a whole number above 0"
    said = "MemoryStorage.newest: is '5'; use a whole number above 0"
    assert refusal(lambda: MemoryStorage(newest=wrong("5"))) == said
    assert refusal(lambda: Limits(default_max_output_tokens=wrong("5"))) == (
        "Limits.default_max_output_tokens: is '5'; take at least 1"
    )
    assert refusal(lambda: Router.sandbox(wrong({"hi": 5})).decide("hi")).startswith("answers[...]: must be a string")
    assert refusal(lambda: Router.sandbox(faults=wrong({"*": 5})).decide("hi")).startswith(
        "faults['*']: 5 is not a kind of fault; known kinds: connect, local, timeout"
    )
    assert refusal(lambda: Router.sandbox(faults=wrong(5)).decide("hi")) == (
        "faults: 5 is not a dict; map model ids, or '*', to kinds of fault"
    )
    assert refusal(lambda: Router.sandbox(faults=wrong([])).decide("hi")) == (
        "faults: a list is not a dict; map model ids, or '*', to kinds of fault"
    )


async def test_a_falsy_part_is_still_used() -> None:
    class Empty:
        def __len__(self) -> int:
            return 0

    class Kept(Empty, MemoryStorage):
        pass

    class Sent(Empty, AutoTransport):
        pass

    class Known(Empty, Catalogue):
        pass

    class Said(Empty):
        def __call__(self, call: UpstreamCall) -> str:
            return "mine"

    storage, transport = Kept(), Sent()
    answer = await Router.sandbox(Said(), storage=storage, catalogue=Known([MINE])).route("hi")
    assert (answer.output, answer.routing.selected_model) == ("mine", "mine/one")
    assert [trace.id for trace in await traces_in(storage)] == [answer.trace_id]
    assert OpenAIProvider("k", transport=transport)._transport is transport


@table(
    ("given", "said"),
    [
        ({"clock": FakeClock}, "clock: is the class FakeClock; pass SystemClock(), or FakeClock() in tests"),
        ({"clock": 5}, "clock: is 5; pass SystemClock(), or FakeClock() in tests"),
        ({"rng": None}, "rng: is None; pass random.Random(seed)"),
        ({"limits": None}, "limits: is None; pass Limits(...)"),
        (
            {"predictor": lambda request: 1},
            "predictor: is function; pass an object with predict(request, models), or None",
        ),
        ({"tokens": "o200k_base"}, "tokens: is 'o200k_base'; pass an object with count(text, encoding)"),
    ],
)
def test_a_setting_of_another_kind_says_what_it_should_be(given: dict[str, Any], said: str) -> None:
    assert refusal(lambda: Settings(**given)) == f"Settings.{said}"


@table("as_of", ["soon", "", "2026-01-01T00:00:00Z", 5])
def test_the_date_of_a_catalogue_is_a_date(as_of: Any) -> None:
    assert refusal(lambda: Catalogue(as_of=as_of)).startswith("as_of: must be a date, got ")
    assert Catalogue(as_of="2026-01-01").as_of == "2026-01-01"


@table("name", [" ", "\ud800", "a\x1b[31m", "a" * 201])
def test_a_provider_has_a_printable_name(name: str) -> None:
    said = refusal(lambda: Router(providers=[ScriptedProvider([], name=name)]))
    assert said.startswith("providers[0].name: must be 1 to 200 printable characters, got ")


@table(
    ("caller", "said"),
    [
        (wrong("mine"), "caller: is 'mine'; pass Caller(account=...)"),
        (
            Caller(environment=wrong("staging")),
            "caller.environment: must be 'production' or 'sandbox', got 'staging'",
        ),
        (Caller(environment=wrong(None)), "caller.environment: must be 'production' or 'sandbox', got None"),
        (Caller(environment=wrong([])), "caller.environment: must be 'production' or 'sandbox', got a list"),
        (Caller(""), "caller.account: must be 1 to 200 printable characters, got ''"),
        (Caller(wrong(5)), "caller.account: must be 1 to 200 printable characters, got 5"),
        (Caller("a\0"), "caller.account: must be 1 to 200 printable characters, got 'a\\x00'"),
        (Caller("a" * 201), f"caller.account: must be 1 to 200 printable characters, got {'a' * 60!r}..."),
        (Caller("_system"), "caller.account: '_system' is the Router's own; use another name"),
        (Caller(key_id=wrong(5)), "caller.key_id: must be a string of 1 to 200 printable characters, got 5"),
        (Caller(key_id="\ud800"), "caller.key_id: must be a string of 1 to 200 printable characters, got '\\ud800'"),
        (
            Caller(key_id="sk_live_x"),
            "caller.key_id: is an API key, not its id; pass the Caller from Console.authenticate",
        ),
        (
            Caller(scopes=wrong("xroutex")),
            "caller.scopes: is 'xroutex'; pass a tuple of some of route, agents, "
            "models:read, policies:read, traces:read, analytics:read, or None for all",
        ),
    ],
)
@table("router", [Router.sandbox(), House(["x"]).router], ids=["sandbox", "production"])
def test_an_invalid_caller_is_refused_everywhere(router: Router, caller: Caller, said: str) -> None:
    assert refusal(lambda: router.decide("hi", caller=caller)).startswith(said)
    assert refusal(lambda: router.as_caller(caller)).startswith(said)


@pytest.mark.parametrize("trace_id", [None, 5, b"tr_1", ["tr_1"]])
async def test_an_id_that_is_not_text_is_refused_by_its_type(trace_id: Any) -> None:
    router, store = Router.sandbox(), TraceStore(MemoryStorage())
    said = f"trace_id: must be a string, got {type(trace_id).__name__}; pass answer.trace.id"
    for ask in (lambda: router.trace(trace_id), lambda: router.feedback(trace_id, 1.0), lambda: store.get(trace_id)):
        with pytest.raises(ValidationFailed) as refused:
            await ask()
        assert str(refused.value) == said


@table("decided", [None, 5, b"tr_1"])
def test_an_object_without_a_decision_gets_a_hint(decided: Any) -> None:
    router = Router.sandbox()
    for ask in (router.explain, router.replay):
        assert refusal(lambda ask=ask: ask(decided)).endswith(  # type: ignore[misc]
            "has no decision; pass an Answer, a Trace or its id, a Decision or its input"
        )


async def test_feedback_accepts_numpy_numbers_and_refuses_other_types() -> None:
    router = Router.sandbox()
    trace_id = (await router.route("hi")).trace_id
    await router.feedback(trace_id, np.float64(0.5), "fine")
    for score in (True, "1", 1.5, float("nan")):
        with pytest.raises(ValidationFailed, match=r"score: is .*; give a number from 0"):
            await router.feedback(trace_id, wrong(score))
    with pytest.raises(ValidationFailed, match="comment: must be valid Unicode text, got 5"):
        await router.feedback(trace_id, 1.0, wrong(5))


@pytest.mark.parametrize("limit", [0, -1, 201, 2.5, "5", True, 10**30])
async def test_a_page_of_traces_has_a_size(limit: Any) -> None:
    with pytest.raises(ValidationFailed, match="limit: must be a whole number from 1 to 200, got"):
        await TraceStore(MemoryStorage()).query(limit=limit)


HUGE = "x" * 1_000_000


@table(
    "ask",
    [
        lambda router: router.decide("hi", models=[HUGE]),
        lambda router: router.decide("hi", models=["openai/gpt-4o"], fallback={"models": [HUGE]}),
        lambda router: router.decide("hi", policy_id=HUGE),
        lambda router: router.decide("hi", goal=HUGE),
        lambda router: router.decide("hi", **{HUGE: 1}),
        lambda router: router.decide("hi", tools=[{"name": HUGE}]),
        lambda router: router.decide("hi", tool_choice=HUGE),
        lambda router: router.decide("hi", caller=Caller(HUGE)),
        lambda router: router.decide([{"role": HUGE, "content": ""}]),
        lambda router: router.decide(
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x:" + HUGE}}]}]
        ),
        lambda router: router.blocking.trace(HUGE),
        lambda router: router.blocking.feedback(HUGE, 1.0),
        lambda router: Router(policies=[Policy(name=HUGE, timeout_ms=0)]),
        lambda router: Router.sandbox(policies=[Policy(name="p", models=[HUGE])]).policies(),
        lambda router: Router.sandbox(catalogue=Catalogue(aliases={HUGE: "nope"})).decide("hi"),
        lambda router: Router.sandbox(catalogue=Catalogue(aliases={"fast": HUGE})).decide("hi"),
        lambda router: Router.sandbox(faults={HUGE: "auth"}).decide("hi"),
        lambda router: Router.sandbox(faults={"*": HUGE}).decide("hi"),
        lambda router: Catalogue([Model(id=HUGE)]),
        lambda router: Catalogue([Model(id=f"a/{HUGE}", like=HUGE)]),
        lambda router: Catalogue().overlaid([{"id": "a/b", HUGE: 1}]),
    ],
)
def test_no_error_repeats_a_long_value(ask: Callable[[Router], object]) -> None:
    with pytest.raises((ValidationFailed, NotFound)) as refused:
        ask(Router.sandbox())
    assert isinstance(refused.value, RouterError)
    assert len(str(refused.value)) + len(repr(refused.value.detail)) < 1_500


def test_stream_is_another_method_and_no_argument() -> None:
    router = Router.sandbox()
    for ask in (router.decide, router.stream, router.blocking.route):
        assert refusal(lambda ask=ask: ask("hi", stream=True)) == (  # type: ignore[misc]
            "stream: is not an argument; call router.stream(...) to get the answer in chunks"
        )


@table("make", [dict, RouteRequest])
def test_a_request_to_be_streamed_is_not_answered_whole(make: Callable[..., Any]) -> None:
    router, asked = Router.sandbox(), make(messages=[Message("user", "hi")], stream=True)
    said = "stream: is True, but this call returns whole answers; call router.stream(...) to get the answer in chunks"
    assert refusal(lambda: router.blocking.route(asked)) == said
    assert [str(each) for each in router.blocking.route_many([asked])] == [said]
    with router.blocking.stream(asked) as stream:
        assert "".join(stream.text())
    assert router.decide(asked).model


def test_a_provider_whose_open_returns_no_context_manager_is_refused() -> None:
    async def coroutine(call: object) -> object: ...

    async def generator(call: object) -> AsyncIterator[str]:
        yield "x"

    for opens in (coroutine, generator):
        provider = ScriptedProvider([], name="mine")
        provider.open = wrong(opens)  # type: ignore[method-assign]
        said = "providers[0]: open() of 'mine' is a coroutine or generator; decorate it with @asynccontextmanager"
        assert refusal(lambda provider=provider: Router(providers=[provider])).startswith(said)  # type: ignore[misc]


def test_a_script_is_not_one_text() -> None:
    assert refusal(lambda: ScriptedProvider("ab")) == "script: is one text; write a list with one entry per call"


def test_a_script_that_pauses_needs_a_clock() -> None:
    assert refusal(lambda: ScriptedProvider(["a", [Pause(1.0), "b"]])).startswith("script: holds a Pause; give clock=")


@table("made", MAKERS)
def test_invalid_models_are_refused_where_they_are_passed(made: Callable[[Any], object]) -> None:
    assert refusal(lambda: made(MINE)) == "models: Model is not a list of Model; put it in a list"
    assert refusal(lambda: made("mine/one")) == "models: 'mine/one' is not a list of Model; put it in a list"
    assert refusal(lambda: made(["mine/one"])) == "models: 'mine/one' is not a Model; pass Model(id=...)"
    assert refusal(lambda: made([Model(id=wrong(5))])).startswith("models: id 5 is not a provider and model; ")


def test_a_file_is_named_by_its_path() -> None:
    assert refusal(lambda: Catalogue.load(wrong(5))) == "path: 5 is not the path of a file; pass 'models.toml'"
    assert refusal(lambda: read_policies(wrong(None))) == "path: None is not the path of a file; pass 'models.toml'"


async def test_a_trace_store_takes_a_storage_and_traces() -> None:
    said = refusal(lambda: TraceStore(wrong(5)))
    assert said == "storage: 5 is not a storage; pass SqliteStorage(path), MemoryStorage() or open_storage(url)"
    said = refusal(lambda: TraceStore(wrong(MemoryStorage)))
    assert said == "storage: type is not a storage; pass SqliteStorage(path), MemoryStorage() or open_storage(url)"
    with pytest.raises(ValidationFailed, match="trace: 5 is not a Trace; "):
        await TraceStore(MemoryStorage()).record(wrong(5))


class Predicts:
    """A predictor that gives, or raises, what it was made with."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def predict(self, request: object, models: object) -> Any:
        if isinstance(self._given, Exception):
            raise self._given
        return self._given


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (KeyError("the prompt"), "the quality predictor failed with KeyError"),
        (5, "the quality predictor failed with TypeError"),
        (["high", "low"], "the quality predictor failed with ValueError"),
        ([0.5], "the quality predictor returned 1 qualities for 2 models"),
    ],
)
async def test_a_failing_predictor_is_named_without_its_message(given: Any, said: str) -> None:
    provider = ScriptedProvider(["x"], models=[MINE, Model(id="mine/two")])
    router = Router(providers=[provider], catalogue=Catalogue(()), settings=Settings(predictor=Predicts(given)))
    with pytest.raises(InternalError) as failed:
        router.decide("hi")
    assert str(failed.value) == said
    with pytest.raises(InternalError, match=said) as failed:
        await router.route("hi")
    assert failed.value.trace_id is not None
    trace = await router.trace(failed.value.trace_id)
    assert (trace.status, trace.error) == ("failed", "internal_error")
