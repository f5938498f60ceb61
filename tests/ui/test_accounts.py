"""The operations behind the views of accounts, keys and webhooks: what their answers hold, and what they hide."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from routewright import Console
from routewright.testing import FakeClock
from routewright.ui.api import ROWS

from .browser import Browser, operator_key, page

pytestmark = pytest.mark.anyio


async def signed_in(console: Console, clock: FakeClock) -> Browser:
    browser = page(console, clock, link_token="t")
    await browser.sign_in(link="t")
    return browser


async def read(browser: Browser, operation: str, **arguments: Any) -> Any:
    status, answer, _ = await browser.ask("GET", f"/api/{operation}?{quote(msgspec.json.encode(arguments).decode())}")
    return status, answer


async def test_a_page_of_accounts_has_their_standing(console: Console, clock: FakeClock) -> None:
    for index in range(ROWS + 2):
        await console.create_account(f"Shop {index:02}", prepaid=True)
    await console.create_account("acme")
    await console.credit("Shop 26", 5)
    browser = await signed_in(console, clock)
    status, answer = await read(browser, "page.accounts", contains="sHOP", start=ROWS)
    assert (status, answer["count"], answer["size"]) == (200, ROWS + 2, ROWS)
    assert [(row["account"]["name"], row["balance"]["left_usd"]) for row in answer["rows"]] == [
        ("Shop 25", 0.0),
        ("Shop 26", 5.0),
    ]
    assert answer["rows"][0]["account"]["limits_in_force"]["requests_per_min"] == 60  # of the plan
    for wrong in ({"contains": 1}, {"start": 1.5}, {"start": "1"}, {"size": 1}):
        assert (await read(browser, "page.accounts", **wrong))[0] == 400, wrong
    assert (await read(browser, "page.accounts", start=-1))[1]["rows"][0]["account"]["name"] == "Shop 00"


async def test_only_changed_terms_are_sent_and_null_is_no_limit(console: Console, clock: FakeClock) -> None:
    await console.create_account("acme", daily_limit_usd=1, monthly_limit_usd=2)
    browser = await signed_in(console, clock)
    change = {"name": "acme", "daily_limit_usd": None}
    assert (await browser.ask("POST", "/api/console.change_account", change))[0] == 200
    account = await console.account("acme")
    assert (account.daily_limit_usd, account.monthly_limit_usd) == (None, 2.0)
    status, answer, _ = await browser.ask(
        "POST", "/api/console.change_account", {"name": "acme", "monthly_limit_usd": "1,000"}
    )
    assert (status, answer["error"]["detail"]["problems"][0]["problem"]) == (400, "is '1,000'")


async def test_no_answer_holds_a_digest_or_a_secret_but_the_new_one(console: Console, clock: FakeClock) -> None:
    browser = await signed_in(console, clock)
    await console.create_account("acme")
    key = await console.create_key("acme", name="old", budget_usd=1)
    operator = await console.create_key("_system", name="ada", scopes=["console:write"])
    endpoint = await console.create_endpoint("acme", "https://hooks.example.com/in")
    await console.rotate_endpoint("acme", endpoint.endpoint.id)
    ids = {"account": "acme", "endpoint_id": endpoint.endpoint.id}
    secrets: dict[str, str] = {}
    answers: dict[str, str] = {}
    for operation, arguments in {
        "console.create_key": {"account": "acme", "name": "new"},
        "console.change_key": {"account": "acme", "key_id": key.key.id, "name": "renamed"},
        "console.create_endpoint": {"account": "acme", "url": "https://hooks.example.com/in"},
        "console.rotate_endpoint": ids,
        "console.disable_endpoint": ids,
        "console.enable_endpoint": ids,
        "console.change_account": {"name": "acme", "plan": "pro"},
        "console.credit": {"account": "acme", "usd": 5},
        "console.revoke_key": {"account": "_system", "key_id": operator.key.id},
    }.items():
        status, answer, _ = await browser.ask("POST", f"/api/{operation}", arguments)
        assert status == 200, answer
        secrets[operation] = answer.pop("secret", "")
        answers[operation] = str(answer)
    assert [name for name, secret in secrets.items() if secret] == [
        "console.create_key",
        "console.create_endpoint",
        "console.rotate_endpoint",
    ]
    for operation, arguments in {
        "keys": {"account": "acme"},
        "standing": {"account": "acme"},
        "endpoints": {"account": "acme"},
        "deliveries": {"account": "acme"},
        "accounts": {},
        "page.accounts": {},
    }.items():
        answers[operation] = str((await read(browser, operation, **arguments))[1])
    answers["operators"] = str((await read(browser, "console.keys", account="_system"))[1])
    stored_keys = await console.keys("acme") + await console.keys("_system")
    hidden = [stored.digest for stored in stored_keys]
    hidden += [sealed.sealed for stored in await console.endpoints("acme") for sealed in stored.secrets]
    hidden += [new.secret.reveal() for new in (key, operator, endpoint)] + [
        secret for secret in secrets.values() if secret
    ]
    assert len(hidden) == 3 + 4 + 3 + 3
    for name, text in answers.items():
        assert [secret for secret in hidden if secret in text] == [], name
        assert not any(field in text for field in ("'digest'", "'secrets'")), name


async def test_only_the_owner_of_the_machine_sends_webhooks_to_it(console: Console, clock: FakeClock) -> None:
    await console.create_account("acme")
    endpoint = {"account": "acme", "url": "http://127.0.0.1:9/in"}
    for path, expected in (("link", 200), ("key", 400)):
        browser = page(console, clock, link_token="t" if path == "link" else None)
        secret = "t" if path == "link" else (await operator_key(console)).secret.reveal()
        assert await browser.sign_in(**{path: secret}) == 200
        assert (await browser.ask("POST", "/api/console.create_endpoint", endpoint))[0] == expected
        asked = endpoint | {"allow_loopback": True}
        assert (await browser.ask("POST", "/api/console.create_endpoint", asked))[0] == 400


async def test_operators_keys_are_not_made_on_the_page(console: Console, clock: FakeClock) -> None:
    browser = page(console, clock)
    new = await operator_key(console)
    await browser.sign_in(key=new.secret.reveal())
    made = {"account": "_system", "name": "eve", "scopes": ["console:write"]}
    changed = {"account": "_system", "key_id": new.key.id, "name": "eve"}
    for name, arguments in (("create_key", made), ("change_key", changed)):
        status, answer, _ = await browser.ask("POST", f"/api/console.{name}", arguments)
        assert (status, "command line" in answer["error"]["message"]) == (403, True)
    assert [key.name for key in await console.keys("_system")] == [new.key.name]
