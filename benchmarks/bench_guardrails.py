"""How long does a guardrail take for 100 kB of text, of ordinary kinds and of the worst that are known; and the refusal
of 15 MB that no model takes?"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import pytest

from routewright import Model, NoCandidates, PatternGuardrail, Pricing, Router
from routewright.backends.providers.callable import CallableProvider

from .conftest import Timed, TimedAsync
from .report import Question

TEXTS: dict[str, str] = json.loads((Path(__file__).parent.parent / "tests" / "data" / "texts.json").read_text("utf-8"))
SIZE = 100_000
UNITS = {
    "English": TEXTS["english"],
    "Chinese": TEXTS["chinese"],
    "Python": TEXTS["python"],
    "JSON": TEXTS["json"],
    "5 5 5 5": "5 ",
    "almost telephone numbers": "01  ",
    "almost keys": "sk-",
    "almost addresses": "a@a.a.a.a.a.a.a.a ",
    "almost account numbers": "AT8651=AT60,=AT60=AT600.AT11  ",
    "nothing but addresses": "anna@example.com ",
}
GUARDRAIL = PatternGuardrail()
LEAST = re.compile(r"[\w.+-]{1,64}@|\d[\d -]{11,18}\d|[A-Z]{2}\d\d[A-Z0-9]{11}|sk-\w{20}")
"""What one would write down for the same five kinds in a minute."""
MODEL = Model(id="good/one", quality=0.9, context_window=1_000_000, pricing_per_1m=Pricing(1.0, 4.0))
TOO_LONG = "5 " * 7_500_000


def of_size(unit: str) -> str:
    return (unit * (SIZE // len(unit) + 1))[:SIZE]


def searching(kind: str) -> Question:
    return Question(f"all five patterns in 100,000 characters: {kind}", "20,000")


@pytest.mark.parametrize("kind", UNITS)
class TestSearch:
    def test_floor(self, timed: Timed, kind: str) -> None:
        """One expression, and no judgement of what it finds."""
        timed(
            searching(kind), "floor", lambda text: sum(1 for _ in LEAST.finditer(text)), cycle([of_size(UNITS[kind])])
        )

    def test_routewright(self, timed: Timed, kind: str) -> None:
        timed(
            searching(kind), "routewright", lambda text: GUARDRAIL.check(text, "input"), cycle([of_size(UNITS[kind])])
        )


def test_a_prompt_that_no_model_takes(timed_async: TimedAsync) -> None:
    router = Router(providers=[CallableProvider(lambda call: "Fine.", models=[MODEL])], guardrails=[GUARDRAIL])

    async def ask(text: str) -> None:
        with suppress(NoCandidates):
            await router.route(text)

    question = Question("refusal of 15 MB that no model takes, with a guardrail", "100,000")
    timed_async(question, "routewright", ask, cycle([TOO_LONG]))
