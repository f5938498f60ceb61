"""Random scripts, each made from its number alone, as plain data.

In the even ones health stands still: nothing that a call shows can reach the decision of a later one. In the odd ones
it moves. Nothing here knows the library; ``bench.py`` and ``playback.py`` make its objects of what stands here.
"""

from __future__ import annotations

from collections.abc import Callable

from . import turns
from .calls import LOOK, call, pin, simple, spoil
from .randomness import Data, Dice
from .router_data import BEST, account, execution, guardrail, model, plain_pool, policy, providers, steady, trouble

COUNT = 3_000
Script = Data

STILL = (
    "plain stream text steps cells cells_stream budget guarded typed tools late money plain stream late guarded typed"
    " decide invalid policy cut_off many cells cells_text sandbox hosted money"
).split()
MOVING = "outage retry_after hedge mixed credential concurrent cells accounts left outage mixed hedge".split()
DOORS = ["route", "route", "stream", "text", "steps"]
DOOR_OF = {
    "cells": "route", "cells_stream": "stream", "cells_text": "text", "stream": "stream", "text": "text",
    "steps": "steps", "hosted": "steps", "decide": "decide", "many": "many", "plain": "route",
}  # fmt: skip


def is_still(seed: int) -> bool:
    """Whether health stands still in a script."""
    return seed % 2 == 0


