"""standardwebhooks and svix, which is a layer over it: signing and verifying 1 KB, the JSON left unparsed.

python -m benchmarks.peers.webhooks standardwebhooks sign
python -m benchmarks.peers.webhooks svix verify
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

from .process import measure_plain

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HEAD, TAIL = '{"id":"evt_1","type":"router.error_burst","data":"', '"}'
BODY = HEAD + "x" * (1_024 - len(HEAD + TAIL)) + TAIL


def signing(library: str, what: str) -> Callable[[], object]:
    signer = import_module(f"{library}.webhooks").Webhook(SECRET)  # installed in its own environment only
    now = datetime.now(UTC)
    if what == "sign":
        return lambda: signer.sign("evt_1", now, BODY)
    headers = {
        "webhook-id": "evt_1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": signer.sign("evt_1", now, BODY),
    }
    body = BODY.encode()
    unparsed: dict[str, Any] = {"json_parse": False} if library == "standardwebhooks" else {}  # svix never parses
    return lambda: signer.verify(body, headers, **unparsed)


if __name__ == "__main__":
    sign_or_verify = signing(*sys.argv[1:])
    measure_plain(lambda _: sign_or_verify(), [None])
