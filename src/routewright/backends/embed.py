"""Embedders: hashed words (built in, only numpy), word vectors of ``wordllama``, and servers with OpenAI's
``POST /v1/embeddings``.
"""

from __future__ import annotations

import logging
import os
import re
import zlib
from collections import namedtuple
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np
from msgspec import Meta, MsgspecError, Struct, json

from routewright._runtime.fork import importing
from routewright.errors import ProviderFault, ValidationFailed
from routewright.protocols import Transport
from routewright.wire import FaultKind

from .providers.endpoint import Endpoint, address_of, check_arguments, keys_of
from .providers.faults import fault_of_answer
from .providers.hosts import HOSTS
from .transport import AutoTransport

if TYPE_CHECKING:
    from numpy.typing import NDArray


Floats: TypeAlias = "NDArray[np.float32]"

DIMENSIONS = 256
ROWS = 4096
"""Rows of the table of directions. Each feature adds two of them, so few features share both."""
GAINS = 16384
"""Number of feature weights."""
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_PART = 4
"""Characters in a part of a word."""
_LONGEST_TEXT = 8_000
"""Most characters of a text."""
_LONGEST_WORD = 24
_MOST_WORDS = 20_000
"""Cached words, 1 KB each."""
_SIGNS = np.array([1.0, -1.0], np.float32)


class HashedEmbedder:
    """Embeds a text as the weighted sum of its hashed features. Deterministic; some 30 µs for a short question.

    Vectors are similar for texts with common words, word forms and learned synonyms. It is trained on English; in other
    languages it still compares words.
    """

    def __init__(self, table: Path | None = None) -> None:
        """Read the bundled table, or another one of ``benchmarks/train_embedder.py``."""
        packed = (table or files("routewright.data").joinpath("hashed_embedder.npz")).read_bytes()
        self.name = "hashed-1" if table is None else f"hashed-{zlib.crc32(packed):08x}"
        with np.load(BytesIO(packed)) as arrays:
            self._directions: Floats = arrays["directions"] * arrays["scales"].astype(np.float32)[:, None]
            self._gains: Floats = arrays["gains"].astype(np.float32)
        self._words: dict[str, Floats] = {}
        """Cached sums of the features of words. Not by ``lru_cache``, with which an embedder could not be pickled."""

    def embed(self, text: str) -> Floats:
        """The embedding, (DIMENSIONS,) of length 1; zero for a text without words."""
        words = words_of(text)
        if not words:
            return np.zeros(DIMENSIONS, np.float32)
        total: Floats = np.add.reduce([self._word(word) for word in words])
        if len(words) > 1:
            total = total + self._sum([hash_pair(*pair) for pair in pairwise(words)])
        length = float(np.sqrt(total @ total))
        return (total / length).astype(np.float32) if length else total

    def _word(self, word: str) -> Floats:
        if (vector := self._words.get(word)) is None:
            feature, *parts = hashes(word)
            vector = self._sum([feature]) + self._sum(parts) / np.sqrt(np.float32(len(parts)))
            if len(self._words) >= _MOST_WORDS:
                self._words.clear()
            self._words[word] = vector
        return vector

    def _sum(self, hashed: list[int]) -> Floats:
        parts = split(np.array(hashed, np.uint32))
        gains = self._gains[parts.gain]
        total: Floats = (gains * _SIGNS[parts.first_sign]) @ self._directions[parts.first]
        total += (gains * _SIGNS[parts.second_sign]) @ self._directions[parts.second]
        return total


def hashes(word: str) -> list[int]:
    """The features of a word: itself and its parts. The same in every process and on every machine."""
    word = word[:_LONGEST_WORD]
    marked = f"<{word}>"
    parts = [marked[start : start + _PART] for start in range(max(len(marked) - _PART + 1, 1))]
    return [zlib.crc32(part.encode()) for part in [f" {word}", *parts]]


def hash_pair(first: str, second: str) -> int:
    """The feature of two words in a row."""
    return zlib.crc32(f"{first[:_LONGEST_WORD]} {second[:_LONGEST_WORD]}".encode())


def words_of(text: str) -> list[str]:
    """Words in lower case, without the apostrophes in them."""
    return _WORD.findall(shorten(text).lower().replace("'", "").replace("’", ""))


def shorten(text: str) -> str:
    """The beginning and end of a long text."""
    half = _LONGEST_TEXT // 2
    return text if len(text) <= _LONGEST_TEXT else f"{text[:half]} {text[-half:]}"


HashParts = namedtuple("HashParts", "first second first_sign second_sign gain")
"""What the bits of hashes choose: two rows, their signs (0 or 1), and the place of the gain; columns of numbers."""


def split(hashed: NDArray[np.uint32]) -> HashParts:
    """The parts of hashes."""
    gain = (hashed * np.uint32(0x9E3779B1)) >> np.uint32(18)
    return HashParts(hashed & 4095, (hashed >> 12) & 4095, (hashed >> 24) & 1, (hashed >> 25) & 1, gain)


