"""A recorded store is opened, read and used by this version (``tests/data/README.md``). Each test has its own copy."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from routewright import (
    Caller,
    Catalogue,
    Console,
    Ledger,
    Model,
    Policy,
    Pricing,
    ProviderFault,
    Retention,
    Router,
    Settings,
    SqliteStorage,
    TraceStore,
)
from routewright.errors import AuthenticationFailed, IdempotencyKeyReused
from routewright.server import create_app
from routewright.testing import FakeClock, Pause, ScriptedProvider
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Bucket,
    DecisionSpan,
    Delta,
    Events,
    Finish,
    PolicyClass,
    PolicyFallback,
    PolicyGuardrail,
    PolicyMatch,
    PolicySnapshot,
    PolicyVersions,
    PriceChange,
    PutPolicyVersion,
    RunLimit,
    SnapshotById,
    Stands,
    ToolDelta,
    UpstreamCall,
    Usage,
)

from .server.asgi_client import Client, ask, scope_of
from .test_decision_compatibility import changes, opened, plain

pytestmark = pytest.mark.anyio

FOLDER = Path(__file__).parent / "data" / "old_store"
SECRET = "5ec2e7" * 8
"""The root secret of the recording, of no use elsewhere."""
STARTED = 1_795_165_200.0
"""2026-11-20T09:00:00Z, when the clock of the recording stood at 0."""
FIRST, LAST = "2026-11-20", "2026-11-22"
ACCOUNTS = ("acme", "beta", "corp", "default")
ONE = Model(id="good/one", quality=0.9, pricing_per_1m=Pricing(1.0, 4.0, 0.1), context_window=100_000,
            modalities=("text", "tool"), max_output_tokens=20_000)  # fmt: skip
TWO = Model(id="spare/two", quality=0.5, pricing_per_1m=Pricing(2.0, 8.0), context_window=100_000,
            price_changes=(PriceChange("2026-11-22", Pricing(2.5, 9.0)),), max_output_tokens=20_000)  # fmt: skip
POLICIES = [
    Policy(name="support", goal="quality", strategy="quality-first"),
    Policy(name="careful", id="pol_careful", created_at="2026-11-20T00:00:00Z", fallback=PolicyFallback(models=[]),
           guardrails=[PolicyGuardrail(patterns=["email"], action="redact"),
                       PolicyGuardrail(deny=["forbidden"], action="block", stages=["input"])]),
]  # fmt: skip
KEPT: dict[str, Any] = {"params": {"max_output_tokens": 100}, "metadata": {"team": "search"}}
LARGE: dict[str, Any] = {"params": {"max_output_tokens": 10_000}}
BODY = b'{"messages": [{"role": "user", "content": "over HTTP"}], "params": {"max_output_tokens": 100}}'
RUN = RunLimit("run_1", 1_000_000_000)
USAGE: list[tuple[str, Bucket]] = [("model", "day"), ("model", "hour"), ("metadata.team", "week"), ("tenant", "month")]


def turn(call: UpstreamCall) -> Any:
    """An answer as the prompt asks for it."""
    said = str(call.messages[-1].content)
    if "hang" in said:
        return [Pause(1e9)]
    if "fail everywhere" in said or ("fail once" in said and call.model.id == ONE.id):
        return ProviderFault("server", status=500)
    if "break off" in said:
        return [Delta("an"), Usage(100, 50), ProviderFault("reset")]
    if "silent" in said:
        return [Delta("an answer"), Finish("stop")]
    if "tool" in said:
        return [ToolDelta(0, "call_1", "weather", "{}"), Usage(100, 50), Finish("tool_calls")]
    return [Delta("an answer "), Delta(f"to {said}"), Usage(100, 50, cached=20), Finish("stop")]


class Firm:
    """A Router, a Console and the readers of one store, on the clock of the recording."""

    def __init__(self, path: Path, clock: FakeClock, policies: list[Policy] = POLICIES, **settings: Any) -> None:
        self.clock, self.path = clock, path
        self.storage = SqliteStorage(path, clock=clock)
        self.providers = [ScriptedProvider(turn, models=[each], clock=clock) for each in (ONE, TWO)]
        self.router = Router(
            providers=self.providers,
            catalogue=Catalogue([ONE, TWO], as_of=FIRST),
            policies=policies,
            storage=self.storage,
            settings=Settings(clock=clock, rollup_keys=("team",), **settings),
        )
        self.console = Console(self.storage, secret=SECRET, clock=clock)
        self.traces = TraceStore(self.storage, rollup_keys=("team",), clock=clock)
        self.ledger = Ledger(self.storage, clock=clock)

    async def caller(self, key: str) -> Caller:
        return await self.console.authenticate(f"Bearer {key}")

    async def post(self, body: bytes, key: str, idempotency_key: str) -> Client:
        """Ask over HTTP."""
        headers = {"authorization": f"Bearer {key}", "idempotency-key": idempotency_key}
        return await ask(create_app(self.router, self.console), scope_of(headers=headers), body)

    async def aclose(self) -> None:
        await self.router.aclose()
        await self.storage.aclose()

    @property
    def calls(self) -> int:
        """How often a provider was called."""
        return sum(len(each.calls) for each in self.providers)


async def contents(firm: Firm) -> dict[str, Any]:
    """All that a store says through its readers, as plain values."""
    found: dict[str, Any] = {"accounts": await firm.console.accounts(), "incidents": await firm.console.incidents()}
    found["retention"] = await firm.traces.retention()
    for name in (*ACCOUNTS, SYSTEM_ACCOUNT):
        found[f"events of {name}"] = await firm.storage.scan(name, Events(), after=None, limit=200)
    for name in ACCOUNTS:
        traces, ledger = firm.traces.as_account(name), firm.ledger.as_account(name)
        whole = {trace.id: trace async for trace in traces.export()}
        found[name] = {
            "traces": whole,
            "feedback": {each: await traces.feedback_of(each) for each in whole},
            "usage": [
                await traces.usage(FIRST, LAST, group_by=group, bucket=bucket, environment="all")
                for group, bucket in USAGE
            ],
            "cache": await traces.cache_report(FIRST, LAST, environment="all"),
            "fallback": await traces.fallback_report(FIRST, LAST, environment="all"),
            "latency": await traces.latency_report(FIRST, LAST, environment="all"),
            "rows": [row async for row in ledger.rows()],
            "sums": await ledger.sums(FIRST, LAST),
        }
        if name != "default":
            found[name] |= {"standing": await firm.console.standing(name), "keys": await firm.console.keys(name)}
        ids = {each for trace in whole.values() if (given := trace.decision_input) is not None
               for each in (given.catalogue, given.health, given.policy) if each is not None}  # fmt: skip
        found[name]["snapshots"] = {
            each: await firm.storage.read(SYSTEM_ACCOUNT, SnapshotById(each)) for each in sorted(ids)
        }
    found["run"] = await firm.storage.read("acme", Stands("2026-11-22T12:00:00.000Z", run=RUN))
    everything: dict[str, Any] = plain(found)
    return everything


@pytest.fixture
def expected() -> Any:
    return json.loads(gzip.decompress((FOLDER / "expected.json.gz").read_bytes()))


@pytest.fixture
def path(tmp_path: Path, noon: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the store."""
    monkeypatch.setattr("routewright._setup.root_secret.weakness", lambda root: None)  # of before that check
    monkeypatch.setenv("ROUTEWRIGHT_SECRET", SECRET)
    path = tmp_path / "store.db"
    path.write_bytes(gzip.decompress((FOLDER / "store.db.gz").read_bytes()))
    return path


