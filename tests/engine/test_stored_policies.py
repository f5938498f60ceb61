"""A Router uses the policies that its storage publishes; a name has one owner; a share serves a part of the traffic."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from routewright import Console, MemoryStorage, Policy, Router, Settings, SqliteStorage, ValidationFailed
from routewright._core.catalogue.models import content_id
from routewright._core.publication import put_in_force
from routewright.errors import StorageUnavailable, UnsupportedWrite
from routewright.policies import PolicyFile
from routewright.protocols import Storage
from routewright.testing import FakeClock
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Caller,
    PolicyClass,
    PolicyGuardrail,
    PolicyRecord,
    PolicyRecords,
    PolicyShare,
    PolicyWhen,
    PutPolicyRecord,
    PutPolicyVersion,
    Query,
    Write,
    Written,
)

pytestmark = pytest.mark.anyio
START = 1_795_255_200.0
"""2026-11-21T10:00:00Z."""
FAST, GOOD = (Policy(name="desk", models=[model]) for model in ("openai/gpt-4.1", "openai/gpt-6-luna"))
UNKNOWN = Policy(name="desk", models=["openai/gpt-0"])
NOON = "2026-11-21T12:00:00Z"


def write_of(policy: Policy) -> PutPolicyVersion:
    return PutPolicyVersion(content_id([policy]), policy.name, NOON, policy)


async def publish(storage: Storage, *policies: Policy, share: float | None = None, by: str = "account") -> None:
    """Put the last of these texts of a policy in force, or with ``share`` the last but one beside the last."""
    writes = [write_of(policy) for policy in policies]
    *before, last = [write.content for write in writes]
    part = None
    if share is not None:
        part, last = PolicyShare(last, share, by), before.pop()
    record = PolicyRecord(name="desk", content=last, share=part, previous=tuple(before), changed_at=NOON)
    await storage.apply(SYSTEM_ACCOUNT, [*writes, PutPolicyRecord(record)])


async def records(storage: Storage) -> list[PolicyRecord]:
    return await storage.read(SYSTEM_ACCOUNT, PolicyRecords())


def desk(storage: Storage, clock: FakeClock, policies: Sequence[Policy] | PolicyFile = ()) -> Router:
    return Router.sandbox(policies=policies, storage=storage, settings=Settings(clock=clock))


def model(router: Router, **options: Any) -> str:
    return router.decide("Hello", policy_id="desk", **options).model


async def test_a_publication_is_in_force_at_the_first_use_and_within_two_seconds_after_it(tmp_path: Path) -> None:
    clock = FakeClock(START)
    storage = SqliteStorage(tmp_path / "store.db", clock=clock)
    await publish(storage, FAST)
    async with desk(storage, clock) as router:
        assert model(router) == "openai/gpt-4.1"
        await publish(storage, FAST, GOOD)
        await clock.advance(2.1)
        answer = await router.route("Hello", policy_id="desk")
        assert (answer.routing.selected_model, answer.routing.policy_version) == (
            *("openai/gpt-6-luna", "desk@2026-11-21.2"),
        )
        assert [policy.name for policy in router.policies()] == ["desk"]


async def test_a_policy_that_is_retired_is_named_so() -> None:
    clock, storage = FakeClock(START), MemoryStorage()
    await publish(storage, FAST)
    async with desk(storage, clock) as router:
        model(router)
        (record,) = await records(storage)
        await storage.apply(SYSTEM_ACCOUNT, [PutPolicyRecord(put_in_force(record, None, None, NOON, ""))])
        await clock.advance(3)
        with pytest.raises(ValidationFailed, match=r"the policy 'desk' is retired; Console\.policies\.roll_back"):
            model(router)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_version_that_names_an_unknown_model_leaves_the_one_before_in_force(
    restarts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock, storage = FakeClock(START), MemoryStorage()
    await publish(storage, FAST)
    async with desk(storage, clock) as router:
        model(router)
        await publish(storage, FAST, UNKNOWN)
        await clock.advance(9)
        router = desk(storage, clock) if restarts else router
        assert model(router) == "openai/gpt-4.1"
        messages = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert len(messages) == 1 + restarts
        assert messages[0].startswith("desk@2026-11-21.2 is not used: ")
        assert "openai/gpt-0" in messages[0]
        assert [problem for problem in router.status().problems if "openai/gpt-0" in problem]
        await publish(storage, FAST, UNKNOWN, GOOD)
        await clock.advance(3)
        assert restarts or model(router) == "openai/gpt-6-luna"
        assert restarts or not router.status().problems
    await router.aclose()


async def test_all_processes_go_back_by_one_version_and_no_further() -> None:
    clock, storage = FakeClock(START), MemoryStorage()
    await publish(storage, FAST)
    async with desk(storage, clock) as router:
        model(router)
        await publish(storage, FAST, UNKNOWN)
        await clock.advance(3)
        assert model(router) == "openai/gpt-4.1"
        await publish(storage, FAST, UNKNOWN, replace(UNKNOWN, goal="quality"))
        await clock.advance(3)
        async with desk(storage, clock) as restarted:
            for process in (router, restarted):
                with pytest.raises(ValidationFailed, match="unknown policy 'desk'"):
                    model(process)


PATTERN = PolicyGuardrail(action="block", custom={"number": "("})
WRONG = {
    "custom.number: is not a regular expression": Policy(name="desk", guardrails=[PATTERN]),
    "spent_of_month: is 'much'": Policy(name="desk", classes=[PolicyClass(when=PolicyWhen(spent_of_month="much"))]),
    "timeout_ms: must be a whole number": Policy(name="desk", timeout_ms=-5),
}
"""Texts that no ``Console`` publishes, but that another program may have written."""


@pytest.mark.parametrize("problem", WRONG)
async def test_a_version_with_invalid_rules_leaves_the_one_before_in_force(problem: str) -> None:
    clock, storage = FakeClock(START), MemoryStorage()
    await publish(storage, FAST)
    async with desk(storage, clock) as router:
        model(router)
        await publish(storage, FAST, WRONG[problem])
        await clock.advance(3)
        assert model(router) == "openai/gpt-4.1"
        assert any(problem in entry for entry in router.status().problems)
        async with desk(storage, clock) as restarted:
            assert model(restarted) == "openai/gpt-4.1"
            await publish(storage, FAST, GOOD)
            await clock.advance(3)
            assert model(router) == model(restarted) == "openai/gpt-6-luna"


async def test_a_router_that_picks_up_a_publication_does_not_announce_it_again() -> None:
    clock, storage, heard = FakeClock(START), MemoryStorage(), list[object]()
    async with desk(storage, clock) as router:
        router.on_event(heard.append)
        router.policies()
        await publish(storage, FAST)
        await clock.advance(3)
        assert model(router) == "openai/gpt-4.1"
        assert router.reload_policies([]) == []
        await router.flush()
    assert heard == []


class Counting(MemoryStorage):
    """Counts the queries, and may be away or not know some."""

    error: Exception | None = None

    def __init__(self) -> None:
        super().__init__()
        self.queries: list[type] = []

    async def read(self, account: str, query: Query) -> Any:
        self.queries.append(type(query))
        if self.error is not None and isinstance(query, PolicyRecords):
            raise self.error
        return await super().read(account, query)

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        if self.error is not None and any(isinstance(write, PutPolicyRecord | PutPolicyVersion) for write in writes):
            raise self.error
        return await super().apply(account, writes)


async def test_without_a_change_a_router_reads_the_records_every_two_seconds_and_nothing_else() -> None:
    clock, storage = FakeClock(START), Counting()
    await publish(storage, FAST)
    async with desk(storage, clock, [Policy(name="mine")]) as router:
        model(router)
        await clock.advance(2.1)
        before = router._parts.engine.policy_table
        storage.queries.clear()
        await clock.advance(20)
        assert storage.queries == [PolicyRecords] * 10
        assert router._parts.engine.policy_table is before


async def test_publications_are_known_once_the_storage_is_available(caplog: pytest.LogCaptureFixture) -> None:
    clock, storage = FakeClock(START), Counting()
    await publish(storage, FAST)
    storage.error = StorageUnavailable("the disk is full")
    async with desk(storage, clock) as router:
        assert router.decide("Hello").model
        assert router.policies() == []
        with pytest.raises(StorageUnavailable, match="the storage cannot be read, and may know the policy 'desk'"):
            model(router)
        await clock.advance(20)
        assert [problem for problem in router.status().problems if "the disk is full" in problem]
        storage.error = None
        await clock.advance(3)
        assert model(router) == "openai/gpt-4.1"
        storage.error = StorageUnavailable("the disk is full")
        await clock.advance(3)
        assert model(router) == "openai/gpt-4.1", "what was read stays in force"
        storage.error = None
        await clock.advance(3)
        with pytest.raises(ValidationFailed, match="unknown policy 'shop'"):
            router.decide("Hello", policy_id="shop")
    assert len([record for record in caplog.records if "the disk is full" in record.message]) == 2


async def test_publications_do_not_wait_for_the_versions_of_the_routers_own_policies() -> None:
    clock, storage = FakeClock(START), Counting()
    storage.error = StorageUnavailable("the disk is full")
    async with desk(storage, clock, [Policy(name="mine", models=["openai/gpt-4.1"])]) as router:
        version = (await router.route("Hello", policy_id="mine")).routing.policy_version
        assert ".x" in version, "it is provisional"
        storage.error = None
        taken = write_of(Policy(name="mine"))
        record = PolicyRecord(name="mine", content=taken.content, changed_at=NOON)
        await storage.apply(SYSTEM_ACCOUNT, [taken, PutPolicyRecord(record)])
        await publish(storage, FAST)
        with pytest.raises(ValidationFailed, match="'desk' is published in the storage"):
            router.reload_policies([GOOD])
        await clock.advance(3)
        assert model(router) == "openai/gpt-4.1"
        assert (await router.route("Hello", policy_id="mine")).routing.policy_version == version
        assert [problem for problem in router.status().problems if "'mine' is published in the storage" in problem]
        await storage.apply(SYSTEM_ACCOUNT, [PutPolicyRecord(put_in_force(record, None, None, NOON, ""))])
        await clock.advance(3)
        assert ".x" not in (await router.route("Hello", policy_id="mine")).routing.policy_version
        assert router.status().problems == []


async def test_a_refused_reload_hides_no_publication() -> None:
    clock, storage = FakeClock(START), MemoryStorage()
    async with desk(storage, clock) as router:
        router.policies()
        await publish(storage, FAST)
        with pytest.raises(ValidationFailed, match="is published in the storage"):
            router.reload_policies([GOOD])
        await clock.advance(3)
        assert model(router) == "openai/gpt-4.1"


class Odd(MemoryStorage):
    """Returns records that no storage may return."""

    odd: Any = None

    async def read(self, account: str, query: Query) -> Any:
        is_odd = self.odd is not None and isinstance(query, PolicyRecords)
        return (
            [PolicyRecord(name="desk", changed_at=NOON, previous=self.odd)]
            if is_odd
            else await super().read(account, query)
        )


async def test_records_that_make_no_sense_do_not_end_the_watch() -> None:
    clock, storage = FakeClock(START), Odd()
    await publish(storage, FAST)
    async with desk(storage, clock) as router:
        model(router)
        storage.odd = 5
        await clock.advance(3)
        assert model(router) == "openai/gpt-4.1"
        assert [problem for problem in router.status().problems if "failed with TypeError" in problem]
        storage.odd = None
        await publish(storage, FAST, GOOD)
        await clock.advance(3)
        assert model(router) == "openai/gpt-6-luna"
        assert router.status().problems == []


async def test_a_storage_without_publications_keeps_the_versions_of_policies() -> None:
    clock, storage = FakeClock(START), Counting()
    async with desk(storage, clock, [FAST]) as router:
        storage.error = UnsupportedWrite("no records here")
        await clock.advance(3)
        assert (await router.route("Hello", policy_id="desk")).routing.policy_version == "desk@2026-11-21"
        assert router.status().problems == []


# Owners


async def test_code_owns_the_names_of_its_policies() -> None:
    clock, storage = FakeClock(START), MemoryStorage()
    async with desk(storage, clock, [FAST]) as router:
        model(router)
        assert [(record.name, record.owner) for record in await records(storage)] == [("desk", "code")]


async def test_a_file_refused_for_a_published_name_is_in_force_once_the_name_is_retired(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, storage = FakeClock(START), MemoryStorage()
    path = tmp_path / "policies.toml"
    path.write_text('[[policies]]\nname = "mine"\n')
    await publish(storage, FAST)
    file = PolicyFile(path, every_s=2)
    async with desk(storage, clock, file) as router:
        assert model(router) == "openai/gpt-4.1"
        path.write_text('[[policies]]\nname = "desk"\nmodels = ["openai/gpt-6-luna"]\n')
        await clock.advance(10)
        assert model(router) == "openai/gpt-4.1"
        assert [record.message.count("take it out of the file") for record in caplog.records] == [1]
        await Console(storage, clock=clock).policies.retire("desk")
        await clock.advance(5)
        assert model(router) == "openai/gpt-6-luna"
        assert file.problem is None


async def test_a_name_that_the_storage_publishes_is_refused_to_code() -> None:
    clock, storage = FakeClock(START), MemoryStorage()
    await publish(storage, FAST)
    router = desk(storage, clock, [GOOD])
    message = rf"'desk' is published in the storage by somebody, {NOON}; take it out of the code, or retire it"
    with pytest.raises(ValidationFailed, match=message):
        model(router)
    router = desk(storage, clock)
    with pytest.raises(ValidationFailed, match="is published in the storage"):
        router.reload_policies([GOOD])
    assert model(router) == "openai/gpt-4.1"
    await router.aclose()


async def test_a_file_that_names_a_policy_of_the_storage_changes_nothing_and_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, storage, path = FakeClock(START), MemoryStorage(), tmp_path / "policies.toml"
    await publish(storage, FAST)
    path.write_text('[[policies]]\nname = "mine"\n')
    async with desk(storage, clock, PolicyFile(path)) as router:
        router.policies()
        path.write_text('[[policies]]\nname = "mine"\n[[policies]]\nname = "desk"\n')
        await clock.advance(3)
        assert model(router) == "openai/gpt-4.1"
        (message,) = [record.message for record in caplog.records]
        assert message.startswith(f"the policies stay unchanged: {path}: policies['desk']: 'desk' is published")


async def test_names_that_are_gone_from_a_file_are_free(tmp_path: Path) -> None:
    clock, storage, path = FakeClock(START), MemoryStorage(), tmp_path / "policies.toml"
    path.write_text('[[policies]]\nname = "mine"\n[[policies]]\nname = "desk"\n')
    async with desk(storage, clock, PolicyFile(path)) as router:
        router.policies()
        owner = f"file {path}"
        assert [(record.name, record.owner) for record in await records(storage)] == [("desk", owner), ("mine", owner)]
        path.write_text('[[policies]]\nname = "mine"\n')
        router.reload_policies()
        assert [record.owner for record in await records(storage)] == ["storage", owner]
        await publish(storage, GOOD)
        await clock.advance(3)
        assert model(router) == "openai/gpt-6-luna"


# Shares


async def test_a_share_serves_its_part_and_each_trace_says_which_version_did() -> None:
    clock, storage = FakeClock(START), MemoryStorage()
    await publish(storage, FAST, GOOD, share=0.3)
    async with desk(storage, clock) as router:
        models = dict[str, str]()
        for number in range(40):
            caller = Caller(f"account {number}", "sandbox")
            answer = await router.route("Hello", policy_id="desk", caller=caller)
            models[caller.account] = answer.routing.selected_model
            version = {"openai/gpt-4.1": "desk@2026-11-21", "openai/gpt-6-luna": "desk@2026-11-21.2"}
            assert answer.trace.policy_version == version[answer.routing.selected_model]
            decision_input = answer.trace.decision_input
            assert decision_input is not None
            assert len(decision_input.assignment) == 16
            assert router.replay(answer.trace).digest == answer.decision.digest
        shared = [account for account, chosen in models.items() if chosen == "openai/gpt-6-luna"]
        assert 4 <= len(shared) <= 20
        assert [policy.name for policy in router.policies()] == ["desk"]
        await publish(storage, FAST, GOOD, share=0.6)
        await clock.advance(3)
        assert {model(router, caller=Caller(account, "sandbox")) for account in shared} == {"openai/gpt-6-luna"}
        await publish(storage, FAST, GOOD)
        await clock.advance(3)
        decision = router.decide("Hello", policy_id="desk")
        assert (decision.model, decision.input.assignment) == ("openai/gpt-6-luna", "")


async def test_a_share_by_metadata_leaves_requests_without_it_to_the_main_version() -> None:
    clock, storage = FakeClock(START), MemoryStorage()
    await publish(storage, FAST, GOOD, share=0.999999, by="metadata.user")
    async with desk(storage, clock) as router:
        assert model(router) == "openai/gpt-4.1"
        assert model(router, metadata={"user": "ada"}) == "openai/gpt-6-luna"


async def test_a_share_that_cannot_be_used_is_served_by_the_main_version(caplog: pytest.LogCaptureFixture) -> None:
    clock, storage = FakeClock(START), MemoryStorage()
    await publish(storage, FAST, UNKNOWN, share=0.999999)
    async with desk(storage, clock) as router:
        assert model(router) == "openai/gpt-4.1"
        assert [record.message[:30] for record in caplog.records] == ["desk@2026-11-21.2 is not used:"]
