"""Agent runs on four servers with one store: one run per key and one budget per account, on any server."""

from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import anyio
import httpx2
import pytest

from routewright import SqliteStorage
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
