"""The built-in embedder: identical vectors on all platforms, and close ones for similar questions."""

from __future__ import annotations

import pickle
import subprocess
import sys
from zlib import crc32

import numpy as np
from benchmarks.eval_cache import rows
from hypothesis import given
from hypothesis import strategies as st

from routewright.backends.embed import DIMENSIONS, HashedEmbedder
from routewright.protocols import Embedder

EMBEDDER = HashedEmbedder()
TEXTS = ["When will my card arrive?", "Où est ma carte?", "私のカードはどこ", "x" * 5_000, "a b " * 4_000]
PRINT = (
    "import zlib, numpy as np; from routewright.backends.embed import HashedEmbedder as H; import sys; "
    "print([zlib.crc32(np.round(H().embed(text), 4).tobytes()) for text in sys.argv[1:]])"
)


def test_it_is_an_embedder() -> None:
    assert isinstance(EMBEDDER, Embedder)
    assert EMBEDDER.name == "hashed-1"


@given(st.text(max_size=300))
def test_vectors_have_length_one_unless_there_are_no_words(text: str) -> None:
    vector = EMBEDDER.embed(text)
    assert vector.shape == (DIMENSIONS,)
    assert vector.dtype == np.float32
    length = float(np.linalg.norm(vector))
    assert abs(length - 1) < 1e-5 or length == 0


def test_cached_words_change_no_vector() -> None:
    for text in TEXTS:
        assert np.array_equal(HashedEmbedder().embed(text), EMBEDDER.embed(text))
        assert np.array_equal(EMBEDDER.embed(text), EMBEDDER.embed(text))


def test_a_pickled_embedder_is_the_same() -> None:
    again = pickle.loads(pickle.dumps(EMBEDDER))
    assert again.name == EMBEDDER.name
    assert all((again.embed(text) == EMBEDDER.embed(text)).all() for text in TEXTS)


def test_vectors_are_the_same_in_another_process() -> None:
    short = TEXTS[:3]
    command = [sys.executable, "-c", PRINT, *short]
    path = ":".join(sys.path)
    printed = [
        subprocess.run(command, env={"PYTHONHASHSEED": seed, "PYTHONPATH": path}, check=True, capture_output=True)
        for seed in "12"
    ]
    here = str([crc32(np.round(EMBEDDER.embed(text), 4).tobytes()) for text in short])
    assert [done.stdout.decode().strip() for done in printed] == [here, here]


def test_paraphrases_are_nearer_than_other_texts() -> None:
    pairs = rows("paraphrases")[:300]
    ours, theirs = (np.array([EMBEDDER.embed(pair[side]) for pair in pairs]) for side in "ab")
    nearest = (ours @ theirs.T).argmax(axis=1)
    assert (nearest == np.arange(len(pairs))).mean() > 0.7


def test_case_and_punctuation_do_not_matter() -> None:
    assert np.array_equal(EMBEDDER.embed("When will my CARD arrive?"), EMBEDDER.embed("when will my card arrive"))
    assert EMBEDDER.embed("when will my card arrive") @ EMBEDDER.embed("how do volcanoes form") < 0.3
