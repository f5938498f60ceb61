"""What does a request over HTTP cost: plain and streamed, at 1 to 200 connections, with keys, limits and a store?

The server is uvicorn with httptools and uvloop, one process on a core of its own; wrk and the upstream share the other.
Ours and the floor are loaded by turns. Without wrk each server is asked a few times, and there are no figures.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import pytest

from . import data
from .conftest import peer_file
from .load import Ask, Load, Served, cores, middle, on, served, tells_processor_time, visit, wrk
from .measure import Effort, Figure
from .peers.gateways import MODEL
from .report import Question, Report, Who
from .serve import IN_PROCESS
from .site import Terms
from .upstream import Upstream, upstream

Models = Literal["in-process", "upstream"]
Kind = Literal["plain", "stream", "from the cache"]
KINDS: tuple[Kind, ...] = ("plain", "stream", "from the cache")
CONNECTIONS = (1, 10, 50, 200)
MANY = 50
ROUNDS = 3
ROUND_S = 2
"""Of ours and the peers; the floor is loaded for half of it."""

WORDS: dict[Terms, str] = {
    "bare": "nothing on",
    "limits": "keys and limits, in memory",
    "everything": "keys, limits, a month's limit, in SQLite, the ledger committed",
}
BEHIND: dict[Models, str] = {"in-process": "provider in process", "upstream": "an HTTP upstream"}
TARGETS: dict[tuple[Models, Terms], str] = {
    ("in-process", "limits"): "12,000 per core-second",
    ("upstream", "everything"): "4,500 per core-second",
    ("upstream", "bare"): "8,000 per core-second",
}
"""Of plain requests."""
MOST_MB = "45"
SITES: list[tuple[Models, Terms]] = [(models, terms) for models in BEHIND for terms in WORDS]
BRIEFLY: tuple[Models, Terms] = ("in-process", "limits")
"""The one that is loaded in a brief run, for a second."""


class Peer(NamedTuple):
    """A gateway that others make."""

    who: Who
    file: str
    """Of its environment: what it needs."""
    runs: bool
    """Its file is the interpreter that runs our program; else ours does."""


PEERS = {
    "litellm": Peer("litellm's proxy", "bin/python", runs=True),
    "portkey": Peer("Portkey", "node_modules/@portkey-ai/gateway/build/start-server.js", runs=False),
    "switchyard": Peer("Switchyard", "bin/python", runs=True),
}


class Bench(NamedTuple):
    """Loads servers, and keeps the figures."""

    report: Report
    brief: bool

    def warm(self, ask: Ask, servers: dict[Who, Served]) -> None:
        """See that each answers as it should, and have it compile and cache what it can. Skips where that is all."""
        for server in servers.values():
            visit(server, ask)
        if not shutil.which("wrk") or not tells_processor_time():
            pytest.skip("this needs wrk and Linux: each server answered, and there are no figures")
        if not self.brief:
            for server in servers.values():
                wrk(server, ask, MANY, 1, core=cores().other)

    def load(self, question: Question, ask: Ask, servers: dict[Who, Served], connections: int) -> None:
        """Load servers by turns."""
        loads: dict[Who, list[Load]] = {who: [] for who in servers}
        for _ in range(1 if self.brief else ROUNDS):
            for who, server in servers.items():
                seconds = 1 if self.brief or who == "floor" else ROUND_S
                loads[who].append(wrk(server, ask, connections, seconds, core=cores().other))
        for who, each in loads.items():
            self.report.add_load(question, who, middle(each))


@pytest.fixture(scope="module")
def bench(report: Report, effort: Effort) -> Bench:
    return Bench(report, brief=effort.runs == 1)


@pytest.fixture(scope="module")
def near() -> Iterator[Upstream]:
    """An upstream beside wrk, so that the server has its core to itself."""
    with upstream(on(cores().other)) as running:
        yield running


class Sites:
    """Our servers, each started when it is first wanted."""

    def __init__(self, stack: ExitStack, folder: Path, upstream_url: str) -> None:
        self._stack = stack
        self._folder = folder
        self._urls: dict[Models, str] = {"in-process": IN_PROCESS, "upstream": upstream_url}
        self._running: dict[tuple[str, ...], Served] = {}

    def at(self, models: Models, terms: Terms) -> Served:
        """The one that serves so."""
        folder = self._folder / f"{models} {terms}"
        folder.mkdir(exist_ok=True)
        return self._run("site", terms, self._urls[models], str(folder))

    def floor(self, models: Models) -> Served:
        """The least that answers the same."""
        return self._run("least_app", self._urls[models])

    def _run(self, *program: str) -> Served:
        if program not in self._running:
            command = [sys.executable, "-m", f"benchmarks.{program[0]}", *program[1:]]
            self._running[program] = self._stack.enter_context(served(command, core=cores().own))
        return self._running[program]


@pytest.fixture(scope="module")
def sites(near: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    with ExitStack() as stack:
        yield Sites(stack, tmp_path_factory.mktemp("sites"), near.url("short"))


def asked(path: str, said: str, **more: Any) -> Ask:
    """The seeded conversations, sent to an address."""
    bodies = [msgspec.json.encode({**more, "messages": messages}) for messages in data.conversations()]
    return Ask("POST", path, bodies, said)


PLAIN = asked("/v1/route", "Hello there")
STREAM = asked("/v1/route", "event: route.completed", stream=True)
CACHED = asked("/v1/route", "Hello there", cache={"mode": "exact"})
ASKS: dict[Kind, Ask] = {"plain": PLAIN, "stream": STREAM, "from the cache": CACHED}
DOORS = {
    "POST /openai/v1/chat/completions, plain": asked("/openai/v1/chat/completions", "Hello there", model="auto"),
    "POST /openai/v1/chat/completions, stream": asked(
        "/openai/v1/chat/completions", '"finish_reason":"stop"', model="auto", stream=True
    ),
    "POST /anthropic/v1/messages, plain": asked("/anthropic/v1/messages", "Hello there", model="auto", max_tokens=400),
    "POST /anthropic/v1/messages, stream": asked(
        "/anthropic/v1/messages", "event: message_stop", model="auto", max_tokens=400, stream=True
    ),
    "GET /v1/models, 50 of them": Ask("GET", "/v1/models", [b""], "context_window"),
}


def question(models: Models, terms: Terms, kind: Kind, connections: int) -> Question:
    target = TARGETS.get((models, terms), "") if kind == "plain" else ""
    if target and (models, connections) == ("upstream", 1):
        target += "; 350 µs"
    return Question(f"POST /v1/route, {kind}, {BEHIND[models]}, {WORDS[terms]}, {connections} at a time", target)


@pytest.mark.parametrize(("models", "terms"), SITES)
class TestRoute:
    @pytest.mark.parametrize("kind", KINDS)
    def test_at_a_time(self, bench: Bench, sites: Sites, models: Models, terms: Terms, kind: Kind) -> None:
        servers: dict[Who, Served] = {"floor": sites.floor(models), "routewright": sites.at(models, terms)}
        bench.warm(ASKS[kind], servers)
        if bench.brief and (models, terms) != BRIEFLY:
            return
        for connections in CONNECTIONS[1:2] if bench.brief else CONNECTIONS:
            bench.load(question(models, terms, kind, connections), ASKS[kind], servers, connections)

    def test_memory(self, report: Report, sites: Sites, models: Models, terms: Terms) -> None:
        """Resident, once it was loaded."""
        if not tells_processor_time():
            pytest.skip("this needs Linux")
        row = Question(f"memory of the server after load: {BEHIND[models]}, {WORDS[terms]}", MOST_MB)
        report.add(row, "floor", Figure("MB", sites.floor(models).mb))
        report.add(row, "routewright", Figure("MB", sites.at(models, terms).mb))


@pytest.mark.parametrize("door", DOORS)
def test_other_addresses(bench: Bench, sites: Sites, door: str) -> None:
    """With keys and limits, and nothing beside it: what it compares with is ``/v1/route``."""
    ours = sites.at("in-process", "limits")
    bench.warm(DOORS[door], {"routewright": ours})
    if bench.brief:
        return
    row = Question(f"{door}, {BEHIND['in-process']}, {WORDS['limits']}, {MANY} at a time")
    bench.load(row, DOORS[door], {"routewright": ours}, MANY)


@pytest.mark.parametrize("name", PEERS)
def test_peers(
    request: pytest.FixtureRequest, bench: Bench, report: Report, near: Upstream, tmp_path: Path, name: str
) -> None:
    """The same upstream behind it; it knows one model, and stores nothing."""
    peer = PEERS[name]
    file = peer_file(request.config, name, peer.file)
    python = str(file) if peer.runs else sys.executable
    arguments = [name, near.url("short"), str(tmp_path), str(file)]
    ask = asked("/v1/chat/completions", "Hello there", model=MODEL)
    with served([python, "-m", "benchmarks.peers.gateways", *arguments], core=cores().own) as server:
        bench.warm(ask, {peer.who: server})
        for connections in CONNECTIONS[:-1]:  # the slowest answers none of 200 in the time
            bench.load(question("upstream", "bare", "plain", connections), ask, {peer.who: server}, connections)
        memory = Question("memory of the server after load: a gateway of others, nothing on", MOST_MB)
        report.add(memory, peer.who, Figure("MB", server.mb))
