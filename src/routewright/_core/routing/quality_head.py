"""Learns from an account's traffic how models' quality differs from the built-in predictor's. A head moves a model's
quality on the logit scale, by an offset and a weight for each number of the prompt's sketch, all shrunk towards 0. The
bias of each source of scores (users complain, judges are kind) is fitted as well, but not used in decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import MsgspecError, json
from numpy.typing import NDArray

from routewright.wire import FaultKind, Head, HeadFigures, ModelSpan, Need, PutFeedback, Reading, Trace
from routewright.wire.storage import JUDGE

from .predict import TOPICS
from .quality import MICRO

HEADS = "heads"  # id of the stored state with the heads of an account and environment (``PutAgentState``)
FOLDS = 5
FEWEST = 50  # traces needed to learn
SURE = 1.645  # standard errors by which a head must be better on held-out traces: 95 %, one-sided
MOST_SAMPLES = 10_000
SOURCES = {"feedback": 1.0, JUDGE: 0.5, "structured": 0.25, "answer": 0.1}
"""The weight of a sample by its source: user feedback, a judge, a structured answer's validity, or an answer's end."""
_POOR = frozenset({FaultKind.INVALID_OUTPUT, FaultKind.REFUSED, FaultKind.BLOCKED})
_CUT = 0.25  # score of an answer cut at the model's own token limit
_STEPS = 12  # iterations of Newton's method, each of at most one logit
_RIDGES = 0.01, 4.0, 16.0
"""1 / variance of the priors of sources, offsets and weights. Sources have a wide prior: they absorb what all answers
have in common, which then does not favour the models in use."""
_SCALE, _MOST, _STEP = 127, 3.0, 8
"""Scale of sketch numbers; largest move in logits; steps per logit, so that prompts share quality columns."""

Floats = NDArray[np.float64]


class Sample(NamedTuple):
    """The score of one model in one call."""

    trace_id: str
    model: str
    source: str
    """One of ``SOURCES``."""
    score: float
    sketch: tuple[int, ...]
    shipped: float
    """The built-in predictor's quality, 0..1; 0.5 for sources other than feedback."""


def heads_in(body: bytes | None) -> tuple[Head, ...]:
    """The heads in a stored state, the active one first; none if another version's format cannot be read."""
    try:
        return () if body is None else json.decode(body, type=tuple[Head, ...])
    except MsgspecError:
        return ()


def sketch_of(reading: Reading) -> tuple[int, ...]:
    """The features of a prompt that heads use: topic, difficulty and novelty."""
    topics = (_SCALE * (topic == reading.topic) for topic in TOPICS)
    return *topics, round(_SCALE * (2 * reading.difficulty - 1)), round(_SCALE * reading.novelty)


def steps_of(head: Head, sketch: Sequence[int]) -> tuple[int, ...]:
    """The move of each of a head's models for a prompt, in eighths of a logit."""
    said = [(0, _SCALE), *((place, number) for place, number in enumerate(sketch, 1) if number)]
    moves = [sum([move[place] * number for place, number in said]) / _SCALE for move in head.models.values()]
    return tuple([round(max(-_MOST, min(_MOST, move)) * _STEP) for move in moves])


def moved(quality: Sequence[int], rows: Mapping[str, int], head: Head, steps: Sequence[int]) -> tuple[int, ...]:
    """The predictor's qualities (millionths) after a head's moves. Models without a move keep theirs."""
    column = [*quality]
    for model, step in zip(head.models, steps, strict=True):
        if step and model in rows:
            logit = _logit(column[rows[model]] / MICRO) + step / _STEP
            column[rows[model]] = round(MICRO / (1 + np.exp(-logit)))
    return tuple(column)


def samples_of(trace: Trace, feedback: PutFeedback | None, shipped: Mapping[str, float]) -> list[Sample]:
    """One sample per model tried, from feedback or the attempt's end. ``shipped``: the predictor's qualities."""
    given = trace.decision_input
    if given is None or given.reading is None or not given.reading.sketch or trace.cache_hit:
        return []
    source = "structured" if given.needs & (Need.JSON | Need.JSON_OBJECT | Need.JSON_SCHEMA) else "answer"
    ended: dict[str, float | None] = {}  # the last attempt's score; None if its end tells nothing about quality
    for span in trace.spans:
        if isinstance(span, ModelSpan) and span.status != "cancelled":
            if span.error in _POOR or span.finish_reason == "content_filter":
                ended[span.model] = 0.0
            elif span.error is not None:  # such as an outage or a rate limit
                ended[span.model] = None
            elif span.finish_reason == "length":
                ended[span.model] = _CUT if given.max_output_tokens is None else None
            else:
                ended[span.model] = 1.0
    said = {model: (source, score, 0.5) for model, score in ended.items() if score is not None}
    served, sketch = trace.selected_model, given.reading.sketch
    if feedback is not None and served is not None:
        by = JUDGE if feedback.comment == JUDGE else "feedback"
        said[served] = by, feedback.score, shipped.get(served, 0.5)
    known = [(model, *each) for model, each in said.items() if model in shipped]
    return [Sample(trace.id, model, by, score, sketch, prior) for model, by, score, prior in known]


