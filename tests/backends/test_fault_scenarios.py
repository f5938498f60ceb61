"""Every fault, plain and streamed, in memory and over TCP, is classified as its row says."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from routewright.backends.clock import SystemClock
from routewright.backends.providers import http
from routewright.backends.providers.openai import OpenAIProvider
from routewright.backends.transport import AutoTransport, TransportLimits
from routewright.errors import ProviderFault, ValidationFailed
from routewright.protocols import Clock, Provider
from routewright.testing import SCENARIOS, FakeClock, FaultyProvider, FaultyServer, FaultyTransport, Scenario
from routewright.testing.faulty import Connection
from routewright.testing.faulty.scenarios import good
from routewright.wire import Chunk, Delta, FaultKind, Finish, Model, ToolDelta, Usage
from tests.tables import table

from .provider_calls import call

pytestmark = pytest.mark.anyio
MODEL = Model(id="test/one", quality=0.5)
HEAVY = {"endless", "gzip_bomb", "long_line", "many_events"}
"""Slow scenarios, run in separate processes."""
LIGHT = sorted(set(SCENARIOS) - HEAVY)
BROKEN = ("connect", "timeout", "reset", "truncated")
"""Kinds that depend on the connection. All others depend only on the answer."""
MEMORY_MIB = 64
VIRTUAL_S = 30.0
"""Longer than any limit, shorter than any stall."""
REAL_S = 0.2
"""How long to wait for a stall."""
PATIENT_S = 10.0
"""How long to wait for anything else."""
both = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
light = pytest.mark.parametrize("name", LIGHT)


class Outcome(NamedTuple):
    kind: FaultKind | None
    finish: str | None
    retry_after: float | None
    chunks: Sequence[Chunk]
    cut: bool
    """True if the time ran out."""


async def outcome_of(provider: Provider, stream: bool, clock: Clock, seconds: float) -> Outcome:
    """The outcome of a call; ``timeout`` if it does not end in time."""
    chunks: list[Chunk] = []
    kind, retry_after = None, None
    limit = clock.deadline(clock.monotonic() + seconds)
    with limit:
        try:
            async with provider.open(call(model=MODEL, stream=stream)) as given:
                async for chunk in given:
                    if chunk != Delta(""):
                        chunks.append(chunk)
                    if isinstance(chunk, Finish):
                        limit.move(clock.monotonic() + min(seconds, REAL_S))
        except ProviderFault as fault:
            kind, retry_after = FaultKind(fault.kind), fault.retry_after
    ends = [chunk.reason for chunk in chunks if isinstance(chunk, Finish)]
    if limit.expired and not ends:
        kind = FaultKind.TIMEOUT
    return Outcome(kind, ends[0] if ends else None, retry_after, chunks, limit.expired)


def check(cell: Scenario, stream: bool, outcome: Outcome) -> None:
    play = cell.play(stream)
    assert outcome.kind == play.kind
    assert outcome.finish == (play.finish if play.kind is None else None)
    assert outcome.retry_after == cell.retry_after
    if outcome.kind is None:
        assert any(isinstance(chunk, Delta | ToolDelta) for chunk in outcome.chunks)


@both
@light
async def test_in_memory_a_fault_is_classified_as_its_row_says(name: str, stream: bool) -> None:
    clock = FakeClock()
    provider = FaultyProvider([name], models=[MODEL], clock=clock)
    check(SCENARIOS[name], stream, await outcome_of(provider, stream, clock, VIRTUAL_S))
    assert provider.open_calls == 0
    assert len(provider.requests) == 1
    after = await outcome_of(provider, stream, clock, VIRTUAL_S)
    assert after.finish == "stop", "the next call is served"


@pytest.mark.parametrize(
    ("name", "stream"),
    [(name, stream) for name in LIGHT for stream in (False, True) if SCENARIOS[name].play(stream).kind in BROKEN],
)
async def test_over_tcp_a_broken_connection_is_classified_as_its_row_says(
    name: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "dns_failure":
        monkeypatch.setattr(socket, "getaddrinfo", no_address)
    kind = SCENARIOS[name].play(stream).kind
    connects_s = REAL_S / 2 if kind == "connect" else PATIENT_S  # a busy machine may take long to connect
    clock, transport = SystemClock(), AutoTransport(TransportLimits(connect_timeout_s=connects_s))
    with FaultyServer([name]) as server:
        provider = OpenAIProvider("key", name="test", base_url=server.url, models=[MODEL], transport=transport)
        stalls = kind == "timeout" and name != "request_timeout"
        outcome = await outcome_of(provider, stream, clock, REAL_S if stalls else PATIENT_S)
        check(SCENARIOS[name], stream, outcome)
        if outcome.cut:
            assert await anyio.to_thread.run_sync(server.wait_connected, 0)
        if server.connection is None:
            after = await outcome_of(provider, stream, clock, PATIENT_S)
            assert after.finish == "stop", "the next call is served"
        await transport.aclose()
        assert await anyio.to_thread.run_sync(server.wait_connected, 0)


@both
async def test_over_tcp_each_answer_is_classified_as_its_row_says(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "ERROR_BODY_S", REAL_S)
    names, transport = [name for name in LIGHT if SCENARIOS[name].play(stream).kind not in BROKEN], AutoTransport()
    with FaultyServer(names) as server:
        provider = OpenAIProvider("key", name="test", base_url=server.url, models=[MODEL], transport=transport)
        for name in names:
            check(SCENARIOS[name], stream, await outcome_of(provider, stream, SystemClock(), PATIENT_S))
        assert (await outcome_of(provider, stream, SystemClock(), PATIENT_S)).finish == "stop"
        await transport.aclose()
        assert await anyio.to_thread.run_sync(server.wait_connected, 0)


def no_address(*args: Any, **more: Any) -> Any:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


CHILD = """
import resource, sys, time
import anyio
from routewright.backends.clock import SystemClock
from routewright.backends.providers.openai import OpenAIProvider
from routewright.testing import SCENARIOS, FaultyProvider
from tests.backends.test_fault_scenarios import MODEL, check, outcome_of

