"""Word vectors from the wheel of ``wordllama``. Uses no network."""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from routewright.errors import ValidationFailed
from routewright.fork import importing

from .hashed import shortened

if TYPE_CHECKING:
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float32]"

DIMENSIONS = 256
_MODEL = "l2_supercat"


class StaticEmbedder:
    """Embeds a text as the mean of its words' vectors (``wordllama``, 256 numbers). Knows more synonyms than
    ``HashedEmbedder``.

    router = Router(settings=Settings(cache=CacheSettings(embedder=StaticEmbedder())))

    The vectors are loaded at first use, which takes 0.4 s and 80 MB; ``load()`` does it earlier. Raises
    ``ValidationFailed`` if the extra ``vectors`` is not installed. Safe to use from any thread.
    """

    def __init__(self) -> None:
        try:
            self.name = f"wordllama-{version('wordllama')}-{_MODEL}_{DIMENSIONS}"
        except PackageNotFoundError:
            said = "needs the package wordllama, which is not installed"
            raise ValidationFailed.at("StaticEmbedder", said, "pip install 'routewright[vectors]'") from None
        self._model: Any = None

    def load(self) -> None:
        """Load the vectors now. Raises ``FileNotFoundError`` if the package lacks its files."""
        with importing.lock:
            self._model = self._model or _load()

    def embed(self, text: str) -> Floats:
        """The embedding, (256,) of length 1; of an empty text the zero vector."""
        if self._model is None:
            self.load()
        # one text at a time: the package's own batches start threads, which a fork does not survive
        rows = np.array(self._model.tokenizer.encode(shortened(text), add_special_tokens=False).ids, np.intp)
        total: Floats = self._model.embedding.take(rows, axis=0, mode="clip").sum(axis=0)
        length = np.sqrt(total @ total)
        return total / length if length else total


def _load() -> Any:
    root, stopper = logging.getLogger(), logging.NullHandler()
    root.addHandler(stopper)  # wordllama calls logging.basicConfig, which does nothing where there is a handler
    try:
        wordllama: Any = import_module("wordllama")
    finally:
        root.removeHandler(stopper)
    folder = Path(wordllama.__file__).parent  # without it, the tokenizer is looked for in the user's cache alone
    return wordllama.WordLlama.load(_MODEL, cache_dir=folder, dim=DIMENSIONS, disable_download=True)
