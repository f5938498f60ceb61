"""Makes of a script's plain data what a Router is made of: chance, providers, guardrails, policies, an account."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from routewright import (
    Caller,
    Capture,
    Catalogue,
    Console,
    DenyList,
    ExecutionLimits,
    MemoryStorage,
    Model,
    PatternGuardrail,
    Policy,
    ProviderFault,
    RateLimits,
    Router,
    Settings,
    UpstreamCall,
)
from routewright._core.analytics.rollup import counted_of
from routewright._core.call import Call
from routewright.backends.storage.memory.accounts import AccountRecord
from routewright.backends.storage.tables.read import decode_trace as stored_trace
from routewright.backends.storage.tables.traces import rows_of_draft, rows_of_trace
from routewright.backends.transport import TransportLimits
from routewright.protocols import TraceDraft
from routewright.testing import FakeClock, FaultyProvider, Pause, ScriptedProvider
from routewright.testing.provider import Line
from routewright.wire import Allow, Block, Delta, Finish, Redact, Redaction, Snapshot, ToolDelta, Usage, Verdict

from .randomness import Data
from .scripts import Script
from .turns import HEAVY, Turn

START = 1_767_225_600.0  # 2026-01-01T00:00:00Z
AS_OF = "2025-12-20"
SMALL = TransportLimits(answer_bytes=60_000)
_ODD: Any = 7
"""What is neither a chunk nor a verdict."""


class Point(msgspec.Struct):
    """An ``output_type``."""

    x: int
    y: int = 0


@dataclass
class Place:
    """Another."""

    x: int


TYPES: dict[str | None, Any] = {"point": Point, "place": Place, None: None}


class Chance:
    """Ids from one seeded stream. Jitter hangs on the moment alone, however often any was drawn before."""

    def __init__(self, seed: int, clock: FakeClock) -> None:
        self._ids = Random(f"ids {seed}")
        self._seed = seed
        self._clock = clock

    def getrandbits(self, k: int, /) -> int:
        """Chance of ids."""
        return self._ids.getrandbits(k)

    def random(self) -> float:
        """Jitter of pauses."""
        return Random(f"jitter {self._seed} {self._clock.monotonic():.5f}").random()


class Whole(ScriptedProvider):
    """One that gives its answers whole."""

    whole = True


class OwnGuardrail:
    """Looks for one word, may take its time, and may fail."""

    name = "own"

    def __init__(self, given: Data, clock: FakeClock) -> None:
        self.stages = given["stages"]
        self.holds = given["holds"]
        self._verdict: str = given["verdict"]
        self._waits: float = given["waits"]
        self._clock = clock

    def check(self, text: str, stage: str) -> Any:
        """Say what may pass; later, where it waits."""
        return self._later(text) if self._waits else self._said(text)

    async def _later(self, text: str) -> Verdict:
        await self._clock.sleep(self._waits)
        return self._said(text)

    def _said(self, text: str) -> Verdict:
        at = text.find("sky")
        if at < 0 or self._verdict == "allow":
            return Allow()
        if self._verdict == "raise":
            raise ValueError("the guardrail is broken")
        if self._verdict == "odd":
            return _ODD  # type: ignore[no-any-return]
        return Block("word") if self._verdict == "block" else Redact((Redaction(at, at + 3, "word"),))


class Turns:
    """What the scripted models of one provider do, call by call."""

    def __init__(self, given: Data) -> None:
        self._given = given
        self._next = dict.fromkeys(given["models"], 0)

    def turn(self, model: str) -> Turn:
        """The plain lines of a model's next call."""
        place = self._next[model]
        self._next[model] += 1
        coming: list[Turn] = self._given["turns"].get(model, [])
        then: Turn = self._given["then"][model]
        return coming[place] if place < len(coming) else then

    def __call__(self, call: UpstreamCall) -> list[Line]:
        lines = self.turn(call.model.id)
        if lines[:1] == [["raise"]]:
            raise ValueError("the provider is broken")
        return [line_of(line) for line in lines]


def line_of(line: list[Any]) -> Line:
    """A line of a script as the library has it."""
    match line:
        case ["text", text]:
            return Delta(text)
        case ["pause", seconds]:
            return Pause(seconds)
        case ["usage", *counts]:
            return Usage(*counts)
        case ["finish", reason]:
            return Finish(reason)
        case ["tool", index, arguments, call_id, name]:
            return ToolDelta(index, arguments, call_id, name)
        case ["fault", kind, told]:
            return ProviderFault(kind, "scripted", **told)
    return _ODD  # type: ignore[no-any-return]


