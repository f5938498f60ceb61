"""Predicts each model's quality on a prompt from its text, without calling a model. The words give a probability for
each domain seen in training. From these and the surface of the text follow two coordinates: ease (how much better all
models do than usual) and spread (how much stronger models gain over weaker ones). Each model has a slope along each.
Both coordinates are shrunk by novelty and rounded to a small grid."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from routewright.wire.decision import Reading
from routewright.wire.model import Model

from .quality import DEFAULT_QUALITY, MICRO

Floats: TypeAlias = "NDArray[np.float32]"
Ints: TypeAlias = "NDArray[np.int64]"

TOPICS = (
    "math", "science", "medicine", "law", "humanities", "social", "business", "code", "support", "chat", "other",
)  # fmt: skip
"""The topics of prompts. ``support``: customers' questions. ``chat``: questions to an assistant."""
_SURE = 0.35  # the least probability of a reported topic
COORDINATES = 2
LARGEST_CELL = (12, 8)  # steps to either side of each coordinate
_LONGEST_TEXT = 4_000  # characters read; of a longer text, half from its beginning and half from its end
_LETTERS = bytes(  # translates bytes: letters to lower case, digits to 0, all else to a space
    48 if byte in b"0123456789" else byte if byte in b"_" or byte > 127 or chr(byte).isalpha() else 32
    for byte in (bytes(range(256)).lower())
)
_CHOICE = re.compile(r"^\(?[A-J][.):] *(.*)$", re.MULTILINE)
_CUE = "answer:"  # at the end of a text, an artefact of benchmarks
_CODE = (
    "```", "SELECT ", " FROM ", "\ndef ", "\nclass ", "\nimport ", "#include", "print(", "){", ") {", ";\n", "):\n",
    "=>", "==", "!=", "->", "::", "</",
)  # fmt: skip
"""Character sequences typical of code."""
_CODE_WORDS = dict.fromkeys(
    b"css cuda django dockerfile graphql html javascript kotlin mysql numpy pandas php postgres pytest python pytorch "
    b"regex sql stacktrace traceback typescript".split(), 2
) | dict.fromkeys(
    b"array async await backend bug compile compiler component const dataframe debug decorator def endpoint frontend "
    b"function golang haskell import int java json linux loop null nullpointerexception parser println quicksort react "
    b"recursion recursive refactor return rust script string struct swift var void".split(), 1
)  # fmt: skip
"""Words about programming, and their weight; a ``_CODE`` match weighs 1. A text with a total of 2 is about code."""
_CLASSES = (
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"0123456789", b"+*/=<>^%", b"$", b"\\", b"?", b"_", b"\n", b",;:", b".!", b"()[]",
    b"{}", b"\"'`", bytes(range(128, 256)),
)  # fmt: skip
"""Classes of bytes to count."""
_BYTES = np.array([[byte in kind for kind in _CLASSES] for byte in range(256)], np.float32)  # (256, kinds)
SURFACE = 8 + 2 * len(_CLASSES)  # number of surface features

_SCRIPTS = (
    ("ja", re.compile(r"[\u3040-\u30ff]")), ("zh", re.compile(r"[\u4e00-\u9fff]")),
    ("ko", re.compile(r"[\uac00-\ud7af]")), ("ru", re.compile(r"[\u0400-\u04ff]")),
    ("ar", re.compile(r"[\u0600-\u06ff]")), ("hi", re.compile(r"[\u0900-\u097f]")),
    ("bn", re.compile(r"[\u0980-\u09ff]")), ("el", re.compile(r"[\u0370-\u03ff]")),
    ("he", re.compile(r"[\u0590-\u05ff]")), ("th", re.compile(r"[\u0e00-\u0e7f]")),
)  # fmt: skip
"""Scripts that identify a language. Japanese comes before Chinese, whose characters it shares."""
_FREQUENT = {  # the most frequent words of languages in Latin script
    language: frozenset(words.encode().split())
    for language, words in {
        "en": "the of and to is are what how which a an in for that with you my do can it on was be have this i me",
        "de": "der die das und ist nicht ein eine wie was ich zu mit für auf den von im sie es wird kann mir bitte",
        "fr": "le la les des et est un une que qui dans pour pas sur avec je vous du ce comment quel quelle au il",
        "es": "el la los las de y es un una que en por para con no se del cómo qué cuál al lo su me como",
        "pt": "o os as de e é um uma que em por para com não se do da como qual ao no na eu você meu",
        "it": "il lo gli di e è un una che in per con non si del della come quale al nel sono mi i le",
        "nl": "de het een en is van niet in op te dat met voor hoe wat ik je zijn er aan kan die mijn wordt",
        "pl": "i w na z nie jest to się że jak co do czy dla są po od ale mi jaki ile przez o mój",
        "tr": "ve bir bu için ne nasıl mi mı ile da de değil var olarak çok ben daha nedir gibi kadar hangi",
        "vi": "là và của có không một cho được trong những các tôi này bạn với như thế nào làm để người",
        "id": "yang dan di untuk dengan tidak apa bagaimana ini itu dari adalah saya ke pada bisa akan atau berapa",
        "sv": "och är det en ett att inte som på med för hur vad jag av till den har kan om från min",
    }.items()
}
LANGUAGES = (*_FREQUENT, *(language for language, _ in _SCRIPTS))  # ISO 639-1


