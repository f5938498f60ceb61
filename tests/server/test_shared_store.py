"""Four servers on one store behave like one."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
import httpx2

from routewright import RateLimits

from .server_processes import LEASE_S, WORKERS, Farm, farmed
from .uvicorn_server import HELLO, PATIENCE_S, bearer
from .worker_child import CALL_NANOS


async def crowd(farm: Farm, key: str, calls: int, **fields: Any) -> list[httpx2.Response]:
    """So many calls at once, over all of them."""
    answers: list[httpx2.Response] = []
    limits = httpx2.Limits(max_connections=50)
    async with httpx2.AsyncClient(headers=bearer(key), timeout=PATIENCE_S * 2, limits=limits) as client:

        async def one(number: int) -> None:
            url = farm.urls[number % WORKERS]
            answers.append(await client.post(f"{url}/v1/route", json={**HELLO, **fields}))

        async with anyio.create_task_group() as group:
            for number in range(calls):
                group.start_soon(one, number)
    return answers


def asked(farm: Farm, key: str, calls: int, **fields: Any) -> list[httpx2.Response]:
    async def run() -> list[httpx2.Response]:
        return await crowd(farm, key, calls, **fields)

    return anyio.run(run)


def test_all_servers_share_a_limit(farm: Farm) -> None:
    farm.console.blocking.create_account("limited", plan="enterprise", limits=RateLimits(requests_per_min=30))
    told = Counter(answer.status_code for answer in asked(farm, farm.key("limited"), 60))
    assert told == {200: 30, 429: 30}


def test_calls_with_one_idempotency_key_are_one_call(farm: Farm, full: bool) -> None:
    farm.console.blocking.create_account("once", plan="unlimited", monthly_limit_usd=10)
    key, before = farm.key("once"), farm.upstream_calls
    for number in range(20 if full else 1):
        answers = asked(farm, key, 20, idempotency_key=f"k{number}")
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1
        assert farm.upstream_calls == before + number + 1
        assert farm.console.blocking.standing("once").month.spent_nanos == (number + 1) * CALL_NANOS


def test_what_a_dead_server_held_is_released(tmp_path: Path) -> None:
    request = {"messages": [{"role": "user", "content": "wait 30"}], "stream": True}
    with farmed(tmp_path, workers=2) as farm:
        farm.console.blocking.create_account("acme", plan="enterprise", limits=RateLimits(concurrency=1))
        headers, never = bearer(farm.key("acme")), threading.Event()
        with httpx2.stream(
            "POST", f"{farm.urls[0]}/v1/route", headers=headers, json=request, timeout=PATIENCE_S
        ) as stream:
            assert stream.status_code == 200
            assert httpx2.post(f"{farm.urls[1]}/v1/route", headers=headers, json=HELLO).status_code == 429
            farm.workers[0].kill()
            since = monotonic()
            while httpx2.post(f"{farm.urls[1]}/v1/route", headers=headers, json=HELLO).status_code != 200:
                assert monotonic() - since < LEASE_S + 5.0
                never.wait(0.1)