def models_of(script: Script) -> dict[str, Model]:
    """The pool, by id."""
    return {each["id"]: msgspec.convert(each, Model) for each in script["models"]}


def provider_of(given: Data, models: dict[str, Model], clock: FakeClock) -> ScriptedProvider | FaultyProvider:
    """One provider."""
    served, name = [models[each] for each in given["models"]], given["name"]
    if given["kind"] == "faulty":
        limits = SMALL if any(each in HEAVY for each in given["faults"]) else None
        return FaultyProvider(given["faults"], models=served, name=name, clock=clock, limits=limits)
    kind = Whole if given["kind"] == "whole" else ScriptedProvider
    return kind(Turns(given), models=served, name=name, clock=clock)


def guardrail_of(given: Data, clock: FakeClock) -> Any:
    """One guardrail of the Router's own."""
    match given["kind"]:
        case "patterns":
            return PatternGuardrail(action=given["action"], stages=given["stages"])
        case "deny":
            return DenyList(["Project Nightjar", "blue"], action=given["action"], stages=given["stages"])
    return OwnGuardrail(given, clock)


class CountingStorage(MemoryStorage):
    """One that sees to it that a call and its trace count alike, and that its line in SQLite is that trace."""

    def keep_trace(self, kept: AccountRecord, draft: TraceDraft, snapshots: Sequence[Snapshot] = ()) -> bool:
        trace, counted = draft.wordless, draft.counted
        assert counted == counted_of(trace)
        if isinstance(draft, Call) and not draft.text_bytes:
            account = draft.caller.account
            mine, whole = rows_of_draft(account, draft), rows_of_trace(account, trace, draft.rollup_keys, counted)
            assert stored_trace("tr", mine.body[0]) == trace
            assert mine._replace(body=whole.body) == whole
        return super().keep_trace(kept, draft, snapshots)


class Bench:
    """A Router as a script wants it, with all that can be looked at afterwards."""

    def __init__(self, script: Script) -> None:
        self.clock = clock = FakeClock(START + script["start_s"])
        self.storage = CountingStorage(clock=clock)
        hosted = script["family"] == "hosted"
        models = models_of(script)
        self.providers = [] if hosted else [provider_of(each, models, clock) for each in script["providers"]]
        self.turns = {model: Turns(each) for each in script["providers"] if "turns" in each for model in each["models"]}
        settings = Settings(
            clock=clock,
            rng=Chance(script["seed"], clock),
            capture=Capture() if script["capture"] else None,
            execution=ExecutionLimits(**script["execution"]),
        )
        self.router = Router(
            providers=self.providers,
            catalogue=Catalogue(models.values() if hosted else (), as_of=AS_OF),
            policies=[msgspec.convert(each, Policy) for each in script["policies"]],
            storage=self.storage,
            guardrails=[guardrail_of(each, clock) for each in script["guardrails"]],
            settings=settings,
        )
        self.console = Console(self.storage, clock=clock, secret="the secret of the golden outcomes")
        self.callers = {None: Caller(), "sandbox": Caller(environment="sandbox"), "account": Caller("acme")}

    async def open_account(self, given: Data | None) -> None:
        """Set the account up, and its key."""
        if given is None:
            return
        terms = {name: given[name] for name in ("plan", "prepaid", "monthly_limit_usd")}
        await self.console.create_account("acme", limits=_limits(given["limits"]), **terms)
        if given["credit"] is not None:
            await self.console.credit("acme", given["credit"], id="first")
        if key := given.get("key"):
            terms = {"budget_usd": key["budget_usd"], "scopes": key["scopes"], "limits": _limits(key["limits"])}
            new = await self.console.create_key("acme", name="web", **terms)
            bearer = f"Bearer {new.secret.reveal()}"
            self.callers["account"] = await self.console.authenticate(bearer, "production")

    async def revoke(self) -> None:
        """Revoke the account's key."""
        key_id = self.callers["account"].key_id
        assert key_id is not None
        await self.console.revoke_key("acme", key_id)


def _limits(given: Data | None) -> RateLimits | None:
    return None if given is None else RateLimits(**given)