@pytest.fixture
async def firm(path: Path, expected: Any) -> AsyncIterator[Firm]:
    """The copy in use, at the moment at which it was left."""
    firm = await reopened(path, expected["told"]["left_at"])
    yield firm
    await firm.aclose()


async def reopened(path: Path, at: float) -> Firm:
    clock = FakeClock(STARTED)
    await clock.advance(at)
    return Firm(path, clock)


def test_tables_of_the_recording_have_rows(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        empty = {name for name in tables if not connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]}
    assert empty == {"delivery", "endpoint", "subscription", "uncounted"}


async def test_a_store_reads_as_recorded(firm: Firm, expected: Any) -> None:
    assert list(changes(expected["contents"], await contents(firm))) == []


async def test_policy_versions_named_by_traces_are_not_reused(firm: Firm, expected: Any) -> None:
    named = {each["policy_version"] for name in ACCOUNTS for each in expected["contents"][name]["traces"].values()}
    assert {"careful@2026-11-20", "support@2026-11-21", "support@2026-11-21.2"} < named
    days = {"careful": "2026-11-20", "support": "2026-11-21"}
    new = [PutPolicyVersion(f"new {name}", name, f"{day}T00:00:00Z") for name, day in days.items()]
    await firm.storage.apply(SYSTEM_ACCOUNT, new)
    found = await firm.storage.read(SYSTEM_ACCOUNT, PolicyVersions(tuple(each.content for each in new)))
    assert sorted(each.label for each in found) == ["careful@2026-11-20.3", "support@2026-11-21.3"]


