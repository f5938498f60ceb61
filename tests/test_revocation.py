"""A revoked key is refused within five seconds in every process of a machine, in those, too, that hear of nothing."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from routewright import Console, SqliteStorage
from routewright.wire import NewKey

from .backends.processes import running
from .console_storage import bearer

LONGEST_S = 5.0
SERVER = """
    import json, time
    from routewright import Console, Router
    from routewright.errors import AuthenticationFailed

    folder = Path(sys.argv[1])

    async def refused(calls):
        try:
            await calls
        except AuthenticationFailed:
            return True
        return False

    async def serve():
        storage = SqliteStorage(folder / "traces.db")
        console = Console(storage)
        router = Router.sandbox(storage=storage)  # whose calls leave nothing in the ledger
        headers = json.loads(heard())
        callers = [await console.authenticate(header, "sandbox") for header in headers]
        for caller in callers:
            await router.route("hi", caller=caller)
        say("serves")
        ends, turn = [[None, None] for _ in headers], 0
        while not all(all(each) for each in ends):
            turn += 1
            for number, end in enumerate(ends):
                if not end[0] and await refused(console.authenticate(headers[number], "sandbox")):
                    end[0] = time.monotonic()
                its_turn = number % 10 == turn % 10  # each call leaves a trace, and the file takes only so many
                if not end[1] and its_turn and await refused(router.route("hi", caller=callers[number])):
                    end[1] = time.monotonic()
            await anyio.sleep(0.05)
        say(json.dumps(ends))
        await router.aclose()

    anyio.run(serve)
"""


async def keys(console: Console, count: int) -> list[NewKey]:
    """So many, of accounts of their own."""
    made = []
    for number in range(count):
        await console.create_account(f"account {number}", plan="unlimited")
        made.append(await console.create_key(f"account {number}", name="x", environment="sandbox"))
    return made


@pytest.mark.skipif(not hasattr(time, "CLOCK_MONOTONIC"), reason="processes have no clock in common")
def test_a_revoked_key_is_refused_in_every_process_within_five_seconds(tmp_path: Path, full: bool) -> None:
    processes, count = (8, 100) if full else (2, 2)

    async def revoke(made: list[NewKey]) -> list[tuple[float, float]]:
        """When that of each began and ended."""
        revoked = []
        for new in made:
            began = time.monotonic()
            await console.revoke_key(new.key.account, new.key.id)
            revoked.append((began, time.monotonic()))
            await anyio.sleep(0.01)  # so that some of all ages are known when it happens
        return revoked

    storage = SqliteStorage(tmp_path / "traces.db")
    console = Console(storage)
    made = anyio.run(keys, console, count)
    with ExitStack() as stack:
        servers = [stack.enter_context(running(SERVER, tmp_path)) for _ in range(processes)]
        for server in servers:
            server.tell(json.dumps([bearer(new) for new in made]))
        assert [server.heard() for server in servers] == ["serves"] * processes
        revoked = anyio.run(revoke, made)
        for server in servers:
            ends: list[list[float]] = json.loads(server.heard())
            for refused, (began, done) in zip(ends, revoked, strict=True):
                assert min(refused) > began, "it held until then"
                assert max(refused) < done + LONGEST_S
            server.end()
    anyio.run(console.aclose)