MOST_BYTES = 1 << 20
"""Longest answer."""


class _Embedding(Struct):
    embedding: Annotated[list[float], Meta(min_length=1)]


class _Answer(Struct):
    data: Annotated[list[_Embedding], Meta(min_length=1, max_length=1)]


class OpenAIEmbedder:
    """Requests the embedding of each question that is not an exact hit from a server.

        OpenAIEmbedder("text-embedding-3-small")                              # the key is OPENAI_API_KEY
        OpenAIEmbedder("nomic-embed-text", base_url="http://localhost:11434/v1")

    The key in the environment is not sent to a ``base_url``: pass ``api_key``. Any failure raises ``ProviderFault``,
    which makes the call a miss. Only the last user turn is sent. The cache waits for at most a second.
    """

    def __init__(
        self,
        model: str = "text-embedding-3-small",
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        dimensions: int | None = None,
        transport: Transport | None = None,
    ) -> None:
        check_arguments(model, base_url)
        if dimensions is not None and dimensions < 1:
            raise ValidationFailed.at("dimensions", f"must be 1 or more, got {dimensions}", "for example 256")
        endpoint = Endpoint(name="embedder", base_url=base_url, needs_key=False) if base_url else HOSTS["openai"]
        self._key = keys_of(api_key, endpoint, os.environ)[0]
        self._url = address_of(endpoint, base_url, os.environ) + "/embeddings"
        self._fields = {"model": model, "encoding_format": "float"} | ({"dimensions": dimensions} if dimensions else {})
        self._own_transport = transport is None
        self._transport = AutoTransport() if transport is None else transport
        self.name = f"{model} of {self._url}" + (f", {dimensions} numbers" if dimensions else "")

    def __repr__(self) -> str:
        return f"OpenAIEmbedder({self._fields['model']!r}, base_url={self._url.removesuffix('/embeddings')!r})"

    async def embed(self, text: str) -> NDArray[np.float32]:
        """The embedding, float32. Raises ``ProviderFault``."""
        headers = {"content-type": "application/json", "accept": "application/json"}
        if key := self._key.reveal():
            headers["authorization"] = f"Bearer {key}"
        body = json.encode({**self._fields, "input": text})
        async with self._transport.request("POST", self._url, headers=headers, body=body) as response:
            if response.status != 200:
                # the body is not read: some servers repeat the question or the key
                raise fault_of_answer("the embedder", response.status, response.headers, "")
            content = await response.read(MOST_BYTES)
        try:
            with np.errstate(over="ignore"):  # the cache refuses infinities
                return np.array(json.decode(content, type=_Answer).data[0].embedding, np.float32)
        except (MsgspecError, UnicodeError, RecursionError):  # not chained: it may contain the text
            raise ProviderFault(FaultKind.MALFORMED, "the embedder answered with no embedding", status=200) from None

    async def aclose(self) -> None:
        """Close the connections, unless the transport was passed."""
        if self._own_transport:
            await self._transport.aclose()


_MODEL = "l2_supercat"


class StaticEmbedder:
    """Embeds a text as the mean of its words' vectors (``wordllama``, 256 numbers). Knows more synonyms than
    ``HashedEmbedder``.

    router = Router(settings=Settings(cache=CacheSettings(embedder=StaticEmbedder())))

    The vectors are loaded at first use (0.4 s, 80 MB), or by ``load()``. Raises ``ValidationFailed`` without the extra
    ``vectors``. Thread-safe.
    """

    def __init__(self) -> None:
        try:
            self.name = f"wordllama-{version('wordllama')}-{_MODEL}_{DIMENSIONS}"
        except PackageNotFoundError:
            problem = "needs the package wordllama, which is not installed"
            raise ValidationFailed.at("StaticEmbedder", problem, "pip install 'routewright[vectors]'") from None
        self._model: Any = None

    def load(self) -> None:
        """Load the vectors now. Raises ``FileNotFoundError`` if the package lacks its files."""
        with importing.lock:
            self._model = self._model or _load()

    def embed(self, text: str) -> Floats:
        """The embedding, (256,) of length 1; zero for an empty text."""
        if self._model is None:
            self.load()
        # single texts: the package starts threads for batches, which do not survive a fork
        rows = np.array(self._model.tokenizer.encode(shorten(text), add_special_tokens=False).ids, np.intp)
        total: Floats = self._model.embedding.take(rows, axis=0, mode="clip").sum(axis=0)
        length = np.sqrt(total @ total)
        return total / length if length else total


def _load() -> Any:
    handler = logging.NullHandler()
    logging.root.addHandler(handler)  # wordllama calls logging.basicConfig, which does nothing where there is a handler
    try:
        wordllama: Any = import_module("wordllama")
    finally:
        logging.root.removeHandler(handler)
    folder = Path(wordllama.__file__).parent  # without it, the tokenizer is looked for in the user's cache alone
    return wordllama.WordLlama.load(_MODEL, cache_dir=folder, dim=DIMENSIONS, disable_download=True)
