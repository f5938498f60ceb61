"""What a script's Router is made of, at random and as plain data: models, providers, rules, an account."""

from __future__ import annotations

from typing import Any

from . import turns
from .randomness import Data, Dice

GOALS = [None, "cost", "quality", "stability"]
STRATEGIES = [None, "balanced", "cost-optimized", "quality-first", "latency-optimized"]
FEATURES = "temperature top_p stop seed tool_choice image_url json_object json_schema".split()
BEST = {"name": "best", "weights": {"quality": 100, "cost": 0, "latency": 0, "stability": 0}}
"""The better model is chosen however often it failed, unless its circuit is open."""


def model(dice: Dice, place: int) -> Data:
    """One model of the pool."""
    price = dice.of([0.05, 0.2, 0.4, 1.0, 2.5, 10.0])
    pricing: Data = {"input_usd": price, "output_usd": price * dice.of([1, 3, 4, 8])}
    if dice.chance(0.2):
        pricing["cached_input_usd"] = price / 4
    if dice.chance(0.15):
        pricing["tiers"] = [{"above_tokens": 500, "input_usd": price * 2, "output_usd": price * 9}]
    made: Data = {
        "id": f"{dice.of(['alpha', 'beta', 'gamma'])}/m{place}",
        "quality": dice.of([None, 0.2, 0.35, 0.5, 0.5, 0.62, 0.7, 0.81, 0.9, 0.97]),
        "pricing_per_1m": None if dice.chance(0.05) else pricing,
        "context_window": dice.of([None, 4_000, 8_192, 32_000, 128_000, 1_000_000]),
        "ttft_s": dice.of([None, 0.2, 0.5, 1.0, 2.0, 3.5, 6.0]),
        "tokens_per_s": dice.of([None, 20.0, 80.0, 250.0]),
    }
    maybe: list[tuple[float, str, Any]] = [
        (0.3, "reasoning", True), (0.5, "structured_output", True), (0.2, "unsupported", dice.some(FEATURES, 3)),
        (0.6, "modalities", dice.of([["text", "tool"], ["text", "image"], ["text", "image", "tool"]])),
        (0.2, "max_output_tokens", dice.of([256, 1_000, 8_000])), (0.1, "tokenizer", "o200k_base"),
        (0.1, "tags", ["eu"]), (0.03, "disabled", True), (0.05, "deprecated_at", dice.of(["2026-01-02", "2025-06-01"])),
        (0.15, "price_changes", [{"starts": "2026-01-02", "pricing_per_1m": {"input_usd": 3.0, "output_usd": 9.0}}]),
        (0.05, "free_tier", True), (0.25, "availability", {"regions": ["eu"]}),
    ]  # fmt: skip
    return made | {key: value for share, key, value in maybe if dice.chance(share)}


def providers(dice: Dice, family: str, pool: list[Data], number: int) -> list[Data]:
    """Who serves the models: by turns of their own, one list a model, or by faults on the wire, each in its turn."""
    made = []
    for name in sorted({each["id"].partition("/")[0] for each in pool}):
        served = [each["id"] for each in pool if each["id"].startswith(f"{name}/")]
        kind = "faulty" if family.startswith("cells") else dice.of(["scripted"] * 8 + ["whole"])
        provider: Data = {"name": name, "kind": kind, "models": served}
        if kind == "faulty":
            first = turns.CELLS[number % len(turns.CELLS)]
            provider["faults"] = [first] + [dice.of([None, *turns.CELLS]) for _ in range(dice.between(0, 4))]
        else:
            provider["turns"] = {each: [turns.anything(dice) for _ in range(dice.between(0, 3))] for each in served}
            provider["then"] = {each: turns.anything(dice, 0.75) for each in served}
        made.append(provider)
    return made


def steady(dice: Dice, provider: Data) -> Data:
    """The same provider, which always answers at once."""
    then = {each: turns.answer(dice, quick=True) for each in provider["models"]}
    return provider | {"kind": "scripted", "turns": {}, "then": then}


def plain_pool(pool: list[Data]) -> None:
    """Make a pool of which the first model is the best, and all can do what is asked."""
    for place, each in enumerate(pool):
        pricing = {"input_usd": 1.0 + place, "output_usd": 4.0 + place}
        kept = {"id": each["id"], "ttft_s": 1.0, "context_window": 128_000, "pricing_per_1m": pricing}
        each.clear()
        each |= kept | {"quality": 0.97 - 0.12 * place, "modalities": ["text", "tool"]}