async def test_a_policy_with_fields_that_policies_lost_is_read(firm: Firm, path: Path) -> None:
    rules = {"name": "desk", "id": "pol_desk", "explore_models": 0.1, "goal": "cost"}
    classes = [
        {"match": {"topic": "math"}, "goal": "quality"},
        {"match": {"topic": "code", "metadata": {"tier": "gold"}}, "name": "gold", "explore_models": 0.2},
    ]
    inner = {"kind": "policy", "id": "pos_2", "version": "desk@2026-11-20", "policy": rules}
    stored = {**inner, "id": "pos_1", "policy": {**rules, "classes": classes}, "models": ["good/one"], "chain": None,
              "prefer": [], "classes": [inner]}  # fmt: skip
    with closing(sqlite3.connect(path)) as connection, connection:
        row = ("pos_1", json.dumps(stored).encode())
        connection.execute("INSERT INTO snapshot (id, body, depth, named, at) VALUES (?, ?, 0, 1, 0)", row)
    found = await firm.storage.read(SYSTEM_ACCOUNT, SnapshotById("pos_1"))
    desk = Policy(name="desk", id="pol_desk", goal="cost")
    kept = [PolicyClass(match=PolicyMatch(metadata={}), goal="quality"),
            PolicyClass(match=PolicyMatch(metadata={"tier": "gold"}), name="gold")]  # fmt: skip
    only = PolicySnapshot("pos_2", "desk@2026-11-20", desk)
    assert found == PolicySnapshot("pos_1", only.version, replace(desk, classes=kept), ("good/one",), classes=(only,))


async def test_pages_visit_every_trace_once_and_old_cursors_continue(firm: Firm, expected: Any) -> None:
    whole = expected["contents"]["acme"]["traces"]
    seen, cursor = expected["told"]["page"]
    while cursor is not None:
        page = await firm.traces.query(account="acme", limit=5, cursor=cursor)
        for item in page.data:
            told = {name: held for name, held in whole[item.id].items() if name not in ("spans", "content")}
            assert list(changes(told, plain(item))) == []
        seen, cursor = seen + [item.id for item in page.data], page.next_cursor
    assert seen == sorted(whole, key=lambda each: (whole[each]["created_at"], each), reverse=True)
    failed = (await firm.traces.query(account="acme", filter="status=failed,metadata.team!=chat")).data
    assert [each.id for each in failed] == [each for each in seen if whole[each]["status"] == "failed"]


async def test_traces_read_by_id_and_replay_to_their_digests(firm: Firm, expected: Any) -> None:
    replayed = 0
    for account in ACCOUNTS:
        ids = expected["contents"][account]["snapshots"]
        router = await opened([await firm.storage.read(SYSTEM_ACCOUNT, SnapshotById(each)) for each in ids])
        for trace_id in expected["contents"][account]["traces"]:
            trace = await firm.traces.get(trace_id, account=account)
            for span in trace.spans:
                if isinstance(span, DecisionSpan):
                    assert router.replay(trace).digest == span.digest
                    replayed += 1
    assert replayed > 40


async def test_keys_authenticate_except_the_revoked_one(firm: Firm, expected: Any) -> None:
    keys, ids = expected["keys"], expected["key_ids"]
    for name, account, environment in (("website", "acme", "production"), ("mobile", "beta", "production"),
                                       ("trial", "acme", "sandbox")):  # fmt: skip
        caller = await firm.caller(keys[name])
        assert (caller.account, caller.environment, caller.key_id) == (account, environment, ids[name])
    assert (await firm.caller(keys["reports"])).scopes == ("traces:read", "analytics:read")
    for wrong in (keys["lost"], keys["website"][:-1] + "!"):
        with pytest.raises(AuthenticationFailed):
            await firm.caller(wrong)
    with pytest.raises(AuthenticationFailed):
        await firm.console.authenticate(f"Bearer {keys['trial']}", "production")


async def test_kept_answers_are_replayed_only_for_the_same_body(firm: Firm, expected: Any) -> None:
    told, key = expected["told"], expected["keys"]["website"]
    callers = [await firm.caller(expected["keys"][name]) for name in ("website", "trial")]
    assert told["production"] != told["sandbox"]
    for caller in callers:
        answer = await firm.router.route("keep this", caller=caller, idempotency_key="kept", **KEPT)
        assert answer.output == told[caller.environment]
        with pytest.raises(IdempotencyKeyReused) as refused:
            await firm.router.route("keep that", caller=caller, idempotency_key="kept", **KEPT)
        assert refused.value.status == 409
    assert list(changes(told["http"], (await firm.post(BODY, key, "over-http")).json)) == []
    assert (await firm.post(BODY.replace(b"over", b"by"), key, "over-http")).status == 409
    assert firm.calls == 0


