"""What the built-in predictor reads in a prompt, and what a reading means for models."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.routing.predict import LARGEST_CELL, TOPICS, Predictor
from routewright.wire import Model

CELLS = st.tuples(*(st.integers(-most, most) for most in LARGEST_CELL))
PROBLEM = (
    "Janet has 16 eggs. She eats 3 for breakfast and bakes muffins with 4. She sells the rest for $2 each. "
    "How many dollars does she make every day?"
)
LEMMA = (
    "Let $G$ be a finite group and $H$ a subgroup. Prove that if $[G:H] = p$ is the smallest prime that divides $|G|$, "
    "then $H$ is normal. Find all \\frac{a}{b} with $a^2 + b^2 = 65$."
)


@lru_cache
def predictor() -> Predictor:
    with np.load(BytesIO(files("routewright.data").joinpath("predictor.npz").read_bytes())) as arrays:
        return Predictor(dict(arrays))


@pytest.mark.parametrize(
    "text",
    ["", " ", "\n", "a", "\x00\xff\x01" * 50, "\ud800 lone", "word " * 200_000, "x" * 1_000_000, "(" * 100_000,
     "\n" * 100_000, "was ist 什么 что ما 🙂 of the", "A. \nB. \nC. ", "Answer:"],
)  # fmt: skip
def test_any_text_is_read(text: str) -> None:
    reading = predictor().read(text)
    assert reading.topic in TOPICS
    assert 0 <= reading.difficulty <= 1
    assert 0 <= reading.novelty <= 1
    assert all(abs(step) <= most for step, most in zip(reading.cell, LARGEST_CELL, strict=True))


@given(st.text())
def test_reading_is_deterministic_and_on_the_grid(text: str) -> None:
    reading = predictor().read(text)
    assert reading == predictor().read(text)
    assert all(abs(step) <= most for step, most in zip(reading.cell, LARGEST_CELL, strict=True))


def test_only_the_ends_of_a_huge_text_are_read() -> None:
    start, end = "one " * 500, " two" * 500
    assert predictor().read(start + "x " * 10 + end) == predictor().read(start + "y" * 1_000_000 + end)


def test_a_lemma_is_harder_than_sums() -> None:
    assert predictor().read(LEMMA).difficulty > 0.6 > predictor().read(PROBLEM).difficulty


def test_an_entirely_unknown_text_moves_nothing() -> None:
    reading = predictor().read("zxqv wvutq bnmpl qwrtz plmkn vbgtr xswzq qazxc wsxed rfvtg")
    assert reading.novelty == 1
    assert reading.cell == (0, 0)
    assert reading.difficulty == 0.5
    assert predictor().column(reading.cell, [Model(id="a/b", quality=0.7)]) is None


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        (PROBLEM, "math"),
        ("My card has not arrived yet, how long does delivery of a new card take?", "support"),
        ("set an alarm for seven tomorrow morning", "chat"),
        ("```python\ndef add(a, b):\n    return a + b\n```\nWhy does add() == None fail?", "code"),
        ("Fix this bug in my React component", "code"),
        ("Why is my for loop in Java infinite?", "code"),
        ("SELECT * FROM users WHERE id = 3 is slow", "code"),
        ("How do I center a div in CSS?", "code"),
        ("What function does the liver have?", "other"),
        ("Where can I return my order?", "chat"),
        ("Wie storniere ich meine Bestellung?", "other"),
        ("ok", "other"),
        ("Which artery supplies blood to the muscles of the patient's upper limb?", "medicine"),
    ],
)
def test_topics(text: str, topic: str) -> None:
    assert predictor().read(text).topic == topic


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("What is the capital of France?", "en"),
        ("Wie spät ist es in der Stadt?", "de"),
        ("Quelle est la capitale de la France ?", "fr"),
        ("¿Cuál es la capital de Francia?", "es"),
        ("フランスの首都はどこですか", "ja"),
        ("法国的首都是哪里", "zh"),
        ("Какая столица Франции?", "ru"),
        ("12345", ""),
        ("", ""),
    ],
)
def test_languages(text: str, language: str) -> None:
    assert predictor().read(text).language == language


@given(CELLS, st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_a_better_prior_never_gets_a_lower_quality(cell: tuple[int, ...], priors: list[float]) -> None:
    models = [Model(id=f"some/{at}", quality=prior) for at, prior in enumerate(sorted(priors))]
    column = predictor().column(cell, models)
    assert column is None or list(column) == sorted(column)


@given(CELLS, st.lists(st.floats(0, 1), min_size=1, max_size=10), st.floats(0, 1))
def test_another_model_does_not_change_the_others(cell: tuple[int, ...], priors: list[float], more: float) -> None:
    models = [Model(id=f"some/{at}", quality=prior) for at, prior in enumerate(priors)]
    column = predictor().column(cell, models)
    longer = predictor().column(cell, [*models, Model(id="more/one", quality=more)])
    assert (longer and longer[:-1]) == column


def test_an_easy_prompt_is_easier_for_all() -> None:
    models = [Model(id="openai/gpt-4o", quality=0.6), Model(id="new/model", quality=0.6), Model(id="own/unrated")]
    easy, hard = (predictor().column(cell, models) for cell in ((4, 0), (-4, 0)))
    assert easy is not None
    assert hard is not None
    assert all(one > other for one, other in zip(easy, hard, strict=True))


@given(CELLS, st.floats(0.01, 0.99))
def test_a_model_unknown_to_training_stays_near_its_prior(cell: tuple[int, ...], prior: float) -> None:
    column = predictor().column(cell, [Model(id="new/model", quality=prior)])
    far = predictor().column((cell[0], 0), [Model(id="new/model", quality=prior)])
    assert (column is None) == (cell == (0, 0))
    if column is not None and cell[0] == 0:
        assert abs(column[0] - 1e6 * prior) < 2e5
    assert far is None or (far[0] > 1e6 * prior) == (cell[0] > 0)