def seen(text: str) -> tuple[list[bytes], set[bytes], Floats]:
    """The lower-case words of a text, with digits as 0; the distinct words; and its ``SURFACE`` features."""
    half = _LONGEST_TEXT // 2
    text = (text if len(text) <= _LONGEST_TEXT else f"{text[:half]}\n{text[-half:]}").rstrip()
    if text[-len(_CUE) :].lower() == _CUE:
        text = text[: -len(_CUE)].rstrip()
    raw = text.encode("utf-8", "replace")
    words = raw.translate(_LETTERS).split()
    counts = np.bincount(np.frombuffer(raw, np.uint8), minlength=256).astype(np.float32) @ _BYTES
    choices = list(map(len, _CHOICE.findall(text)))
    size, count, line, distinct = len(text), len(words), text.find("\n"), set(words)
    rest = (
        math.log1p(size), math.log1p(count), len(b"".join(words)) / (count or 1), len(distinct) / (count or 1),
        math.log1p(size if line < 0 else line), len(choices) > 1, math.log1p(sum(choices) / (len(choices) or 1)),
        math.log1p(max(choices, default=0) - min(choices, default=0)),
    )  # fmt: skip
    surface = np.empty(SURFACE, np.float32)
    surface[: len(rest)] = rest
    surface[len(rest) : -len(counts)] = np.log1p(counts)
    surface[-len(counts) :] = counts * (10 / (size + 20))
    return words, distinct, surface


class Vocabulary:
    """Numbers words and pairs of words: the words from 1, then the pairs. 0 is unknown."""

    def __init__(self, words: Sequence[bytes], pairs: NDArray[Any]) -> None:
        """``pairs`` has two word numbers per row."""
        self._words = {word: at for at, word in enumerate(words, 1)}
        self._size = len(words) + 1
        self._keys: Ints = pairs[:, 0].astype(np.int64) * self._size + pairs[:, 1]  # sorted

    def find(self, words: list[bytes]) -> tuple[Ints, Ints]:
        """The numbers of a text's words, in order, and of its pairs, unordered."""
        ids = np.fromiter(map(self._words.get, words, repeat(0)), np.int64, len(words))
        keys = ids[:-1] * self._size + ids[1:]
        keys.sort()  # halves the time of searchsorted
        at = self._keys.searchsorted(keys)
        at[self._keys.take(at, mode="clip") != keys] = -self._size
        return ids, at + self._size


def language_of(text: str, words: set[bytes]) -> str:
    """The main language of a text by its script, else by frequent words; empty if unclear."""
    if not text.isascii():
        for language, script in _SCRIPTS:
            if 4 * len(script.findall(text[:400])) > min(len(text), 400):
                return language
    most, found = 0, ""
    for language, frequent in _FREQUENT.items():
        count = len(words & frequent)
        if count > most:  # English wins ties
            most, found = count, language
        if 4 * most > len(words):
            break
    return found


def looks(surface: Floats, arrays: Mapping[str, NDArray[Any]]) -> Floats:
    """Surface features of one or more texts, standardised by training's and clipped at four deviations."""
    apart: Floats = (surface - arrays["surface_mean"]) / arrays["surface_scale"]
    return np.minimum(np.maximum(apart, -4), 4)


def strangeness(known: NDArray[np.bool_]) -> float:
    """The share of unknown word pairs in a text, 0..1."""
    return 1 - float(np.add.reduce(known)) / (len(known) + 1)


