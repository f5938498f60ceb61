"""How long does it take to say how long a prompt is, and how far off is the estimate?"""

from __future__ import annotations

import json
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
CODE = "code (Python, TypeScript, Go, SQL, Rust)"
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
    CODE: ("python", "typescript", "go", "sql", "rust"),
    "JSON": ("json", "json_indented", "json_config", "json_events"),
    "mostly spaces": ("whitespace", "whitespace_table", "whitespace_yaml"),
    "Markdown": ("markdown", "markdown_guide"),
    "numbers": ("numbers", "numbers_table", "numbers_invoice"),
    "mixed": ("mixed_support", "mixed_notes", "emoji_chat"),
}
"""Texts of the table by kind."""
PROMISED = ("English", "German", "Chinese", CODE, "JSON")
ERROR = Question("mean size of the estimate's error: the worst of English, German, Chinese, code and JSON", "15")
TIMED = {"English": "english", "JSON": "json"}
SIZES = {"1 KB": 1_024, "100 KB": 102_400, "16 MB": 16 << 20}


def of_size(text: str, size: int) -> str:
    return (text.encode() * (size // len(text.encode()) + 1))[:size].decode(errors="ignore")


def estimating(language: str) -> Question:
    return Question(f"tokens of 1 KB of {language} estimated", "3")


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


@pytest.mark.parametrize("size", SIZES)
def test_bounds(effort: Effort, report: Report, size: str) -> None:
    asked = RouteRequest([Message("user", of_size(TEXTS["english"], SIZES[size]))])
    figure = sample(bounds_of, cycle([asked]), effort._replace(least=5), loop=False)
    report.add(Question(f"bounds and estimate of {size} of English"), "routewright", figure)


def test_error(report: Report) -> None:
    """Of the estimate, against the count in o200k_base, in per cent."""
    means = []
    for kind, names in KINDS.items():
        errors = [100 * (estimate_text(TEXTS[name]) / COUNTER.count(TEXTS[name], "o200k_base") - 1) for name in names]
        worst = Figure("%", max(errors, key=abs))
        report.add(Question(f"error of the estimate, {kind}, worst text"), "routewright", worst)
        if kind in PROMISED:
            means.append(fmean(map(abs, errors)))
    report.add(ERROR, "routewright", Figure("%", max(means)))
