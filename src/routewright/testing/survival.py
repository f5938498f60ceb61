"""Tests if policies survive failures of providers: one case per policy and situation, for any test runner.

A case runs its situation with a real Router on virtual time and faulty providers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import anyio

from routewright._core.guardrails.screen import RequestGate, guardrails_of
from routewright._core.request.problems import did_you_mean, shown
from routewright._core.request.read import as_request
from routewright._core.routing.decision import Decision
from routewright._engine.guardrail import done_now, pass_gate
from routewright.arguments import RequestLike, checked_policies
from routewright.backends.clock import SystemClock
from routewright.catalogue import Catalogue
from routewright.errors import (
    ContentRefused,
    Problem,
    RouterError,
    RouterTimeoutError,
    UpstreamFailed,
    ValidationFailed,
)
from routewright.loop import this_loop
from routewright.router import Router
from routewright.settings import Settings
from routewright.wire import Fallback, ModelSpan, Policy, PolicyFallback, RouteRequest, Trace, Usage

from .clock import FakeClock
from .faulty import FaultyProvider

BACK_WITHIN_S = 16
"""Seconds after its recovery within which a provider must be used again."""
DOWN_S = 20
"""How long a flapping provider is down, with one call per second."""


class Situation(NamedTuple):
    """A failure of the provider of the chosen model; all others work."""

    name: str
    what: str
    """Description, continuing "the provider"."""
    fault: str
    """One of ``routewright.testing.SCENARIOS``."""
    times: int | None = None
    """How many calls fail; None: all."""


SITUATIONS = (
    Situation("rate_limited", "says 429 once, with Retry-After: 1", "rate_limited_second", 1),
    Situation("rate_limited_for_ever", "says 429 to every call", "rate_limited"),
    Situation("unavailable_for_ever", "says 503 to every call", "unavailable"),
    Situation("server_error_once", "says 500 once", "server_error", 1),
    Situation("reset", "resets the connection once", "reset_before_headers", 1),
    Situation("silent", "takes every call and says nothing", "silent"),
    Situation("slow_first_token", "makes callers wait a minute for the first token", "slow_first_token"),
    Situation("stream_cut", "resets every connection in the middle of the answer", "reset_mid_body"),
    Situation("stream_stalled", "stalls in the middle of every answer", "stall_mid_answer"),
    Situation("malformed_chunk", "sends broken JSON in the middle of every answer", "malformed_chunk"),
    Situation("missing_end", "ends every answer without its end", "truncated"),
    Situation("context_overflow", "says that the prompt is too long", "context_overflow"),
    Situation("moderation", "refuses the content", "moderation"),
    Situation("cut_not_continued", "cuts every answer, which no other model would continue", "error_event"),
    Situation("flapping", "is down for a while, and then well again", "unavailable"),
    Situation("usage_after_fallback", "cuts every answer, and bills what came of it", "reset_mid_body"),
)
_CUT = ("stream_cut", "stream_stalled", "malformed_chunk", "missing_end", "cut_not_continued", "usage_after_fallback")
"""Situations in which content comes before the fault."""


class NotSurvived(AssertionError):
    """A policy does not survive a situation. The message names both, what happened, and what to change."""

    __module__ = "routewright.testing"


class SituationCase:
    """One policy in one situation."""

    def __init__(
        self,
        policy: Policy,
        situation: Situation,
        *,
        policies: Sequence[Policy],
        catalogue: Catalogue,
        request: RouteRequest,
    ) -> None:
        self.policy = policy
        self.situation = situation
        self._policies = policies
        self._catalogue = catalogue
        self._request = request

    def __repr__(self) -> str:
        return f"{self.policy.name}-{self.situation.name}"

    def check(self) -> None:
        """Run it, plain and streamed, in milliseconds. Raises ``NotSurvived``, an ``AssertionError``.

        For plain tests; raises ``RuntimeError`` in an async one.
        """
        __tracebackhide__ = True
        if this_loop() is not None:
            raise RuntimeError(
                "check() runs an event loop of its own: call it from a plain test, not from an async one"
            )
        for streamed in (False, True):
            try:
                anyio.run(_Stage(self, streamed=streamed).play)
            except NotSurvived as error:
                raise error.with_traceback(None) from None  # frames of this module would not help


def situations(
    policies: str | Path | Sequence[Policy],
    policy: str | None = None,
    *,
    catalogue: Catalogue | None = None,
    request: RequestLike = "Hello",
) -> list[SituationCase]:
    """Sixteen cases for each policy, or for the named one.

        for case in situations("policies.toml"):
            case.check()

    The provider of the model chosen for ``request`` fails; all others of the ``catalogue`` work. Nothing is sent, and
    time is virtual. Raises ``ValidationFailed``.
    """
    given = _read(policies)
    chosen = [each for each in given if policy is None or policy in (each.name, each.id)]
    if policy is not None and not chosen:
        hint = did_you_mean(policy, [each.name for each in given]) or "give the name or the id of one"
        raise ValidationFailed.of(Problem("policy", f"there is no policy {shown(policy)}", hint))
    models, asked = Catalogue() if catalogue is None else catalogue, as_request(request, {})
    return [
        SituationCase(each, situation, policies=given, catalogue=models, request=asked)
        for each in chosen
        for situation in SITUATIONS
    ]


def _read(policies: object) -> Sequence[Policy]:
    place = "policies"
    given: Sequence[Policy]
    if isinstance(policies, str | Path):
        from routewright.policies import read_policies  # loads pydantic

        place = str(policies)
        given = read_policies(place)
    elif isinstance(policies, Sequence):
        given = checked_policies(policies)
    else:
        hint = "pass the path of a file, or a list: [Policy(...)]"
        raise ValidationFailed.of(Problem(place, f"{shown(policies)} is not a list of policies", hint))
    if not given:
        raise ValidationFailed.of(Problem(place, "there is no policy", "write the policy to test"))
    return given


class Ended(NamedTuple):
    """How a call ended."""

    error: RouterError | None
    trace: Trace

    @property
    def attempts(self) -> list[ModelSpan]:
        """The attempts, in order."""
        return [span for span in self.trace.spans if isinstance(span, ModelSpan)]

    @property
    def calls(self) -> str:
        """The number of attempts and their models, in words."""
        if not self.attempts:
            return "nothing was called"
        count = "1 call" if len(self.attempts) == 1 else f"{len(self.attempts)} calls"
        return f"{count}, of {', then '.join(dict.fromkeys(span.model for span in self.attempts))}"


class _Script:
    """The behaviour of one provider, call by call."""

    def __init__(self) -> None:
        self.fault: str | None = None
        self.times: int | None = None

    def faults(self) -> Iterator[str | None]:
        """Endless: the fault ``times`` times, then None."""
        while True:
            due = self.times is None or self.times > 0
            self.times = None if self.times is None else self.times - 1
            yield self.fault if due else None


class _Stage:
    """One policy in one situation, plain or streamed."""

    def __init__(self, case: SituationCase, *, streamed: bool) -> None:
        self._policy = case.policy
        self._rules = case.policy.fallback or PolicyFallback()
        self._situation = case.situation
        self._request = case._request
        self._catalogue = case._catalogue
        self._streamed = streamed
        self._models = {model.id: model for model in self._catalogue.models}
        self._clock = FakeClock(SystemClock().time())
        self._scripts = {name: _Script() for name in sorted({model.provider for model in self._models.values()})}
        self._providers = [
            FaultyProvider(script.faults(), name=name, clock=self._clock) for name, script in self._scripts.items()
        ]
        self._router = Router(
            providers=self._providers,
            catalogue=self._catalogue,
            policies=case._policies,
            settings=Settings(clock=self._clock, rng=Random(0), stale_after_days=None),
        )

    async def play(self) -> None:
        """Raises ``NotSurvived``."""
        sent = self._past_guardrails()
        try:
            decided = self._router.decide(sent, policy_id=self._policy.name)
        except RouterError as error:
            raise NotSurvived(f"policy {self._policy.name!r} serves nobody, fault or none: {error}") from None
        script = self._scripts[self._provider_of(decided.model)]
        script.fault, script.times = self._situation.fault, self._situation.times
        if self._situation.name == "flapping":
            await self._flap(decided, script)
            return
        ended = await self._call()
        self._check_end(decided, ended)
        calls = [call for provider in self._providers for call in provider.calls]
        if any([*call.messages] != sent.messages for call in calls):  # nothing of an answer is in the next prompt
            raise self._lost(decided, "a fallback was not asked with the messages of the request")
        self._check_costs(decided, ended)

    def _past_guardrails(self) -> RouteRequest:
        """The request after the policy's guardrails."""
        gate = RequestGate(self._request, guardrails_of(self._policy))
        done_now(pass_gate(gate))
        if gate.blocked is None:
            return gate.request
        by = f"guardrail {gate.blocked.guardrail!r} blocks the request itself, by its rule {gate.blocked.rule!r}"
        raise NotSurvived(f"policy {self._policy.name!r} cannot be tried: its {by}; pass another 'request='")

    async def _flap(self, decided: Decision, script: _Script) -> None:
        """Go down and recover while calls continue."""
        for second in range(DOWN_S + BACK_WITHIN_S):
            if second == DOWN_S:
                script.fault = None
            self._check_end(decided, await self._call())
            await self._clock.sleep(1.0)
        candidates = self._router.decide(self._request, policy_id=self._policy.name).candidates
        if decided.model not in [candidate.model for candidate in candidates]:
            raise self._lost(decided, f"it is not in service {BACK_WITHIN_S} s after its recovery")

    async def _call(self) -> Ended:
        error, asked, policy_id = None, self._request, self._policy.name
        try:
            if self._streamed:
                async with self._router.stream(asked, policy_id=policy_id) as stream:
                    async for _ in stream:
                        pass
                trace_id = stream.result.trace_id
            else:
                trace_id = (await self._router.route(asked, policy_id=policy_id)).trace_id
        except RouterError as failed:
            error, trace_id = failed, failed.trace_id or ""
        return Ended(error, await self._router.trace(trace_id))

    def _check_end(self, decided: Decision, ended: Ended) -> None:
        error = ended.error
        if error is None:
            if self._is_refused:
                raise self._lost(decided, "a refusal was routed around, which nobody asked for")
            return
        if self._may_tell(decided, error):
            return
        said = f"the caller got {type(error).__name__} ({error.status}); {ended.calls}"
        raise self._lost(decided, said, self._remedy(decided, error))

    @property
    def _is_refused(self) -> bool:
        """True if the caller should see a refusal: moderation without fallback."""
        return self._situation.name == "moderation" and self._rules.on_refusal == "fail"

    def _may_tell(self, decided: Decision, error: RouterError) -> bool:
        """True if the caller should get this error."""
        if self._is_refused:
            return isinstance(error, ContentRefused)
        if not isinstance(error, UpstreamFailed):
            return False
        if self._situation.name == "context_overflow":
            return not any(self._window(model) > self._window(decided.model) for model in decided.chain)
        cut = self._situation.name in _CUT and self._streamed
        asked = self._request.fallback or Fallback()
        return cut and (asked.on_partial or self._rules.on_partial) == "error"

    def _window(self, model: str) -> int:
        return self._models[model].context_window or 0

    def _provider_of(self, model: str) -> str:
        return self._models[model].provider

    def _check_costs(self, decided: Decision, ended: Ended) -> None:
        """Check that each attempt is priced by its own model."""
        day = ended.trace.created_at[:10]
        for span in ended.attempts:
            tokens, priced = span.tokens, self._models[span.model].pricing_per_1m is not None
            if tokens is None or not priced:
                continue
            usage = Usage(tokens.input, tokens.output, tokens.cached)
            due = self._catalogue.bill(span.model, usage, on=day).total_usd
            if abs(due - span.cost_usd) > 1e-9:
                raise self._lost(decided, f"{span.model} costs ${due:.9f}, and ${span.cost_usd:.9f} is in the trace")

    def _remedy(self, decided: Decision, error: RouterError) -> str:
        """What to change."""
        provider, chain = self._provider_of(decided.model), decided.chain
        again = "; or let 'fallback.max_retries' be 1" if self._rules.max_retries == 0 and self._situation.times else ""
        if not chain and self._rules.models == []:
            return f"'fallback.models' is empty: leave it out, or name a model of another provider there{again}"
        if not chain:
            return f"its plan is {decided.model} alone: let 'models' or 'fallback.models' allow another provider{again}"
        if all(self._provider_of(model) == provider for model in chain):
            return f"its whole plan is served by {provider}: let 'models' or 'fallback.models' allow another{again}"
        if isinstance(error, RouterTimeoutError):
            return "allow more time in 'timeout_ms': a stream may be silent for a second"
        return "raise 'budget', which is to pay for a second attempt, or allow cheaper models"

    def _lost(self, decided: Decision, said: str, remedy: str = "") -> NotSurvived:
        form = "streamed" if self._streamed else "plain"
        who = f"{decided.model}, whose provider {self._situation.what}"
        told = f"policy {self._policy.name!r} does not survive {self._situation.name!r} ({form}; {who}): {said}"
        return NotSurvived(f"{told}; {remedy}" if remedy else told)