class Predictor:
    """The built-in predictor: reads prompts, and predicts each model's quality from a reading."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Unpack the weights made by ``benchmarks/train_predictor.py``."""
        digest = sha256(repr((TOPICS, _CODE, _CODE_WORDS)).encode())
        for name in sorted(arrays):
            digest.update(arrays[name].tobytes())
        self.id = f"prd_{digest.hexdigest()[:16]}"
        self._vocabulary = Vocabulary(arrays["words"].tobytes().split(b"\n"), arrays["pairs"])
        self._rarity: Floats = np.concatenate(([0], arrays["rarity"])).astype(np.float32)  # unknown words: row 0
        self._labelled = np.concatenate(([False], arrays["labelled"]))
        evidence = arrays["evidence"]
        self._evidence = np.concatenate((np.zeros_like(evidence[:1]), evidence))
        self._evidence_scale = float(arrays["evidence_scale"][0])
        self._topics: Floats = np.eye(len(TOPICS), dtype=np.float32)[arrays["topics"]]
        self._looks = {name: arrays[name] for name in ("surface_mean", "surface_scale")}
        self._by_domain, self._by_looks, (self._bias,) = np.split(arrays["coordinates"], [-SURFACE - 1, -1])
        self._steps: list[float] = arrays["steps"].tolist()
        self._spread = float(arrays["spread"][0])
        self._novelty: tuple[float, float] = tuple(arrays["novelty"].tolist())
        self._slopes = dict(
            zip(arrays["models"].tobytes().decode().split("\n"), arrays["slopes"].astype(np.float64), strict=True)
        )
        self._by_prior: list[float] = arrays["by_prior"].tolist()

    def read(self, text: str, embedding: NDArray[Any] | None = None) -> Reading:
        """Read a prompt. ``embedding`` is ignored: it adds nothing to the words."""
        words, distinct, surface = seen(text)
        ids, pairs = self._vocabulary.find(words)
        said = np.zeros(len(self._rarity), np.bool_)
        said[ids] = said[pairs] = True  # row 0, the unknown, has no evidence
        rows = said.nonzero()[0]
        rarity = self._rarity[rows]
        scores = rarity @ self._evidence[rows].astype(np.float32)
        scores *= self._evidence_scale / math.sqrt(rarity @ rarity + 1e-9)
        belief = np.exp(scores - np.maximum.reduce(scores))  # probability of each domain
        belief /= np.add.reduce(belief)
        low, high = self._novelty
        novelty = min(max((strangeness(self._labelled[pairs]) - low) / (high - low), 0.0), 1.0)
        coordinates = belief @ self._by_domain + looks(surface, self._looks) @ self._by_looks + self._bias
        ease, spread = ((1 - novelty) * coordinates).tolist()
        (most_ease, most_spread), (step, other) = LARGEST_CELL, self._steps
        cell = (
            round(max(-most_ease, min(most_ease, ease / step))),
            round(max(-most_spread, min(most_spread, spread / other))),
        )
        topics = (belief @ self._topics).tolist()
        best = max(topics)
        if sum(map(text[:_LONGEST_TEXT].count, _CODE)) + sum(map(_CODE_WORDS.get, distinct, repeat(0))) > 1:
            topic = "code"
        else:
            is_told = best > _SURE and 2 * np.add.reduce(ids > 0) > len(ids) > 2
            topic = TOPICS[topics.index(best)] if is_told else "other"
        return Reading(
            predictor=self.id,
            cell=cell,
            difficulty=round(1 / (1 + math.exp(1.7 * ease / self._spread)), 2),
            topic=topic,
            novelty=round(novelty, 2),
            language=language_of(text, distinct),
        )

    def column(self, cell: tuple[int, ...], models: Sequence[Model]) -> tuple[int, ...] | None:
        """The quality of each model in millionths; None if the priors stay. Moves the log-odds of the prior along the
        model's slopes. A model unknown to training gets slopes from its prior; among those, the order of priors is
        kept. A model's quality does not depend on the other models."""
        if not any(cell):
            return None
        ease, spread = (step * size for step, size in zip(cell, self._steps, strict=True))
        column = []
        for model in models:
            prior = DEFAULT_QUALITY if model.quality is None else min(max(model.quality, 0.001), 0.999)
            ability = math.log(prior / (1 - prior))
            known = self._slopes.get(model.id, self._slopes.get(model.id.partition("/")[2]))
            if known is None:
                moved = ability * max(1 + self._by_prior[1] * spread, 0.2) + self._by_prior[0] * ease
            else:
                moved = ability + known[0] * ease + known[1] * spread
            column.append(round(MICRO / (1 + math.exp(min(max(-moved, -14.0), 14.0)))))
        return tuple(column)
