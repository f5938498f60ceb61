"""Calls made by the host: the same machine, budget, deadline and trace as ``route``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from routewright import (
    BudgetExceeded,
    Catalogue,
    Delta,
    Finish,
    MemoryStorage,
    Model,
    NoCandidates,
    Policy,
    Pricing,
    ProviderFault,
    Router,
    RouterError,
    Settings,
    Usage,
    ValidationFailed,
)
from routewright._engine.classify import lasting
from routewright._engine.steps import SHORTEST_S
from routewright.backends.providers.callable import HostedProvider
from routewright.errors import NoProviders, RouterTimeoutError, UpstreamFailed
from routewright.router import StepCall, StepDone, Steps, StepWait
from routewright.testing import FakeClock, Pause, ScriptedProvider
from routewright.testing.provider import Line
from routewright.wire import Chunk, ModelSpan, PolicyFallback, ToolDelta, Trace

from .scripted_router import GOOD, SPARE, House

ANSWER: list[Chunk] = [Delta("Blue."), Usage(10, 5), Finish("stop")]
OWN = Catalogue([GOOD, SPARE])
ONCE = {"maxRetries": 0}

Http = Callable[[StepCall], Iterable[Chunk] | ProviderFault]


class Host:
    """A Router whose calls we make, on virtual time. ``good/one`` is chosen, ``spare/two`` is its fallback."""

    def __init__(self, **router: Any) -> None:
        self.clock = FakeClock()
        router.setdefault("catalogue", OWN)
        self.router = Router(settings=Settings(clock=self.clock, rng=Random(7)), **router)

    def pass_time(self, seconds: float) -> None:
        self.clock._now += seconds

    def obey(self, steps: Steps, http: Http) -> list[str]:
        """Do what the steps say, and tell what was done."""
        done = []
        while True:
            match steps.next():
                case StepCall() as call:
                    done.append(call.model)
                    steps.feed(http(call))
                case StepWait(seconds):
                    done.append("wait")
                    self.pass_time(seconds)
                case StepDone():
                    return done

    def ask(self, *outcomes: Iterable[Chunk] | ProviderFault, **options: Any) -> Steps:
        """Walk through a call whose attempts end in ``outcomes``."""
        coming = iter(outcomes)
        with self.router.steps("hi", goal="quality", **options) as steps:
            self.obey(steps, lambda call: next(coming))
        return steps

    def trace(self, steps: Steps) -> Trace:
        """The trace as it is stored."""
        return self.router.blocking.trace(steps._execution.call.id)


def feed(steps: Steps) -> None:
    """Answer the first call."""
    steps.next()
    steps.feed(ANSWER)


def spans(trace: Trace) -> list[ModelSpan]:
    return [span for span in trace.spans if isinstance(span, ModelSpan)]


# --- what is said and told


def test_steps_name_the_model_the_request_and_the_time_limit() -> None:
    host = Host()
    with host.router.steps("hi", goal="quality", params={"max_output_tokens": 100}) as steps:
        call = steps.next()
        assert isinstance(call, StepCall)
        assert (call.model, call.attempt) == ("good/one", 1)
        assert 10.0 <= call.timeout_s <= 45.0, "its own patience, and a quarter for the next"
        assert call.upstream.model.id == "good/one"
        assert call.upstream.messages[0].content == "hi"
        assert call.upstream.max_output_tokens == 100
        assert not call.upstream.stream
        assert call.upstream.deadline == 60.0
        steps.feed(ANSWER)
        assert steps.next() == StepDone()
    assert steps.result.output == "Blue."
    assert steps.result.routing.selected_model == "good/one"
    assert steps.result.routing.cost_usd == (10 * 1.0 + 5 * 4.0) / 1e6
    assert host.trace(steps) == steps.result.trace


def test_an_iterator_of_chunks_may_raise_a_fault() -> None:
    def breaks() -> Iterator[Chunk]:
        yield Delta("half")
        raise ProviderFault("reset")

    steps = Host().ask(breaks(), iter(ANSWER), fallback=ONCE)
    assert steps.result.output == "Blue."
    assert [span.error for span in spans(steps.result.trace)] == ["reset", None]


def test_any_other_exception_of_the_iterator_is_a_provider_fault() -> None:
    def breaks() -> Iterator[Chunk]:
        yield Delta("half")
        raise ConnectionError("hi")

    steps = Host().ask(breaks(), fallback={"models": [], "maxRetries": 0})
    with pytest.raises(UpstreamFailed, match=r"server: ConnectionError in the provider") as raised:
        _ = steps.result
    assert "hi" not in str(raised.value)


@pytest.mark.parametrize("bad", [None, 5, TimeoutError("late"), "Hello", b"{}", {"choices": []}])
def test_an_invalid_outcome_is_refused_and_the_call_can_still_be_fed(bad: Any) -> None:
    with Host().router.steps("hi") as steps:
        steps.next()
        with pytest.raises(TypeError, match=f"chunks or a ProviderFault, got {type(bad).__name__}"):
            steps.feed(bad)
        steps.feed(ANSWER)
        assert steps.result.output == "Blue."


def test_steps_out_of_turn_are_refused() -> None:
    with Host().router.steps("hi") as steps:
        with pytest.raises(RuntimeError, match=r"call next\(\) first"):
            steps.feed(ANSWER)
        steps.next()
        with pytest.raises(RuntimeError, match=r"call 1 has not ended: feed"):
            steps.next()
        with pytest.raises(RuntimeError, match="has not ended"):
            _ = steps.result
        steps.feed(ANSWER)
        with pytest.raises(RuntimeError, match=r"once for each StepCall"):
            steps.feed(ANSWER)
        assert [steps.next(), steps.next()] == [StepDone(), StepDone()]


def test_a_generator_that_is_not_read_to_its_end_is_closed() -> None:
    left = []

    def endless() -> Iterator[Any]:
        try:
            yield "no chunk"
            raise AssertionError("read on")
        finally:
            left.append(True)
            raise ZeroDivisionError

    assert Host().ask(endless(), ANSWER, fallback=ONCE).result.output == "Blue."
    assert left == [True]


def test_an_exit_passes_and_the_call_is_cancelled() -> None:
    def stopped() -> Iterator[Chunk]:
        yield Delta("half")
        raise KeyboardInterrupt

    host = Host()
    with host.router.steps("hi") as steps:
        steps.next()
        with pytest.raises(KeyboardInterrupt):
            steps.feed(stopped())
    assert host.trace(steps).status == "cancelled"


# --- time


def test_a_hosts_own_shorter_time_limit_is_not_held_against_the_provider() -> None:
    host = Host()
    for _ in range(10):
        host.ask(ProviderFault("timeout"), ANSWER)
    assert stability(host) == 901


def stability(host: Host) -> float:
    fleet = host.router._parts.hosted("production")
    fleet.fold()
    return fleet.health.figures(fleet.pool.row[GOOD.id], host.clock.monotonic()).stability


def test_an_iterator_is_read_only_until_the_time_is_up() -> None:
    host = Host()

    def dripping() -> Iterator[Chunk]:
        while True:
            host.pass_time(1.0)
            yield Delta("drop ")

    with host.router.steps("hi", goal="quality") as steps:
        host.obey(steps, lambda call: dripping())
    with pytest.raises(RouterTimeoutError):
        _ = steps.result
    assert host.clock.monotonic() == 60.0


def test_idle_s_leaves_the_next_model_its_share() -> None:
    host = Host()
    said: list[float] = []

    def stalls() -> Iterator[Chunk]:
        host.pass_time(2.0)
        yield Delta("half")
        said.append(steps.idle_s)
        host.pass_time(said[-1])
        raise ProviderFault("timeout")

    def serves() -> Iterator[Chunk]:
        yield from ANSWER
        said.append(steps.idle_s)

    answers = iter([stalls(), serves()])
    with host.router.steps("hi", goal="quality", timeout_ms=10_000) as steps:
        assert host.obey(steps, lambda call: next(answers)) == ["good/one", "spare/two"]
    assert said == [pytest.approx(6.0), pytest.approx(0.5)], "three quarters of the 8 s that are left; then a good-bye"
    assert steps.result.output == "Blue."
    with pytest.raises(RuntimeError, match="no call is running"):
        _ = steps.idle_s


def test_a_complete_answer_is_accepted_however_late() -> None:
    host = Host()

    def late(call: StepCall) -> list[Chunk]:
        host.pass_time(61.0)
        return ANSWER

    with host.router.steps("hi") as steps:
        host.obey(steps, late)
    assert steps.result.output == "Blue."


# --- money


def test_a_hosts_timeout_counts_at_the_worst_case() -> None:
    worst = 6 * (2 * 1.0 + 6 * 4.0) / 1e6

    def after(fault: ProviderFault) -> int | None:
        coming = iter([fault, ANSWER])
        caps = []

        def http(call: StepCall) -> Any:
            caps.append(call.upstream.max_output_tokens)
            return next(coming)

        host = Host()
        with host.router.steps("hi", goal="quality", budget={"maxCostUsd": worst * 100}) as steps:
            host.obey(steps, http)
        return caps[1] if len(caps) > 1 else None

    free, cut_off = after(ProviderFault("timeout", status=408)), after(ProviderFault("timeout"))
    assert free is not None
    assert cut_off is None or cut_off < free


# --- leaving


def test_leaving_early_ends_the_call_as_cancelled_with_its_trace() -> None:
    host = Host()
    with host.router.steps("hi") as steps:
        steps.next()
    assert steps.next() == StepDone()
    with pytest.raises(RuntimeError, match="left before its end"):
        _ = steps.result
    assert host.trace(steps).status == "cancelled"
    steps.close()
    with pytest.raises(RuntimeError, match="no call is running"):
        steps.feed(ANSWER)


def test_steps_closed_while_they_are_fed_end_once() -> None:
    host, heard = Host(), []
    host.router.on_trace(lambda trace: heard.append(trace.status))
    with host.router.steps("hi") as steps:
        steps.next()

        def leaving() -> Iterator[Chunk]:
            yield Delta("half")
            steps.close()
            yield Finish("stop")

        steps.feed(leaving())
    host.router.blocking.flush()
    assert heard == ["cancelled"]


def probing() -> Host:
    """A host whose next call probes a model whose circuit was open."""
    host = Host()
    for _ in range(5):
        host.ask(ProviderFault("server"), ANSWER, fallback={"models": ["spare/two"]} | ONCE)
    host.pass_time(10.5)
    return host


def test_an_abandoned_probe_makes_room_for_another_at_once() -> None:
    host = probing()
    for _ in range(3):
        with host.router.steps("hi", goal="quality") as steps:
            call = steps.next()
            assert isinstance(call, StepCall)
            assert call.model == "good/one"


def test_a_probe_closed_while_it_is_fed_is_abandoned_once() -> None:
    host = probing()

    def answer(steps: Steps) -> Iterator[Chunk]:
        yield Delta("Bl")
        steps.close()
        yield Delta("ue.")

    steps = host.router.steps("hi", goal="quality")
    steps.next()
    steps.feed(answer(steps))
    assert steps.next() == StepDone()
    assert host.trace(steps).status == "cancelled"
    assert host.ask(ANSWER).result.routing.selected_model == "good/one"


def test_dropped_steps_keep_their_trace() -> None:
    host = Host()
    steps = host.router.steps("hi")
    steps.next()
    trace_id = steps._execution.call.id
    del steps
    assert host.router.blocking.trace(trace_id).status == "cancelled"


# --- what can be called


def test_without_providers_the_whole_catalogue_can_be_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    router = Router()
    with router.steps("hi") as steps:
        feed(steps)
    decision = steps.result.decision
    rejected = {str(rejection.reason) for rejection in decision.rejected}
    assert "provider_unavailable" not in rejected
    assert rejected <= {"disabled", "deprecated"}
    assert router.replay(decision).digest == decision.digest
    with pytest.raises(NoProviders):
        router.decide("hi")


def test_a_decision_of_steps_is_replayed_from_the_storage_alone() -> None:
    storage = MemoryStorage()
    first = Host(storage=storage)
    trace = first.ask(ANSWER).result.trace
    again = Router(catalogue=Catalogue(()), storage=storage, providers=[])
    assert again.replay(trace).digest == first.router.replay(trace).digest


def test_providers_that_were_passed_say_what_can_be_called() -> None:
    router = Router(providers=[HostedProvider("openai"), HostedProvider("mine", models=[GOOD])])
    with router.steps("hi") as steps:
        feed(steps)
    chosen = steps.result.decision
    assert {candidate.model.partition("/")[0] for candidate in chosen.candidates} == {"openai", "good"}
    assert chosen.digest == router.decide("hi").digest


def test_route_falls_back_from_a_model_that_only_the_host_can_call() -> None:
    spare = ScriptedProvider(["Blue."], models=[SPARE])
    router = Router(providers=[HostedProvider("good", models=[GOOD]), spare])
    assert router.blocking.route("hi", goal="quality").output == "Blue."
    with pytest.raises(UpstreamFailed, match=r"good is only for Router\.steps"):
        router.blocking.route("hi", goal="quality", models=["good/one"])


def test_a_refusal_comes_before_the_first_step_and_leaves_a_trace() -> None:
    host = Host()
    with pytest.raises(ValidationFailed):
        host.router.steps("hi", models=["good/on"])
    with pytest.raises(BudgetExceeded) as refused:
        host.router.steps("hi", budget={"maxCostUsd": 1e-9})
    assert refused.value.trace_id is not None
    assert host.router.blocking.trace(refused.value.trace_id).status == "budget_exceeded"
    with pytest.raises(NoCandidates):
        Router(catalogue=Catalogue([])).steps("hi")


class Counter:
    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def count(self, text: str, encoding: str) -> int:
        return self._tokens


def counting(tokens: int) -> Router:
    """Over a model that has its prompts counted, with a counter that always says the same."""
    tight = Model(id="a/one", pricing_per_1m=Pricing(1.0, 4.0), context_window=1_500, tokenizer="o200k_base")
    return Router(catalogue=Catalogue([tight]), settings=Settings(tokens=Counter(tokens)))


def test_tokens_are_counted_inline() -> None:
    with counting(3).steps("word " * 400) as steps:
        feed(steps)
    assert steps.result.decision.input.tokens.counted


# --- the same as route

KINDS = "connect reset rate_limited server auth request model_not_found refused context_overflow malformed truncated"
FAULTS = st.builds(
    ProviderFault,
    st.sampled_from(KINDS.split()),
    answered=st.booleans(),
    retry_after=st.none() | st.sampled_from([0.0, 1.0, 4.0, 30.0]),
)
PIECES = st.sampled_from(
    [
        *(Delta("word "), Delta(""), Usage(10, 5), Usage(12, 900, 4, 100), ToolDelta(0, "{}", "call_1", "look")),
        *(Pause(0.5), Pause(8.0), Pause(20.0), Pause(500.0)),
    ]
)
ENDS = st.sampled_from([Finish("stop"), Finish("length"), Finish("content_filter"), Delta("no end"), Delta(7)])  # type: ignore[arg-type]
TURNS = st.tuples(st.lists(PIECES, max_size=4), ENDS | FAULTS).map(lambda turn: [*turn[0], turn[1]])
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "timeout_ms": st.sampled_from([200, 5_000, 30_000]),
        "fallback": st.sampled_from([{"maxRetries": 0}, {"maxRetries": 3}, {"models": []}]),
        "budget": st.sampled_from([{"maxCostUsd": 0.01}, {"maxCostUsd": 0.00005}, {"maxTokens": 3_000}]),
        "policy_id": st.just("lenient"),
    },
)
LENIENT = Policy(name="lenient", fallback=PolicyFallback(on_refusal="fallback"))


@given(st.lists(TURNS, max_size=8), OPTIONS)
def test_route_and_steps_leave_the_same_trace(turns: list[list[Line]], options: Any) -> None:
    assert by_steps(turns, options) == by_route(turns, options)


def by_route(turns: list[list[Line]], options: Any) -> Any:
    script = played(turns)
    house = House(lambda call: next(script), lambda call: next(script), policies=[LENIENT])

    async def call() -> Any:
        try:
            return (await house.router.route("hi", goal="quality", **options)).trace
        except RouterError as error:
            return told(error, await house.router.trace(str(error.trace_id)))

    return steady(anyio.run(call), house.router)


def by_steps(turns: list[list[Line]], options: Any) -> Any:
    providers = [
        HostedProvider("good", models=[GOOD], fetches_urls="callers"),
        HostedProvider("spare", models=[SPARE], fetches_urls="callers"),
    ]
    host = Host(providers=providers, policies=[LENIENT])
    script = played(turns)

    def answer(call: StepCall) -> Iterator[Chunk]:
        if call.timeout_s <= SHORTEST_S:
            reject()  # no time at all: a provider that never waits may be quicker than that, or not
        return http(host, steps, call, next(script))

    try:
        with host.router.steps("hi", goal="quality", **options) as steps:
            host.obey(steps, answer)
        return steady(steps.result.trace, host.router)
    except RouterError as error:
        return steady(told(error, host.router.blocking.trace(str(error.trace_id))), host.router)


def http(host: Host, steps: Steps, call: StepCall, lines: list[Line]) -> Iterator[Chunk]:
    """Play a script as a client with time limits would: ``timeout_s`` to the first piece, ``idle_s`` to the others."""
    since = host.clock.monotonic()
    until, answering = since + call.timeout_s, False
    for line in lines:
        match line:
            case Pause(seconds):
                late = host.clock.monotonic() + seconds >= until
                host.clock._now = until if late else host.clock.monotonic() + seconds
                if late:
                    waited = lasting(until - since)
                    raise ProviderFault(
                        "timeout",
                        f"{waited} of silence in the middle of the answer"
                        if answering
                        else f"no answer within {waited}",
                    )
            case ProviderFault():
                raise line
            case _:
                since, answering = host.clock.monotonic(), True
                yield line  # type: ignore[misc]
                until = since + steps.idle_s


def played(turns: list[list[Line]]) -> Iterator[list[Line]]:
    return itertools.chain(turns, itertools.repeat([ProviderFault("server")]))


def told(error: RouterError, trace: Trace) -> Any:
    return error.code, error.message, error.detail, trace


def steady(said: Any, router: Router) -> Any:
    """What does not differ between two Routers by nature: ids and the time that deciding took."""
    fleet = router._parts.fleet("production")
    fleet.fold()
    now = router._parts.settings.clock.monotonic()
    health = [fleet.health.figures(row, now) for row in range(len(fleet.pool))]
    return [_without_ids(msgspec.to_builtins(said)), health]


def _without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_ids(inner) for key, inner in value.items() if key not in ("id", "catalogue", "digest")}
    return [_without_ids(inner) for inner in value] if isinstance(value, list) else value
