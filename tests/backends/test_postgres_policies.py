"""Processes draft, publish, share, roll back and retire the same policies in PostgreSQL, and leave a serial history."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import anyio
import msgspec
import psycopg
import pytest
from msgspec.structs import replace

from routewright import Console, open_storage
from routewright._core.catalogue.models import content_id
from routewright.backends.storage.postgres.connections import Address
from routewright.backends.storage.postgres.schema import create
from routewright.wire import SYSTEM_ACCOUNT, Events, PolicyChanged, PolicyRecord, PolicyVersion
from tests.database_servers import PostgresServer

from .postgres_stores import new_schema
from .processes import program

pytestmark = pytest.mark.anyio

PROCESSES = 8
NAMES = "desk", "shop"
AUDIT = """
CREATE TABLE audit (n bigint GENERATED ALWAYS AS IDENTITY, body bytea);
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit (body) VALUES (NEW.body);
    RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE ON setting FOR EACH ROW WHEN (NEW.name = 'policies')
    EXECUTE FUNCTION audit();
"""
RACE = """
    import random
    from routewright import Console, Policy, open_storage
    from routewright.errors import NotFound, PreconditionFailed, ValidationFailed

    async def change(url, seed, rounds):
        policies = Console(open_storage(url), secret="0123456789abcdef" * 4).policies
        chance = random.Random(seed)
        changes = overtaken = 0
        for number in range(rounds):
            name = chance.choice(["desk", "shop"])
            kind = chance.choice(["draft", "draft", "publish", "publish", "share", "roll_back", "retire"])
            try:
                match kind:
                    case "draft":
                        await policies.draft(Policy(name=name, min_quality=chance.randrange(40) / 100))
                    case "publish":
                        await policies.publish(name)
                    case "share":
                        await policies.publish(name, share=chance.choice([0.1, 0.5]))
                    case "roll_back":
                        await policies.roll_back(name)
                    case "retire":
                        await policies.retire(name)
                changes += 1
            except PreconditionFailed:
                overtaken += 1
            except (NotFound, ValidationFailed):
                pass
        say(f"{changes} {overtaken}")

    url, processes, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    children = []
    for number in range(processes):
        if not (child := os.fork()):
            anyio.run(change, url, number, rounds)
            os._exit(0)
        children.append(child)
    sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


async def test_racing_changes_leave_a_serial_history(postgres_server: PostgresServer, full: bool) -> None:
    url = new_schema(postgres_server)
    create(Address(url))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(AUDIT.encode())
        race = program(RACE, url, PROCESSES, 60 if full else 8)
        ended = await anyio.run_process(race)
        counts = [line.split() for line in ended.stdout.decode().splitlines()]
        bodies = connection.execute("SELECT body FROM audit ORDER BY n").fetchall()
    decode = msgspec.json.Decoder(dict[str, PolicyRecord]).decode
    history = [decode(body) for (body,) in bodies]
    assert len(counts) == PROCESSES
    assert len(history) == sum(int(changes) for changes, _ in counts)
    assert sum(int(overtaken) for _, overtaken in counts), "they were in each other's way"
    policies = Console(open_storage(url), secret="0123456789abcdef" * 4).policies
    versions = {version.content: version for name in NAMES for version in await policies.versions(name)}
    announced: Counter[tuple[str, str | None, str | None]] = Counter()
    for before, after in pairwise([{}, *history]):
        (name,) = [name for name in after if before.get(name) != after[name]]
        announced.update(step(before.get(name) or PolicyRecord(name=name, changed_at=""), after[name], versions))
    storage = open_storage(url)
    events = await storage.scan(SYSTEM_ACCOUNT, Events(), after=None, limit=100_000)
    changes = [event.event.data for event in events]
    assert announced == Counter(
        (change.name, change.from_version, change.to_version) for change in changes if isinstance(change, PolicyChanged)
    )
    published = {version.label for version in versions.values()}
    assert published
    for name in {label.partition("@")[0] for label in published}:
        labels = {label for label in published if label.partition("@")[0] == name}
        (day, *_) = sorted(labels, key=len)
        assert labels == {day, *(f"{day}.{number}" for number in range(2, len(labels) + 1))}, "one day, no gap"
    await storage.aclose()


def step(
    before: PolicyRecord, after: PolicyRecord, versions: dict[str, PolicyVersion]
) -> list[tuple[str, str | None, str | None]]:
    """Check that one change leads from a record to the next. Returns the event that it must have stored."""

    def event(old: str | None, new: str | None) -> list[tuple[str, str | None, str | None]]:
        labels = [None if content is None else versions[content].label for content in (old, new)]
        return [] if old == new else [(after.name, labels[0], labels[1])]

    in_force, share, older = before.content, before.share, before.previous
    pushed = older if in_force is None else (*older, in_force)
    now = after.content, after.share, after.previous
    if now == (in_force, share, older):
        drafted = after.draft is not None and after.drafted_at is not None
        published = before.draft is not None and content_id([before.draft]) == in_force
        assert drafted or published or before.draft == after.draft, "else nothing changed, as by the same part"
        return []
    assert now[2][-50:] == now[2]
    draft = None if before.draft is None else content_id([before.draft])
    if after.draft is None and before.draft is not None and share is None and draft in (after.content, shared(after)):
        assert now[0::2] in ((draft, pushed[-50:]), (in_force, older))
        return event(in_force, draft)
    assert after.draft == before.draft
    if after.share is not None:  # another part
        assert share is not None
        assert replace(after.share, fraction=share.fraction) == share
        return []
    if share is not None and after.content == share.content:
        assert now[2] == pushed[-50:]
        return event(in_force, share.content)
    if share is not None and after.content == in_force:
        assert now[2] == older
        return event(share.content, in_force)
    if after.content is None:
        assert now[2] == pushed[-50:]
    else:
        assert (after.content, now[2]) == (older[-1], older[:-1])
    return event(in_force, after.content)


def shared(record: PolicyRecord) -> str | None:
    return None if record.share is None else record.share.content
