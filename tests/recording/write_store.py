"""Writes ``tests/data/old_store``: a store that holds every kind of row, and what its readers say of it.

    python -m tests.recording.write_store

Version 0.1.0 wrote the files on 2026-11-22. The script documents how; it need not run on later versions, and its output
must not replace the files: they are the record that later versions are held to. Its keys are drawn anew each time.

Three Routers follow each other on virtual time, one a day. The first and the third are killed while calls run: their
files are copied as they are at that moment.
"""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import anyio

from routewright import Answer, Caller, Capture, Policy, RateLimits, Retention, RouterError
from routewright.testing import FakeClock
from routewright.wire import CacheSpan, Content, LedgerRow, Message, ModelSpan, Settle, Tokens, Trace
from tests.recording.write_decisions import compressed
from tests.test_old_store import (
    BODY,
    FOLDER,
    KEPT,
    LARGE,
    ONE,
    POLICIES,
    RUN,
    SECRET,
    STARTED,
    WEATHER,
    Firm,
    contents,
    reopened,
)

AT = "2026-11-21T12:00:00.000Z"
DAY_S = 24 * 3600.0
BALANCED = [Policy(name="support", goal="quality", strategy="balanced"), POLICIES[1]]
CALL: dict[str, Any] = {"params": {"max_output_tokens": 100}}


class Recording:
    """What is carried from one day to the next."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = FakeClock(STARTED)
        self.keys: dict[str, str] = {}
        self.ids: dict[str, str] = {}
        self.told: dict[str, Any] = {}

    def firm(self, day: str, policies: list[Policy] = POLICIES, **settings: Any) -> Firm:
        (self.folder / day).mkdir(exist_ok=True)
        rng = Random(day)
        return Firm(self.folder / day / "store.db", self.clock, policies, rng=rng, **settings)

    async def call(self, firm: Firm, said: str, caller: Caller, **options: Any) -> str:
        """One call, however it ends: its trace's id."""
        await self.clock.advance(0.25)
        try:
            ended: Answer | RouterError = await firm.router.route(said, caller=caller, **{**CALL, **options})
        except RouterError as error:
            ended = error
        return str(ended.trace_id)

    async def key(self, firm: Firm, account: str, name: str, **terms: Any) -> None:
        """Make a key and remember it."""
        new = await firm.console.create_key(account, name=name, **terms)
        self.keys[name], self.ids[name] = new.secret.reveal(), new.key.id

    async def kill(self, firm: Firm, day: str) -> None:
        """Copy both files as they are, calls in flight and all."""
        (self.folder / day).mkdir(exist_ok=True)
        for end in ("", ".limits"):
            with closing(sqlite3.connect(f"{firm.path}{end}")) as connection:
                connection.execute("VACUUM INTO ?", (str(self.folder / day / f"store.db{end}"),))


async def first_day(recording: Recording) -> None:
    """Accounts, keys and plain calls; then the process is killed."""
    firm = recording.firm("first")
    console = firm.console
    await console.create_account("acme", plan="pro", prepaid=True, monthly_limit_usd=5.0)
    await console.create_account("beta", plan="free", limits=RateLimits(requests_per_min=30, concurrency=1))
    await console.create_account("corp", plan="team", monthly_limit_usd=0.01)
    await console.credit("acme", 0.1, note="first", id="invoice-1")
    await console.credit("acme", 0.02)
    await console.credit("acme", -0.01, note="taken back")
    terms: dict[str, Any] = {"budget_usd": 1.0, "monthly_limit_usd": 0.5, "limits": RateLimits(tokens_per_min=90_000)}
    await recording.key(firm, "acme", "website", **terms)
    await recording.key(firm, "acme", "reports", scopes=["traces:read", "analytics:read"])
    await recording.key(firm, "acme", "lost")
    await recording.key(firm, "acme", "trial", environment="sandbox")
    await recording.key(firm, "beta", "mobile")
    website = await firm.caller(recording.keys["website"])
    for said in ("Hello", "fail once", "silent", "a tool"):
        tools = [WEATHER] if "tool" in said else None
        await recording.call(firm, said, website, metadata={"team": "search", "tenant": "t1"}, tools=tools)
    for goal in ("cost", "quality", "stability"):
        await recording.call(firm, "Hello", Caller(), goal=goal)
    async with anyio.create_task_group() as group:
        group.start_soon(recording.call, firm, "hang", Caller("acme"))
        await recording.clock.advance(2.0)
        await recording.kill(firm, "second")
        group.cancel_scope.cancel()
    await firm.aclose()


