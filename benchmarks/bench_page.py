"""How long does the page take to show traces in Chromium, and does it grow with their number: the first list, filtered
ones, one trace?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from statistics import median
from typing import NamedTuple

import pytest
from playwright.sync_api import Page
from tests.browser.chromium import launch, loop_shown
from tests.database_servers import need
from tests.server.uvicorn_server import served

from routewright import Router
from routewright.ui import create_ui

from .conftest import Filled
from .measure import Effort, Figure
from .report import Question, Report
from .stores import trace_id

TIMES = 10
FILTERS = {
    "the first list": "",
    "a list by status": "status=failed",
    "a list by status and metadata": "status=failed,metadata.team=team-3",
}
LISTED = "[role=gridcell], .empty"
FETCH = """async address => {
    const headers = {"X-Session-Token": localStorage.getItem(`routewright ${location.pathname}`)}
    const start = performance.now()
    const response = await fetch(address, {headers})
    await response.json()
    if (!response.ok) throw new Error(`the server answered ${response.status}`)
    return performance.now() - start
}"""
SHOW = """async ([address, shown]) => {
    const frame = () => new Promise(requestAnimationFrame)
    location.hash = "#/none"
    while (document.querySelector(shown)) await frame()
    const start = performance.now()
    location.hash = address
    while (!document.querySelector(shown)) await frame()
    await frame()
    return performance.now() - start
}"""


class Shown(NamedTuple):
    """The page of a store."""

    filled: Filled
    page: Page
    since: Iterator[str]
    """Times before all traces, so that no list is one that the page has."""


@pytest.fixture(scope="module")
def shown(filled: Filled) -> Iterator[Shown]:
    need("chromium")
    router = Router(providers=[], storage=filled.storage)
    since = (f"2026-01-01T00:00:00.{number:03}Z" for number in count())
    with (
        served(create_ui(router, link_token="of-the-benchmark")) as url,
        launch() as browser,
        loop_shown(browser),
        browser.new_context(base_url=f"{url}/") as context,
    ):
        page = context.new_page()
        page.goto("#link=of-the-benchmark")
        page.get_by_role("navigation").wait_for()
        yield Shown(filled, page, since)


@pytest.mark.parametrize("name", FILTERS)
def test_lists(shown: Shown, effort: Effort, report: Report, name: str) -> None:
    question = Question(f"{name} in the browser, of {shown.filled.named} traces")
    arguments = f'{{"account":"default","environment":"production","filter":"{FILTERS[name]}","limit":100}}'
    fetched = [shown.page.evaluate(FETCH, f"api/traces.query?{arguments}") for _ in range(effort.width(TIMES))]
    report.add(question, "floor", Figure("ms", median(fetched)))
    addresses = (f"#/traces?filter={FILTERS[name]}&since={since}" for since in shown.since)
    times = [
        shown.page.evaluate(SHOW, [next(addresses), "[role=gridcell], .empty"]) for _ in range(effort.width(TIMES))
    ]
    report.add(question, "routewright", Figure("ms", median(times)))


def test_one_trace(shown: Shown, effort: Effort, report: Report) -> None:
    question = Question(f"one trace in the browser, of {shown.filled.named}")
    ids = [trace_id(number) for number in range(effort.width(TIMES))]
    fetched = [shown.page.evaluate(FETCH, f'api/traces.get?{{"trace_id":"{id}"}}') for id in ids]
    report.add(question, "floor", Figure("ms", median(fetched)))
    times = [shown.page.evaluate(SHOW, [f"#/traces/{id}", "[role=treegrid]"]) for id in ids]
    report.add(question, "routewright", Figure("ms", median(times)))
