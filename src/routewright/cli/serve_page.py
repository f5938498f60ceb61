"""What a person is shown once a server is ready; at the first start with the keys, and a line that asks with one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence

from routewright.serve.plan import ACCOUNT, Address, Begun, Plan
from routewright.wire import Environment

from .blocks import Block, Line, Row, Table

_BODY = json.dumps({"messages": [{"role": "user", "content": "Why is the sky blue?"}]})
_EVERY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that stand for all of a machine, and one that reaches it from itself."""
_IS: dict[Environment, tuple[str, str]] = {
    "production": ("live key", "calls the models of your providers, for money"),
    "sandbox": ("test key", "canned answers, no provider, never billed"),
}


def started_page(plan: Plan, begun: Begun, providers: Sequence[str]) -> list[Block]:
    """Where it serves, and how to ask. There are keys at the first start alone; ``providers`` are variables."""
    workers = "1 worker" if plan.workers == 1 else f"{plan.workers} workers"
    blocks: list[Block] = [Line(f"routewright serves at {url_of(plan)} with {workers}", "title")]
    if plan.admin is not None:
        blocks.append(Line(f"health checks and metrics, without a key: {_admin(plan)}"))
    blocks += _first(plan, begun.keys) if begun.keys else _later(plan, begun.account)
    return [*blocks, Line(), *_live(plan, providers)]


def url_of(plan: Plan) -> str:
    """The address as a client on this machine would write it."""
    return f"{'http' if plan.tls is None else 'https'}://{_place(plan.address)}"


def _first(plan: Plan, keys: Mapping[Environment, str]) -> Iterator[Block]:
    store = "in memory; it ends with the server" if plan.in_memory else _store(plan)
    yield Line()
    yield Line(f"This is the first start. The store is {store}. The account {ACCOUNT!r} was set up.")
    yield Line("ITS PLAN IS 'unlimited': NOTHING BOUNDS HOW MUCH ITS LIVE KEYS MAY ASK, OR SPEND.", "bad")
    if not plan.in_memory:
        yield Line(f"To bound it: routewright accounts change {ACCOUNT} --plan pro --store {_store(plan)}")
    yield Line()
    yield Table([Row((_IS[each][0], key, _IS[each][1])) for each, key in keys.items()])
    yield Line("Keep them now: they are not shown again.")
    yield Line()
    yield Line("Ask, from another terminal:")
    yield Line()
    yield Line(curl_line(plan, keys.get("sandbox") or keys["production"]))
    if plan.tls is not None:
        yield Line("(curl has to trust the certificate, and the address has to be a name in it: --cacert, --resolve)")
    if not plan.in_memory:
        yield Line()
        yield Line("See what became of it:")
        yield Line()
        yield Line(f"routewright traces ls --account {ACCOUNT} --store {_store(plan)}")


def _later(plan: Plan, account: str) -> Iterator[Block]:
    if plan.in_memory:
        return
    yield Line(f"another key: routewright keys create {shlex.quote(account)} --name NAME --store {_store(plan)}")
    yield Line("             with --environment sandbox for a test key; 'routewright accounts ls' lists the accounts")


def _live(plan: Plan, providers: Sequence[str]) -> Iterator[Block]:
    """What live keys can do, by what was found in the environment."""
    if plan.environment == "sandbox":
        return
    if providers:
        yield Line(f"Live keys reach the models of these, found in the environment: {', '.join(providers)}")
    else:
        yield Line("Live keys reach no model yet: no provider's key is in the environment. Set one, as OPENAI_API_KEY,")
        yield Line("and start again.")


def curl_line(plan: Plan, key: str) -> str:
    """A command that asks, to be pasted as it stands."""
    headers = f'-H "Authorization: Bearer {key}" -H "Content-Type: application/json"'
    return f"curl {url_of(plan)}/v1/route {headers} -d '{_BODY}'"


def _admin(plan: Plan) -> str:
    assert plan.admin is not None
    first = f"http://{_place(plan.admin)}"
    return first if plan.workers == 1 else f"{first} (of each further worker a port higher)"


def _store(plan: Plan) -> str:
    """As a command line takes it."""
    return shlex.quote(plan.store.removeprefix("sqlite:///"))


def _place(address: Address) -> str:
    host = _EVERY.get(address.host, address.host)
    return f"[{host}]:{address.port}" if ":" in host else f"{host}:{address.port}"