def script_of(seed: int) -> Script:
    """The script of a number."""
    dice, families = Dice(f"golden {seed}"), STILL if is_still(seed) else MOVING
    family = families[seed // 2 % len(families)]
    pool = [model(dice, place) for place in range(dice.between(2, 6))]
    script: Script = {
        "seed": seed, "family": family, "models": pool,
        "providers": providers(dice, family, pool, seed // 2), "policies": [],
        "guardrails": [], "account": None, "capture": False, "calls": [],
        "execution": execution(Dice(f"golden {seed} execution")),
        "start_s": dice.of([0.0] * 6 + [86_398.0, 43_200.5]),
    }  # fmt: skip
    (still if is_still(seed) else moving)(dice, script)
    return script


def still(dice: Dice, script: Script) -> None:
    """Give a script its call, and others beside it that decide nothing."""
    family, ids = script["family"], [each["id"] for each in script["models"]]
    if family == "policy" or dice.chance(0.15):
        script["policies"] = [policy(dice, ids)]
    if family == "guarded" or dice.chance(0.05):
        script["guardrails"] = [guardrail(dice) for _ in range(dice.between(1, 2))]
    script["capture"] = dice.chance(0.15)
    made = call(dice, script, DOOR_OF.get(family) or dice.of(DOORS))
    script["calls"] = [made]
    if family in OF_ITS_OWN:
        OF_ITS_OWN[family](dice, script, made)


def again(dice: Dice, script: Script, made: Data) -> None:
    """Now and then the same under the same idempotency key, or another under it."""
    if dice.chance(0.25):
        made["options"]["idempotency_key"] = "again"
        second = {"if_served": True} | ({"request": "Another."} if dice.chance(0.3) else {})
        script["calls"].append(made | second)


def guarded(dice: Dice, script: Script, made: Data) -> None:
    """Answers in which guardrails find something."""
    made["options"].pop("budget", None)
    for provider in script["providers"]:
        for each in provider.get("turns", ()):
            provider["turns"][each] = [turns.answer(dice, " ".join(turns.WORDS)) for _ in range(dice.between(1, 3))]


def budget(dice: Dice, script: Script, made: Data) -> None:
    """Little money or few tokens, and answers that their cap cuts."""
    usd, tokens = dice.of([3e-4, 1e-3, 4e-3, 2e-2]), dice.of([900, 2_500])
    made["options"]["budget"] = dice.of([{"maxCostUsd": usd}, {"maxTokens": tokens}])
    made["options"].pop("params", None)
    turn: turns.Turn = [["text", "A long answer"], ["usage", 20, dice.of([40, 300])], ["finish", "length"]]
    for provider in script["providers"]:
        provider["turns"] = {each: [turn] for each in provider["models"]}


def typed(dice: Dice, script: Script, made: Data) -> None:
    """Answers of a type, and such as do not fit it."""
    made |= {"door": "route", "output_type": dice.of(["point", "place"])}
    for each in script["models"]:
        each |= {"structured_output": True}
    for provider in script["providers"]:
        for each in provider["models"]:
            provider["turns"][each] = [turns.answer(dice, dice.of(turns.TYPED)) for _ in range(3)]
    made["options"].pop("tools", None)
    made["options"].pop("tool_choice", None)


def tools(dice: Dice, script: Script, made: Data) -> None:
    """Tools, and models that call them."""
    made["options"] |= {"tools": [LOOK], "tool_choice": dice.of(["auto", "required", "look"])}
    for each in script["models"]:
        each["modalities"] = ["text", "image", "tool"]
    for provider in script["providers"]:
        provider["turns"] = {each: [turns.tool_call(dice) for _ in range(2)] for each in provider["models"]}


def late(dice: Dice, script: Script, made: Data) -> None:
    """Silence, and little time or much."""
    made["options"]["timeout_ms"] = dice.of([900, 4_000, 9_000, 15_000, 31_000, 45_000, 120_000])
    for provider in script["providers"]:
        provider["turns"] = {each: [turns.stall(dice) for _ in range(2)] for each in provider["models"]}


def invalid(dice: Dice, script: Script, made: Data) -> None:
    """A request that is wrong."""
    spoil(dice, made)


def cut_off(dice: Dice, script: Script, made: Data) -> None:
    """A caller that leaves."""
    made |= {"cancel_after_s": dice.seconds(0.01, 6)} if dice.chance(0.5) else {"stop_after": dice.between(0, 4)}


def many(dice: Dice, script: Script, made: Data) -> None:
    """Several requests at once."""
    made |= {"limit": dice.between(1, 3), "budget": dice.of([None, {"maxCostUsd": 1e-3}, {"maxTokens": 3_000}])}
    made["requests"] = [f"number {place}" for place in range(dice.between(2, 4))]
    pin(made["options"], script)
    script["providers"] = [steady(dice, each) for each in script["providers"]]


def sandbox(dice: Dice, script: Script, made: Data) -> None:
    """A caller that nobody bills."""
    made["caller"] = "sandbox"


def money(dice: Dice, script: Script, made: Data) -> None:
    """Calls of an account with terms. Several go to one model at one moment, before health is published."""
    script["account"] = account(dice)
    doors = ["route", "stream", "steps"]
    script["calls"] = calls = [call(dice, script, dice.of(doors), caller="account") for _ in range(dice.between(1, 3))]
    for each in calls:
        each["options"] |= {"params": {"max_output_tokens": dice.of([64, 300])}}
    if len(calls) > 1:
        script["providers"] = [steady(dice, each) for each in script["providers"]]
        for each in calls:
            pin(each["options"], script)
    if script["account"].get("key") and dice.chance(0.2):
        calls.insert(dice.between(0, len(calls)), {"door": "revoke"})


OF_ITS_OWN: dict[str, Callable[[Dice, Script, Data], None]] = {
    "plain": again, "stream": again, "steps": again, "guarded": guarded, "budget": budget, "typed": typed,
    "tools": tools, "late": late, "invalid": invalid, "cut_off": cut_off, "many": many, "sandbox": sandbox,
    "money": money,
}  # fmt: skip
"""What is particular about the call of a family."""


def moving(dice: Dice, script: Script) -> None:
    """Give a script several calls with time between them, and providers whose health changes."""
    family, pool = script["family"], script["models"]
    ids = [each["id"] for each in pool]
    script["policies"] = [BEST | {"fallback": {"hedge": False}}]
    made = [call(dice, script, dice.of(DOORS), gap_s=dice.seconds(0.3, 6)) for _ in range(dice.between(3, 12))]
    if family in ("outage", "retry_after", "hedge", "credential", "left"):
        plain_pool(pool)
        made = [simple(dice, DOORS, family) for _ in range(dice.between(8, 12))]
        trouble(dice, script, family)
    if family == "hedge":
        script["policies"] = [BEST | {"fallback": {"hedge": True, "max_retries": 0}}]
    elif family == "concurrent":
        for place, each in enumerate(made):
            each |= {"group": place // 4, "gap_s": dice.seconds(0.001, 0.4)}
            if place % 4 == 1 and dice.chance(0.5):  # the same twice: one call, which the other joins
                each["options"]["idempotency_key"] = "same"
                made[place - 1] |= {name: each[name] for name in ("request", "options", "form")}
    elif family == "accounts":
        script["account"] = account(dice)
        for each in made:
            each["options"] |= {"params": {"max_output_tokens": dice.of([64, 300])}}
            each |= {"caller": "account", "gap_s": dice.seconds(0.3, 40), "group": dice.of([None, None, 1])}
    elif family == "left":
        for each in made[4:]:
            each |= (
                {"cancel_after_s": dice.seconds(0.01, 3)} if dice.chance(0.3) else {"stop_after": dice.of([1, 2, 99])}
            )
    elif family == "mixed" and dice.chance(0.5):
        script["policies"].append(policy(dice, ids))
    script["calls"] = made
