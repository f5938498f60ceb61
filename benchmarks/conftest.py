"""What all benchmarks share: effort, an event loop, peers in processes of their own, and the table at the end."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple, Protocol, TypeVar

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from routewright import SqliteStorage

from . import data
from .measure import (
    BRIEF,
    FULL,
    Effort,
    Figure,
    in_flight,
    reading,
    sample,
    sample_after,
    sample_async,
    sample_cpu,
    sample_first,
    sample_paced,
)
from .report import Question, Report, Who, conditions, write_page
from .stores import fill
from .upstream import Upstream, upstream

T = TypeVar("T")
ROOT = Path(__file__).parent.parent
REPORT = pytest.StashKey[Report]()
STREAMS = 10
"""In a round, at least."""
ORDER = (
    "decide tokens route fallback stream transport agent frameworks limits accounts http postgres "
    "trace_write trace_query analytics simulate cache webhook import"
).split()
"""Files in the order of the table in ``docs/explanation/performance.md``; the others come last."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("benchmarks of routewright")
    group.addoption("--brief", action="store_true", help="a few calls of everything, so that nothing rots")
    group.addoption("--peers", action="store_true", help="measure other libraries too, from environments in PEER_VENVS")
    group.addoption("--write", action="store_true", help="put the figures into docs/explanation/performance.md")
    group.addoption("--uvloop", action="store_true", help="run on uvloop")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Measure one thing at a time, whatever the tests do."""
    config.option.numprocesses = 0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("python_files", "bench_*.py")
    config.stash[REPORT] = Report()
    if config.getoption("--brief"):
        config.option.benchmark_disable = True
    if config.getoption("--uvloop"):
        _uvloop()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort files as the table has them, before pytest puts together what shares a store of traces."""
    places = {f"bench_{name}": place for place, name in enumerate(ORDER)}
    items.sort(key=lambda item: places.get(item.path.stem, len(ORDER)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines, loads = config.stash[REPORT].lines(), config.stash[REPORT].load_lines()
    if not lines and not loads:
        return
    terminalreporter.section("figures")
    folder = os.environ.get("PEER_VENVS") if config.getoption("--peers") else None
    circumstances = conditions(
        use_uvloop=config.getoption("--uvloop"),
        brief=config.getoption("--brief"),
        peers=None if folder is None else Path(folder),
    )
    if config.getoption("--write"):
        write_page(ROOT / "docs/explanation/performance.md", circumstances, config.stash[REPORT].page_lines())
    for line in [*circumstances, "", *lines, *[""][: len(lines)], *loads]:
        terminalreporter.write_line(line)
    terminalreporter.write_line("")
    terminalreporter.write_line("µs: p50 / p99 of single calls (mean of a loop), each the median over the rounds")


@pytest.fixture(scope="session")
def effort(request: pytest.FixtureRequest) -> Effort:
    return BRIEF if request.config.getoption("--brief") else FULL


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Report:
    return request.config.stash[REPORT]


class Filled(NamedTuple):
    """A store full of traces."""

    named: str
    """How many traces a full run has."""
    traces: int
    path: Path
    storage: SqliteStorage

    @property
    def is_large(self) -> bool:
        return self.named == "1,000,000"


@pytest.fixture(scope="session", params=["20,000", "1,000,000"])
def filled(
    request: pytest.FixtureRequest, effort: Effort, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Filled]:
    """Stores of two sizes, since nothing may grow with them; briefly two small ones."""
    count = int(request.param.replace(",", ""))
    count = count if effort.runs > 1 else count // 1_000
    folder = tmp_path_factory.mktemp("stores")
    yield Filled(request.param, count, folder / "traces.db", fill(folder / "traces.db", count))
    rmtree(folder)


@pytest.fixture
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    factory = _uvloop() if request.config.getoption("--uvloop") else None
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner


class Timed(Protocol):
    """Measure a plain function on what ``source`` gives, and report it."""

    def __call__(self, question: Question, who: Who, call: Callable[[T], object], source: Iterator[T]) -> None: ...


@pytest.fixture
def timed(benchmark: BenchmarkFixture, effort: Effort, report: Report) -> Timed:
    def measure(question: Question, who: Who, call: Callable[[T], object], source: Iterator[T]) -> None:
        benchmark(lambda: call(next(source)))
        report.add(question, who, sample(call, source, effort))

    return measure


class TimedAsync:
    """The same for coroutine functions, inside one event loop."""

    def __init__(self, loop: asyncio.Runner, effort: Effort, report: Report) -> None:
        self._loop = loop
        self._effort = effort
        self._report = report

    def __call__(
        self, question: Question, who: Who, call: Callable[[T], Awaitable[object]], source: Iterator[T]
    ) -> None:
        """One call after another."""
        self._report.add(question, who, self._loop.run(sample_async(call, source, self._effort)))

    def paced(
        self, question: Question, who: Who, call: Callable[[T], Awaitable[object]], source: Iterator[T], per_s: float
    ) -> None:
        """``per_s`` calls a second."""
        self._report.add(question, who, self._loop.run(sample_paced(call, source, self._effort, per_s=per_s)))

    def after(
        self,
        prepare: Callable[[T], Awaitable[object]],
        question: Question,
        who: Who,
        call: Callable[[T], Awaitable[object]],
        source: Iterator[T],
    ) -> None:
        """One call after another, before each of which ``prepare`` is called and not timed."""
        self._report.add(question, who, self._loop.run(sample_after(prepare, call, source, self._effort)))

    def cpu(self, question: Question, who: Who, call: Callable[[T], Awaitable[object]], source: Iterator[T]) -> None:
        """One call after another, by the processor's clock."""
        self._report.add(question, who, self._loop.run(sample_cpu(call, source, self._effort)))

    def in_flight(
        self, question: Question, who: Who, call: Callable[[T], Awaitable[object]], source: Iterator[T], width: int
    ) -> None:
        """``width`` calls at a time."""
        self._report.add(question, who, self._loop.run(in_flight(call, source, width, self._effort)))


class TimedStream:
    """The same for what comes in pieces."""

    def __init__(self, loop: asyncio.Runner, effort: Effort, report: Report) -> None:
        self._loop = loop
        self._effort = effort
        self._report = report

    def first(
        self, question: Question, who: Who, pieces: Callable[[T], AsyncIterator[object]], source: Iterator[T]
    ) -> None:
        """The time until the first piece."""
        self._report.add(question, who, self._loop.run(sample_first(pieces, source, self._effort)))

    def cpu(
        self,
        question: Question,
        who: Who,
        pieces: Callable[[T], AsyncIterator[object]],
        source: Iterator[T],
        count: int,
    ) -> None:
        """The processor's time for each of ``count`` pieces."""
        effort = self._effort._replace(least=min(STREAMS, self._effort.least))
        self._report.add(question, who, self._loop.run(sample_cpu(reading(pieces), source, effort, parts=count)))


@pytest.fixture
def timed_stream(loop: asyncio.Runner, effort: Effort, report: Report) -> TimedStream:
    return TimedStream(loop, effort, report)


@pytest.fixture(scope="session")
def server() -> Iterator[Upstream]:
    with upstream() as running:
        yield running


@pytest.fixture
def timed_async(loop: asyncio.Runner, effort: Effort, report: Report) -> TimedAsync:
    return TimedAsync(loop, effort, report)


class Peer(Protocol):
    """Have a peer's program measure one thing in the peer's environment. Skips where that does not exist."""

    def __call__(self, environment: str, program: str, *arguments: str) -> Figure: ...


@pytest.fixture
def peer(request: pytest.FixtureRequest, effort: Effort) -> Peer:
    def measure(environment: str, program: str, *arguments: str) -> Figure:
        python = peer_python(request.config, environment)
        given = {
            "conversations": data.conversations(),
            "effort": effort,
            "uvloop": request.config.getoption("--uvloop"),
        }
        done = subprocess.run(
            [python, "-m", f"benchmarks.peers.{program}", *arguments],
            input=json.dumps(given), capture_output=True, text=True, check=False, cwd=ROOT, timeout=100,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2_000:]
        return Figure(*json.loads(done.stdout.splitlines()[-1]))

    return measure


def peer_python(config: pytest.Config, environment: str) -> str:
    """The interpreter of a peer's environment. Skips if peers are not asked for or this one is not there."""
    return str(peer_file(config, environment, "bin/python"))


def peer_file(config: pytest.Config, environment: str, name: str) -> Path:
    """A file of a peer's environment. Skips as ``peer_python`` does."""
    if not config.getoption("--peers"):
        pytest.skip(f"{environment}: a peer, measured with --peers")
    folder = os.environ.get("PEER_VENVS")
    if folder is None:
        pytest.skip(f"{environment}: PEER_VENVS names no folder with the peers' environments")
    file = Path(folder) / environment / name
    if not file.exists():
        pytest.skip(f"{environment}: there is no {file}")
    return file


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError as error:
        raise pytest.UsageError("--uvloop: uvloop is not installed") from error
    factory: Any = uvloop.new_event_loop
    made: Callable[[], asyncio.AbstractEventLoop] = factory
    return made
