"""The sums that refusals name, tried out: with them the same request is answered, with less it is not."""

from __future__ import annotations

import re
from copy import deepcopy
from math import ceil
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from routewright import (
    Budget,
    Catalogue,
    Model,
    NoCandidates,
    Policy,
    PriceTier,
    Pricing,
    QuotaExhausted,
    Router,
    RouterError,
    Settings,
)
from routewright._core.money import nanos_of
from routewright.testing import ScriptedProvider
from routewright.wire import Delta, Finish, PolicyFallback, Usage

from .test_admission import ACME, Bank, account

CODE = "def area(width: float, height: float) -> float:\n    return width * height  # of a rectangle\n\n"
CHINESE = "今天天气很好，我们去公园散步，然后一起吃晚饭。"
PROSE = "The river ran past the old mill, and nobody had crossed it since the bridge fell. "
TEXTS = (PROSE, CHINESE, CODE, "漢字とかな、" + CODE, "3.14159 26535\t89793\n", "😀 naïve café ")


def text_of(chance: Random, most: int) -> str:
    text: str = chance.choice(TEXTS)
    return text * int(float(most) ** chance.random() / len(text) + 1)


def models_of(chance: Random) -> list[Model]:
    def one(number: int) -> Model:
        usd, provider = round(10 ** chance.uniform(-1, 2), 3), chance.choice(["good", "spare"])
        tiers = (PriceTier(chance.choice([100, 2_000, 9_000]), usd * 2, usd * 7),) if chance.random() < 0.3 else ()
        return Model(
            id=f"{provider}/{chance.choice(['', '', 'claude-', 'gemini-'])}{number}",
            provider=provider,
            context_window=chance.choice([4_000, 32_000, 200_000]),
            max_output_tokens=chance.choice([None, 300, 8_000]),
            pricing_per_1m=None if chance.random() < 0.2 else Pricing(usd, usd * 4, tiers=tiers),
            tokenizer=chance.choice([None, "o200k_base", "cl100k_base"]),
            quality=round(chance.random(), 2),
            reasoning=chance.random() < 0.2,
            ttft_s=1.0,
        )

    return [one(number) for number in range(chance.randint(1, 5))]


def bank_of(models: list[Model], nanos: int, *, hedge: bool) -> Bank:
    """An account that has so much for this month, and any number of answers."""
    bank = Bank(terms=[account(monthly_nanos=nanos)])
    providers = [
        ScriptedProvider(lambda _: [Delta("yes"), Usage(1, 1), Finish("stop")], models=own, clock=bank.clock)
        for name in ("good", "spare")
        if (own := [each for each in models if each.provider == name])
    ]
    bank.router = Router(
        providers=providers, catalogue=Catalogue(()), storage=bank.storage,
        policies=[Policy(name="mine", fallback=PolicyFallback(hedge=hedge))], settings=Settings(clock=bank.clock),
    )  # fmt: skip
    return bank


@pytest.mark.anyio
async def test_what_a_402_says_is_needed_is_enough_and_a_nano_dollar_less_is_not(full: bool) -> None:
    tried = 0
    for seed in range(2_000 if full else 60):
        chance = Random(seed)
        models, hedge = models_of(chance), chance.random() < 0.3
        asked: dict[str, Any] = {"policy_id": "mine", "goal": chance.choice(["cost", "quality"])}
        asked["params"] = {"max_output_tokens": chance.choice([1, 200, 3_000])} if chance.random() < 0.5 else {}
        if chance.random() < 0.3:
            asked["budget"] = {"maxTokens": chance.choice([2_000, 20_000])}
        if chance.random() < 0.3:
            asked["models"] = [each.id for each in chance.sample(models, chance.randint(1, len(models)))]
        text = text_of(chance, 30_000)

        async def route(
            nanos: int, models: Any = models, hedge: Any = hedge, text: Any = text, asked: Any = asked
        ) -> Any:
            bank = await bank_of(models, nanos, hedge=hedge).open()
            try:
                return await bank.router.route(text, caller=ACME, **asked)
            except RouterError as error:
                return error

        refused = await route(0)
        if not isinstance(refused, QuotaExhausted) or refused.detail["needed_usd"] is None:
            assert isinstance(await route(10**15), type(refused)), "no sum would do"
            continue
        needed = nanos_of(refused.detail["needed_usd"])
        assert (await route(needed)).output == "yes", seed
        less = await route(needed - 1)
        assert isinstance(less, QuotaExhausted), seed
        assert less.detail["needed_usd"] == refused.detail["needed_usd"]
        tried += 1
    assert tried > 30


