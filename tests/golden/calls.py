"""What is asked of a Router, at random and as plain data: prompts, and all that a request may say besides."""

from __future__ import annotations

from typing import Any

from . import turns
from .randomness import Data, Dice
from .router_data import GOALS, STRATEGIES

LOOK = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}},
}


def call(dice: Dice, script: Data, door: str = "route", **more: Any) -> Data:
    """One call with everything that a request may say."""
    ids = [each["id"] for each in script["models"]]
    options = request_options(dice, ids)
    if script["policies"] and dice.chance(0.8):
        options["policy_id"] = dice.of(script["policies"])["name"]
    made = {"door": door, "request": request(dice), "options": options, "form": dice.of(["", "", "dict", "object"])}
    return made | more


def simple(dice: Dice, doors: list[str], family: str) -> Data:
    """A call of the best model with little besides."""
    options: Data = {"policy_id": "best"}
    if dice.chance(0.7) and family != "hedge":
        options["fallback"] = {"maxRetries": dice.of([0, 0, 1, 3])}
    if dice.chance(0.2):
        options["params"] = {"max_output_tokens": 300}
    gap_s = dice.seconds(0.3, 30) if family == "retry_after" else dice.seconds(0.3, 4)
    door = "stream" if family == "hedge" else dice.of(doors)
    return {"door": door, "request": "Why?", "options": options, "form": "", "gap_s": gap_s}


def request(dice: Dice) -> Any:
    """A prompt: a text or messages, short or long."""
    text = f"{turns.words(dice)}?"
    if dice.chance(0.15):
        text = "word and word " * dice.of([40, 300, 2_000])
    user = {"role": "user", "content": text}
    seen = {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}}
    wanted = {"id": "call_0", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    called = {"role": "assistant", "tool_calls": [wanted]}
    chats: list[Any] = [
        [user],
        [{"role": "system", "content": "Be brief."}, user],
        [user, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on."}],
        [user, called, {"role": "tool", "tool_call_id": "call_0", "content": "3"}],
        [{"role": "user", "content": [{"type": "text", "text": text}, seen]}],
    ]
    return dice.of([text] * 5 + chats)


def request_options(dice: Dice, ids: list[str]) -> Data:
    """Fields of a request besides its messages."""
    params: list[Data] = [
        {"temperature": 0.7}, {"top_p": 0.5}, {"stop": ["END"]}, {"seed": 7},
        {"max_output_tokens": dice.of([1, 16, 200, 2_000, 50_000])}, {"max_output_tokens": dice.of([64, 300])},
        {"response_format": {"type": "json_object"}}, {"response_format": {"type": "text"}},
    ]  # fmt: skip
    budgets: list[Data] = [
        {"maxCostUsd": dice.of([1e-7, 3e-4, 1e-3, 1e-2, 0.1, 1.0])},
        {"maxTokens": dice.of([10, 600, 1_500, 5_000, 20_000])},
    ]
    whitelist = dice.some(ids, 4)
    maybe: list[tuple[float, str, Any]] = [
        (0.6, "goal", dice.of(GOALS)), (0.5, "strategy", dice.of(STRATEGIES)), (0.15, "models", whitelist),
        (0.35, "params", {key: value for each in dice.some(params, 2) for key, value in each.items()}),
        (0.25, "budget", {key: value for each in dice.some(budgets, 2) for key, value in each.items()}),
        (0.35, "fallback", fallback(dice, ids)), (0.5, "timeout_ms", dice.of([50, 900, 4_000, 12_000, 25_000, 90_000])),
        (0.1, "cache", dice.of([True, False, {"mode": "exact"}])),
        (0.2, "metadata", {"tenant": "t1", "depth": {"n": [1, 2]}}), (0.1, "tools", [LOOK]),
        (0.1, "idempotency_key", f"key-{dice.between(1, 9)}"),
    ]  # fmt: skip
    options = {key: value for share, key, value in maybe if dice.chance(share) and value is not None}
    if "models" in options and "fallback" in options:
        options["fallback"] = {"maxRetries": 1}
    if "tools" in options and dice.chance(0.5):
        options["tool_choice"] = dice.of(["auto", "none", "required", "look"])
    return options


def fallback(dice: Dice, ids: list[str]) -> Data:
    """A chain of one's own, more tries or fewer, and what follows a stream that broke."""
    maybe: list[tuple[float, str, Any]] = [
        (0.4, "models", dice.of([[], dice.some(ids, 3)])), (0.6, "maxRetries", dice.of([0, 1, 2, 5])),
        (0.4, "on_partial", dice.of(["restart", "error"])),
    ]  # fmt: skip
    return {key: value for share, key, value in maybe if dice.chance(share)}


def pin(options: Data, script: Data) -> None:
    """Let one model alone serve, with room for its answer."""
    options |= {"models": [script["models"][0]["id"]], "fallback": {"models": [], "maxRetries": 0}}
    options.pop("policy_id", None)


def spoil(dice: Dice, made: Data) -> None:
    """Make something of a request wrong."""
    bad: list[Data] = [
        {"models": []}, {"models": ["alpha/m9"]}, {"goal": "speed"}, {"timeout_ms": 0}, {"timeout_ms": 4_000_000},
        {"params": {"temperature": 9.0}}, {"params": {"max_output_tokens": 0.5}}, {"budget": {"max_cost_usd": 1}},
        {"budget": {"maxCostUsd": -1}}, {"fallback": {"models": ["alpha/m9"]}}, {"fallback": {"maxRetries": 6}},
        {"policy_id": "none"}, {"tools": [LOOK], "tool_choice": "jump"}, {"idempotency_key": "k" * 65},
        {"cache": {"threshold": 2}}, {"metadata": {"long": "x" * 17_000}}, {"strategy": 5},
    ]  # fmt: skip
    made["options"] |= dice.of(bad)
    if dice.chance(0.2):
        made |= {"form": "", "request": dice.of(["", [], [{"role": "user"}], [{"role": "friend", "content": "hi"}]])}
