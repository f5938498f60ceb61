"""A client of ``routewright serve`` in Python, with the standard library alone: an answer, a stream, an error.

ROUTEWRIGHT_URL=http://127.0.0.1:8080 ROUTEWRIGHT_KEY=sk_test_... python client.py
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any

URL = os.environ.get("ROUTEWRIGHT_URL", "http://127.0.0.1:8080")
KEY = os.environ.get("ROUTEWRIGHT_KEY", "")
TRIES = 4


class Refused(Exception):
    """What the server says of a request that it does not answer."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = error


def post(path: str, body: dict[str, Any], *, key: str | None = None) -> HTTPResponse:
    """Send a request, and again where the server says that it may help. ``key``: it is answered, and paid, once."""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    if key is not None:
        headers["Idempotency-Key"] = key
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
    for attempt in range(TRIES):
        try:
            answer: HTTPResponse = urllib.request.urlopen(request, timeout=90)
            return answer
        except urllib.error.HTTPError as error:
            if error.code not in (429, 500, 502, 504) or attempt == TRIES - 1:
                raise Refused(json.load(error)["error"]) from error
            time.sleep(float(error.headers.get("Retry-After", 2**attempt)))
    raise AssertionError("the last try returned or raised")


def events(answer: HTTPResponse) -> Iterator[tuple[str, dict[str, Any]]]:
    """The server-sent events of a stream."""
    name = ""
    for line in answer:
        field, _, value = line.decode().rstrip("\r\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


def main() -> None:
    ask = {"messages": [{"role": "user", "content": "Why is the sky blue?"}], "budget": {"maxCostUsd": 0.01}}

    answer = json.load(post("/v1/route", {**ask, "goal": "quality"}, key=str(uuid.uuid4())))
    print(answer["output"])
    print("by", answer["routing"]["selected_model"], "for", answer["routing"]["cost_usd"], "dollars")

    for name, data in events(post("/v1/route", {**ask, "stream": True})):
        if name == "output.delta":
            print(data["text"], end="", flush=True)
        elif name == "route.fallback" and data["restart"]:
            print("\n(from the start, by another model)")
        elif name == "error":
            raise SystemExit(data["error"]["message"])
    print()

    try:
        post("/v1/route", {**ask, "budget": {"maxCostUsd": 1e-9}})
    except Refused as refused:
        print(refused.error["code"], "-", refused.error["detail"]["suggestion"])


if __name__ == "__main__":
    try:
        main()
    except Refused as refused:
        raise SystemExit(f"{refused.error['code']}: {refused}") from None
