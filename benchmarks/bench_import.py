"""What does importing cost a fresh interpreter, beside the libraries that it cannot do without?"""

from __future__ import annotations

import sys

import pytest

from .conftest import peer_python
from .measure import Effort, Loaded, load
from .report import Question, Report, Who

FLOOR = "import anyio, msgspec"
ROUTER_FLOOR = "import anyio, asyncio, msgspec, numpy"
PEERS: dict[Who, str] = {"litellm": "from litellm import Router", "pydantic-ai": "from pydantic_ai import Agent"}

PACKAGE = Question("import routewright", "1.25 × the floor")
PACKAGE_MEMORY = Question("import routewright, peak memory", "1.25 × the floor")
ROUTER = Question("from routewright import Router", "1.25 × the floor")
ROUTER_MEMORY = Question("from routewright import Router, peak memory", "1.25 × the floor")
FIRST = Question("from routewright import Router; Router.sandbox().decide('Hello')")
FIRST_MEMORY = Question("to the first decision, as above, peak memory")


def test_routewright(effort: Effort, report: Report) -> None:
    statements = [FLOOR, PACKAGE.what, ROUTER_FLOOR, ROUTER.what, FIRST.what]
    floor, package, router_floor, router, first = load(sys.executable, statements, effort)
    add(report, PACKAGE, PACKAGE_MEMORY, "floor", floor)
    add(report, PACKAGE, PACKAGE_MEMORY, "routewright", package)
    add(report, ROUTER, ROUTER_MEMORY, "floor", router_floor)
    add(report, ROUTER, ROUTER_MEMORY, "routewright", router)
    add(report, FIRST, FIRST_MEMORY, "floor", router_floor)
    add(report, FIRST, FIRST_MEMORY, "routewright", first)


@pytest.mark.parametrize("who", PEERS)
def test_peer(request: pytest.FixtureRequest, effort: Effort, report: Report, who: Who) -> None:
    [loaded] = load(peer_python(request.config, who), [PEERS[who]], effort)
    add(report, ROUTER, ROUTER_MEMORY, who, loaded)


def add(report: Report, time: Question, memory: Question, who: Who, loaded: Loaded) -> None:
    report.add(time, who, loaded.ms)
    report.add(memory, who, loaded.mb)
