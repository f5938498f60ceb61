"""Agent runs on four servers with one store: one run per key and one budget per account, on any server."""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, NamedTuple

import anyio
import httpx2
import pytest

from routewright import RateLimits, SqliteStorage
from routewright.errors import StorageUnavailable
from routewright.wire import Events, LedgerRow, LedgerRows, Trace, Traces

from .server_processes import WORKERS, Farm, farmed
from .uvicorn_server import PATIENCE_S, bearer
from .worker_child import CALL_NANOS

ROUNDS = 3
PATH = "/v1/agents/run"
CALLS = ROUNDS + 1
"""Model calls of a run."""


class Kept(NamedTuple):
    """What the store holds of an account."""

    rows: list[LedgerRow]
    runs: list[Trace]
    ends: list[Any]
    """The events of runs that ended."""

    @property
    def charged(self) -> int:
        return sum(row.charge_nanos for row in self.rows)


def kept(farm: Farm, account: str) -> Kept:
    async def read() -> Kept:
        storage = SqliteStorage(farm.store)
        scan = partial(storage.scan, account, after=None, limit=100_000)
        events = [each for each in await scan(Events()) if each.type == "agent.run_completed"]
        traces = [each for each in await scan(Traces()) if each.kind == "agent"]
        found = Kept(await scan(LedgerRows()), traces, events)
        await storage.aclose()
        return found

    return anyio.run(read)


