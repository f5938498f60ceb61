"""A quality head is fitted to traces, shrunk towards the built-in predictor, and must beat it to be applied."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from routewright._core.routing.predict import TOPICS
from routewright._core.routing.quality_head import (
    FEWEST,
    Sample,
    evaluate,
    fit,
    moved,
    refusal_of,
    samples_of,
    sketch_of,
    steps_of,
)
from routewright.testing.storage import make_trace
from routewright.wire import (
    Head,
    HeadFigures,
    ModelSpan,
    Need,
    PutFeedback,
    Reading,
    Trace,
)

MATH, CODE = (127, 0), (0, 127)
FIGURES = HeadFigures(100, 0.6, 0.5, 0.01)


def sample(number: int, model: str, score: float, sketch: tuple[int, ...] = MATH) -> Sample:
    return Sample(f"tr_{number}", model, "feedback", score, sketch, 0.5)


def planted(count: int, rates: dict[str, float], seed: int = 7) -> list[Sample]:
    rng, names = Random(seed), [*rates]
    models = [names[number % len(names)] for number in range(count)]
    return [sample(number, model, float(rng.random() < rates[model])) for number, model in enumerate(models)]


def test_a_planted_difference_between_models_is_found() -> None:
    moves = fit(planted(2_000, {"a/good": 0.8, "b/bad": 0.3}))
    apart = sum(moves["a/good"]) - sum(moves["b/bad"])
    assert apart == pytest.approx(2.23, abs=0.35), "log(0.8 / 0.2) - log(0.3 / 0.7), on prompts of mathematics"


def test_a_difference_on_some_prompts_is_found_for_those_prompts() -> None:
    rng, samples = Random(7), []
    for number in range(4_000):
        sketch = (MATH, CODE)[number // 2 % 2]
        rate = 0.5 if number % 2 or sketch == CODE else 0.9
        samples.append(sample(number, f"m/{number % 2}", float(rng.random() < rate), sketch))
    head = head_of(fit(samples))
    (math, code) = (steps_of(head, sketch) for sketch in (MATH, CODE))
    assert math[0] - math[1] >= 8
    assert abs(code[0] - code[1]) <= 3


def test_a_model_with_few_samples_stays_near_the_built_in_predictor() -> None:
    samples = [*planted(400, {"a/good": 0.8, "b/bad": 0.3}), sample(400, "c/new", 0.0), sample(401, "c/new", 0.0)]
    assert abs(sum(fit(samples)["c/new"])) < 0.5


def test_a_sources_bias_favours_no_model() -> None:
    samples = []
    for number in range(400):
        source = ("feedback", "judge")[number % 2]
        samples.append(sample(number, "ab"[number % 2], 0.2 + 0.6 * (number % 2))._replace(source=source))
    both = [each._replace(model="ba"[place % 2], trace_id=f"x{place}") for place, each in enumerate(samples)]
    moves = fit([*samples, *both])
    assert abs(sum(moves["a"]) - sum(moves["b"])) < 0.05


@pytest.mark.parametrize("count", [FEWEST, 900, 5_000])
@pytest.mark.parametrize("score", [0.0, 1.0])
def test_uniform_scores_favour_no_model_over_an_unused_one(count: int, score: float) -> None:
    samples = [sample(number, "a/used", score, (MATH, CODE)[number % 2]) for number in range(count)]
    head = head_of(fit(samples))
    assert steps_of(head, MATH) == steps_of(head, CODE) == (0,)


def test_a_head_better_on_held_out_traces_is_accepted() -> None:
    figures = evaluate(planted(600, {"a/good": 0.8, "b/bad": 0.3}))
    assert refusal_of(figures) == ""
    assert figures.log_loss < figures.shipped_log_loss
    assert figures.traces == 600


@pytest.mark.parametrize("seed", range(12))
def test_a_head_from_shuffled_scores_is_refused_with_its_figures(seed: int) -> None:
    samples = planted(400, {"a/good": 0.8, "b/bad": 0.3, "c/so": 0.5}, seed)
    scores = [each.score for each in samples]
    Random(seed).shuffle(scores)
    figures = evaluate([each._replace(score=score) for each, score in zip(samples, scores, strict=True)])
    said = refusal_of(figures)
    assert "does not beat the built-in predictor on held-out traces" in said
    assert f"{figures.log_loss:.4f}" in said
    assert f"{figures.shipped_log_loss:.4f}" in said


def test_a_head_contradicted_by_held_out_traces_is_refused() -> None:
    samples = planted(600, {"a/good": 1.0, "b/bad": 0.0})
    turned = [each._replace(score=1 - each.score) if number // 2 % 2 else each for number, each in enumerate(samples)]
    assert refusal_of(evaluate(turned))


def test_too_few_traces_are_refused() -> None:
    few = [each._replace(trace_id=f"tr_{place % (FEWEST - 1)}") for place, each in enumerate(planted(600, {"a": 1.0}))]
    assert refusal_of(evaluate(few)) == f"only {FEWEST - 1} traces have a score; at least {FEWEST} are needed"
    assert refusal_of(evaluate(few[:1])) == f"only 1 traces have a score; at least {FEWEST} are needed"
    assert refusal_of(evaluate([])) == f"only 0 traces have a score; at least {FEWEST} are needed"


def test_fitting_is_deterministic() -> None:
    samples = planted(500, {"a/good": 0.8, "b/bad": 0.3})
    assert fit(samples) == fit([*samples])
    assert evaluate(samples) == evaluate([*samples])


def head_of(models: dict[str, tuple[float, ...]]) -> Head:
    return Head(id="hed_1", made_at=0.0, predictor="prd_1", models=models, figures=FIGURES)


def test_a_head_moves_only_its_models_in_eighths_of_a_logit() -> None:
    head = head_of({"a/one": (0.5, 0.0, 0.0), "gone/model": (1.0, 0.0, 0.0), "b/two": (0.01, 0.0, 0.05)})
    steps = steps_of(head, MATH)
    assert steps == (4, 8, 0)
    column = moved((500_000, 400_000, 300_000), {"b/two": 0, "a/one": 1, "c/new": 2}, head, steps)
    assert column == (500_000, 523_616, 300_000)
    assert steps_of(head_of({"a/one": (9.0, 0.0, 0.0)}), MATH) == (24,), "at most three logits"


def test_a_sketch_is_a_few_small_numbers_and_no_text() -> None:
    reading = Reading("prd_1", (3, -2), 0.75, "code", 0.5, "en")
    sketch = sketch_of(reading)
    assert sketch == (*[127 * (topic == "code") for topic in TOPICS], 64, 64)
    assert all(-127 <= each <= 127 for each in sketch_of(replace(reading, difficulty=0.0, novelty=1.0)))


# what a trace says


READING = Reading("prd_1", (3, -2), 0.75, "code", 0.5, "en", sketch=MATH)
SHIPPED = {"a/one": 0.7, "b/two": 0.4}


def told(
    *spans: tuple[str, str | None, str | None], needs: int = 0, served: str | None = "a/one", **given: object
) -> Trace:
    trace = make_trace(1)
    assert trace.decision_input is not None
    models = [
        ModelSpan(
            id=number, name=model, start_ms=0.0, model=model, provider=model[0], attempt=number, latency_ms=1.0,
            error=error, finish_reason=finish,
        )
        for number, (model, error, finish) in enumerate(spans, 1)
    ]  # fmt: skip
    decided = replace(trace.decision_input, reading=READING, needs=needs, **given)
    return replace(trace, spans=[*models], selected_model=served, decision_input=decided, cache_hit=False)


def scores(trace: Trace, feedback: PutFeedback | None = None) -> list[tuple[str, str, float, float]]:
    return [(each.model, each.source, each.score, each.shipped) for each in samples_of(trace, feedback, SHIPPED)]


def test_feedback_scores_the_serving_model_and_overrides_its_end() -> None:
    trace = told(("a/one", None, "length"))
    assert scores(trace) == [("a/one", "answer", 0.25, 0.5)]
    assert scores(trace, PutFeedback("tr_1", 0.9, None, 1.0)) == [("a/one", "feedback", 0.9, 0.7)]
    assert scores(trace, PutFeedback("tr_1", 0.9, "judge", 1.0)) == [("a/one", "judge", 0.9, 0.7)]


@pytest.mark.parametrize(
    "error", ["connect", "timeout", "rate_limited", "server", "auth", "reset", "truncated", "malformed"]
)
def test_outages_are_no_quality_samples(error: str) -> None:
    assert scores(told(("a/one", error, None), ("b/two", None, "stop"), served="b/two")) == [
        ("b/two", "answer", 1.0, 0.5)
    ]


@pytest.mark.parametrize("error", ["invalid_output", "refused", "blocked"])
def test_poor_output_before_a_fallback_scores_zero(error: str) -> None:
    trace = told(("a/one", error, None), ("b/two", None, "stop"), served="b/two")
    assert scores(trace) == [("a/one", "answer", 0.0, 0.5), ("b/two", "answer", 1.0, 0.5)]


def test_a_repaired_answer_scores_one_and_an_invalid_one_zero() -> None:
    mended = told(("a/one", "invalid_output", None), ("a/one", None, "stop"), needs=Need.JSON_SCHEMA)
    assert scores(mended) == [("a/one", "structured", 1.0, 0.5)]
    given_up = told(("a/one", "invalid_output", None), ("a/one", "invalid_output", None), needs=Need.JSON, served=None)
    assert scores(given_up) == [("a/one", "structured", 0.0, 0.5)]


def test_an_answer_cut_by_the_callers_cap_is_no_sample() -> None:
    assert scores(told(("a/one", None, "length"), max_output_tokens=5)) == []


def test_traces_without_a_sketch_and_cache_hits_give_no_samples() -> None:
    trace = told(("a/one", None, "stop"))
    assert trace.decision_input is not None
    bare = replace(trace.decision_input, reading=replace(READING, sketch=()))
    liked = PutFeedback("tr_1", 1.0, None, 1.0)
    assert scores(replace(trace, decision_input=bare), liked) == []
    assert scores(replace(trace, cache_hit=True), liked) == []
