"""Embedders that need a package or a server. ``HashedEmbedder`` has its own file."""

from __future__ import annotations

import logging
import os
import socket
import sys
import traceback
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from routewright import ProviderFault, ValidationFailed
from routewright.backends import embed as static
from routewright.backends.embed import MOST_BYTES
from routewright.backends.transport import AutoTransport
from routewright.cache import OpenAIEmbedder, StaticEmbedder
from routewright.protocols import Embedder
from tests.tables import table
from tests.upstream import Answer, Cut, Upstream, of_json

pytestmark = pytest.mark.anyio
KEY = "sk-Canary/0123456789+abcdef"
QUESTION = "my secret question"
needs_wordllama = pytest.mark.skipif(find_spec("wordllama") is None, reason="needs the package wordllama")


def vector(*numbers: Any) -> Answer:
    data = [{"embedding": numbers, "index": 0, "object": "embedding"}]
    return of_json({"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 1, "total_tokens": 1}})


def plain(text: str) -> Answer:
    return Answer([text.encode()], headers={"content-type": "application/json"})


@pytest.fixture
def server() -> Iterator[Upstream]:
    with Upstream(lambda request: vector(3, 4.0)) as running:
        yield running


@pytest.fixture
async def embedder(server: Upstream, anyio_backend: str) -> Any:
    made = OpenAIEmbedder("m", base_url=server.url, api_key=KEY)
    yield made
    await made.aclose()


async def fault_of(embedder: OpenAIEmbedder) -> ProviderFault:
    """The fault, checked for the key and the question, even in tracebacks."""
    with pytest.raises(ProviderFault) as caught:
        await embedder.embed(QUESTION)
    shown = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))
    assert KEY not in shown
    assert QUESTION not in shown
    return caught.value


# --- a server


async def test_a_server_is_asked_for_one_embedding(server: Upstream) -> None:
    embedder = OpenAIEmbedder("m", api_key=KEY, base_url=server.url, dimensions=2)
    made = await embedder.embed("Why? ☂")
    assert made.tolist() == [3.0, 4.0]
    assert made.dtype == np.float32
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/embeddings")
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body == {"model": "m", "encoding_format": "float", "dimensions": 2, "input": "Why? ☂"}
    assert isinstance(embedder, Embedder)
    assert KEY not in repr(embedder) + embedder.name + repr(vars(embedder))
    await embedder.aclose()
    await embedder.aclose()


async def test_a_custom_server_needs_no_key_and_gets_none(server: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    embedder = OpenAIEmbedder("m", base_url=server.url)
    await embedder.embed(QUESTION)
    assert "authorization" not in server.requests[0].headers
    await embedder.aclose()


async def test_key_and_address_are_read_from_the_environment(server: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    embedder = OpenAIEmbedder()
    await embedder.embed(QUESTION)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert server.requests[0].body["model"] == "text-embedding-3-small"
    await embedder.aclose()


def test_openai_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ValidationFailed, match="OPENAI_API_KEY"):
        OpenAIEmbedder()


@table("wrong", [{"dimensions": 0}])
def test_wrong_arguments_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationFailed, match=next(iter(wrong))):
        OpenAIEmbedder(api_key=KEY, **wrong)


@pytest.mark.parametrize(
    ("status", "kind"), [(401, "auth"), (403, "auth"), (429, "rate_limited"), (500, "server"), (302, "malformed")]
)
async def test_a_status_is_a_fault_of_its_kind(
    server: Upstream, embedder: OpenAIEmbedder, status: int, kind: str
) -> None:
    said = {"error": {"message": f"you said {QUESTION} with {KEY}"}}
    server.answers.append(of_json(said, status, **{"retry-after": "7", "location": f"{server.url}/elsewhere"}))
    fault = await fault_of(embedder)
    assert (fault.kind, fault.status, fault.retry_after) == (kind, status, 7)
    assert len(server.requests) == 1, "no redirect is followed, and nothing is tried again"
    assert (await embedder.embed("again")).tolist() == [3, 4]


@table(
    "content",
    [
        f"nope, {QUESTION}",
        "",
        "[" * 100_000,
        '{"data": []}',
        '{"data": [{"embedding": []}]}',
        f'{{"data": [{{"embedding": "{QUESTION}"}}]}}',
        '{"data": [{"embedding": "AABAQAAAgEA="}]}',  # base64
        '{"data": [{"embedding": [NaN]}]}',
        '{"data": [{"embedding": [Infinity]}]}',
        '{"data": [{"embedding": [1e999]}]}',
        '{"data": [{"embedding": [null]}]}',
        '{"data": [{"embedding": [[1]]}]}',
        '{"data": [{"embedding": [1]}, {"embedding": [1]}]}',
        '{"data": [{"embedding": [' + "1," * MOST_BYTES + "1]}]}",
    ],
    ids=lambda content: content[:40],
)
async def test_an_answer_without_exactly_one_embedding_is_malformed(
    server: Upstream, embedder: OpenAIEmbedder, content: str
) -> None:
    server.answers.append(plain(content))
    assert (await fault_of(embedder)).kind == "malformed"


async def test_a_broken_connection_is_a_fault(server: Upstream, embedder: OpenAIEmbedder) -> None:
    server.answers.append(Answer([b'{"data"', Cut()], headers={"content-length": "99"}))
    assert (await fault_of(embedder)).kind == "reset"


async def test_a_given_transport_stays_open(server: Upstream) -> None:
    transport = AutoTransport()
    for _ in range(2):
        embedder = OpenAIEmbedder("m", base_url=server.url, transport=transport)
        await embedder.embed(QUESTION)
        await embedder.aclose()
    assert server.opened == 1, "it is closed by whoever made it"
    await transport.aclose()


# --- word vectors


@pytest.fixture(scope="module")
def words() -> StaticEmbedder:
    return StaticEmbedder()


@needs_wordllama
def test_word_vectors_of_synonyms_are_near(words: StaticEmbedder) -> None:
    one, near, far = (words.embed(text) for text in ("reset my password", "change the password", "buy a car"))
    assert float(one @ near) > float(one @ far) + 0.2
    assert isinstance(words, Embedder)


@needs_wordllama
@pytest.mark.parametrize("text", ["Why?", " ", "日本語 ☂", "\0", "word " * 100_000])
def test_word_vectors_are_of_length_one(words: StaticEmbedder, text: str) -> None:
    made = words.embed(text)
    assert made.shape == (256,)
    assert made.dtype == np.float32
    assert float(made @ made) == pytest.approx(1, abs=1e-5)
    assert np.array_equal(made, words.embed(text))


@needs_wordllama
def test_an_empty_text_has_the_zero_vector(words: StaticEmbedder) -> None:
    assert not words.embed("").any()


@needs_wordllama
def test_loading_uses_no_network_and_does_not_configure_logging(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise AssertionError("it reached for the network")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "wordllama"]:
        monkeypatch.delitem(sys.modules, name)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    before = root.level
    StaticEmbedder().load()
    assert (root.handlers, root.level) == ([], before)
    assert os.listdir(tmp_path) == []


@needs_wordllama
def test_missing_files_are_an_error_and_not_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(import_module("wordllama"), "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(FileNotFoundError, match="downloads are disabled"):
        StaticEmbedder().load()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(static, "version", missing)
    with pytest.raises(ValidationFailed, match=r"pip install 'routewright\[vectors\]'"):
        StaticEmbedder()