def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

async def play(plain, streamed, url):
    clock = SystemClock()
    own = FaultyProvider([None, *plain, *streamed], models=[MODEL])
    provider = OpenAIProvider("key", name="test", base_url=url, models=[MODEL]) if url else own
    await outcome_of(provider, True, clock, 10)
    before = peak_mib()
    for stream, names in enumerate((plain, streamed)):
        for name in names:
            check(SCENARIOS[name], stream, await outcome_of(provider, stream, clock, 30))
            print(name, stream, peak_mib() - before)
    await provider.aclose()

anyio.run(play, sys.argv[3].split(), sys.argv[4].split(), sys.argv[2], backend=sys.argv[1])
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("where", ["memory", "tcp"])
def test_endless_answers_fill_no_memory(backend: str, where: str, full: bool) -> None:
    if (where == "memory" or backend == "trio") and not full:
        pytest.skip("asyncio over TCP is enough for a commit; run with --full")
    names = sorted(HEAVY)
    plain, streamed = (names, names) if full else (names[::2], names[1::2])
    with FaultyServer([None, *plain, *streamed]) as server:
        url = server.url if where == "tcp" else ""
        grown = grown_mib(backend, url, " ".join(plain), " ".join(streamed))
        assert server.wait_connected(0)
    assert len(grown) == len(plain) + len(streamed)
    assert max(grown) <= MEMORY_MIB


def grown_mib(*arguments: str) -> list[float]:
    """Growth of the peak memory of another process after each fault."""
    command = [sys.executable, "-c", CHILD, *arguments]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    return [float(line.split()[-1]) for line in done.stdout.splitlines()]


# --- scenarios


def test_every_kind_that_a_vendor_can_cause_has_a_scenario() -> None:
    kinds = {play.kind for cell in SCENARIOS.values() for play in (cell.plain, cell.streamed)}
    assert kinds == {None, *FaultKind} - {FaultKind.LOCAL, FaultKind.INVALID_OUTPUT, FaultKind.BLOCKED}


