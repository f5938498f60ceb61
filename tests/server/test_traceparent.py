"""``traceparent`` from the incoming header through the trace to the outgoing header, over real sockets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from routewright import Model, OpenAIProvider, Pricing, Router, Settings
from routewright.backends.storage.memory import MemoryStorage
from routewright.wire.ids import span_id_of
from tests.tables import table

from .uvicorn_server import HELLO, Site, bearer, served

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HERE = f"00-{TRACE}-{SPAN}-01"
ANSWER = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}  # fmt: skip


class Upstream:
    """A vendor that fails at first, and keeps the headers that it was sent."""

    def __init__(self) -> None:
        self.heard: list[dict[bytes, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        self.heard.append(dict(scope["headers"]))
        status, body = (503, b"{}") if len(self.heard) == 1 else (200, json.dumps(ANSWER).encode())
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@contextmanager
def passing_on(*to: str) -> Iterator[tuple[Site, Upstream]]:
    upstream, storage = Upstream(), MemoryStorage()
    with served(upstream, lifespan="off") as url:
        model = Model(id="house/m", pricing_per_1m=Pricing(1, 1), context_window=10_000, quality=0.5)
        provider = OpenAIProvider("key", name="house", base_url=f"{url}/v1", models=[model])
        router = Router(providers=[provider], storage=storage, settings=Settings(traceparent_to=to))
        yield Site(router, storage=storage), upstream
        router.blocking.close()


def test_the_header_goes_from_the_client_through_the_trace_to_the_upstream() -> None:
    with passing_on("house") as (site, upstream), site.client(site.key()) as client:
        sent = {"traceparent": HERE, "tracestate": "vendor=secret"}
        trace_id = client.post("/v1/route", json=HELLO, headers=sent).json()["trace_id"]
        trace = client.get(f"/v1/traces/{trace_id}").json()
    assert trace["traceparent"] == HERE
    told = [heard[b"traceparent"].decode() for heard in upstream.heard]
    assert told == [f"00-{TRACE}-{span_id_of(trace_id, attempt)}-01" for attempt in (1, 2)]
    assert not any(b"tracestate" in heard for heard in upstream.heard)


@table(
    ("sent", "kept"),
    [
        ([("traceparent", HERE)], HERE),
        ([("traceparent", "CANARY")], None),
        ([("traceparent", HERE), ("traceparent", HERE)], None),
        ([("tracestate", "only=CANARY")], None),
    ],
)
@table("stream", [False, True])
def test_an_invalid_traceparent_is_ignored_and_never_repeated(
    sent: list[tuple[str, str]], kept: str | None, stream: bool
) -> None:
    site = Site()
    key = site.key(environment="sandbox")
    with site.client() as client:
        headers = [*bearer(key).items(), *sent]
        answer = client.post("/v1/route", json={**HELLO, "stream": stream}, headers=headers)
    (trace,) = site.router.blocking.traces.query(account="acme").data
    assert answer.status_code == 200
    assert trace.traceparent == kept
    assert "CANARY" not in answer.text + str(answer.headers) + str(trace)
