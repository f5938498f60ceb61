"""The application over a real server and real sockets."""

from __future__ import annotations

from .serving import HELLO, Site


def test_a_request_is_routed() -> None:
    site = Site()
    with site.client(site.key(environment="sandbox")) as client:
        answer = client.post("/v1/route", json=HELLO)
    assert answer.status_code == 200
    assert answer.json()["output"].startswith("This is a canned answer")


def test_a_stream_ends_with_the_whole_response() -> None:
    site = Site()
    with site.client(site.key(environment="sandbox")) as client:
        answer = client.post("/v1/route", json={**HELLO, "stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "event: route.completed" in answer.text
