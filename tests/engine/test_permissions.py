"""What a key may use, and that its holder gets no further."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from routewright import (
    Agent,
    CallableProvider,
    Catalogue,
    Console,
    MemoryStorage,
    Model,
    Pricing,
    Router,
)
from routewright.errors import (
    IdempotencyKeyReused,
    NoCandidates,
    PermissionDenied,
    UnsupportedWrite,
    UpstreamFailed,
    ValidationFailed,
)
from routewright.protocols import Storage
from routewright.storage import open_storage
from routewright.wire import Caller, DecisionInput, Policy, PolicyFallback, PolicyRecords, UpstreamCall

pytestmark = pytest.mark.anyio

MODELS = [
    Model(id="big/one", quality=0.9, pricing_per_1m=Pricing(10, 40), context_window=100_000),
    Model(id="big/two", quality=0.8, pricing_per_1m=Pricing(12, 48), context_window=100_000),
    Model(id="big/free", quality=0.8, pricing_per_1m=Pricing(0, 0), context_window=100_000, free_tier=True),
    Model(id="tiny/one", quality=0.4, pricing_per_1m=Pricing(0.01, 0.04), context_window=100_000),
]
POLICIES = [
    Policy(name="best", goal="quality"),
    Policy(name="tiny", id="pol_tiny", models=["tiny/*"]),
    Policy(name="chain", prefer=["tiny/one"], fallback=PolicyFallback(models=["tiny/one", "big/two"])),
]
EVERYTHING: list[dict[str, Any]] = [
    {},
    {"goal": "quality"},
    {"models": ["big/one", "tiny/one"]},
    {"models": ["little"]},
    {"prefer": "tiny/one"},
    {"prefer": ["little"], "goal": "cost"},
    {"fallback": {"models": ["tiny/one", "big/two"]}},
    {"policy_id": "best"},
    {"policy_id": "tiny"},
    {"policy_id": "chain"},
    {"policy_id": "chain", "fallback": {"models": ["little"]}},
    {"budget": {"maxCostUsd": 0.01}},
    {"cache": True},
    {"idempotency_key": "mine"},
]
"""Ways to get at a model."""


class Desk:
    """A Router of an account whose models fail in turn, and what they were called for."""

    def __init__(self, storage: Storage | None = None) -> None:
        self.storage = storage or MemoryStorage()
        self.called: list[str] = []
        self.broken: set[str] = set()
        known = Catalogue(MODELS)
        self.console = Console(self.storage, secret="a secret that is long enough for one", catalogue=known)
        providers = [
            CallableProvider(self.answer, name=name, models=[model for model in MODELS if model.id.startswith(name)])
            for name in ("big", "tiny")
        ]
        catalogue = Catalogue((), aliases={"little": "tiny/one"})
        self.router = Router(providers=providers, catalogue=catalogue, storage=self.storage, policies=POLICIES)

    async def answer(self, call: UpstreamCall) -> str:
        self.called.append(call.model.id)
        if call.model.id in self.broken:
            raise RuntimeError("broken")
        return call.model.id

    async def caller(self, **terms: Any) -> Caller:
        new = await self.console.create_key("acme", name="x", **terms)
        return await self.console.authenticate(f"Bearer {new.secret.reveal()}")


@asynccontextmanager
async def desk(storage: Storage | None = None) -> AsyncIterator[Desk]:
    opened = Desk(storage)
    async with opened.router:
        opened.router.policies()  # claims their names in the storage
        await opened.console.create_account("acme", plan="unlimited")
        yield opened


@pytest.mark.parametrize("words", [["big/*"], ["provider:big"], ["big/one", "big/two"]])
async def test_a_key_calls_no_model_but_its_own(words: list[str]) -> None:
    async with desk() as here:
        caller = await here.caller(models=words)
        for options in EVERYTHING:
            here.broken = {Random(str(options)).choice(("big/one", "big/two", "tiny/one"))}
            with suppress(PermissionDenied, UpstreamFailed, NoCandidates):
                answer = await here.router.route("hi", caller=caller, **options)
                assert here.router.replay(answer.trace).digest == answer.decision.digest
        assert set(here.called) == {"big/one", "big/two"}


async def use(router: Router, way: str, caller: Caller, options: dict[str, Any]) -> None:
    reply: Any = getattr(router, way)("hi", caller=caller, **options)
    if way in ("route", "stream"):
        await (reply if way == "route" else reply.start())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"models": ["big/one", "tiny/one"]}, "the API key may not use 'tiny/one'; it may use 'big/*'"),
        ({"models": ["little"]}, "the API key may not use 'tiny/one'; it may use 'big/*'"),
        ({"prefer": "little"}, "the API key may not use 'tiny/one'; it may use 'big/*'"),
        ({"fallback": {"models": ["tiny/one"]}}, "the API key may not use 'tiny/one'; it may use 'big/*'"),
        ({"models": ["big/free"]}, "the API key may not use 'big/free'; it may use 'big/*'"),
        ({"policy_id": "best"}, "the API key may not use the policy 'best'; it may use 'tiny', 'chain'"),
        ({"policy_id": "nobody"}, "the API key may not use the policy 'nobody'; it may use 'tiny', 'chain'"),
        ({}, "the API key needs a policy; set policy_id to one of 'tiny', 'chain'"),
    ],
)
async def test_a_request_that_names_anything_else_is_refused(options: dict[str, Any], said: str) -> None:
    async with desk() as here:
        narrow: dict[str, Any] = {"models": ["big/*"]} if "big/*" in said else {"policies": ["tiny", "chain"]}
        caller = await here.caller(**narrow)
        for way in ("route", "stream", "decide", "steps"):
            with pytest.raises(PermissionDenied) as caught:
                await use(here.router, way, caller, options)
            assert caught.value.message == said
        (refused,) = await here.router.route_many(["hi"], caller=caller, **options)
        assert isinstance(refused, PermissionDenied)
        assert here.called == []


async def test_without_names_it_is_decided_among_the_models_of_the_key() -> None:
    async with desk() as here:
        caller = await here.caller(models=["big/*", "big/free"])
        answer = await here.router.route("hi", caller=caller)
        assert answer.decision.input.models == ("big/one", "big/two", "big/free")
        assert {entry.reason for entry in answer.decision.rejected} == {"whitelist"}
        assert [model.id for model in here.router.models(caller=caller)] == ["big/one", "big/two", "big/free"]
        assert len(here.router.models()) == len(MODELS)


async def test_a_key_with_one_policy_uses_it_without_naming_it() -> None:
    async with desk() as here:
        caller = await here.caller(policies=["tiny"])
        answer = await here.router.route("hi", caller=caller, goal="quality")
        assert (answer.output, answer.routing.policy_version.partition("@")[0]) == ("tiny/one", "tiny")
        assert [policy.name for policy in here.router.policies(caller=caller)] == ["tiny"]
        named = await here.router.route("hi", caller=caller, policy_id=here.router.policies()[1].id)
        assert named.output == "tiny/one"
        several = await here.caller(policies=[here.router.policies()[0].id, "chain"], models=["big/one"])
        best = await here.router.route("hi", caller=several, policy_id="best")
        assert best.output == "big/one"


async def test_a_key_whose_models_are_unknown_calls_none() -> None:
    async with desk() as here:
        caller = await here.caller(models=["openai/*"])
        said = "the API key may use no model but 'openai/*', and this router has none"
        with pytest.raises(PermissionDenied, match=re.escape(said)):
            await here.router.route("hi", caller=caller)
        assert here.router.models(caller=caller) == []


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
async def test_a_caller_made_by_hand_has_what_its_key_has(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("postgres") if kind == "postgres" else f"sqlite:///{tmp_path}/store.db"
    async with desk(MemoryStorage() if kind == "memory" else open_storage(url)) as here:
        new = await here.console.create_key("acme", name="x", models=["tiny/*"])
        caller = Caller("acme", key_id=new.key.id)
        many = await here.router.route_many(["one", "two"], caller=caller, goal="quality")
        answers = [*many, await here.router.route("hi", caller=caller, goal="quality")]
        assert here.called == ["tiny/one"] * len(answers)
        await here.console.change_key("acme", new.key.id, models=["big/one"])
        assert (await here.router.route("hi", caller=caller, strategy="cost-optimized")).output == "big/one"
        await here.console.change_key("acme", new.key.id, models=None)
        assert (await here.router.route("hi", caller=caller, strategy="cost-optimized")).output == "tiny/one"


async def test_without_a_call_a_caller_made_by_hand_names_nothing_but_its_keys() -> None:
    async with desk() as here:
        new = await here.console.create_key("acme", name="x", models=["big/one"], policies=["best"])
        caller = Caller("acme", key_id=new.key.id)
        await here.router.prepare("hi", caller=caller).decide()
        assert [policy.name for policy in here.router.policies(caller=caller)] == ["best"]
        with pytest.raises(PermissionDenied):
            here.router.decide("hi", caller=caller, policy_id="tiny")
        with pytest.raises(PermissionDenied):
            here.router.why_not("hi", "big/two", caller=caller, models=["big/two"])
        with pytest.raises(PermissionDenied):
            await here.router.as_caller(caller).cache.explain("hi", models=["tiny/one"])


async def test_a_key_gets_no_cached_answer_of_another_model() -> None:
    async with desk() as here:
        free, narrow = await here.caller(), await here.caller(models=["big/*"])
        cheapest: dict[str, Any] = {"strategy": "cost-optimized", "cache": {"mode": "exact", "explore": 0}}
        answers = [await here.router.route("hi", caller=caller, **cheapest) for caller in (free, free, narrow, narrow)]
        assert [answer.output for answer in answers] == ["tiny/one", "tiny/one", "big/one", "big/one"]
        assert [answer.routing.cache_hit for answer in answers] == [False, True, False, True]


@pytest.mark.parametrize("named", [{}, {"models": ["tiny/one"]}])
async def test_a_key_gets_no_kept_answer_of_another_key(named: dict[str, Any]) -> None:
    async with desk() as here:
        free, narrow = await here.caller(), await here.caller(models=["big/*"])
        cheapest: dict[str, Any] = {"strategy": "cost-optimized", "idempotency_key": "k", **named}
        assert (await here.router.route("hi", caller=free, **cheapest)).output == "tiny/one"
        with pytest.raises(IdempotencyKeyReused):
            await here.router.route("hi", caller=narrow, **cheapest)
        own = [await here.router.route("hi", caller=narrow, idempotency_key="own") for _ in range(2)]
        assert own[0].trace_id == own[1].trace_id
        assert here.called == ["tiny/one", "big/one"]


async def test_an_agents_calls_are_those_of_its_key() -> None:
    async with desk() as here:
        caller = await here.caller(models=["big/*"], policies=["chain"])
        for agent in (Agent(here.router), Agent(here.router, goal="cost", strategy="cost-optimized")):
            run = await agent.run("hi", caller=caller)
            assert run.output == "big/one"
        with pytest.raises(PermissionDenied, match="the API key may not use 'tiny/one'"):
            await Agent(here.router, models=["tiny/one"]).run("hi", caller=caller)
        assert here.called == ["big/one"] * 2


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"models": "big/*"}, "models: is 'big/*'; pass a list with a name or more, or None for all"),
        ({"models": []}, "models: is empty; pass a list with a name or more, or None for all"),
        ({"policies": [""]}, "policies: must be 1 to 200 printable characters, got ''"),
        ({"policies": [7]}, "policies: must be 1 to 200 printable characters, got 7"),
        ({"models": ["big/*", "big/on"]}, "models[1]: unknown model 'big/on'; did you mean 'big/one'?"),
        ({"models": ["bigg/*"]}, "models[0]: 'bigg/*' matches no model; did you mean 'big/*'?"),
        ({"policies": ["chian"]}, "policies[0]: there is no draft or policy 'chian'; did you mean 'chain'?"),
        ({"policies": ["desk"]}, "policies[0]: there is no draft or policy 'desk'; draft it first, or start"),
    ],
)
async def test_names_of_a_key_are_checked(terms: dict[str, Any], said: str) -> None:
    async with desk() as here:
        known = await here.console.create_key("acme", name="x", policies=["pol_tiny"])
        for change in (
            here.console.create_key("acme", name="x", **terms),
            here.console.change_key("acme", known.key.id, **terms),
        ):
            with pytest.raises(ValidationFailed) as caught:
                await change
            assert str(caught.value).startswith(said)


class WithoutPolicies(MemoryStorage):
    """A custom storage."""

    async def read(self, account: str, query: Any) -> Any:
        if isinstance(query, PolicyRecords):
            raise UnsupportedWrite("no records here")
        return await super().read(account, query)


async def test_a_storage_without_policies_takes_any_name() -> None:
    async with desk(WithoutPolicies()) as here:
        caller = await here.caller(policies=["tiny"])
        assert (await here.router.route("hi", caller=caller)).output == "tiny/one"


async def test_names_of_a_caller_are_checked() -> None:
    async with desk() as here:
        wrong: Any = ["big/one"]
        with pytest.raises(ValidationFailed, match=r"caller\.models: is a list; pass a tuple of names"):
            await here.router.route("hi", caller=Caller("acme", models=wrong))


async def test_a_host_can_limit_a_caller_without_a_key() -> None:
    async with desk() as here:
        caller = Caller("acme", models=("big/*",))
        answer = await here.router.route("hi", caller=caller)
        decision = here.router.decide("hi", caller=caller)
        stored: DecisionInput | None = answer.trace.decision_input
        assert stored is not None
        assert (answer.output, decision.model, stored.models) == ("big/one", "big/one", ("big/one", "big/two"))
