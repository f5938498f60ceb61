"""Four servers on one store behave like one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
import httpx2
import pytest

from routewright import RateLimits

from .farm import LEASE_S, WORKERS, Farm, farmed
from .serving import HELLO, PATIENCE_S, bearer
from .worker_child import CALL_NANOS


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    with farmed(tmp_path) as four:
        yield four


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


def test_a_revoked_key_is_refused_by_all_within_five_seconds(farm: Farm, full: bool) -> None:
    console, never = farm.console.blocking, threading.Event()
    console.create_account("acme", plan="unlimited")
    for _ in range(20 if full else 1):
        new = console.create_key("acme", name="k")
        headers = bearer(new.secret.reveal())
        assert {httpx2.get(f"{url}/v1/models", headers=headers).status_code for url in farm.urls} == {200}
        console.revoke_key("acme", new.key.id)
        since = monotonic()
        for url in farm.urls:
            while httpx2.get(f"{url}/v1/models", headers=headers).status_code != 401:
                assert monotonic() - since < 5.0
                never.wait(0.02)
        assert monotonic() - since < 5.0


def test_a_limit_is_one_over_all(farm: Farm) -> None:
    farm.console.blocking.create_account("acme", plan="enterprise", limits=RateLimits(requests_per_min=30))
    told = Counter(answer.status_code for answer in asked(farm, farm.key("acme"), 120))
    assert told == {200: 30, 429: 90}


def test_a_budget_is_one_over_all(farm: Farm) -> None:
    console, budget = farm.console.blocking, 30 * CALL_NANOS
    console.create_account("acme", plan="unlimited", monthly_limit_usd=budget / 1e9)
    answers = asked(farm, farm.key("acme"), 100, params={"max_output_tokens": 10})
    told = Counter(answer.status_code for answer in answers)
    month = console.standing("acme").month
    assert told[200] + told[402] == 100
    assert (month.spent_nanos, month.reserved_nanos) == (told[200] * CALL_NANOS, 0)
    assert budget - 2 * CALL_NANOS < month.spent_nanos <= budget


def test_calls_with_one_idempotency_key_are_one_call(farm: Farm, full: bool) -> None:
    farm.console.blocking.create_account("acme", plan="unlimited", monthly_limit_usd=10)
    key = farm.key("acme")
    for number in range(20 if full else 1):
        answers = asked(farm, key, 50, idempotency_key=f"k{number}")
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1
        assert farm.upstream_calls == number + 1
        assert farm.console.blocking.standing("acme").month.spent_nanos == (number + 1) * CALL_NANOS


def test_what_a_server_held_that_died_is_free_again(farm: Farm) -> None:
    farm.console.blocking.create_account("acme", plan="enterprise", limits=RateLimits(concurrency=1))
    key, never = farm.key("acme"), threading.Event()
    request = {"messages": [{"role": "user", "content": "wait 30"}], "stream": True}
    with httpx2.stream("POST", f"{farm.urls[0]}/v1/route", headers=bearer(key), json=request) as stream:
        assert stream.status_code == 200
        assert httpx2.post(f"{farm.urls[1]}/v1/route", headers=bearer(key), json=HELLO).status_code == 429
        farm.processes[0].kill()
        since = monotonic()
        while httpx2.post(f"{farm.urls[1]}/v1/route", headers=bearer(key), json=HELLO).status_code != 200:
            assert monotonic() - since < LEASE_S + 5.0
            never.wait(0.1)
