"""Policies as the page reads and changes them: records that come back, conflicts, and what fields mean."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from routewright import Catalogue, Console, MemoryStorage, Model, Policy, Router
from routewright.errors import PreconditionFailed, ValidationFailed
from routewright.ui import Operator, create_ui
from routewright.ui.api import Page, operations
from routewright.wire import Params, PolicyClass, PolicyMatch

from .browser import Browser

pytestmark = pytest.mark.anyio

CLASS = PolicyClass(name="gold", match=PolicyMatch(metadata={"tier": "gold", "level": 2}), goal="quality")
DESK = Policy(name="desk", goal="cost", classes=[CLASS], params=Params(extra={"openai": {"store": None}}))


async def test_a_record_comes_back_as_the_one_that_was_read() -> None:
    storage = MemoryStorage()
    console = Console(storage)
    run = operations(Router(providers=[], storage=storage), console)
    await console.policies.draft(DESK)
    states: Any = await run["policies.states"]({}, "ada")
    record = states[0]["record"]
    assert "weights" not in record["draft"]  # as people write policies
    assert record["draft"]["params"] == {"extra": {"openai": {"store": None}}}
    await run["policies.draft"]({"policy": record["draft"] | {"goal": "quality"}, "expect": record}, "ada")
    with pytest.raises(PreconditionFailed):
        await run["policies.draft"]({"policy": record["draft"], "expect": record}, "bob")
    with pytest.raises(PreconditionFailed):
        await run["policies.draft"]({"policy": record["draft"], "expect": "absent"}, "bob")
    with pytest.raises(ValidationFailed, match=r"policy\.gaol: is not a field; did you mean goal"):
        await run["policies.draft"]({"policy": {"name": "desk", "gaol": "cost"}}, "bob")
    stored = await console.policies.get("desk")
    assert (stored.drafted_by, stored.draft and stored.draft.goal) == ("ada", "quality")


async def test_a_draft_may_name_models_of_the_catalogue_of_the_router() -> None:
    catalogue = Catalogue([Model(id="mine/one", quality=0.5, context_window=8_000)])
    router = Router(providers=[], storage=MemoryStorage(), catalogue=catalogue)
    browser = Browser(create_ui(router, link_token="t"))
    await browser.sign_in(link="t")
    await browser.ask("POST", "/api/policies.draft", {"policy": {"name": "desk", "models": ["mine/one", "mine/two"]}})
    answer = (await browser.ask("POST", "/api/policies.check", {"name": "desk"}))[1]
    assert "unknown model 'mine/two'" in answer["error"]["message"]
    assert "mine/one" not in answer["error"]["message"]


async def test_a_conflict_has_a_status_of_its_own() -> None:
    storage = MemoryStorage()
    app = create_ui(Router(providers=[], storage=storage), link_token="t", owner=Operator(name="ada", writes=True))
    browser = Browser(app)
    await browser.sign_in(link="t")
    policy = {"policy": {"name": "desk"}, "expect": "absent"}
    assert (await browser.ask("POST", "/api/policies.draft", policy))[0] == 200
    status, answer, _ = await browser.ask("POST", "/api/policies.draft", policy)
    assert status == 412
    assert answer["error"]["message"] == "desk was expected to be absent and is not"


def test_fields_say_what_they_mean() -> None:
    fields = {field["path"]: field for field in Page(Router(providers=[]), Console(MemoryStorage())).policy_fields()}
    assert fields["goal"] == {
        "path": "goal",
        "meaning": "Overrides the request's.",
        "choices": ["cost", "quality", "stability"],
    }
    assert "tools" in fields["capabilities"]["choices"]
    assert fields["budget.maxCostUsd"]["meaning"] == "Limit in US dollars."
    assert {"weights.cost", "fallback.models", "guardrails[].deny", "classes[].match.metadata"} <= fields.keys()


class StuckStorage(MemoryStorage):
    """Never answers a scan."""

    async def scan(self, *args: Any, **options: Any) -> Any:
        await anyio.sleep_forever()


async def test_reading_ends_when_the_client_leaves() -> None:
    storage = StuckStorage()
    await Console(storage).policies.draft(DESK)
    app = create_ui(Router(providers=[], storage=storage), authorize=lambda _: Operator(name="ada"))
    messages: list[Any] = [{"type": "http.disconnect"}, {"type": "http.request", "body": b""}]

    async def receive() -> Any:
        return messages.pop()

    async def send(message: Any) -> None:
        messages.append(message)

    path = {"path": "/api/console.simulate", "query_string": b'{"draft":"desk"}'}
    scope = {"type": "http", "method": "GET", "headers": [(b"host", b"localhost")], **path}
    with anyio.fail_after(5):
        await app(scope, receive, send)
    assert not messages
