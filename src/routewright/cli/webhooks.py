"""The command ``webhooks``: manages endpoints, delivers events, and helps to test receivers."""

from __future__ import annotations

import os
import signal
from argparse import Namespace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, get_args

import anyio

from routewright._core.request.problems import listed
from routewright._core.webhooks.endpoint import OVERLAP_S
from routewright.console import Console
from routewright.errors import NotFound, SignatureError
from routewright.settings import WebhookSettings
from routewright.webhook import verify_request
from routewright.wire import DeliveryState, Endpoint, Environment, EventType, NewEndpoint, SignatureProfile

from .command import INTERNAL, OK, Parser, add, names, refused
from .show import Line, Row, Screen, Style, Table, facts, moment, picked
from .store import add_store_options, duration, existing_store

SECRET = "ROUTEWRIGHT_WEBHOOK_SECRET"
_ENDPOINTS = ("endpoint", "url", "events", "environment", "since", "")
_DELIVERIES = ("event", "type", "endpoint", "state", "attempts", "last answer", "next (UTC)")
_MOST_BYTES = 1 << 20


def add_webhooks(command: Parser) -> None:
    """Add the subcommands of ``webhooks``."""
    create, ls = command.command("create ACCOUNT URL", _create), command.command("ls ACCOUNT", _ls)
    disable, enable = command.command("disable ACCOUNT ID", _disable), command.command("enable ACCOUNT ID", _enable)
    delete, rotate = command.command("delete ACCOUNT ID", _delete), command.command("rotate ACCOUNT ID", _rotate)
    deliveries = command.command("deliveries ACCOUNT", _deliveries)
    replay, test = command.command("replay ACCOUNT ID", _replay), command.command("test ACCOUNT ID", _test)
    run, listen, verify = (
        command.command("run", _run),
        command.command("listen", _listen),
        command.command("verify FILE", _verify),
    )
    for each in (create, ls, disable, enable, delete, rotate, deliveries, replay, test):
        add(each, "account ACCOUNT", "whose it is")
    for each in (disable, enable, delete, rotate, replay, test):
        add(each, "endpoint_id ID", "the endpoint, as 'routewright webhooks ls' lists it")
    add(create, "url URL", "where events are sent: https, a public host")
    add(create, "--event TYPE,...", f"{', '.join(get_args(EventType))} (default: all)", dest="events", type=names)
    which = "events of production or sandbox calls (default: production)"
    add(create, "--environment", which, choices=get_args(Environment), default="production")
    profile = "service, or standard: sign as Standard Webhooks has it (default: service)"
    add(create, "--profile", profile, choices=get_args(SignatureProfile), default="service")
    for each in (create, test, run):
        add(each, "--allow-loopback", "for development: this machine, also over http", action="store_true")
    overlap = "how long the old secret still signs, as 30m, 2h, 7d, or 0 (default: 24h)"
    add(rotate, "--overlap TIME", overlap, dest="overlap_s", type=_overlap, default=OVERLAP_S)
    add(deliveries, "--endpoint ID", "only to this one", dest="endpoint_id")
    add(deliveries, "--state", "only those in this state", choices=get_args(DeliveryState))
    add(deliveries, "--limit N", "how many (default: 50)", type=int, default=50)
    add(replay, "--event ID", "only this event, delivered or not", dest="event_id")
    most = "attempts for each delivery, 1 to 6 (default: 5)"
    add(run, "--max-attempts N", most, type=int, default=WebhookSettings().max_attempts)
    add(listen, "--port N", "the port on 127.0.0.1; 0 is any that is free (default: 9000)", type=int, default=9000)
    add(verify, "file FILE", "the body as it came, byte for byte")
    header = "a header of the delivery; repeat it for the three of Standard Webhooks"
    add(verify, "--header NAME:VALUE", header, dest="headers", action="append", required=True)
    add(verify, "--at TIME", "Unix seconds when it came (default: its own timestamp)", type=float)
    for each in (listen, verify):
        secret = f"the endpoint's signing secret; repeat it during a rotation (default: {SECRET})"
        add(each, "--secret WHSEC", secret, dest="secrets", action="append")
        each.set_defaults(json=False)
    run.set_defaults(json=False)
    add_store_options(create, ls, disable, enable, delete, rotate, deliveries, replay, test, run)