async def test_money_of_killed_calls_is_free_and_the_ledger_lists_them(firm: Firm, expected: Any) -> None:
    caller = await firm.caller(expected["keys"]["website"])
    before = (await firm.console.standing("acme")).balance
    assert before is not None
    assert before.reserved_nanos == 0
    await firm.router.route("Hello", caller=caller, timeout_ms=5_000, **LARGE)  # which found no room beside them
    after = (await firm.console.standing("acme")).balance
    assert after is not None
    assert (after.reserved_nanos, after.spent_nanos - before.spent_nanos) == (0, 100 * 1_000 - 20 * 900 + 50 * 4_000)
    new = [row async for row in firm.ledger.as_account("acme").rows()]
    assert [row.kind for row in new].count("expired") == 3


async def test_an_idempotency_key_in_flight_is_free_and_taken_once(firm: Firm, expected: Any) -> None:
    caller = await firm.caller(expected["keys"]["website"])
    same: dict[str, Any] = {"caller": caller, "idempotency_key": "in-flight", "timeout_ms": 5_000, **LARGE}
    for _ in range(2):
        assert (await firm.router.route("Hello", **same)).output == "an answer to Hello"
        assert firm.calls == 1
    with pytest.raises(IdempotencyKeyReused):
        await firm.router.route("hang", **same)


async def test_windows_continue_and_slots_are_free(firm: Firm, expected: Any) -> None:
    caller = await firm.caller(expected["keys"]["mobile"])
    answer = await firm.router.route("Hello", caller=caller)  # its one slot was taken by a call that was killed
    assert answer.response.usage.rate_limit_remaining == 30 - 4 - 1
    await firm.clock.advance(61.0)
    answer = await firm.router.route("Hello", caller=caller)
    assert answer.response.usage.rate_limit_remaining == 30 - 1


async def test_an_account_can_be_deleted_and_old_traces_expire(firm: Firm, expected: Any) -> None:
    recorded, caller = expected["contents"], await firm.caller(expected["keys"]["website"])
    rows = [row async for row in firm.ledger.as_account("acme").rows()]
    assert await firm.traces.delete(everything=True, account="acme") == len(recorded["acme"]["traces"])
    assert (await firm.traces.usage(FIRST, LAST, account="acme")).totals.requests == 0
    assert [row async for row in firm.ledger.as_account("acme").rows()] == rows
    await firm.router.route("keep this", caller=caller, idempotency_key="kept", **KEPT)
    assert firm.calls == 1, "what was kept went, too"
    assert await firm.traces.retain(Retention(production_days=0.5)) > len(recorded["corp"]["traces"])
    assert (await firm.traces.query(account="corp")).data == []
    usage = await firm.traces.usage(FIRST, LAST, account="corp")
    assert usage.totals.requests == recorded["corp"]["usage"][0]["totals"]["requests"]


async def test_the_firm_continues_in_the_old_store(firm: Firm, expected: Any) -> None:
    caller = await firm.caller(expected["keys"]["website"])
    answer = await firm.router.route("Hello", caller=caller, policy_id="careful", **KEPT)
    await firm.router.feedback(answer.trace_id, 1.0, caller=caller)
    await firm.router.flush()
    rows = [row async for row in firm.ledger.as_account("acme").rows(trace_id=answer.trace_id)]
    assert len(rows) == 1
    new = await firm.console.create_key("acme", name="new")
    assert (await firm.caller(new.secret.reveal())).key_id == new.key.id
    assert len(await firm.console.keys("acme")) == len(expected["contents"]["acme"]["keys"]) + 1


async def test_deleting_failed_calls_of_the_old_version_subtracts_them_from_the_analytics(firm: Firm) -> None:
    traces = firm.traces.as_account("acme")
    failed = [trace async for trace in traces.export() if trace.selected_model is None and trace.model is not None]
    assert failed, "the recording has some"
    before = await requests_by_model(traces)
    for trace in failed:
        await traces.delete(trace_id=trace.id)
    after = await requests_by_model(traces)
    assert {model: count - after[model] for model, count in before.items()} == {
        model: 0 if model else len(failed) for model in before
    }
    assert {*after} <= {*before}


async def requests_by_model(traces: TraceStore) -> Counter[str | None]:
    found: Counter[str | None] = Counter()
    for row in (await traces.usage(FIRST, LAST, group_by="model")).data:
        found[row.group] += row.requests
    return found