def trouble(dice: Dice, script: Data, family: str) -> None:
    """Let the best model do well, then badly, then well again; now and then others too."""
    for number, model_id in enumerate(each["id"] for each in script["models"]):
        provider = next(each for each in script["providers"] if model_id in each["models"])
        provider |= {"kind": "scripted"}
        good: turns.Turn = [["text", f"Well, by {model_id}."], ["usage", 10, 5 + number], ["finish", "stop"]]
        first, bad = [], []
        if number == 0 or dice.chance(0.3):
            first = [turns.answer(dice, quick=True) for _ in range(dice.between(0, 3))]
            bad = [turns.fault(dice, dice.of(["server", "reset", "connect"])) for _ in range(dice.between(5, 14))]
        if number == 0 and family == "retry_after":
            told = [dice.of([0.0, 0.5, 2.0, 4.9, 5.1, 20.0, 60.0, 400.0]) for _ in range(dice.between(4, 12))]
            bad = [[["fault", "rate_limited", {"status": 429, "retry_after": each}]] for each in told]
        elif number == 0 and family == "credential":
            bad = [turns.fault(dice, "auth", before=True) for _ in range(dice.between(1, 4))]
        elif family == "hedge":
            first = [[["pause", dice.seconds(0.9, 1.1)], *good] for _ in range(7)]
            bad = [silent(dice, 1, 7, 0.4) if dice.chance(0.7) else turns.stall(dice) for _ in range(6)]
            if number > 0:
                first, bad = [], [silent(dice, 0.1, 5, 0.8) for _ in range(6)]
        waits: turns.Turn = [["pause", dice.seconds(0.2, 2)]] if family in ("left", "hedge") else []
        provider["turns"][model_id], provider["then"][model_id] = first + bad, waits + good


def silent(dice: Dice, least_s: float, most_s: float, good: float) -> turns.Turn:
    """Any turn, after a silence."""
    return [["pause", dice.seconds(least_s, most_s)], *turns.anything(dice, good)]


def policy(dice: Dice, ids: list[str], name: str = "house") -> Data:
    """Rules that somebody fixed beforehand."""
    maybe: list[tuple[float, str, Any]] = [
        (0.4, "goal", dice.of(GOALS[1:])), (0.3, "strategy", dice.of(STRATEGIES[1:])),
        (0.2, "models", dice.of([["*"], ["alpha/*", "provider:beta"], ids[:3], ["capability:tools"]])),
        (0.1, "exclude", [ids[0]]), (0.25, "min_quality", 0.6), (0.25, "max_latency_ms", 6_000),
        (0.25, "regions", ["eu"]),
        (0.3, "budget", {"maxCostUsd": dice.of([1e-4, 1e-2])}), (0.3, "timeout_ms", dice.of([5_000, 30_000])),
        (0.5, "guardrails", policy_guardrails(dice)),
    ]  # fmt: skip
    own: Data = {"on_refusal": "fallback"} if dice.chance(0.5) else {}
    own |= {"models": dice.some(ids, 3)} if dice.chance(0.3) else {}
    own |= {"max_retries": dice.between(0, 3)} if dice.chance(0.3) else {}
    rules: Data = {key: value for share, key, value in maybe if dice.chance(share)}
    if not {"goal", "strategy"} & {*rules} and dice.chance(0.5):
        rules["weights"] = BEST["weights"]
    return {"name": name, "fallback": own | {"hedge": dice.chance(0.3)}} | rules


def policy_guardrails(dice: Dice) -> list[Data]:
    """What a policy redacts or blocks."""
    found = dice.of([{"patterns": ["email", "card"]}, {"deny": ["Nightjar"]}, {"patterns": ["phone"], "deny": ["sky"]}])
    action, stages = dice.of(["redact", "block"]), dice.of([["input"], ["output"], ["input", "output"]])
    return [found | {"action": action, "stages": stages}]


def execution(dice: Dice) -> Data:
    """Limits of carrying out; of most Routers those that all have."""
    others: list[Data] = [
        {"retries_per_s": 0.0}, {"retries_per_s": 0.2, "retry_share": 0.0}, {"open_after": 2, "open_s": 3.0},
        {"first_token_s": 2.0, "idle_s": 3.0}, {"backoff_s": 0.5, "longest_backoff_s": 1.0}, {"retry_after_s": 1.0},
        {"slow_s": 4.0, "slow_share": 0.5}, {"least_s": 2.0},
    ]  # fmt: skip
    return dice.of(others) if dice.chance(0.15) else {}


def guardrail(dice: Dice) -> Data:
    """One of a Router's guardrails."""
    kind = dice.of(["patterns", "deny", "own"])
    made: Data = {"kind": kind, "stages": dice.of([["input"], ["output"], ["output"], ["input", "output"]])}
    if kind == "own":
        return made | {
            "verdict": dice.of(["allow", "block", "redact", "raise", "odd"]),
            "holds": dice.of([None, 5, 40]), "waits": dice.of([0.0, 0.0, 0.5]),
        }  # fmt: skip
    return made | {"action": dice.of(["redact", "block"])}


def account(dice: Dice) -> Data:
    """The terms of an account and one of its keys."""
    limits = {"requests_per_min": dice.of([None, 1, 2, 5]), "tokens_per_min": dice.of([None, 500, 6_000, 20_000]),
              "concurrency": dice.of([None, 1, 3])}  # fmt: skip
    usd = dice.of([None, 1e-6, 1e-3, 2e-3, 4e-3, 5.0])
    plan = dice.of(["free", "pro", "unlimited"])
    made: Data = {"plan": plan, "limits": limits if dice.chance(0.6) else None, "prepaid": dice.chance(0.4),
                  "monthly_limit_usd": usd, "credit": dice.of([None, 1e-5, 2e-3, 1.0])}  # fmt: skip
    if dice.chance(0.5):
        made["key"] = {"limits": limits if dice.chance(0.3) else None, "budget_usd": dice.of([None, 1e-6, 1e-3, 2.0]),
                       "scopes": dice.of([None, None, None, ["models:read"], ["route"]])}  # fmt: skip
    return made
