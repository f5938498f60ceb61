"""A client of ``routewright serve`` in Python, with the standard library alone: an answer, a stream, an error.

ROUTEWRIGHT_URL=http://127.0.0.1:8080 ROUTEWRIGHT_KEY=sk_test_... python client.py"""

from __future__ import annotations

import json
import os
import time
from http.client import HTTPResponse
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

URL, KEY = os.environ.get("ROUTEWRIGHT_URL", "http://127.0.0.1:8080"), os.environ.get("ROUTEWRIGHT_KEY", "")


def post(body: dict[str, Any]) -> HTTPResponse:
    """Send a request, and again where that may help. With its key it is answered, and paid, once."""
    headers = {"Authorization": f"Bearer {KEY}", "Idempotency-Key": str(uuid4()), "Content-Type": "application/json"}
    request = Request(f"{URL}/v1/route", json.dumps(body).encode(), headers)
    for pause_s in (1, 2, 4, None):
        try:
            return urlopen(request, timeout=90)  # type: ignore[no-any-return]
        except HTTPError as error:
            refusal = json.load(error)["error"]
            if pause_s is None or error.code not in (429, 500, 502, 504):
                break
            time.sleep(float(error.headers.get("Retry-After", pause_s)))
    raise RuntimeError(f"{refusal['code']}: {refusal['message']}")


def main() -> None:
    ask = {"messages": [{"role": "user", "content": "Why is the sky blue?"}], "budget": {"maxCostUsd": 0.01}}
    answer = json.load(post({**ask, "goal": "quality"}))
    print(
        answer["output"], "- by", answer["routing"]["selected_model"], "for", answer["routing"]["cost_usd"], "dollars"
    )

    for line in post({**ask, "stream": True}):
        field, _, value = line.decode().rstrip("\r\n").partition(": ")
        if field == "event":
            event = value
        elif field == "data" and event == "output.delta":
            print(json.loads(value)["text"], end="", flush=True)
        elif field == "data" and event == "route.fallback":
            print("\n(from the start, by another model)" if json.loads(value)["restart"] else "", end="")
        elif field == "data" and event == "error":
            raise SystemExit(json.loads(value)["error"]["message"])
    print()

    try:
        post({**ask, "budget": {"maxCostUsd": 1e-9}})
    except RuntimeError as error:
        print(error)


if __name__ == "__main__":
    main()
