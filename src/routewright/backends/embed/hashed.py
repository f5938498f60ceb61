"""The built-in embedder: hashed words, pairs of words and parts of words, with learned weights. Needs numpy alone."""

from __future__ import annotations

import re
import zlib
from importlib.resources import files
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float32]"

DIMENSIONS = 256
ROWS = 4096
"""Of the table of directions. Each feature adds two of them, so few features share both."""
GAINS = 16384
"""Weights of features, one for each hash."""
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_PART = 4
"""Characters of a part of a word."""
_LONGEST_TEXT = 8_000
"""Characters that are read."""
_LONGEST_WORD = 24


_MOST_WORDS = 20_000
"""That are remembered, 1 KB each."""
_SIGNS = np.array([1.0, -1.0], np.float32)


class HashedEmbedder:
    """Embeds a text as the weighted sum of its hashed features. Deterministic; some 30 µs for a short question.

    Its vectors are near each other for texts that share words, word forms and, as far as was learned, synonyms. It
    knows English best: in other languages it still compares words.
    """

    def __init__(self, table: Path | None = None) -> None:
        """Read the table that ships with the library, or another of ``benchmarks/train_embedder.py``."""
        packed = (table or files("routewright.data").joinpath("hashed_embedder.npz")).read_bytes()
        self.name = "hashed-1" if table is None else f"hashed-{zlib.crc32(packed):08x}"
        with np.load(BytesIO(packed)) as arrays:
            self._directions: Floats = arrays["directions"] * arrays["scales"].astype(np.float32)[:, None]
            self._gains: Floats = arrays["gains"].astype(np.float32)
        self._words: dict[str, Floats] = {}
        """Sums of the features of words met before."""

    def embed(self, text: str) -> Floats:
        """The embedding, (DIMENSIONS,) of length 1; of a text without words the zero vector."""
        words = words_of(text)
        if not words:
            return np.zeros(DIMENSIONS, np.float32)
        total: Floats = np.add.reduce([self._word(word) for word in words])
        if len(words) > 1:
            total = total + self._sum([pair_hash(*pair) for pair in pairwise(words)])
        length = float(np.sqrt(total @ total))
        return (total / length).astype(np.float32) if length else total

    def _word(self, word: str) -> Floats:
        known = self._words.get(word)
        if known is None:
            whole, *parts = hashes(word)
            known = self._sum([whole]) + self._sum(parts) / np.sqrt(np.float32(len(parts)))
            if len(self._words) >= _MOST_WORDS:
                self._words.clear()
            self._words[word] = known
        return known

    def _sum(self, hashed: list[int]) -> Floats:
        one, other, sign, other_sign, place = split(np.array(hashed, np.uint32))
        gains = self._gains[place]
        total: Floats = (gains * _SIGNS[sign]) @ self._directions[one]
        total += (gains * _SIGNS[other_sign]) @ self._directions[other]
        return total


def hashes(word: str) -> list[int]:
    """The features of a word: itself and its parts. The same in every process and on every machine."""
    word = word[:_LONGEST_WORD]
    marked = f"<{word}>"
    parts = [marked[start : start + _PART] for start in range(max(len(marked) - _PART + 1, 1))]
    return [zlib.crc32(part.encode()) for part in [f" {word}", *parts]]


def pair_hash(first: str, second: str) -> int:
    """The feature of two words in a row."""
    return zlib.crc32(f"{first[:_LONGEST_WORD]} {second[:_LONGEST_WORD]}".encode())


def words_of(text: str) -> list[str]:
    """Words in lower case, without the apostrophes in them."""
    return _WORD.findall(shortened(text).lower().replace("'", "").replace("’", ""))


def shortened(text: str) -> str:
    """What is read of a text: of a longer one the first half and the last half of as many characters."""
    half = _LONGEST_TEXT // 2
    return text if len(text) <= _LONGEST_TEXT else f"{text[:half]} {text[-half:]}"


def split(hashed: NDArray[np.uint32]) -> tuple[NDArray[Any], ...]:
    """The parts of hashes: two rows, two signs (0 or 1), and the place of the gain."""
    gain = (hashed * np.uint32(0x9E3779B1)) >> np.uint32(18)
    return hashed & 4095, (hashed >> 12) & 4095, (hashed >> 24) & 1, (hashed >> 25) & 1, gain
