"""Integer logarithms, from which scores are computed. Unlike floats', they are the same on every machine."""

from __future__ import annotations

from bisect import bisect_right
from math import frexp, isqrt
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]

STEPS = 64  # steps per octave of ``log2_steps``
MOST_STEPS = 12  # the largest scaling, in quarter octaves
RATIOS = {step: isqrt(isqrt(1 << (40 + step))) for step in range(-MOST_STEPS, MOST_STEPS + 1)}
"""``2 ** (step / 4)`` in 1024ths, rounded down."""
SIZE_STEPS = 4  # size classes per octave

_roots = [1 << (step + 52 * STEPS) for step in range(STEPS)]
for _ in range(6):  # six square roots make a 64th root
    _roots = [*map(isqrt, _roots)]
_THRESHOLDS = np.array(_roots, dtype=np.float64) / 2.0**53  # mantissas in [0.5, 1) at which each step begins
_EDGES: list[float] = _THRESHOLDS.tolist()


def log2_steps(values: IntArray) -> IntArray:
    """``floor(64 * log2(v))`` for whole numbers from 1 to 2^53; 0 and less count as 1."""
    mantissa, exponent = np.frexp(np.maximum(values, 1).astype(np.float64))
    return (exponent.astype(np.int64) - 1) * STEPS + (np.searchsorted(_THRESHOLDS, mantissa, side="right") - 1)


def log2_step(value: int) -> int:
    """``log2_steps`` of one number."""
    mantissa, exponent = frexp(value if value > 1 else 1)
    return (exponent - 1) * STEPS + bisect_right(_EDGES, mantissa) - 1


T = TypeVar("T", int, IntArray)


def scale(value: T, step: int) -> T:
    """The value scaled up by ``step`` quarter octaves, rounded up."""
    return (value * RATIOS[step] + 1023) >> 10


def size_class(tokens: int) -> int:
    """The quarter octave a token count falls in: ``floor(4 * log2(n))``; 0 for one token and less."""
    return (tokens**SIZE_STEPS).bit_length() - 1 if tokens > 1 else 0


SIZE_CLASSES = tuple(map(size_class, range(1_024)))  # a lookup table for common counts


def class_size(size: int) -> int:
    """The lower edge of a size class in tokens, rounded down."""
    return isqrt(isqrt(1 << size))