def fit(samples: Sequence[Sample]) -> dict[str, tuple[float, ...]]:
    """Per model, the offset and the weights of the sketch's numbers, in logits."""
    x, ridge, models = _design(samples)
    moves = _fitted(x, ridge, *_outcomes(samples))[len(SOURCES) :].reshape(len(models), -1).round(4)
    return {model: tuple(move) for model, move in zip(models, moves.tolist(), strict=True)}


def evaluate(samples: Sequence[Sample]) -> HeadFigures:
    """Cross-validate a head against the predictor alone. With fewer than ``FEWEST`` traces, only counts them."""
    ids, trace = np.unique([each.trace_id for each in samples], return_inverse=True)
    if len(ids) < FEWEST:
        return HeadFigures(len(ids), 0.0, 0.0, 0.0)
    (x, ridge, _), (score, weight, base) = _design(samples), _outcomes(samples)
    losses = np.empty((2, len(samples)))
    for out in (trace % FOLDS == fold for fold in range(FOLDS)):
        for place, columns in enumerate((len(SOURCES), x.shape[1])):
            found = _fitted(x[~out, :columns], ridge[:columns], score[~out], weight[~out], base[~out])
            share = _shares(base[out] + x[out, :columns] @ found)
            losses[place, out] = -score[out] * np.log(share) - (1 - score[out]) * np.log(1 - share)
    shipped, with_head = losses @ weight / weight.sum()
    apart = np.bincount(trace, weight * (losses[0] - losses[1] - (shipped - with_head)))
    error = np.sqrt(apart @ apart) / weight.sum()
    return HeadFigures(len(ids), *(round(float(each), 6) for each in (shipped, with_head, error)))


def refusal_of(figures: HeadFigures) -> str:
    """Why a head is rejected; empty if it is better on held-out traces."""
    if figures.traces < FEWEST:
        return f"only {figures.traces} traces have a score; at least {FEWEST} are needed"
    if figures.gain > SURE * figures.gain_error:
        return ""
    return (
        f"the head does not beat the built-in predictor on held-out traces: its log-loss is {figures.log_loss:.4f} "
        f"against {figures.shipped_log_loss:.4f}, a gain of {figures.gain:.4f} with a standard error of "
        f"{figures.gain_error:.4f}"
    )


def _design(samples: Sequence[Sample]) -> tuple[Floats, Floats, list[str]]:
    """The design matrix (a row per sample; a column per source, then a block per model), its ridges, the models."""
    sources, models, width = [*SOURCES], sorted({each.model for each in samples}), 1 + len(samples[0].sketch)
    x = np.zeros((len(samples), len(sources) + width * len(models)))
    for row, each in enumerate(samples):
        start = len(sources) + width * models.index(each.model)
        x[row, sources.index(each.source)] = 1
        x[row, start : start + width] = 1, *(number / _SCALE for number in each.sketch)
    of_source, offset, weight = _RIDGES
    return x, np.array([of_source] * len(sources) + [offset, *[weight] * (width - 1)] * len(models)), models


def _outcomes(samples: Sequence[Sample]) -> tuple[Floats, Floats, Floats]:
    """The score, weight, and built-in predictor's logit of each sample."""
    score, weight, base = np.array([(each.score, SOURCES[each.source], _logit(each.shipped)) for each in samples]).T
    return score, weight, base


def _fitted(x: Floats, ridge: Floats, score: Floats, weight: Floats, base: Floats) -> Floats:
    """The coefficients of a weighted ridge logistic regression, by Newton's method."""
    found: Floats = np.zeros(len(ridge))
    for _ in range(_STEPS):
        share = _shares(base + x @ found)
        slope = x.T @ (weight * (score - share)) - ridge * found
        step = np.linalg.solve((x.T * (weight * share * (1 - share))) @ x + np.diag(ridge), slope)
        found = found + step * min(1.0, 1 / max(float(np.abs(step).max()), 1e-12))
    return found


def _shares(logits: Floats) -> Floats:
    shares: Floats = (1 / (1 + np.exp(-logits))).clip(1e-6, 1 - 1e-6)
    return shares


def _logit(quality: float) -> float:
    quality = min(max(quality, 0.02), 0.98)
    return float(np.log(quality / (1 - quality)))
