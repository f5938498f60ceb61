"""Amounts named in refusals: with that amount the same request is admitted, with less it is not."""

from __future__ import annotations

import re
from copy import deepcopy
from math import ceil
from random import Random
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from routewright import Budget, Catalogue, Model, NoCandidates, Policy, Pricing, Router, RouterError, Settings
from routewright.errors import QuotaExhausted
from routewright.testing import ScriptedProvider
from routewright.wire import Delta, Finish, PolicyFallback, PriceTier, Usage
from routewright.wire.money import nanos_of

from .account_router import ACME, Bank, account

CODE = "def area(width: float, height: float) -> float:\n    return width * height  # of a rectangle\n\n"
CHINESE = "今天天气很好，我们去公园散步，然后一起吃晚饭。"
PROSE = "The river ran past the old mill, and nobody had crossed it since the bridge fell. "
TEXTS = (PROSE, CHINESE, CODE, "漢字とかな、" + CODE, "3.14159 26535\t89793\n", "😀 naïve café ")


IMAGE_URLS = ("data:image/png;base64,iVBORw0KGgo=", "https://example.com/cat.png")


UNCUT = 32
"""Tokens of tools and schemas, which a suggestion to shorten the input assumes to be cut along with its text."""


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
async def test_the_amount_in_a_402_is_the_least_that_suffices(full: bool) -> None:
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


