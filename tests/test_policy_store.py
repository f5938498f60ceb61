"""``Console.policies``: drafts, publications, shares, roll-backs, and whose a name is."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from routewright import Catalogue, Console, MemoryStorage, Policy, Router, Settings, SqliteStorage, ValidationFailed
from routewright._core.publication import claim_names
from routewright.errors import NotFound, PreconditionFailed
from routewright.policies import PolicyStore
from routewright.protocols import Storage
from routewright.testing import FakeClock, ScriptedProvider
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Events,
    Model,
    PolicyChanged,
    PolicyRecord,
)

from .console_storage import START

pytestmark = pytest.mark.anyio

DESK = Policy(name="desk", goal="cost")
BETTER = Policy(name="desk", goal="quality")
BEST = Policy(name="desk", goal="quality", strategy="quality-first")
FIRST, SECOND, THIRD = "desk@2026-11-22", "desk@2026-11-22.2", "desk@2026-11-22.3"
FILE = "file /srv/policies.toml"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(start=START.timestamp())


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Storage:
    return (
        MemoryStorage(clock=clock) if request.param == "memory" else SqliteStorage(tmp_path / "traces.db", clock=clock)
    )


@pytest.fixture
async def policies(storage: Storage, clock: FakeClock) -> AsyncIterator[PolicyStore]:
    async with Console(storage, clock=clock) as console:
        yield console.policies


async def publish(policies: PolicyStore, *texts: Policy) -> None:
    for text in texts:
        await policies.draft(text)
        await policies.publish(text.name)


async def labels(policies: PolicyStore) -> tuple[str | None, str | None]:
    """Labels of the version in force and of the one with a share."""
    record = await policies.get("desk")
    by_content = {version.content: version.label for version in await policies.versions("desk")}
    shared = None if record.share is None else by_content[record.share.content]
    return None if record.content is None else by_content[record.content], shared


async def announced(storage: Storage) -> list[tuple[str | None, str | None]]:
    events = await storage.scan(SYSTEM_ACCOUNT, Events(), after=None, limit=100)
    changes = [event.event.data for event in reversed(events)]
    assert all(isinstance(change, PolicyChanged) for change in changes)
    return [(change.from_version, change.to_version) for change in changes if isinstance(change, PolicyChanged)]


# drafts


async def test_a_draft_is_kept_with_its_author_and_time_and_changes_nothing_in_force(policies: PolicyStore) -> None:
    await publish(policies, DESK)
    record = await policies.draft(replace(BETTER, created_at="2020-01-01T00:00:00Z"), by="ada")
    assert record == await policies.get("desk")
    assert (record.draft, record.drafted_by, record.drafted_at) == (BETTER, "ada", "2026-11-22T12:00:00.000Z")
    assert await labels(policies) == (FIRST, None)
    assert (await policies.discard("desk")).draft is None
    assert [record.name for record in await policies.list()] == ["desk"]


async def test_a_draft_made_from_an_older_one_is_refused(policies: PolicyStore, clock: FakeClock) -> None:
    mine = await policies.draft(DESK)
    await clock.advance(1.0)
    theirs = await policies.draft(BETTER, by="bob", expect=mine)
    with pytest.raises(PreconditionFailed, match="desk has changed since it was read"):
        await policies.draft(BEST, by="ada", expect=mine)
    await policies.publish("desk")
    for policy in (BEST, Policy(name="other")):
        with pytest.raises(PreconditionFailed):
            await policies.draft(policy, expect=theirs)
    assert (await policies.draft(BEST, expect=await policies.get("desk"))).draft == BEST


async def test_changes_of_another_record_than_expected_are_refused(policies: PolicyStore) -> None:
    seen = await policies.draft(DESK, by="ada")
    await policies.draft(BETTER, by="bob")
    for change in (policies.discard, policies.publish, policies.roll_back, policies.retire):
        with pytest.raises(PreconditionFailed, match="desk has changed since it was read"):
            await change("desk", expect=seen)
    assert (await policies.publish("desk", expect=await policies.get("desk"))).policy == BETTER
    await policies.draft(DESK)
    assert (await policies.discard("desk", expect=await policies.get("desk"))).draft is None
    assert (await policies.retire("desk", expect=await policies.get("desk"))).content is None
    assert (await policies.roll_back("desk", expect=await policies.get("desk"))).policy == BETTER


async def test_states_hold_the_versions_that_serve(policies: PolicyStore, storage: Storage, clock: FakeClock) -> None:
    for policy, share in ((DESK, None), (BETTER, 0.5)):
        await policies.draft(policy)
        await policies.publish("desk", share=share)
    await policies.draft(Policy(name="new"))
    async with Router(providers=[], storage=storage, policies=[Policy(name="coded")], settings=Settings(clock=clock)):
        states = {state.record.name: state for state in await policies.states()}
    assert [*states] == ["coded", "desk", "new"]
    versions = [(state.version and state.version.label, state.shared) for state in states.values()]
    assert versions == [("coded@2026-11-22", None), (FIRST, await policies.find(SECOND)), (None, None)]


async def test_a_model_that_nobody_knows_is_refused_with_the_nearest_name(policies: PolicyStore) -> None:
    await policies.draft(replace(DESK, models=["openai/gpt-4.1-mimi"]))
    for refuse in (policies.check, policies.publish):
        with pytest.raises(ValidationFailed, match=r"models\[0\]: unknown model .*did you mean 'openai/gpt-4.1-mini'"):
            await refuse("desk")
    assert await policies.versions("desk") == []


async def test_models_of_recent_traces_and_of_the_consoles_catalogue_are_known(
    storage: Storage, clock: FakeClock
) -> None:
    mine = Model(id="mine/one", provider="mine", context_window=8_000, quality=0.5)
    policies = Console(storage, clock=clock).policies
    draft = await policies.draft(replace(DESK, models=["mine/one"]))
    with pytest.raises(
        ValidationFailed, match=r"unknown model 'mine/one'.*; models of your own .* Console\(catalogue="
    ):
        await policies.check("desk")
    assert await Console(storage, catalogue=Catalogue([mine]), clock=clock).policies.check("desk") == draft.draft
    provider = ScriptedProvider(["Hi"], models=[mine])
    router = Router(providers=[provider], storage=storage, settings=Settings(clock=clock))
    await router.route("Hello")
    await router.flush()
    assert await policies.check("desk") == draft.draft


async def test_a_shadow_is_a_draft_or_policy_of_the_storage(policies: PolicyStore) -> None:
    await policies.draft(replace(DESK, shadow="bold"))
    with pytest.raises(
        ValidationFailed, match=r"policies\['desk'\]\.shadow: there is no draft or policy 'bold'; draft it"
    ):
        await policies.publish("desk")
    await policies.draft(Policy(name="bold", goal="quality"))
    assert (await policies.publish("desk")).label == FIRST


async def test_an_id_that_another_policy_has_is_refused(policies: PolicyStore) -> None:
    await publish(policies, replace(DESK, id="pol_mine"))
    await policies.draft(Policy(name="copy", id="pol_mine"))
    with pytest.raises(ValidationFailed, match="'pol_mine' is used twice"):
        await policies.publish("copy")


# publications


async def test_a_publication_records_who_made_it_why_and_when(policies: PolicyStore, storage: Storage) -> None:
    await policies.draft(DESK, by="ada")
    version = await policies.publish("desk", by="bob", note="cheaper")
    assert (version.label, version.policy, version.by, version.note) == (FIRST, DESK, "bob", "cheaper")
    assert await policies.versions("desk") == [version]
    assert await policies.get("desk") == PolicyRecord(
        name="desk", content=version.content, changed_at="2026-11-22T12:00:00.000Z", changed_by="bob", note="cheaper"
    )
    assert await announced(storage) == [(None, FIRST)]


async def test_a_text_has_one_label_for_ever(policies: PolicyStore, storage: Storage) -> None:
    await publish(policies, DESK, BETTER, DESK, DESK)
    assert [version.label for version in await policies.versions("desk")] == [SECOND, FIRST]
    assert await labels(policies) == (FIRST, None)
    assert await announced(storage) == [(None, FIRST), (FIRST, SECOND), (SECOND, FIRST)]


async def test_without_a_draft_there_is_nothing_to_publish(policies: PolicyStore) -> None:
    with pytest.raises(NotFound, match="there is no policy 'desk'; draft"):
        await policies.publish("desk")
    await publish(policies, DESK)
    with pytest.raises(ValidationFailed, match="'desk' has no draft"):
        await policies.publish("desk")
    with pytest.raises(NotFound, match="did you mean 'desk'"):
        await policies.get("disk")


# shares


async def test_a_share_runs_beside_the_version_in_force_until_it_is_published(
    policies: PolicyStore, storage: Storage
) -> None:
    await publish(policies, DESK)
    await policies.draft(BETTER)
    assert (await policies.publish("desk", share=0.1, share_by="metadata.user")).label == SECOND
    assert await labels(policies) == (FIRST, SECOND)
    await policies.publish("desk", share=0.5)
    record = await policies.get("desk")
    assert record.share is not None
    assert (record.share.fraction, record.share.by) == (0.5, "metadata.user")
    await policies.draft(BEST)
    for share in (None, 0.7):
        with pytest.raises(ValidationFailed, match=f"a share of {SECOND} runs, .* a newer draft; roll_back"):
            await policies.publish("desk", share=share)
    await policies.discard("desk")
    assert (await policies.publish("desk", by="ada", note="no complaints")).label == SECOND
    assert await labels(policies) == (SECOND, None)
    assert (await policies.get("desk")).note == "no complaints"
    assert await announced(storage) == [(None, FIRST), (FIRST, SECOND), (FIRST, SECOND)]


async def test_rolling_back_ends_a_share_first(policies: PolicyStore, storage: Storage) -> None:
    await publish(policies, DESK, BETTER)
    await policies.draft(BEST)
    await policies.publish("desk", share=0.1)
    assert (await policies.roll_back("desk")).label == SECOND
    assert await labels(policies) == (SECOND, None)
    assert (await policies.roll_back("desk")).label == FIRST
    assert (await announced(storage))[2:] == [(SECOND, THIRD), (THIRD, SECOND), (SECOND, FIRST)]


async def test_a_share_needs_a_version_in_force_and_a_fraction(policies: PolicyStore) -> None:
    await policies.draft(DESK)
    with pytest.raises(ValidationFailed, match="'desk' has no other version in force to share its traffic with"):
        await policies.publish("desk", share=0.1)
    await publish(policies, DESK)
    await policies.draft(DESK)
    with pytest.raises(ValidationFailed, match=r"share: 'desk' has no other version in force .*; leave it out"):
        await policies.publish("desk", share=0.1)
    await policies.draft(BETTER)
    for share in (0, 1, -0.1, 1.5, True, "half", float("nan")):
        with pytest.raises(ValidationFailed, match=r"share: is .* above 0 and below 1"):
            await policies.publish("desk", share=share)  # type: ignore[arg-type]
    for share_by in ("user", "metadata.", ""):
        with pytest.raises(ValidationFailed, match="share_by"):
            await policies.publish("desk", share=0.1, share_by=share_by)
    with pytest.raises(ValidationFailed, match="share_by: is set without a share"):
        await policies.publish("desk", share_by="metadata.user")
    with pytest.raises(ValidationFailed, match="by: must be 0 to 100 printable characters"):
        await policies.publish("desk", by=7)  # type: ignore[arg-type]
    assert await labels(policies) == (FIRST, None)


# back


async def test_rolling_back_again_goes_further_back(policies: PolicyStore) -> None:
    await publish(policies, DESK, BETTER, DESK, BEST)
    walk = [(await policies.roll_back("desk")).label for _ in range(3)]
    assert walk == [FIRST, SECOND, FIRST]
    with pytest.raises(ValidationFailed, match="to: is missing, and 'desk' has no previous version; name the version"):
        await policies.roll_back("desk")


async def test_a_named_version_comes_back(policies: PolicyStore) -> None:
    await publish(policies, DESK, BETTER, BEST)
    assert (await policies.roll_back("desk", to=FIRST, by="ada")).policy == DESK
    with pytest.raises(NotFound, match=f"there is no version 'desk@2026-11-22.9'; did you mean '{FIRST}"):
        await policies.roll_back("desk", to="desk@2026-11-22.9")
    assert (await policies.roll_back("desk", to=THIRD)).label == THIRD
    assert (await policies.roll_back("desk")).label == FIRST
    assert (await policies.get("desk")).changed_by == ""


async def test_a_retired_policy_is_out_of_force_until_it_is_rolled_back(
    policies: PolicyStore, storage: Storage
) -> None:
    await publish(policies, DESK, BETTER)
    record = await policies.retire("desk", by="ada")
    assert (record.content, record.share, record.changed_by) == (None, None, "ada")
    assert (await policies.roll_back("desk")).label == SECOND
    assert (await announced(storage))[2:] == [(SECOND, None), (None, SECOND)]


# owners


async def claim(storage: Storage, owner: str, *names: str) -> None:
    records = await Console(storage).policies.list()
    await storage.apply(SYSTEM_ACCOUNT, [*claim_names(owner, names, records, "2026-11-22T12:00:00.000Z")])


async def test_a_name_of_a_file_is_not_published_from_the_storage(policies: PolicyStore, storage: Storage) -> None:
    await claim(storage, FILE, "desk")
    await policies.draft(DESK)
    changes: list[Callable[[str], object]] = [policies.publish, policies.roll_back]
    for change in changes:
        with pytest.raises(ValidationFailed, match=f"'desk' is owned by {FILE}; change it there, or free the name"):
            await change("desk")  # type: ignore[misc]
    await claim(storage, FILE, "desk")  # a draft is no obstacle
    await policies.retire("desk")
    await policies.publish("desk", by="ada")
    for owner in (FILE, "code"):
        message = r"policies\['desk'\]: 'desk' is published in the storage by ada, 2026-11-22T12:00:00.000Z; "
        with pytest.raises(ValidationFailed, match=f"{message}take it out of the {owner.split()[0]}, or retire it"):
            await claim(storage, owner, "other", "desk")
    assert [record.name for record in await policies.list()] == ["desk"], "nothing is claimed beside a conflict"


async def test_names_gone_from_a_file_are_free_and_those_of_code_stay(storage: Storage) -> None:
    policies = Console(storage).policies
    await claim(storage, FILE, "a", "b")
    await claim(storage, "code", "c")
    await claim(storage, FILE, "b")
    await claim(storage, "code", "b")
    assert {record.name: record.owner for record in await policies.list()} == {"a": "storage", "b": "code", "c": "code"}
    assert claim_names("code", ["b", "c"], await policies.list(), "") == [], "a restart writes nothing"


# later versions


def rewrite(path: Path, old: str, new: str) -> None:
    """Replace a text in all settings of a store."""
    with closing(sqlite3.connect(path)) as connection, connection:
        sql = "UPDATE setting SET body = CAST(replace(CAST(body AS TEXT), ?, ?) AS BLOB)"
        connection.execute(sql, (old, new))


async def version_in_use(storage: Storage, clock: FakeClock) -> str:
    async with Router.sandbox(storage=storage, settings=Settings(clock=clock)) as router:
        return (await router.route("Hello", policy_id="desk")).routing.policy_version


PRESENT, LATER = '"goal":"quality"', '"goal":"quality","rule_of_a_later_version":1'


async def test_a_draft_of_a_later_version_hides_nothing_else(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "store.db"
    async with Console(SqliteStorage(path, clock=clock), clock=clock) as console:
        policies = console.policies
        await publish(policies, DESK, replace(DESK, min_quality=0.1))
        before = await policies.draft(BETTER, by="ada")
        rewrite(path, PRESENT, LATER)
        assert await policies.list() == [replace(before, draft=None)]
        assert await version_in_use(SqliteStorage(path, clock=clock), clock) == SECOND
        with pytest.raises(ValidationFailed, match="'desk' has no draft"):
            await policies.publish("desk")
        assert (await policies.roll_back("desk")).label == FIRST
        await policies.draft(Policy(name="other"))
        rewrite(path, LATER, PRESENT)
        assert (await policies.get("desk")).draft == BETTER, "changes keep the draft"
        rewrite(path, PRESENT, LATER)
        await policies.discard("desk")
        rewrite(path, LATER, PRESENT)
        record = await policies.get("desk")
        assert (record.draft, record.drafted_at) == (None, None)


async def test_a_record_of_a_later_version_is_left_out_and_not_replaced(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "store.db"
    storage = SqliteStorage(path, clock=clock)
    async with Console(storage, clock=clock) as console:
        policies = console.policies
        await claim(storage, FILE, "shop")
        before = await policies.get("shop")
        rewrite(path, f'"{FILE}"', "[7]")
        await publish(policies, DESK)
        assert [record.name for record in await policies.list()] == ["desk"]
        with pytest.raises(PreconditionFailed):
            await policies.draft(Policy(name="shop"))
        rewrite(path, "[7]", f'"{FILE}"')
        assert await policies.get("shop") == before


async def test_a_published_text_of_a_later_version_is_a_version_without_text(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    async with Console(SqliteStorage(path, clock=clock), clock=clock) as console:
        policies = console.policies
        await publish(policies, DESK, BETTER)
        rewrite(path, PRESENT, LATER)
        versions = await policies.versions("desk")
        assert [(version.label, version.policy) for version in versions] == [(SECOND, None), (FIRST, DESK)]
        assert await version_in_use(SqliteStorage(path, clock=clock), clock) == FIRST
        assert f"{SECOND} is not used: its text is missing, or a later version" in caplog.text
        assert (await policies.roll_back("desk")).label == FIRST


# differences
