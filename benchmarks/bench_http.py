"""What does a request over HTTP cost: plain and streamed, at 1 and 50 connections, with keys, limits and a store?

The server is uvicorn with httptools and uvloop, one process on a core of its own; wrk and the upstream share the other.
Ours and the floor are loaded by turns. Without wrk each server is asked a few times, and there are no figures.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import pytest

from . import data
from .conftest import peer_file
from .load import Ask, Load, Served, connected, cores, middle, on, served, tells_processor_time, visit, wrk
from .measure import Effort, Figure
from .peers.gateways import MODEL
from .report import Question, Report, Who
from .serve import IN_PROCESS
from .site import Terms
from .upstream import Upstream, upstream

Models = Literal["in-process", "upstream"]
Kind = Literal["plain", "stream", "from the cache"]
MANY = 50
CONNECTIONS = (1, MANY)
ROUNDS = 3
ROUND_S = 2
"""Of ours and the peers; the floor is loaded for half of it."""

WORDS: dict[Terms, str] = {
    "bare": "nothing on",
    "limits": "keys and limits in memory",
    "everything": "everything on but the idempotency key, in SQLite",
}
BEHIND: dict[Models, str] = {"in-process": "a provider in process", "upstream": "an HTTP upstream"}
TARGETS: dict[tuple[Models, Terms], str] = {
    ("in-process", "bare"): "9,000",
    ("in-process", "limits"): "6,500",
    ("in-process", "everything"): "4,500",
    ("upstream", "bare"): "0.5 × the floor: 4,000",
    ("upstream", "everything"): "2,800",
}
"""Of plain requests, ``MANY`` at a time, per core-second."""
LOADS: list[tuple[Models, Terms, Kind, int]] = [
    *((models, terms, "plain", MANY) for models in BEHIND for terms in WORDS),
    *(("upstream", terms, "plain", 1) for terms in WORDS),
    ("in-process", "bare", "stream", MANY),
    ("upstream", "bare", "stream", MANY),
    ("in-process", "limits", "from the cache", MANY),
]
"""What is loaded, a brief run aside."""
BRIEFLY: tuple[Models, Terms, Kind, int] = ("in-process", "limits", "plain", MANY)
"""What is loaded in a brief run, for a second."""
ONE = Question("POST /v1/route, an HTTP upstream, nothing on, 1 at a time", "450")
STARTED = Question("memory of a server with one worker: started", "52")
LOADED = Question("memory of a server with one worker: after load, 10,000 traces kept in memory", "70")


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
            load = middle(each)
            self.report.add_load(question, who, load)
            if question.what == ONE.what:
                self.report.add(ONE, who, Figure("µs", load.p50_us, load.p99_us))


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
        self.started_mb: dict[int, float] = {}
        """By process group."""

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
            server = self._stack.enter_context(served(command, core=cores().own))
            self._running[program] = server
            self.started_mb[server.group] = started_mb(server)
        return self._running[program]


def started_mb(server: Served) -> float:
    """The memory of a server that has answered nothing yet."""
    with closing(connected(server.port)):
        return server.mb


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
    "POST /anthropic/v1/messages, plain": asked("/anthropic/v1/messages", "Hello there", model="auto", max_tokens=400),
    "GET /v1/models, 50 of them": Ask("GET", "/v1/models", [b""], "context_window"),
}


def question(models: Models, terms: Terms, kind: Kind, connections: int) -> Question:
    target = TARGETS.get((models, terms), "") if (kind, connections) == ("plain", MANY) else ""
    way = "POST /v1/route" if kind == "plain" else f"POST /v1/route, {kind}"
    return Question(f"{way}, {BEHIND[models]}, {WORDS[terms]}, {connections} at a time", target)


@pytest.mark.parametrize(("models", "terms", "kind", "connections"), LOADS)
def test_route(bench: Bench, sites: Sites, models: Models, terms: Terms, kind: Kind, connections: int) -> None:
    servers: dict[Who, Served] = {"floor": sites.floor(models), "routewright": sites.at(models, terms)}
    bench.warm(ASKS[kind], servers)
    if not bench.brief or (models, terms, kind, connections) == BRIEFLY:
        bench.load(question(models, terms, kind, connections), ASKS[kind], servers, connections)


def test_memory(report: Report, sites: Sites) -> None:
    """Resident memory, of a server in front of an upstream, once it was started and once it was loaded."""
    if not tells_processor_time():
        pytest.skip("this needs Linux")
    servers: dict[Who, Served] = {"floor": sites.floor("upstream"), "routewright": sites.at("upstream", "bare")}
    for who, server in servers.items():
        report.add(STARTED, who, Figure("MB", sites.started_mb[server.group]))
        report.add(LOADED, who, Figure("MB", server.mb))


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
        report.add(STARTED, peer.who, Figure("MB", started_mb(server)))
        bench.warm(ask, {peer.who: server})
        for connections in CONNECTIONS:
            bench.load(question("upstream", "bare", "plain", connections), ask, {peer.who: server}, connections)
        report.add(LOADED, peer.who, Figure("MB", server.mb))
