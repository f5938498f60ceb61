"""The development prompts run through decisions, and through chat completions over real HTTP."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from routewright import Catalogue, OpenAIProvider, Router
from routewright.errors import UpstreamFailed
from tests.backends.openai_server import USAGE, OpenAIServer, delta, events, whole
from tests.upstream import of_json

pytestmark = pytest.mark.anyio

DATA = Path(__file__).parent.parent / "data"


def prompts(name: str, field: str = "prompt") -> list[str]:
    with gzip.open(DATA / name, "rt", encoding="utf-8") as lines:
        return [json.loads(line)[field] for line in lines]


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    streamed = events(delta("hel"), delta("lo"), delta(finish="stop"), USAGE)
    with OpenAIServer(lambda request: streamed if request.body.get("stream") else whole()) as running:
        yield running
    assert running.problems == [], "a request that the official types do not allow"


def test_every_development_prompt_gets_a_decision_for_every_goal(full: bool) -> None:
    router = Router.sandbox()
    texts = (
        prompts("pair_gsm8k.jsonl.gz")
        + prompts("multi_zeroeval.jsonl.gz")
        + prompts("intent_banking77.jsonl.gz", "text")
    )
    chosen = set()
    for text in texts if full else texts[::25]:
        for goal in ("cost", "quality", "stability"):
            decision = router.decide(text, goal=goal, budget={"maxCostUsd": 0.05})
            assert len(decision.chain) == 3
            assert decision.reason.startswith(f"goal={goal} ")
            chosen.add(decision.model)
    assert len(chosen) > 1


async def test_development_prompts_come_back_over_real_http(server: OpenAIServer, full: bool) -> None:
    texts = prompts("pair_gsm8k.jsonl.gz")[: 568 if full else 30]
    provider = OpenAIProvider("sk-test-loopback", base_url=server.url)
    async with Router(providers=[provider], catalogue=Catalogue()) as router:
        for text in texts:
            answer = await router.route(text, params={"temperature": 0.0})
            assert answer.output == "hello"
            assert answer.routing.selected_model.startswith("openai/")
            assert answer.routing.cost_usd > 0
    assert [request.body["messages"][0]["content"] for request in server.requests] == texts


async def test_a_failing_host_is_reported_without_the_prompt_or_our_key(server: OpenAIServer) -> None:
    server.answer = lambda _: of_json({"error": {"message": "canary echo sk-test-loopback"}}, status=401)
    provider = OpenAIProvider("sk-test-loopback", base_url=server.url)
    async with Router(providers=[provider]) as router:
        with pytest.raises(UpstreamFailed, match="auth") as failed:
            await router.route("canary prompt", models=["openai/gpt-4.1"])
    shown = repr(failed.value) + str(failed.value.detail) + repr(provider) + repr(router)
    assert "sk-test-loopback" not in shown
    assert "canary prompt" not in shown