def test_good_answers_match_the_official_types() -> None:
    cell = good("All is well.")
    plain, streamed = [
        b"".join(step for step in play.steps if isinstance(step, bytes)) for play in (cell.plain, cell.streamed)
    ]
    ChatCompletion.model_validate_json(plain, strict=True)
    events = streamed.decode().removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]
    for event in events:
        ChatCompletionChunk.model_validate_json(event.removeprefix("data: "), strict=True)
    assert len(events) > 3


# --- doubles


async def test_a_single_fault_repeats_and_a_list_ends_in_good_answers() -> None:
    async def ends(provider: FaultyProvider) -> list[str | None]:
        return [(await outcome_of(provider, False, FakeClock(), 1)).kind for _ in range(3)]

    assert await ends(FaultyProvider("unavailable")) == ["server"] * 3
    assert await ends(FaultyProvider([None, SCENARIOS["unavailable"]])) == [None, "server", None]
    assert await ends(FaultyProvider(itertools.cycle(["unavailable", None]))) == ["server", None, "server"]
    assert await ends(FaultyProvider()) == [None] * 3


@both
async def test_a_good_answer_has_the_given_text_and_calls_are_recorded(stream: bool) -> None:
    provider = FaultyProvider(models=[MODEL], answer="One two.\nThree.")
    answered = await outcome_of(provider, stream, FakeClock(), 1)
    assert "".join(chunk.text for chunk in answered.chunks if isinstance(chunk, Delta)) == "One two.\nThree."
    assert Usage(9, 3) in answered.chunks
    assert provider.calls == [call(model=MODEL, stream=stream)]
    (request,) = provider.requests
    assert json.loads(request.body)["messages"] == [{"role": "user", "content": "hi"}]
    assert provider.name == "test"


@pytest.mark.parametrize(
    ("name", "seconds"), [("connect_refused", 0.0), ("handshake_stall", 10.0), ("silent", VIRTUAL_S)]
)
async def test_in_memory_a_stall_lasts_until_its_limit(name: str, seconds: float) -> None:
    clock = FakeClock()
    await outcome_of(FaultyProvider(name, clock=clock), False, clock, VIRTUAL_S)
    assert clock.monotonic() == seconds


async def test_a_transport_in_memory_counts_open_calls() -> None:
    transport = FaultyTransport("stall_mid_answer")
    async with transport.request("POST", "http://x/", headers={"a": "secret"}) as response:
        assert response.status == 200
        assert transport.open_calls == 1
    assert transport.open_calls == 0
    assert "secret" not in repr(transport.requests)


def test_pauses_over_tcp_are_scaled() -> None:
    with FaultyServer("slow_first_token", time_scale=0.0) as server:
        provider = OpenAIProvider("key", name="test", base_url=server.url, models=[MODEL])

        async def ask() -> Outcome:
            try:
                return await outcome_of(provider, True, SystemClock(), 10)
            finally:
                await provider.aclose()

        assert anyio.run(ask).finish == "stop"
        assert [request.method for request in server.requests] == ["POST"]


@table(
    ("faults", "said"),
    [
        ("rate_limit", "faults: unknown fault 'rate_limit'; did you mean 'rate_limited'?"),
        ([None, "teapot!"], "faults[1]: unknown fault 'teapot!'; see routewright.testing.SCENARIOS"),
        ([5], "faults[0]: unknown fault 5; see"),
        (5, "faults: 5 is neither a fault nor a list of them; name one of routewright.testing.SCENARIOS"),
    ],
)
def test_an_unknown_fault_is_refused(faults: Any, said: str) -> None:
    for kind in (FaultyProvider, FaultyServer, FaultyTransport):
        with pytest.raises(ValidationFailed) as caught:
            kind(faults)
        assert str(caught.value).startswith(said)


def test_a_server_may_be_exited_at_once() -> None:
    for name in (None, "bad_certificate", "connect_refused"):
        for _ in range(5):
            with FaultyServer([name]):
                pass


def test_a_connection_fault_cannot_be_combined_with_others() -> None:
    alone = [name for name, cell in SCENARIOS.items() if isinstance(cell.plain.steps[0], Connection)]
    assert len(alone) == len(Connection)
    for name in alone:
        with pytest.raises(ValidationFailed, match="faults: a fault of the connection applies to all requests; start"):
            FaultyServer([name, None])
