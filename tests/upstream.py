"""The one HTTP server on loopback that tests script: what to answer to each request, in pieces, gates and cuts.

It runs in a thread with its own loop, so it serves clients on asyncio and trio and in other processes.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from routewright.testing.faulty.server import PATIENCE_S, LoopbackServer
from routewright.testing.faulty.steps import Break, Gate, Head, Repeat, Step

__all__ = ["Answer", "Cut", "Gate", "Piece", "Request", "Upstream", "of_json"]


@dataclass
class Request:
    """One request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


class Cut:
    """Breaks the connection off."""


Piece = bytes | Gate | Cut | Break | Repeat


@dataclass
class Answer:
    """An answer: pieces of the body, each written separately, with gates between them."""

    pieces: Sequence[Piece] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    chunked: bool = False
    raw: bool = False
    """The pieces are the whole answer, status line and all."""

    @property
    def steps(self) -> list[Step]:
        headers = dict(self.headers)
        if not self.chunked:
            length = sum(len(piece) for piece in self.pieces if isinstance(piece, bytes))
            headers.setdefault("content-length", str(length))
        body: list[Step] = [Break.CLOSE if isinstance(piece, Cut) else piece for piece in self.pieces]
        return [*body, Break.CLOSE] if self.raw else [Head(self.status, headers), *body]


def of_json(document: Any, status: int = 200, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer([json.dumps(document).encode()], status, {"content-type": "application/json"} | named)


class Upstream(LoopbackServer):
    """Answers each request with the next of ``answers``, or with what ``answer`` makes of it."""

    def __init__(self, answer: Callable[[Request], Answer], tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        super().__init__()
        self.answer = answer
        self.answers: list[Answer] = []
        self.requests: list[Request] = []
        self.problems: list[str] = []
        """What is wrong with the requests."""
        self.tls, self.port = tls, port

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def root(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.place}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def wait_connected(self, count: int, seconds: float = PATIENCE_S) -> bool:
        return super().wait_connected(count, seconds)

    def problems_in(self, request: Request) -> list[str]:
        """What is wrong with a request."""
        return []

    def steps(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> list[Step]:
        request = Request(method, path, headers, body)
        self.requests.append(request)
        self.problems += self.problems_in(request)
        return (self.answers.pop(0) if self.answers else self.answer(request)).steps