def _overlap(text: str) -> int:
    return 0 if text == "0" else duration(text)


async def _create(args: Namespace, screen: Screen) -> None:
    """Register an endpoint, and write its signing secret to standard output.

    The secret is shown only once. All else goes to standard error:

      SECRET=$(routewright webhooks create acme https://hooks.example.com/in)"""
    given = picked(args, "events environment profile allow_loopback")
    async with Console(existing_store(args)) as console:
        accounts = [each.name for each in await console.accounts()]
        _show_secret(await console.create_endpoint(args.account, args.url, **given), args, screen)
    if accounts and args.account not in (*accounts, "default"):
        screen.note(f"no account {args.account!r} is set up; there are {listed(accounts)}")


async def _rotate(args: Namespace, screen: Screen) -> None:
    """Replace the signing secret of an endpoint, and write the new one to standard output.

    Until the overlap has passed, deliveries are signed with both."""
    async with Console(existing_store(args)) as console:
        new = await console.rotate_endpoint(args.account, args.endpoint_id, overlap_s=args.overlap_s)
    _show_secret(new, args, screen)


def _show_secret(new: NewEndpoint, args: Namespace, screen: Screen) -> None:
    if args.json:
        screen.json({**_endpoint_json(new.endpoint), "secret": new.secret.reveal()})
        return
    screen.text(f"{new.secret.reveal()}\n")
    screen.note(f"{new.endpoint.id} of {new.endpoint.account}: keep the secret now, it is not shown again")


async def _ls(args: Namespace, screen: Screen) -> None:
    """List the endpoints of an account, oldest first."""
    async with Console(existing_store(args)) as console:
        endpoints = await console.endpoints(args.account)
    rows = []
    for each in endpoints:
        events = "all" if len(each.events) == len(get_args(EventType)) else ", ".join(each.events)
        disabled = "" if each.disabled_at is None else "disabled"
        cells = (each.id, each.url, events, each.environment, moment(each.created_at), disabled)
        rows.append(Row(cells, "dim" if disabled else "plain"))
    lack = "" if rows else "the account has no endpoint"
    screen.report({"endpoints": [*map(_endpoint_json, endpoints)]}, Table(rows, _ENDPOINTS), note=lack)


async def _disable(args: Namespace, screen: Screen) -> None:
    """Deliver nothing more to an endpoint. What is pending fails, and can be replayed for a day."""
    await _switch(args, screen, on=False)


async def _enable(args: Namespace, screen: Screen) -> None:
    """Deliver to a disabled endpoint again. 'webhooks replay' delivers what failed in the last 24 hours."""
    await _switch(args, screen, on=True)


async def _switch(args: Namespace, screen: Screen, *, on: bool) -> None:
    async with Console(existing_store(args)) as console:
        change = console.enable_endpoint if on else console.disable_endpoint
        endpoint = await change(args.account, args.endpoint_id)
    screen.report(_endpoint_json(endpoint), note=f"{endpoint.id} is {'enabled' if on else 'disabled'}")


async def _delete(args: Namespace, screen: Screen) -> None:
    """Remove an endpoint and its deliveries."""
    async with Console(existing_store(args)) as console:
        await console.delete_endpoint(args.account, args.endpoint_id)
    screen.report({"id": args.endpoint_id}, note=f"{args.endpoint_id} is deleted")


async def _deliveries(args: Namespace, screen: Screen) -> None:
    """List deliveries of the last 24 hours, newest event first."""
    async with Console(existing_store(args)) as console:
        given = picked(args, "endpoint_id state limit")
        found = await console.deliveries(args.account, **given)
    rows = []
    for each in found:
        last = each.attempts[-1] if each.attempts else None
        answer = "" if last is None else str(last.status or last.error)
        cells = (each.event_id, each.event_type, each.endpoint_id, each.state, str(len(each.attempts)), answer)
        is_next = each.state == "waiting" and each.next_attempt_at is None
        style: Style = "good" if each.state == "delivered" else "bad" if each.ended_at else "plain"
        rows.append(Row((*cells, "now" if is_next else moment(each.next_attempt_at)), style))
    told = {"deliveries": found}
    screen.report(told, Table(rows, _DELIVERIES, frozenset({4})), note="" if rows else "there is no delivery")


