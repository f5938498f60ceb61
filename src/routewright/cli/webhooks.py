"""The command ``webhooks``: manages endpoints and delivers events."""

from __future__ import annotations

import signal
from argparse import Namespace
from functools import partial
from typing import get_args

import anyio
import msgspec

from routewright.console import Console
from routewright.settings import WebhookSettings
from routewright.wire import DeliveryState, Endpoint, Environment, EventType, JsonObject, NewEndpoint, SignatureProfile

from .command import INTERNAL, OK, arg, flag, several, verb
from .show import Screen, dim_after, listing, pick
from .store import LIMIT, STORE, duration, existing_store, store_verb

_ENDPOINTS = "id url environment profile created_at disabled_at events"
_DELIVERIES = "event_id event_type endpoint_id state tries last_answer next_attempt_at"


_ACCOUNT = arg("account ACCOUNT", "account of the endpoint")
_ENDPOINT = (_ACCOUNT, arg("endpoint_id ID", "id of the endpoint, as 'routewright webhooks ls' lists it"))
_LOOPBACK = flag("--allow-loopback", "allow this machine, also over http: for development")


@store_verb(
    Console,
    "webhooks create",
    _ACCOUNT,
    arg("url URL", "URL that receives events: https, on a public host"),
    several("--event TYPE,...", f"{', '.join(get_args(EventType))} (default: all)", dest="events"),
    arg("--environment", "environment of the events", Environment, "production"),
    arg("--profile", "signature format; standard is that of Standard Webhooks", SignatureProfile, "service"),
    _LOOPBACK,
)
async def _create(args: Namespace, screen: Screen, console: Console) -> None:
    """Register an endpoint, and write its signing secret to standard output.

    The secret is shown only once. Everything else goes to standard error:

      SECRET=$(routewright webhooks create acme https://hooks.example.com/in)"""
    options = pick(args, "events environment profile allow_loopback")
    _show_secret(await console.create_endpoint(args.account, args.url, **options), screen)


@store_verb(
    Console,
    "webhooks rotate",
    *_ENDPOINT,
    arg("--overlap TIME", "time that the old secret still signs, as 2h, 7d or 0m", duration, "24h", dest="overlap_s"),
)
async def _rotate(args: Namespace, screen: Screen, console: Console) -> None:
    """Replace the signing secret of an endpoint, and write the new one to standard output.

    Until the overlap has passed, deliveries are signed with both."""
    new = await console.rotate_endpoint(args.account, args.endpoint_id, overlap_s=args.overlap_s)
    _show_secret(new, screen)


def _show_secret(new: NewEndpoint, screen: Screen) -> None:
    owner = f"{new.endpoint.id} of {new.endpoint.account}"
    screen.secret(_endpoint_json(new.endpoint), "secret", new.secret.reveal(), owner)


@store_verb(Console, "webhooks ls", _ACCOUNT)
async def _ls(args: Namespace, screen: Screen, console: Console) -> None:
    """List the endpoints of an account, oldest first."""
    endpoints = await console.endpoints(args.account)
    screen.listing(
        "endpoints", map(_endpoint_json, endpoints), _ENDPOINTS, "the account has no endpoint", dim_after("disabled_at")
    )


@store_verb(Console, "webhooks disable", *_ENDPOINT)
async def _disable(args: Namespace, screen: Screen, console: Console) -> None:
    """Stop deliveries to an endpoint. Pending ones fail, and can be replayed for a day."""
    endpoint = await console.disable_endpoint(args.account, args.endpoint_id)
    screen.report(_endpoint_json(endpoint), note=f"{endpoint.id} is disabled")


@store_verb(Console, "webhooks enable", *_ENDPOINT)
async def _enable(args: Namespace, screen: Screen, console: Console) -> None:
    """Deliver to a disabled endpoint again. 'webhooks replay' delivers what failed in the last 24 hours."""
    endpoint = await console.enable_endpoint(args.account, args.endpoint_id)
    screen.report(_endpoint_json(endpoint), note=f"{endpoint.id} is enabled")


@store_verb(Console, "webhooks delete", *_ENDPOINT)
async def _delete(args: Namespace, screen: Screen, console: Console) -> None:
    """Remove an endpoint and its deliveries."""
    await console.delete_endpoint(args.account, args.endpoint_id)
    screen.report({"id": args.endpoint_id}, note=f"{args.endpoint_id} is deleted")


@store_verb(
    Console,
    "webhooks deliveries",
    _ACCOUNT,
    arg("--endpoint ID", "only deliveries to this endpoint", dest="endpoint_id"),
    arg("--state", "only deliveries in this state", DeliveryState),
    LIMIT,
)
async def _deliveries(args: Namespace, screen: Screen, console: Console) -> None:
    """List deliveries of the last 24 hours, newest event first."""
    deliveries = await console.deliveries(args.account, **pick(args, "endpoint_id state limit"))
    rows = []
    for delivery in deliveries:
        attempt = delivery.attempts[-1] if delivery.attempts else None
        answer = "" if attempt is None else str(attempt.status or attempt.error)
        rows.append({**msgspec.to_builtins(delivery), "tries": len(delivery.attempts), "last_answer": answer})
    note = "" if rows else "there is no delivery"
    screen.report({"deliveries": deliveries}, listing(rows, _DELIVERIES), note=note)


@store_verb(
    Console, "webhooks replay", *_ENDPOINT, arg("--event ID", "only this event, delivered or not", dest="event_id")
)
async def _replay(args: Namespace, screen: Screen, console: Console) -> None:
    """Deliver again: all events of the last 24 hours that an endpoint has not accepted, or one event."""
    count = await console.replay(args.account, args.endpoint_id, args.event_id)
    screen.report({"replayed": count}, note=f"{count} {'delivery begins' if count == 1 else 'deliveries begin'} anew")


@store_verb(Console, "webhooks test", *_ENDPOINT, _LOOPBACK)
async def _test(args: Namespace, screen: Screen, console: Console) -> int:
    """Send a sample of each event that an endpoint selects, once, and show its answers."""
    attempts = await console.test_endpoint(args.account, args.endpoint_id, allow_loopback=args.allow_loopback)
    rows = [{"event": name, **msgspec.to_builtins(attempt)} for name, attempt in attempts.items()]
    screen.report({"attempts": attempts}, listing(rows, "event status error duration_ms"))
    return OK if all(200 <= (attempt.status or 0) < 300 for attempt in attempts.values()) else INTERNAL


@verb(
    "webhooks run",
    _LOOPBACK,
    arg("--max-attempts N", "attempts for each delivery, 1 to 6", int, WebhookSettings().max_attempts),
    STORE,
)
async def _run(args: Namespace, screen: Screen) -> None:
    """Deliver the webhooks of a store until stopped.

    'routewright serve' and Routers deliver by themselves: this is for Routers with WebhookSettings(deliver=False).
    Several processes may deliver from one store."""
    async with Console(existing_store(args)) as console:
        screen.note("delivering webhooks; Ctrl-C stops")
        settings = WebhookSettings(allow_loopback=args.allow_loopback, max_attempts=args.max_attempts)
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(console.deliver, settings, stop=stop))
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    stop.set()
                    break


def _endpoint_json(endpoint: Endpoint) -> JsonObject:
    return pick(endpoint, "id account environment url events profile created_at disabled_at")