class Trial(NamedTuple):
    """A request, the models for it, and the budget of the policy that it may name."""

    models: list[Model]
    asked: dict[str, Any]
    policy: Budget

    @property
    def router(self) -> Router:
        provider = ScriptedProvider(["yes"], models=self.models, name="good")
        policy = Policy(name="mine", budget=self.policy)
        return Router(providers=[provider], catalogue=Catalogue(()), policies=[policy])

    @property
    def refused(self) -> NoCandidates | None:
        try:
            self.router.decide(self.asked)
        except NoCandidates as error:
            return error
        return None

    @property
    def thinks(self) -> bool:
        """True if a reasoning model is chosen. No suggestion leaves it too few tokens to think."""
        chosen = self.router.decide(self.asked).model
        return any(each.reasoning for each in self.models if each.id == chosen)

    async def followed(self, words: str, model: str, part: float = 1.0) -> Trial:
        """Follow a part of one change that a refusal suggests, the whole of it where the part is 1.0."""
        asked, policy = deepcopy(self.asked), self.policy
        budget, params, content = asked["budget"], asked["params"], asked["messages"][0]["content"]

        def between(was: int, said: int) -> int:
            return was + int((said - was) * part)

        words, _, also = words.removesuffix(",").partition(", also in policy ")
        match words.split():
            case ["raise", "budget.max_cost_usd", "(maxCostUsd", "in", "a", "dict)", "to", usd]:
                limits = [budget.get("maxCostUsd"), policy.max_cost_usd if "policy_id" in asked else None]
                was = min(nanos_of(each) for each in limits if each is not None)
                cost = between(was, nanos_of(float(usd))) / 1e9
                if "maxCostUsd" in budget:
                    budget["maxCostUsd"] = max(budget["maxCostUsd"], cost)
                if also:
                    policy = replace(policy, max_cost_usd=cost)
            case ["raise", "budget.max_tokens", "(maxTokens", "in", "a", "dict)", "to", count]:
                limits = [budget.get("maxTokens"), policy.max_tokens if "policy_id" in asked else None]
                tokens = between(int(min(each for each in limits if each is not None)), int(count))
                if "maxTokens" in budget:
                    budget["maxTokens"] = max(budget["maxTokens"], tokens)
                if also:
                    policy = replace(policy, max_tokens=tokens)
            case ["drop", "budget.max_cost_usd", *_]:
                budget.pop("maxCostUsd", None)
                if also:
                    policy = replace(policy, max_cost_usd=None)
            case ["lower", "params.max_output_tokens", "to", count]:
                params["max_output_tokens"] = between(params["max_output_tokens"], int(count))
            case ["set", "params.max_output_tokens", "to", count]:
                params["max_output_tokens"] = ceil(int(count) / part)
            case ["drop", "tool_choice"]:
                del asked["tool_choice"]
            case ["declare", "no", "tools"]:
                del asked["tools"]
                asked.pop("tool_choice", None)
            case ["drop", name]:
                params.pop(name.removeprefix("params."), None)
            case ["params.seed"]:  # of "drop params.stop and params.seed"
                params.pop("seed", None)
            case ["send", "no", "images"]:
                del content[1:]
            case ["send", "images", "as", "data:", "URLs"]:
                content[1]["image_url"]["url"] = IMAGE_URLS[0]
            case ["shorten", "the", "input", "from", present, "to", count, "tokens"]:
                text, goal, low = content[0]["text"], between(int(present), int(count)), 0
                if part >= 1.0:  # a part of a text need not cost its share
                    goal -= UNCUT if "tools" in asked or "response_format" in params else 2
                high, router = len(text), self.router
                while high - low > 1:
                    content[0]["text"] = text[: (middle := (low + high) // 2)]
                    found = await router.prepare(asked).count_tokens(model)
                    low, high = (middle, high) if found.estimate <= goal else (low, middle)
                content[0]["text"] = text[:low]
            case _:
                raise AssertionError(words)
        return self._replace(asked=asked, policy=policy)


def trial_of(chance: Random) -> Trial:
    def able(model: Model) -> Model:
        modalities = chance.choice([("text",), ("text", "image"), ("text", "tool"), ("text", "image", "tool")])
        unsupported = tuple(chance.sample(["image_url", "tool_choice", "seed"], chance.randint(0, 1)))
        return replace(model, provider="good", modalities=modalities, unsupported=unsupported)

    models = [able(each) for each in models_of(chance)]
    content: list[dict[str, Any]] = [{"type": "text", "text": text_of(chance, 100_000)}]
    params: dict[str, Any] = {}
    budget: dict[str, Any] = {"maxCostUsd": 10 ** chance.uniform(-6, 0)} if chance.random() < 0.6 else {}
    asked = {"messages": [{"role": "user", "content": content}], "params": params, "budget": budget}
    if chance.random() < 0.2:
        content.append({"type": "image_url", "image_url": {"url": chance.choice(IMAGE_URLS)}})
    if chance.random() < 0.3:
        budget["maxTokens"] = round(10 ** chance.uniform(2, 5))
    if chance.random() < 0.5:
        params["max_output_tokens"] = round(10 ** chance.uniform(0, 4.5))
    if chance.random() < 0.1:
        params["seed"] = 1
    if chance.random() < 0.1:
        params["response_format"] = {"type": "json_object"}
    if chance.random() < 0.2:
        asked["tools"] = [{"name": "look", "description": "Look it up.", "parameters": {"type": "object"}}]
        asked |= {"tool_choice": "required"} if chance.random() < 0.5 else {}
    asked |= {"policy_id": "mine"} if chance.random() < 0.4 else {}
    most = round(10 ** chance.uniform(2, 5)) if chance.random() < 0.5 else None
    return Trial(models, asked, Budget(10 ** chance.uniform(-4, 0), most))


@pytest.mark.anyio
async def test_the_suggestion_of_a_422_is_about_the_least_that_suffices(full: bool) -> None:
    kinds, of_policy = set[str](), 0
    for seed in range(1_500 if full else 60):
        trial = trial_of(Random(seed))
        error = trial.refused
        if error is None or error.detail["suggestion"].startswith("no change"):
            continue
        said, _, model = error.detail["suggestion"].rpartition(" to admit ")
        *others, last = said.split(" and ")
        of_policy += "also in policy" in said
        whole = 1.0
        for words in others:
            trial = await trial.followed(words, model, whole)
            if words.startswith("shorten"):
                whole = 1.02
        assert (await trial.followed(last, model, whole)).refused is None, (seed, said)
        less = trial  # without the last change, or with a part of it where it is an amount
        if not last.startswith(("drop", "declare", "send")):
            if others or re.fullmatch(r"shorten .* to \d\d? tokens", last):  # of so few a letter is a large part
                continue
            less = await trial.followed(last, model, 0.9 if last.startswith("shorten") else 0.99)
        assert less.refused is not None or less.thinks, (seed, said)
        kinds.add(last.split()[0])
    assert kinds == {"raise", "lower", "shorten", "set", "drop", "declare", "send"} or (len(kinds) > 4 and not full)
    assert of_policy > (5 if full else 1)
