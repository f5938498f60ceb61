"""Token counts equal tiktoken's, from the bundled tables, with no downloads and each table built once."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import tiktoken
import tiktoken.registry
from hypothesis import given, settings
from hypothesis import strategies as st

from routewright._runtime.loop import Abandoned
from routewright.backends import tokens
from routewright.backends.tokens import PackedTokenCounter
from routewright.protocols import TokenCounter
from tests.tables import table

DATA = Path(__file__).parents[1] / "data"
ENCODINGS = ("o200k_base", "cl100k_base")
PINNED = {
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
}
COUNTER: TokenCounter = PackedTokenCounter()


@table(
    ("text", "cl100k", "o200k"),
    [
        ("", 0, 0),
        ("hello world", 2, 2),
        ("The quick brown fox jumps over the lazy dog.", 10, 10),
        ("Привет, мир! Как дела?", 12, 8),
        ("こんにちは世界。今日はいい天気ですね", 15, 8),
        ("1234567890" * 5, 17, 17),
        ("العربية نص", 7, 3),
        ("<|endoftext|>", 7, 7),
    ],
)
def test_counts_are_the_published_ones(text: str, cl100k: int, o200k: int) -> None:
    assert COUNTER.count(text, "cl100k_base") == cl100k
    assert COUNTER.count(text, "o200k_base") == o200k


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_development_prompts_count_as_in_tiktoken(encoding: str, full: bool) -> None:
    reference = tokens._encoder(encoding)
    texts = list(json.loads((DATA / "texts.json").read_text(encoding="utf-8")).values())
    for name, key in (("pair_gsm8k", "prompt"), ("multi_zeroeval", "prompt"), ("intent_banking77", "text")):
        with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)[key] for line in lines][:: 1 if full else 10]
    for text in texts:
        assert COUNTER.count(text, encoding) == len(reference.encode(text, disallowed_special=()))


@table("encoding", ENCODINGS)
def test_shipped_table_is_the_published_one(encoding: str) -> None:
    ranks = tokens._encoder(encoding)._mergeable_ranks
    lines = b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in ranks.items())
    assert hashlib.sha256(lines).hexdigest() == PINNED[encoding]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_pattern_is_the_one_tiktoken_uses(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_download(url: str, expected_hash: str) -> dict[bytes, int]:
        assert expected_hash == PINNED[encoding]
        return {}

    published = import_module("tiktoken_ext.openai_public")
    monkeypatch.setattr(published, "load_tiktoken_bpe", no_download)
    facts: dict[str, Any] = published.ENCODING_CONSTRUCTORS[encoding]()
    assert tokens._PATTERNS[encoding] == facts["pat_str"]


def test_the_registry_of_tiktoken_is_unchanged() -> None:
    lines = (
        "import tiktoken.registry",
        "from routewright.backends.tokens import PackedTokenCounter",
        "assert PackedTokenCounter().count('hello', 'o200k_base') == 1",
        "assert not tiktoken.registry.ENCODINGS",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, timeout=50)  # here others may have filled it


def test_a_table_is_built_once_by_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    together = Barrier(4)

    def build(encoding: str) -> tiktoken.Encoding:
        built.append(encoding)
        return tiktoken.Encoding(
            encoding, pat_str=".", mergeable_ranks={bytes([byte]): byte for byte in range(256)}, special_tokens={}
        )

    def load() -> None:
        together.wait(10)
        PackedTokenCounter().load("o200k_base")

    monkeypatch.setattr(tokens, "_encoders", {})
    monkeypatch.setattr(tokens, "_build", build)
    with ThreadPoolExecutor(4) as pool:
        for loading in [pool.submit(load) for _ in range(4)]:
            loading.result(10)
    assert built == ["o200k_base"]


def test_an_unknown_encoding_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no token table named 'p50k_base'; there are cl100k_base, o200k_base"):
        COUNTER.count("hello", "p50k_base")


def test_surrogates_count_like_the_characters_that_replace_them() -> None:
    assert COUNTER.count("a\ud800b", "o200k_base") == COUNTER.count("a\ufffdb", "o200k_base")
    assert COUNTER.count("\ud83d\ude00", "o200k_base") == COUNTER.count("😀", "o200k_base")


@pytest.mark.parametrize("encoding", ENCODINGS)
@settings(max_examples=30, deadline=None)
@given(
    before=st.sampled_from(["", "a", ".", "a\n", "é"]),
    blocks=st.integers(1, 60),
    rest=st.integers(1, 400),
    after=st.sampled_from(["", "x", ".", "1", "é"]),
)
def test_spaces_cut_at_whole_tokens_count_as_if_uncut(
    encoding: str, before: str, blocks: int, rest: int, after: str
) -> None:
    head, tail = before + " " * (128 * blocks), " " * rest + after
    assert COUNTER.count(head + tail, encoding) == COUNTER.count(head, encoding) + COUNTER.count(tail, encoding)


def test_runs_of_spaces_too_long_for_tiktoken_are_counted_in_parts() -> None:
    spaces = 128 * 8_000
    text = "a" + " " * spaces + " b"
    assert list(map(len, tokens._cut_runs(text))) == [1 + tokens._LONGEST_RUN, spaces + 2 - tokens._LONGEST_RUN]
    assert COUNTER.count(text, "o200k_base") == 1 + 8_000 + 1


def test_long_texts_without_such_a_run_are_not_cut() -> None:
    for text in ("word " * 300_000, " " * 1_500_000 + "\n", "a" * 1_500_000, "\x1c" * 1_500_000):
        assert list(tokens._cut_runs(text)) == [text]


@table("quarters", range(9))
def test_such_a_run_is_found_anywhere(quarters: int) -> None:
    for more in (-1, 0, 1):
        before = "a" * max(quarters * tokens._LONGEST_RUN // 4 + more, 0)
        parts = list(tokens._cut_runs(f"{before} {' ' * tokens._LONGEST_RUN}b"))
        assert list(map(len, parts)) == [len(before) + tokens._LONGEST_RUN, 2]


@table("encoding", ENCODINGS)
@table("piece", ["word ", "ein Wörtchen\n", "的。", "<|endoftext|> ", "a\ud800b ", "x = 1;\n    "])
def test_a_long_text_counts_as_in_tiktoken(encoding: str, piece: str) -> None:
    text = piece * (tokens._LONG_TEXT // len(piece) + 1)
    reference = tokens._encoder(encoding).encode(text, disallowed_special=())
    assert COUNTER.count(text, encoding) == len(reference)


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(text=st.text(st.sampled_from("aZé的 \n\r\t.,'s1\u0301\x1c\x85\u00a0😀/-"), max_size=80))
def test_pieces_count_as_if_uncut(encoding: str, text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "_PIECE", 5)
        pieces = list(tokens._cut_pieces(text))
    assert "".join(pieces) == text
    assert sum(COUNTER.count(piece, encoding) for piece in pieces) == COUNTER.count(text, encoding)


def test_counting_a_long_text_stops_when_its_caller_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[None] = []

    def check_wanted() -> None:
        asked.append(None)
        if len(asked) == 3:
            raise Abandoned

    monkeypatch.setattr(tokens, "check_wanted", check_wanted)
    with pytest.raises(Abandoned):
        COUNTER.count("word " * 100_000, "o200k_base")
