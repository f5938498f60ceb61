"""The same faults over real TCP with limits of 0.2 s: one of each class, or all with --full."""

from __future__ import annotations

import socket
from random import Random

import anyio.to_thread
import pytest

from routewright import Catalogue, ExecutionLimits, Model, OpenAIProvider, Pricing, Router, RouterError, Settings, Trace
from routewright.backends.transport import AutoTransport, TransportLimits
from routewright.errors import ProviderFault
from routewright.protocols import Provider
from routewright.testing import SCENARIOS, FaultyServer, ScriptedProvider
from routewright.wire import FaultKind, ModelSpan, RouteEvent, RouteFallback
from tests.backends.test_fault_scenarios import no_address

from .chaos_matrix import ANSWER, GOOD, HEAVY, NAMES, SPARE, Case, Position, Way

pytestmark = pytest.mark.anyio
SHORT = ExecutionLimits(first_token_s=0.2, idle_s=0.2)
"""Where it is they that end an attempt."""
LONG = ExecutionLimits(first_token_s=4.0, idle_s=4.0, backoff_s=0.01)
"""Where they must not, on a machine that is busy."""
CONNECT_S = 0.1
TIMEOUT_MS = 1_000
LONG_MS = 10_000
LATE_S = 0.5
"""Of a busy machine."""
SAMPLE = {
    "connect_refused", "unauthorized", "moderation", "context_overflow", "unavailable", "rate_limited_zero",
    "not_found", "reset_mid_body", "silent", "stall_mid_answer", "truncated", "no_finish_reason", "malformed_chunk",
    "bad_request", "byte_dribble",
}  # fmt: skip
QUICK = [
    Model(id=id, quality=quality, pricing_per_1m=Pricing(1.0, 4.0), context_window=window, ttft_s=0.01,
        tokens_per_s=100_000.0)
    for id, quality, window in ((GOOD, 0.9, 100_000), (SPARE, 0.5, 200_000))
]  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        full = metafunc.config.getoption("--full")
        metafunc.parametrize("name", sorted(set(NAMES) - HEAVY if full else SAMPLE))
        metafunc.parametrize("position", ["first", "second"] if full else ["first"])


@pytest.mark.parametrize("way", ["plain", "events"])
async def test_over_tcp_a_fault_ends_as_its_row_of_the_table_says(
    name: str, way: Way, position: Position, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "dns_failure":
        monkeypatch.setattr(socket, "getaddrinfo", no_address)
    case = Case(name, way, position)
    if name == "handshake_stall":
        case = Case("connect_refused", way, position)  # here the time to connect is over first
    transport = AutoTransport(TransportLimits(connect_timeout_s=CONNECT_S if name == "handshake_stall" else 5.0))
    with FaultyServer(name) as server:
        wire = OpenAIProvider(
            "key", name="wire", base_url=server.url, models=[model_at(case.place)], transport=transport
        )
        other = ScriptedProvider(lambda _: ANSWER if position == "first" else ProviderFault("request"),
            models=[model_at(SPARE if case.place == GOOD else GOOD)])  # fmt: skip
        trace, error, events = await meet([wire, other], way, stalls=case.stalls)
        check(case, trace, error, events)
        if case.stalls:
            assert await anyio.to_thread.run_sync(server.wait_connected, 0), "what was given up is closed at once"
        await transport.aclose()
        assert await anyio.to_thread.run_sync(server.wait_connected, 0)
    assert other.open_calls == 0


def model_at(place: str) -> Model:
    return QUICK[0] if place == GOOD else QUICK[1]


async def meet(
    providers: list[Provider], way: Way, *, stalls: bool
) -> tuple[Trace, RouterError | None, list[RouteEvent]]:
    settings = Settings(rng=Random(7), execution=SHORT if stalls else LONG)
    timeout_ms = TIMEOUT_MS if stalls else LONG_MS
    router = Router(providers=providers, catalogue=Catalogue(()), settings=settings)
    traces: list[Trace] = []
    router.on_trace(traces.append)
    events: list[RouteEvent] = []
    error: RouterError | None = None
    try:
        if way == "plain":
            await router.route("hi", goal="quality", timeout_ms=timeout_ms)
        else:
            async with router.stream("hi", goal="quality", timeout_ms=timeout_ms) as stream:
                events += [event async for event in stream]
            _ = stream.result
    except RouterError as failed:
        error = failed
    await router.flush()
    await router.aclose()
    (trace,) = traces
    return trace, error, events


def check(case: Case, trace: Trace, error: RouterError | None, events: list[RouteEvent]) -> None:
    spans = [span for span in trace.spans if isinstance(span, ModelSpan)]
    assert [(span.model, span.error) for span in spans] == [(each.model, each.kind) for each in case.tries]
    assert (None if error is None else type(error)) is case.error
    assert trace.duration_ms <= (TIMEOUT_MS if case.stalls else LONG_MS) + LATE_S * 1000
    if case.kind is FaultKind.RESET or case.stalls or not events:
        return  # what had come before may be lost with the connection, or come too late
    moves = [event.data for event in events if isinstance(event, RouteFallback)]
    assert [(each.to_model, each.restart) for each in moves] == [(each.to_model, each.restart) for each in case.moves]


def test_the_sample_has_every_class() -> None:
    kinds = {SCENARIOS[name].play(stream).kind for name in SAMPLE for stream in (False, True)}
    assert kinds == {None, *FaultKind} - {FaultKind.LOCAL, FaultKind.INVALID_OUTPUT, FaultKind.BLOCKED}