async def _replay(args: Namespace, screen: Screen) -> None:
    """Deliver again: all events of the last 24 hours that an endpoint has not accepted, or one event."""
    async with Console(existing_store(args)) as console:
        count = await console.replay(args.account, args.endpoint_id, args.event_id)
    screen.report({"replayed": count}, note=f"{count} {'delivery begins' if count == 1 else 'deliveries begin'} anew")


async def _test(args: Namespace, screen: Screen) -> int:
    """Send a sample of each event that an endpoint selects, once, and say what it answered."""
    async with Console(existing_store(args)) as console:
        attempts = await console.test_endpoint(args.account, args.endpoint_id, allow_loopback=args.allow_loopback)
    rows = []
    for name, each in attempts.items():
        is_fine = each.status is not None and 200 <= each.status < 300
        cells = (name, str(each.status or each.error), f"{each.duration_ms:.0f} ms")
        rows.append(Row(cells, "good" if is_fine else "bad"))
    screen.report({"attempts": attempts}, Table(rows, ("event", "answer", "took"), frozenset({2})))
    return OK if all(row.style == "good" for row in rows) else INTERNAL


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


def _listen(args: Namespace, screen: Screen) -> None:
    """Receive webhooks on this machine, verify and print them. For development.

    The body of each goes to standard output as it came, its signature to standard error.

    Register http://127.0.0.1:9000 with --allow-loopback, and give its secret here."""
    secrets = _secrets(args)

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            body = self.rfile.read(int(length)) if length.isdigit() and int(length) <= _MOST_BYTES else b""
            try:
                event = verify_request(body, self.headers, *secrets)
            except SignatureError as error:
                screen.say(Line(f"refused: {error}", "bad"))
                self.send_response(401)
            else:
                screen.text(f"{body.decode()}\n")
                screen.note(f"{event.type}, Service-Signature: {self.headers.get('Service-Signature', '')}")
                self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Suppress the access log."""

    with HTTPServer(("127.0.0.1", args.port), Receiver) as server:
        screen.note(f"listening at http://127.0.0.1:{server.server_port}; Ctrl-C stops")
        server.serve_forever()


def _verify(args: Namespace, screen: Screen) -> int:
    """Check the signature of a captured delivery, and print its event."""
    headers = {}
    for text in args.headers:
        name, colon, value = text.partition(":")
        if not colon:
            raise refused("--header", f"{text!r} has no colon", "give NAME:VALUE")
        headers[name.strip().lower()] = value.strip()
    now = args.at
    if now is None:  # its own time, because a captured delivery would be too old by the current one
        parts = headers.get("service-signature", "").split(",")
        sent = next((part[2:] for part in parts if part.startswith("t=")), headers.get("webhook-timestamp", ""))
        now = float(sent) if sent.isdigit() else 0.0
    try:
        body = Path(args.file).read_bytes()
    except OSError as error:
        raise NotFound(f"{args.file} cannot be read: {error.strerror}") from error
    try:
        event = verify_request(body, headers, *_secrets(args), now=now)
    except SignatureError as error:
        screen.say(Line(f"refused: {error}", "bad"))
        return INTERNAL
    screen.report(event, facts({"event": event.id, "type": event.type, "created": event.created_at}))
    return OK


def _secrets(args: Namespace) -> list[str]:
    found = args.secrets or [os.environ.get(SECRET, "")]
    if not found[0]:
        raise refused("--secret", "is missing", f"give --secret whsec_..., or set {SECRET}")
    return list(found)


def _endpoint_json(endpoint: Endpoint) -> dict[str, Any]:
    return picked(endpoint, "id account environment url events profile created_at disabled_at")
