"""Long texts: no guardrail, capture or count spends time on what no model takes, and a search of the rest lets others
go on and ends with its call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from routewright import (
    Caller,
    Capture,
    Catalogue,
    MemoryStorage,
    Model,
    NoCandidates,
    PatternGuardrail,
    Pricing,
    Router,
    Settings,
    TraceStore,
)
from routewright._core.guardrails.texts import PIECE_CHARS
from routewright.backends.tokens import PackedTokenCounter
from routewright.errors import RouterTimeoutError
from routewright.testing import FakeClock, ScriptedProvider
from routewright.wire import Redact, Redaction, Stage, Verdict

from .scripted_router import House

pytestmark = pytest.mark.anyio

TOO_LONG = "5 " * 200_000  # House's models take 100,000 tokens
ATTACK = "5 " * 4_000_000
PIECES = len(ATTACK) / PIECE_CHARS
ROOMY = Model(id="good/roomy", quality=0.9, pricing_per_1m=Pricing(1.0, 4.0), context_window=50_000_000)


class Watched(PatternGuardrail):
    """Counts the pieces that it searches."""

    searched = 0

    def pieces(self, text: str) -> Iterator[list[Redaction]]:
        for piece in super().pieces(text):
            self.searched += 1
            yield piece


class Growing:
    """Replaces a short text by a long one."""

    name = "growing"
    stages: tuple[Stage, ...] = ("input",)
    holds = None

    def check(self, text: str, stage: Stage) -> Verdict:
        return Redact((Redaction(0, len(text), "grow", TOO_LONG),))


class Sparing(PackedTokenCounter):
    """Counts samples only."""

    def count(self, text: str, encoding: str) -> int:
        assert len(text) < 40_000
        return super().count(text, encoding)


def attacked(clock: FakeClock, guardrail: PatternGuardrail, **settings: Any) -> tuple[Router, ScriptedProvider]:
    provider = ScriptedProvider(lambda call: "Fine.", models=[ROOMY], clock=clock)
    return Router(
        providers=[provider],
        catalogue=Catalogue(()),
        guardrails=[guardrail],
        settings=Settings(clock=clock, **settings),
    ), provider


async def test_a_prompt_that_no_model_takes_is_refused_before_guardrails_and_capture() -> None:
    guardrail, redacted, storage = Watched("card"), list[str](), MemoryStorage()

    def redact(text: str) -> str:
        redacted.append(text)
        return text

    house = House(["Fine."], guardrails=[guardrail], capture=Capture(redactor=redact), storage=storage)
    with pytest.raises(NoCandidates, match="2 context") as refused:
        await house.router.route(TOO_LONG)
    trace_id = refused.value.trace_id
    assert trace_id is not None
    trace = await TraceStore(storage).get(trace_id)
    assert (guardrail.searched, redacted, trace.content) == (0, [], None)
    with pytest.raises(NoCandidates, match="2 context"):
        house.router.replay(trace)
    answer = await house.router.route("Short.")
    assert (await TraceStore(storage).get(answer.trace_id)).content is not None
    assert (guardrail.searched, redacted) == (1, ["Short.", "Fine."])


async def test_the_decision_checks_the_length_again_after_the_guardrails() -> None:
    house = House(["Fine."] * 9, guardrails=[Growing()])
    with pytest.raises(NoCandidates, match="2 context"):
        await house.router.route("Short." * PIECE_CHARS)
    assert house.good.calls == []


@pytest.mark.parametrize(
    "text",
    ["5 " * 4_000_000, "The fox jumps. " * 500_000, "五" * 3_000_000, "5" * 8_000_000],
    ids=["digits apart", "prose", "Chinese", "one number"],
)
async def test_megabytes_that_no_model_takes_are_refused_without_a_count(text: str) -> None:
    house = House(["Fine."] * 9, tokens=Sparing())
    with pytest.raises(NoCandidates, match="2 context"):
        await house.router.route(text)


@pytest.mark.parametrize(
    "text",
    [
        ("Chapter one" + "." * 160 + " 12\n") * 6_500,
        ("\t" * 30 + "1\n") * 34_000,
        ("—" * 78 + "\nok fine\n") * 13_000,
        ("id" + "\t" * 60 + "\n") * 18_000,
        ("*" * 78 + "\n") * 14_000,
        ("\u00a0" * 40 + "a\n") * 16_000,
    ],
    ids=["contents", "cells", "rules", "columns", "stars", "spaces"],
)
async def test_a_text_of_many_characters_and_few_tokens_is_taken(text: str) -> None:
    clock = FakeClock()
    model = replace(ROOMY, context_window=200_000, tokenizer="o200k_base")
    provider = ScriptedProvider(lambda call: "Fine.", models=[model], clock=clock)
    router = Router(providers=[provider], catalogue=Catalogue(()), settings=Settings(clock=clock))
    assert (await router.route(text)).output == "Fine."


@pytest.mark.parametrize("form", ["request", "answer"])
async def test_a_search_ends_at_the_deadline(form: str) -> None:  # by the real clock: a search is no wait
    guardrail = Watched("card")
    provider = ScriptedProvider(lambda call: ATTACK, models=[ROOMY])
    router = Router(providers=[provider], catalogue=Catalogue(()), guardrails=[guardrail])
    with pytest.raises(RouterTimeoutError):
        await router.route(ATTACK if form == "request" else "hi", timeout_ms=60)
    assert guardrail.searched < PIECES / 2


@pytest.mark.parametrize("form", ["plain", "streamed"])
async def test_a_search_ends_with_its_cancellation(form: str) -> None:
    clock, guardrail = FakeClock(), Watched("card")
    router, provider = attacked(clock, guardrail)

    async def ask() -> None:
        if form == "plain":
            await router.route(ATTACK)
        else:
            async with router.stream(ATTACK) as stream:
                async for _ in stream:
                    pass

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        while guardrail.searched < 5:
            await checkpoint()
        group.cancel_scope.cancel()
    searched = guardrail.searched
    for _ in range(10):
        await checkpoint()
    assert guardrail.searched == searched < PIECES / 2
    assert provider.calls == []


async def test_a_second_tenant_is_served_while_twelve_long_requests_are_searched() -> None:
    clock, guardrail = FakeClock(), Watched("card")
    router, _ = attacked(clock, guardrail)

    async def attack() -> None:
        await router.route(ATTACK, caller=Caller("attacker"))

    async with anyio.create_task_group() as group:
        for _ in range(12):
            group.start_soon(attack)
        while guardrail.searched < 24:
            await checkpoint()
        for _ in range(20):
            before = guardrail.searched
            answer = await router.route("Short.", caller=Caller("tenant"))
            assert answer.output == "Fine."
            # one piece at a time, whoever else waits for a turn
            assert guardrail.searched - before <= 30
        group.cancel_scope.cancel()


def test_plain_code_ends_a_search_at_the_deadline() -> None:
    clock = FakeClock()

    class Slow(Watched):
        def pieces(self, text: str) -> Iterator[list[Redaction]]:
            for piece in super().pieces(text):
                clock._now += 0.01
                yield piece

    slow = Slow("card")
    router, _ = attacked(clock, slow)
    with pytest.raises(RouterTimeoutError, match="a guardrail checked the request"):
        router.steps(ATTACK, timeout_ms=100)
    assert slow.searched < 15
