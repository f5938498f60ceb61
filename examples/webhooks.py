"""Registers a webhook endpoint, causes an event, and receives it, verified, in the same process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

from routewright import BudgetExceeded, Console, MemoryStorage, Router, Settings
from routewright.settings import WebhookSettings
from routewright.webhook import verify_request
from routewright.wire import WebhookAnswer


class Receiver:
    """Takes the place of HTTP: in a service of yours this is a handler of your web framework."""

    def __init__(self) -> None:
        self.secret = ""
        self.received = threading.Event()  # deliveries are made in a background thread

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> WebhookAnswer:
        """Receive one webhook."""
        event = verify_request(body, headers, self.secret)  # raises SignatureError: answer 401
        print(f"{event.type}, tags {event.data['metadata']}")
        self.received.set()
        return WebhookAnswer(204)

    async def aclose(self) -> None:
        """Nothing is open."""


async def main() -> None:
    storage, receiver = MemoryStorage(), Receiver()
    console = Console(storage)
    new = await console.create_endpoint("default", "https://hooks.example.com/in", environment="sandbox")
    receiver.secret = new.secret.reveal()

    settings = Settings(webhooks=WebhookSettings(transport=receiver))
    async with Router.sandbox(storage=storage, settings=settings) as router:
        try:
            await router.route("Hello", budget={"maxCostUsd": 0}, metadata={"team": "search"})
        except BudgetExceeded as refused:
            print(f"refused: {refused.code}")
        await asyncio.to_thread(receiver.received.wait, 5.0)
        (delivery,) = await console.deliveries("default")
        print(f"{delivery.event_type} went to {new.endpoint.url}")


if __name__ == "__main__":
    asyncio.run(main())
