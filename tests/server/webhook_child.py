"""Servers that also deliver webhooks, on one store. Each writes its port and id.

    python -m tests.server.webhook_child WORKERS STORE POLICIES

The message ``fail`` fails on every model, ``stumble`` on the first. The hour in which hits of the cache are counted is
three seconds, and 20 look-ups are enough.
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn

from routewright import Agent, Console, Model, Pricing, ProviderFault, Router, Settings, SqliteStorage
from routewright._core import alerts
from routewright._engine.webhooks import Dispatcher
from routewright.backends.clock import SystemClock
from routewright.policies import PolicyFile
from routewright.server import create_app
from routewright.settings import WebhookSettings
from routewright.testing import ScriptedProvider
from routewright.wire import Delta, Finish, UpstreamCall, Usage

from .server_processes import fork

PRICE = Pricing(input_usd=1.0, output_usd=100.0)
MODELS = [
    Model(id=id, quality=quality, pricing_per_1m=PRICE, context_window=9_000, modalities=("text", "tool"))
    for id, quality in (("good/one", 0.9), ("spare/two", 0.1))
]
HITS_WINDOW_S, LEAST_LOOKUPS = 3.0, 8


def reply(call: UpstreamCall) -> Any:
    said = str(call.messages[-1].content)
    if said == "fail" or (said == "stumble" and call.model.id == MODELS[0].id):
        return ProviderFault("request")
    return [Delta("Hello."), Usage(10, 10), Finish("stop")]


def main(workers: str, store: str, policies: str) -> None:
    bound = fork(int(workers))
    alerts.HITS_WINDOW_S, alerts.LEAST_LOOKUPS = HITS_WINDOW_S, LEAST_LOOKUPS  # type: ignore[assignment]
    defaults: dict[str, Any] = Dispatcher.__init__.__kwdefaults__  # type: ignore[assignment]
    defaults["poll_s"] = 0.2
    clock, storage = SystemClock(), SqliteStorage(store)
    router = Router(
        providers=[ScriptedProvider(reply, models=[model], clock=clock) for model in MODELS],
        storage=storage,
        policies=PolicyFile(policies, every_s=0.1),
        settings=Settings(webhooks=WebhookSettings(allow_loopback=True), preload_tokens=False),
    )
    router.policies()
    app = create_app(router, Console(storage), agent=Agent(router))
    uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, ws="none")).run(sockets=[bound])


if __name__ == "__main__":
    main(*sys.argv[1:])