def refused(router: Router, asked: dict[str, Any]) -> NoCandidates | None:
    try:
        router.decide(asked)
    except NoCandidates as error:
        return error
    return None


async def followed(router: Router, asked: dict[str, Any], words: str, model: str, part: float) -> dict[str, Any]:
    """A request with a part of one change that a refusal suggests, the whole of it where the part is 1.0."""
    asked = deepcopy(asked)

    def between(was: int, said: int) -> int:
        return was + int((said - was) * part)

    budget, params, message = asked["budget"], asked["params"], asked["messages"][0]
    match words.split():
        case ["raise", "budget.maxCostUsd", "to", usd]:
            budget["maxCostUsd"] = between(nanos_of(budget["maxCostUsd"]), nanos_of(float(usd))) / 1e9
        case ["raise", "budget.maxTokens", "to", count]:
            budget["maxTokens"] = between(budget["maxTokens"], int(count))
        case ["lower", "params.max_output_tokens", "to", count]:
            params["max_output_tokens"] = between(params["max_output_tokens"], int(count))
        case ["set", "params.max_output_tokens", "to", count]:
            params["max_output_tokens"] = ceil(int(count) / part)
        case ["shorten", "the", "input", "from", present, "to", count, "tokens"]:
            text, goal, low = message["content"], between(int(present), int(count)), 0
            high = len(text)
            while high - low > 1:
                message["content"] = text[: (middle := (low + high) // 2)]
                found = await router.prepare(asked).count_tokens(model)
                low, high = (middle, high) if found.estimate <= goal else (low, middle)
            message["content"] = text[:low]
        case _:
            raise AssertionError(words)
    return asked


@pytest.mark.anyio
async def test_what_a_422_suggests_admits_the_request_and_hardly_less_does_not(full: bool) -> None:
    kinds = set[str]()
    for seed in range(1_500 if full else 80):
        chance = Random(seed)
        # none that reasons: no answer is suggested that leaves no room to think
        models = [replace(each, provider="good", reasoning=False) for each in models_of(chance)]
        policy = Policy(name="mine", budget=Budget(max_cost_usd=10 ** chance.uniform(-4, 0)))
        provider = ScriptedProvider(["yes"], models=models, name="good")
        router = Router(providers=[provider], catalogue=Catalogue(()), policies=[policy])
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": text_of(chance, 300_000)}], "params": {}}
        asked["budget"] = {"maxCostUsd": 10 ** chance.uniform(-6, 0)} if chance.random() < 0.6 else {}
        if chance.random() < 0.3:
            asked["budget"]["maxTokens"] = round(10 ** chance.uniform(2, 5))
        if chance.random() < 0.6:
            asked["params"]["max_output_tokens"] = round(10 ** chance.uniform(0, 4.5))
        asked |= {"policy_id": "mine"} if chance.random() < 0.3 else {}
        error = refused(router, asked)
        if error is None or re.search("^no change|drop |also in policy", error.detail["suggestion"]):
            continue
        said, _, model = error.detail["suggestion"].rpartition(" to admit ")
        *others, last = said.split(" and ")
        for words in others:
            asked = await followed(router, asked, words, model, 1.0)
        cut = any(words.startswith("shorten") for words in others)  # a part of a text need not cost its share
        whole = await followed(router, asked, last, model, 1.02 if cut else 1.0)
        assert refused(router, whole) is None, (seed, said)
        if others or re.fullmatch(r"shorten .* to \d\d? tokens", last):  # of so few a letter is a large part
            continue
        less = await followed(router, asked, last, model, 0.9 if last.startswith("shorten") else 0.99)
        assert refused(router, less) is not None, (seed, said)
        kinds.add(last.split()[0])
    assert kinds == {"raise", "lower", "shorten", "set"}
