"""Processes of one store: all use a publication in under five seconds; a published version decides each request."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from routewright import Console, Policy
from routewright.protocols import Storage
from routewright.storage import open_storage
from routewright.wire import PolicySnapshot, SnapshotById, TraceItem, Traces
from tests.backends.processes import running

pytestmark = pytest.mark.anyio

WORKER = """
    import time
    from routewright import Router, open_storage

    async def main():
        async with Router.sandbox(storage=open_storage(sys.argv[1])) as router:
            version = ""
            while True:
                answer = await router.route("Hello", policy_id="desk")
                if answer.routing.policy_version != version:
                    version = answer.routing.policy_version
                    say(f"{time.monotonic()} {version}")
                await anyio.sleep(0.05)

    anyio.run(main)
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_four_workers_use_a_publication_in_under_five_seconds(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = url_of(kind, tmp_path, request)
    console = Console(open_storage(url))
    await console.policies.draft(Policy(name="desk"))
    before = await console.policies.publish("desk")
    with ExitStack() as stack:
        workers = [stack.enter_context(running(WORKER, url)) for _ in range(4)]
        assert {worker.heard().split()[1] for worker in workers} == {before.label}
        await console.policies.draft(Policy(name="desk", goal="quality"))
        after = await console.policies.publish("desk")
        published_at = time.monotonic()
        news = [worker.heard().split() for worker in workers]
        assert {label for _, label in news} == {after.label}
        assert max(float(at) for at, _ in news) - published_at < 5
    await console.aclose()


RACER = """
    from random import Random
    from routewright import CallableProvider, Catalogue, Console, Policy, Router, RouterError
    from routewright._engine import policies
    from routewright.storage import open_storage

    policies.EVERY_S = 0.1
    url, seed, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    MODELS = ["openai/gpt-5.4", "openai/gpt-6-luna", "mistral/mistral-medium-2604", "google/gemini-3.1-flash-lite"]

    async def change(store, random):
        action = random.choice(["share", "share", "publish", "complete", "roll back"])
        if action == "complete":
            await store.discard("desk")
        else:
            await store.draft(Policy(name="desk", models=[random.choice(MODELS)]), by=str(seed))
        match action:
            case "share":
                await store.publish("desk", share=random.choice([0.2, 0.5]), share_by="metadata.user")
            case "publish" | "complete":
                await store.publish("desk")
            case "roll back":
                await store.roll_back("desk")

    async def main():
        random = Random(seed)
        storage = open_storage(url)
        console = Console(storage)
        models = [model for model in Catalogue().models if model.id in MODELS]
        provider = CallableProvider(lambda call: call.model.id, models=models)
        async with Router(providers=[provider], storage=storage) as router:
            await router.route("Hello", policy_id="desk", metadata={"user": "first"})  # while the version is shared
            say("ready")
            heard()
            for number in range(rounds):
                try:
                    await change(console.policies, random)
                except RouterError:  # another change came first
                    pass
                if number % 10 == seed:
                    report = await console.simulate(Policy(name="desk", models=MODELS[:1]), since="1h")
                    assert report.requests + report.skipped > 0
                await anyio.sleep(random.random() * 0.1)
                await router.route("Hello", policy_id="desk", metadata={"user": str(random.randrange(50))})
        say("done")

    anyio.run(main)
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_one_published_version_decides_each_request_while_publications_race(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, full: bool
) -> None:
    processes, rounds = (8, 100) if full else (2, 20)
    url = url_of(kind, tmp_path, request)
    storage = open_storage(url)
    console = Console(storage)
    await console.policies.draft(Policy(name="desk", models=["openai/gpt-5.4"]))
    await console.policies.publish("desk")
    await console.policies.draft(Policy(name="desk", models=["openai/gpt-6-luna"]))
    await console.policies.publish("desk", share=0.5, share_by="metadata.user")
    with ExitStack() as stack:
        racers = [stack.enter_context(running(RACER, url, seed, rounds)) for seed in range(processes)]
        assert [racer.heard() for racer in racers] == ["ready"] * processes
        for racer in racers:
            racer.tell()
        for racer in racers:
            word = await anyio.to_thread.run_sync(racer.heard)
            assert word == "done", word
    texts = {version.label: version.policy for version in await console.policies.versions("desk")}
    traces = await all_traces(storage)
    assert len(traces) == processes * (1 + rounds)
    assert all(trace.status == "completed" for trace in traces)
    for trace in traces:
        policy = texts[trace.policy_version]
        assert policy is not None
        assert policy.models == [trace.selected_model]
        assert trace.decision_input is not None
        snapshot = await storage.read("_system", SnapshotById(trace.decision_input.policy or ""))
        assert isinstance(snapshot, PolicySnapshot)
        assert (snapshot.version, snapshot.policy.models) == (trace.policy_version, policy.models)
    assert len({trace.policy_version for trace in traces}) > 1
    assert any(trace.decision_input.assignment for trace in traces if trace.decision_input is not None)
    await console.aclose()


def url_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    return f"sqlite:///{folder}/store.db" if kind == "sqlite" else str(request.getfixturevalue("postgres"))


async def all_traces(storage: Storage) -> list[TraceItem]:
    traces = list[TraceItem]()
    while page := await storage.scan("default", Traces(), after=traces[-1].key if traces else None, limit=200):
        traces += page
    return traces
