"""How long does it take to say how long a prompt is, and how far off is the estimate?"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from statistics import fmean

import pytest

from routewright._core.tokens.estimate import bounds_of, estimate_text
from routewright.backends.tokens import PackedTokenCounter
from routewright.wire import Message, RouteRequest

from .conftest import Timed
from .measure import Effort, Figure, sample
from .report import Question, Report

DATA = Path(__file__).parent.parent / "tests" / "data"
TEXTS: dict[str, str] = json.loads((DATA / "texts.json").read_text("utf-8"))
COUNTER = PackedTokenCounter()
KINDS = {
    "English": ("english", "english_question", "english_letter", "english_report"),
    "German": ("german", "german_brief", "german_bericht"),
    "French, Spanish": ("french", "spanish"),
    "Russian": ("russian", "russian_letter"),
    "Arabic, Hebrew": ("arabic", "arabic_story", "hebrew"),
    "Hindi": ("hindi", "hindi_story"),
    "Thai": ("thai",),
    "Chinese": ("chinese", "chinese_letter", "chinese_report"),
    "Japanese": ("japanese", "japanese_essay"),
    "Korean": ("korean", "korean_essay"),
    "code (Python, TypeScript, Go, SQL, Rust)": ("python", "typescript", "go", "sql", "rust"),
    "JSON": ("json", "json_indented", "json_config", "json_events"),
    "mostly spaces": ("whitespace", "whitespace_table", "whitespace_yaml"),
    "Markdown": ("markdown", "markdown_guide"),
    "numbers": ("numbers", "numbers_table", "numbers_invoice"),
    "mixed": ("mixed_support", "mixed_notes", "emoji_chat"),
}
"""Texts of the table by kind."""
TIMED = {"English": "english", "German": "german", "Chinese": "chinese", "Python": "python", "JSON": "json"}
SIZES = {"1 KB": 1_024, "100 KB": 102_400, "16 MB": 16 << 20}


def of_size(text: str, size: int) -> str:
    return (text.encode() * (size // len(text.encode()) + 1))[:size].decode(errors="ignore")


def estimating(language: str) -> Question:
    return Question(f"estimate of 1 KB of {language}", "3")


@pytest.mark.parametrize("language", TIMED)
class TestEstimate:
    def test_floor(self, timed: Timed, language: str) -> None:
        """Four characters a token."""
        text = of_size(TEXTS[TIMED[language]], 1_024)
        timed(estimating(language), "floor", lambda text: len(text) // 4, cycle([text]))

    def test_counting(self, timed: Timed, language: str) -> None:
        """Exactly, with tiktoken."""
        text = of_size(TEXTS[TIMED[language]], 1_024)
        COUNTER.load("o200k_base")
        timed(estimating(language), "tiktoken", lambda text: COUNTER.count(text, "o200k_base"), cycle([text]))

    def test_routewright(self, timed: Timed, language: str) -> None:
        text = of_size(TEXTS[TIMED[language]], 1_024)
        timed(estimating(language), "routewright", estimate_text, cycle([text]))


@pytest.mark.parametrize("language", ["English", "Chinese"])
@pytest.mark.parametrize("size", SIZES)
def test_bounds(effort: Effort, report: Report, size: str, language: str) -> None:
    asked = RouteRequest([Message("user", of_size(TEXTS[TIMED[language]], SIZES[size]))])
    figure = sample(bounds_of, cycle([asked]), effort._replace(least=5), loop=False)
    report.add(Question(f"bounds and estimate of {size} of {language}"), "routewright", figure)


@pytest.mark.parametrize("kind", KINDS)
def test_error(report: Report, kind: str) -> None:
    """Of the estimate, against the count in o200k_base, in per cent."""
    texts = [TEXTS[name] for name in KINDS[kind]]
    errors = [100 * (estimate_text(text) / COUNTER.count(text, "o200k_base") - 1) for text in texts]
    shown: dict[str, Callable[[list[float]], float]] = {
        "mean": fmean,
        "mean size": lambda all_: fmean(map(abs, all_)),
        "worst": lambda all_: max(all_, key=abs),
    }
    for what, of in shown.items():
        report.add(Question(f"error of the estimate, {kind}, {what}"), "routewright", Figure("%", of(errors)))