def completed(answer: httpx2.Response) -> Any:
    """The response of a run, plain or streamed."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return answer.json()
    (last,) = [block for block in answer.text.split("\n\n") if block.startswith("event: run.completed")]
    return json.loads(last.partition("data: ")[2])


def ran(farm: Farm, key: str, runs: int, headers: dict[str, str] | None = None, **body: Any) -> list[httpx2.Response]:
    """The answers to so many requests at once, over all servers."""

    async def run() -> list[httpx2.Response]:
        answers: list[httpx2.Response] = []
        sent = {**bearer(key), **(headers or {})}
        limits = httpx2.Limits(max_connections=50)
        async with httpx2.AsyncClient(headers=sent, timeout=PATIENCE_S * 2, limits=limits) as client:

            async def one(number: int) -> None:
                url = f"{farm.urls[number % WORKERS]}{PATH}"
                answers.append(await client.post(url, json={"task": f"rounds {ROUNDS}", **body}))

            async with anyio.create_task_group() as group:
                for number in range(runs):
                    group.start_soon(one, number)
        return answers

    return anyio.run(run)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_concurrent_requests_with_one_key_are_one_run(farm: Farm, full: bool, stream: bool) -> None:
    account = f"one-run-{stream}".lower()
    farm.console.blocking.create_account(account, plan="unlimited", monthly_limit_usd=10)
    key, times, before = farm.key(account), 20 if full else 2, farm.upstream_calls
    for number in range(times):
        answers = ran(farm, key, 16, {"Idempotency-Key": f"k{number}"}, stream_steps=stream)
        assert {answer.status_code for answer in answers} == {200}
        bodies = {json.dumps(completed(answer)) for answer in answers}
        assert len(bodies) == 1
        assert json.loads(bodies.pop())["output"] == f"done after {ROUNDS}"
        assert farm.upstream_calls == before + CALLS * (number + 1)
    found = kept(farm, account)
    assert [row.charge_nanos for row in found.rows] == [CALL_NANOS] * CALLS * times
    assert len(found.runs) == len(found.ends) == times
    check_settled(farm, account, found)


def check_settled(farm: Farm, account: str, found: Kept) -> None:
    """What is spent stands in the ledger, and nothing is held."""
    month = farm.console.blocking.standing(account).month
    assert (month.spent_nanos, month.reserved_nanos) == (found.charged, 0)


@pytest.mark.parametrize("of", ["account", "key"])
def test_concurrent_runs_never_overspend(farm: Farm, full: bool, of: str) -> None:
    runs, console, account = 200 if full else 24, farm.console.blocking, f"limited-{of}"
    limit = runs * CALLS * CALL_NANOS // 3
    console.create_account(account, plan="unlimited", monthly_limit_usd=limit / 1e9 if of == "account" else 1_000.0)
    key = farm.key(account, budget_usd=limit / 1e9 if of == "key" else 1_000.0)
    highest, over, before = [0], threading.Event(), farm.upstream_calls

    def watch() -> None:
        while not over.wait(0.02):
            with suppress(StorageUnavailable):  # the servers do not let it in
                standing = console.standing(account)
                purse = standing.month if of == "account" else standing.keys[0].total
                highest.append(purse.spent_nanos + purse.reserved_nanos)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        answers = ran(farm, key, WORKERS)  # these find money enough
        assert [answer.json()["status"] for answer in answers] == ["completed"] * WORKERS
        answers += ran(farm, key, runs)
    finally:
        over.set()
        watcher.join()
    bodies = [answer.json() for answer in answers if answer.status_code == 200]
    told = Counter(body["status"] for body in bodies)
    assert {answer.status_code for answer in answers} <= {200, 402, 429}
    assert told["budget_exceeded"] > 0
    assert limit / 2 < max(highest) <= limit
    found = kept(farm, account)
    assert found.charged == round(sum(body["summary"]["total_cost_usd"] for body in bodies) * 1e9) <= limit
    assert found.charged == (farm.upstream_calls - before) * CALL_NANOS
    assert len(found.ends) == len(found.runs) == len(bodies)
    check_settled(farm, account, found)


def test_runs_share_the_slots_of_the_account(farm: Farm) -> None:
    farm.console.blocking.create_account("slots", plan="enterprise", limits=RateLimits(concurrency=2))
    key = farm.key("slots")
    asked: Any = {"json": {"task": "rounds 40", "max_steps": 100, "stream_steps": True}, "headers": bearer(key)}
    with httpx2.Client(timeout=PATIENCE_S) as client, ExitStack() as stack:
        for url in farm.urls[:2]:
            lines = stack.enter_context(client.stream("POST", f"{url}{PATH}", **asked)).iter_lines()
            assert next(lines) == "event: run.started"
            stack.callback(deque, lines, maxlen=0)  # to its end
        assert [answer.status_code for answer in ran(farm, key, 6)] == [429] * 6
    assert {answer.status_code for answer in ran(farm, key, 2)} == {200}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_run_left_at_one_server_is_joined_at_another(farm: Farm, stream: bool) -> None:
    account, before = f"leaves-{stream}".lower(), farm.upstream_calls
    farm.console.blocking.create_account(account, plan="unlimited", monthly_limit_usd=10)
    headers = {**bearer(farm.key(account)), "Idempotency-Key": "k"}
    asked: Any = {"json": {"task": "rounds 40", "max_steps": 100, "stream_steps": stream}, "headers": headers}
    client = httpx2.Client(timeout=PATIENCE_S if stream else 0.3)
    if stream:
        with client.stream("POST", f"{farm.urls[0]}{PATH}", **asked) as begun:
            assert next(begun.iter_lines()) == "event: run.started"
    else:
        with pytest.raises(httpx2.TimeoutException):
            client.post(f"{farm.urls[0]}{PATH}", **asked)
    client.close()
    answer = httpx2.post(f"{farm.urls[1]}{PATH}", **asked, timeout=PATIENCE_S)
    assert completed(answer)["output"] == "done after 40"
    found = kept(farm, account)
    assert farm.upstream_calls - before == 41
    assert [row.charge_nanos for row in found.rows] == [CALL_NANOS] * 41
    assert [run.status for run in found.runs] == ["completed"]
    assert len(found.ends) == 1
    check_settled(farm, account, found)


def at_rest(farm: Farm, account: str) -> Kept:
    """What the store holds once nothing is reserved and nothing is added any more."""
    never, since, before = threading.Event(), monotonic(), Kept([], [], [])
    while True:
        found = kept(farm, account)
        if found == before and farm.console.blocking.standing(account).month.reserved_nanos == 0:
            return found
        assert monotonic() - since < PATIENCE_S
        before = found
        never.wait(0.3)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_runs_left_at_any_moment_hold_nothing_and_are_charged(farm: Farm, full: bool, stream: bool) -> None:
    account, runs, chance = f"moments-{stream}".lower(), 200 if full else 24, Random(7)
    console = farm.console.blocking
    limits = RateLimits(concurrency=runs)
    console.create_account(account, plan="enterprise", limits=limits, monthly_limit_usd=100)
    headers = bearer(farm.key(account))
    body = {"task": "rounds 20", "max_steps": 100, "stream_steps": stream}
    whole = list[httpx2.Response]()

    async def leave(client: httpx2.AsyncClient, number: int, after_s: float) -> None:
        with anyio.move_on_after(after_s):
            whole.append(await client.post(f"{farm.urls[number % WORKERS]}{PATH}", json=body))

    async def crowd(waits_s: list[float]) -> None:
        pool = httpx2.Limits(max_connections=runs)
        async with (
            httpx2.AsyncClient(headers=headers, timeout=PATIENCE_S * 2, limits=pool) as client,
            anyio.create_task_group() as group,
        ):
            for number, after_s in enumerate(waits_s):
                group.start_soon(leave, client, number, after_s)

    anyio.run(crowd, [chance.random() * 1.5 for _ in range(runs)])
    found = at_rest(farm, account)
    assert {run.status for run in found.runs} <= {"cancelled", "completed"}
    assert [run.status for run in found.runs].count("cancelled") > runs // 4
    check_settled(farm, account, found)
    whole.clear()
    anyio.run(crowd, [PATIENCE_S] * runs)
    assert [completed(answer)["status"] for answer in whole] == ["completed"] * runs, "a slot is not free again"


def test_a_run_of_a_dead_server_resumes_at_another_and_pays_nothing_twice(tmp_path: Path) -> None:
    with farmed(tmp_path, workers=2) as farm:
        farm.console.blocking.create_account("acme", plan="unlimited", monthly_limit_usd=10)
        headers, never = {**bearer(farm.key("acme")), "Idempotency-Key": "k"}, threading.Event()
        body = {"task": f"rounds {ROUNDS} stall 2"}

        def ask(url: str) -> httpx2.Response:
            return httpx2.post(f"{url}{PATH}", headers=headers, json=body, timeout=PATIENCE_S)

        def kill() -> None:
            stalled, since = Path(f"{farm.calls}.stalled"), monotonic()
            while not stalled.exists() and monotonic() - since < PATIENCE_S:
                never.wait(0.01)
            farm.workers[0].kill()

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(httpx2.TransportError):
            ask(farm.urls[0])
        killer.join()
        told = ask(farm.urls[1]).json()  # once the lease of the one that died has run out
        assert (told["status"], told["output"]) == ("completed", f"done after {ROUNDS}")
        assert [step["number"] for step in told["steps"]] == list(range(1, 2 * ROUNDS + 2))
        assert farm.upstream_calls == CALLS + 1
        found = kept(farm, "acme")
        assert [run.id for run in found.runs] == [told["trace_id"]]
        assert len(found.ends) == 1
        assert [row.charge_nanos for row in found.rows if row.charge_nanos] == [CALL_NANOS] * CALLS
        check_settled(farm, "acme", found)
        assert ask(farm.urls[1]).json() == told
        assert farm.upstream_calls == CALLS + 1