async def second_day(recording: Recording) -> None:
    """Policies in two versions, failures of every kind, feedback, a correction, incidents, traces from elsewhere."""
    firm = recording.firm("second", BALANCED, capture=Capture())
    router, console = firm.router, firm.console
    acme, beta, corp = Caller("acme"), Caller("beta"), Caller("corp")
    first = await recording.call(firm, "Hello", acme, policy_id="support")
    router.reload_policies(POLICIES)
    again = await recording.call(firm, "Hello", acme, policy_id="support", metadata={"team": "chat"})
    await recording.call(firm, "write to anna@example.com", acme, policy_id="careful")
    await recording.call(firm, "what is forbidden", acme, policy_id="careful")
    await recording.call(firm, "fail everywhere", acme)
    await recording.call(firm, "break off", acme)
    await recording.call(firm, "too dear", acme, budget={"maxCostUsd": 1e-9})
    for number in range(21):
        await recording.call(firm, "fail everywhere" if number % 7 == 6 else "Hello", corp, metadata={"workflow": "w"})
    async with anyio.create_task_group() as group:
        group.start_soon(partial(recording.call, firm, "hang", beta, timeout_ms=4_000))
        await recording.clock.advance(5.0)
    async with anyio.create_task_group() as group:
        group.start_soon(recording.call, firm, "hang", beta)
        await recording.clock.advance(3.0)
        group.cancel_scope.cancel()
    async with router.stream("Hello", caller=acme, **CALL) as stream:
        async for _ in stream.text():
            break
    await router.feedback(first, 0.9, "good", caller=acme)
    await router.feedback(again, 0.25, caller=acme)
    await router.flush()
    await firm.ledger.correct(first, 1, cost_usd=0.0004, note="invoice of November", account="acme")
    incident = await console.open_incident("Slow answers", severity="minor", status_url="https://example.com/1")
    await recording.clock.advance(60.0)
    await console.resolve_incident(incident.id)
    await console.open_incident("No answers", severity="critical")
    row = LedgerRow(request_id="tr_run", attempt=1, at=AT, model=ONE.id, provider="good", cost_nanos=7, charge_nanos=7)
    await firm.storage.apply("acme", [Settle(id="tr_run", at=AT, rows=(row,), run=RUN)])
    for trace in elsewhere():
        await firm.traces.record(trace)
    lost = await firm.caller(recording.keys["lost"])
    await recording.call(firm, "Hello", lost)
    await firm.aclose()
    await recording.kill(firm, "third")


def elsewhere() -> list[Trace]:
    """Traces that no Router made, in the kinds and states that none of today's calls has."""
    model = ModelSpan(id=1, name=ONE.id, model=ONE.id, provider="good", attempt=1, start_ms=0.0, latency_ms=900.0)
    hit = CacheSpan(id=2, name="cache", start_ms=0.0, hit=True, mode="semantic", similarity=0.97, age_s=30.0,
                    saved_usd=0.002)  # fmt: skip
    miss = CacheSpan(id=2, name="cache", start_ms=0.0, hit=False)
    common: dict[str, Any] = {"created_at": AT, "duration_ms": 1000.0, "account": "beta",
                              "environment": "production", "strategy": "balanced", "goal": "cost"}  # fmt: skip
    said = Content(messages=[Message("user", 'it\'s "quoted" \\ 日本')], output="e\u0301")
    return [
        Trace(id="tr_run", kind="agent", status="partial", children=["tr_child"], spans=[model, miss], **common),
        Trace(id="tr_child", status="running", metadata={"team": "Ünïcødé", "deep": {"a": [1, None]}}, **common),
        Trace(id="tr_hit", status="completed", cache_hit=True, selected_model=ONE.id, tokens=Tokens(10, 5, 2),
              spans=[hit], content=said, cost_range_usd=(0.001, 0.002), **common),
    ]  # fmt: skip


async def third_day(recording: Recording) -> None:
    """Kept answers, a key that is revoked, and calls in flight when the process is killed."""
    firm = recording.firm("third", retention=Retention(production_days=60, sandbox_days=7))
    router, keys = firm.router, recording.keys
    website, trial, mobile = [await firm.caller(keys[name]) for name in ("website", "trial", "mobile")]
    for caller in (website, trial):
        answer = await router.route("keep this", caller=caller, idempotency_key="kept", **KEPT)
        recording.told[caller.environment] = answer.output
    recording.told["http"] = (await firm.post(BODY, keys["website"], "over-http")).json
    await recording.call(firm, "Hello", trial, metadata={"team": "search"})
    for _ in range(3):
        await recording.call(firm, "Hello", mobile)
    await recording.call(firm, "fail once", website)
    await router.flush()
    await firm.console.revoke_key("acme", recording.ids["lost"])
    page = await firm.traces.query(account="acme", limit=5)
    recording.told["page"] = [[each.id for each in page.data], page.next_cursor]
    async with anyio.create_task_group() as group:
        claim: dict[str, Any] = {"idempotency_key": "in-flight", "timeout_ms": 5_000}
        for caller, options in ((website, claim), (website, {}), (mobile, {})):
            group.start_soon(partial(recording.call, firm, "hang", caller, **{**LARGE, **options}))
        await recording.clock.advance(1.0)
        await recording.kill(firm, "left")
        recording.told["left_at"] = recording.clock.monotonic()
        group.cancel_scope.cancel()
    await firm.aclose()


async def main() -> None:
    """Live three days, and write down what was left."""
    os.environ["ROUTEWRIGHT_SECRET"] = SECRET
    with tempfile.TemporaryDirectory() as folder:
        recording = Recording(Path(folder))
        for day, live in enumerate((first_day, second_day, third_day)):
            await recording.clock.advance(STARTED + day * DAY_S - recording.clock.time())
            await live(recording)
        left = recording.folder / "left" / "store.db"
        for name in ("store.db", "store.db.limits"):
            compressed(FOLDER / f"{name}.gz", left.with_name(name).read_bytes())
        firm = await reopened(left, recording.told["left_at"])
        said = {"keys": recording.keys, "key_ids": recording.ids, "told": recording.told}
        said["contents"] = await contents(firm)
        await firm.aclose()
        text = json.dumps(said, separators=(",", ":"), ensure_ascii=False)
        compressed(FOLDER / "expected.json.gz", text.encode())


if __name__ == "__main__":
    anyio.run(main)
