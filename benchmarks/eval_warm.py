"""What do warm prefixes save over a conversation, against routing that does not know of them, and against pinning?

    python -m benchmarks.eval_warm           # 200 conversations of each kind, some minutes
    python -m benchmarks.eval_warm --quick   # 25 of each, some seconds

Simulated conversations over the bundled catalogue and its prices. Histories grow turn by turn, with pauses between; how
hard a turn is changes what it asks of a model, as a predictor would say (``decision_input.quality``). Vendors keep what
they say they keep, and find ``FOUND`` of what they should. Half of the conversations mark their prompts
(``cache_control``). The decision and the memory are those of the library. One line of JSON a figure:

- ``blind`` decides each turn without knowing what is warm, ``pinned`` stays with the model of the first turn, ``warm``
  knows. Dollars are those of all turns, at the catalogue's prices for cached, written and other input.
- ``quality`` is the mean, over turns, of what was said of the chosen model; ``moves`` the turns that another model
  answered than the one before; ``cached`` the share of the input that was read from a cache.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from msgspec.structs import replace

from routewright._core.attempts.health import health_snapshot
from routewright._core.catalogue.models import snapshot
from routewright._core.catalogue.prices import price_at, prompt_cache_of, usage_nanos
from routewright._core.prompt_caches import LEAST_TOKENS, Prefixes, Prompt
from routewright._core.routing.board import Board, Boards
from routewright._core.routing.decide import decide
from routewright._core.routing.inputs import RULES
from routewright._core.routing.pool import Pool
from routewright._core.routing.quality import MICRO
from routewright._core.routing.request_options import RequestOptions
from routewright.catalogue import bundled
from routewright.errors import NoCandidates
from routewright.wire import (
    CacheControl,
    DecisionInput,
    Goal,
    Message,
    Need,
    RouteRequest,
    TextPart,
    TokenBounds,
    Usage,
)

FOUND = 0.9
"""The share of calls whose vendor finds what it should have."""
APART_S = 1e6
"""Between conversations, so that none is warm from another."""
POLICIES = ("blind", "pinned", "warm")
UNREACHED = ("amazon-bedrock", "bytedance-volcengine")
"""Vendors of the catalogue that no built-in provider calls."""
MARK = CacheControl("ephemeral")


class Kind(NamedTuple):
    """How conversations of a kind go. Means of tokens and seconds; what is drawn is spread by a factor of two or so."""

    system: int
    turns: int
    said: int
    answered: int
    pause_s: float


KINDS = {
    "chat": Kind(800, 10, 150, 400, 60.0),
    "documents": Kind(20_000, 6, 100, 500, 90.0),
    "agent": Kind(4_000, 25, 1_500, 250, 8.0),
    "slow": Kind(6_000, 8, 400, 500, 900.0),
}


class Turn(NamedTuple):
    """One request of a conversation."""

    at: float
    messages: list[Message]
    tokens: int
    answer: int
    hardness: float
    """1: as usual; at 0 all models do."""


def turns(kind: Kind, start_s: float, chance: Random, *, marked: bool) -> Iterator[Turn]:
    """A conversation."""

    def about(mean: float) -> int:
        return max(1, round(mean * chance.lognormvariate(0.0, 0.6)))

    system, at = about(kind.system), start_s
    messages, tokens = [text("system", system, chance)], system
    for _ in range(max(2, about(kind.turns))):
        said, answer = about(kind.said), about(kind.answered)
        question = text("user", said, chance)
        asked = [*messages, replace(question, content=[TextPart(str(question.content), MARK)]) if marked else question]
        tokens += said
        yield Turn(at, asked, tokens, answer, chance.choice([0.2, 0.6, 1.0, 1.0, 1.4]))
        messages = [*messages, question, text("assistant", answer, chance)]
        tokens += answer
        at += 5.0 + about(kind.pause_s)


def text(role: Any, tokens: int, chance: Random) -> Message:
    """A message of about so many tokens, like no other."""
    return Message(role, f"{chance.getrandbits(64):016x}" + " ship" * tokens)


class Vendors:
    """What the vendors really have of one conversation: the longest prompt of each model, and until when."""

    def __init__(self, chance: Random) -> None:
        self._kept: dict[str, tuple[int, float]] = {}
        self._chance = chance

    def usage(self, board: Board, model: str, turn: Turn, *, marked: bool) -> Usage:
        """Answer a turn."""
        tokens, until = self._kept.get(model, (0, 0.0))
        provider, _, name = model.partition("/")
        cache, prices = prompt_cache_of(provider, name), board.pool.prices[board.pool.row[model]]
        if cache is None or (cache.by_marks and not marked) or turn.tokens < cache.minimum:
            return Usage(turn.tokens, turn.answer)
        found = tokens if turn.at < until and self._chance.random() < FOUND else 0
        self._kept[model] = turn.tokens, turn.at + cache.lifetime_s
        price = price_at(prices, turn.tokens)
        written = turn.tokens - found if price.written > price.input else 0
        return Usage(turn.tokens, turn.answer, cached=found, written=written)


class Player:
    """Plays conversations by one policy, and counts."""

    def __init__(self, policy: str, boards: Boards) -> None:
        self.policy = policy
        self._boards = boards
        self._prefixes = Prefixes()
        self.nanos = self.turns = self.moves = self.input = self.cached = 0
        self.quality = 0.0

    def play(self, said: list[Turn], goal: Goal, seed: int, *, marked: bool) -> None:
        """Answer all turns of a conversation."""
        board = self._boards.with_dials(RequestOptions(marks=marked)).of(health_snapshot({}))
        vendors, before = Vendors(Random(seed)), None
        for turn in said:
            column = tuple(max(0, MICRO - round((MICRO - each) * turn.hardness)) for each in board.pool.qualities)
            prompt = Prompt(RouteRequest(turn.messages), "account", repeats=False)
            looks = self.policy == "warm" and turn.tokens >= LEAST_TOKENS
            given = DecisionInput(
                catalogue=board.pool.snapshot.id, health=board.health, as_of=board.pool.as_of, rules=RULES,
                tokens=TokenBounds(turn.tokens, turn.tokens, turn.tokens), goal=goal, quality=column,
                wishes=int(Need.CACHE_CONTROL) if marked else 0,
                models=(before,) if self.policy == "pinned" and before else None,
                warm=self._prefixes.find(prompt, turn.at) if looks else (),
            )  # fmt: skip
            try:
                leg = decide(given, board).legs[0]
            except NoCandidates:  # the conversation has grown out of the window it is pinned to
                leg = decide(replace(given, models=None), board).legs[0]
            usage, name = vendors.usage(board, leg.id, turn, marked=marked), leg.id.partition("/")[2]
            cache = prompt_cache_of(leg.provider, name)
            if looks and cache is not None and price_at(leg.prices, turn.tokens).cached < leg.prices[-1].input:
                self._prefixes.learn(prompt, leg.id, cache, usage, turn.at)
            self.nanos += usage_nanos(leg.prices, usage)
            self.quality += column[leg.row] / MICRO
            self.moves += before not in (None, leg.id)
            self.turns, self.input, self.cached = self.turns + 1, self.input + usage.input, self.cached + usage.cached
            before = leg.id


def played(kind: str, goal: Goal, conversations: int) -> dict[str, Any]:
    """Play the same conversations by each policy."""
    models, as_of = bundled()
    served = [model for model in models if model.pricing_per_1m is not None and model.provider not in UNREACHED]
    boards = Boards(Pool(snapshot(tuple(served), as_of), as_of))
    players = [Player(policy, boards) for policy in POLICIES]
    for number in range(conversations):
        marked, chance = number % 2 == 1, Random(f"{kind} {number}")
        said = [*turns(KINDS[kind], 1e9 + number * APART_S, chance, marked=marked)]
        for player in players:
            player.play(said, goal, number, marked=marked)
    blind, pinned, warm = players
    return {
        "kind": kind,
        "goal": goal,
        "conversations": conversations,
        "turns": warm.turns,
        "usd": {player.policy: round(player.nanos / 1e9, 4) for player in players},
        "saved_of_blind": round(1 - warm.nanos / blind.nanos, 4),
        "saved_of_pinned": round(1 - warm.nanos / pinned.nanos, 4),
        "quality": {player.policy: round(player.quality / player.turns, 4) for player in players},
        "moves": {player.policy: round(player.moves / player.turns, 4) for player in players},
        "cached": {player.policy: round(player.cached / player.input, 4) for player in players},
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--conversations", type=int)
    given = parser.parse_args()
    goals: tuple[Goal, ...] = ("cost", "quality")
    for kind in KINDS:
        for goal in goals:
            print(json.dumps(played(kind, goal, given.conversations or (25 if given.quick else 200))), flush=True)


if __name__ == "__main__":
    main()
